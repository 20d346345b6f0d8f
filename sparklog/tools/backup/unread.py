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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError
from sparklog.groups.state import GROUPS, GroupState
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.entry_log import Entry, EntryKind
from sparklog.log.journal.journal_cleanup import id_under
from sparklog.log.journal.names import GROUPS_FOLDER, id_folder
from sparklog.storage.store import Store
from sparklog.tools.backup.manifest import LeftOut


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
