"""Compile all kernels ahead, so that set-up pays for it and not the first query."""

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
"""Every module of kernels, of packages above this one too: names, so that nothing is imported upwards."""


def warm_up() -> str | None:
    """Load every kernel, compiling those that the cache does not have. Returns the cache's folder, None without one."""
    from sparklog.format.kernels.native_kernels import CACHE_DIRECTORY

    for name in KERNEL_MODULES:
        for member in vars(import_module(name)).values():
            if isinstance(member, Kernel):
                member.load()
    return CACHE_DIRECTORY


if __name__ == "__main__":
    print(f"kernels are kept in {warm_up() or 'memory only: no folder can be written to'}")
