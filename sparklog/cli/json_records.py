"""Records as JSON lines: what `consume --json` prints and `produce --json` takes.

    {"topic": "orders", "partition": 0, "offset": 5, "timestamp": 1700000000000, "timestampType": "CreateTime",
     "key": "k", "value": "v", "headers": [["name", "v"]]}

Keys, values and header values are bytes: UTF-8 text stands as a string, anything else as `{"base64": "..."}`, so that
nothing is lost either way. On input only `value` is required; `topic`, `offset` and `timestampType` are ignored: the
output of one topic is the input of another. `headers` may also be an object, `{"name": "v"}`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cli.text import headers_array
from sparklog.errors import BadRequest
from sparklog.log.journal.arrow_numpy import bytes_array, fixed_array
from sparklog.log.state.view import COLUMNS

TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}
NO_TIMESTAMP_TYPE = "NoTimestampType"
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def format_json(batch: pa.RecordBatch) -> bytes:
    """One JSON object per record of a batch with all of `COLUMNS`."""
    millis = pc.cast(batch.column("timestamp"), pa.int64())
    columns = [(millis if name == "timestamp" else batch.column(name)).to_pylist() for name in COLUMNS]
    return b"".join(_record(dict(zip(COLUMNS, row, strict=True))) for row in zip(*columns, strict=True))


def _record(record: dict[str, Any]) -> bytes:
    headers = record["headers"]
    shown = {
        "topic": record["topic"],
        "partition": record["partition"],
        "offset": record["offset"],
        "timestamp": record["timestamp"],
        "timestampType": TIMESTAMP_TYPES.get(record["timestampType"], NO_TIMESTAMP_TYPE),
        "key": _out(record["key"]),
        "value": _out(record["value"]),
        "headers": [[header["key"], _out(header["value"])] for header in headers or []],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _out(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def parse_json(data: bytes, first_line: int) -> pa.RecordBatch:
    """JSON lines -> columns key, value, headers, timestamp (int64 ms, null: now) and partition (null: the partitioner).

    Blank lines are skipped. `BadRequest` names the line (`first_line` is the number of the first, from 1).
    """
    rows = list(_rows(data, first_line))
    keys, values, headers, timestamps, partitions = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 5
    )
    columns = {
        "key": bytes_array(keys),
        "value": bytes_array(values),
        "headers": headers_array(headers),
    }
    # Left out where nobody names one: a column of nulls would ask for the same thing more slowly.
    if any(timestamp is not None for timestamp in timestamps):
        columns["timestamp"] = _numbers(timestamps)
    if any(partition is not None for partition in partitions):
        columns["partition"] = _numbers(partitions)
    return pa.RecordBatch.from_pydict(columns)


def _numbers(cells: list[int | None]) -> pa.Array:
    """An int64 array."""
    valid = np.array([cell is not None for cell in cells], np.bool_)
    return fixed_array(np.array([cell or 0 for cell in cells], np.int64), pa.int64(), valid)


def _rows(data: bytes, first_line: int) -> Iterator[tuple[object, ...]]:
    for line, text in enumerate(data.split(b"\n"), first_line):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except ValueError as error:
            raise BadRequest(f"line {line}: expected one JSON object per line: {error}") from None
        except RecursionError:
            raise BadRequest(f"line {line}: expected one JSON object per line, found one nested too deeply") from None
        if not isinstance(record, dict) or "value" not in record:
            raise BadRequest(f'line {line}: expected a JSON object with "value" (null for a tombstone)')
        yield (
            _in(record.get("key"), "key", line),
            _in(record["value"], "value", line),
            _headers(record.get("headers"), line),
            _number(record.get("timestamp"), "timestamp", INT64_MAX, line),
            _number(record.get("partition"), "partition", INT32_MAX, line),
        )


def _in(given: Any, name: str, line: int) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError:
            raise BadRequest(
                f'line {line}: "{name}" has half a surrogate pair: give bytes as {{"base64": ...}}'
            ) from None
    if isinstance(given, dict) and list(given) == ["base64"] and isinstance(given["base64"], str):
        try:
            return base64.b64decode(given["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(f'line {line}: "{name}" is not valid base64') from None
    kind = type(given).__name__
    raise BadRequest(f'line {line}: "{name}" must be a string, null or {{"base64": "..."}}, found {kind}: quote it')


def _headers(given: Any, line: int) -> list[tuple[str, bytes | None]] | None:
    if given is None or given == []:
        return None
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise BadRequest(f'line {line}: "headers" must be [["name", "value"], ...] or an object')
    row = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadRequest(f'line {line}: each of "headers" must be ["name", value], found {json.dumps(pair)[:60]}')
        _in(pair[0], "headers", line)
        row.append((pair[0], _in(pair[1], f"headers.{pair[0]}", line)))
    return row or None


def _number(given: Any, name: str, largest: int, line: int) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= largest:
        raise BadRequest(f'line {line}: "{name}" must be a whole number from 0 to {largest}, found {given!r}')
    return given
