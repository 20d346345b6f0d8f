"""The Spark adapter: options, planning, Arrow in and out. No byte layouts and no commit rules live here.

Spark imports this package afresh in half a dozen processes per query, so nothing here may import numba, pandas or a
codec at module level; what tasks need is imported inside the functions that run in tasks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.datasource.source import partitioned, register

__all__ = ["partitioned", "register"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'sparklog.datasource' has no attribute {name!r}")
    return getattr(import_module("sparklog.datasource.source"), name)
