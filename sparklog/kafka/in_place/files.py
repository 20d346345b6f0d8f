"""Access to the files of Kafka directories on disks and in buckets: list directories, and read files.

`LocalPath` uses system calls. On a disk, an open file can be read even after a broker has deleted it.

`StorePath` uses a store. A broker never writes to a bucket, so files are not renamed during a read. Therefore a single
listing is sufficient, and a `.swap` file in a listing will not be renamed. Objects do not have inodes, so objects with
the same key, size and modification time are considered the same file. A directory exists if it contains a file. A
listing is cached until `refresh` is called. The listing contains the names, sizes and modification times of all files
below its directory, so reading this information does not require a request. If a file is missing or is shorter than in
the listing, the file was replaced. In this case, reading the file raises `FileNotFoundError`, and the next call lists
the directory again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, TypeAlias, TypeVar

from sparklog.errors import NotFound
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.read.read_ahead import ReadAhead, Request
from sparklog.storage import Store, local_path, open_store
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.local import read_at
from sparklog.storage.locations import is_url, normal_location, split, without_settings
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.store import ObjectInfo, is_part

T = TypeVar("T")
R = TypeVar("R")

RANGES_AHEAD = 2
"""Number of ranges to read ahead after two consecutive reads, if the store has `parallel_reads`."""
CACHED_RANGES = RANGES_AHEAD + 2
"""Maximum number of ranges in memory, including the ranges that are read ahead."""
_SMALL_BYTES = 64 * 1024
"""Files up to this size are cached until their size or modification time changes."""


@dataclass(frozen=True, slots=True)
class StoreStat:
    """The size and modification time of a file. The fields have the same names as in `os.stat_result`."""

    st_size: int
    st_mtime_ns: int
    st_ino: int = 0

    @classmethod
    def of(cls, info: ObjectInfo) -> StoreStat:
        return cls(info.size, info.modified_ms * 1_000_000)


@dataclass(frozen=True, slots=True, order=True)
class StorePath:
    """A file or directory in a store. The empty key is the root of the store. The path can be pickled if the store can
    be pickled.

    `str` returns the URL without its settings, which is used in messages.
    """

    is_local: ClassVar[bool] = False
    key: str
    files: StoreFiles = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.files.base}/{self.key}" if self.key else self.files.base

    @property
    def name(self) -> str:
        return str(self).rpartition("/")[2]

    @property
    def parent(self) -> StorePath:
        return StorePath(self.key.rpartition("/")[0], self.files)

    def child(self, name: str) -> StorePath:
        return StorePath(f"{self.key}/{name}" if self.key else name, self.files)

    @property
    def real(self) -> StorePath:
        return self

    def names(self) -> Iterator[str]:
        names = self.files.names(self.key)
        if not names:
            raise self.missing()
        return iter(sorted(names))

    def stat(self) -> StoreStat:
        info = self.files.info(self.key)
        if info is None:
            raise self.missing()
        return StoreStat.of(info)

    def is_directory(self) -> bool:
        return bool(self.files.names(self.key))

    def is_file(self) -> bool:
        return self.files.info(self.key) is not None

    exists = is_file

    def first_keys(self, limit: int) -> Iterator[str]:
        """List the directory again, and yield the relative keys of the first files below the directory, such as
        `orders-0/x`.
        """
        prefix = f"{self.key}/" if self.key else ""
        return (info.key.removeprefix(prefix) for info in islice(self.files.store.list(prefix), limit))

    def directories(self) -> Iterator[str]:
        """List the directory again, and yield the names of the subdirectories."""
        return self.files.store.list_folders(f"{self.key}/" if self.key else "")

    def data(self) -> bytes | None:
        return self.files.data(self.key)

    def open(self) -> StoreFile:
        return StoreFile(self, self.stat())

    def refresh(self) -> None:
        self.files.refresh(self.key)

    def map_files(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        return map_requests(self.files.store, function, items)

    def as_object(self) -> tuple[Store, str]:
        return self.files.store, self.key

    def missing(self) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))


class _StoreListing:
    """The files below a directory, and the names of the files and subdirectories in each directory."""

    def __init__(self, store: Store, directory: str) -> None:
        self.directory = directory
        self.files: dict[str, ObjectInfo] = {}
        self.names: dict[str, set[str]] = {}
        for info in store.list(f"{directory}/" if directory else ""):
            self.files[info.key] = info
            key = info.key
            while key != directory:
                above, _, name = key.rpartition("/")
                siblings = self.names.setdefault(above, set())
                if name in siblings:
                    break
                siblings.add(name)
                key = above

    def covers(self, directory: str) -> bool:
        return not self.directory or directory == self.directory or directory.startswith(f"{self.directory}/")


class StoreFiles:
    """Provides the files of a store, and caches the latest listing of a directory. This class is thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.base = without_settings(store.location)
        self._lock = ForkLock()
        self._listing: _StoreListing | None = None
        self._small: dict[str, tuple[ObjectInfo, bytes]] = {}

    def __reduce__(self) -> tuple[type[StoreFiles], tuple[Store]]:
        return StoreFiles, (self.store,)

    def refresh(self, directory: str) -> None:
        self.invalidate()
        self.names(directory)

    def invalidate(self) -> None:
        """Discard the listing, so that the next call lists the directory again."""
        self._listing = None

    def names(self, directory: str) -> set[str]:
        """Return the names of the files and subdirectories in a directory.

        The set is empty if the directory does not exist.
        """
        with self._lock:
            listing = self._listing
            if listing is None or not listing.covers(directory):
                listing = self._listing = _StoreListing(self.store, directory)
        return listing.names.get(directory, set())

    def info(self, key: str) -> ObjectInfo | None:
        """Return the size and modification time of a file, or None if the file does not exist.

        This method sends a request if the directory has not been listed yet.
        """
        listing = self._listing
        if listing is not None and listing.covers(key.rpartition("/")[0]):
            return listing.files.get(key)
        return self.store.stat(key) if key else None

    def data(self, key: str) -> bytes | None:
        """Return the bytes of a file, or None if the file does not exist."""
        listing = self._listing
        is_listed = listing is not None and listing.covers(key.rpartition("/")[0])
        info = self.info(key) if is_listed else None
        if is_listed and info is None:
            return None
        cached = self._small.get(key)
        if cached is not None and cached[0] == info:
            return cached[1]
        data = read_if_there(self.store, key)
        if data is not None and info is not None and len(data) == info.size <= _SMALL_BYTES:
            self._small[key] = info, data
        return data


class StoreFile:
    """An open file in a store. Its size is the size in the listing."""

    inode = 0

    def __init__(self, path: StorePath, stat: StoreStat) -> None:
        self.path = path
        self.size, self.modified = stat.st_size, stat.st_mtime_ns
        self._store = path.files.store
        self._range_bytes = self._store.limits.range_bytes
        self._ranges: dict[int, bytes] = {}
        """The most recently used ranges, by range number."""
        self._last = -1
        self._requests: dict[int, Request] = {}
        """The pending requests by range number, in order. The first requested range is the current range, and the
        following ranges are read ahead.

        """
        parallel = min(self._store.parallel_reads, RANGES_AHEAD + 1)
        self._ahead = ReadAhead(parallel, self._fetch, self._more, self._store.limits)

    def read(self, position: int, length: int) -> bytes:
        parts: list[bytes] = []
        end = min(position + length, self.size)
        while position < end:
            start = position % self._range_bytes
            part = self._range(position // self._range_bytes)[start : start + end - position]
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def is_replaced(self) -> bool:
        """Send a request, and return True if the size or modification time has changed, or if the file was deleted."""
        info = self._store.stat(self.path.key)
        return info is None or StoreStat.of(info) != StoreStat(self.size, self.modified)

    def close(self) -> None:
        self._ahead.close()

    def _range(self, number: int) -> bytes:
        data = self._ranges.pop(number, None)
        if data is None:
            for obsolete in [other for other in self._requests if other < number or number not in self._requests]:
                self._ahead.drop([self._requests.pop(obsolete)])
            if not self._requests:
                self._add(number)
            data = bytes(self._ahead.consume(self._requests[number]))
            del self._requests[number]
        self._ranges[number] = data
        self._last = number
        while len(self._ranges) > 1 and len(self._ranges) + len(self._requests) > CACHED_RANGES:
            del self._ranges[next(iter(self._ranges))]
        return data

    def _add(self, number: int) -> None:
        start = number * self._range_bytes
        length = min(self._range_bytes, self.size - start)
        self._requests[number] = Request(self._store, self.path.key, start, length)
        self._ahead.add([self._requests[number]])

    def _more(self) -> bool:
        """Request the next range if the last two ranges were consecutive."""
        current, following = next(iter(self._requests)), next(reversed(self._requests)) + 1
        if self._last < 0 or current != self._last + 1 or following * self._range_bytes >= self.size:
            return False
        self._add(following)
        return True

    def _fetch(self, request: Request) -> bytes:
        try:
            data = request.store.get(request.file, request.start, request.length)
        except NotFound:
            data = b""
        if len(data) < request.length:
            self.path.files.invalidate()
            raise self.path.missing()
        return data


DELETED = ".deleted"


@dataclass(frozen=True, slots=True, order=True)
class LocalPath:
    """A file or directory on a disk, identified by its absolute path."""

    is_local: ClassVar[bool] = True
    path: str

    def __str__(self) -> str:
        return self.path

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def parent(self) -> LocalPath:
        return LocalPath(os.path.dirname(self.path))

    @property
    def real(self) -> LocalPath:
        return LocalPath(os.path.realpath(self.path))

    def child(self, name: str) -> LocalPath:
        return LocalPath(os.path.join(self.path, name))

    def names(self) -> Iterator[str]:
        """Yield the names in the directory. Raises `FileNotFoundError` if the directory does not exist."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                yield entry.name

    def stat(self) -> os.stat_result:
        return os.stat(self.path)

    def exists(self) -> bool:
        return os.path.exists(self.path)

    def is_file(self) -> bool:
        return os.path.isfile(self.path)

    def is_directory(self) -> bool:
        return os.path.isdir(self.path)

    def data(self) -> bytes | None:
        """Return the bytes of the file, or None if the file does not exist."""
        try:
            with open(self.path, "rb") as source:
                return source.read()
        except FileNotFoundError:
            return None

    def open(self) -> LocalFile:
        return LocalFile(self)

    def refresh(self) -> None:
        """Do nothing, because listings of directories on disk are not cached."""

    def map_files(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Apply a function that reads files of this directory to each item, and yield the results in order.

        Files in buckets are read in parallel.
        """
        return map(function, items)

    def as_object(self) -> tuple[Store, str]:
        """Return the store that contains the file, and its key in the store."""
        return open_store(os.path.dirname(self.path)), self.name


class LocalFile:
    """An open file on a disk, with its `size` and modification time `modified` (ns) at the time of opening."""

    def __init__(self, path: LocalPath) -> None:
        """Open the file at `path`, or its `.deleted` file. Raises `FileNotFoundError` if neither file exists."""
        self.path = path
        try:
            self._descriptor = os.open(path.path, os.O_RDONLY)
        except FileNotFoundError:
            self.path = LocalPath(path.path + DELETED)
            self._descriptor = os.open(self.path.path, os.O_RDONLY)
        stat = os.fstat(self._descriptor)
        self.size, self.modified, self.inode = stat.st_size, stat.st_mtime_ns, stat.st_ino

    def read(self, position: int, length: int) -> bytes:
        return read_at(self._descriptor, position, length)

    def is_replaced(self) -> bool:
        """Return False, because an open file on a disk is never replaced."""
        return False

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def try_lock(path: LocalPath) -> Iterator[bool]:
    """Lock a file, as a broker locks `.lock`.

    Yield False if another process holds the lock. If the file does not exist, no error is raised.
    """
    import fcntl

    try:
        descriptor = os.open(path.path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


FilePath: TypeAlias = LocalPath | StorePath
AnyPath: TypeAlias = "str | os.PathLike[str] | FilePath"


def file_path(path: AnyPath) -> FilePath:
    """Return the `FilePath` for the path or URL of a Kafka directory or file."""
    if isinstance(path, (LocalPath, StorePath)):
        return path
    location = str(path)
    if not is_url(location):
        return LocalPath(local_path(location))
    above, name = split(normal_location(location))
    # If the name cannot be part of a key, it is not the name of a partition directory, so the parent directory is not
    # needed.
    return store_path(open_store(above), name) if is_part(name) else store_path(open_store(location), "")


def relative(path: FilePath, directory: FilePath) -> str:
    """Return a path relative to the parent directory `directory`."""
    return str(path).removeprefix(f"{directory}/")


def store_path(store: Store, key: str) -> StorePath:
    return StorePath(key.strip("/"), StoreFiles(store))
