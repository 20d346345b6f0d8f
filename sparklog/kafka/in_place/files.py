"""The files of Kafka's directories, on a disk and in buckets: the calls that Kafka's files are listed and read with.

Two classes answer them: a `LocalPath`, of which each method is the system call of its name, and a `StorePath`. On a
disk a file that is open stays readable after a broker has deleted it.

No broker works in a bucket, so nothing is renamed while it is read: one listing counts, and a `.swap` that it shows is
not waited for. Files have no inodes: one is the same as long as its size and time are. A folder exists by what is in
it. A listing is kept until `renew`, and tells without a request which files exist below its folder, their sizes and
times. A file that is gone, or shorter than it was listed, has been replaced since: reading it is a `FileNotFoundError`,
and the next look makes a listing of its own.
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
"""Ranges requested before they are asked for, once two in a row were, by a store that has `parallel_reads`."""
RANGES_KEPT = RANGES_AHEAD + 2
"""Ranges in memory, those ahead among them."""
_SMALL_BYTES = 64 * 1024
"""A file up to this size is read again only if its size or time has changed."""


@dataclass(frozen=True, slots=True)
class StoreStat:
    """Size and time of a file, under the names of `os.stat_result`."""

    st_size: int
    st_mtime_ns: int
    st_ino: int = 0

    @classmethod
    def of(cls, info: ObjectInfo) -> StoreStat:
        return cls(info.size, info.modified_ms * 1_000_000)


@dataclass(frozen=True, slots=True, order=True)
class StorePath:
    """A file or folder in a store of objects, by its key: an empty one is the whole store. Picklable as its store is.

    `str` gives its URL, for messages: without settings.
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
            raise self._gone()
        return iter(sorted(names))

    def stat(self) -> StoreStat:
        info = self.files.info(self.key)
        if info is None:
            raise self._gone()
        return StoreStat.of(info)

    def is_folder(self) -> bool:
        return bool(self.files.names(self.key))

    def is_file(self) -> bool:
        return self.files.info(self.key) is not None

    exists = is_file

    def first_keys(self, most: int) -> Iterator[str]:
        """Yield the names of the first files below a folder, from a listing of its own: `orders-0/x`."""
        prefix = f"{self.key}/" if self.key else ""
        return (info.key.removeprefix(prefix) for info in islice(self.files.store.list(prefix), most))

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders in a folder, from a listing of its own."""
        return self.files.store.list_folders(f"{self.key}/" if self.key else "")

    def data(self) -> bytes | None:
        return self.files.data(self.key)

    def open(self) -> StoreFile:
        return StoreFile(self, self.stat())

    def renew(self) -> None:
        self.files.renew(self.key)

    def look_at_each(self, look: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        return map_requests(self.files.store, look, items)

    def as_object(self) -> tuple[Store, str]:
        return self.files.store, self.key

    def _gone(self) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))


class _StoreListing:
    """The files below a folder, and by folder the names of what is directly in it."""

    def __init__(self, store: Store, folder: str) -> None:
        self.folder = folder
        self.files: dict[str, ObjectInfo] = {}
        self.names: dict[str, set[str]] = {}
        for info in store.list(f"{folder}/" if folder else ""):
            self.files[info.key] = info
            key = info.key
            while key != folder:
                above, _, name = key.rpartition("/")
                siblings = self.names.setdefault(above, set())
                if name in siblings:
                    break
                siblings.add(name)
                key = above

    def covers(self, folder: str) -> bool:
        return not self.folder or folder == self.folder or folder.startswith(f"{self.folder}/")


class StoreFiles:
    """The files of a store, and the newest listing of a part of them. Safe to use from threads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.base = without_settings(store.location)
        self._lock = ForkLock()
        self._listing: _StoreListing | None = None
        self._small: dict[str, tuple[ObjectInfo, bytes]] = {}

    def __reduce__(self) -> tuple[type[StoreFiles], tuple[Store]]:
        return StoreFiles, (self.store,)

    def renew(self, folder: str) -> None:
        self.forget()
        self.names(folder)

    def forget(self) -> None:
        """Forget the listing: the next look makes another one."""
        self._listing = None

    def names(self, folder: str) -> set[str]:
        """Return the names of what is in a folder; none if there is no such folder."""
        with self._lock:
            listing = self._listing
            if listing is None or not listing.covers(folder):
                listing = self._listing = _StoreListing(self.store, folder)
        return listing.names.get(folder, set())

    def info(self, key: str) -> ObjectInfo | None:
        """Return size and time of a file; None if there is none. A request if its folder has not been listed."""
        listing = self._listing
        if listing is not None and listing.covers(key.rpartition("/")[0]):
            return listing.files.get(key)
        return self.store.stat(key) if key else None

    def data(self, key: str) -> bytes | None:
        listing = self._listing
        listed = listing is not None and listing.covers(key.rpartition("/")[0])
        info = self.info(key) if listed else None
        if listed and info is None:
            return None
        before = self._small.get(key)
        if before is not None and before[0] == info:
            return before[1]
        data = read_if_there(self.store, key)
        if data is not None and info is not None and len(data) == info.size <= _SMALL_BYTES:
            self._small[key] = info, data
        return data


class StoreFile:
    """A file that is open for reading: of the size that it was listed with."""

    inode = 0

    def __init__(self, path: StorePath, stat: StoreStat) -> None:
        self.path = path
        self.size, self.modified = stat.st_size, stat.st_mtime_ns
        self._store = path.files.store
        self._range_bytes = self._store.limits.range_bytes
        self._ranges: dict[int, bytes] = {}
        """The ranges read last, by number."""
        self._last = -1
        self._coming: dict[int, Request] = {}
        """Ranges to read next, in order: the one that is asked for, and those after it that are read ahead."""
        at_once = min(self._store.parallel_reads, RANGES_AHEAD + 1)
        self._ahead = ReadAhead(at_once, self._fetch, self._more, self._store.limits)

    def read(self, position: int, length: int) -> bytes:
        parts: list[bytes] = []
        end = min(position + length, self.size)
        while position < end:
            start = position % self._range_bytes
            part = self._range(position // self._range_bytes)[start : start + end - position]
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def replaced(self) -> bool:
        """True if the file has another size or time by now, or is gone. A request."""
        info = self._store.stat(self.path.key)
        return info is None or StoreStat.of(info) != StoreStat(self.size, self.modified)

    def close(self) -> None:
        self._ahead.close()

    def _range(self, number: int) -> bytes:
        data = self._ranges.pop(number, None)
        if data is None:
            for passed in [other for other in self._coming if other < number or number not in self._coming]:
                self._ahead.drop([self._coming.pop(passed)])
            if not self._coming:
                self._add(number)
            data = bytes(self._ahead.take(self._coming[number]))
            del self._coming[number]
        self._ranges[number] = data
        self._last = number
        while len(self._ranges) > 1 and len(self._ranges) + len(self._coming) > RANGES_KEPT:
            del self._ranges[next(iter(self._ranges))]
        return data

    def _add(self, number: int) -> None:
        start = number * self._range_bytes
        length = min(self._range_bytes, self.size - start)
        self._coming[number] = Request(self._store, self.path.key, start, length)
        self._ahead.add([self._coming[number]])

    def _more(self) -> bool:
        """Add the next range if two in a row have been asked for."""
        asked, following = next(iter(self._coming)), next(reversed(self._coming)) + 1
        if self._last < 0 or asked != self._last + 1 or following * self._range_bytes >= self.size:
            return False
        self._add(following)
        return True

    def _fetch(self, request: Request) -> bytes:
        try:
            data = request.store.get(request.file, request.start, request.length)
        except NotFound:
            data = b""
        if len(data) < request.length:
            self.path.files.forget()
            raise self.path._gone()
        return data


DELETED = ".deleted"


@dataclass(frozen=True, slots=True, order=True)
class LocalPath:
    """A file or folder on a disk, by its absolute path."""

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
        """Yield the names of what is in the folder. `FileNotFoundError` if there is no such folder."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                yield entry.name

    def stat(self) -> os.stat_result:
        return os.stat(self.path)

    def exists(self) -> bool:
        return os.path.exists(self.path)

    def is_file(self) -> bool:
        return os.path.isfile(self.path)

    def is_folder(self) -> bool:
        return os.path.isdir(self.path)

    def data(self) -> bytes | None:
        """Read the file whole; None if there is none."""
        try:
            with open(self.path, "rb") as source:
                return source.read()
        except FileNotFoundError:
            return None

    def open(self) -> LocalFile:
        return LocalFile(self)

    def renew(self) -> None:
        """Look again: one listing of a bucket counts until then. A disk is looked at each time."""

    def look_at_each(self, look: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield the answers of `look`, which reads files of this folder, in order; from a bucket several at once."""
        return map(look, items)

    def as_object(self) -> tuple[Store, str]:
        """Return the store that the file is an object of, and its key in it."""
        return open_store(os.path.dirname(self.path)), self.name


class LocalFile:
    """A file on a disk that is open for reading: `size` and `modified` (ns) are those it had when it was opened."""

    def __init__(self, path: LocalPath) -> None:
        """Open `path`, or its `.deleted` namesake. `FileNotFoundError` if there is neither."""
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

    def replaced(self) -> bool:
        """Return True if what was read may be of two files: on a disk an open file stays the one that was opened."""
        return False

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def held_lock(path: LocalPath) -> Iterator[bool]:
    """Hold the lock of a file, as a broker does on `.lock`; False: another process holds it. Nothing without a file."""
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
    """Return the place of a Kafka directory or file, given by a path or URL: an absolute path, or one in a store."""
    if isinstance(path, (LocalPath, StorePath)):
        return path
    location = str(path)
    if not is_url(location):
        return LocalPath(local_path(location))
    above, name = split(normal_location(location))
    # A name that no key can have is no partition's, so nothing above it matters.
    return store_path(open_store(above), name) if is_part(name) else store_path(open_store(location), "")


def relative(path: FilePath, folder: FilePath) -> str:
    """Return a path as seen from a folder above it."""
    return str(path).removeprefix(f"{folder}/")


def store_path(store: Store, key: str) -> StorePath:
    return StorePath(key.strip("/"), StoreFiles(store))
