"""The public functions to read Kafka log directories: `open_view` and the `View` that it returns."""

from __future__ import annotations

import os
from functools import partial

from sparklog.arguments import NAME, PATH, checked
from sparklog.common.settings import one_of
from sparklog.kafka.in_place.segment_recovery import CorruptRecords
from sparklog.log.read.topic_reader import TopicReader
from sparklog.opening import Location, resolve
from sparklog.opening import open_view as open_log_view

CORRUPT_RECORDS = one_of("fail", "skip", "truncate")


class View:
    """The topics of a Kafka log directory or of a root, for reading (see `open_view`)."""

    def __init__(self, location: Location, corrupt_records: CorruptRecords) -> None:
        self._open = partial(open_log_view, location, corrupt_records=corrupt_records)
        self._log = self._open(tailing=False)
        self._topic = location.topic

    def __repr__(self) -> str:
        return f"View({self.location!r})"

    @property
    def location(self) -> str:
        """The path of the directory."""
        return self._log.location

    def topics(self) -> list[str]:
        """Return the topics.

        Returns:
            The names of the topics, sorted, including Kafka's internal topics.
        """
        return self._log.topics() if self._topic is None else [self._topic]

    @checked(name=NAME)
    def topic(self, name: str) -> TopicReader:
        """Return a topic to read.

        Args:
            name: Name of the topic.

        Returns:
            A `TopicReader`, which has the read methods of `Topic`.

        Raises:
            NotFound: If the topic does not exist.
        """
        self._log.refresh([name])
        return TopicReader(name, lambda: self._log, partial(self._open, tailing=True))


@checked(path=PATH, corrupt_records=CORRUPT_RECORDS)
def open_view(path: str | os.PathLike[str], *, corrupt_records: CorruptRecords = "fail") -> View:
    """Open a Kafka log directory to read its topics in place, even while a broker is running. No files are written.

    Args:
        path: A Kafka log directory, one of its partition directories, a root, or a topic directory.
        corrupt_records: `fail` raises `Corrupt` after the records before a corrupt batch. `skip` skips corrupt batches,
            and logs a warning for each. `truncate`, which is supported only for Kafka files, ends the partition before
            its first corrupt batch, like Kafka's recovery.

    Returns:
        A `View` of the topics.

    Raises:
        NotFound: If there is no log at the path.
        BadRequest: If the path is a file, or if the policy is `truncate` and the path is a root.

    Example:
        view = sparklog.open_view("/var/lib/kafka/data")
        for topic in view.topics():
            print(topic, view.topic(topic).scan().to_table().num_rows)
    """
    return View(resolve(os.fspath(path)), corrupt_records)
