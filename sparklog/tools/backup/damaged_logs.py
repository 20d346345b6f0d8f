"""The journals of decisions and group offsets that a cut reads, and the damaged journals that a backup skips.

Each entry contains the complete state, and a checkpoint of a journal is a copy of an entry. Therefore the entry or the
checkpoint is sufficient. A backup of all topics must contain the journals of all ids and groups. A backup of selected
topics can skip damaged journals that do not concern these topics. A damaged journal may not show which topics it
concerns, so other objects are checked. A journal concerns the selected topics if it is one of the following journals:

| journal                                                                  | reason                                   |
|--------------------------------------------------------------------------|------------------------------------------|
| of an id with open or recorded transactions in a selected topic          | its decision or replay rule is missing   |
| of an id with pending offsets of a selected topic in a group             | its decision is missing                  |
| whose objects contain the name or id of a selected topic as text         | it references the topic                  |
| of a group whose latest entry is not text any more (zeros, truncated)    | it may reference any topic               |

If a damaged journal concerns the selected topics, an error with the file is raised. Other damaged journals are skipped
completely and listed. Objects contain both the name and the id of a topic, so the topic can still be found if the name
or the id is corrupt.
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
from sparklog.log.topic.backup_manifest import DamagedJournal
from sparklog.maintenance.journals import JOURNAL_IN
from sparklog.storage.store import Store

P = ParamSpec("P")
T = TypeVar("T")
MAX_OTHER_BYTES = 4
"""Maximum number of non-ASCII bytes in a damaged entry that is still considered text. An entry is a line of ASCII text.
"""


@dataclass
class DamagedLogs:
    """Journals that cannot be read.

    Attributes:
        strict: raise the first error instead of recording it.
        damage: the error of each damaged journal, by directory.
        env: the environment of a live root, in which a cache may temporarily hide entries.
    """

    store: Store
    strict: bool = True
    damage: dict[str, Corrupt | BadRequest] = field(default_factory=dict)
    env: Env | None = None

    def chains(self, kind: EntryKind[E]) -> Iterator[EntryChain[E]]:
        """Yield the readable journals of a kind."""
        for folder in self.store.list_folders(f"{kind.folder}/"):
            id_ = self.read(f"{kind.folder}/{folder}", id_in, self.store, kind, folder)
            if id_ is not None:
                yield EntryChain(self.store, kind, id_, self.env)

    def read(self, prefix: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call a function that reads the journal under a prefix. Return None if the journal is damaged."""
        if prefix in self.damage:
            return None
        try:
            return function(*args, **kwargs)
        except (Corrupt, BadRequest) as error:
            if self.strict:
                raise
            self.damage[prefix] = error
            return None

    def left_out(self) -> tuple[DamagedJournal, ...]:
        return tuple(
            DamagedJournal(prefix, _id_of(prefix), str(error)) for prefix, error in sorted(self.damage.items())
        )

    def check(self, topics: Mapping[str, str], writers: Collection[str], groups: Iterable[GroupState]) -> None:
        """Raise the error of a damaged journal that may concern the selected topics.

        Args:
            topics: the ids of the topics by name.
            writers: the transactional ids that occur in the topics.
            groups: the groups that are copied.
        """
        for prefix, error in self.damage.items():
            if (relation := self._relation(prefix, topics, writers, groups)) is not None:
                why = f"; the journal cannot be skipped, because it {relation}"
                if isinstance(error, BadRequest):
                    raise BadRequest(f"{error}{why}")
                raise Corrupt(f"{error.message}{why}", file=error.file, position=error.position, offset=error.offset)

    def _relation(
        self, prefix: str, topics: Mapping[str, str], writers: Collection[str], groups: Iterable[GroupState]
    ) -> str | None:
        """Return the reason why a damaged journal concerns the selected topics, or None if it does not concern them."""
        if prefix in map(DECISIONS.prefix, writers):
            return f"belongs to a transactional id that wrote to {_quoted(topics)}"
        for group in groups:
            for pending in group.pending:
                is_same_id = DECISIONS.prefix(pending.txn) == prefix
                if is_same_id and any(offsets.topic in topics for offsets in pending.offsets):
                    return f"has pending offsets in group '{group.id}'"
        latest = b""
        for info in self.store.list(f"{prefix}/_log/"):
            data = read_if_there(self.store, info.key)
            if data is None:
                continue
            for name, topic_id in topics.items():
                if f'"topic":"{name}"'.encode() in data or (topic_id and f'"{topic_id}"'.encode() in data):
                    return f"contains topic '{name}'"
            if info.key.startswith(f"{prefix}/_log/0"):
                latest = data
        if prefix.startswith(f"{GROUPS.folder}/") and not _is_text(latest):
            return f"is unreadable and may concern {_quoted(topics)}"
        return None


def _id_of(prefix: str) -> str:
    """Return the id of a journal. The id is decoded from the directory name if possible."""
    folder = prefix.partition("/")[2]
    return folder if folder.startswith("=") else unquote(folder)


def _quoted(topics: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(topics))


def _is_text(data: bytes) -> bool:
    """Return True if the data is a complete line of JSON in which at most `MAX_OTHER_BYTES` bytes are not ASCII."""
    line = data.removesuffix(b"\n")
    others = sum(not 32 <= byte < 127 for byte in line)
    return others <= MAX_OTHER_BYTES and (line[-1:] == b"}" or b'"crc":' in line[-20:])


def errors_of_skipped(skipped: Iterable[DamagedJournal]) -> list[SparklogError]:
    """Return an error message for each skipped journal."""
    errors: list[SparklogError] = []
    for journal in skipped:
        title = JOURNAL_IN[journal.folder.partition("/")[0]].title(journal.id)
        errors.append(Corrupt(f"{title} was skipped, because it does not concern a selected topic: {journal.damage}"))
    return errors
