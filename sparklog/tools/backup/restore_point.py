"""The state that a restore brings back: from a backup or a live root, of a number, a version or a time, or the newest.

An error says which state can be restored instead. A time lies in the first backup that was begun after it, as far back
as that backup has all files; a live root goes back as far as its vacuum has kept files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sparklog.errors import BadRequest, Corrupt, NotFound, nearest
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.entry_log import Entry, EntryKind
from sparklog.log.journal.env import iso_time, newest_at
from sparklog.log.journal.names import is_topic_name
from sparklog.log.state.commit_log import CommitLog
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.topic_state import EMPTY, Head
from sparklog.log.topic.root import Root
from sparklog.storage.store import Store
from sparklog.tools.backup.consistent_cut import Bounds, Cut, Span, committed_in, cut_between, cut_now
from sparklog.tools.backup.copying import listed
from sparklog.tools.backup.history import files_named, oldest_base, start_at
from sparklog.tools.backup.manifest import DamagedLogs, EntriesBackup, EntryChain, Manifest, TopicBackup
from sparklog.tools.backup.repository import Repository

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The state to bring back: at most one of `number` (of a backup), `version` (of one topic) and `time_ms`.

    `topics`: only these; None: all.
    """

    topics: tuple[str, ...] | None = None
    number: int | None = None
    version: int | None = None
    time_ms: int | None = None

    def check(self) -> None:
        """`BadRequest` if more than one is given, or a version without its topic."""
        if sum(item is not None for item in (self.number, self.version, self.time_ms)) > 1:
            raise BadRequest("give one of a backup's number, a version and a time")
        if self.version is not None and (self.topics is None or len(self.topics) != 1):
            raise BadRequest("a version is one of one topic: name the topic, or give a time")


def _unknown(name: str, names: Collection[str], where: str) -> NotFound:
    similar = nearest(name, names, limit=1)
    hint = f"; did you mean '{similar[0]}'?" if similar else ""
    return NotFound(f"there is no topic '{name}' in {where}{hint}")


# -- from backups


def from_backups(repository: Repository, wanted: Wanted) -> tuple[Manifest, Cut]:
    """The backup and the cut that is wanted of it."""
    wanted.check()
    if wanted.version is not None:
        return _version_in(repository, (wanted.topics or ("",))[0], wanted.version)
    if wanted.time_ms is not None:
        return _time_in(repository, wanted.time_ms, wanted.topics)
    manifest = repository.chosen(wanted.number, wanted.topics)
    items = _items(manifest, wanted.topics)
    topics = {item.topic: (_head(repository.store, item.topic, item.version), item.version) for item in items}
    # The manifest is a cut: what it has of ids and groups fits as it is.
    return manifest, Cut(
        {name: head for name, (head, _) in topics.items()},
        {item.id: _entry(repository.store, DECISIONS, item) for item in manifest.decisions},
        {item.id: _entry(repository.store, GROUPS, item) for item in manifest.groups},
        manifest.left_out,
    )


def _entry(store: Store, kind: EntryKind[E], item: EntriesBackup) -> E:
    entry = EntryChain(store, kind, item.id).at(item.number)
    if entry is None:
        raise NotFound(f"entry {item.number} of '{item.id}' is missing in {store.location}; take another backup")
    return entry


def _items(manifest: Manifest, topics: tuple[str, ...] | None) -> list[TopicBackup]:
    if topics is None:
        return list(manifest.topics)
    items = {item.topic: item for item in manifest.topics}
    for name in topics:
        if name not in items:
            raise _unknown(name, items, f"backup {manifest.number}")
    return [items[name] for name in topics]


def _head(store: Store, topic: str, version: int) -> Head:
    return History(store, topic).at(version).head if version >= 0 else EMPTY


def _spans(items: Collection[EntriesBackup]) -> dict[str, Span]:
    return {item.id: Span(item.first, item.number) for item in items}


def _version_in(repository: Repository, topic: str, version: int) -> tuple[Manifest, Cut]:
    ranges = []
    for manifest in repository.manifests():
        item = manifest.topic(topic)
        if item is None:
            continue
        ranges.append(f"{item.since} to {item.version}" if item.since < item.version else str(item.version))
        if item.since <= version <= item.version:
            return manifest, _cut(repository.store, manifest, {topic: version}, None)
    if not ranges:
        raise NotFound(f"there is no backup of topic '{topic}' in {repository.store.location}")
    raise NotFound(f"version {version} of topic '{topic}' is in no backup; there are versions {', '.join(ranges)}")


def _time_in(repository: Repository, time_ms: int, topics: tuple[str, ...] | None) -> tuple[Manifest, Cut]:
    manifests = repository.covering(topics)
    manifest = next((item for item in manifests if item.started_ms >= time_ms), None)
    if manifest is None:
        raise NotFound(
            f"the newest backup was begun at {iso_time(manifests[-1].started_ms)}, before {iso_time(time_ms)}: take "
            "another one, or give `latest`"
        )
    versions = {}
    for item in _items(manifest, topics):
        version = _version_at(repository.store, item, time_ms)
        if version is None:
            continue
        if version < item.since:
            raise NotFound(
                f"topic '{item.topic}' can be restored as of {iso_time(item.since_ms)} to "
                f"{iso_time(manifest.started_ms)} from backup {manifest.number}, and as of the backups before it; not "
                f"of {iso_time(time_ms)}"
            )
        versions[item.topic] = version
    return manifest, _cut(repository.store, manifest, versions, time_ms)


def _version_at(store: Store, item: TopicBackup, time_ms: int) -> int | None:
    """The newest version not made after a time; None: the topic was made later."""
    history = History(store, item.topic)
    version = newest_at(history.commit, item.base + 1, item.version, time_ms)
    if version > item.base:
        return version
    if item.base < 0:
        return None
    # Made before the base, or a version that only an older backup has.
    return item.base if history.at(item.base).head.made_ms <= time_ms else -1


def _cut(store: Store, manifest: Manifest, versions: Mapping[str, int], time_ms: int | None) -> Cut:
    topics, committed = {}, set()
    for item in manifest.topics:
        if item.topic in versions:
            base = start_at(store, item.topic, History(store, item.topic), item.base)
            topics[item.topic] = (base.head, versions[item.topic])
            committed |= committed_in(base.slices)
    damaged = DamagedLogs(store, damage={item.folder: Corrupt(item.damage) for item in manifest.left_out})
    return _cut_at(
        store, Bounds(topics, _spans(manifest.decisions), _spans(manifest.groups), committed), time_ms, damaged
    )


def _cut_at(store: Store, bounds: Bounds, time_ms: int | None, damaged: DamagedLogs) -> Cut:
    """The least cut at or above these versions and what ids and groups had written by `time_ms`.

    None: just these versions, with what had been written when the newest of them was committed.
    """
    if time_ms is not None:
        _check_groups(store, bounds, time_ms, damaged)
        return cut_between(store, bounds, time_ms, damaged, exact=False)
    newest_ms = max(_head(store, name, version).made_ms for name, (_, version) in bounds.topics.items())
    return cut_between(store, bounds, newest_ms, damaged, exact=True)


def _check_groups(store: Store, bounds: Bounds, time_ms: int, damaged: DamagedLogs) -> None:
    """`NotFound` if it is no longer known how far a group had read one of these topics by a time.

    What it had read later would drag its topics along, away from that time.
    """
    for name, span in bounds.groups.items():
        chain = EntryChain(store, GROUPS, name)
        state = damaged.read(GROUPS, name, partial(_first_after, chain, span, time_ms)) if span.first > 0 else None
        if state is not None and _topics_of(state) & set(bounds.topics):
            raise NotFound(
                f"group '{name}' can be restored as of {iso_time(state.made_ms)} and later, not of {iso_time(time_ms)}"
                ": what its offsets were is no longer kept; choose a later time, or a version of one topic"
            )


def _first_after(chain: EntryChain[E], span: Span, time_ms: int) -> E | None:
    """The first entry that is kept, if even that is younger than a time."""
    return chain.at(span.first) if chain.number_at(time_ms, span.first, span.last) < span.first else None


def _topics_of(state: GroupState) -> set[str]:
    return {item.topic for item in [*state.offsets, *(each for waiting in state.pending for each in waiting.offsets)]}


# -- from a live root


def from_root(root: Root, wanted: Wanted) -> Cut:
    """The cut that is wanted of a root as it is, or as it was as far as its files are still there."""
    wanted.check()
    if wanted.number is not None:
        raise BadRequest(f"{root.location} is a root and holds no backups: give a version or a time")
    store = root.store
    if wanted.topics is not None:
        names = [name for name in store.list_folders("") if is_topic_name(name)]
        for name in wanted.topics:
            if name not in names:
                raise _unknown(name, names, root.location)
    if wanted.version is None and wanted.time_ms is None:
        return cut_now(root, wanted.topics)
    topics, committed = {}, set()
    damaged = DamagedLogs(store, strict=wanted.topics is None)
    for name in wanted.topics or [name for name in store.list_folders("") if is_topic_name(name)]:
        base_and_version = _as_of(root, name, wanted)
        if base_and_version is None:
            continue
        base, version = base_and_version
        topics[name] = (base.head, version)
        committed |= committed_in(base.slices)
    groups = {name: Span(*EntryChain(store, GROUPS, name).run()) for name in damaged.ids(GROUPS)}
    decisions = {name: Span(*EntryChain(store, DECISIONS, name).run()) for name in damaged.ids(DECISIONS)}
    return _cut_at(store, Bounds(topics, decisions, groups, committed), wanted.time_ms, damaged)


def _as_of(root: Root, name: str, wanted: Wanted) -> tuple[Snapshot, int] | None:
    """The oldest state known and the version wanted; None: the topic was made later. `NotFound`: files are gone."""
    log: CommitLog = root.topic_handle(name).log
    newest = log.refresh().head.version
    if newest < 0:
        if wanted.topics is not None:
            root.topic(name)
        return None
    history = History(root.store, name)
    oldest = oldest_base(history, newest)
    base = start_at(root.store, name, history, oldest)
    if wanted.version is not None:
        version = wanted.version
        if not max(oldest, 0) <= version <= newest:
            raise NotFound(f"topic '{name}' has versions {max(oldest, 0)} to {newest}, found {version}")
    else:
        try:
            version = history.version_at(wanted.time_ms or 0)
        except NotFound:
            if oldest < 0:
                return None
            raise
        version = min(version, newest)
    named = files_named(history, base, newest)
    present = listed(root.store, {key.split("/", 1)[0] for key in named.files})
    since = named.since({key: None for key in named.files if key not in present})
    if version < since:
        first = named.times.get(since, 0)
        raise NotFound(
            f"files of version {version} of topic '{name}' are gone: from this root it can be restored from version "
            f"{since} ({iso_time(first)}) on; older ones from a backup"
        )
    return base, version
