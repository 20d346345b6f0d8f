"""Journals whose entries each contain the complete state, such as the journals of consumer groups and decisions.

Since the latest entry contains the complete state, a checkpoint is a copy of an entry under `_log/checkpoints/`.
Maintenance deletes entries and checkpoints below the second latest valid checkpoint.
docs/reference/format-transactions.md describes the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Generic, TypeVar

from sparklog.errors import BadRequest, Corrupt, SparklogError
from sparklog.format import crc32c
from sparklog.log.journal.clocks import next_times
from sparklog.log.journal.documents import (
    KNOWN_WRITE_FEATURES,
    TEXT,
    TEXTS,
    UINT32_MAX,
    Member,
    StoredDocument,
    members,
    whole,
)
from sparklog.log.journal.journal import Journal
from sparklog.log.journal.names import (
    CHECKPOINT_FOLDER,
    checkpoint_key,
    checkpoint_prefix,
    commit_key,
    entry_number,
    id_folder,
    list_entries,
)
from sparklog.log.journal.seen_state import RootAccess, SeenState
from sparklog.storage.store import ObjectInfo

ENTRY_MEMBERS = (
    *members(TEXTS, "readFeatures", "writeFeatures"),
    Member("number", whole(0)),
    *members(TEXT, "id", "commitId"),
    Member("prevCrc", whole(0, UINT32_MAX), nullable=True),
    Member("timeMs", whole(0)),
    *members(whole(0), "clockMs", "clockSince", optional=True),
)
"""The fields at the start of every entry."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """The latest entry of an id, which contains the state of the id. `number` is -1 if the id has no entries."""

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
    def created_ms(self) -> int:
        return self.time_ms if self.clock_ms is None else self.clock_ms


E = TypeVar("E", bound=StateEntry)
Step = Callable[[E], E | None]
"""Returns the state after one more entry, or None if there is nothing to write.

Raises an error if the entry is not allowed in this state.
"""


@dataclass(frozen=True, slots=True)
class EntryKind(Generic[E]):
    """A kind of journal, for example for consumer groups. `sparklog.maintenance.journals` lists all kinds."""

    folder: str  # directory that contains the journals of all ids
    owner: str  # name of the owner in messages, such as "transactional id"
    what: str  # name of the content in messages, such as "decisions"
    noun: str  # name of an entry in the findings of verify, such as "decision"
    empty: Callable[[str], E]
    table: StoredDocument[E]
    per_checkpoint: int | None = None  # number of entries between two checkpoints, or None for the value in `Limits`
    old_entry: str | None = None  # name of old entries in the report of retain, or None if old entries are not deleted

    def prefix(self, id_: str) -> str:
        return f"{self.folder}/{id_folder(id_)}"

    def title(self, id_: str) -> str:
        return f"{self.owner} '{id_}'"

    def decode(self, data: bytes, key: str, number: int) -> E:
        """Decode the entry in `data`. Raises `BadRequest` if the entry requires a newer sparklog release, and `Corrupt`
        if the entry is damaged or has another number.
        """
        item = self.table.fields(data, key)
        if (stored := item.integer("number", 0)) != number:
            raise Corrupt(f"expected entry {number}, found entry {stored}; restore it", file=key)
        return self.table.from_json(item, crc=crc32c.crc32c(data), nbytes=len(data))

    def decode_of(self, id_: str, data: bytes, key: str, number: int) -> E:
        """Decode an entry of an id. Also raises `Corrupt` if the entry belongs to another id."""
        entry = self.decode(data, key, number)
        if entry.id != id_:
            raise Corrupt(f"expected {self.what} of '{id_}', found {self.what} of '{entry.id}'; restore it", file=key)
        return entry

    def decode_in(self, prefix: str, data: bytes, key: str, number: int) -> E:
        """Decode an entry of the journal under a prefix. Also raises `Corrupt` if the id of the entry has another
        prefix.
        """
        entry = self.decode(data, key, number)
        if self.prefix(entry.id) != prefix:
            raise Corrupt(f"{self.what} of '{entry.id}' do not belong to this directory", file=key)
        return entry


class EntryLog(Journal[E, E, E]):
    """The journal of one id. Each entry contains the complete state, and a checkpoint is a copy of an entry."""

    def __init__(self, root: RootAccess, kind: EntryKind[E], id_: str) -> None:
        super().__init__(root, kind.prefix(id_), kind.title(id_))
        self.kind = kind
        self.id = id_

    def write(self, step: Step[E]) -> E:
        """Create the entry that `step` returns for the latest state, and return the new state (see `_write`)."""
        return self._write(step)[1].state

    def latest_entries(self, limit: int) -> list[E]:
        """Read up to `limit` entries, latest first.

        Older entries may be deleted. Raises `Corrupt` if an entry is damaged.
        """
        latest, entries = self.refresh().number, list[E]()
        for number in range(latest, max(latest - limit, -1), -1):
            data = self._numbered.read(number)
            if data is None:
                break
            entries.append(self._decode(data, self.key(number), number))
        return entries

    def _empty(self) -> E:
        return self.kind.empty(self.id)

    def _decode(self, data: bytes, key: str, number: int) -> E:
        return self.kind.decode_of(self.id, data, key, number)

    def _encode(self, draft: E, state: E, commit_id: str) -> bytes:
        if not KNOWN_WRITE_FEATURES.issuperset(state.write_features):
            unknown = ", ".join(sorted(set(state.write_features) - KNOWN_WRITE_FEATURES))
            raise BadRequest(f"{self.title} requires the sparklog features {unknown}; upgrade sparklog")
        number, now_ms = state.number + 1, self.env.wall_ms()
        times = next_times(state, number, now_ms, self._guard.store_ms(now_ms))
        chained = replace(draft, number=number, commit_id=commit_id, prev_crc=state.crc, **times)
        return self.kind.table.encode(chained)

    def _applied(self, state: E, entries: Sequence[E]) -> E:
        for entry in entries:
            if entry.prev_crc != state.crc:
                raise Corrupt(
                    f"the chain of {self.kind.what} is broken: entry {entry.number} follows an entry with CRC-32C "
                    f"{entry.prev_crc}, but entry {state.number} has CRC-32C {state.crc}; one of them is corrupt, or "
                    "the store does not create objects exclusively (sparklog doctor tests this)",
                    file=self.key(entry.number),
                )
            state = entry
        return state

    @property
    def _entries_per_checkpoint(self) -> int:
        return self.kind.per_checkpoint or self.store.limits.checkpoint_entries

    def _decode_checkpoint(self, data: bytes, key: str, number: int) -> E:
        return self._decode(data, key, number)

    def _write_checkpoint(self, base: SeenState[E]) -> SeenState[E]:
        state = base.state
        key = checkpoint_key(self.prefix, state.number)
        self._numbered.create_copy(key, self.kind.table.encode(state), state.number, state.crc)
        return self._publish(replace(base, checkpoint=state.number, tail_bytes=0))


KEEP_MS = 7 * 86_400_000
"""Default retention time of entries, which is the retention time of commits."""


def collect_log(log: EntryLog[E], now_ms: int, *, dry_run: bool) -> tuple[int, int]:
    """Delete a journal if a listing contains its latest entry and all of the journal's objects are at least a week old.

    The remaining entries never have a gap: entries below the latest checkpoint are deleted first, then the other
    entries from the latest one backwards, and the latest checkpoint last. Returns the number and total size in bytes of
    the deleted objects.
    """
    objects = list(log.store.list(f"{log.prefix}/_log/"))
    latest = log.current().number
    if latest >= 0 and all(info.key != log.key(latest) for info in objects):
        return 0, 0
    if not objects or now_ms - max(info.modified_ms for info in objects) < KEEP_MS:
        return 0, 0
    if not dry_run:
        for info in _without_gaps(objects):
            log.store.delete(info.key)
    return len(objects), sum(info.size for info in objects)


def _without_gaps(objects: Sequence[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Yield the objects of a journal in the order in which `collect_log` deletes them."""
    copies = [info for info in objects if f"/{CHECKPOINT_FOLDER}/" in info.key]
    latest = max((entry_number(info.key) or 0 for info in copies), default=-1)
    last = [info for info in copies if entry_number(info.key) == latest]
    others = [info for info in objects if info not in last]
    yield from (info for info in others if (entry_number(info.key) or 0) < latest)
    yield from reversed([info for info in others if (entry_number(info.key) or 0) >= latest])
    yield from last


@dataclass
class Collected:
    """The objects and bytes that a collection deleted or, in a dry run, would delete, and the errors of unreadable
    journals.
    """

    objects: int = 0
    nbytes: int = 0
    failures: list[SparklogError] = field(default_factory=list)

    def add(self, deleted: tuple[int, int]) -> None:
        self.objects, self.nbytes = self.objects + deleted[0], self.nbytes + deleted[1]

    def collect_each(self, ids: Iterable[str], collect: Callable[[str], None]) -> None:
        for id_ in ids:
            try:
                collect(id_)
            except SparklogError as error:
                self.failures.append(error)


def collect_entries(
    log: EntryLog[E], now_ms: int, *, keep_ms: int = KEEP_MS, needed: int | None = None, dry_run: bool
) -> tuple[int, int]:
    """Delete entries and checkpoints below the second latest valid checkpoint.

    An object is deleted `keep_ms` after the next object was written, according to the store's clock (`now_ms`).
    Therefore, every entry that was the latest entry at some time during the last `keep_ms` is kept. Entries with the
    number `needed` or higher are also kept. Returns the number and total size in bytes of the deleted objects.
    """
    valid = (number for number in reversed(log.checkpoints()) if log.read_checkpoint(number) is not None)
    lowest = next(islice(valid, 1, None), None)
    if lowest is None:
        return 0, 0
    first = lowest if needed is None else min(lowest, needed)
    deleted: list[ObjectInfo] = []
    for infos, limit in (
        (list_entries(log.store, log.prefix), commit_key(log.prefix, first)),
        (log.store.list(checkpoint_prefix(log.prefix)), checkpoint_key(log.prefix, lowest)),
    ):
        for info, newer in pairwise(infos):
            if info.key >= limit:
                break
            if now_ms - newer.modified_ms >= keep_ms:
                deleted.append(info)
    if not dry_run:
        log.store.delete_many(info.key for info in deleted)
    return len(deleted), sum(info.size for info in deleted)
