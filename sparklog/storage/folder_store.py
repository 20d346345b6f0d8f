"""Stores of files in folders, a local disk or HDFS: listings, temporary files, and folders that go when they are empty.

Names that begin with `~` are temporary files. No key can begin so, listings skip them, and the vacuum removes old ones.
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
    """One name in a folder. `look(key)` tells size and time of what has it: of a file; None if it finds no file."""

    name: str
    is_folder: bool
    is_file: bool
    look: Callable[[str], ObjectInfo | None]


class FolderStore(Store):
    """A store whose objects are files in folders. A folder exists by what is in it, as on object stores."""

    @abstractmethod
    def _scan(self, folder: str, wants: Callable[[str], bool] = is_part) -> Sequence[FolderItem]:
        """List the items of a folder (`""` or ending in `/`) whose names `wants` accepts, in any order."""

    @abstractmethod
    def _remove(self, key: str) -> bool:
        """Remove a file; False if there is none."""

    @abstractmethod
    def _remove_folder(self, folder: str) -> bool:
        """Remove an empty folder; False if that fails, most often because it is not empty."""

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
                info = item.look(folder + item.name)
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
        """Remove folders that a delete has left empty."""
        folder = key.rpartition("/")[0]
        while folder and self._remove_folder(folder):
            folder = folder.rpartition("/")[0]

    def _sorted_items(self, folder: str, wants: Callable[[str], bool] = is_part) -> Sequence[FolderItem]:
        """List what is named like a part of a key, in key order: a folder sorts as `name/`."""
        items = self._scan(folder, wants)
        return sorted(items, key=lambda item: item.name + "/" if item.is_folder else item.name)

    def _denied(self, key: str) -> ObjectInfo:
        """Describe a file that its folder lists, and that a mount's cache of names denies.

        The name was looked up before the file was written, no longer ago than caches last. So the file is young, and
        its size is not known.
        """
        return ObjectInfo(key, 0, time.time_ns() // 1_000_000)

    def _walk(self, folder: str, start: str, after: str) -> Iterator[ObjectInfo]:
        def wants(name: str) -> bool:
            # Usually few names are accepted: opening a log lists only names after its end.
            key = folder + name
            return (key > after or after.startswith(key)) and name.startswith(start) and is_part(name)

        there: Set[str] | None = None
        for item in self._sorted_items(folder, wants):
            key = folder + item.name
            if item.is_folder:
                below = key + "/"
                if after < below or after.startswith(below):
                    yield from self._walk(below, "", after)
            elif key > after and item.is_file and (there is None or item.name in there):
                info = item.look(key)
                if info is None:
                    # It was deleted after the folder was read, and so may others be; or a cache denies its name.
                    there = {each.name for each in self._scan(folder, wants)}
                    info = self._denied(key) if item.name in there else None
                if info is not None:
                    yield info
