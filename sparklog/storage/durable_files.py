"""Durable files: fsync of files and directories, and early writeback.

While a data object is written, Linux's `sync_file_range` asks the kernel to start writing its bytes to disk, which
shortens the fsync at the end. This is only a hint; durability requires fsync.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from contextlib import suppress
from typing import Any

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
SYNC_FILE_RANGE_WRITE = 2

_CALL: Any = None
if sys.platform == "linux":
    with suppress(OSError, AttributeError):
        _CALL = ctypes.CDLL(None).sync_file_range
        _CALL.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def start_writeback(fd: int, start: int, length: int) -> None:
    """Start writing bytes `[start, start + length)` of an open file to disk, without waiting or reporting errors."""
    if _CALL is not None:
        _CALL(fd, start, length, SYNC_FILE_RANGE_WRITE)


def write_to(path: str, text: str) -> None:
    """Write to a path, following links, like `>` in a shell.

    A regular file is replaced atomically. Devices and pipes are opened and written to, because replacing them would
    break the system or their readers. The same applies to a file that is the standard output or standard error of this
    process.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        status = None
    opened = None if status is None else _output_stream(status)
    if opened is None and (status is None or stat.S_ISREG(status.st_mode)):
        replace_file(os.path.realpath(path), text)
        return
    fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC) if opened is None else os.dup(opened)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def _output_stream(status: os.stat_result) -> int | None:
    for fd in (1, 2):
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(fd)):
                return fd
    return None


def replace_file(path: str, text: str) -> None:
    """Replace a file atomically. The new file is first written next to it with a random name."""
    unfinished = f"{path}.{os.urandom(12).hex()}.unfinished"
    # O_EXCL does not follow a link with this name.
    fd = os.open(unfinished, NEW_FILE, 0o666)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        full_fsync(fd)
    finally:
        os.close(fd)


def full_fsync(fd: int) -> None:
    """Sync a file to the medium. On macOS, fsync only reaches the cache of the drive."""
    if sys.platform == "darwin":
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(fd)
