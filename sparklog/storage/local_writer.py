"""Support of stores by the system: locks, threads, its errors in words, and files written in the background.

`os.fork` copies locks that other threads hold at that moment; in the child no thread releases them. Python forks by
itself (multiprocessing on Linux up to 3.13, Spark's worker daemon), so every lock that outlives a call is a `ForkLock`.
What it guards must be usable at any point of a critical section: a cache, of which an entry may be missing.

While a data object is written the kernel is asked to begin writing its bytes to the disk, so that the fsync at its end
has little left to do: `sync_file_range` of Linux' C library. It is a hint: durability comes from fsync alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.storage.locations import BUCKET_REMEDY
from sparklog.storage.store import Store


class ForkLock:
    """A `threading.Lock` for `with` statements, free in every new child process."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_LOCKS: WeakSet[ForkLock] = WeakSet()


def _free_all() -> None:
    for lock in _LOCKS:
        lock._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)


class ForkGuard:
    """Refuse a library in a process that was forked by one which had used it.

    The threads of such a library are gone in the child, where each call would wait for them for ever.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._used = False
        self._lost = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def use(self) -> None:
        """Note that the library is used. `Unavailable` where it would hang."""
        if self._lost:
            raise Unavailable(
                f"this process was forked by one that had used {self._library}, which works in no such child: start "
                "processes with multiprocessing's 'spawn' or 'forkserver' method, or open stores after the fork only"
            )
        self._used = True

    def _forked(self) -> None:
        self._lost = self._used


T = TypeVar("T")
R = TypeVar("R")


def ask_each(store: Store, look: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield the answer of `look`, which makes requests to `store`, for each item, in order.

    Several run at once if the store has `parallel_reads`; else each runs when its answer is asked for.
    """
    at_once = min(store.parallel_reads, len(items))
    if at_once <= 1:
        yield from map(look, items)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="sparklog-read") as pool:
        yield from pool.map(look, items)


def read_each(
    store: Store, look: Callable[[str], R], names: Sequence[str], failures: list[SparklogError] | None
) -> dict[str, R]:
    """Return what `look` reads of each name, as `ask_each`. Errors go to `failures`, or are raised if it is None."""

    def answer(name: str) -> R | SparklogError:
        try:
            return look(name)
        except SparklogError as error:
            return error

    answers: dict[str, R] = {}
    for name, one in zip(names, ask_each(store, answer, names), strict=True):
        if not isinstance(one, SparklogError):
            answers[name] = one
        elif failures is None:
            raise one
        else:
            failures.append(one)
    return answers


_ADVICE = {
    errno.ENOSPC: "the file system is full: free some space and try again",
    errno.EDQUOT: "the disk quota is used up: free some space and try again",
    errno.EACCES: "permission denied: the process needs to read and write there",
    errno.EPERM: "operation not permitted: the process needs to read and write there",
    errno.EROFS: "the file system is read-only: remount it writable or use another place",
    errno.EIO: "the device reports an I/O error: check the disk",
    errno.EMFILE: "too many open files in this process: raise its limit (ulimit -n)",
    errno.ENFILE: "too many open files on this machine: raise its limit",
    errno.ESTALE: "the network file system lost the file: try again",
    errno.ENAMETOOLONG: "the name is too long for this file system: use a shorter path",
    errno.ELOOP: "too many symbolic links: check where the path leads",
}


def store_error(error: OSError, action: str, key: str, location: str) -> SparklogError:
    """Return the error to raise when the system refused to `action` the object `key` below `location`.

    `NotFound` where an object to read is not there; most others are `Unavailable`: a write may have taken effect.
    """
    if isinstance(error, SparklogError):
        return error
    what = f"{key} in {location}" if key else location
    if error.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR) and action == "read":
        return NotFound(f"no object {what}: it was never written, or has been deleted")
    if error.errno in (errno.ELOOP, errno.ENXIO) and action == "read":
        return NotFound(f"no object {what}: a link or a socket lies there, expected a file")
    if error.errno == errno.ENOTDIR:
        return BadRequest(f"cannot {action} {what}: a part of the path is a file, expected a directory")
    advice = _ADVICE.get(error.errno or 0) or f"{error.strerror or error} (errno {error.errno})"
    return Unavailable(f"cannot {action} {what}: {advice}")


def refuse(location: str, reason: str) -> NoReturn:
    """Raise `BadRequest` for a place that cannot keep the promises of a store."""
    mount = mount_of(location)
    remedy = "use another file system"
    if "(fuse" in mount:
        remedy = f"if a bucket is mounted there, {BUCKET_REMEDY}; else {remedy}"
    raise BadRequest(f"{location} on {mount} cannot hold a sparklog root: {reason}; {remedy}")


def mount_of(path: str) -> str:
    """Return the mount of a path, for messages: `/mnt/usb (vfat)`, or the mount point where the type is unknown."""
    point = os.path.realpath(path)
    while not os.path.ismount(point) and os.path.dirname(point) != point:
        point = os.path.dirname(point)
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            types = [fields[2] for fields in map(str.split, mounts) if len(fields) > 2 and fields[1] == point]
    except OSError:
        types = []
    return f"{point} ({types[-1]})" if types else point


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


def replace_file(path: str, text: str) -> None:
    """Put a new file in the place of `path`, whole: it is written beside it, under a random name, exclusively."""
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
