"""The files of Kafka's directories, on a disk and in buckets: the calls that Kafka's files are listed and read with.

A path on a disk is a text, one in a bucket a `StorePath`. On a disk each function is the system call of its name, and a
file that is open stays readable after a broker has deleted it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar

from sparklog.kafka.in_place.store_files import StoreFile, StoreFiles, StorePath
from sparklog.storage import Store, local_path, open_store
from sparklog.storage.locations import is_url, normal_location, split
from sparklog.storage.parallel_reads import ask_each
from sparklog.storage.store import is_part

T = TypeVar("T")
R = TypeVar("R")
FilePath: TypeAlias = str | StorePath
DELETED = ".deleted"


class Stat(Protocol):
    """Size, time and identity of a file."""

    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ino(self) -> int: ...


class Entry(Protocol):
    """A file or folder in a listing."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> FilePath: ...
    def stat(self) -> Stat: ...


class LocalFile:
    """A file on a disk that is open for reading: `size` is what it had when it was opened."""

    def __init__(self, path: str) -> None:
        """Open `path`, or its `.deleted` namesake. `FileNotFoundError` if there is neither."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self.path = path + DELETED
            self._descriptor = os.open(self.path, os.O_RDONLY)
        stat = os.fstat(self._descriptor)
        self.size, self.modified, self.inode = stat.st_size, stat.st_mtime_ns, stat.st_ino

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        while 0 < len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        os.close(self._descriptor)


def file_path(path: str | os.PathLike[str] | StorePath) -> FilePath:
    """Return the place of a Kafka directory or file, given by a path or URL: an absolute path, or one in a store."""
    if isinstance(path, StorePath):
        return path
    location = os.fspath(path)
    if not is_url(location):
        return local_path(location)
    above, name = split(normal_location(location))
    # A name that no key can have is no partition's, so nothing above it matters.
    return store_path(open_store(above), name) if is_part(name) else store_path(open_store(location), "")


def open_file(path: FilePath) -> LocalFile | StoreFile:
    return LocalFile(path) if isinstance(path, str) else path.open()


def scan(folder: FilePath) -> AbstractContextManager[Iterator[Entry]]:
    return os.scandir(folder) if isinstance(folder, str) else folder.scan()


def names_in(folder: FilePath) -> list[str]:
    if isinstance(folder, str):
        return os.listdir(folder)
    with folder.scan() as entries:
        return [entry.name for entry in entries]


def stat_of(path: FilePath) -> Stat:
    return os.stat(path) if isinstance(path, str) else path.stat()


def exists(path: FilePath) -> bool:
    return os.path.exists(path) if isinstance(path, str) else path.exists()


def is_file(path: FilePath) -> bool:
    return os.path.isfile(path) if isinstance(path, str) else path.exists()


def is_folder(path: FilePath) -> bool:
    return os.path.isdir(path) if isinstance(path, str) else path.is_folder()


def file_bytes(path: FilePath) -> bytes | None:
    """Read a file whole; None if there is none."""
    if not isinstance(path, str):
        return path.data()
    try:
        with open(path, "rb") as source:
            return source.read()
    except FileNotFoundError:
        return None


def join(folder: FilePath, name: str) -> FilePath:
    return os.path.join(folder, name) if isinstance(folder, str) else folder.child(name)


def parent(path: FilePath) -> FilePath:
    return os.path.dirname(path) if isinstance(path, str) else path.parent


def real_path(path: FilePath) -> FilePath:
    return os.path.realpath(path) if isinstance(path, str) else path


def name_of(path: FilePath) -> str:
    return os.path.basename(path) if isinstance(path, str) else path.name


def relative(path: FilePath, folder: FilePath) -> str:
    """Return a path as seen from a folder that it lies in."""
    if isinstance(path, str) and isinstance(folder, str):
        return os.path.relpath(path, folder)
    return str(path).removeprefix(f"{folder}/")


def renew(folder: FilePath) -> None:
    """List a bucket's folder anew: one listing counts until then. A disk is looked at each time."""
    if not isinstance(folder, str):
        folder.files.renew(folder.key)


def look_at_each(folder: FilePath, look: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield the answers of `look`, which reads files of a folder, in order; from a bucket several at once."""
    return map(look, items) if isinstance(folder, str) else ask_each(folder.files.store, look, items)


def as_object(path: FilePath) -> tuple[Store, str]:
    """Return the store that a file is an object of, and its key in it."""
    return (open_store(os.path.dirname(path)), name_of(path)) if isinstance(path, str) else (path.files.store, path.key)


def store_path(store: Store, key: str) -> StorePath:
    return StorePath(key.strip("/"), StoreFiles(store))
