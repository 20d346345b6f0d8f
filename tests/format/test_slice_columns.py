"""Test the table of slice columns, and the data classes that have columns as attributes."""

from __future__ import annotations

from dataclasses import fields

from sparklog.format.append_file import SLICE_BYTES, SLICE_DTYPE, WrittenSlice
from sparklog.format.slice_columns import COMMIT_LISTS, PLANNED, SLICE_COLUMNS, WRITTEN
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.inventory import SliceClaim


def names(kind: type) -> set[str]:
    return {each.name for each in fields(kind)}


def test_data_classes_contain_the_columns() -> None:
    assert names(WrittenSlice) == {*WRITTEN, "index", "aborted", "position"}
    lists = {each.attribute for each in COMMIT_LISTS}
    assert names(FileSlices) == {"path", "size", "footer_length", "counts", "data", *lists}
    optional = {each.attribute for each in COMMIT_LISTS if each.optional}
    assert {each.name for each in fields(FileSlices) if each.default == ()} == {"base", *optional}
    assert names(PlannedSlice) == {*PLANNED, "topic", "partition", "path", "file", "hidden"}
    assert names(SliceClaim) - {"partition"} < {*PLANNED}


def test_writer_sets_exactly_the_footer_columns() -> None:
    assert {each.name for each in SLICE_COLUMNS if each.footer} == set(WRITTEN.values())
    assert SLICE_BYTES == 56
    assert SLICE_DTYPE.names == (
        *("partition", "flags", "nbytes", "offsets", "records", "min_ts", "max_ts", "crc", "entries"),
    )


def test_columns_are_in_the_order_of_the_formats() -> None:
    """Bytes on disk depend on the order. docs/reference/format.md lists the same order."""
    assert [each.name for each in COMMIT_LISTS] == [
        *("partition", "base", "bytes", "offsets", "records", "minTs", "maxTs", "crc", "flags"),
        *("position", "shift", "appendTime", "leaderEpoch", "indexCrc"),
    ]
    assert len({each.checkpoint for each in SLICE_COLUMNS}) == len(SLICE_COLUMNS) == 22
