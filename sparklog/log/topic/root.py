"""A root: the folder (or bucket prefix) that holds topics.

`_root.json` carries a random id, created once. Tasks compare it with the driver's before they write: a local path
that is another disk on each executor is found out before data is lost to it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, nearest
from sparklog.log.decisions.decision_log import DecisionLogs
from sparklog.log.journal.clock import ClockGuard
from sparklog.log.journal.entry_log import Entry, EntryKind, EntryLog
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.journal.names import check_topic_name, is_topic_name
from sparklog.log.journal.root_id import create_root_id, read_root_id
from sparklog.log.state.commit import MAX_PARTITIONS, Commit, Resolved
from sparklog.log.state.commit_log import CommitLog, Resolver
from sparklog.log.state.configs import TopicConfigs, check_delete_delay
from sparklog.log.state.intents import CreateIntent, DeleteIntent, Intent
from sparklog.log.state.topic_state import Head
from sparklog.log.topic.topic import Topic
from sparklog.storage.locks import ask_each
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

E = TypeVar("E", bound=Entry)
_LOG = logging.getLogger("sparklog.log")


class Root:
    """An open root. `topic(name)` keeps one handle per topic, so that its state is cached and only probed again."""

    def __init__(self, store: Store, root_id: str, env: Env = SYSTEM) -> None:
        self.store = store
        self.id = root_id
        self.env = env
        self._guard = ClockGuard(store, env)
        self.decisions = DecisionLogs(store, env, self._guard, root_id)
        self.resolver: Resolver = self.decisions.resolve
        self._topics: dict[str, Topic] = {}
        self._entries: dict[str, EntryLog[Any]] = {}
        self._probed = False

    def __repr__(self) -> str:
        return f"Root({self.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return Root, (self.store, self.id, self.env)

    @property
    def location(self) -> str:
        return self.store.location

    def ensure_probed(self) -> None:
        """Once per process that commits: the store really keeps its promises."""
        if not self._probed:
            from sparklog.storage.probe import ensure_probed

            ensure_probed(self.store)
            self._probed = True

    def by_store_clock(self, wall_ms: int) -> int:
        """A time of this machine's clock by the store's. `Unavailable` if this clock is far ahead."""
        self._guard.check()
        return wall_ms - self.env.wall_ms() + self._guard.store_ms()

    def topics(self, failures: list[SparklogError] | None = None) -> list[str]:
        """Names of all topics, sorted. Costs a listing and a request per topic.

        One that cannot be read is left out and its error put into `failures`, or raised.
        """
        found = []
        folders = sorted(self._folders())
        for name, there in zip(folders, ask_each(self.store, self._exists, folders), strict=True):
            if isinstance(there, bool):
                found += [name] if there else []
            elif failures is None:
                raise there
            else:
                failures.append(there)
        return found

    def _exists(self, name: str) -> bool | SparklogError:
        try:
            return self.topic_handle(name).log.refresh().head.exists
        except SparklogError as error:
            return error

    def topic(self, name: str) -> Topic:
        """The topic of this name. `NotFound`, naming similar ones, if there is none; `BadRequest` for no name."""
        check_topic_name(name)
        topic = self.topic_handle(name)
        if topic.log.refresh().head.exists:
            return topic
        self._topics.pop(name, None)
        similar = nearest(name, [other for other in self._folders() if other != name])
        similar = [other for other in similar if self.topic_handle(other).log.refresh().head.exists]
        hint = f"; did you mean {' or '.join(repr(other) for other in similar)}?" if similar else "; create it"
        raise NotFound(f"topic '{name}' does not exist in {self.location}{hint}")

    def topic_handle(self, name: str) -> Topic:
        """The handle of a topic, without looking whether it exists."""
        found = self._topics.get(name)
        if found is None:
            log = CommitLog(self.store, name, self.env, self._guard, self._resolve, self.id)
            found = self._topics.setdefault(name, Topic(self, name, log))
        return found

    def entries(self, kind: EntryKind[E], id_: str) -> EntryLog[E]:
        """The log of an id, which may have no entries: one handle per process, so that its state is cached."""
        prefix = kind.prefix(id_)
        found = self._entries.get(prefix)
        if found is None:
            found = self._entries.setdefault(prefix, EntryLog(self.store, kind, id_, self.env, self._guard, self.id))
        return found

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, object] | None = None, force: bool = False
    ) -> Topic:
        """Create a topic. `Conflict` if it exists or only case tells it from another, `BadRequest` if not valid."""
        check_topic_name(name)
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_PARTITIONS:
            raise BadRequest(f"a topic has 1 to {MAX_PARTITIONS} partitions, found {partitions}")
        checked = TopicConfigs.of(configs)
        check_delete_delay(dict(checked.explicit), force)
        return self.begin_topic(name, CreateIntent(self.env.new_id(), partitions, checked))

    def begin_topic(self, name: str, intent: Intent) -> Topic:
        """A topic by a commit that creates it. `Conflict` if it exists or only case tells it from another."""
        self._refuse_same_but_case(name)
        topic = self.topic_handle(name)
        topic.log.refresh()
        created = topic.commit(intent).commit
        try:
            # Of two that were created at once, each sees the other here, or one of them above.
            self._refuse_same_but_case(name)
        except Conflict as clash:
            if created is None or _taken_back(topic, created):
                raise
            _LOG.warning("%s; somebody uses '%s' already, so it stays", clash, name)
        return topic

    def ensure_topic(self, name: str, *, partitions: int = 1, configs: Mapping[str, object] | None = None) -> Topic:
        """The topic of this name, created if there is none; whoever creates it first decides partitions and configs."""
        check_topic_name(name)
        topic = self.topic_handle(name)
        if topic.log.refresh().head.exists:
            return topic
        try:
            return self.create_topic(name, partitions=partitions, configs=configs)
        except Conflict:
            if topic.log.refresh().head.exists:
                return topic
            raise

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its name can be created again, which begins at offset 0 with another topic id."""
        self.topic(name).delete()

    def _resolve(self, topic: str, head: Head) -> Sequence[Resolved]:
        return self.resolver(topic, head)

    def _folders(self) -> Iterator[str]:
        return (name for name in self.store.list_folders("") if is_topic_name(name))

    def _refuse_same_but_case(self, name: str) -> None:
        others = list(self._folders())
        for other in others:
            if other == name or other.lower() != name.lower():
                continue
            # On a file system that ignores case both would be one folder, so the name of a deleted topic counts as
            # well.
            if name not in others or self.topic_handle(other).log.refresh().head.exists:
                raise Conflict(
                    f"topic '{name}' differs only in case from '{other}', which exists or existed; choose another name"
                )


def _taken_back(topic: Topic, created: Commit) -> bool:
    """Delete a topic that was created a moment ago; False if somebody has committed to it since: then it stays.

    One that was deleted meanwhile, or created again by somebody else, is left alone.
    """
    try:
        topic.commit(DeleteIntent(created.topic_id, created.version))
    except NotFound:
        return True
    except Conflict:
        return topic.log.current().head.topic_id != created.topic_id
    return True


def open_root(location: str | os.PathLike[str] | Store, *, create: bool = False, env: Env = SYSTEM) -> Root:
    """The root at a path, URL or store. `create`: make it one if it is none yet.

    `NotFound` if there is none, `BadRequest` if the location is a file or the root needs a newer sparklog, `Corrupt` if
    `_root.json` is damaged.
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
    return Root(store, root_id, env)
