"""Ask the kernel to begin writing a file's new bytes to the disk, so that the fsync at its end finds little left to do.

Python has no `sync_file_range`; Linux' C library has. It is a hint and nothing more: durability comes from fsync alone,
and where the call is missing or refused nothing changes but the time that fsync takes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

SYNC_FILE_RANGE_WRITE = 2

_Call = Callable[[int, int, int, int], int]


def _find() -> _Call | None:
    if sys.platform != "linux":
        return None
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    call.restype = ctypes.c_int
    found: _Call = call
    return found


_CALL = _find()


def start_writeback(fd: int, start: int, length: int) -> None:
    """Begin writing bytes `[start, start + length)` of an open file; returns at once and reports nothing."""
    if _CALL is not None:
        _CALL(fd, start, length, SYNC_FILE_RANGE_WRITE)
