"""The batches of a partition as a table, one row each: what its header says, and what its records are like.

A partition is a list of runs in offset order: whole batches, back to back, in one file. Of a Kafka directory a run is a
segment up to the log's end; of a root it is a slice, in an append file or a sealed segment. Facts that the batches
lack come with the run: the shift of their offsets, their append time, the transaction that holds them.

Checksums are verified. What its producer wrote is shown as it is: nothing is left out by an isolation level. Records
are looked at by the kernels and by numpy, window by window; of each only a hash of its key is kept, so that keys can be
counted over a whole partition, and of the largest keys their bytes.
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
from sparklog.kafka.in_place.directory import split_folder_name
from sparklog.kafka.in_place.files import AnyPath, file_path
from sparklog.kafka.in_place.partition_state import PartitionState, SegmentState
from sparklog.log.journal.names import file_key, is_sealed
from sparklog.log.read.aborted import aborted_ranges
from sparklog.log.state.slice_table import ABORTED, COMMITTED, OPEN, Snapshot
from sparklog.log.state.view import Bounds
from sparklog.storage import Store
from sparklog.tools.inspection.dump_batches import per_batch
from sparklog.tools.inspection.dump_source import DumpFile, ObjectBatches

SEGMENT, SEALED, APPEND = "Kafka segment", "sealed segment", "append file"
_OUTCOMES = {OPEN: "open", COMMITTED: "committed", ABORTED: "aborted"}


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes `[position, position + size)` of an object: whole batches of one partition."""

    store: Store
    key: str
    name: str  # the file as it is shown, below the topic's or partition's folder
    kind: str  # SEGMENT, SEALED or APPEND
    position: int
    size: int
    base: int  # the segment's or slice's first offset
    end: int | None  # the offset after them, None if unknown
    shift: int = 0  # what to add to a batch header's base offset
    append_time: int = -1  # ms, of records under LogAppendTime; -1: their batches carry it
    leader_epoch: int = -1
    footer_length: int = 0
    file_size: int = 0
    transaction: str = ""  # of sparklog's that wrote the run; empty if none did, as is its outcome
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition. `aborted`, `open`: Kafka's transactions in it; `open` gives each producer's first open offset."""

    topic: str
    partition: int
    bounds: Bounds
    runs: tuple[Run, ...]
    aborted: AbortedTransactions
    open: tuple[tuple[int, int], ...]


def of_kafka(topic: str, partition: int, state: PartitionState, bounds: Bounds) -> PartitionLog:
    """Return a partition folder of Kafka's, up to the end of its log."""
    runs = tuple(_segment(segment) for segment in state.segments)
    aborted = state.aborted(state.first_base, max(state.log_end, state.first_base))
    return PartitionLog(topic, partition, bounds, runs, aborted, tuple(state.transactions.open.items()))


def _segment(state: SegmentState) -> Run:
    store, key = state.name.path.as_object()
    size = state.size if state.is_cut else state.end
    return Run(store, key, state.name.path.name, SEGMENT, 0, size, state.name.base, state.limit, file_size=state.size)


def of_root(snapshot: Snapshot, partition: int, bounds: Bounds) -> PartitionLog:
    """Return a partition of a root's topic at one version: every slice that it names."""
    state, rows = snapshot.state, snapshot.slices.select(partition)
    store, topic = snapshot.store, snapshot.topic
    names = ("position", "size", "base", "end", "shift", "append_time", "leader_epoch", "footer_length", "file_size")
    columns = {name: rows.columns[name].tolist() for name in names}
    status, number = rows.status.tolist(), rows.txn_n.tolist()
    runs = []
    for row in range(len(rows)):
        path, outcome = rows.path(row), _OUTCOMES.get(status[row], "")
        kind = SEALED if is_sealed(path) else APPEND
        whose = f"{rows.txn_id(row)} #{number[row]}" if outcome else ""
        facts = {name: column[row] for name, column in columns.items()}
        runs.append(Run(store, file_key(topic, path), path, kind, **facts, transaction=whose, outcome=outcome))
    first = min(int(rows.base[0]), bounds.log_start) if len(rows) else bounds.log_start
    aborted = aborted_ranges(store, topic, snapshot.slices, partition, first, bounds.log_end)
    open_ = tuple((opened.producer, opened.first) for opened in state.kafka_open if opened.partition == partition)
    return PartitionLog(topic, partition, bounds, tuple(runs), aborted or transaction_index.none(), open_)


def of_file(path: AnyPath) -> list[PartitionLog]:
    """Return the partitions in one file: a `.log` of Kafka's or a sealed one, or an append file of any number of them.

    A segment's transactions are judged by all of its folder. Offsets in an append file count from 0 within each slice:
    only a commit gives their place in the log. `NotFound` if there is no such file, `BadRequest` for any other file.
    """
    location = file_path(path)
    folder, name = location.parent, location.name
    if not location.is_file():
        raise NotFound(f"there is no file {location}: give a .log or .slices file, a topic or a log directory")
    if name.endswith(".slices"):
        return _append_file(*location.as_object())
    stem, _, suffix = name.partition(".")
    if not (len(stem) == 20 and stem.isdigit() and suffix == "log"):
        raise BadRequest(f"expected a segment such as 00000000000000000000.log or a .slices file, found {location}")
    topic, partition = split_folder_name(folder)
    state = PartitionState(folder, topic, partition)
    state.refresh()
    segment = next((part for part in state.segments if part.name.base == int(stem)), None)
    if segment is None:
        raise NotFound(f"{location} is no segment of its folder's log: a cleaner that died left it behind")
    end = segment.next_offset
    whole = of_kafka(topic, partition, state, Bounds(int(stem), end, end, end))
    return [replace(whole, runs=(_segment(segment),))]


def _append_file(store: Store, name: str) -> list[PartitionLog]:
    info = store.stat(name)
    size = 0 if info is None else info.size
    footer = read_footer(partial(store.get, name), size, file=name)
    logs: dict[int, PartitionLog] = {}
    for entry in footer.slices:
        before = logs.get(entry.partition)
        base, runs = (before.bounds.log_end, before.runs) if before else (0, ())
        end = base + entry.offsets
        run = Run(
            store, name, name, APPEND, entry.position, entry.nbytes, base, end, base, -1, -1, footer.footer_length, size
        )
        bounds, none = Bounds(0, end, end, end), transaction_index.none()
        logs[entry.partition] = PartitionLog(name, entry.partition, bounds, (*runs, run), none, ())
    return [logs[partition] for partition in sorted(logs)]


NO_TIMESTAMP = -1
# Keys are counted, never compacted, by this hash: a collision made on purpose does no harm.
_HASH_KEY = HashKey(0, 0)
TIME = pa.timestamp("ms", tz="UTC")
OUTCOMES = ("plain", "committed", "aborted", "open", "marker")
_CONTROL = ("abort", "commit", "leader change", "snapshot header", "snapshot footer", "KRaft version", "KRaft voters")
_TYPES = ("CreateTime", "LogAppendTime")

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("file", pa.string()),  # as `runs.Run.name`
        ("position", pa.int64()),  # of the batch in the file
        ("size", pa.int64()),
        ("base_offset", pa.int64()),  # inclusive, as is the last one: cleaning may have taken the record at either
        ("last_offset", pa.int64()),
        ("records", pa.int32()),  # as many as are left
        ("missing", pa.int64()),  # offsets of the batch without a record: cleaned away
        ("gap_before", pa.int64()),  # offsets between the batch before it, or the log start, and this one
        ("magic", pa.int8()),  # 2; 0 and 1 for messages of old formats, which count as batches
        ("codec", pa.string()),  # none, gzip, snappy, lz4, zstd
        ("uncompressed_bytes", pa.int64()),  # of its records
        ("ratio", pa.float64()),  # uncompressed over stored bytes of its records; 1 for plain batches
        ("keys_distinct", pa.int64()),  # this and the next of its data records
        ("keys_null", pa.int64()),
        ("keys_new", pa.int64()),  # keys that no earlier batch of the partition has
        ("keys_latest", pa.int64()),  # records whose key nothing after them has: compaction keeps them
        ("key_bytes", pa.int64()),
        ("tombstones", pa.int64()),  # records without a value
        ("min_timestamp", TIME),  # this and the next of its records; null where they have none
        ("max_timestamp", TIME),
        ("timestamp_type", pa.string()),  # CreateTime, LogAppendTime; null in format v0
        ("late_records", pa.int64()),  # records older than some record before them in the partition
        ("latest_by_ms", pa.int64()),  # by how much at most
        ("leader_epoch", pa.int32()),  # this and the next three: -1 for none
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int16()),
        ("base_sequence", pa.int32()),
        ("transactional", pa.bool_()),  # by Kafka's bit, or held by a transaction of sparklog's
        ("transaction", pa.string()),  # of a transaction of sparklog's: id and number; else null
        ("control", pa.string()),  # commit, abort, or another control type; null for data
        ("outcome", pa.string()),  # plain, committed, aborted, open; marker for control batches
        ("delete_horizon", TIME),  # from when on cleaning drops its tombstones or marker; null: none yet
        ("damage", pa.string()),  # why it cannot be read; null: sound. Its figures of records are null then
    ]
)
_OF_RECORDS = (
    *("uncompressed_bytes", "keys_null", "keys_distinct", "key_bytes", "tombstones"),
    *("min_timestamp", "late_records", "latest_by_ms"),
)
"""Columns that `RecordFacts` fills."""


KEYS = pa.schema(
    [
        *(("topic", pa.string()), ("partition", pa.int32()), ("key", pa.binary())),
        *(("records", pa.int64()), ("bytes", pa.int64())),
    ]
)
"""One row per key and partition, largest first; `bytes` those of its records before compression."""

MOST_KEYS = 1 << 18
"""Keys of a partition that are kept. Of a partition with more, those that are small so far are forgotten."""


@dataclass
class HotKeys:
    """Adds up records by key, window by window, in bounded memory."""

    most: int = MOST_KEYS
    parts: list[pa.Table] = field(default_factory=lambda: [KEYS.empty_table().select(["key", "records", "bytes"])])

    def add(self, body: Payloads, records: RecordFields, hashes: npt.NDArray[np.uint64], keyed: BoolArray) -> None:
        """Add the records that are `keyed` (bool[n]); `hashes` are those of their keys (uint64[n])."""
        rows = np.flatnonzero(keyed)
        _, first, group = np.unique(hashes[rows], return_index=True, return_inverse=True)
        # One key stands for all of its hash.
        start, length = records.key_start[rows[first]], records.key_length[rows[first]]
        data = body.data.data
        keys = [bytes(data[low : low + size]) for low, size in zip(start.tolist(), length.tolist(), strict=True)]
        sizes = np.bincount(group, (records.end - records.start)[rows], len(first)).astype(np.int64)
        counts = np.bincount(group, minlength=len(first)).astype(np.int64)
        self.parts.append(pa.table([pa.array(keys, pa.binary()), counts, sizes], ["key", "records", "bytes"]))
        if sum(map(len, self.parts)) > 2 * self.most:
            self.parts = [self._largest()]

    def _largest(self) -> pa.Table:
        sums = pa.concat_tables(self.parts).group_by("key", use_threads=False)
        table = sums.aggregate([("records", "sum"), ("bytes", "sum")]).select(["key", "records_sum", "bytes_sum"])
        order = [("bytes", "descending"), ("records", "descending"), ("key", "ascending")]
        return table.rename_columns(["key", "records", "bytes"]).sort_by(order).slice(0, self.most)

    def table(self, topic: str, partition: int) -> pa.Table:
        """Return the keys so far (`KEYS`)."""
        table = self._largest()
        partition_columns = [pa.repeat(topic, len(table)), pa.repeat(partition, len(table))]
        return pa.table([*partition_columns, *table.columns], KEYS.names).cast(KEYS)


@dataclass
class RecordFacts:
    """Walks over the batches of one partition in offset order."""

    seen: int = 0
    newest: int = NO_TIMESTAMP
    hashes: list[npt.NDArray[np.uint64]] = field(default_factory=list)  # of each data record with a key
    batches: list[Int64Array] = field(default_factory=list)  # and the number of its batch in the partition
    hot: HotKeys = field(default_factory=HotKeys)

    def add(
        self, data: BytesLike, headers: BatchHeaders, sound: npt.NDArray[np.bool_], append_time: int
    ) -> tuple[dict[str, Int64Array], dict[int, str]]:
        """Add the next batches; only those that are `sound` (bool[m]) are opened. `append_time` as in `runs.Run`.

        Returns `_OF_RECORDS`, int64[m] each, -1 where a batch could not be opened, and the reasons by batch.
        """
        columns = {name: np.full(len(headers), -1, np.int64) for name in _OF_RECORDS}
        damage = _tried(np.flatnonzero(sound), lambda rows: self._open(data, headers, rows, append_time, columns))
        self.seen += len(headers)
        return columns, damage

    def _open(
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
        self.batches.append(self.seen + rows[records.batch[keyed]])
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
        """Return by how many ms each record is older than the newest one before it in the partition."""
        if not len(times):
            return times
        running = np.maximum(np.maximum.accumulate(times), self.newest)
        self.newest = int(running[-1])
        return np.where(times > NO_TIMESTAMP, running - times, 0)

    def key_counts(self, ignored: npt.NDArray[np.bool_]) -> tuple[Int64Array, Int64Array]:
        """Count, for each batch, the keys that no record before it has, and records whose key no later record has.

        `ignored`: bool of all batches, whose records are not visible.
        """
        hashes = np.concatenate([*self.hashes, np.zeros(0, np.uint64)])
        batch = np.concatenate([*self.batches, np.zeros(0, np.int64)])
        shown = ~ignored[batch]
        hashes, batch = hashes[shown], batch[shown]
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = ordered[1:] != ordered[:-1]
        last = np.ones(len(order), np.bool_)
        last[:-1] = first[1:]
        new = np.bincount(batch[order[first]], minlength=len(ignored)).astype(np.int64)
        latest = np.bincount(batch[order[last]], minlength=len(ignored)).astype(np.int64)
        return new, latest


def _tried(rows: Int64Array, work: Callable[[Int64Array], None]) -> dict[int, str]:
    """Call `work` with rows, and where it fails with halves of them; return the reasons by row, of single ones."""
    damage: dict[int, str] = {}
    waiting = [rows] if len(rows) else []
    while waiting:
        some = waiting.pop()
        try:
            work(some)
        except (Corrupt, BadRequest) as error:
            # One of them cannot be opened, or they are too much at once.
            if len(some) == 1:
                damage[int(some[0])] = error.message if isinstance(error, Corrupt) else str(error)
            else:
                waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
    return damage


def _distinct(batch: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64], batches: int) -> Int64Array:
    order = np.lexsort((hashes, batch))
    batch, hashes = batch[order], hashes[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (batch[1:] != batch[:-1]) | (hashes[1:] != hashes[:-1])
    return np.bincount(batch[new], minlength=batches).astype(np.int64)


def batch_table(log: PartitionLog) -> tuple[pa.Table, pa.Table, dict[str, str]]:
    """The batches of a partition in offset order (`SCHEMA`), its keys (`KEYS`), and by file where and why it is broken.

    Damage is shown, not raised. `NotFound` or `Unavailable` if a file is gone or cannot be read.
    """
    walk = _Walk(log)
    stops: dict[str, str] = {}
    for run in log.runs:
        file = ObjectBatches(DumpFile(run.store, run.key, run.name, run.name), run.position + run.size)
        limit = None if run.end is None else run.end - run.shift
        for found in checked_batches(file, run.position, run.base - run.shift, limit=limit):
            if isinstance(found, Window):
                walk.add(run, found)
                continue
            body = file.read(found.position, found.size)
            headers = scan_headers(body, whole=False, contents=False)
            if len(headers):
                walk.add(run, Window(body, found.position, headers, run.name), found.reason)
            else:
                stops[run.name] = f"no batch at byte {found.position}: {found.reason or 'the file was cut off'}"
    return walk.table(), walk.facts.hot.table(log.topic, log.partition), stops


@dataclass
class _Walk:
    """Collects columns, window by window."""

    log: PartitionLog
    facts: RecordFacts = field(default_factory=RecordFacts)
    columns: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    texts: dict[str, list[str | None]] = field(
        default_factory=lambda: {"file": [], "transaction": [], "control": [], "damage": []}
    )

    def add(self, run: Run, window: Window, reason: str = "") -> None:
        """Add valid batches or, with a reason, one damaged batch."""
        data, headers, position = window.data, window.headers, window.start
        damage = {0: reason} if reason else {}
        sound = np.full(len(headers), not reason)
        of_records, unread = self.facts.add(data, headers, sound, run.append_time)
        damage.update(unread)
        base = headers.base_offset + run.shift
        stamped = headers.is_log_append_time & (run.append_time >= 0)
        columns = dict(
            position=position + headers.position,
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
            **of_records,
        )
        for name, values in columns.items():
            self.columns.setdefault(name, []).append(np.asarray(values, np.int64))
        self.texts["file"] += [run.name] * len(headers)
        self.texts["transaction"] += [run.transaction or None] * len(headers)
        self.texts["control"] += _controls(data, headers, damage)
        self.texts["damage"] += [damage.get(row) for row in range(len(headers))]

    def _outcome(self, run: Run, headers: BatchHeaders, base: Int64Array) -> npt.NDArray[np.int64]:
        outcome = np.full(len(headers), OUTCOMES.index(run.outcome or "plain"), np.int64)
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
        columns = {name: np.concatenate(parts) for name, parts in self.columns.items()}
        rows = len(columns["size"])
        hidden = np.isin(columns["outcome"], [OUTCOMES.index("aborted"), OUTCOMES.index("open")])
        new, latest = self.facts.key_counts(hidden)
        closed = columns["uncompressed_bytes"] < 0
        offsets = columns["last_offset"] - columns["base_offset"] + 1
        start = np.array([self.log.bounds.log_start - 1], np.int64)
        before = np.concatenate((start, np.maximum.accumulate(columns["last_offset"])[:-1]))
        columns["missing"] = offsets - columns["records"]
        columns["gap_before"] = np.maximum(columns["base_offset"] - before - 1, 0)
        columns["keys_new"] = np.where(closed, -1, new)
        columns["keys_latest"] = np.where(closed, -1, latest)
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
        arrays |= {column.name: _column(column, columns[column.name]) for column in SCHEMA if column.name not in arrays}
        return pa.table([arrays[name] for name in SCHEMA.names], SCHEMA.names).cast(SCHEMA)


_SIGNED = frozenset({"leader_epoch", "producer_id", "producer_epoch", "base_sequence", "magic"})


def _column(column: pa.Field, values: Int64Array) -> pa.Array:
    """-1 stands for nothing where no header says -1 itself."""
    nothing = None if column.name in _SIGNED else values < 0
    return pa.array(values, pa.int64(), mask=nothing).cast(column.type)


def _named(codes: Int64Array, names: tuple[str, ...]) -> pa.Array:
    unnamed = (codes < 0) | (codes >= len(names))
    return pa.array(np.array(names, object)[np.where(unnamed, 0, codes)], pa.string(), mask=unnamed)


def _controls(data: bytes, headers: BatchHeaders, damage: dict[int, str]) -> list[str | None]:
    """The word for each control batch; an emptied one, or one that cannot be read, is `unknown`."""
    names: list[str | None] = [None if data_batch else "unknown" for data_batch in (~headers.is_control).tolist()]

    def name(rows: Int64Array) -> None:
        for row, kind in zip(rows.tolist(), control.control_types(data, headers[rows]).tolist(), strict=True):
            names[row] = _CONTROL[kind] if kind >= 0 else "unknown"

    rows = np.flatnonzero(headers.is_control)
    damage.update(_tried(rows[~np.isin(rows, list(damage))], name))
    return names
