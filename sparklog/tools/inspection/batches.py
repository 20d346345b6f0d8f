"""Return the batches of a partition as a table. The row of a batch contains the header fields and statistics about the
records.

A partition is a list of batch ranges in offset order. Each range covers contiguous, complete batches of one file. In a
Kafka log directory, a range is a segment up to the end of the log. In a root, a range is a slice of an append file or
of a sealed segment. A range also has properties that the batches do not contain: the offset shift, the append time, and
the transaction that wrote the batches.

Checksums are verified. All batches are returned as the producer wrote them, independent of the isolation level. Records
are processed in windows by compiled kernels and numpy. For each key, only a hash is stored, in order to count the keys
of a partition. The bytes of a key are stored only for the largest keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format import control, transaction_index
from sparklog.format.append_file import read_footer
from sparklog.format.batch_scan import MIN_LEGACY_BYTES, scan_headers
from sparklog.format.batch_walk import Window, checked_batches
from sparklog.format.key_hash import HashKey, key_hashes
from sparklog.format.payloads import RecordFields, payloads, record_fields
from sparklog.format.record_batch import CODECS, HEADER_BYTES, BatchHeaders, BoolArray, BytesLike, Int64Array, Payloads
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.in_place.directory import parse_topic_partition
from sparklog.kafka.in_place.files import AnyPath, file_path
from sparklog.kafka.in_place.partition_state import PartitionState, SegmentState
from sparklog.log.journal.names import file_key, is_sealed
from sparklog.log.read.aborted import aborted_ranges
from sparklog.log.state.slice_table import ABORTED, COMMITTED, OPEN, Snapshot
from sparklog.log.state.view import Bounds
from sparklog.storage import Store
from sparklog.tools.inspection.columns import header_columns, per_batch
from sparklog.tools.inspection.dump_source import DumpFile, ObjectBatches

SEGMENT, SEALED, APPEND = "Kafka segment", "sealed segment", "append file"
_OUTCOMES = {OPEN: "open", COMMITTED: "committed", ABORTED: "aborted"}


@dataclass(frozen=True, slots=True)
class BatchRange:
    """A range of bytes `[position, position + size)` in an object that contains complete batches of a partition.

    Attributes:
        name: the path of the file relative to the directory of the topic or partition.
        kind: SEGMENT, SEALED or APPEND.
        base: the first offset of the segment or slice.
        end: the next offset after the segment or slice, or None if unknown.
        shift: the number to add to the offsets in the batch headers.
        append_time: the append time in ms for LogAppendTime, or -1 if the batches contain it.
        transaction: the sparklog transaction that wrote the range; empty if there is none.
        outcome: the outcome of this transaction; empty if there is none.
    """

    store: Store
    key: str
    name: str
    kind: str
    position: int
    size: int
    base: int
    end: int | None
    shift: int = 0
    append_time: int = -1
    leader_epoch: int = -1
    footer_length: int = 0
    file_size: int = 0
    transaction: str = ""
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """A partition with its aborted and open Kafka transactions. `open` contains producer ids and first offsets."""

    topic: str
    partition: int
    bounds: Bounds
    ranges: tuple[BatchRange, ...]
    aborted: AbortedTransactions
    open: tuple[tuple[int, int], ...]


def kafka_partition(topic: str, partition: int, state: PartitionState, bounds: Bounds) -> PartitionLog:
    """Return a partition of a Kafka log directory up to the end of its log."""
    ranges = tuple(_segment(segment) for segment in state.segments)
    aborted = state.aborted(state.first_base, max(state.log_end, state.first_base))
    return PartitionLog(topic, partition, bounds, ranges, aborted, tuple(state.transactions.open.items()))


def _segment(state: SegmentState) -> BatchRange:
    store, key = state.name.path.as_object()
    size = state.size if state.is_incomplete else state.end
    return BatchRange(
        store, key, state.name.path.name, SEGMENT, 0, size, state.name.base, state.limit, file_size=state.size
    )


def root_partition(snapshot: Snapshot, partition: int, bounds: Bounds) -> PartitionLog:
    """Return a partition of a topic in a root with all slices of the snapshot."""
    state, rows = snapshot.state, snapshot.slices.select(partition)
    store, topic = snapshot.store, snapshot.topic
    names = ("position", "size", "base", "end", "shift", "append_time", "leader_epoch", "footer_length", "file_size")
    columns = {name: rows.columns[name].tolist() for name in names}
    status, number = rows.status.tolist(), rows.txn_n.tolist()
    ranges = []
    for row in range(len(rows)):
        path, outcome = rows.path(row), _OUTCOMES.get(status[row], "")
        kind = SEALED if is_sealed(path) else APPEND
        whose = f"{rows.txn_id(row)} #{number[row]}" if outcome else ""
        fields = {name: column[row] for name, column in columns.items()}
        ranges.append(
            BatchRange(store, file_key(topic, path), path, kind, **fields, transaction=whose, outcome=outcome)
        )
    first = min(int(rows.base[0]), bounds.log_start) if len(rows) else bounds.log_start
    aborted = aborted_ranges(store, topic, snapshot.slices, partition, first, bounds.log_end)
    open_ = tuple((opened.producer, opened.first) for opened in state.kafka_open if opened.partition == partition)
    return PartitionLog(topic, partition, bounds, tuple(ranges), aborted or transaction_index.none(), open_)


def file_partitions(path: AnyPath) -> list[PartitionLog]:
    """Return the partitions in a file. A `.log` segment contains one partition. An append file contains one or more
    partitions.

    The outcomes of transactions in a segment are determined from all segments in its directory. Offsets in an append
    file start at 0, because commits assign the actual offsets. Raises `NotFound` if the file does not exist, and
    `BadRequest` for other files.
    """
    location = file_path(path)
    folder, name = location.parent, location.name
    if not location.is_file():
        raise NotFound(f"{location} does not exist; expected a .log or .slices file, a topic or a log directory")
    if name.endswith(".slices"):
        return _append_file(*location.as_object())
    stem, _, suffix = name.partition(".")
    if not (len(stem) == 20 and stem.isdigit() and suffix == "log"):
        raise BadRequest(f"expected a segment such as 00000000000000000000.log or a .slices file, found {location}")
    topic, partition = parse_topic_partition(folder)
    state = PartitionState(folder, topic, partition)
    state.refresh()
    segment = next((part for part in state.segments if part.name.base == int(stem)), None)
    if segment is None:
        raise NotFound(
            f"{location} does not belong to the log in its directory, because an interrupted cleaner pass has left it"
        )
    end = segment.next_offset
    log = kafka_partition(topic, partition, state, Bounds(int(stem), end, end, end))
    return [replace(log, ranges=(_segment(segment),))]


def _append_file(store: Store, name: str) -> list[PartitionLog]:
    info = store.stat(name)
    size = 0 if info is None else info.size
    footer = read_footer(partial(store.get, name), size, file=name)
    logs: dict[int, PartitionLog] = {}
    for entry in footer.slices:
        before = logs.get(entry.partition)
        base, ranges = (before.bounds.log_end, before.ranges) if before else (0, ())
        end = base + entry.offsets
        run = BatchRange(
            store, name, name, APPEND, entry.position, entry.nbytes, base, end, base, -1, -1, footer.footer_length, size
        )
        bounds, none = Bounds(0, end, end, end), transaction_index.none()
        logs[entry.partition] = PartitionLog(name, entry.partition, bounds, (*ranges, run), none, ())
    return [logs[partition] for partition in sorted(logs)]


NO_TIMESTAMP = -1
# A fixed seed allows deliberate collisions. They are harmless, because the hash is only used to count keys.
_HASH_KEY = HashKey(0, 0)
TIME = pa.timestamp("ms", tz="UTC")
OUTCOMES = ("plain", "committed", "aborted", "open", "marker")
_CONTROL = ("abort", "commit", "leader change", "snapshot header", "snapshot footer", "KRaft version", "KRaft voters")
_TYPES = ("CreateTime", "LogAppendTime")

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("file", pa.string()),  # the value of `BatchRange.name`
        ("position", pa.int64()),  # byte position of the batch in the file
        ("size", pa.int64()),
        # `base_offset` and `last_offset` are inclusive; cleaning may have removed the records at these offsets
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("records", pa.int32()),  # number of records that cleaning has not removed
        ("missing", pa.int64()),  # number of offsets in the batch without a record
        ("gap_before", pa.int64()),  # number of offsets between the previous batch, or the log start, and this batch
        ("magic", pa.int8()),  # 2 for batches; 0 and 1 for messages of old formats, which are treated as batches
        ("codec", pa.string()),  # none, gzip, snappy, lz4 or zstd
        ("uncompressed_bytes", pa.int64()),  # uncompressed size of the records
        ("ratio", pa.float64()),  # uncompressed bytes divided by stored bytes; 1 for uncompressed batches
        ("keys_distinct", pa.int64()),  # this column and the following columns include only data records
        ("keys_null", pa.int64()),
        ("keys_new", pa.int64()),  # number of keys that do not occur in earlier batches of the partition
        ("keys_latest", pa.int64()),  # number of records that are the latest of their key, which compaction keeps
        ("key_bytes", pa.int64()),
        ("tombstones", pa.int64()),  # number of records with a null value
        ("min_timestamp", TIME),  # `min_timestamp` and `max_timestamp` are null if no record has a timestamp
        ("max_timestamp", TIME),
        ("timestamp_type", pa.string()),  # CreateTime or LogAppendTime; null in format v0
        ("late_records", pa.int64()),  # number of records that are older than an earlier record of the partition
        ("latest_by_ms", pa.int64()),  # maximum delay of a late record in milliseconds
        ("leader_epoch", pa.int32()),  # this column and the next three columns are -1 if the value is not set
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int16()),
        ("base_sequence", pa.int32()),
        ("transactional", pa.bool_()),  # True if the Kafka attribute is set or a sparklog transaction wrote the batch
        ("transaction", pa.string()),  # id and number of the sparklog transaction, or null
        ("control", pa.string()),  # commit, abort or another control type; null for data batches
        ("outcome", pa.string()),  # plain, committed, aborted or open; marker for control batches
        ("delete_horizon", TIME),  # time at which cleaning may remove tombstones or the marker; null if not set
        # reason why the batch cannot be read; null for valid batches. If the reason is set, the columns about records
        # are null
        ("damage", pa.string()),
    ]
)
_RECORD_COLUMNS = (
    *("uncompressed_bytes", "keys_null", "keys_distinct", "key_bytes", "tombstones"),
    *("min_timestamp", "late_records", "latest_by_ms"),
)
"""Columns that `RecordStatistics` computes."""


KEYS = pa.schema(
    [
        *(("topic", pa.string()), ("partition", pa.int32()), ("key", pa.binary())),
        *(("records", pa.int64()), ("bytes", pa.int64())),
    ]
)
"""One row per key and partition, the largest key first. `bytes` is the uncompressed size of the records of the key."""

MAX_KEYS = 1 << 18
"""Maximum number of keys to store per partition. If this number is exceeded, the smallest keys are dropped."""


@dataclass
class HotKeys:
    """Numbers of records and bytes by key, collected in windows with bounded memory."""

    max_keys: int = MAX_KEYS
    tables: list[pa.Table] = field(default_factory=lambda: [KEYS.empty_table().select(["key", "records", "bytes"])])

    def add(self, body: Payloads, records: RecordFields, hashes: npt.NDArray[np.uint64], keyed: BoolArray) -> None:
        """Add the records with keys (`keyed`, bool[n]). `hashes` (uint64[n]) are the hashes of the keys."""
        rows = np.flatnonzero(keyed)
        _, first, group = np.unique(hashes[rows], return_index=True, return_inverse=True)
        # If several keys have the same hash, they are counted as the first key.
        start, length = records.key_start[rows[first]], records.key_length[rows[first]]
        data = body.data.data
        keys = [bytes(data[low : low + size]) for low, size in zip(start.tolist(), length.tolist(), strict=True)]
        sizes = np.bincount(group, (records.end - records.start)[rows], len(first)).astype(np.int64)
        counts = np.bincount(group, minlength=len(first)).astype(np.int64)
        self.tables.append(pa.table([pa.array(keys, pa.binary()), counts, sizes], ["key", "records", "bytes"]))
        if sum(map(len, self.tables)) > 2 * self.max_keys:
            self.tables = [self._largest()]

    def _largest(self) -> pa.Table:
        sums = pa.concat_tables(self.tables).group_by("key", use_threads=False)
        table = sums.aggregate([("records", "sum"), ("bytes", "sum")]).select(["key", "records_sum", "bytes_sum"])
        order = [("bytes", "descending"), ("records", "descending"), ("key", "ascending")]
        return table.rename_columns(["key", "records", "bytes"]).sort_by(order).slice(0, self.max_keys)

    def table(self, topic: str, partition: int) -> pa.Table:
        """Return the collected keys with the schema `KEYS`."""
        table = self._largest()
        partition_columns = [pa.repeat(topic, len(table)), pa.repeat(partition, len(table))]
        return pa.table([*partition_columns, *table.columns], KEYS.names).cast(KEYS)


@dataclass
class RecordStatistics:
    """Collects statistics about the records of a partition. Batches must be added in offset order.

    Attributes:
        batch_count: the number of batches that were added.
        latest_timestamp: the maximum timestamp of the records that were added.
        hashes: the key hash of each data record with a key.
        batches: the batch number of each data record with a key.
    """

    batch_count: int = 0
    latest_timestamp: int = NO_TIMESTAMP
    hashes: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    batches: list[Int64Array] = field(default_factory=list)
    hot: HotKeys = field(default_factory=HotKeys)

    def add(
        self, data: BytesLike, headers: BatchHeaders, valid: npt.NDArray[np.bool_], append_time: int
    ) -> tuple[dict[str, Int64Array], dict[int, str]]:
        """Add the next batches. Only `valid` batches (bool[m]) are decoded.

        Return the columns `_RECORD_COLUMNS`, int64[m] each, with -1 for batches that could not be decoded, and the
        errors by row.
        """
        columns = {name: np.full(len(headers), -1, np.int64) for name in _RECORD_COLUMNS}

        def decode(rows: Int64Array) -> None:
            self._decode(data, headers, rows, append_time, columns)

        damage = _bisect_failures(np.flatnonzero(valid), decode)
        self.batch_count += len(headers)
        return columns, damage

    def _decode(
        self, data: BytesLike, headers: BatchHeaders, rows: Int64Array, append_time: int, into: dict[str, Int64Array]
    ) -> None:
        selection = headers[rows]
        body = payloads(data, selection, check_crc=False)
        records = record_fields(body, selection)
        hashes = key_hashes(body.data, records.key_start, records.key_length, _HASH_KEY)[:, 0]
        columns = self._columns(selection, records, hashes, append_time)
        columns["uncompressed_bytes"] = body.stop - body.start
        for name, values in columns.items():
            into[name][rows] = values
        keyed = records.has_key & ~selection.is_control[records.batch]
        self.hashes.append(hashes[keyed])
        self.batches.append(self.batch_count + rows[records.batch[keyed]])
        self.hot.add(body, records, hashes, keyed)

    def _columns(
        self, headers: BatchHeaders, records: RecordFields, hashes: npt.NDArray[np.uint64], append_time: int
    ) -> dict[str, Int64Array]:
        batches, batch = len(headers), records.batch
        data = ~headers.is_control[batch]
        keyed = records.has_key & data

        def count(mask: npt.NDArray[np.bool_]) -> Int64Array:
            return np.bincount(batch[mask], minlength=batches).astype(np.int64)

        stamped = headers.is_log_append_time[batch]
        batch_time = headers.max_timestamp if append_time < 0 else np.full(batches, append_time)
        times = np.where(stamped, batch_time[batch], records.timestamp)
        behind = self._behind(np.where(data, times, NO_TIMESTAMP))
        return {
            "keys_null": count(data & ~records.has_key),
            "keys_distinct": _distinct(batch[keyed], hashes[keyed], batches),
            "key_bytes": np.bincount(batch[keyed], records.key_length[keyed], batches).astype(np.int64),
            "tombstones": count(data & ~records.has_value),
            "min_timestamp": per_batch(np.minimum, times, records.batch_rows, NO_TIMESTAMP),
            "late_records": count(behind > 0),
            "latest_by_ms": per_batch(np.maximum, behind, records.batch_rows, 0),
        }

    def _behind(self, times: Int64Array) -> Int64Array:
        """Return the difference in ms between the maximum timestamp of earlier records and the timestamp of each
        record.
        """
        if not len(times):
            return times
        running = np.maximum(np.maximum.accumulate(times), self.latest_timestamp)
        self.latest_timestamp = int(running[-1])
        return np.where(times > NO_TIMESTAMP, running - times, 0)

    def key_counts(self, ignored: npt.NDArray[np.bool_]) -> tuple[Int64Array, Int64Array]:
        """For each batch, count the records that are the first or the latest record of their key. Return both counts.

        `ignored` (bool[batches]) is True for batches whose records are not visible.
        """
        hashes = np.concatenate([*self.hashes, np.zeros(0, np.uint64)])
        batch = np.concatenate([*self.batches, np.zeros(0, np.int64)])
        visible = ~ignored[batch]
        hashes, batch = hashes[visible], batch[visible]
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = ordered[1:] != ordered[:-1]
        last = np.ones(len(order), np.bool_)
        last[:-1] = first[1:]
        new = np.bincount(batch[order[first]], minlength=len(ignored)).astype(np.int64)
        latest = np.bincount(batch[order[last]], minlength=len(ignored)).astype(np.int64)
        return new, latest


def _bisect_failures(rows: Int64Array, work: Callable[[Int64Array], None]) -> dict[int, str]:
    """Call `work` with all rows. If the call fails, call `work` with each half of the rows. Return the errors of
    individual rows, by row.
    """
    damage: dict[int, str] = {}
    pending = [rows] if len(rows) else []
    while pending:
        batch = pending.pop()
        try:
            work(batch)
        except (Corrupt, BadRequest) as error:
            # A batch cannot be decoded, or the batches are too large to be decoded together.
            if len(batch) == 1:
                damage[int(batch[0])] = error.message if isinstance(error, Corrupt) else str(error)
            else:
                pending += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
    return damage


def _distinct(batch: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64], batches: int) -> Int64Array:
    order = np.lexsort((hashes, batch))
    batch, hashes = batch[order], hashes[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (batch[1:] != batch[:-1]) | (hashes[1:] != hashes[:-1])
    return np.bincount(batch[new], minlength=batches).astype(np.int64)


def batch_table(log: PartitionLog) -> tuple[pa.Table, pa.Table, dict[str, str]]:
    """Return the batches (`SCHEMA`) and keys (`KEYS`) of a partition in offset order, and the errors for corrupt files
    by file name.

    An error for a corrupt file is returned and not raised. Raises `NotFound` if a file does not exist, and
    `Unavailable` if a file cannot be read.
    """
    columns = _BatchColumns(log)
    stops: dict[str, str] = {}
    for batches in log.ranges:
        source = DumpFile(batches.store, batches.key, batches.name, batches.name)
        file = ObjectBatches(source, batches.position + batches.size)
        limit = None if batches.end is None else batches.end - batches.shift
        for found in checked_batches(file, batches.position, batches.base - batches.shift, limit=limit):
            if isinstance(found, Window):
                columns.add(batches, found)
                continue
            body = file.read(found.position, found.size)
            headers = scan_headers(body, whole=False, contents=False)
            if len(headers):
                columns.add(batches, Window(body, found.position, headers, batches.name), found.reason)
            else:
                stops[batches.name] = f"no batch at byte {found.position}: {found.reason or 'the file was cut off'}"
    return columns.table(), columns.statistics.hot.table(log.topic, log.partition), stops


@dataclass
class _BatchColumns:
    """Collects the columns for the batches of a partition, window by window."""

    log: PartitionLog
    statistics: RecordStatistics = field(default_factory=RecordStatistics)
    columns: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    texts: dict[str, list[str | None]] = field(
        default_factory=lambda: {"file": [], "transaction": [], "control": [], "damage": []}
    )

    def add(self, batches: BatchRange, window: Window, reason: str = "") -> None:
        """Add valid batches or, if `reason` is given, one damaged batch."""
        data, headers = window.data, window.headers
        damage = {0: reason} if reason else {}
        valid = np.full(len(headers), not reason)
        record_columns, errors = self.statistics.add(data, headers, valid, batches.append_time)
        damage.update(errors)
        columns = header_columns(window) | record_columns
        columns["base_offset"] = columns["base_offset"] + batches.shift
        columns["last_offset"] = columns["last_offset"] + batches.shift
        columns["codec"] = np.minimum(columns["codec"], len(CODECS))
        columns["transactional"] = columns["transactional"] | bool(batches.outcome)
        columns["outcome"] = self._outcome(batches, headers, columns["base_offset"])
        columns["stored"] = columns["size"] - np.where(headers.is_legacy, MIN_LEGACY_BYTES, HEADER_BYTES)
        if batches.append_time >= 0:
            maximum = np.where(headers.is_log_append_time, batches.append_time, columns["max_timestamp"])
            columns["max_timestamp"] = maximum
        if batches.leader_epoch >= 0:
            columns["leader_epoch"] = np.full(len(headers), batches.leader_epoch, np.int64)
        for name, values in columns.items():
            self.columns.setdefault(name, []).append(values)
        self.texts["file"] += [batches.name] * len(headers)
        self.texts["transaction"] += [batches.transaction or None] * len(headers)
        self.texts["control"] += _controls(data, headers, damage)
        self.texts["damage"] += [damage.get(row) for row in range(len(headers))]

    def _outcome(self, batches: BatchRange, headers: BatchHeaders, base: Int64Array) -> npt.NDArray[np.int64]:
        outcome = np.full(len(headers), OUTCOMES.index(batches.outcome or "plain"), np.int64)
        in_transaction = headers.is_transactional & ~headers.is_control
        outcome[in_transaction] = OUTCOMES.index("committed")
        for producer, first in self.log.open:
            outcome[in_transaction & (headers.producer_id == producer) & (base >= first)] = OUTCOMES.index("open")
        outcome[in_transaction & self.log.aborted.covers(headers.producer_id, base)] = OUTCOMES.index("aborted")
        outcome[headers.is_control] = OUTCOMES.index("marker")
        return outcome

    def table(self) -> pa.Table:
        if not self.columns:
            return SCHEMA.empty_table()
        columns = {name: np.concatenate(values) for name, values in self.columns.items()}
        rows = len(columns["size"])
        hidden = np.isin(columns["outcome"], [OUTCOMES.index("aborted"), OUTCOMES.index("open")])
        new, latest = self.statistics.key_counts(hidden)
        undecoded = columns["uncompressed_bytes"] < 0
        offsets = columns["last_offset"] - columns["base_offset"] + 1
        start = np.array([self.log.bounds.log_start - 1], np.int64)
        before = np.concatenate((start, np.maximum.accumulate(columns["last_offset"])[:-1]))
        columns["missing"] = offsets - columns["records"]
        columns["gap_before"] = np.maximum(columns["base_offset"] - before - 1, 0)
        columns["keys_new"] = np.where(undecoded, -1, new)
        columns["keys_latest"] = np.where(undecoded, -1, latest)
        ratio = columns["uncompressed_bytes"] / np.maximum(columns["stored"], 1)
        ratio[(columns["codec"] == 0) | (columns["stored"] <= 0)] = 1.0
        arrays = {
            "topic": pa.array([self.log.topic] * rows, pa.string()),
            "partition": np.full(rows, self.log.partition, np.int32),
            "ratio": pa.array(ratio, mask=undecoded),
            "codec": _decode_names(columns["codec"], CODECS),
            "timestamp_type": _decode_names(columns["timestamp_type"], _TYPES),
            "outcome": _decode_names(columns["outcome"], OUTCOMES),
            **{name: pa.array(texts, pa.string()) for name, texts in self.texts.items()},
        }
        arrays |= {field.name: _column(field, columns[field.name]) for field in SCHEMA if field.name not in arrays}
        return pa.table([arrays[name] for name in SCHEMA.names], SCHEMA.names).cast(SCHEMA)


_SIGNED = frozenset({"leader_epoch", "producer_id", "producer_epoch", "base_sequence", "magic"})


def _column(column: pa.Field, values: Int64Array) -> pa.Array:
    """Return a column in which -1 is replaced by null, except for header fields that may be -1."""
    is_null = None if column.name in _SIGNED else values < 0
    return pa.array(values, pa.int64(), mask=is_null).cast(column.type)


def _decode_names(codes: Int64Array, names: tuple[str, ...]) -> pa.Array:
    is_null = (codes < 0) | (codes >= len(names))
    return pa.array(np.array(names, object)[np.where(is_null, 0, codes)], pa.string(), mask=is_null)


def _controls(data: bytes, headers: BatchHeaders, damage: dict[int, str]) -> list[str | None]:
    """Return the type of each control batch, or None for data batches.

    The type is `unknown` if the batch is empty or cannot be read.
    """
    names: list[str | None] = [None if data_batch else "unknown" for data_batch in (~headers.is_control).tolist()]

    def name(rows: Int64Array) -> None:
        for row, kind in zip(rows.tolist(), control.control_types(data, headers[rows]).tolist(), strict=True):
            names[row] = _CONTROL[kind] if kind >= 0 else "unknown"

    rows = np.flatnonzero(headers.is_control)
    damage.update(_bisect_failures(rows[~np.isin(rows, list(damage))], name))
    return names
