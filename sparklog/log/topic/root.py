"""A root: the folder that holds topics, and the `LogView` of its topics as readers see them.

`_root.json` carries a random id, created once. Tasks compare it with the driver's before they write: so a local path
that is another disk on each executor loses no data.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, nearest
from sparklog.log.decisions.decision_log import DecisionLogs, settle, whole_ends
from sparklog.log.journal.arguments import CONFIGS, NAME, PLACE, ArgumentKind, checked
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.entry_log import EntryKind, EntryLog, StateEntry
from sparklog.log.journal.journal import RootAccess
from sparklog.log.journal.names import MAX_PARTITIONS, check_topic_name, create_root_id, is_topic_name, read_root_id
from sparklog.log.read.read_plan import sizes_of
from sparklog.log.read.time_lookup import offsets_for_timestamps
from sparklog.log.read.topic_scan import SnapshotView
from sparklog.log.state.commit import Commit
from sparklog.log.state.commit_intents import CreateIntent, DeleteIntent, Intent
from sparklog.log.state.commit_log import no_topic
from sparklog.log.state.configs import TopicConfigs, check_delete_delay
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.view import READ_UNCOMMITTED, PartitionSize, TimestampOffset
from sparklog.log.topic.expiring import CREATED_ROOT, CREATED_TOPIC
from sparklog.log.topic.topic import Topic, TopicLog
from sparklog.storage.parallel_reads import ask_each, read_each
from sparklog.storage.store import Store

E = TypeVar("E", bound=StateEntry)
_LOG = logging.getLogger("sparklog.log")


class Root:
    """A folder of topics, opened by `sparklog.open`. Keeps one handle per topic, whose state is cached."""

    def __init__(self, store: Store, root_id: str, env: Env = SYSTEM) -> None:
        self.store = store
        self.location = store.location
        self.id = root_id
        self.env = env
        self._access = RootAccess(store, env, root_id)
        self.decisions = DecisionLogs(self._access)
        self._topics: dict[str, Topic] = {}
        self._entries: dict[str, EntryLog[Any]] = {}

    def __repr__(self) -> str:
        return f"Root({self.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return Root, (self.store, self.id, self.env)

    def ensure_probed(self) -> None:
        """Check, once a day in each process that commits, that the store keeps its promises."""
        from sparklog.log.journal.probe_verdict import ensure_probed

        ensure_probed(self.store, self.env.wall_ms)

    def by_store_clock(self, wall_ms: int) -> int:
        """Return a time of this machine's clock by the store's. `Unavailable` if this clock is far ahead."""
        self._access.guard.check()
        return wall_ms - self.env.wall_ms() + self._access.guard.store_ms()

    def log_view(self) -> RootView:
        """Return a view of its topics."""
        return RootView(self)

    def topics(self, failures: list[SparklogError] | None = None) -> list[str]:
        """Return the names of all topics, sorted. Costs a listing and a request per topic.

        Args:
            failures: takes the errors of topics that cannot be read; None: the first one is raised.
        """
        exists = read_each(self.store, self._exists, sorted(self._folders()), failures)
        return [name for name in exists if exists[name]]

    @checked(name=NAME)
    def topic(self, name: str) -> Topic:
        """Return the topic of this name.

        Raises:
            NotFound: there is none; the message names similar ones.
        """
        check_topic_name(name)
        topic = self.topic_handle(name)
        if self._exists(name):
            return topic
        self._topics.pop(name, None)
        similar = nearest(name, [other for other in self._folders() if other != name])
        similar = [other for other in similar if self._exists(other)]
        if not similar:
            raise no_topic(name, self.location)
        raise NotFound(
            f"topic '{name}' does not exist in {self.location}; did you mean {' or '.join(map(repr, similar))}?"
        )

    def topic_handle(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            log = TopicLog(self, name, self._access, self.decisions.resolve)
            topic = self._topics.setdefault(name, Topic(self, name, log))
        return topic

    def entries(self, kind: EntryKind[E], id_: str) -> EntryLog[E]:
        """Return the log of an id, which may have no entries: one handle per process, so that its state is cached."""
        prefix = kind.prefix(id_)
        log = self._entries.get(prefix)
        if log is None:
            log = self._entries.setdefault(prefix, EntryLog(self._access, kind, id_))
        return log

    @checked(name=NAME, configs=CONFIGS.or_none())
    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, object] | None = None, force: bool = False
    ) -> Topic:
        """Create a topic.

        Args:
            name: of letters, digits, `.`, `_` and `-`, as in Kafka.
            partitions: how many.
            configs: by Kafka's names: see docs/reference/configs.md.
            force: allow a `file.delete.delay.ms` below one hour.

        Raises:
            Conflict: it exists, or only case tells it from another topic.
            BadRequest: a name, a number or a config is not valid.

        Example:
            root = sparklog.open("/data/log", create=True)
            root.create_topic("visits", partitions=4, configs={"cleanup.policy": "compact"})
        """
        check_topic_name(name)
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_PARTITIONS:
            raise BadRequest(f"a topic has 1 to {MAX_PARTITIONS} partitions, found {partitions}")
        checked = TopicConfigs.of(configs)
        check_delete_delay(dict(checked.explicit), force)
        return self.begin_topic(name, CreateIntent(self.env.new_id(), partitions, checked))

    def begin_topic(self, name: str, intent: Intent) -> Topic:
        """Commit an intent that creates a topic. `Conflict` if it exists or only case tells it from another."""
        self._refuse_same_but_case(name)
        topic = self.topic_handle(name)
        topic.log.refresh()
        created = topic.log.commit(intent).commit
        try:
            # Of two that were created at once, each sees the other here, or one of them above.
            self._refuse_same_but_case(name)
        except Conflict as clash:
            if created is None or _taken_back(topic, created):
                raise
            _LOG.warning("%s; another process uses '%s' already, so it stays", clash, name)
        count = topic.log.head(refresh=False).partitions
        CREATED_TOPIC.info("created topic %s with %d partition%s in %s", name, count, "s" * (count > 1), self.location)
        return topic

    @checked(name=NAME, configs=CONFIGS.or_none())
    def ensure_topic(self, name: str, *, partitions: int = 1, configs: Mapping[str, object] | None = None) -> Topic:
        """Return the topic of this name; create it, with these partitions and configs, if there is none."""
        check_topic_name(name)
        if not self._exists(name):
            try:
                return self.create_topic(name, partitions=partitions, configs=configs)
            except Conflict:
                if not self._exists(name):
                    raise
        return self.topic_handle(name)

    @checked(name=NAME)
    def delete_topic(self, name: str) -> None:
        """Delete a topic. Its name can be created again: at offset 0, with another topic id."""
        self.topic(name).delete()

    def _exists(self, name: str) -> bool:
        return self.topic_handle(name).log.refresh().head.exists

    def _folders(self) -> Iterator[str]:
        return (name for name in self.store.list_folders("") if is_topic_name(name))

    def _refuse_same_but_case(self, name: str) -> None:
        others = list(self._folders())
        for other in others:
            if other == name or other.lower() != name.lower():
                continue
            # On a file system that ignores case both would be one folder: the name of a deleted topic counts as well.
            if name not in others or self._exists(other):
                raise Conflict(
                    f"topic '{name}' differs only in case from '{other}', which exists or existed; choose another name"
                )


ROOT = ArgumentKind(
    "an open root, a path, a URL or a store", lambda value: isinstance(value, Root) or PLACE.accepts(value)
)


def _taken_back(topic: Topic, created: Commit) -> bool:
    """Delete a topic that was created a moment ago; False if another commit was made to it: then it stays.

    One that was deleted meanwhile, or created again by another process, is left alone.
    """
    try:
        topic.log.commit(DeleteIntent(created.topic_id, created.version))
    except NotFound:
        return True
    except Conflict:
        return topic.log.current().head.topic_id != created.topic_id
    return True


@checked(location=PLACE)
def open_root(location: str | os.PathLike[str] | Store, *, create: bool = False, env: Env = SYSTEM) -> Root:
    """Open a root.

    Args:
        location: a path, a bucket's URL such as `s3://bucket/log`, or a store.
        create: make an empty or new folder a root.
        env: clock and random numbers, for tests.

    Returns:
        A `Root`: its topics.

    Raises:
        NotFound: there is no root.
        BadRequest: the location is a file, holds something else, or needs a newer sparklog.
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
    try:
        root_id = read_root_id(store)
    except NotFound:
        if not create:
            raise
        root_id = create_root_id(store, env)
        CREATED_ROOT.info("created root %s", store.location)
    return Root(store, root_id, env)


LOCAL_POLL_MS = 10
QUICK_POLL_MS = 5
REMOTE_POLL_MS = 250
IDLE_SHARE = 25


def poll_pause_ms(idle_ms: int) -> int:
    """Return how long a reader of an object store pauses between two looks after nothing came for `idle_ms`.

    A share of that time: what comes at last waits little longer than the reader has waited for it. Looks cost money, so
    there are few where little comes: at most four a second after six seconds.
    """
    return min(max(idle_ms // IDLE_SHARE, QUICK_POLL_MS), REMOTE_POLL_MS)


class RootView(SnapshotView):
    """Implements `sparklog.log.state.view.LogView` for the topics of `root`. Not safe to share between threads.

    Snapshots are taken by `refresh` and kept. So bounds, sizes and plans of one micro-batch agree, and show all or
    nothing of a transaction over several topics.
    """

    def __init__(self, root: Root) -> None:
        super().__init__(root.location, {})
        self.root = root
        self.env = root.env
        self._topics: dict[str, Topic] = {}
        self._raw: dict[str, Snapshot] = {}
        self._came = root.env.now()
        self._idle = False

    @property
    def poll_interval_ms(self) -> int:
        """The pause from now to the next `refresh`: on a store with round trips, the longer the less came."""
        if self.root.store.parallel_reads <= 1:
            return LOCAL_POLL_MS
        return poll_pause_ms(self.root.env.now().elapsed_ms(self._came))

    def topics(self) -> list[str]:
        return sorted(self.root.topics())

    def topic_id(self, topic: str) -> str:
        return str(self.snapshot(topic).head.topic_id)

    def refresh(self, topics: Sequence[str]) -> None:
        self._look(topics, self._take)

    def follow(self, topics: Sequence[str]) -> None:
        """As `refresh`, for a reader that looks again and again: it may see more commits the next time.

        After a look that found nothing, a store with round trips is asked for the next commit alone: its records are
        read a round trip earlier so.
        """
        self._look(topics, self._take_next if self._idle and self.root.store.parallel_reads > 1 else self._take)

    def _look(self, topics: Sequence[str], take: Callable[[str], tuple[Topic, Snapshot]]) -> None:
        names = list(dict.fromkeys(topics))
        self._idle = True
        for name, (topic, snapshot) in zip(names, list(ask_each(self.root.store, take, names)), strict=True):
            known = self._raw.get(name)
            if known is None or known.version != snapshot.version:
                self._came, self._idle = self.root.env.now(), False
            self._topics[name], self._raw[name] = topic, snapshot
        self._snapshots, gone = settle(self.root.decisions, self._raw, self._again)
        self._ends = whole_ends(self._snapshots)
        for name in gone & set(names):
            self.root.topic(name)

    def snapshot(self, topic: str) -> Snapshot:
        if topic not in self._snapshots:
            self.refresh([topic])
        return self._snapshots[topic]

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[int, TimestampOffset | None]:
        snapshot = self.snapshot(topic)
        return offsets_for_timestamps(snapshot, targets, isolation, newer=self._topics[topic].read_snapshot)

    def partition_sizes(self, topic: str) -> list[PartitionSize]:
        return sizes_of(self.snapshot(topic))

    def _again(self, name: str) -> Snapshot:
        self._topics[name], snapshot = self._take(name)
        return snapshot

    def _take_next(self, name: str) -> tuple[Topic, Snapshot]:
        topic = self._topics.get(name)
        if topic is None or not topic.log.read_next().head.exists:
            return self._take(name)
        return topic, topic.snapshot(refresh=False)

    def _take(self, name: str) -> tuple[Topic, Snapshot]:
        topic = self._topics.get(name) or self.root.topic(name)
        try:
            return topic, topic.snapshot()
        except NotFound:
            # Deleted, perhaps created again: the name is opened afresh, and says so itself if it is gone.
            topic = self.root.topic(name)
            return topic, topic.snapshot()
