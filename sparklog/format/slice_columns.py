"""The columns that describe a slice. Footers, commits, checkpoints, plans and verification use this single definition.

A slice is a contiguous sequence of record batches of one partition in one data file. `SLICE_COLUMNS` lists its columns
in the order of the table in a checkpoint. To add a column, add a row here and in docs/reference/format.md, and add an
attribute to the data classes that contain the column. tests/format/test_slice_columns.py compares the data classes with
this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

UINT32_MAX = 2**32 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class InCommit:
    """The representation of a column in a commit. It is a list in the description of a file, with one value per slice.

    * `order`: position of the list in the description of a file
    * `name`: name of the list
    * `attribute`: attribute of the data classes that describe slices before they are in the slice table
    * `low`, `high`: inclusive range of the values; a `high` of None means the size of the file
    * `optional`: True if a commit may omit the list
    """

    order: int
    name: str
    attribute: str
    low: int = 0
    high: int | None = INT64_MAX
    optional: bool = False


@dataclass(frozen=True, slots=True)
class InFooter:
    """The representation of a column in a footer. It is a field in the slice table of the footer, with a position and a
    numpy type.
    """

    order: int
    type: str


@dataclass(frozen=True, slots=True)
class SliceColumn:
    """A column of the slice table. It has a name and a numpy type in the slice table, and names in checkpoints, commits
    and footers.

    `planned` is True if a plan contains the column, for the tasks that read or rewrite the slice.
    """

    name: str
    type: str
    checkpoint: str
    commit: InCommit | None = None
    footer: InFooter | None = None
    planned: bool = True


SLICE_COLUMNS = (
    SliceColumn("file", "int32", "file", planned=False),
    SliceColumn("file_size", "int64", "fileSize"),
    SliceColumn("footer_length", "int32", "footerLength"),
    SliceColumn("read_version", "int64", "readVersion", planned=False),
    SliceColumn("position", "int64", "position", InCommit(10, "position", "position", 0, None, True)),
    SliceColumn("size", "int64", "size", InCommit(3, "bytes", "nbytes", 1, None), InFooter(3, ">i8")),
    SliceColumn("partition", "int32", "partition", InCommit(1, "partition", "partition"), InFooter(1, ">i4")),
    SliceColumn("base", "int64", "base", InCommit(2, "base", "base")),
    SliceColumn("end", "int64", "end", InCommit(4, "offsets", "offsets", 1), InFooter(4, ">i8")),
    SliceColumn("shift", "int64", "shift", InCommit(11, "shift", "shift", 0, INT64_MAX, True)),
    SliceColumn("records", "int64", "records", InCommit(5, "records", "records"), InFooter(5, ">i8")),
    SliceColumn("min_ts", "int64", "minTs", InCommit(6, "minTs", "min_ts", -1), InFooter(6, ">i8")),
    SliceColumn("max_ts", "int64", "maxTs", InCommit(7, "maxTs", "max_ts", -1), InFooter(7, ">i8")),
    SliceColumn("crc", "uint32", "crc", InCommit(8, "crc", "crc", 0, UINT32_MAX), InFooter(8, ">u4")),
    SliceColumn("flags", "int32", "flags", InCommit(9, "flags", "flags", 0, INT32_MAX), InFooter(2, ">u4")),
    SliceColumn("append_time", "int64", "appendTime", InCommit(12, "appendTime", "append_time", -1, INT64_MAX, True)),
    SliceColumn(
        "leader_epoch", "int32", "leaderEpoch", InCommit(13, "leaderEpoch", "leader_epoch", -1, INT32_MAX, True)
    ),
    SliceColumn(
        "index_crc", "uint32", "indexCrc", InCommit(14, "indexCrc", "index_crc", 0, UINT32_MAX, True), planned=False
    ),
    SliceColumn("status", "int8", "status"),
    SliceColumn("txn", "int32", "txn", planned=False),
    SliceColumn("txn_n", "int64", "txnN", planned=False),
    SliceColumn("prepare_version", "int64", "prepareVersion", planned=False),
)


@dataclass(slots=True, eq=False)
class SliceRow:
    """The columns that describe the bytes of one slice and the contents of these bytes."""

    position: int
    size: int
    base: int
    end: int
    shift: int
    records: int
    min_ts: int
    max_ts: int
    crc: int
    flags: int
    append_time: int


COLUMN_TYPES = {column.name: column.type for column in SLICE_COLUMNS}
"""The columns of the slice table and their numpy types."""
COMMIT_LISTS = tuple(sorted((column.commit for column in SLICE_COLUMNS if column.commit), key=lambda row: row.order))
"""The lists in the description of a file in a commit, in order."""
_FOOTER = sorted(
    (column.footer.order, column.commit.attribute, column.name, column.footer.type)
    for column in SLICE_COLUMNS
    if column.commit and column.footer
)
FOOTER_FIELDS = [(attribute, kind) for _, attribute, _, kind in _FOOTER]
"""The fields of the slice table in a footer and their types, in order."""
WRITTEN = {attribute: name for _, attribute, name, _ in _FOOTER}
"""The attributes of a `WrittenSlice` that a footer contains, with the names of their columns."""
written_values = attrgetter(*WRITTEN)
"""A function that returns the attributes in `WRITTEN` of a `WrittenSlice`. If it is called with a `FileSlices`, it
returns arrays with one value per slice.
"""
PLANNED = tuple(column.name for column in SLICE_COLUMNS if column.planned and column.name != "partition")
"""The columns of a plan. The partition is not included, because it is the same for all slices of a plan."""
