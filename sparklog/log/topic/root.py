"""A root, which is the directory that contains topics, and the `LogView` of its topics.

`_root.json` contains a random id, which is created once. Before tasks write, they compare this id with the driver's.
Otherwise, data would be lost if a local path is a different disk on each executor.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING

from sparklog.arguments import CONFIGS, LOCATION, NAME, checked, instance
from sparklog.common.settings import ValueType, as_integer
from sparklog.common.units import count
from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, advice, nearest, shortened
from sparklog.limits import Limits
from sparklog.log.decisions.decision_log import consistent_ends, consistent_snapshots
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.names import MAX_PARTITIONS, check_topic_name, create_root_id, read_root_id
from sparklog.log.state.commit_log import SHOWN_TOPICS, no_topic
from sparklog.log.state.configs import TopicConfigs, check_delete_delay
from sparklog.log.state.root_defaults import AUTO_CREATE, RootDefaults
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.engine import RootEngine
from sparklog.log.topic.expiring import CREATED_ROOT, warn_of_short_retention
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.store import Store

_LOG = logging.getLogger(__name__)

if TYPE_CHECKING:
    from sparklog.log.read.skipped import OnSkipped
    from sparklog.log.state.range_slices import RangeSlices
    from sparklog.log.state.topic_state import Offsets
    from sparklog.log.state.view import Bounds, OffsetRange, PartitionSize, ReadPart, Stored, TimestampOffset
    from sparklog.log.topic.topic import Topic


def _checked_partition_count(partitions: object) -> int:
    number = as_integer(partitions)
    if number is None or not 1 <= number <= MAX_PARTITIONS:
        raise BadRequest(f"the number of partitions must be 1 to {MAX_PARTITIONS}, found {shortened(partitions)}")
    return number


class Root:
    """A directory of topics, opened by `sparklog.open`."""

    def __init__(self, store: Store, root_id: str, env: Env = SYSTEM) -> None:
        self.store = store
        self.location = store.location
        self.id = root_id
        self.env = env
        self.engine = RootEngine(store, root_id, env)

    def __repr__(self) -> str:
        return f"Root({self.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return Root, (self.store, self.id, self.env)

    def _topic(self, name: str) -> Topic:
        # Imported lazily, so that listing topics does not load modules that read or write records.
        from sparklog.log.topic.topic import Topic

        return Topic(self, self.engine.log(name), lambda: RootView(self))

    def topics(self, failures: list[SparklogError] | None = None) -> list[str]:
        """List the topics. One listing is sent, and one request per topic.

        Args:
            failures: a list to which the errors of unreadable topics are added; if None, the first error is raised.

        Returns:
            The sorted names of the topics.

        Raises:
            SparklogError: a topic cannot be read, and `failures` is None.
        """
        return self.engine.topics(failures)

    @checked(name=NAME)
    def topic(self, name: str) -> Topic:
        """Open a topic.

        Args:
            name: the topic's name.

        Returns:
            The topic with this name.

        Raises:
            NotFound: the topic does not exist; the message lists similar names.
            BadRequest: the name is not a valid topic name.
        """
        check_topic_name(name)
        if self.engine.exists(name):
            return self._topic(name)
        raise self._not_found(name)

    def _not_found(self, name: str) -> NotFound:
        similar = nearest(name, [other for other in self.engine.all_topics() if other != name])
        similar = [other for other in similar if self.engine.exists(other)]
        if not similar:
            return no_topic(name, self.location, self._some_topics())
        return NotFound(
            f"topic '{name}' does not exist in {self.location}; did you mean {' or '.join(map(repr, similar))}?"
        )

    def _some_topics(self) -> list[str]:
        """Return a few topic names for an error message, with a limited number of requests."""
        names: list[str] = []
        for name in sorted(self.engine.all_topics())[: 4 * SHOWN_TOPICS]:
            # A topic that cannot be read must not mask the original error.
            with suppress(SparklogError):
                names += [name] if self.engine.exists(name) else []
            if len(names) > SHOWN_TOPICS:
                break
        return names

    @checked(name=NAME, configs=CONFIGS.or_none())
    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        configs: Mapping[str, object] | None = None,
        force: bool = False,
    ) -> Topic:
        """Create a topic.

        Args:
            name: the topic's name. It may contain letters, digits, `.`, `_` and `-`, as in Kafka.
            partitions: the number of partitions. The default is the root default `num.partitions`, or 1 if it is not
                set.
            configs: topic configs by Kafka's names; see docs/reference/configs.md.
            force: allow a `file.delete.delay.ms` below one hour.

        Returns:
            The topic.

        Raises:
            Conflict: the topic exists, or its name differs from another topic's name only in case.
            BadRequest: a name, a number or a config is invalid.

        Example:
            root = sparklog.open("/data/log", create=True)
            root.create_topic("visits", partitions=4, configs={"cleanup.policy": "compact"})
        """
        from sparklog.log.state.commit_intents import CreateIntent

        check_topic_name(name)
        if partitions is None:
            partitions = self.defaults().partitions(name)
        partitions = _checked_partition_count(partitions)
        checked = TopicConfigs.of(configs)
        check_delete_delay(dict(checked.explicit), force)
        warn_of_short_retention(f"topic {name}", dict(checked.explicit))
        self.engine.create(name, CreateIntent(self.env.new_id(), partitions, checked))
        return self._topic(name)

    @checked(name=NAME, configs=CONFIGS.or_none())
    def ensure_topic(
        self, name: str, *, partitions: int | None = None, configs: Mapping[str, object] | None = None
    ) -> Topic:
        """Open a topic, or create it if it does not exist.

        Args:
            name: the topic's name.
            partitions: the number of partitions of a new topic. The default is the root default `num.partitions`, or 1
                if it is not set.
            configs: the configs of a new topic, by Kafka's names.

        Returns:
            The topic with this name. An existing topic keeps its partitions and configs. If its number of partitions is
            different, a warning is logged.

        Raises:
            Conflict: the name differs from another topic's name only in case.
            BadRequest: a name, a number or a config is invalid.
        """
        check_topic_name(name)
        if partitions is not None:
            partitions = _checked_partition_count(partitions)
        if not self.engine.exists(name):
            try:
                return self.create_topic(name, partitions=partitions, configs=configs)
            except Conflict:
                if not self.engine.exists(name):
                    raise
        topic = self._topic(name)
        if partitions is not None:
            existing = topic.log.state(refresh=False).partitions
            if partitions != existing:
                text = count(existing, "partition")
                _LOG.warning(
                    "partitions=%s is ignored, because topic %r already exists with %s", partitions, name, text
                )
        return topic

    def defaults(self) -> RootDefaults:
        """Read the root defaults, which apply to topics that do not set a config.

        One listing and one request are sent.

        Returns:
            The defaults. `configs` contains values by broker config name, and `patterns` contains configs by pattern.
        """
        return self.engine.defaults.read(latest=True)

    @checked(changes=CONFIGS, pattern=NAME.or_none())
    def alter_defaults(
        self, changes: Mapping[str, object | None], *, pattern: str | None = None, force: bool = False
    ) -> RootDefaults:
        """Set or reset root defaults, atomically. They also apply to existing topics.

        Args:
            changes: values by broker config name, such as `log.retention.ms`; None resets to the built-in default.
            pattern: a regular expression; the defaults, by topic config name, apply to topics whose full names match
                it.
            force: allow a `file.delete.delay.ms` below one hour.

        Returns:
            The defaults after the change.

        Raises:
            BadRequest: a name, a value or the pattern is invalid.

        Example:
            root.alter_defaults({"num.partitions": 4, "log.retention.hours": 72})
            root.alter_defaults({"retention.ms": -1}, pattern="audit-.*")
        """

        def step(base: RootDefaults) -> RootDefaults | None:
            changed = base.changed(changes, pattern, force=force)
            return None if changed == base else changed

        warn_of_short_retention(f"defaults of {self.location}", changes)
        self.engine.ensure_probed()
        return self.engine.defaults.change(step)

    @checked(name=NAME)
    def delete_topic(self, name: str) -> None:
        """Delete a topic. A new topic with the same name starts at offset 0 and has another topic id.

        Args:
            name: the topic's name.

        Raises:
            NotFound: the topic does not exist.
        """
        check_topic_name(name)
        if not self.engine.exists(name):
            raise no_topic(name, self.location, is_wanted=False)
        self._topic(name).delete()


def topic_of(root: Root, name: str) -> Topic:
    """Return a topic for maintenance. Maintenance also processes deleted topics."""
    return root._topic(name)


def topic_for_writer(
    root: Root, name: str, *, partitions: int | None = None, configs: Mapping[str, object] | None = None
) -> Topic:
    """Open a topic for a writer. Create it like `ensure_topic`, unless `auto.create.topics.enable` is false."""
    check_topic_name(name)
    if root.engine.exists(name):
        return topic_of(root, name)
    if root.defaults().auto_create(name) is False:
        command = f"sparklog topics create {name} --root {shlex.quote(root.location)}"
        create = advice(python=f"root.create_topic({name!r})", shell=command)
        raise NotFound(
            f"topic '{name}' does not exist in {root.location}, and writers do not create topics, because "
            f"the root default {AUTO_CREATE} is false; create it with {create}"
        )
    return root.ensure_topic(name, partitions=partitions, configs=configs)


ROOT = ValueType(
    "an open root, a path, a URL or a store", lambda value: isinstance(value, Root) or LOCATION.accepts(value)
)


@checked(location=LOCATION, limits=instance("sparklog.limits.Limits or None", Limits, type(None)))
def open_root(
    location: str | os.PathLike[str] | Store, *, create: bool = False, env: Env = SYSTEM, limits: Limits | None = None
) -> Root:
    """Open a root. If the location is a backup repository, open its latest backup as a read-only root.

    Args:
        location: a path, the URL of a bucket such as `s3://bucket/log`, or a store.
        create: create a root if the directory is empty or does not exist.
        env: clock and random numbers, for tests.
        limits: sizes, counts and periods (`sparklog.limits`), or None for the limits of the store.

    Returns:
        The root.

    Raises:
        NotFound: there is no root at the location.
        BadRequest: the location is a file, contains other files, or requires a newer sparklog.
        Corrupt: `_root.json` is damaged.

    Example:
        root = sparklog.open("/data/log", create=True)
        orders = root.ensure_topic("orders", partitions=2)
    """
    if isinstance(location, (str, os.PathLike)):
        from sparklog.storage import open_store

        store = open_store(os.fspath(location))
    else:
        store = location
    if limits is not None:
        store.limits = limits
    try:
        root_id = read_root_id(store)
    except NotFound:
        from sparklog.log.topic.backup_manifest import latest_backup

        if create:
            root_id = create_root_id(store, env)
            if not store.location.startswith("memory:"):
                CREATED_ROOT.info("created root %s", store.location)
        elif (backup := latest_backup(store)) is not None:
            store, root_id = backup, read_root_id(backup)
        else:
            raise
    return Root(store, root_id, env)


LOCAL_POLL_MS = 10
QUICK_POLL_MS = 5
REMOTE_POLL_MS = 250
IDLE_SHARE = 25
POLL_SHARE = 30
"""The maximum ratio of the pause between two polls to the duration of a poll, for a root on a disk. It does not depend
on the number of topics.
"""


def poll_pause_ms(idle_ms: int) -> int:
    """Return the pause (ms) between two polls of an object store by a reader that has been idle for `idle_ms`.

    The pause is a fraction of the idle time, so that the delay of the next record is short compared with the idle time.
    Requests cost money, so an idle reader sends few requests: after six seconds, at most four per second.
    """
    return min(max(idle_ms // IDLE_SHARE, QUICK_POLL_MS), REMOTE_POLL_MS)


class RootView:
    """The `LogView` of the topics of `root`. Not thread-safe.

    `refresh` reads snapshots, which all other methods use. Therefore, the bounds, sizes and plans of one micro-batch
    are consistent, and a transaction over several topics is either completely visible or not visible. Other topics are
    read when they are first requested.

    `on_skipped` is called in the reading process with the corrupt ranges that reads skip. If it is None, reads raise
    `Corrupt`.
    """

    def __init__(self, root: Root, on_skipped: OnSkipped | None = None) -> None:
        self.root = root
        self._on_skipped = on_skipped
        self.location = root.location
        self.env = root.env
        self._raw: dict[str, Snapshot] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._ends: dict[str, Offsets] = {}
        self._bounds: dict[str, Mapping[int, Bounds]] = {}
        self._selected: RangeSlices | None = None
        """The slices that `stored` has selected. They are kept because a plan of the same ranges usually follows."""
        self._changed_at = root.env.now()
        self._is_idle = False
        self._poll_ms = 0
        self._is_consistent = False
        """True if `_snapshots` are consistent snapshots of the latest snapshots in `_raw`."""

    @property
    def poll_interval_ms(self) -> int:
        """The pause until the next `refresh`.

        It increases with the idle time and, on a disk, with the duration of a poll.
        """
        idle_ms = self.env.elapsed_ms(self._changed_at)
        if self.root.store.parallel_reads > 1:
            return poll_pause_ms(idle_ms)
        return max(LOCAL_POLL_MS, min(idle_ms // IDLE_SHARE, POLL_SHARE * self._poll_ms))

    def topics(self, name_filter: Callable[[str], bool] | None = None) -> list[str]:
        return self.root.engine.topics(name_filter=name_filter)

    # -- reading snapshots

    def refresh_all(self, name_filter: Callable[[str], bool] | None = None) -> list[str]:
        # Reading the snapshot of a listed topic also shows whether the topic exists.
        names = sorted(filter(name_filter, self.root.engine.all_topics()))
        missing = self._poll(names, lambda name: self.root.engine.log(name).snapshot_if_exists())
        return [name for name in names if name not in missing]

    def refresh(self, topics: Sequence[str]) -> None:
        self._require(self._poll(topics, self._latest))

    def follow(self, topics: Sequence[str]) -> None:
        """Refresh for a reader that polls frequently. Some commits may not be read until the next poll.

        After a poll without new commits, only the next commit is requested from a remote store, so that its records can
        be read one round trip earlier.
        """
        read = self._next if self._is_idle and self.root.store.parallel_reads > 1 else self._latest
        self._require(self._poll(topics, read))

    def _require(self, missing: Set[str]) -> None:
        """If topics are missing, raise `NotFound` with similar names."""
        for name in missing:
            self.root.topic(name)

    def _poll(self, topics: Sequence[str], read: Callable[[str], Snapshot | None]) -> Set[str]:
        """Read snapshots of topics. Return the topics that do not exist or were deleted."""
        names, missing = list(dict.fromkeys(topics)), set[str]()
        self._is_idle, started_at = True, self.env.now()
        for name, snapshot in zip(names, list(map_requests(self.root.store, read, names)), strict=True):
            if snapshot is None:
                missing.add(name)
                continue
            before = self._raw.get(name)
            self._is_idle = self._is_idle and before is not None and before.version == snapshot.version
            self._raw[name] = snapshot
        ended_at = self.env.now()
        self._poll_ms = ended_at.elapsed_ms(started_at)
        self._changed_at = self._changed_at if self._is_idle else ended_at
        if self._is_idle and self._is_consistent and not any(snapshot.state.open for snapshot in self._raw.values()):
            return missing
        self._is_consistent = False
        snapshots, deleted = consistent_snapshots(self.root.engine.decisions, self._raw, self._latest)
        self._snapshots, self._ends = snapshots, consistent_ends(snapshots)
        self._bounds, self._selected = {}, None
        self._is_consistent = True
        return missing | (deleted & set(names))

    def _latest(self, name: str) -> Snapshot:
        log = self.root.engine.log(check_topic_name(name))
        try:
            return log.snapshot()
        except NotFound:
            # Raise an error that suggests similar names, unless the topic was created in the meantime.
            self.root.topic(name)
            return log.snapshot()

    def _next(self, name: str) -> Snapshot:
        log = self.root.engine.log(check_topic_name(name))
        if name in self._raw and log.read_next().topic_state.exists:
            return log.snapshot(refresh=False)
        return self._latest(name)

    def _pinned(self, topics: Iterable[str]) -> Mapping[str, Snapshot]:
        """Return the snapshots of these topics. Topics that have not been read yet are read first."""
        missing = [topic for topic in dict.fromkeys(topics) if topic not in self._snapshots]
        if missing:
            self.refresh(missing)
        return self._snapshots

    # -- using the snapshots (imports are lazy, so that listing names does not load modules that read records)

    def snapshot(self, topic: str) -> Snapshot:
        return self._pinned([topic])[topic]

    def topic_id(self, topic: str) -> str:
        return str(self.snapshot(topic).state.topic_id)

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        from sparklog.log.read.read_plan import bounds_of

        snapshot = self.snapshot(topic)
        if topic not in self._bounds:
            self._bounds[topic] = bounds_of(snapshot, self._ends[topic])
        return self._bounds[topic]

    def previous_partition_counts(self, topic: str) -> Sequence[int]:
        return self.snapshot(topic).state.previous_partition_counts

    def first_dirty_offsets(self, topic: str) -> Mapping[int, int]:
        return dict(enumerate(self.snapshot(topic).state.first_dirty_offset.tolist()))

    def _select(self, ranges: Sequence[OffsetRange]) -> RangeSlices:
        from sparklog.log.state.range_slices import select_ranges

        return select_ranges(self._pinned(offsets.topic for offsets in ranges), ranges)

    def stored(self, ranges: Sequence[OffsetRange]) -> list[Stored]:
        from sparklog.log.read.read_plan import stored_in

        self._selected = self._select(ranges)
        return stored_in(self._selected)

    def plan(self, ranges: Sequence[OffsetRange], isolation: str) -> list[ReadPart]:
        from sparklog.log.read.read_plan import plan_parts

        selected, self._selected = self._selected, None
        if selected is None or selected.ranges != tuple(ranges):
            selected = self._select(ranges)
        return [*plan_parts(selected, isolation, self._on_skipped)]

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = "read_uncommitted"
    ) -> dict[int, TimestampOffset | None]:
        from sparklog.log.read.time_lookup import offsets_for_timestamps

        newer = self.root.engine.log(topic).read_snapshot
        return offsets_for_timestamps(
            self.snapshot(topic), targets, isolation, newer=newer, on_skipped=self._on_skipped
        )

    def partition_sizes(self, topic: str) -> list[PartitionSize]:
        from sparklog.log.read.read_plan import sizes_of

        return sizes_of(self.snapshot(topic))
