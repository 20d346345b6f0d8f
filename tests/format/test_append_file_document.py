"""Test that docs/reference/format-append-files.md describes the append files that the code writes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from sparklog.format import append_file
from sparklog.log.state.slices import SliceFlag

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "format-append-files.md"


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table after a line that starts with `heading`."""
    text = DOCUMENT.read_text().split("\n" + heading, 1)[1]
    lines = text[text.index("|") :].split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def described(dtype: np.dtype) -> list[list[str]]:
    """Return the offset, type and name of each field, in the form of the tables."""
    fields = dtype.fields
    assert fields is not None
    return [[str(at), np.dtype(kind).newbyteorder("=").name, name] for name, (kind, at, *_) in fields.items()]


def test_slice_table_matches_documentation() -> None:
    assert [row[:3] for row in rows("A row of the slice table:")] == described(append_file.SLICE_DTYPE)


def test_index_entry_matches_documentation() -> None:
    assert [row[:3] for row in rows("An index entry:")] == described(append_file.INDEX_DTYPE)


def test_aborted_transaction_matches_documentation() -> None:
    assert [row[:3] for row in rows("An aborted transaction")] == described(append_file.ABORTED_DTYPE)


def test_parts_sizes_and_magic_match_documentation() -> None:
    sizes = {name: size for name, size, _ in rows("## Footer")}
    assert sizes == {
        "header": str(append_file.HEADER_BYTES),
        "aborted count": str(append_file.ABORTED_COUNT.size),
        "slice table": f"{append_file.SLICE_BYTES} each",
        "index": f"{append_file.INDEX_BYTES} each",
        "aborted": f"{append_file.ABORTED_BYTES} each",
        "trailer": str(append_file.TRAILER_BYTES),
    }
    text = DOCUMENT.read_text()
    assert text.count(f"`{append_file.MAGIC.decode()}`") == 2
    assert f"up to {append_file.INDEX_MIN_BYTES} bytes has no entries" in text
    assert f"{append_file.INDEX_INTERVAL_BYTES} bytes or more" in text
    flags = rows("A row of the slice table:")[1][3]
    assert {int(bit) for bit in re.findall(r"\d+", flags)} == {int(flag) for flag in SliceFlag if flag}


def test_integers_are_big_endian() -> None:
    for dtype in (append_file.SLICE_DTYPE, append_file.INDEX_DTYPE, append_file.ABORTED_DTYPE):
        fields = dtype.fields
        assert fields is not None
        assert all(kind.byteorder == ">" for kind, *_ in fields.values())
    assert append_file.HEADER.format.startswith(">")
    assert append_file.TRAILER.format.startswith(">")
