"""Tables of a topic, a partition or a file: its batches, files with their indexes, gaps, transactions, keys.

tables = inspect_topic(open_view(resolve("/data/kafka-logs"), tailing=False), "orders")
tables.batches.group_by("codec").aggregate([("size", "sum")])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format.append_file import decode_footer
from sparklog.format.record_batch import BoolArray, Int64Array
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.kafka.in_place.files import AnyPath
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.state.view import LogView
from sparklog.log.topic.root import RootView
from sparklog.tools.inspection.batches import (
    APPEND,
    KEYS,
    SCHEMA,
    TIME,
    PartitionLog,
    Run,
    batch_table,
    of_file,
    of_kafka,
    of_root,
)

_Fields: TypeAlias = list[tuple[str, pa.DataType]]


def _fields(kind: pa.DataType, *names: str) -> _Fields:
    return [(name, kind) for name in names]


_PARTITION: _Fields = [("topic", pa.string()), ("partition", pa.int32())]

GAPS = pa.schema([*_PARTITION, *_fields(pa.int64(), "start", "end", "missing"), ("where", pa.string())])
"""Offsets `[start, end)` of which `missing` hold no record: `between batches` all of them, `inside a batch` some."""

TRANSACTIONS = pa.schema(
    [
        *(*_PARTITION, ("transaction", pa.string())),
        *(*_fields(pa.int64(), "producer_id", "first_offset", "last_offset"), ("outcome", pa.string())),
        *(*_fields(pa.int64(), "batches", "records", "bytes"), *_fields(TIME, "first_timestamp", "last_timestamp")),
    ]
)
"""One row per transaction and partition. `last_offset` is that of its marker where it has one (Kafka's)."""

FILES = pa.schema(
    [
        *(*_PARTITION, *_fields(pa.string(), "file", "kind")),
        *_fields(pa.int64(), "base_offset", "last_offset", "bytes", "batches", "records", "uncompressed_bytes"),
        *_fields(TIME, "min_timestamp", "max_timestamp", "written"),
        *(*_fields(pa.int64(), "written_after_ms", "index_entries"), ("bytes_per_entry", pa.float64())),
        *(("time_index_entries", pa.int64()), ("damage", pa.string())),
    ]
)
"""One row per file and partition, `bytes` those of its batches.

* `written`: when the file was last written, by the clock of its disk or store
* `written_after_ms`: how much later than its newest record that was: the delay of an append, or the time until Kafka or
  maintenance wrote the file as it is; below 0 where producers' clocks are ahead
* `bytes_per_entry`: how much a reader that seeks may have to read in vain; null without an index
"""

_ENTRY = [*_fields(pa.int64(), "offset", "position"), ("timestamp", TIME)]
INDEX = pa.schema([*_PARTITION, *_fields(pa.string(), "file", "index"), *_ENTRY])
"""Entries of `.index` (offset, position), `.timeindex` (timestamp, offset) and of the footers of append files (all)."""

BOUNDS = pa.schema([*_PARTITION, *_fields(pa.int64(), "log_start", "last_stable", "log_end")])


def gap_table(batches: pa.Table) -> pa.Table:
    """Return the offsets without records, in offset order, of batches of any number of partitions."""
    before, inside = batches["gap_before"].to_numpy(), batches["missing"].to_numpy()
    base, last = batches["base_offset"].to_numpy(), batches["last_offset"].to_numpy()
    rows = np.concatenate((np.flatnonzero(before > 0), np.flatnonzero(inside > 0)))
    between = np.arange(len(rows)) < int((before > 0).sum())
    order = np.lexsort((~between, rows))
    rows, between = rows[order], between[order]
    start = np.where(between, base[rows] - before[rows], base[rows])
    end = np.where(between, base[rows], last[rows] + 1)
    return pa.table(
        {
            "topic": batches["topic"].take(pa.array(rows)),
            "partition": batches["partition"].take(pa.array(rows)),
            "start": start,
            "end": end,
            "missing": np.where(between, before[rows], inside[rows]),
            "where": pa.array(np.where(between, "between batches", "inside a batch"), pa.string()),
        }
    ).cast(GAPS)


def transaction_table(batches: pa.Table) -> pa.Table:
    """Return the transactions in the batches of one partition, by their first offset.

    Kafka's: from a producer's first transactional batch to its marker; sparklog's: the batches that one holds.
    """
    relevant = batches.filter(
        pc.or_(batches["transactional"], pc.is_in(batches["control"], pa.array(["commit", "abort"], pa.string())))
    )
    if not len(relevant):
        return TRANSACTIONS.empty_table()
    marker = relevant["outcome"].combine_chunks().to_numpy(zero_copy_only=False) == "marker"
    names = pc.fill_null(relevant["transaction"].combine_chunks(), "").dictionary_encode()
    owner = names.indices.to_numpy()
    producer = relevant["producer_id"].to_numpy()
    order = np.lexsort((relevant["base_offset"].to_numpy(), producer, owner))
    relevant = relevant.take(pa.array(order))
    marker, owner, producer = marker[order], owner[order], producer[order]
    # A transaction begins where its owner changes, and after a marker.
    starts = np.ones(len(order), np.bool_)
    starts[1:] = (owner[1:] != owner[:-1]) | (producer[1:] != producer[:-1]) | marker[:-1]
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(order)) - 1
    table = _transactions(relevant, first, last, marker)
    # A marker alone ended nothing here: its transaction had no records in this partition, or cleaning took them.
    return table.filter(pc.greater(table["batches"], 0)).sort_by("first_offset")


def _transactions(rows: pa.Table, first: Int64Array, last: Int64Array, marker: BoolArray) -> pa.Table:
    data = (~marker).astype(np.int64)

    def total(name: str) -> npt.NDArray[Any]:
        return np.add.reduceat(rows[name].to_numpy().astype(np.int64) * data, first)

    def text(name: str) -> pa.ChunkedArray:
        return rows[name].take(pa.array(first))

    earliest = pc.fill_null(rows["min_timestamp"].cast(pa.int64()), 2**62).to_numpy()
    newest = pc.fill_null(rows["max_timestamp"].cast(pa.int64()), -1).to_numpy()
    begun = np.minimum.reduceat(np.where(marker, 2**62, earliest), first)
    ended = np.maximum.reduceat(newest, first)
    kafka = pc.binary_join_element_wise("producer", text("producer_id").cast(pa.string()), " ")
    return pa.table(
        {
            "topic": text("topic"),
            "partition": text("partition"),
            "transaction": pc.coalesce(text("transaction"), kafka),
            "producer_id": text("producer_id"),
            "first_offset": text("base_offset"),
            "last_offset": rows["last_offset"].take(pa.array(last)),
            "outcome": text("outcome"),
            "batches": np.add.reduceat(data, first),
            "records": total("records"),
            "bytes": total("size"),
            "first_timestamp": pa.array(begun, mask=begun == 2**62).cast(TIME),
            "last_timestamp": pa.array(ended, mask=ended < 0).cast(TIME),
        }
    ).cast(TRANSACTIONS)


def file_tables(log: PartitionLog, batches: pa.Table, stops: dict[str, str]) -> tuple[pa.Table, pa.Table]:
    """Return the files of a partition (`FILES`), in offset order, and the entries of their indexes (`INDEX`)."""
    files: dict[str, list[Run]] = {}
    for run in log.runs:
        files.setdefault(run.name, []).append(run)
    entries = [INDEX.empty_table()]
    rows = []
    for name, runs in files.items():
        row = _file_row(log, runs)
        try:
            entries += _append_index(log, runs, row) if runs[0].kind == APPEND else _segment_indexes(log, runs[0], row)
        except Corrupt as error:
            row["damage"] = error.message
        if row.get("index_entries"):
            row["bytes_per_entry"] = row["bytes"] / row["index_entries"]
        rows.append(row | ({"damage": stops[name]} if name in stops else {}))
    of_batches = {*_OF_BATCHES.values(), "written_after_ms"}
    plain = pa.Table.from_pylist(rows, pa.schema([column for column in FILES if column.name not in of_batches]))
    return _with_batches(plain, batches), pa.concat_tables(entries)


def _file_row(log: PartitionLog, runs: Sequence[Run]) -> dict[str, Any]:
    first = runs[0]
    info = first.store.stat(first.key)
    return {
        "topic": log.topic,
        "partition": log.partition,
        "file": first.name,
        "kind": first.kind,
        "base_offset": first.base,
        "bytes": sum(run.size for run in runs),
        "written": None if info is None else info.modified_ms,
    }


_OF_BATCHES = {
    ("last_offset", "max"): "last_offset",
    ("size", "count"): "batches",
    ("records", "sum"): "records",
    ("uncompressed_bytes", "sum"): "uncompressed_bytes",
    ("min_timestamp", "min"): "min_timestamp",
    ("max_timestamp", "max"): "max_timestamp",
}
"""Columns of `FILES` that are made from a file's batches."""


def _with_batches(files: pa.Table, batches: pa.Table) -> pa.Table:
    sums = batches.group_by("file", use_threads=False).aggregate(list(_OF_BATCHES))
    names = {f"{name}_{function}": column for (name, function), column in _OF_BATCHES.items()}
    sums = sums.rename_columns([names.get(name, name) for name in sums.column_names])
    joined = files.join(sums, "file", use_threads=False).sort_by([("base_offset", "ascending"), ("file", "ascending")])
    after = pc.subtract(joined["written"].cast(pa.int64()), joined["max_timestamp"].cast(pa.int64()))
    joined = joined.append_column("written_after_ms", after)
    return joined.select(FILES.names).cast(FILES)


def _segment_indexes(log: PartitionLog, run: Run, row: dict[str, Any]) -> list[pa.Table]:
    tables, stem = [], run.key.removesuffix(".log")
    if (data := read_if_there(run.store, f"{stem}.index")) is not None:
        offsets = OffsetIndex.parse(data, run.base, file=run.name)
        row["index_entries"] = len(offsets)
        tables.append(_entries(log, run, ".index", offsets.offsets, positions=offsets.positions))
    if (data := read_if_there(run.store, f"{stem}.timeindex")) is not None:
        times = TimeIndex.parse(data, run.base, file=run.name)
        row["time_index_entries"] = len(times)
        tables.append(_entries(log, run, ".timeindex", times.offsets, times=times.timestamps))
    return tables


def _append_index(log: PartitionLog, runs: Sequence[Run], row: dict[str, Any]) -> list[pa.Table]:
    run = runs[0]
    data = run.store.get(run.key, run.file_size - run.footer_length, run.footer_length)
    footer = decode_footer(data, file_size=run.file_size, file=run.name)
    row["index_entries"] = 0
    tables = []
    for run in runs:
        entry = footer.at(run.position)
        if entry is None or entry.index is None:
            continue
        index = entry.index
        row["index_entries"] += len(index)
        offsets, positions = index.offset + run.shift, index.position + run.position
        tables.append(_entries(log, run, "footer", offsets, positions, index.max_ts))
    return tables


def _entries(
    log: PartitionLog,
    run: Run,
    index: str,
    offsets: Int64Array,
    positions: Int64Array | None = None,
    times: Int64Array | None = None,
) -> pa.Table:
    rows = len(offsets)
    nothing = pa.nulls(rows, pa.int64())
    same = [pa.repeat(value, rows) for value in (log.topic, log.partition, run.name, index)]
    position = nothing if positions is None else positions
    time = nothing if times is None else pa.array(times, mask=times < 0)
    return pa.table([*same, offsets, position, time], INDEX.names).cast(INDEX)


@dataclass(frozen=True, slots=True)
class Inspected:
    """The contents of some partitions, by partition and offset: `SCHEMA`, `KEYS`, and the schemas of this module."""

    batches: pa.Table
    files: pa.Table
    gaps: pa.Table
    transactions: pa.Table
    index: pa.Table
    bounds: pa.Table
    keys: pa.Table


def inspect_topic(view: LogView, topic: str, partitions: Sequence[int] | None = None) -> Inspected:
    """Inspect a topic of a root or of a Kafka directory, all of its partitions or some. Reads every byte of them.

    `NotFound` for a topic or partition that is missing, `BadRequest` for a view of another kind.
    """
    view.refresh([topic])
    bounds = view.bounds(topic)
    chosen = sorted(bounds) if partitions is None else list(dict.fromkeys(partitions))
    for partition in chosen:
        if partition not in bounds:
            raise NotFound(f"there is no partition {partition} of {topic} in {view.location}: it has {sorted(bounds)}")
    if isinstance(view, KafkaView):
        states = view.partition_states(topic)
        return _inspected(of_kafka(topic, partition, states[partition], bounds[partition]) for partition in chosen)
    if isinstance(view, RootView):
        snapshot = view.snapshot(topic)
        return _inspected(of_root(snapshot, partition, bounds[partition]) for partition in chosen)
    raise BadRequest(f"expected a sparklog root or a Kafka directory to look into, found {type(view).__name__}")


def inspect_file(path: AnyPath) -> Inspected:
    """Inspect one `.log` or `.slices` file: see `runs.of_file`."""
    return _inspected(of_file(path))


def _inspected(logs: Iterable[PartitionLog]) -> Inspected:
    parts: list[list[pa.Table]] = [[schema.empty_table()] for schema in _SCHEMAS]
    for log in logs:
        table, keys, stops = batch_table(log)
        files, index = file_tables(log, table, stops)
        row = (log.topic, log.partition, log.bounds.log_start, log.bounds.last_stable, log.bounds.log_end)
        bounds = pa.Table.from_pylist([dict(zip(BOUNDS.names, row, strict=True))], BOUNDS)
        tables = (table, files, gap_table(table), transaction_table(table), index, bounds, keys)
        for part, rows in zip(parts, tables, strict=True):
            part.append(rows)
    return Inspected(*map(pa.concat_tables, parts))


_SCHEMAS = (SCHEMA, FILES, GAPS, TRANSACTIONS, INDEX, BOUNDS, KEYS)
