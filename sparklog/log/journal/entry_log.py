"""Journals whose entries each carry the whole state after them: offsets of consumer groups, transaction decisions.

As the newest entry has it all, a checkpoint is a copy of one under `_log/checkpoints/`. It saves a process that opens
the journal from reading all the entries before.

The members that every entry begins with, and the last one:

| member        | meaning                                                                                            |
|---------------|----------------------------------------------------------------------------------------------------|
| format        | 1                                                                                                  |
| readFeatures  | features a reader must know from here on                                                           |
| writeFeatures | features a writer must know from here on                                                           |
| number        | the number in its name, from 0                                                                     |
| id            | the group or transactional id (the folder may be encoded or a hash)                                |
| commitId      | random, the same for all tries: after a lost answer it says "this is mine"                         |
| prevCrc       | CRC-32C of all bytes of the entry before; null at 0                                                |
| timeMs        | max(the writer's clock, the entry before)                                                          |
| clockMs       | when it was made, if a wrong clock has left `timeMs` ahead of that (`clock`)                       |
| clockSince    | the newest entry since which the times when entries were made go on; left out where there is none  |
| ...           | the members of its kind                                                                            |
| crc           | CRC-32C of the bytes before this member                                                            |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import crc32c

from sparklog.errors import BadRequest, Corrupt
from sparklog.log.journal.documents import (
    KNOWN_WRITE_FEATURES,
    TEXT,
    TEXTS,
    UINT32_MAX,
    Member,
    StoredDocument,
    whole,
)
from sparklog.log.journal.env import next_times
from sparklog.log.journal.journal import Journal, Known, RootAccess
from sparklog.log.journal.names import checkpoint_key

ENTRY_MEMBERS = (
    Member("readFeatures", TEXTS),
    Member("writeFeatures", TEXTS),
    Member("number", whole(0)),
    Member("id", TEXT),
    Member("commitId", TEXT),
    Member("prevCrc", whole(0, UINT32_MAX), nullable=True),
    Member("timeMs", whole(0)),
    Member("clockMs", whole(0), optional=True),
    Member("clockSince", whole(0), optional=True),
)
"""The members that every entry begins with."""
CHECKPOINT_ENTRIES = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest entry of an id, and so its state; `number` -1 is an id without entries. `nbytes` of the entry."""

    id: str
    number: int = -1
    commit_id: str = ""
    prev_crc: int | None = None
    time_ms: int = 0
    read_features: tuple[str, ...] = ()
    write_features: tuple[str, ...] = ()
    clock_ms: int | None = None
    clock_since: int | None = None
    crc: int | None = field(default=None, compare=False)
    nbytes: int = field(default=0, compare=False)

    @property
    def made_ms(self) -> int:
        """Time when it was made, in ms."""
        return self.time_ms if self.clock_ms is None else self.clock_ms


E = TypeVar("E", bound=Entry)
Step = Callable[[E], E | None]
"""The state after one more entry, None if there is nothing to write; raises where the state does not allow it."""


@dataclass(frozen=True, slots=True)
class EntryKind(Generic[E]):
    """A kind of entries: offsets of groups or decisions. Journals lie below `folder`, that of an id under `prefix(id)`.

    `owner` and `what` are for messages: "transactional id", "decisions". `decode(data, key, number)` raises
    `BadRequest` if the entry needs a newer sparklog, `Corrupt` naming `key` if it is damaged or another entry.
    """

    folder: str
    prefix: Callable[[str], str]
    owner: str
    what: str
    empty: Callable[[str], E]
    encode: Callable[[E], bytes]
    decode: Callable[[bytes, str, int], E]

    def title(self, id_: str) -> str:
        """Return the name of an id in messages."""
        return f"{self.owner} '{id_}'"


def decode_entry(table: StoredDocument[E], data: bytes, key: str, number: int) -> E:
    """The entry in `data`, which lay under `key` as `number`.

    `BadRequest` if it needs a newer sparklog; `Corrupt` naming `key` if it is damaged or is another entry.
    """
    item = table.fields(data, key)
    if (stored := item.integer("number", 0)) != number:
        raise Corrupt(f"entry {number} should lie here, found entry {stored}; restore it", file=key)
    return table.from_json(item, crc=crc32c.crc32c(data), nbytes=len(data))


class EntryLog(Journal[E, E, E]):
    """The journal of one id. Each entry is the whole state after it, and a checkpoint is a copy of one."""

    def __init__(self, root: RootAccess, kind: EntryKind[E], id_: str) -> None:
        super().__init__(root, kind.prefix(id_), kind.title(id_))
        self.kind = kind
        self.id = id_

    def write(self, step: Step[E]) -> E:
        """Take a step: create the entry it makes of the newest state; the newest state after it.

        Raises what the step raises on the newest state, and `Unavailable` if the outcome stays unknown.
        """
        return self._write(step)[1].state

    def _empty(self) -> E:
        return self.kind.empty(self.id)

    def _decode(self, data: bytes, key: str, number: int) -> E:
        entry = self.kind.decode(data, key, number)
        if entry.id != self.id:
            raise Corrupt(f"{self.kind.what} of '{self.id}' should lie here, found those of '{entry.id}'", file=key)
        return entry

    def _encode(self, draft: E, state: E, commit_id: str) -> bytes:
        unknown = sorted(set(state.write_features) - KNOWN_WRITE_FEATURES)
        if unknown:
            raise BadRequest(f"{self.title} needs the sparklog features {', '.join(unknown)}; upgrade sparklog")
        number = state.number + 1
        times = next_times(state, number, self.env.wall_ms(), self._guard.store_ms())
        return self.kind.encode(
            replace(
                draft,
                number=number,
                commit_id=commit_id,
                prev_crc=state.crc,
                time_ms=times.time_ms,
                clock_ms=times.clock_ms,
                clock_since=times.clock_since,
            )
        )

    def _applied(self, state: E, entries: Sequence[E]) -> E:
        for entry in entries:
            if entry.prev_crc != state.crc:
                raise Corrupt(
                    f"the chain of {self.kind.what} is broken: entry {entry.number} was made after an entry with "
                    f"CRC-32C {entry.prev_crc}, entry {state.number} has {state.crc}; one of the two is not what was "
                    "written",
                    file=self.key(entry.number),
                )
            state = entry
        return state

    @property
    def _entries_per_checkpoint(self) -> int:
        return CHECKPOINT_ENTRIES

    def _decode_checkpoint(self, data: bytes, key: str, number: int) -> E:
        return self._decode(data, key, number)

    def _write_checkpoint(self, known: Known[E]) -> Known[E]:
        state = known.state
        key = checkpoint_key(self.prefix, state.number)
        if self.store.create(key, self.kind.encode(state)):
            self._numbered.drop_unless_here(key, state.number, state.crc)
        return self._publish(replace(known, checkpoint=state.number, tail_bytes=0))
