"""Optional and deferred imports: names that a package imports on first use, and advice for a missing package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package; `homes`: module to names in it, `name=alias` for another name.

    The package lists the same imports under `TYPE_CHECKING`, and the names in `__all__`.
    """
    pairs = [(module, name) for module, names in homes.items() for name in names.split()]
    home = {name.rpartition("=")[2]: (module, name.partition("=")[0]) for module, name in pairs}

    def load(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = home[name]
        value = getattr(import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    return load


def install_command(extra: str, python: str = "python") -> str:
    """Return the command that installs the packages of a sparklog extra such as `avro`.

    The command names these packages instead of `sparklog[avro]`, because sparklog is installed from a wheel or a
    checkout and pip would not find it by name.
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
