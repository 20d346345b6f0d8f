"""`TopicTable`, the public class for reading a topic as a table. The table contains the latest record of each key as
Arrow data.

table = topic.table()
print(table.to_table().num_rows)
live = table.follow()
row = live.get("anna")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sparklog.arguments import SECONDS, checked
from sparklog.log.read.record_batches import RecordBatches, schema_of
from sparklog.log.read.table_plan import AsOf, TablePlan, plan_table, table_ranges
from sparklog.log.read.topic_scan import check_threads
from sparklog.log.state.view import COLUMNS, LogView, check_columns

if TYPE_CHECKING:
    from sparklog.log.read.followed_table import FollowedTable


@dataclass(frozen=True)
class TopicTable(RecordBatches):
    """The latest record of each key, without deleted keys. Each iteration reads the rows as record batches.

    A table can be passed to any function that accepts an Arrow stream: `pyarrow.table(table)`,
    `polars.DataFrame(table)`, a DuckDB query. Rows are ordered by partition, with the latest record first.
    """

    plan: TablePlan
    open_view: Callable[[], LogView]
    noun = "table"

    def __repr__(self) -> str:
        ends = ", ".join(f"{offsets.partition}: {offsets.end}" for offsets in self.plan.ranges)
        return f"TopicTable({self.plan.topic!r}, as of {{{ends}}})"

    @property
    def schema(self) -> pa.Schema:
        """The schema of each record batch."""
        return schema_of(self.plan.columns)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        from sparklog.log.read.latest_by_key import latest_records

        return latest_records(self.plan.partitions, self.plan.columns, threads=self.plan.threads)

    @checked(poll=SECONDS.or_none())
    def follow(self, *, poll: float | None = None) -> FollowedTable:
        """Read the table into memory, and then follow the topic. The table may also be a table as of an earlier time.

        Args:
            poll: Maximum age of the table in seconds. If the table is older when it is accessed, it is refreshed first.
                If None, only `refresh` and `wait` refresh the table.

        Returns:
            A mapping of keys to rows.

        Raises:
            Conflict: If the topic was deleted and recreated.

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
    """Plan the table of a topic from a new snapshot of the view. `open_view` opens a view to follow the table."""
    checked = check_columns(columns)
    check_threads(threads)
    view.refresh([topic])
    ranges = table_ranges(view, topic, as_of)
    ends = {offsets.partition: offsets.end for offsets in ranges}
    planned = plan_table(view, topic, ends)
    plan = TablePlan(topic, view.topic_id(topic), tuple(ranges), tuple(planned), checked, threads)
    return TopicTable(plan, open_view)
