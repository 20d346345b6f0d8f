"""CRC-32C, from the extension of the package `crc32c`.

The package reads its own version when it is imported, by `importlib.metadata` and with it `email` and `zipfile`: a
third of what a small command may cost. Its extension is loaded without that; where there is none, the package is.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

Checksum = Callable[..., int]
"""Of bytes and, as the second argument, of the CRC of the bytes before them."""


def _load() -> Checksum:
    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec("crc32c._crc32c", places)
    if spec is None or spec.loader is None:
        from crc32c import crc32c as function
    else:
        extension = module_from_spec(spec)
        spec.loader.exec_module(extension)
        function = extension.crc32c
    checksum: Checksum = function
    return checksum


crc32c = _load()
