"""The public read methods of a topic. `View.topic(name)` returns a `TopicReader`, and `Topic` is a subclass of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sparklog.arguments import KEY, NUMBER, NUMBERS, TIME, checked
from sparklog.common.settings import int64
from sparklog.common.times import warn_of_seconds
from sparklog.log.read.read_plan import check_isolation
from sparklog.log.state.view import (
    COLUMNS,
    READ_COMMITTED,
    Bounds,
    IsolationLevel,
    LogView,
    TimestampOffset,
    check_columns,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.log.read.table_plan import AsOf
    from sparklog.log.read.topic_scan import Position, Scan
    from sparklog.log.read.topic_table import TopicTable


class TopicReader:
    """Reads a topic of a root or of a Kafka log directory. Each call reads the latest state of the topic.

    Example:
        reader = sparklog.open_view("/data/log").topic("orders")
        print(reader.bounds()[0].log_end, reader.scan(columns=["value"]).to_table().num_rows)
    """

    def __init__(self, name: str, open_view: Callable[[], LogView], open_tail: Callable[[], LogView]) -> None:
        self.name = name
        self._open_view = open_view
        self._open_tail = open_tail

    def _latest_view(self) -> LogView:
        view = self._open_view()
        view.refresh([self.name])
        return view

    def bounds(self) -> Mapping[int, Bounds]:
        """Return the bounds of each partition.

        Returns:
            The offsets `log_start`, `last_stable` (the end for read_committed), `high_watermark` and `log_end` of each
            partition.

        Raises:
            NotFound: If the topic does not exist.
        """
        return self._latest_view().bounds(self.name)

    @checked(partitions=NUMBERS.or_none(), batch_bytes=int64(1))
    def scan(
        self,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
        isolation_level: IsolationLevel = READ_COMMITTED,
        columns: Sequence[str] = COLUMNS,
        batch_bytes: int = 4 << 20,
        threads: int = 1,
        keys: Iterable[bytes | str] | None = None,
    ) -> Scan:
        """Plan a read of records. Iterate the scan, call `to_table()`, or pass it to an Arrow library.

        Args:
            partitions: Partitions to read. If None, all partitions are read or, if `keys` is set, the partitions that
                Kafka's default partitioner selects for `keys`.
            start: First offset: `earliest`, `latest`, an offset, or one of these values per partition.
            end: End offset (exclusive), in the same forms.
            isolation_level: `read_committed` skips aborted and open records, `read_uncommitted` does not.
            columns: Columns to read: key, value, topic, partition, offset, timestamp, timestampType, headers. If empty,
                batches contain only a number of rows.
            batch_bytes: Approximate size of a record batch.
            threads: Number of threads that decode records. It does not affect the order of the records.
            keys: Read only records with one of these keys.

        Returns:
            A `Scan` of the current records. No records are read yet.

        Raises:
            NotFound: If the topic, a partition or an offset does not exist.
            BadRequest: If an argument is invalid.

        Example:
            for batch in topic.scan(partitions=[0], start=1, columns=["offset", "value"]):
                print(batch.num_rows)
        """
        from sparklog.log.read.key_lookup import KeySet
        from sparklog.log.read.topic_scan import Scan, check_threads, scan_ranges

        check_isolation(isolation_level)
        checked_columns = check_columns(columns)
        check_threads(threads)
        view = self._latest_view()
        key_set = None if keys is None else KeySet.of(keys, anywhere=partitions is not None)
        ranges = scan_ranges(view, self.name, partitions, start, end, isolation_level)
        if key_set is None:
            parts = view.plan(ranges, isolation_level)
        else:
            parts = key_set.parts(view.plan(key_set.ranges(view, ranges), isolation_level))
        return Scan(tuple(parts), checked_columns, batch_bytes, threads, key_set)

    @checked()
    def table(self, *, as_of: AsOf = None, columns: Sequence[str] = COLUMNS, threads: int = 1) -> TopicTable:
        """Plan a read of the latest record of each key: see `sparklog.table`.

        Args:
            as_of: Time in ms or ISO 8601, or end offsets (exclusive) by partition. If None, the current table is read.
            columns: As in `scan`.
            threads: As in `scan`.

        Returns:
            A `TopicTable`. No records are read yet.

        Raises:
            NotFound: If the topic or an offset does not exist, or if records below the requested
                offset or time have been removed by compaction or retention.
            BadRequest: If an argument is invalid.
        """
        from sparklog.log.read.topic_table import open_table

        warn_of_seconds(as_of=as_of)
        return open_table(self._open_view(), self.name, self._open_tail, as_of, columns, threads)

    @checked(timestamp_ms=TIME, partition=NUMBER.or_none())
    def offset_for_timestamp(
        self, timestamp_ms: int, partition: int | None = None, isolation_level: IsolationLevel = READ_COMMITTED
    ) -> dict[int, TimestampOffset | None]:
        """Look up the first record at or after a time.

        Args:
            timestamp_ms: Milliseconds since 1970.
            partition: Partition to search, or None for all partitions.
            isolation_level: As in `scan`.

        Returns:
            The offset and timestamp of the record by partition, or None if a partition has no such record.

        Raises:
            NotFound: If the topic or the partition does not exist.

        Example:
            print(topic.offset_for_timestamp(0))
        """
        warn_of_seconds(timestamp_ms=timestamp_ms)
        view = self._latest_view()
        partitions = view.bounds(self.name) if partition is None else (partition,)
        return view.offsets_for_timestamps(self.name, dict.fromkeys(partitions, timestamp_ms), isolation_level)

    @checked(partition=NUMBER, offset=NUMBER)
    def record_at(
        self, partition: int, offset: int, isolation_level: IsolationLevel = READ_COMMITTED
    ) -> pa.RecordBatch:
        """Return the record at an offset as one row with all columns.

        Args:
            partition: Partition of the record.
            offset: Offset of the record.
            isolation_level: As in `scan`.

        Returns:
            A record batch with one row.

        Raises:
            NotFound: If the offset is out of range, or has no record (compacted, a marker, or aborted).

        Example:
            print(topic.record_at(1, 0)["value"][0])
        """
        from sparklog.log.read.key_lookup import record_at

        missing = (
            f"offset {offset} of {self.name}-{partition} does not contain a record, because the record was "
            "compacted or aborted, or the offset contains a transaction marker"
        )
        return record_at(self._latest_view(), self.name, partition, offset, isolation_level, missing)

    @checked(key=KEY, partition=NUMBER.or_none())
    def get(
        self,
        key: bytes | str,
        *,
        partition: int | None = None,
        all_partitions: bool = False,
        isolation_level: IsolationLevel = READ_COMMITTED,
    ) -> pa.RecordBatch | None:
        """Look up the latest record of a key.

        Args:
            key: Key of the record.
            partition: Partition to search. If None, the partitions that Kafka's default partitioner selects for the
                key, for the current and previous partition counts, are searched.
            all_partitions: Search all partitions, to find records that were written to an explicit partition.
            isolation_level: As in `scan`.

        Returns:
            One row with all columns, or None if there is no record. If the key was deleted, the value is null.

        Raises:
            NotFound: If the topic or the partition does not exist.

        Example:
            record = topic.get("anna")
            print(record["value"][0])
        """
        from sparklog.log.read.key_lookup import latest_record

        view = self._latest_view()
        partitions = sorted(view.bounds(self.name)) if all_partitions else None if partition is None else [partition]
        key_bytes = key.encode() if isinstance(key, str) else key
        return latest_record(view, self.name, key_bytes, partitions=partitions, isolation=isolation_level)
