"""Files that `dump-log` prints: found by the paths that a person names, read wherever they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparklog.errors import BadRequest, NotFound
from sparklog.format import checkpoint_files
from sparklog.format.batch_walk import BatchFile
from sparklog.kafka.in_place.files import file_path
from sparklog.storage import Store, local_path, open_store
from sparklog.storage.locations import is_url, without_settings

MAX_INT = 2**31 - 1
SEGMENT_SUFFIXES = ("log", "index", "timeindex", "txnindex")
SUFFIXES = (*SEGMENT_SUFFIXES, "checkpoint", "snapshot", "slices", "json", "arrow")
TEXT_FILES = frozenset(
    {
        *(checkpoint_files.LEADER_EPOCHS_FILE, checkpoint_files.HIGH_WATERMARKS_FILE),
        *(checkpoint_files.RECOVERY_POINTS_FILE, checkpoint_files.LOG_STARTS_FILE),
        *(checkpoint_files.CLEANER_OFFSETS_FILE, checkpoint_files.PARTITION_METADATA_FILE, "meta.properties"),
    }
)
_ORDER = (*SEGMENT_SUFFIXES, "snapshot")


@dataclass(frozen=True, slots=True)
class Row:
    """A line as text, and the same as a JSON object (empty: the object before it has the line's content)."""

    text: str
    fields: dict[str, Any]


def plain_text(fields: dict[str, Any]) -> str:
    """Return `name: value name: value`."""
    return " ".join(f"{name}: {value}" for name, value in fields.items())


@dataclass(frozen=True, slots=True)
class DumpFile:
    """An object of a store. `shown`: its path as the caller gave it; `absolute`: as findings name it."""

    store: Store
    key: str
    shown: str
    absolute: str

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def stem(self) -> str:
        """The name up to its first dot: a segment's base offset."""
        return self.name.partition(".")[0]

    @property
    def base_offset(self) -> int:
        """The base offset that a segment's file is named by. `BadRequest` for another name."""
        if not (self.stem.isascii() and self.stem.isdigit()):
            message = f"{self.shown} is no segment's file: its name should begin with a base offset of 20 digits"
            raise BadRequest(message)
        return int(self.stem)

    def size(self) -> int:
        """Return the bytes. `NotFound` if the file is gone."""
        info = self.store.stat(self.key)
        if info is None:
            raise NotFound(f"there is no file {self.shown}")
        return info.size

    def read(self, position: int = 0, length: int | None = None) -> bytes:
        """Return bytes from `position`; fewer than `length` only at the file's end."""
        return self.store.get(self.key, position, length)

    def beside(self, suffix: str) -> DumpFile:
        """Return the file of the same segment with another suffix."""
        old, new = self.name, f"{self.stem}.{suffix}"
        shown, absolute = (path.removesuffix(old) + new for path in (self.shown, self.absolute))
        return DumpFile(self.store, self.key.removesuffix(old) + new, shown, absolute)


class ObjectBatches(BatchFile):
    """The batches of an object of a store, up to byte `end`."""

    def __init__(self, source: DumpFile, end: int) -> None:
        self.path, self.size = source.shown, end
        self._source = source

    def read(self, position: int, length: int) -> bytes:
        return self._source.read(position, min(length, self.size - position))


def find(paths: Sequence[str], root: str | None = None) -> list[DumpFile]:
    """Return the files that paths name, in their order; with `root`, paths are keys below it.

    A folder (a partition, a topic, a log directory, a root) stands for all files below it that can be dumped, by folder
    and base offset. `NotFound` for a path that is missing, and for a folder without such files.
    """
    sources: list[DumpFile] = []
    for path in paths:
        if root is not None:
            store, key = open_store(root), path.strip("/")
            shown = f"{without_settings(root).rstrip('/')}/{key}"
        elif is_url(path):
            place = file_path(path)
            (store, key), shown = place.as_object(), str(place)
        elif os.path.isdir(path):
            store, key, shown = open_store(path), "", path.rstrip("/") or "/"
        else:
            if not os.path.exists(path):
                local_path(path)  # refuses what is meant for a store
            folder, key = os.path.split(path)
            if not key or not os.path.isdir(folder or "."):
                raise NotFound(f"there is no file or folder {path}")
            store, shown = open_store(folder or "."), path
        sources += _sources(store, key, shown)
    return sources


def check_name(source: DumpFile) -> None:
    """Raise `BadRequest` for a file whose name tells no kind that can be dumped."""
    if not _is_known(source.name):
        expected = f"expected one that ends in {', '.join(SUFFIXES)}"
        raise BadRequest(f"{source.shown} is no file that can be dumped: {expected}")
    if source.suffix in SEGMENT_SUFFIXES:
        _ = source.base_offset


def _is_known(name: str) -> bool:
    return name in TEXT_FILES or ("." in name and name.rpartition(".")[2] in SUFFIXES)


def _sources(store: Store, key: str, shown: str) -> list[DumpFile]:
    if key and store.stat(key) is not None:
        return [_source(store, key, shown)]
    prefix = f"{key}/" if key else ""
    keys = [info.key for info in store.list(prefix)]
    if not keys and key:
        raise NotFound(f"there is no file or folder {shown}")
    dumped = sorted((key for key in keys if _is_known(key.rpartition("/")[2])), key=_rank)
    if not dumped:
        raise NotFound(f"{shown} holds no segments, indexes or commits: expected a partition, a topic or a file")
    return [_source(store, key, f"{shown}/{key.removeprefix(prefix)}") for key in dumped]


def _source(store: Store, key: str, shown: str) -> DumpFile:
    return DumpFile(store, key, shown, f"{without_settings(store.location).rstrip('/')}/{key}")


def _rank(key: str) -> tuple[str, str, int, str]:
    folder, _, name = key.rpartition("/")
    stem, _, suffix = name.partition(".")
    return folder, stem, _ORDER.index(suffix) if suffix in _ORDER else len(_ORDER), name
