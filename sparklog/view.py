"""Directories of Kafka's to read, for users: `open_view`, and the `View` that it returns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparklog.kafka.in_place.segment_recovery import CorruptRecords
from sparklog.log.journal.arguments import NAME, NUMBERS, PATH, TIME, checked, one_of
from sparklog.log.journal.clocks import warn_of_seconds
from sparklog.log.read.topic_scan import Position, Scan, scan
from sparklog.log.state.view import COLUMNS, Bounds, IsolationLevel, LogView, TimestampOffset
from sparklog.opening import open_view as open_log_view
from sparklog.opening import resolve

CORRUPT_RECORDS = one_of("fail", "skip", "truncate")


@dataclass(frozen=True)
class View:
    """Topics of a Kafka directory, or of a root, to read: see `open_view`."""

    log: LogView
    topic: str | None = None

    @property
    def location(self) -> str:
        """The path of the directory."""
        return self.log.location

    def topics(self) -> list[str]:
        """Names of all topics, sorted; Kafka's internal ones are among them."""
        return self.log.topics() if self.topic is None else [self.topic]

    @checked(topic=NAME)
    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        """Log start, last stable offset and log end of each partition, as of now."""
        self.log.refresh([topic])
        return self.log.bounds(topic)

    @checked(topic=NAME, partitions=NUMBERS.or_none())
    def scan(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
        isolation_level: IsolationLevel = "read_committed",
        columns: Sequence[str] = COLUMNS,
        keys: Iterable[bytes | str] | None = None,
    ) -> Scan:
        """Return the records of a topic, as it is now; the arguments are those of `Topic.scan`."""
        self.log.refresh([topic])
        bounds: dict[str, Any] = {"partitions": partitions, "start": start, "end": end}
        return scan(self.log, topic, **bounds, isolation=isolation_level, columns=columns, keys=keys)

    @checked(topic=NAME, timestamp_ms=TIME)
    def offset_for_timestamp(
        self, topic: str, timestamp_ms: int, isolation_level: IsolationLevel = "read_committed"
    ) -> dict[int, TimestampOffset | None]:
        """Return, per partition, the first record at or after a time (ms): its offset and time, or None."""
        warn_of_seconds(timestamp_ms=timestamp_ms)
        targets = dict.fromkeys(self.bounds(topic), timestamp_ms)
        return self.log.offsets_for_timestamps(topic, targets, isolation_level)


@checked(path=PATH, corrupt_records=CORRUPT_RECORDS)
def open_view(path: str | os.PathLike[str], *, corrupt_records: CorruptRecords = "fail") -> View:
    """Open a directory of Kafka's to read its topics where it lies, also under a running broker. Nothing is written.

    Args:
        path: a Kafka log directory, one partition folder of it, a root, or a topic's folder.
        corrupt_records: what damage in Kafka's files does: `fail` with `Corrupt`, `skip` the damaged batches, or
            `truncate` the partition in front of its first damage, as Kafka's recovery does.

    Returns:
        A `View`: topics, bounds, scans.

    Raises:
        NotFound: there is no log at the path.
        BadRequest: the path is a file, or damage of a root is to be passed over.

    Example:
        view = sparklog.open_view("/var/lib/kafka/data")
        for topic in view.topics():
            print(topic, view.scan(topic).to_table().num_rows)
    """
    location = resolve(os.fspath(path))
    return View(open_log_view(location, tailing=False, corrupt_records=corrupt_records), location.topic)
