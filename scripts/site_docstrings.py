"""Complete the docstrings on the documentation site. This is a griffe extension, which is configured in mkdocs.yml.

Griffe only reads the source code, where examples are not fenced. If the options of a function are the keys of a
`TypedDict`, they are missing in its docstring (see `sparklog.arguments.checked`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:[ ]+.*\n?|\n)+)", re.MULTILINE)


def with_code(docstring: str) -> str:
    """Return the docstring with a fenced example in a section with griffe's name."""
    return EXAMPLE.sub(lambda match: f"Examples:\n    ```python\n{match[1].rstrip()}\n    ```\n", docstring)


def functions(module: griffe.Module) -> Iterator[griffe.Function]:
    """Yield the functions of a module and of its submodules."""
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            yield from functions(member)
        elif isinstance(member, griffe.Function):
            yield member


def options_class(function: griffe.Function, loader: griffe.GriffeLoader) -> griffe.Class | None:
    """Return the `TypedDict` in the decorator `checked` of a function, or None."""
    for decorator in function.decorators:
        if decorator.callable_path == "sparklog.arguments.checked":
            names = [argument for argument in decorator.value.arguments if isinstance(argument, griffe.ExprName)]
            return next((loader.modules_collection[name.canonical_path] for name in names), None)
    return None


def add_options(function: griffe.Function, options: griffe.Class) -> None:
    """Replace `**options` of a function with the individual options, and use the docstring that describes them."""
    imported = getattr(import_module(function.module.path), function.name)
    signature = inspect.signature(imported)
    parameters = [item for item in function.parameters if item.kind != griffe.ParameterKind.var_keyword]
    for name, attribute in options.attributes.items():
        parameters.append(
            griffe.Parameter(
                name,
                # The annotation has the form Annotated[type, option(...)].
                annotation=attribute.annotation.slice.elements[0],
                kind=griffe.ParameterKind.keyword_only,
                default=repr(signature.parameters[name].default),
            )
        )
    function.parameters = griffe.Parameters(*parameters)
    function.docstring.value = with_code(inspect.getdoc(imported) or "")


class Docstrings(griffe.Extension):  # type: ignore[misc]  # there is no griffe where only mypy runs
    """An extension that griffe calls for each object and each package."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Fence the example of an object."""
        if obj.docstring is not None:
            obj.docstring.value = with_code(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: object) -> None:
        """Add the options of all functions of a package."""
        for function in functions(pkg):
            if (options := options_class(function, loader)) is not None:
                add_options(function, options)
