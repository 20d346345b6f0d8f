"""Validate the options of batch reads with `view=table`, and plan the tasks.

All records of a key are in one partition, which is read by one task, so no shuffle is required (see
`sparklog.log.read.table_plan`). Small partitions share a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklog.datasource.offsets import LATEST
from sparklog.datasource.option_table import ISOLATION_LEVELS
from sparklog.datasource.options import Bound, Options, ReadOptions
from sparklog.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from sparklog.datasource.subscription import Subscriber
    from sparklog.log.read.table_plan import AsOf, PartitionTable
    from sparklog.log.state.view import LogView

AS_OF = ("asOfTimestamp", "asOfOffsets")


def check_table(options: Options) -> None:
    """Raise BadRequest for options that do not apply to the requested view."""
    names = sorted(options.given)
    as_of = [name for name in names if name in AS_OF]
    if not options.read.is_table:
        if as_of:
            raise BadRequest(f"Option '{as_of[0]}' requires view=table; use 'endingOffsets' for a log")
        return
    if len(as_of) > 1:
        raise BadRequest("Set either 'asOfTimestamp' or 'asOfOffsets', not both")
    bounds = [name for name in names if name.startswith(("starting", "ending"))]
    if bounds:
        raise BadRequest(
            f"Option '{bounds[0]}' applies only to view=log, because a table is built from all records since the log "
            "start; for an earlier state of the table, set 'asOfTimestamp' or 'asOfOffsets'"
        )
    if options.read.max_records_per_partition is not None:
        raise BadRequest(
            "Option 'maxRecordsPerPartition' applies only to view=log, because a table reads each partition in one task"
        )
    if options.read.isolation != ISOLATION_LEVELS[0]:
        raise BadRequest(f"view=table is built from committed records, like compaction: expected {ISOLATION_LEVELS[0]}")


def reject_table(options: Options) -> None:
    """Raise BadRequest if a stream has options for tables."""
    names = [name for name in AS_OF if name in options.given]
    if options.read.is_table or names:
        name = "view=table" if options.read.is_table else names[0]
        raise BadRequest(
            f"Option '{name}' applies only to batch reads, because a stream returns every record in order; keep the "
            "latest record of each key in the query, or follow the table in Python: sparklog.table(...).follow()"
        )


def table_partitions(view: LogView, subscriber: Subscriber, read: ReadOptions) -> list[InputPartition]:
    """Plan the tasks. Raises BadRequest and NotFound if topics, partitions or offsets in the options do not exist."""
    from sparklog.datasource.read_task import LogPartition, TaskRange, pack
    from sparklog.datasource.starting_offsets import check_listed
    from sparklog.log.read.table_plan import plan_table

    topics = subscriber.take_snapshot()
    partitions = {topic: subscriber.partitions(topic) for topic in topics}
    if read.as_of is not None:
        check_listed(partitions, read.as_of)
    planned = [
        table for topic in topics for table in plan_table(view, topic, _as_of(topic, read.as_of), partitions[topic])
    ]
    tables: dict[object, PartitionTable] = {table.range: table for table in planned}
    ranges = [TaskRange(table.range, table.part.records, table.part.nbytes) for table in planned]
    tasks = pack(ranges, min_partitions=read.min_partitions)
    return [LogPartition([tables[item.range] for item in task]) for task in tasks]


def _as_of(topic: str, bound: Bound | None) -> AsOf:
    if bound is None:
        return None
    if bound.kind == "timestamp":
        return bound.timestamp
    return {partition: offset for partition, offset in bound.offsets[topic].items() if offset != LATEST}
