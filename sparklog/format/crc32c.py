"""CRC-32C, computed by the C extension of the `crc32c` package.

When the package is imported, it looks up its version. The lookup loads `importlib.metadata`, `email` and `zipfile`, and
takes a third of the time that a small command may take. Therefore this module loads the extension directly, and imports
the package only if the extension is not found.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

Checksum = Callable[..., int]
"""A function that returns the checksum of bytes. The optional second argument is the CRC of the preceding bytes."""


def _load() -> Checksum:
    package = find_spec("crc32c")
    locations = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec("crc32c._crc32c", locations)
    if spec is None or spec.loader is None:
        from crc32c import crc32c as function
    else:
        extension = module_from_spec(spec)
        spec.loader.exec_module(extension)
        function = extension.crc32c
    checksum: Checksum = function
    return checksum


crc32c = _load()
