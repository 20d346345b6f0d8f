"""The batches of a partition as a table, one row each: what its header says, and what its records are like.

| column             | type   | meaning                                                                                |
|--------------------|--------|----------------------------------------------------------------------------------------|
| topic, partition   |        |                                                                                        |
| file               | string | as `runs.Run.name`                                                                     |
| position, size     | int64  | bytes of the batch in the file                                                         |
| base_offset, last_offset | int64 | both inclusive; cleaning may have taken the record at either               |
| records            | int32  | records that are there                                                                 |
| missing            | int64  | offsets of the batch without a record: cleaned away                                    |
| gap_before         | int64  | offsets between the batch before it, or the log start, and this one                    |
| magic              | int8   | 2; 0 and 1 for messages of old formats, which count as batches                         |
| codec              | string | none, gzip, snappy, lz4, zstd                                                          |
| uncompressed_bytes | int64  | bytes of its records, uncompressed                                                     |
| ratio              | double | uncompressed over stored bytes of its records; 1 for plain batches                     |
| keys_distinct, keys_null | int64 | of its data records                                                              |
| keys_new           | int64  | keys that no earlier batch of the partition has                                        |
| keys_latest        | int64  | records whose key nothing behind them in the partition has: compaction keeps them      |
| key_bytes          | int64  |                                                                                        |
| tombstones         | int64  | records without a value                                                                |
| min_timestamp, max_timestamp | timestamp[ms, UTC] | of its records; null where they have none            |
| timestamp_type     | string | CreateTime, LogAppendTime; null in format v0                                           |
| late_records       | int64  | records older than some record before them in the partition                            |
| latest_by_ms       | int64  | by how much at most                                                                    |
| leader_epoch, producer_id, producer_epoch, base_sequence | | -1: none                                            |
| transactional      | bool   | by Kafka's bit, or held by a transaction of sparklog's                                 |
| transaction        | string | of a transaction of sparklog's: id and number; else null                               |
| control            | string | commit, abort, or another control type; null for data                                  |
| outcome            | string | plain, committed, aborted, open; marker for control batches                            |
| delete_horizon     | timestamp[ms, UTC] | from when on cleaning drops its tombstones or marker; null: none yet       |
| damage             | string | why it cannot be read; null: sound. Its figures of records are null then               |

Checksums are verified. What its producer wrote is shown as it is: nothing is left out by an isolation level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import Corrupt
from sparklog.format import control
from sparklog.format.batch_scan import MIN_LEGACY_BYTES, crc_failures, crc_message, scan_headers
from sparklog.format.record_batch import CODECS, HEADER_BYTES, LOG_OVERHEAD, BatchHeaders, Int64Array
from sparklog.tools.inspection.record_facts import RecordFacts
from sparklog.tools.inspection.runs import PartitionLog, Run, first_open

TIME = pa.timestamp("ms", tz="UTC")
WINDOW_BYTES = 1 << 20
OUTCOMES = ("plain", "committed", "aborted", "open", "marker")
_CONTROL = ("abort", "commit", "leader change", "snapshot header", "snapshot footer", "KRaft version", "KRaft voters")
_TYPES = ("CreateTime", "LogAppendTime")

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("size", pa.int64()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("records", pa.int32()),
        ("missing", pa.int64()),
        ("gap_before", pa.int64()),
        ("magic", pa.int8()),
        ("codec", pa.string()),
        ("uncompressed_bytes", pa.int64()),
        ("ratio", pa.float64()),
        ("keys_distinct", pa.int64()),
        ("keys_null", pa.int64()),
        ("keys_new", pa.int64()),
        ("keys_latest", pa.int64()),
        ("key_bytes", pa.int64()),
        ("tombstones", pa.int64()),
        ("min_timestamp", TIME),
        ("max_timestamp", TIME),
        ("timestamp_type", pa.string()),
        ("late_records", pa.int64()),
        ("latest_by_ms", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int16()),
        ("base_sequence", pa.int32()),
        ("transactional", pa.bool_()),
        ("transaction", pa.string()),
        ("control", pa.string()),
        ("outcome", pa.string()),
        ("delete_horizon", TIME),
        ("damage", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Stop:
    """A run that holds no whole batches from `position` (in the file) on, where it should."""

    file: str
    position: int
    reason: str


def empty() -> pa.Table:
    """No batches."""
    return SCHEMA.empty_table()


def batch_table(log: PartitionLog) -> tuple[pa.Table, list[Stop]]:
    """The batches of a partition in offset order (`SCHEMA`), and where files were no batches.

    Damage is shown, not raised. `NotFound` or `Unavailable` if a file is gone or cannot be read.
    """
    walk = _Walk(log)
    stops: list[Stop] = []
    for run in log.runs:
        for position, data, headers in _windows(run, stops):
            walk.add(run, position, data, headers)
    return walk.table(), stops


def _windows(run: Run, stops: list[Stop]) -> Iterator[tuple[int, bytes, BatchHeaders]]:
    """Position in the run, bytes, and the headers of the whole batches in them, window by window."""
    at, window = 0, WINDOW_BYTES
    while at < run.size:
        length = min(window, run.size - at)
        data = run.store.get(run.key, run.position + at, length)
        headers = scan_headers(data, whole=False)
        if len(headers):
            yield at, data, headers
        nothing_follows = at + len(data) >= run.size or len(data) < length
        at += headers.end
        window = WINDOW_BYTES
        if headers.end and (headers.stop == "end" or not nothing_follows):
            continue
        if not nothing_follows and headers.stop == "partial" and len(data) >= LOG_OVERHEAD:
            # One batch is larger than the window; its length is believed only as far as the run goes.
            window = int.from_bytes(data[8:LOG_OVERHEAD], "big") + LOG_OVERHEAD
            if at + window <= run.size:
                continue
        stops.append(Stop(run.name, run.position + at, headers.reason or "the file was cut off"))
        return


@dataclass
class _Walk:
    """Collects columns, window by window."""

    log: PartitionLog
    facts: RecordFacts = field(default_factory=RecordFacts)
    columns: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    texts: dict[str, list[str | None]] = field(
        default_factory=lambda: {"file": [], "transaction": [], "control": [], "damage": []}
    )

    def add(self, run: Run, position: int, data: bytes, headers: BatchHeaders) -> None:
        wrong = crc_failures(data, headers)
        damage = {int(row): crc_message(headers, int(row)) for row in wrong.tolist()}
        sound = np.ones(len(headers), np.bool_)
        sound[wrong] = False
        facts = self.facts.add(data, headers, sound, run.append_time)
        damage.update(facts.damage)
        base = headers.base_offset + run.shift
        control_ = _controls(data, headers, damage)
        stamped = headers.is_log_append_time & (run.append_time >= 0)
        self._put(
            position=run.position + position + headers.position,
            size=headers.size,
            base_offset=base,
            last_offset=headers.last_offset + run.shift,
            records=headers.count,
            magic=np.full(len(headers), 2) if headers.magic is None else headers.magic,
            codec=np.minimum(headers.codec, len(CODECS)),
            max_timestamp=np.where(stamped, run.append_time, headers.max_timestamp),
            timestamp_type=headers.timestamp_type,
            leader_epoch=headers.leader_epoch if run.leader_epoch < 0 else np.full(len(headers), run.leader_epoch),
            producer_id=headers.producer_id,
            producer_epoch=headers.producer_epoch,
            base_sequence=headers.base_sequence,
            transactional=headers.is_transactional | bool(run.outcome),
            outcome=self._outcome(run, headers, base),
            delete_horizon=np.where(headers.has_delete_horizon, headers.base_timestamp, -1),
            stored=headers.size - np.where(headers.is_legacy, MIN_LEGACY_BYTES, HEADER_BYTES),
            **facts.columns,
        )
        self.texts["file"] += [run.name] * len(headers)
        self.texts["transaction"] += [run.transaction or None] * len(headers)
        self.texts["control"] += control_
        self.texts["damage"] += [damage.get(row) for row in range(len(headers))]

    def _put(self, **columns: npt.NDArray[Any]) -> None:
        for name, values in columns.items():
            self.columns.setdefault(name, []).append(np.asarray(values, np.int64))

    def _outcome(self, run: Run, headers: BatchHeaders, base: Int64Array) -> npt.NDArray[np.int64]:
        outcome = np.full(len(headers), OUTCOMES.index(run.outcome or "plain"), np.int64)
        held = headers.is_transactional & ~headers.is_control
        outcome[held] = OUTCOMES.index("committed")
        producers, starts = first_open(self.log)
        at = np.minimum(np.searchsorted(producers, headers.producer_id), max(len(producers) - 1, 0))
        if len(producers):
            outcome[held & (producers[at] == headers.producer_id) & (base >= starts[at])] = OUTCOMES.index("open")
        outcome[held & self.log.aborted.covers(headers.producer_id, base)] = OUTCOMES.index("aborted")
        outcome[headers.is_control] = OUTCOMES.index("marker")
        return outcome

    def table(self) -> pa.Table:
        if not self.columns:
            return empty()
        columns = {name: np.concatenate(parts) for name, parts in self.columns.items()}
        rows = len(columns["size"])
        hidden = np.isin(columns["outcome"], [OUTCOMES.index("aborted"), OUTCOMES.index("open")])
        counts = self.facts.key_counts(hidden)
        closed = columns["uncompressed_bytes"] < 0
        offsets = columns["last_offset"] - columns["base_offset"] + 1
        start = np.array([self.log.bounds.log_start - 1], np.int64)
        before = np.concatenate((start, np.maximum.accumulate(columns["last_offset"])[:-1]))
        columns["missing"] = offsets - columns["records"]
        columns["gap_before"] = np.maximum(columns["base_offset"] - before - 1, 0)
        columns["keys_new"] = np.where(closed, -1, counts.new)
        columns["keys_latest"] = np.where(closed, -1, counts.latest)
        ratio = columns["uncompressed_bytes"] / np.maximum(columns["stored"], 1)
        ratio[(columns["codec"] == 0) | (columns["stored"] <= 0)] = 1.0
        arrays = {
            "topic": pa.array([self.log.topic] * rows, pa.string()),
            "partition": np.full(rows, self.log.partition, np.int32),
            "ratio": pa.array(ratio, mask=closed),
            "codec": _named(columns["codec"], CODECS),
            "timestamp_type": _named(columns["timestamp_type"], _TYPES),
            "outcome": _named(columns["outcome"], OUTCOMES),
            **{name: pa.array(texts, pa.string()) for name, texts in self.texts.items()},
        }
        for each in SCHEMA:
            if each.name not in arrays:
                arrays[each.name] = _column(each, columns[each.name])
        return pa.table([arrays[name] for name in SCHEMA.names], SCHEMA.names).cast(SCHEMA)


_SIGNED = frozenset({"leader_epoch", "producer_id", "producer_epoch", "base_sequence", "magic"})


def _column(column: pa.Field, values: Int64Array) -> pa.Array:
    """-1 stands for nothing where no header says -1 itself."""
    nothing = None if column.name in _SIGNED else values < 0
    return pa.array(values, pa.int64(), mask=nothing).cast(column.type)


def _named(codes: Int64Array, names: tuple[str, ...]) -> pa.Array:
    known = (codes >= 0) & (codes < len(names))
    return pa.array(np.array(names, object)[np.where(known, codes, 0)], pa.string(), mask=~known)


def _controls(data: bytes, headers: BatchHeaders, damage: dict[int, str]) -> list[str | None]:
    """The word for each control batch; an emptied one, or one that cannot be read, is `unknown`."""
    names: list[str | None] = [None] * len(headers)
    rows = np.flatnonzero(headers.is_control)
    sound = rows[~np.isin(rows, list(damage))]
    try:
        kinds = control.control_types(data, headers[sound]).tolist()
    except Corrupt:
        kinds = [_kind(data, headers, row, damage) for row in sound.tolist()]
    for row in rows.tolist():
        names[row] = "unknown"
    for row, kind in zip(sound.tolist(), kinds, strict=True):
        names[row] = _CONTROL[kind] if kind >= 0 else "unknown"
    return names


def _kind(data: bytes, headers: BatchHeaders, row: int, damage: dict[int, str]) -> int:
    try:
        return int(control.control_types(data, headers[row : row + 1])[0])
    except Corrupt as error:
        damage[row] = error.message
        return control.UNKNOWN
