"""Logs of entries (decisions, group offsets) that a backup takes in, and damaged ones that it leaves out.

Each entry carries the whole state, and a checkpoint is a copy of one: either of the two will do. A copy of all topics
has the logs of all ids and groups, or there is none. A copy of some topics does without damaged logs that have nothing
to do with these topics. A damaged log does not say what it is about, so everything else that may is asked:

| concerns the chosen topics                                            | because                                      |
|-----------------------------------------------------------------------|----------------------------------------------|
| an id that one of them names, open or recorded                        | its decision is missing, or its replay rule  |
| an id that has offsets of one of them pending in a group              | the same                                     |
| a log in whose objects one of them is named, damaged ones as text     | sound or not, this is what it is about       |
| a group whose newest entry is no text any more (zeros, cut off)       | it cannot be told                            |

A log that concerns them is an error that names the file; any other is left out, whole, and listed. Names of topics
are next to their ids in every object, so what flips one of the two leaves the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar
from urllib.parse import unquote

from sparklog.errors import BadRequest, Corrupt, SparklogError
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.chain import EntryChain, id_in
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.journal.entry_log import E, EntryKind
from sparklog.log.topic.backup_manifest import LeftOut
from sparklog.maintenance.journals import JOURNAL_IN
from sparklog.storage.store import Store

P = ParamSpec("P")
T = TypeVar("T")
OTHER_BYTES = 4
"""Entries are one line of ASCII: with more other bytes than these it is no text."""


@dataclass
class DamagedLogs:
    """Logs that cannot be read, by their folder; with `strict` the first one is raised instead."""

    store: Store
    strict: bool = True
    damage: dict[str, Corrupt | BadRequest] = field(default_factory=dict)
    env: Env | None = None
    """Of a live root, where caches of names may hide entries for a while."""

    def chains(self, kind: EntryKind[E]) -> Iterator[EntryChain[E]]:
        """Yield the logs of a kind that can be read."""
        for folder in self.store.list_folders(f"{kind.folder}/"):
            id_ = self.read(f"{kind.folder}/{folder}", id_in, self.store, kind, folder)
            if id_ is not None:
                yield EntryChain(self.store, kind, id_, self.env)

    def read(self, prefix: str, look: Callable[P, T], *args: P.args, **named: P.kwargs) -> T | None:
        """Call `look`, which reads the log under a prefix; None if the log is left out."""
        if prefix in self.damage:
            return None
        try:
            return look(*args, **named)
        except (Corrupt, BadRequest) as error:
            if self.strict:
                raise
            self.damage[prefix] = error
            return None

    def left_out(self) -> tuple[LeftOut, ...]:
        return tuple(LeftOut(prefix, _id_of(prefix), str(error)) for prefix, error in sorted(self.damage.items()))

    def check(self, topics: Mapping[str, str], writers: Collection[str], groups: Iterable[GroupState]) -> None:
        """Raise what was met if it may concern the chosen topics.

        `topics`: their names and ids; `writers`: transactional ids that they name; `groups`: those that are copied.
        """
        for prefix, error in self.damage.items():
            if (named := self._concerned(prefix, topics, writers, groups)) is not None:
                why = f"; it {named}, so it cannot be left out"
                if isinstance(error, BadRequest):
                    raise BadRequest(f"{error}{why}")
                raise Corrupt(f"{error.message}{why}", file=error.file, position=error.position, offset=error.offset)

    def _concerned(
        self, prefix: str, topics: Mapping[str, str], writers: Collection[str], groups: Iterable[GroupState]
    ) -> str | None:
        """Say how a damaged log concerns the chosen topics; None if it does not."""
        if prefix in map(DECISIONS.prefix, writers):
            return f"is of an id that wrote to {_listed(topics)}"
        for group in groups:
            for item in group.pending:
                if DECISIONS.prefix(item.txn) == prefix and any(offsets.topic in topics for offsets in item.offsets):
                    return f"has offsets pending in group '{group.id}'"
        newest = b""
        for info in self.store.list(f"{prefix}/_log/"):
            data = read_if_there(self.store, info.key)
            if data is None:
                continue
            for name, topic_id in topics.items():
                if f'"topic":"{name}"'.encode() in data or (topic_id and f'"{topic_id}"'.encode() in data):
                    return f"names topic '{name}'"
            if info.key.startswith(f"{prefix}/_log/0"):
                newest = data
        if prefix.startswith(f"{GROUPS.folder}/") and not _is_text(newest):
            return f"cannot be read at all, and may be about {_listed(topics)}"
        return None


def _id_of(prefix: str) -> str:
    """Return the id whose log is there, as far as its folder says."""
    folder = prefix.partition("/")[2]
    return folder if folder.startswith("=") else unquote(folder)


def _listed(topics: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(topics))


def _is_text(data: bytes) -> bool:
    """True if it is a line of JSON to its end, but for some bytes."""
    line = data.removesuffix(b"\n")
    others = sum(not 32 <= byte < 127 for byte in line)
    return others <= OTHER_BYTES and (line[-1:] == b"}" or b'"crc":' in line[-20:])


def shown_left_out(items: Iterable[LeftOut]) -> list[SparklogError]:
    errors: list[SparklogError] = []
    for item in items:
        kind = JOURNAL_IN[item.folder.partition("/")[0]]
        errors.append(Corrupt(f"{kind.title(item.id)} was left out, it names no chosen topic: {item.damage}"))
    return errors
