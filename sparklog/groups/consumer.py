"""A consumer in plain Python: reads topics and commits the offsets of its group.

It is Kafka's consumer with one instance per group. The newest instance owns all partitions of its topics and fences an
older one at its next commit or heartbeat. All work is done inside the calls; no thread runs in the background: a
consumer that does not `poll` for longer than its session timeout counts as gone.

Records come partition by partition in offset order. Compacted offsets and markers are passed over, under read_committed
aborted records too. Nothing is read past the last stable offset.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np
import pyarrow as pa

from sparklog.errors import BadRequest, Conflict, Fenced, NotFound, SparklogError, Unavailable
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import SESSION_TIMEOUT_MS, Group, Membership, Offsets
from sparklog.groups.group_state import CommittedOffset, GroupMetadata
from sparklog.log.journal.arguments import NAME, NAMES, NUMBER, POSITIONS, SECONDS, ArgumentKind, checked, whole
from sparklog.log.journal.names import is_topic_name
from sparklog.log.read.read_plan import check_isolation, read_parts
from sparklog.log.state.view import COLUMNS, Bounds, IsolationLevel, OffsetRange, check_columns
from sparklog.log.topic.root import ROOT, Root, RootView, open_root
from sparklog.storage.retries import SETTLE_MS, Backoff
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOG = logging.getLogger("sparklog.groups")
OffsetReset = Literal["earliest", "latest", "none"]
EARLIEST, LATEST, NONE = "earliest", "latest", "none"


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """Options of a consumer: see `consumer`."""

    auto_offset_reset: OffsetReset = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    isolation_level: IsolationLevel = "read_committed"
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    max_poll_records: int | None = None
    columns: Sequence[str] = COLUMNS
    instance: str | None = None

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in (EARLIEST, LATEST, NONE):
            raise BadRequest(f"auto_offset_reset is {EARLIEST}, {LATEST} or {NONE}, found {self.auto_offset_reset!r}")
        check_isolation(self.isolation_level)
        check_columns(self.columns)


class ConsumerKeywords(TypedDict, total=False):
    """The fields of `ConsumerOptions`, as keyword arguments."""

    auto_offset_reset: OffsetReset
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: IsolationLevel
    session_timeout_ms: int
    max_poll_records: int | None
    columns: Sequence[str]
    instance: str | None


@checked(
    ConsumerOptions,
    root=ROOT,
    group=NAME,
    topics=ArgumentKind("a name or a list of names", lambda value: NAME.accepts(value) or NAMES.accepts(value)),
    auto_commit_interval_ms=NUMBER,
    session_timeout_ms=NUMBER,
    max_poll_records=whole(1).or_none(),
    instance=NAME.or_none(),
)
def consumer(
    root: Root | Store | str | os.PathLike[str],
    group: str,
    *,
    topics: str | Sequence[str],
    **options: Unpack[ConsumerKeywords],
) -> Consumer:
    """Join a consumer group, and read topics from its committed offsets on.

    Args:
        root: an open root, or its location.
        group: the id of the group; it is made if there is none.
        topics: one name, or several.
        auto_offset_reset: where a partition begins whose committed offset is missing or out of range; `none` raises
            `NotFound`.
        enable_auto_commit: commit what `poll` has returned at the next `poll`, and on `close`.
        auto_commit_interval_ms: how often, at most.
        isolation_level: `read_committed` leaves out what is aborted or open.
        session_timeout_ms: a consumer that does not `poll` for longer counts as gone.
        max_poll_records: of one `poll` at most; None: as many as are read at once.
        columns: of the record batches.
        instance: a name of this member; default: a new one. A new instance fences the one before.

    Returns:
        A `Consumer`, to be closed or used as a context manager.

    Raises:
        NotFound: a topic does not exist.
        Unavailable: a transaction has offsets of the group pending for more than a minute.

    Example:
        with sparklog.consumer("/data/log", "billing", topics="orders", auto_offset_reset="earliest") as consumer:
            for batch in consumer.poll(timeout=1.0):
                print(batch.num_rows)
    """
    opened = root if isinstance(root, Root) else open_root(root)
    return Consumer(opened, group, [topics] if isinstance(topics, str) else list(topics), ConsumerOptions(**options))


class Consumer:
    """A member of a consumer group that reads topics: see `consumer`. Not safe to share between threads."""

    def __init__(self, root: Root, group: str, topics: Sequence[str], options: ConsumerOptions) -> None:
        _check_topics(topics)
        self.isolation = options.isolation_level
        self.topics = tuple(dict.fromkeys(topics))
        self.auto_commit_interval_ms = options.auto_commit_interval_ms if options.enable_auto_commit else None
        self._root = root
        self._env = root.env
        self._view = RootView(root)
        self._reset = options.auto_offset_reset
        self.max_poll_records = options.max_poll_records
        self._columns = tuple(options.columns)
        self._view.refresh(self.topics)
        self._ids = {topic: self._view.topic_id(topic) for topic in self.topics}
        self._bounds = {topic: self._view.bounds(topic) for topic in self.topics}
        self.group = Group(root, group)
        self.membership: Membership = self.group.join(options.instance, session_timeout_ms=options.session_timeout_ms)
        self.membership.topic_ids.update(self._ids)
        self._committed_at = self._env.now()
        self._kept: dict[TopicPartition, int] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._stream: Iterator[pa.RecordBatch] | None = None
        self._waiting: deque[pa.RecordBatch] = deque()
        self._closed = False
        try:
            self.seek_to_committed()
        except SparklogError:
            self.membership.leave()
            raise

    def __repr__(self) -> str:
        return f"Consumer({self.group.id!r}, {self._root.location!r}, {', '.join(self.topics)})"

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What was being worked on when it failed is not done.
        self.close(commit=kind is None)

    # -- reading

    @checked(timeout=SECONDS)
    def poll(self, timeout: float = 0.0) -> list[pa.RecordBatch]:
        """Read the next records.

        Args:
            timeout: seconds to wait for some, where there are none yet.

        Returns:
            Record batches, with the columns that were asked for; empty if nothing came.

        Raises:
            BadRequest: the consumer is closed.
            Fenced: a newer consumer of the group took over.
            Conflict: a topic was deleted or created again.
            NotFound: offsets that were not read are gone, under `auto_offset_reset="none"`.
        """
        self._check_open()
        begun = self._env.now()
        while True:
            self._keep_up()
            batches = self._take()
            if batches:
                return batches
            self._view.follow(self.topics)
            self._take_bounds()
            ranges = [wanted for topic in self.topics for wanted in self._ranges(topic)]
            if ranges:
                self._stream = self._read(ranges)
                continue
            left_ms = timeout * 1000 - self._env.now().elapsed_ms(begun)
            if left_ms <= 0:
                return []
            self._env.sleep(min(self._view.poll_interval_ms, left_ms) / 1000)

    def _take(self) -> list[pa.RecordBatch]:
        """Hand out batches that have been read, or read one more; positions move after them."""
        if not self._waiting and self._stream is not None:
            try:
                self._waiting.append(next(self._stream))
            except StopIteration:
                self._stream = None
            except NotFound as error:
                # Deleted before they were read: where to go on is for the reset policy to say.
                _LOG.warning("%s", error)
                self._stream = None
        batches, room = [], self.max_poll_records
        while self._waiting and (room is None or room > 0):
            batch = self._waiting.popleft()
            if room is not None and batch.num_rows > room:
                self._waiting.appendleft(batch.slice(room))
                batch = batch.slice(0, room)
            self._move_after(batch)
            batches.append(batch.select(self._columns))
            room = None if room is None else room - batch.num_rows
        return batches

    def _move_after(self, batch: pa.RecordBatch) -> None:
        topic = batch.column("topic")[0].as_py()
        partitions = batch.column("partition").to_numpy()
        offsets = batch.column("offset").to_numpy()
        # Offsets of a partition go up: its last row is the newest.
        last, first = np.unique(partitions[::-1], return_index=True)
        for partition, offset in zip(last.tolist(), offsets[::-1][first].tolist(), strict=True):
            self._positions[topic, partition] = offset + 1

    def _look(self) -> None:
        """Look up the bounds of the topics now. `Conflict` if one was created again."""
        self._view.refresh(self.topics)
        self._take_bounds()

    def _take_bounds(self) -> None:
        for topic in self.topics:
            if self._view.topic_id(topic) != self._ids[topic]:
                raise Conflict(f"topic {topic} was deleted and created again while it was read: start again")
            self._bounds[topic] = self._view.bounds(topic)

    def _ranges(self, topic: str) -> list[OffsetRange]:
        """Return the ranges to read of a topic; new partitions begin at their log start."""
        unread = []
        for partition, bounds in self._bounds[topic].items():
            key = topic, partition
            position = self._positions.setdefault(key, bounds.log_start)
            if not bounds.log_start <= position <= bounds.log_end:
                position = self._positions[key] = self._start(key, position, bounds)
            if position < bounds.end(self.isolation):
                unread.append(OffsetRange(topic, partition, position, bounds.end(self.isolation)))
        fetch_bytes = self._root.store.limits.fetch_bytes
        return [
            OffsetRange(
                topic, offsets.partition, offsets.start, max(*stored.at_bytes(fetch_bytes), *stored.at_records(1))
            )
            for offsets, stored in zip(unread, self._view.stored(unread), strict=True)
        ]

    def _read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        columns = tuple(dict.fromkeys((*self._columns, "topic", "partition", "offset")))
        for topic in self.topics:
            of_topic = [offsets for offsets in ranges if offsets.topic == topic]
            yield from read_parts(self._view.plan(of_topic, self.isolation), columns)
            for offsets in of_topic:
                # After the last record there may be markers, aborted ones, or gaps.
                self._positions[topic, offsets.partition] = offsets.end

    # -- positions

    @checked(topic=NAME, partition=NUMBER)
    def position(self, topic: str, partition: int) -> int:
        """Return the position in a partition.

        Args:
            topic: its name.
            partition: its number.

        Returns:
            The next offset that `poll` reads.

        Raises:
            NotFound: the partition is not read here.
        """
        if (topic, partition) not in self._positions:
            raise NotFound(f"{self!r} does not read partition {partition} of topic {topic}")
        return self._positions[topic, partition]

    def positions(self) -> dict[str, dict[int, int]]:
        """Return all positions: what `commit` commits.

        Returns:
            Topic to partition to the next offset to read.
        """
        positions: dict[str, dict[int, int]] = {topic: {} for topic in self.topics}
        for (topic, partition), offset in self._positions.items():
            positions[topic][partition] = offset
        return positions

    @checked(topic=NAME, partition=NUMBER, offset=NUMBER)
    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on from an offset. If it is out of range, `auto_offset_reset` counts at the next `poll`.

        Args:
            topic: its name.
            partition: its number.
            offset: the next one to read.

        Raises:
            NotFound: the partition is not read here.
        """
        self.position(topic, partition)
        self._drop_read()
        self._positions[topic, partition] = offset

    def seek_to_beginning(self) -> None:
        """Go on from the log start of every partition."""
        self._seek({place: bounds.log_start for place, bounds in self._all_bounds().items()})

    def seek_to_end(self) -> None:
        """Go on from the end of every partition: the last stable offset, under read_committed."""
        self._seek({place: bounds.end(self.isolation) for place, bounds in self._all_bounds().items()})

    def seek_to_committed(self) -> None:
        """Go on from the committed offsets: where a consumer begins, and where it goes after an aborted transaction.

        Raises:
            NotFound: an offset is missing or out of range, under `auto_offset_reset="none"`.
            Unavailable: a transaction has offsets of the group pending for more than a minute.
        """
        state = self.group.stable()
        self._kept = {
            (topic, partition): offset
            for offsets in state.offsets
            if self._ids.get(offsets.topic) == offsets.topic_id
            for topic, partition, offset in offsets.positions()
        }
        bounds = self._bounds_with_committed()
        self._seek({place: self._start(place, self._kept.get(place), limits) for place, limits in bounds.items()})

    def _bounds_with_committed(self) -> dict[TopicPartition, Bounds]:
        """Return the bounds once they reach the committed offsets.

        The cache of a network file system hides new commits of a topic for a while, from this host alone. Offsets that
        were committed on another host then seem to be beyond the end, and a reset would read everything again.
        """
        backoff = Backoff(self._env)
        while True:
            bounds = self._all_bounds()
            beyond = [f"{t}-{p}" for (t, p), limits in bounds.items() if self._kept.get((t, p), 0) > limits.log_end]
            if not beyond or backoff.is_over():
                return bounds
            if not backoff.tries:
                _LOG.warning(
                    "group '%s' has committed offsets beyond the end of %s that is seen here; looking again for %s s",
                    *(self.group.id, ", ".join(beyond), SETTLE_MS // 1000),
                )
            self._keep_up(commit=False)
            backoff.sleep()

    def _all_bounds(self) -> dict[TopicPartition, Bounds]:
        """Return the bounds of all partitions now: an offset committed just before must not be beyond the end."""
        self._look()
        return {(topic, p): bounds for topic in self.topics for p, bounds in self._bounds[topic].items()}

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        self._drop_read()
        self._positions.update(positions)

    def _drop_read(self) -> None:
        self._stream = None
        self._waiting.clear()

    def _start(self, place: TopicPartition, offset: int | None, bounds: Bounds) -> int:
        """Return `offset` if it is in range, else the position by the reset policy."""
        if offset is not None and bounds.log_start <= offset <= bounds.log_end:
            return offset
        name = f"{place[0]}-{place[1]}"
        problem = f"group '{self.group.id}' has no offset committed for {name}"
        if offset is not None:
            problem = f"offset {offset} of {name} is out of range: it has {bounds.log_start} to {bounds.log_end}"
        if self._reset == NONE:
            raise NotFound(f"{problem}; seek, reset the group, or choose auto_offset_reset earliest or latest")
        start = bounds.log_start if self._reset == EARLIEST else bounds.end(self.isolation)
        if offset is not None:
            _LOG.warning("%s; going on at %s (auto_offset_reset=%s)", problem, start, self._reset)
        return start

    # -- committing

    def group_metadata(self) -> GroupMetadata:
        """Return group, member and generation, for a transaction that sends offsets."""
        return self.membership.metadata

    def committed(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of the group.

        Returns:
            By topic and partition: offset, metadata, leader epoch, and when it was committed.
        """
        return self.group.committed()

    @checked(offsets=POSITIONS.or_none())
    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit positions, and return when that is done.

        Args:
            offsets: topic to partition to the next offset to read; None: the positions.

        Raises:
            Fenced: a newer consumer of the group took over.
            NotFound: a topic does not exist.
            Conflict: a topic was deleted and created again.
            BadRequest: a partition or an offset that cannot be, or the consumer is closed.
        """
        self._check_open()
        if offsets is None:
            changed: dict[str, dict[int, int]] = {}
            for (topic, partition), offset in self._positions.items():
                if self._kept.get((topic, partition)) != offset:
                    changed.setdefault(topic, {})[partition] = offset
            offsets = changed
        if any(offsets.values()):
            self.membership.commit(offsets)
            for topic, positions in offsets.items():
                for partition, position in positions.items():
                    self._kept[topic, partition] = position.offset if hasattr(position, "offset") else int(position)

    def _keep_up(self, *, commit: bool = True) -> None:
        """Commit if that is due (and `commit`), and send a heartbeat if that is due."""
        now = self._env.now()
        try:
            interval_ms = self.auto_commit_interval_ms
            if commit and interval_ms is not None and now.elapsed_ms(self._committed_at) >= interval_ms:
                self.commit()
                self._committed_at = now
            self.membership.keep_alive()
        except Unavailable as error:
            _LOG.warning("group '%s' is behind, the next poll tries again: %s", self.group.id, error)

    def close(self, *, commit: bool = True) -> None:
        """Leave the group. Closing twice does nothing.

        Args:
            commit: commit the positions first, where that is automatic.
        """
        if self._closed:
            return
        try:
            try:
                if commit and self.auto_commit_interval_ms is not None:
                    self.commit()
            finally:
                self.membership.leave()
        except (Conflict, Fenced, NotFound, Unavailable) as error:
            _LOG.warning("closing a consumer of group '%s': %s", self.group.id, error)
        self._drop_read()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise BadRequest(f"{self!r} is closed: make another one")


def _check_topics(topics: Sequence[str]) -> None:
    if not topics:
        raise BadRequest("a consumer needs topics, found none")
    for name in topics:
        if not is_topic_name(name):
            raise BadRequest(f"a consumer reads topics by their names, found {name!r}; root.topics() lists them")
