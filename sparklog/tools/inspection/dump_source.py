"""Find the files to print with `dump-log` by their path in a file system or a store."""

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
    """A line as text and as a JSON object. The JSON object is empty if the previous object already contains the
    contents of the line.
    """

    text: str
    fields: dict[str, Any]


def plain_text(fields: dict[str, Any]) -> str:
    """Return the fields in the format `name: value name: value`."""
    return " ".join(f"{name}: {value}" for name, value in fields.items())


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file in a store. `shown` is the path given by the caller, and `absolute` is the path in findings."""

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
        """The file name up to the first dot, which is the base offset of a segment."""
        return self.name.partition(".")[0]

    @property
    def base_offset(self) -> int:
        """The base offset in the name of a segment file. Raises `BadRequest` if the file name does not contain an
        offset.
        """
        if not (self.stem.isascii() and self.stem.isdigit()):
            raise BadRequest(
                f"{self.shown} is not a segment file, because its name does not start with a base offset of 20 digits"
            )
        return int(self.stem)

    def size(self) -> int:
        """Return the size in bytes. Raises `NotFound` if the file does not exist."""
        info = self.store.stat(self.key)
        if info is None:
            raise NotFound(f"file {self.shown} does not exist")
        return info.size

    def read(self, position: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes starting at `position`. Fewer bytes are returned only at the end of the file."""
        return self.store.get(self.key, position, length)

    def with_suffix(self, suffix: str) -> DumpFile:
        """Return the file of the same segment with a different suffix."""
        old, new = self.name, f"{self.stem}.{suffix}"
        shown, absolute = (path.removesuffix(old) + new for path in (self.shown, self.absolute))
        return DumpFile(self.store, self.key.removesuffix(old) + new, shown, absolute)


class ObjectBatches(BatchFile):
    """Iterates over the batches in an object up to position `end`."""

    def __init__(self, source: DumpFile, end: int) -> None:
        self.path, self.size = source.shown, end
        self._source = source

    def read(self, position: int, length: int) -> bytes:
        return self._source.read(position, min(length, self.size - position))


def find(paths: Sequence[str], root: str | None = None) -> list[DumpFile]:
    """Return the files at the given paths, in the given order. If `root` is given, paths are keys in this root.

    If a path is the directory of a partition, topic, log directory or root, all supported files in the directory are
    returned, sorted by directory and base offset. Raises `NotFound` if a path does not exist, or if a directory does
    not contain supported files.
    """
    sources: list[DumpFile] = []
    for path in paths:
        if root is not None:
            store, key = open_store(root), path.strip("/")
            shown = f"{without_settings(root).rstrip('/')}/{key}"
        elif is_url(path):
            location = file_path(path)
            (store, key), shown = location.as_object(), str(location)
        elif os.path.isdir(path):
            store, key, shown = open_store(path), "", path.rstrip("/") or "/"
        else:
            if not os.path.exists(path):
                local_path(path)  # raise an error if the path is the location of a store
            folder, key = os.path.split(path)
            if not key or not os.path.isdir(folder or "."):
                raise NotFound(f"{path} does not exist")
            store, shown = open_store(folder or "."), path
        sources += _sources(store, key, shown)
    return sources


def check_name(source: DumpFile) -> None:
    """Raise `BadRequest` if a file name is not supported."""
    if not _is_known(source.name):
        raise BadRequest(
            f"{source.shown} cannot be dumped; expected a file with one of the suffixes {', '.join(SUFFIXES)}"
        )
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
        raise NotFound(f"{shown} does not exist")
    dumped = sorted((key for key in keys if _is_known(key.rpartition("/")[2])), key=_rank)
    if not dumped:
        raise NotFound(f"{shown} has no segments, indexes or commits; expected a partition, a topic or a file")
    return [_source(store, key, f"{shown}/{key.removeprefix(prefix)}") for key in dumped]


def _source(store: Store, key: str, shown: str) -> DumpFile:
    return DumpFile(store, key, shown, f"{without_settings(store.location).rstrip('/')}/{key}")


def _rank(key: str) -> tuple[str, str, int, str]:
    folder, _, name = key.rpartition("/")
    stem, _, suffix = name.partition(".")
    return folder, stem, _ORDER.index(suffix) if suffix in _ORDER else len(_ORDER), name
