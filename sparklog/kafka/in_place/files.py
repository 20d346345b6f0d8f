"""The files of Kafka's directories, on a disk and in buckets: the calls that Kafka's files are listed and read with.

Two classes answer them: a `LocalPath`, of which each method is the system call of its name, and a `StorePath`. On a
disk a file that is open stays readable after a broker has deleted it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, TypeVar

from sparklog.kafka.in_place.store_files import StoreFiles, StorePath
from sparklog.storage import Store, local_path, open_store
from sparklog.storage.local import read_at
from sparklog.storage.locations import is_url, normal_location, split
from sparklog.storage.store import is_part

T = TypeVar("T")
R = TypeVar("R")
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
        """The path without symbolic links."""
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
