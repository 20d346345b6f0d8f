"""Conversion of lines in Kafka's console formats from and to Arrow batches."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from sparklog.cli.record_text import Layout, LineFormat, format_json, parse_json
from sparklog.errors import BadRequest
from sparklog.log.state.record_schema import HEADERS_TYPE, RECORD_SCHEMA
from sparklog.log.state.view import COLUMNS

ALL = Layout(timestamp=True, partition=True, offset=True, headers=True, key=True)


def records(*rows: tuple[object, ...]) -> pa.RecordBatch:
    """Return rows (key, value, timestamp, timestampType, headers) of partition 3, starting at offset 7, as a view
    returns them.
    """
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": key,
                "value": value,
                "topic": "t",
                "partition": 3,
                "offset": 7 + index,
                "timestamp": timestamp,
                "timestampType": kind,
                "headers": headers,
            }
            for index, (key, value, timestamp, kind, headers) in enumerate(rows)
        ],
        RECORD_SCHEMA,
    )


def test_columns_are_printed_in_kafkas_order() -> None:
    batch = records((b"k", b"v", 1_700_000_000_000, 0, [{"key": "h1", "value": b"a"}, {"key": "h2", "value": None}]))
    assert ALL.format(batch) == b"CreateTime:1700000000000\tPartition:3\tOffset:7\th1:a,h2:null\tk\tv\n"


def test_append_time_missing_timestamp_missing_headers_and_nulls() -> None:
    batch = records((None, None, 5, 1, None), (b"", b"", -1, -1, []))
    assert ALL.format(batch) == (
        b"LogAppendTime:5\tPartition:3\tOffset:7\tNO_HEADERS\tnull\tnull\n"
        b"NO_TIMESTAMP\tPartition:3\tOffset:8\tNO_HEADERS\t\t\n"
    )


def test_bytes_are_printed_unchanged() -> None:
    batch = records((b"\xff\x00", b"\xfe", 0, 0, [{"key": "é", "value": b"\xfd"}]))
    layout = Layout(key=True, headers=True, key_separator=b"|", null_literal=b"-")
    assert layout.format(batch) == "é".encode() + b":\xfd|\xff\x00|\xfe\n"


def test_headers_of_a_slice_of_a_batch() -> None:
    header = [{"key": "h", "value": b"1"}]
    batch = records((b"a", b"", 0, 0, header), (b"b", b"", 0, 0, None), (b"c", b"", 0, 0, header)).slice(1)
    assert Layout(headers=True, value=False).format(batch) == b"NO_HEADERS\nh:1\n"


def test_nothing_is_printed_without_columns() -> None:
    layout = Layout(value=False)
    assert layout.format(records((b"k", b"v", 0, 0, None))) == b""
    assert layout.columns() == ("offset",)


def test_only_printed_columns_are_read() -> None:
    assert Layout().columns() == ("value",)
    assert set(ALL.columns()) == set(COLUMNS) - {"topic"}


def test_plain_lines_are_values() -> None:
    batch = LineFormat().parse(b"a\r\n\nlast", 1)
    assert batch.to_pydict() == {"value": [b"a", b"", b"last"]}


def test_lines_with_key_headers_and_null_marker() -> None:
    lines = b"h1:v1,h2:NIL\tk1:a:b\nNIL\tk2:NIL\n\tNIL:v\n"
    batch = LineFormat(b":", headers=True, null_marker=b"NIL").parse(lines, 1)
    assert batch.column("headers").type == HEADERS_TYPE
    assert batch.to_pydict() == {
        "headers": [[{"key": "h1", "value": b"v1"}, {"key": "h2", "value": None}], None, None],
        "key": [b"k1", b"k2", None],
        "value": [b"a:b", None, b"v"],
    }


@pytest.mark.parametrize(
    ("layout", "data", "message"),
    [
        (
            LineFormat(b"::"),
            b"a::b\nno separator\n",
            r"line 11: expected key separator '::', found none in 'no separator'",
        ),
        (LineFormat(headers=True), b"value\n", r"line 10: expected a TAB after the headers"),
        (
            LineFormat(headers=True),
            b"name\tvalue\n",
            r"line 10: expected headers as 'name:value,name:value', found 'name'",
        ),
        (LineFormat(headers=True), b"\xff:1\tvalue\n", r"line 10: header names must be UTF-8"),
    ],
)
def test_an_invalid_line_is_reported_by_number(layout: LineFormat, data: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        layout.parse(data, 10)


def test_json_round_trip() -> None:
    batch = records(
        (b"k", "größe".encode(), 1, 0, [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]),
        (None, b"\xff\xfe", 2, 1, None),
    )
    lines = format_json(batch)
    assert lines.decode().split("\n")[0] == (
        '{"topic": "t", "partition": 3, "offset": 7, "timestamp": 1, "timestampType": "CreateTime", "key": "k", '
        '"value": "größe", "headers": [["h", {"base64": "/w=="}], ["h", null]]}'
    )
    again = parse_json(lines, 1)
    for name in ("key", "value", "headers", "partition"):
        assert again.column(name).to_pylist() == batch.column(name).to_pylist()
    assert again.column("timestamp").to_pylist() == [1, 2]


def test_json_of_a_record_without_a_timestamp() -> None:
    assert b'"timestamp": -1, "timestampType": "NoTimestampType"' in format_json(records((None, b"", -1, -1, None)))


def test_json_input_requires_only_a_value() -> None:
    batch = parse_json(b'{"value": "a"}\n\n{"value": null, "headers": {"x": "y"}, "key": "k"}', 1)
    assert batch.to_pydict() == {
        "key": [None, b"k"],
        "value": [b"a", None],
        "headers": [None, [{"key": "x", "value": b"y"}]],
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 5: expected one JSON object per line"),
        (b"[1]", 'line 5: expected a JSON object with "value"'),
        (b"[" * 100_000, "line 5: expected one JSON object per line, found an object that is nested too deeply"),
        (b'{"key": "k"}', 'line 5: expected a JSON object with "value"'),
        (b'{"value": 3}', 'line 5: "value" must be a string, null or {"base64": "..."}, found int: quote the value'),
        (b'{"value": {"a": 1}}', 'line 5: "value" must be a string, null'),
        (b'{"value": {"base64": "?"}}', 'line 5: "value" is not valid base64'),
        (b'{"value": "\\ud800"}', 'line 5: "value" contains a lone surrogate'),
        (
            b'{"value": "", "partition": -1}',
            'line 5: "partition" must be an integer from 0 to 2147483647, found -1',
        ),
        (b'{"value": "", "timestamp": 1.5}', 'line 5: "timestamp" must be an integer'),
        (b'{"value": "", "headers": [["\\ud800", "v"]]}', 'line 5: "headers" contains a lone surrogate'),
        (b'{"value": "", "headers": "x"}', 'line 5: "headers" must be'),
        (b'{"value": "", "headers": [["x"]]}', 'line 5: each element of "headers" must be'),
    ],
)
def test_an_invalid_json_line_is_reported_by_number(line: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse_json(b'{"value": ""}\n' + line, 4)
    assert str(error.value).startswith(message)


def test_timestamps_are_milliseconds_in_any_time_zone() -> None:
    moment = datetime.datetime(2026, 1, 31, 13, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    batch = records((None, b"", int(moment.timestamp() * 1000), 0, None))
    assert Layout(timestamp=True, value=False).format(batch) == b"CreateTime:1769860800000\n"
