"""Logs of transactional ids and groups that cannot be read, in a copy of some topics: what may be left out of it.

A copy of all topics has all ids and groups, or there is none. One of some topics does without those that have nothing
to do with them. A damaged log does not say what it is about, so everything else that may is asked:

| concerns the chosen topics                                            | because                                      |
|-----------------------------------------------------------------------|----------------------------------------------|
| an id that one of them names, open or recorded                        | its decision is missing, or its replay rule  |
| an id that has offsets of one of them pending in a group              | the same                                     |
| a log in whose objects one of them is named, damaged ones as text     | sound or not, this is what it is about       |
| a group whose newest entry is no text any more (zeros, cut off)       | it cannot be told                            |

What does is an error that names the file; everything else is left out, whole, and said. Names of topics stand beside
their ids in every object, so what flips one of the two leaves the other.

Dropping old backups, and what only they named.

A backup names its cut, and the versions before it back to the cut of the backup before: those commits, files,
checkpoints and entries stay as long as it does. Manifests go first, so that a backup is whole as long as it is seen;
then all that a backup may have written and no backup left names, what runs that died have copied included. What else
somebody keeps there stays. No backup runs meanwhile (see `place`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError
from sparklog.format.checksums import SUFFIXES
from sparklog.groups.state import GROUPS, GroupState
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.entry_log import Entry, EntryKind
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.journal.journal_cleanup import id_under
from sparklog.log.journal.names import GROUPS_FOLDER, TRANSACTIONS_FOLDER, checkpoint_key, commit_key, id_folder
from sparklog.log.state.history import History
from sparklog.retention.vacuum_plan import data_file
from sparklog.storage.store import ObjectInfo, Store
from sparklog.tools.backup.history import files_named, start_at
from sparklog.tools.backup.manifest import LeftOut, Manifest
from sparklog.tools.backup.repository import PRUNE, Mark, Place, backup_key, give_up_begun

E = TypeVar("E", bound=Entry)
T = TypeVar("T")
OTHER_BYTES = 4
"""Entries are one line of ASCII: more bytes that are something else, and it is no text."""


@dataclass
class Unread:
    """The logs that could not be read, by their folder; with `strict` the first one is raised instead."""

    store: Store
    strict: bool = True
    damage: dict[str, Corrupt | BadRequest] = field(default_factory=dict)

    def ids(self, kind: EntryKind[E]) -> Iterator[str]:
        """The ids that have entries."""
        for folder in self.store.list_folders(f"{kind.folder}/"):
            prefix = f"{kind.folder}/{folder}"
            found = self._read(prefix, lambda prefix=prefix: id_under(self.store, kind, prefix))  # type: ignore[misc]
            if found is not None and id_folder(found) == folder:
                yield found

    def read(self, kind: EntryKind[E], id_: str, look: Callable[[], T]) -> T | None:
        """What `look` finds in the log of an id; None if it is left out."""
        return self._read(kind.prefix(id_), look)

    def _read(self, prefix: str, look: Callable[[], T]) -> T | None:
        if prefix in self.damage:
            return None
        try:
            return look()
        except (Corrupt, BadRequest) as error:
            if self.strict:
                raise
            self.damage[prefix] = error
            return None

    def left_out(self) -> tuple[LeftOut, ...]:
        """What was left out so far."""
        return tuple(LeftOut(prefix, _id_of(prefix), str(error)) for prefix, error in sorted(self.damage.items()))

    def check(self, topics: Mapping[str, str], writers: Collection[str], groups: Iterable[GroupState]) -> None:
        """Raise what was met if it may concern the chosen topics.

        `topics`: their names and ids; `writers`: transactional ids that they name; `groups`: those that are copied.
        """
        for prefix, error in self.damage.items():
            named = self._concerned(prefix, topics, writers, groups)
            if named is None:
                continue
            why = f"; it {named}, so it cannot be left out"
            if isinstance(error, Corrupt):
                raise Corrupt(f"{error.message}{why}", file=error.file, position=error.position, offset=error.offset)
            raise BadRequest(f"{error}{why}")

    def _concerned(
        self, prefix: str, topics: Mapping[str, str], writers: Collection[str], groups: Iterable[GroupState]
    ) -> str | None:
        """How it does, in words."""
        if any(DECISIONS.prefix(each) == prefix for each in writers):
            return f"is of an id that wrote to {_listed(topics)}"
        for group in groups:
            for item in group.pending:
                if DECISIONS.prefix(item.txn) == prefix and any(each.topic in topics for each in item.offsets):
                    return f"has offsets pending in group '{group.id}'"
        newest = b""
        for info in self.store.list(f"{prefix}/_log/"):
            try:
                data = self.store.get(info.key)
            except NotFound:
                continue
            for name, topic_id in topics.items():
                if f'"topic":"{name}"'.encode() in data or (topic_id and f'"{topic_id}"'.encode() in data):
                    return f"names topic '{name}'"
            if info.key.startswith(f"{prefix}/_log/0"):
                newest = data
        if prefix.startswith(f"{GROUPS_FOLDER}/") and not _is_text(newest):
            return f"cannot be read at all, and may be about {_listed(topics)}"
        return None


def _id_of(prefix: str) -> str:
    """The id whose log lies there, as far as its folder says."""
    folder = prefix.partition("/")[2]
    return folder if folder.startswith("=") else unquote(folder)


def _listed(topics: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(topics))


def _is_text(data: bytes) -> bool:
    """Whether it is the line that it was written as, but for some bytes, to its end."""
    line = data.removesuffix(b"\n")
    others = sum(not 32 <= byte < 127 for byte in line)
    return others <= OTHER_BYTES and (line[-1:] == b"}" or b'"crc":' in line[-20:])


def shown_left_out(items: Iterable[LeftOut]) -> list[SparklogError]:
    """A line for each."""
    found: list[SparklogError] = []
    for item in items:
        kind = GROUPS if item.folder.startswith(f"{GROUPS_FOLDER}/") else DECISIONS
        found.append(Corrupt(f"{kind.title(item.id)} was left out, it names no chosen topic: {item.damage}"))
    return found


_LOG = re.compile(
    rf"(?:[^/]+|(?:{TRANSACTIONS_FOLDER}|{GROUPS_FOLDER})/[^/]+)/_log/"
    r"(?:[0-9]{20}\.json|checkpoints/[0-9]{20}(?:\.json|-[A-Za-z0-9_-]{1,64}\.arrow))"
)
CHUNK = 200
"""Deletions between two looks at the own mark."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """Numbers of backups kept and dropped; objects and bytes deleted (or, dry, to be)."""

    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    objects: int
    nbytes: int


def prune(
    target: Store,
    *,
    keep: int | None = None,
    keep_ms: int | None = None,
    dry_run: bool = False,
    env: Env = SYSTEM,
) -> Pruned:
    """Keep the newest `keep` backups and those completed within `keep_ms` of now; at least the newest one.

    Of each backup those count as newer that were asked for all of its topics.

    `BadRequest` without either; `Conflict` while a backup is at work; `Corrupt` if it cannot be told what is named.
    """
    place = Place.open(target)
    if keep is None and keep_ms is None:
        raise BadRequest("say how many backups to keep, or for how long")
    if (keep is not None and keep < 1) or (keep_ms is not None and keep_ms < 0):
        raise BadRequest("at least the newest backup is kept; expected 1 or more, and a time that is not negative")
    if dry_run:
        return _plan(place, keep, keep_ms, env)[0]
    with Mark(place, env, PRUNE) as mark:
        # From here on no run that is taken for dead can publish: what it copied may go.
        give_up_begun(target, place.root_id, env.wall_ms())
        pruned, dropped, victims = _plan(place, keep, keep_ms, env)
        keys = [backup_key(item.number) for item in dropped] + [info.key for info in victims]
        for start in range(0, len(keys), CHUNK):
            mark.check()
            for key in keys[start : start + CHUNK]:
                target.delete(key)
    return pruned


def _plan(
    place: Place, keep: int | None, keep_ms: int | None, env: Env
) -> tuple[Pruned, list[Manifest], list[ObjectInfo]]:
    found = place.manifests()
    since = None if keep_ms is None else env.wall_ms() - keep_ms
    kept = []
    for place_in, item in enumerate(found):
        # A backup of some topics stands in for none of all topics.
        newer = sum(_asked_for_all_of(each, item) for each in found[place_in + 1 :])
        by_count = keep is not None and newer < keep
        by_time = since is not None and item.completed_ms >= since
        if by_count or by_time or newer == 0:
            kept.append(item)
    dropped = [item for item in found if item not in kept]
    named: set[str] = set()
    for item in kept:
        named |= named_keys(place.store, item)
    victims = [info for info in place.store.list("") if info.key not in named and _of_backups(info)]
    nbytes = sum(info.size for info in victims)
    numbers = tuple(item.number for item in kept), tuple(item.number for item in dropped)
    return Pruned(*numbers, len(victims) + len(dropped), nbytes), dropped, victims


def _asked_for_all_of(item: Manifest, older: Manifest) -> bool:
    return item.only is None or (older.only is not None and set(older.only) <= set(item.only))


def _of_backups(info: ObjectInfo) -> bool:
    """Whether a backup may have written an object: what else somebody keeps here is not ours to delete."""
    return _LOG.fullmatch(info.key) is not None or data_file(info.key.partition("/")[0], info) is not None


def named_keys(store: Store, manifest: Manifest) -> set[str]:
    """Keys of all objects that a backup names, whether they are still there or not; not that of its manifest.

    `Corrupt` or `NotFound` if its logs are not whole.
    """
    keys: set[str] = set()
    for item in manifest.topics:
        history = History(store, item.topic)
        named = files_named(history, start_at(store, item.topic, history, item.base), item.version)
        if named.last.head.crc != item.crc:
            raise Corrupt(f"version {item.version} of topic '{item.topic}' is not what backup {manifest.number} says")
        keys |= {commit_key(item.topic, version) for version in range(item.base + 1, item.version + 1)}
        for version in {item.base, item.version} - {-1}:
            table = history.table_of(version)
            if table is None:
                raise Corrupt(f"checkpoint {version} of topic '{item.topic}' is damaged; nothing was deleted")
            keys |= {checkpoint_key(item.topic, version), table}
        keys |= _with_indexes(named.files)
    for kind, entries in ((DECISIONS, manifest.decisions), (GROUPS, manifest.groups)):
        for each in entries:
            prefix = kind.prefix(each.id)
            keys |= {commit_key(prefix, number) for number in range(each.first, each.number + 1)}
    return keys


def _with_indexes(files: Collection[str]) -> set[str]:
    beside = {f"{key.removesuffix('log')}{suffix}" for key in files if key.endswith(".log") for suffix in SUFFIXES}
    return {*files, *beside}
