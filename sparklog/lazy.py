"""Names of a package that are imported on first use, so that importing the package costs nothing."""

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
