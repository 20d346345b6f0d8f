"""All tables of a topic, a partition or a file at once: `notebooks/dump_segment.ipynb` draws them.

tables = inspect_topic(open_view(resolve("/data/kafka-logs"), tailing=False), "orders")
tables.batches.group_by("codec").aggregate([("size", "sum")])
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparklog.errors import BadRequest, NotFound
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.state.view import LogView
from sparklog.log.topic.root_view import RootView
from sparklog.tools.inspection import batches as batches_
from sparklog.tools.inspection import tables
from sparklog.tools.inspection.runs import PartitionLog, of_file, of_kafka, of_root

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
      `sparklog.tools.inspection.tables`
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
        files, index = tables.file_tables(log, table, stops)
        row = (log.topic, log.partition, log.bounds.log_start, log.bounds.last_stable, log.bounds.log_end)
        bounds = pa.Table.from_pylist([dict(zip(BOUNDS.names, row, strict=True))], BOUNDS)
        parts.append(Inspected(table, files, tables.gap_table(table), tables.transaction_table(table), index, bounds))
    if not parts:
        return Inspected(*(schema.empty_table() for schema in _SCHEMAS))
    return Inspected(*(pa.concat_tables([getattr(each, name) for each in parts]) for name in Inspected.__slots__))


_SCHEMAS = (batches_.SCHEMA, tables.FILES, tables.GAPS, tables.TRANSACTIONS, tables.INDEX, BOUNDS)
