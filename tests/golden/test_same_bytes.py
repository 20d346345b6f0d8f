"""The same calls write the same bytes as before: names and contents of all that `same_calls` writes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa

from sparklog.log.journal.documents import document_of
from tests.fixture_archive import unpacked
from tests.golden.recording import LIBRARIES, differences, read_tree, without_table_sizes
from tests.golden.same_calls import run_calls

ARCHIVE = Path(__file__).with_name("same_calls.tar.xz")
OPERATIONS = {
    *("alter", "append", "compact", "create", "delete", "delete-records", "import", "maintain", "merge"),
    *("resolve", "restore", "retain", "seal"),
    *("abort", "commit", "expire", "forget", "init", "join", "prepare", "takeover"),
}
"""Kinds of commits and entries that the calls must go on to make."""


def test_the_same_calls_write_the_same_bytes() -> None:
    expected = read_tree(unpacked(ARCHIVE))
    assert not (changes := differences(expected, run_calls())), f"bytes on disk change:\n{changes}"


def test_the_calls_make_every_kind_of_commit_and_entry() -> None:
    objects = [data for name, data in read_tree(unpacked(ARCHIVE)).items() if name.endswith(".json")]
    assert {json.loads(document_of(data)).get("op") for data in objects} >= OPERATIONS
    assert {len(document_of(data)) < len(data) for data in objects} == {True, False}


def test_a_difference_is_shown_as_a_diff() -> None:
    expected = {LIBRARIES: b"{}", "a.json": b'{"old":1,"same":2}', "b.slices": b"1", "only-before": b""}
    found = {LIBRARIES: b"{}", "a.json": b'{"new":1,"same":2}', "b.slices": b"2", "only-now": b""}
    lines = differences(expected, found).splitlines()
    assert lines[:2] == ["missing: only-before", "new: only-now"]
    assert {'- "old": 1,', '+ "new": 1,', "+++ found b.slices"} <= set(lines)
    assert differences(expected, expected) == ""


def test_another_text_of_the_same_document_is_a_difference() -> None:
    assert "same text" in differences({LIBRARIES: b"", "a.json": b'{"a":1}'}, {LIBRARIES: b"", "a.json": b'{"a": 1}'})


def test_tables_that_another_library_compressed_are_compared_by_their_rows() -> None:
    expected, found = {LIBRARIES: b"1"}, {LIBRARIES: b"2"}
    for files, compression, crc in ((expected, "zstd", 5), (found, None, 6)):
        sink, batch = io.BytesIO(), pa.record_batch({"base": [1, 2]})
        with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_batch(batch)
        files["t.arrow"] = sink.getvalue()
        files["c.json"] = json.dumps({"table": {"name": "t.arrow", "size": crc, "crc": crc}, "crc": crc}).encode()
    assert expected["t.arrow"] != found["t.arrow"]
    assert differences(expected, found) == ""
    assert without_table_sizes({"a": [{"crc": 1, "size": 2}]}) == {"a": [{"size": 2}]}
    assert differences(expected, {**found, LIBRARIES: b"1"})
