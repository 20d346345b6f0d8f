"""Files that reach the disk: fsync of files and folders, and what makes it short.

While a data object is written the kernel is asked to begin writing its bytes to the disk, so that the fsync at its end
has little left to do: `sync_file_range` of Linux' C library. It is a hint: durability comes from fsync alone.
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
    """Begin writing bytes `[start, start + length)` of an open file; return at once and report nothing."""
    if _CALL is not None:
        _CALL(fd, start, length, SYNC_FILE_RANGE_WRITE)


def write_to(path: str, text: str) -> None:
    """Write to what a path names, links followed, as a shell's `>` does.

    A regular file is replaced whole. A device or a pipe is written to: another file in its place would break the
    machine or its readers. So is the file that is this process's standard output or error.
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
    """Put a new file in the place of `path`, whole: it is written next to it, under a random name, exclusively."""
    unfinished = f"{path}.{os.urandom(12).hex()}.unfinished"
    # O_EXCL: no link of that name is followed.
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
    """fsync to the medium. The fsync of macOS only reaches the drive's cache."""
    if sys.platform == "darwin":
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(fd)
