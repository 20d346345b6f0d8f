"""Return tables of the batches, files, indexes, gaps, transactions and keys of a topic, a partition or a file.

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
    BatchRange,
    PartitionLog,
    batch_table,
    file_partitions,
    kafka_partition,
    root_partition,
)

_Fields: TypeAlias = list[tuple[str, pa.DataType]]


def _fields(kind: pa.DataType, *names: str) -> _Fields:
    return [(name, kind) for name in names]


_PARTITION: _Fields = [("topic", pa.string()), ("partition", pa.int32())]

GAPS = pa.schema([*_PARTITION, *_fields(pa.int64(), "start", "end", "missing"), ("where", pa.string())])
"""One row per gap. A gap is an offset range `[start, end)` in which `missing` offsets do not have a record. All offsets
of a gap between batches are missing. Some offsets of a gap inside a batch are missing.
"""

TRANSACTIONS = pa.schema(
    [
        *(*_PARTITION, ("transaction", pa.string())),
        *(*_fields(pa.int64(), "producer_id", "first_offset", "last_offset"), ("outcome", pa.string())),
        *(*_fields(pa.int64(), "batches", "records", "bytes"), *_fields(TIME, "first_timestamp", "last_timestamp")),
    ]
)
"""One row per transaction and partition. The `last_offset` of a Kafka transaction is the offset of its marker."""

FILES = pa.schema(
    [
        *(*_PARTITION, *_fields(pa.string(), "file", "kind")),
        *_fields(pa.int64(), "base_offset", "last_offset", "bytes", "batches", "records", "uncompressed_bytes"),
        *_fields(TIME, "min_timestamp", "max_timestamp", "written"),
        *(*_fields(pa.int64(), "written_after_ms", "index_entries"), ("bytes_per_entry", pa.float64())),
        *(("time_index_entries", pa.int64()), ("damage", pa.string())),
    ]
)
"""One row per file and partition. `bytes` is the size of the batches of the partition in the file.

* `written`: the modification time of the file according to its disk or store
* `written_after_ms`: the time from the maximum record timestamp to `written`, which is the delay of the append, or of
  the job or broker that wrote the file; negative if the clock of a producer is ahead
* `bytes_per_entry`: the average number of bytes per index entry, which a seek may read unnecessarily; null if there is
  no index
"""

_ENTRY = [*_fields(pa.int64(), "offset", "position"), ("timestamp", TIME)]
INDEX = pa.schema([*_PARTITION, *_fields(pa.string(), "file", "index"), *_ENTRY])
"""One row per entry of an `.index` file (offset and position), a `.timeindex` file (timestamp and offset) or a footer
(offset, position and timestamp).
"""

BOUNDS = pa.schema([*_PARTITION, *_fields(pa.int64(), "log_start", "last_stable", "log_end")])


def gap_table(batches: pa.Table) -> pa.Table:
    """Return the gaps of batches, in the order of the batches. The batches may belong to several partitions."""
    before, inside = batches["gap_before"].to_numpy(), batches["missing"].to_numpy()
    base, last = batches["base_offset"].to_numpy(), batches["last_offset"].to_numpy()
    rows = np.concatenate((np.flatnonzero(before > 0), np.flatnonzero(inside > 0)))
    is_between = np.arange(len(rows)) < int((before > 0).sum())
    order = np.lexsort((~is_between, rows))
    rows, is_between = rows[order], is_between[order]
    start = np.where(is_between, base[rows] - before[rows], base[rows])
    end = np.where(is_between, base[rows], last[rows] + 1)
    return pa.table(
        {
            "topic": batches["topic"].take(pa.array(rows)),
            "partition": batches["partition"].take(pa.array(rows)),
            "start": start,
            "end": end,
            "missing": np.where(is_between, before[rows], inside[rows]),
            "where": pa.array(np.where(is_between, "between batches", "inside a batch"), pa.string()),
        }
    ).cast(GAPS)


def transaction_table(batches: pa.Table) -> pa.Table:
    """Return the transactions in the batches of a partition, sorted by first offset.

    A Kafka transaction consists of the batches of a producer up to a marker. A sparklog transaction consists of the
    batches that were written in the transaction.
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
    # A new transaction starts after a marker or when the owner changes.
    starts = np.ones(len(order), np.bool_)
    starts[1:] = (owner[1:] != owner[:-1]) | (producer[1:] != producer[:-1]) | marker[:-1]
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(order)) - 1
    table = _transactions(relevant, first, last, marker)
    # Drop a marker if its transaction does not have records in this partition, for example because the records were
    # cleaned.
    return table.filter(pc.greater(table["batches"], 0)).sort_by("first_offset")


def _transactions(rows: pa.Table, first: Int64Array, last: Int64Array, marker: BoolArray) -> pa.Table:
    data = (~marker).astype(np.int64)

    def total(name: str) -> npt.NDArray[Any]:
        return np.add.reduceat(rows[name].to_numpy().astype(np.int64) * data, first)

    def text(name: str) -> pa.ChunkedArray:
        return rows[name].take(pa.array(first))

    min_timestamp = pc.fill_null(rows["min_timestamp"].cast(pa.int64()), 2**62).to_numpy()
    max_timestamp = pc.fill_null(rows["max_timestamp"].cast(pa.int64()), -1).to_numpy()
    started = np.minimum.reduceat(np.where(marker, 2**62, min_timestamp), first)
    ended = np.maximum.reduceat(max_timestamp, first)
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
            "first_timestamp": pa.array(started, mask=started == 2**62).cast(TIME),
            "last_timestamp": pa.array(ended, mask=ended < 0).cast(TIME),
        }
    ).cast(TRANSACTIONS)


def file_tables(log: PartitionLog, batches: pa.Table, stops: dict[str, str]) -> tuple[pa.Table, pa.Table]:
    """Return the files of a partition in offset order (`FILES`), and the index entries of these files (`INDEX`)."""
    files: dict[str, list[BatchRange]] = {}
    for batch_range in log.ranges:
        files.setdefault(batch_range.name, []).append(batch_range)
    entries = [INDEX.empty_table()]
    rows = []
    for name, ranges in files.items():
        row = _file_row(log, ranges)
        try:
            entries += (
                _append_index(log, ranges, row) if ranges[0].kind == APPEND else _segment_indexes(log, ranges[0], row)
            )
        except Corrupt as error:
            row["damage"] = error.message
        if row.get("index_entries"):
            row["bytes_per_entry"] = row["bytes"] / row["index_entries"]
        rows.append(row | ({"damage": stops[name]} if name in stops else {}))
    aggregated = {*_AGGREGATES.values(), "written_after_ms"}
    table = pa.Table.from_pylist(rows, pa.schema([column for column in FILES if column.name not in aggregated]))
    return _with_aggregates(table, batches), pa.concat_tables(entries)


def _file_row(log: PartitionLog, ranges: Sequence[BatchRange]) -> dict[str, Any]:
    first = ranges[0]
    info = first.store.stat(first.key)
    return {
        "topic": log.topic,
        "partition": log.partition,
        "file": first.name,
        "kind": first.kind,
        "base_offset": first.base,
        "bytes": sum(each.size for each in ranges),
        "written": None if info is None else info.modified_ms,
    }


_AGGREGATES = {
    ("last_offset", "max"): "last_offset",
    ("size", "count"): "batches",
    ("records", "sum"): "records",
    ("uncompressed_bytes", "sum"): "uncompressed_bytes",
    ("min_timestamp", "min"): "min_timestamp",
    ("max_timestamp", "max"): "max_timestamp",
}
"""The columns of `FILES` that are computed from the batches of a file."""


def _with_aggregates(files: pa.Table, batches: pa.Table) -> pa.Table:
    sums = batches.group_by("file", use_threads=False).aggregate(list(_AGGREGATES))
    names = {f"{name}_{function}": column for (name, function), column in _AGGREGATES.items()}
    sums = sums.rename_columns([names.get(name, name) for name in sums.column_names])
    joined = files.join(sums, "file", use_threads=False).sort_by([("base_offset", "ascending"), ("file", "ascending")])
    after = pc.subtract(joined["written"].cast(pa.int64()), joined["max_timestamp"].cast(pa.int64()))
    joined = joined.append_column("written_after_ms", after)
    return joined.select(FILES.names).cast(FILES)


def _segment_indexes(log: PartitionLog, run: BatchRange, row: dict[str, Any]) -> list[pa.Table]:
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


def _append_index(log: PartitionLog, ranges: Sequence[BatchRange], row: dict[str, Any]) -> list[pa.Table]:
    run = ranges[0]
    data = run.store.get(run.key, run.file_size - run.footer_length, run.footer_length)
    footer = decode_footer(data, file_size=run.file_size, file=run.name)
    row["index_entries"] = 0
    tables = []
    for run in ranges:
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
    run: BatchRange,
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
    """Tables about partitions, sorted by partition and offset, with the schemas in this module and in `batches`."""

    batches: pa.Table
    files: pa.Table
    gaps: pa.Table
    transactions: pa.Table
    index: pa.Table
    bounds: pa.Table
    keys: pa.Table


def inspect_topic(view: LogView, topic: str, partitions: Sequence[int] | None = None) -> Inspected:
    """Inspect all or some partitions of a topic in a root or a Kafka log directory. All bytes of the partitions are
    read.

    Raises `NotFound` if the topic or a partition does not exist, and `BadRequest` if the view is not supported.
    """
    view.refresh([topic])
    bounds = view.bounds(topic)
    chosen = sorted(bounds) if partitions is None else list(dict.fromkeys(partitions))
    for partition in chosen:
        if partition not in bounds:
            raise NotFound(
                f"topic {topic} in {view.location} has no partition {partition}; its partitions are {sorted(bounds)}"
            )
    if isinstance(view, KafkaView):
        states = view.partition_states(topic)
        return _inspected(
            kafka_partition(topic, partition, states[partition], bounds[partition]) for partition in chosen
        )
    if isinstance(view, RootView):
        snapshot = view.snapshot(topic)
        return _inspected(root_partition(snapshot, partition, bounds[partition]) for partition in chosen)
    raise BadRequest(f"expected a sparklog root or a Kafka log directory, found a {type(view).__name__}")


def inspect_file(path: AnyPath) -> Inspected:
    """Inspect a `.log` or `.slices` file. See `file_partitions` for the offsets and transactions."""
    return _inspected(file_partitions(path))


def _inspected(logs: Iterable[PartitionLog]) -> Inspected:
    collected: list[list[pa.Table]] = [[schema.empty_table()] for schema in _SCHEMAS]
    for log in logs:
        table, keys, stops = batch_table(log)
        files, index = file_tables(log, table, stops)
        row = (log.topic, log.partition, log.bounds.log_start, log.bounds.last_stable, log.bounds.log_end)
        bounds = pa.Table.from_pylist([dict(zip(BOUNDS.names, row, strict=True))], BOUNDS)
        tables = (table, files, gap_table(table), transaction_table(table), index, bounds, keys)
        for of_kind, rows in zip(collected, tables, strict=True):
            of_kind.append(rows)
    return Inspected(*map(pa.concat_tables, collected))


_SCHEMAS = (SCHEMA, FILES, GAPS, TRANSACTIONS, INDEX, BOUNDS, KEYS)
