"""Compile all kernels in advance, so that the compilation delays the setup and not the first query."""

from __future__ import annotations

from importlib import import_module

from sparklog.format.kernels.kernel_choice import Kernel

KERNEL_MODULES = (
    "sparklog.format.offset_map",
    "sparklog.format.kernels.record_kernels",
    "sparklog.format.kernels.encode_kernels",
    "sparklog.format.kernels.hash_kernels",
    "sparklog.format.legacy.legacy_kernels",
)
"""The names of all modules with kernels, including modules of higher packages, which must not be imported here."""


def warm_up() -> str | None:
    """Load all kernels, and compile kernels that are not cached.

    Return the cache directory, or None if there is none.
    """
    from sparklog.format.kernels.machine_code import CACHE_DIRECTORY

    for name in KERNEL_MODULES:
        for member in vars(import_module(name)).values():
            if isinstance(member, Kernel):
                member.load()
    return CACHE_DIRECTORY


if __name__ == "__main__":
    print(f"kernels are cached in {warm_up() or 'memory only, because no directory is writable'}")
