"""Tables made from the batches of a partition: its files with their indexes, its gaps, its transactions.

All tables of a topic, a partition or a file at once: `notebooks/dump_segment.ipynb` draws them.

tables = inspect_topic(open_view(resolve("/data/kafka-logs"), tailing=False), "orders")
tables.batches.group_by("codec").aggregate([("size", "sum")])
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format.append_file import decode_footer
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.state.view import LogView
from sparklog.log.topic.root import RootView
from sparklog.tools.inspection import batches as batches_
from sparklog.tools.inspection.batches import TIME, Stop
from sparklog.tools.inspection.runs import APPEND, PartitionLog, Run, of_file, of_kafka, of_root

GAPS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("missing", pa.int64()),
        ("where", pa.string()),
    ]
)
"""Offsets `[start, end)` of which `missing` hold no record: `between batches` all of them, `inside a batch` some."""

TRANSACTIONS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("transaction", pa.string()),
        ("producer_id", pa.int64()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("outcome", pa.string()),
        ("batches", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("first_timestamp", TIME),
        ("last_timestamp", TIME),
    ]
)
"""One row per transaction and partition. `last_offset` is that of its marker where it has one (Kafka's)."""

FILES = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("file", pa.string()),
        ("kind", pa.string()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("bytes", pa.int64()),
        ("batches", pa.int64()),
        ("records", pa.int64()),
        ("uncompressed_bytes", pa.int64()),
        ("min_timestamp", TIME),
        ("max_timestamp", TIME),
        ("written", TIME),
        ("written_after_ms", pa.int64()),
        ("index_entries", pa.int64()),
        ("bytes_per_entry", pa.float64()),
        ("time_index_entries", pa.int64()),
        ("damage", pa.string()),
    ]
)
"""One row per file and partition, `bytes` those of its batches.

* `written`: when the file was last written, by the clock of its disk or store
* `written_after_ms`: how much later than its newest record that was: the delay of an append, or the time until Kafka or
  maintenance wrote the file as it is; below 0 where producers' clocks are ahead
* `bytes_per_entry`: how much a reader that seeks may have to read in vain; null without an index
"""

INDEX = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("file", pa.string()),
        ("index", pa.string()),
        ("offset", pa.int64()),
        ("position", pa.int64()),
        ("timestamp", TIME),
    ]
)
"""Entries of `.index` (offset, position), `.timeindex` (timestamp, offset) and of the footers of append files (all)."""


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
    chosen = batches.filter(
        pc.or_(batches["transactional"], pc.is_in(batches["control"], pa.array(["commit", "abort"], pa.string())))
    )
    if not len(chosen):
        return TRANSACTIONS.empty_table()
    marker = chosen["outcome"].combine_chunks().to_numpy(zero_copy_only=False) == "marker"
    names = pc.fill_null(chosen["transaction"].combine_chunks(), "").dictionary_encode()
    owner = names.indices.to_numpy()
    producer = chosen["producer_id"].to_numpy()
    order = np.lexsort((chosen["base_offset"].to_numpy(), producer, owner))
    chosen = chosen.take(pa.array(order))
    marker, owner, producer = marker[order], owner[order], producer[order]
    # A transaction begins where its owner changes, and behind a marker.
    starts = np.ones(len(order), np.bool_)
    starts[1:] = (owner[1:] != owner[:-1]) | (producer[1:] != producer[:-1]) | marker[:-1]
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(order)) - 1
    table = _transactions(chosen, first, last, marker)
    # A marker alone ended nothing here: its transaction had no records in this partition, or cleaning took them.
    return table.filter(pc.greater(table["batches"], 0)).sort_by("first_offset")


def _transactions(
    rows: pa.Table, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64], marker: npt.NDArray[np.bool_]
) -> pa.Table:
    data = (~marker).astype(np.int64)

    def total(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.add.reduceat(values.astype(np.int64) * data, first)

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
            "first_offset": rows["base_offset"].to_numpy()[first],
            "last_offset": rows["last_offset"].to_numpy()[last],
            "outcome": text("outcome"),
            "batches": np.add.reduceat(data, first),
            "records": total(rows["records"].to_numpy()),
            "bytes": total(rows["size"].to_numpy()),
            "first_timestamp": pa.array(begun, mask=begun == 2**62).cast(TIME),
            "last_timestamp": pa.array(ended, mask=ended < 0).cast(TIME),
        }
    ).cast(TRANSACTIONS)


@dataclass
class _File:
    """A file's runs, the number of its indexes' entries, and its damage."""

    runs: list[Run]
    offset_entries: int | None = None
    time_entries: int | None = None
    damage: str | None = None


def file_tables(log: PartitionLog, batches: pa.Table, stops: list[Stop]) -> tuple[pa.Table, pa.Table]:
    """Return the files of a partition (`FILES`), in offset order, and the entries of their indexes (`INDEX`)."""
    files: dict[str, _File] = {}
    for run in log.runs:
        files.setdefault(run.name, _File([])).runs.append(run)
    entries: list[pa.Table] = []
    for name, file in files.items():
        try:
            entries += _append_index(log, file) if file.runs[0].kind == APPEND else _segment_indexes(log, file)
        except Corrupt as error:
            file.damage = error.message
        for stop in stops:
            if stop.file == name:
                file.damage = f"no batch at byte {stop.position}: {stop.reason}"
    rows = [_file_row(log, name, file) for name, file in files.items()]
    plain = pa.Table.from_pylist(rows, pa.schema([FILES.field(each) for each in _FILE_COLUMNS]))
    index = pa.concat_tables(entries) if entries else INDEX.empty_table()
    return _with_batches(plain, batches), index


_FILE_COLUMNS = (
    *("topic", "partition", "file", "kind", "base_offset", "bytes", "written", "index_entries", "bytes_per_entry"),
    *("time_index_entries", "damage"),
)


def _file_row(log: PartitionLog, name: str, file: _File) -> dict[str, object]:
    info = file.runs[0].store.stat(file.runs[0].key)
    nbytes = sum(run.size for run in file.runs)
    return {
        "topic": log.topic,
        "partition": log.partition,
        "file": name,
        "kind": file.runs[0].kind,
        "base_offset": file.runs[0].base,
        "bytes": nbytes,
        "written": None if info is None else info.modified_ms,
        "index_entries": file.offset_entries,
        "bytes_per_entry": nbytes / file.offset_entries if file.offset_entries else None,
        "time_index_entries": file.time_entries,
        "damage": file.damage,
    }


def _with_batches(files: pa.Table, batches: pa.Table) -> pa.Table:
    sums = batches.group_by("file", use_threads=False).aggregate(
        [
            ("last_offset", "max"),
            ("size", "count"),
            ("records", "sum"),
            ("uncompressed_bytes", "sum"),
            ("min_timestamp", "min"),
            ("max_timestamp", "max"),
        ]
    )
    names = {
        "last_offset_max": "last_offset",
        "size_count": "batches",
        "records_sum": "records",
        "uncompressed_bytes_sum": "uncompressed_bytes",
        "min_timestamp_min": "min_timestamp",
        "max_timestamp_max": "max_timestamp",
    }
    sums = sums.rename_columns([names.get(name, name) for name in sums.column_names])
    joined = files.join(sums, "file", use_threads=False).sort_by([("base_offset", "ascending"), ("file", "ascending")])
    after = pc.subtract(joined["written"].cast(pa.int64()), joined["max_timestamp"].cast(pa.int64()))
    joined = joined.append_column("written_after_ms", after)
    return joined.select(FILES.names).cast(FILES)


def _segment_indexes(log: PartitionLog, file: _File) -> list[pa.Table]:
    run = file.runs[0]
    tables = []
    if (data := _beside(run, "index")) is not None:
        offsets = OffsetIndex.parse(data, run.base, file=run.name)
        file.offset_entries = len(offsets)
        tables.append(_entries(log, run, ".index", offsets.offsets, offsets.positions, None))
    if (data := _beside(run, "timeindex")) is not None:
        times = TimeIndex.parse(data, run.base, file=run.name)
        file.time_entries = len(times)
        tables.append(_entries(log, run, ".timeindex", times.offsets, None, times.timestamps))
    return tables


def _beside(run: Run, suffix: str) -> bytes | None:
    try:
        return run.store.get(f"{run.key.removesuffix('.log')}.{suffix}")
    except NotFound:
        return None


def _append_index(log: PartitionLog, file: _File) -> list[pa.Table]:
    run = file.runs[0]
    data = run.store.get(run.key, run.file_size - run.footer_length, run.footer_length)
    footer = decode_footer(data, file_size=run.file_size, file=run.name)
    file.offset_entries = 0
    tables = []
    for each in file.runs:
        entry = footer.at(each.position)
        if entry is None or entry.index is None:
            continue
        index = entry.index
        file.offset_entries += len(index)
        times = np.where(index.max_ts < 0, -1, index.max_ts)
        tables.append(_entries(log, each, "footer", index.offset + each.shift, index.position + each.position, times))
    return tables


def _entries(
    log: PartitionLog,
    run: Run,
    index: str,
    offsets: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64] | None,
    times: npt.NDArray[np.int64] | None,
) -> pa.Table:
    rows = len(offsets)
    nothing = pa.nulls(rows, pa.int64())
    return pa.table(
        {
            "topic": pa.array([log.topic] * rows, pa.string()),
            "partition": np.full(rows, log.partition, np.int32),
            "file": pa.array([run.name] * rows, pa.string()),
            "index": pa.array([index] * rows, pa.string()),
            "offset": offsets,
            "position": nothing if positions is None else positions,
            "timestamp": (nothing if times is None else pa.array(times, mask=times < 0)).cast(TIME),
        }
    ).cast(INDEX)


BOUNDS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("log_start", pa.int64()),
        ("last_stable", pa.int64()),
        ("log_end", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Inspected:
    """The contents of some partitions, by partition and offset.

    * `batches`: `sparklog.tools.inspection.batches.SCHEMA`; `files`, `gaps`, `transactions`, `index`: the schemas of
      `sparklog.tools.inspection.inspect`
    * `bounds`: log start, last stable offset and log end of each partition
    """

    batches: pa.Table
    files: pa.Table
    gaps: pa.Table
    transactions: pa.Table
    index: pa.Table
    bounds: pa.Table


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


def inspect_file(path: str | os.PathLike[str]) -> Inspected:
    """Inspect one `.log` or `.slices` file: see `sparklog.tools.inspection.runs.of_file`."""
    return _inspected(of_file(path))


def _inspected(logs: Iterable[PartitionLog]) -> Inspected:
    parts: list[Inspected] = []
    for log in logs:
        table, stops = batches_.batch_table(log)
        files, index = file_tables(log, table, stops)
        row = (log.topic, log.partition, log.bounds.log_start, log.bounds.last_stable, log.bounds.log_end)
        bounds = pa.Table.from_pylist([dict(zip(BOUNDS.names, row, strict=True))], BOUNDS)
        parts.append(Inspected(table, files, gap_table(table), transaction_table(table), index, bounds))
    if not parts:
        return Inspected(*(schema.empty_table() for schema in _SCHEMAS))
    return Inspected(*(pa.concat_tables([getattr(each, name) for each in parts]) for name in Inspected.__slots__))


_SCHEMAS = (batches_.SCHEMA, FILES, GAPS, TRANSACTIONS, INDEX, BOUNDS)
