"""Lazy imports: the rule for imports inside functions, names that a package imports on first use, and missing packages.

Imports are at the top of a module, with three exceptions. In these cases, the import is inside the function that needs
it:

* Start-up time: a module that is slow to import, or that imports a slow module (PySpark, numba, pyarrow.compute, store
  clients, asyncio), in a process that may not need it. For example, help and shell completion of the command line
  import neither pyarrow nor the log, so each command imports the modules that it calls.
* Planners: a Spark process that only plans a stream must not import writers, groups or kernels.
* Optional packages, such as fastavro or a store's client. A missing package is an error only if it is used.

Names that are needed only for type hints are imported under `TYPE_CHECKING`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package that imports names on first use.

    The package lists the same imports under `TYPE_CHECKING`, and the names in `__all__`.

    Args:
        package: the name of the package.
        modules: for each module, the names to import, separated by spaces. `name=alias` imports a name under an alias.
    """
    pairs = [(module, name) for module, names in modules.items() for name in names.split()]
    sources = {name.rpartition("=")[2]: (module, name.partition("=")[0]) for module, name in pairs}

    def load(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = sources[name]
        value = getattr(import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    return load


def install_command(extra: str, python: str = "python") -> str:
    """Return the command that installs the packages of a sparklog extra such as `avro`.

    The command installs these packages instead of `sparklog[avro]`, because sparklog is installed from a wheel or a
    checkout, and pip would not find it by name.
    """
    from importlib import metadata

    try:
        requirements = metadata.requires("sparklog") or []
    except metadata.PackageNotFoundError:
        requirements = []
    pairs = [text.replace('"', "'").partition("; extra == ") for text in requirements]
    packages = [package for package, _, name in pairs if name == f"'{extra}'"]
    if not packages:
        return f"install the packages of the extra {extra!r} in sparklog's pyproject.toml"
    return f"{python} -m pip install " + " ".join(f'"{package}"' for package in packages)
