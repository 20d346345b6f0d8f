"""A topic as a table, for users: `TopicTable`, the latest record of each key as Arrow.

table = topic.table()
print(table.to_table().num_rows)
live = table.follow()
row = live.get("anna")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.log.journal.arguments import SECONDS, checked
from sparklog.log.read.table_plan import AsOf, TablePlan, plan_table, table_ranges
from sparklog.log.read.topic_scan import check_threads, stream_reader
from sparklog.log.state.view import COLUMNS, RECORD_SCHEMA, LogView, check_columns

if TYPE_CHECKING:
    from sparklog.log.read.followed_table import FollowedTable


@dataclass(frozen=True)
class TopicTable:
    """The latest record of each key, without those that were deleted. Iterate it, as often as wanted, for batches.

    What takes Arrow streams takes a table: `pyarrow.table(table)`, `polars.DataFrame(table)`, a query of DuckDB. Rows
    come partition by partition, the newest first.
    """

    plan: TablePlan
    open_view: Callable[[], LogView]

    def __repr__(self) -> str:
        ends = ", ".join(f"{each.partition}: {each.end}" for each in self.plan.ranges)
        return f"TopicTable({self.plan.topic!r}, as of {{{ends}}})"

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return pa.schema([RECORD_SCHEMA.field(name) for name in self.plan.columns])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        from sparklog.log.read.latest_by_key import latest_records

        return latest_records(self.plan.partitions, self.plan.columns, threads=self.plan.threads)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, batch by batch."""
        return iter(self)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a `RecordBatchReader`. Records are read as the reader is."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """Read all rows into a `pyarrow.Table`."""
        return pa.Table.from_batches(list(self), self.schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's stream protocol: Polars, DuckDB, pandas (`DataFrame.from_arrow`) and others take a table as it is."""
        return stream_reader(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        """Refuse: numpy, and `pandas.DataFrame(table)` through it, would make one cell of each batch of records."""
        raise BadRequest("a table is no array: use table.to_table(), and its to_pandas() for a DataFrame")

    @checked(poll=SECONDS.or_none())
    def follow(self, *, poll: float | None = None) -> FollowedTable:
        """Read the table into memory, to be kept up to date: from its state on, that of an earlier time, too.

        Args:
            poll: seconds after which a question looks for new records first; None: only `refresh` and `wait` do.

        Returns:
            A mapping of keys to rows.

        Raises:
            Conflict: the topic was deleted and created again.

        Example:
            live = topic.table().follow()
            topic.append(pa.table({"key": ["dora"], "value": ["desk"]}))
            assert live.wait(10)
            print(live["dora"]["value"][0], len(live))
        """
        from sparklog.log.read.followed_table import FollowedTable

        return FollowedTable(self.plan, self.open_view(), poll)


def open_table(
    view: LogView,
    topic: str,
    open_view: Callable[[], LogView],
    as_of: AsOf = None,
    columns: Sequence[str] = COLUMNS,
    threads: int = 1,
) -> TopicTable:
    """Plan the table of a topic, from a new snapshot of the view; `open_view` gives others, to follow it."""
    checked = check_columns(columns)
    check_threads(threads)
    view.refresh([topic])
    ranges = table_ranges(view, topic, as_of)
    ends = {each.partition: each.end for each in ranges}
    planned = plan_table(view, topic, ends)
    plan = TablePlan(topic, view.topic_id(topic), tuple(ranges), tuple(planned), checked, threads)
    return TopicTable(plan, open_view)
