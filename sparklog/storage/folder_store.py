"""Stores of files in directories, on a local disk or in HDFS: listings, temporary files, and empty directories.

Names that start with `~` are temporary files. Keys cannot start with `~`, listings skip these names, and the vacuum
deletes old temporary files.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from sparklog.storage.store import ObjectInfo, Store, check_key, check_prefix, is_part

TEMPORARY_PREFIX = "~"


def temporary_name() -> str:
    return f"{TEMPORARY_PREFIX}{os.urandom(12).hex()}"


@dataclass(slots=True)
class FolderItem:
    """A name in a directory. `stat(key)` returns the size and modification time of the file, or None if the file does
    not exist.
    """

    name: str
    is_folder: bool
    is_file: bool
    stat: Callable[[str], ObjectInfo | None]


class FolderStore(Store):
    """A store whose objects are files. As in object stores, a directory exists only if it contains objects."""

    @abstractmethod
    def _scan(self, folder: str, accepts: Callable[[str], bool] = is_part) -> Sequence[FolderItem]:
        """List the items of a directory (`""` or ending in `/`) whose names `accepts` accepts, in any order."""

    @abstractmethod
    def _remove(self, key: str) -> bool:
        """Delete a file. Return False if it does not exist."""

    @abstractmethod
    def _remove_folder(self, folder: str) -> bool:
        """Delete an empty directory. Return False if this fails, usually because the directory is not empty."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        folder, slash, start = check_prefix(prefix).rpartition("/")
        return self._walk(folder + slash, start, after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix, folder=True)
        return iter([item.name for item in self._sorted_items(prefix) if item.is_folder])

    def delete(self, key: str) -> None:
        if self._remove(check_key(key)):
            self._prune(key)

    def temporary_files(self, folder: str, *, deep: bool = True) -> Iterator[ObjectInfo]:
        check_prefix(folder, folder=True)
        for item in self._scan(folder, lambda name: True):
            if item.name.startswith(TEMPORARY_PREFIX):
                info = item.stat(folder + item.name)
                if info is not None:
                    yield info
            elif deep and item.is_folder and is_part(item.name):
                yield from self.temporary_files(f"{folder}{item.name}/")

    def delete_temporary(self, key: str) -> None:
        folder, slash, name = key.rpartition("/")
        if not name.startswith(TEMPORARY_PREFIX) or not is_part(name[len(TEMPORARY_PREFIX) :]):
            super().delete_temporary(key)
        check_prefix(folder + slash, folder=True)
        if self._remove(key):
            self._prune(key)

    def _prune(self, key: str) -> None:
        """Delete the directories that became empty after a delete."""
        folder = key.rpartition("/")[0]
        while folder and self._remove_folder(folder):
            folder = folder.rpartition("/")[0]

    def _sorted_items(self, folder: str, accepts: Callable[[str], bool] = is_part) -> Sequence[FolderItem]:
        """List the accepted names in key order, in which a directory is sorted as `name/`."""
        items = self._scan(folder, accepts)
        return sorted(items, key=lambda item: item.name + "/" if item.is_folder else item.name)

    def _hidden(self, key: str) -> ObjectInfo:
        """Describe a file that its directory lists, but that a mount's name cache hides.

        The name was looked up before the file was created, within the lifetime of the cache. Therefore the file is new,
        and its size is unknown.
        """
        return ObjectInfo(key, 0, time.time_ns() // 1_000_000)

    def _walk(self, folder: str, start: str, after: str) -> Iterator[ObjectInfo]:
        def accepts(name: str) -> bool:
            # Usually accepts few names, because opening a log lists only names after its end.
            key = folder + name
            return (key > after or after.startswith(key)) and name.startswith(start) and is_part(name)

        existing: Set[str] | None = None
        for item in self._sorted_items(folder, accepts):
            key = folder + item.name
            if item.is_folder:
                below = key + "/"
                if after < below or after.startswith(below):
                    yield from self._walk(below, "", after)
            elif key > after and item.is_file and (existing is None or item.name in existing):
                info = item.stat(key)
                if info is None:
                    # Either the file was deleted after the listing, or a cache hides its name. Other files may have
                    # been deleted as well, so list again.
                    existing = {each.name for each in self._scan(folder, accepts)}
                    info = self._hidden(key) if item.name in existing else None
                if info is not None:
                    yield info
