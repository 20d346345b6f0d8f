"""Batch reads with `view=table`: the options that go with it, and the tasks.

A key is in one partition, so each is read by one task, and nothing is shuffled: see `sparklog.log.read.table_plan`.
Small partitions share a task.
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
    """Refuse what does not go with the view that is asked for."""
    names = sorted(options.given)
    as_of = [name for name in names if name in AS_OF]
    if not options.read.is_table:
        if as_of:
            raise BadRequest(f"Option '{as_of[0]}' goes with view=table only: a log is read up to 'endingOffsets'")
        return
    if len(as_of) > 1:
        raise BadRequest("Give one of 'asOfTimestamp' and 'asOfOffsets', not both")
    bounds = [name for name in names if name.startswith(("starting", "ending"))]
    if bounds:
        raise BadRequest(
            f"Option '{bounds[0]}' is for view=log: a table is made of all records from the log start on; give "
            "'asOfTimestamp' or 'asOfOffsets' for one of earlier"
        )
    if options.read.max_records_per_partition is not None:
        raise BadRequest("Option 'maxRecordsPerPartition' is for view=log: a table reads a partition in one task")
    if options.read.isolation != ISOLATION_LEVELS[0]:
        raise BadRequest(f"view=table is made of committed records, as compaction is: expected {ISOLATION_LEVELS[0]}")


def refuse_table(options: Options) -> None:
    """Refuse the options of tables, in a stream."""
    names = [name for name in AS_OF if name in options.given]
    if options.read.is_table or names:
        name = "view=table" if options.read.is_table else names[0]
        raise BadRequest(
            f"Option '{name}' is for batch reads: a stream gives every record, in the order of its partition; keep "
            "the latest of each key in the query, or follow the table in Python: sparklog.table(...).follow()"
        )


def table_partitions(view: LogView, subscriber: Subscriber, read: ReadOptions) -> list[InputPartition]:
    """Plan the tasks. Raises BadRequest and NotFound for what the options name and is not there."""
    from sparklog.datasource.read_task import LogPartition, TaskRange, pack
    from sparklog.datasource.starting_offsets import check_listed
    from sparklog.log.read.table_plan import plan_table

    topics = subscriber.take()
    partitions = {topic: subscriber.partitions(topic) for topic in topics}
    if read.as_of is not None:
        check_listed(partitions, read.as_of)
    planned = [
        table for topic in topics for table in plan_table(view, topic, _of(topic, read.as_of), partitions[topic])
    ]
    tables: dict[object, PartitionTable] = {table.range: table for table in planned}
    pieces = [TaskRange(table.range, table.part.records, table.part.nbytes) for table in planned]
    tasks = pack(pieces, min_partitions=read.min_partitions)
    return [LogPartition([tables[piece.range] for piece in task]) for task in tasks]


def _of(topic: str, bound: Bound | None) -> AsOf:
    if bound is None:
        return None
    if bound.kind == "timestamp":
        return bound.timestamp
    return {partition: offset for partition, offset in bound.offsets[topic].items() if offset != LATEST}
