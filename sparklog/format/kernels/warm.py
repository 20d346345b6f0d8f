"""Compile all kernels in advance, so that the compilation delays the setup and not the first query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module

from sparklog.format.kernels.kernel_choice import Kernel

RECORD_MODULES = (
    "sparklog.format.kernels.record_kernels",
    "sparklog.format.kernels.encode_kernels",
    "sparklog.format.kernels.hash_kernels",
)
"""The names of the modules with the kernels that read and write records."""

KERNEL_MODULES = ("sparklog.format.offset_map", *RECORD_MODULES, "sparklog.format.legacy.legacy_kernels")
"""The names of all modules with kernels, including modules of higher packages, which must not be imported here."""


def warm_up() -> str | None:
    """Load all kernels, and compile kernels that are not cached.

    Return the cache directory, or None if there is none.
    """
    from sparklog.format.kernels.machine_code import CACHE_DIRECTORY

    for kernel in _kernels(KERNEL_MODULES):
        kernel.load()
    return CACHE_DIRECTORY


def load_cached_kernels() -> None:
    """Load the kernels that read and write records, except for kernels that would have to be compiled."""
    for kernel in _kernels(RECORD_MODULES):
        if kernel.is_cached():
            kernel.load()


def _kernels(modules: Iterable[str]) -> Iterator[Kernel]:
    for name in modules:
        for member in vars(import_module(name)).values():
            if isinstance(member, Kernel):
                yield member


if __name__ == "__main__":
    print(f"kernels are cached in {warm_up() or 'memory only, because no directory is writable'}")
