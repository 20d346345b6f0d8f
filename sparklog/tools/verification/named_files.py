"""Data files that versions name, with their slices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np

from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.log.journal.names import file_key
from sparklog.log.state.slice_table import Slices, SliceTable
from sparklog.log.state.topic_state import Head
from sparklog.tools.verification.slice_checks import Claim, DataFile

_CLAIM = tuple(each.name for each in fields(Claim) if each.name in COLUMN_TYPES)


@dataclass(slots=True)
class NamedFiles:
    """Data files by key, grown version by version; equal slices of two versions are kept once."""

    topic: str
    _files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _claims: dict[str, dict[Claim, None]] = field(default_factory=dict)

    def add(self, rows: Slices) -> None:
        """Add the files of these rows of a table."""
        keys = {code: file_key(self.topic, rows.paths[code]) for code in np.unique(rows.file).tolist()}
        whole = zip(
            *(rows.columns[name].tolist() for name in ("file", "file_size", "footer_length", "index_crc")), strict=True
        )
        columns = (rows.columns[name].tolist() for name in _CLAIM)
        for (code, size, footer_length, index_crc), values in zip(whole, zip(*columns, strict=True), strict=True):
            key = keys[code]
            self._files.setdefault(key, (size, footer_length, index_crc))
            self._claims.setdefault(key, {})[Claim(*values)] = None

    def files(self) -> list[DataFile]:
        """Return all files, in the order of their keys."""
        return [
            DataFile(key, size, footer_length, tuple(self._claims[key]), index_crc)
            for key, (size, footer_length, index_crc) in sorted(self._files.items())
        ]


def differing_columns(left: SliceTable, right: SliceTable) -> list[str]:
    """Return the columns in which two tables differ; `rows` if their numbers of rows differ."""
    one, other = left.all(), right.all()
    if len(one) != len(other):
        return ["rows"]
    columns = [
        name
        for name in COLUMN_TYPES
        if name not in ("file", "txn") and not np.array_equal(one.columns[name], other.columns[name])
    ]
    texts = [name for name in ("file", "txn") if not np.array_equal(_words(one, name), _words(other, name))]
    return columns + texts


def _words(rows: Slices, name: str) -> np.ndarray:
    codes, inverse = np.unique(rows.columns[name], return_inverse=True)
    texts = rows.paths if name == "file" else rows.txn_ids
    return np.array([texts[code] for code in codes.tolist()], object)[inverse]


def gaps(head: Head, table: SliceTable) -> int:
    """Return the number of offsets between log start and log end that lie in no slice."""
    rows = table.all()
    if head.deleted:
        return 0
    # Of several partitions an int64 has no room for the sums.
    whole: int = sum((head.log_end - head.log_start).tolist())
    within = np.minimum(rows.end, head.log_end[rows.partition]) - np.maximum(rows.base, head.log_start[rows.partition])
    covered: int = sum(np.maximum(within, 0).tolist())
    return whole - covered


def all_keys(files: Iterable[DataFile]) -> set[str]:
    """Return the keys of these files, the index files beside segments included."""
    keys = set()
    for file in files:
        keys.add(file.key)
        if file.sealed:
            stem = file.key.removesuffix("log")
            keys.update(f"{stem}{suffix}" for suffix in ("index", "timeindex", "txnindex"))
    return keys
