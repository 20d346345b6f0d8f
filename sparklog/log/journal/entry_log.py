"""Journals whose entries each carry the whole state after them: offsets of consumer groups, transaction decisions.

As the newest entry holds all, a checkpoint is a copy of one under `_log/checkpoints/`. Maintenance deletes entries and
checkpoints below the second newest sound checkpoint. docs/reference/format-transactions.md says what the members mean.
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
"""The members that every entry begins with."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """The newest entry of an id, and so its state; `number` -1: an id without entries."""

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
        return self.time_ms if self.clock_ms is None else self.clock_ms


E = TypeVar("E", bound=StateEntry)
Step = Callable[[E], E | None]
"""The state after one more entry, None if there is nothing to write; raises where the state does not allow it."""


@dataclass(frozen=True, slots=True)
class EntryKind(Generic[E]):
    """A kind of journals, such as those of consumer groups. `sparklog.maintenance.journals` lists all kinds."""

    folder: str  # the journal of an id is below it
    owner: str  # for messages: "transactional id"
    what: str  # for messages: "decisions"
    noun: str  # what a finding of verify calls it: "decision"
    empty: Callable[[str], E]
    table: StoredDocument[E]
    per_checkpoint: int | None = None  # entries between two checkpoints, if they are large; None: as `Limits` says
    old_entry: str | None = None  # what retain calls an old entry that it deletes; None: all entries stay

    def prefix(self, id_: str) -> str:
        return f"{self.folder}/{id_folder(id_)}"

    def title(self, id_: str) -> str:
        return f"{self.owner} '{id_}'"

    def decode(self, data: bytes, key: str, number: int) -> E:
        """Return the entry in `data`. `BadRequest` if it needs a newer sparklog; `Corrupt` if damaged or another."""
        item = self.table.fields(data, key)
        if (stored := item.integer("number", 0)) != number:
            raise Corrupt(f"entry {number} should be here, found entry {stored}; restore it", file=key)
        return self.table.from_json(item, crc=crc32c.crc32c(data), nbytes=len(data))

    def decode_of(self, id_: str, data: bytes, key: str, number: int) -> E:
        """Return the entry of an id; `Corrupt` also if it is of another one."""
        entry = self.decode(data, key, number)
        if entry.id != id_:
            raise Corrupt(f"{self.what} of '{id_}' should be here, found those of '{entry.id}'", file=key)
        return entry

    def decode_in(self, prefix: str, data: bytes, key: str, number: int) -> E:
        """Return the entry of the journal under a prefix, whose id is not known; `Corrupt` also if it is of another."""
        entry = self.decode(data, key, number)
        if self.prefix(entry.id) != prefix:
            raise Corrupt(f"{self.what} of '{entry.id}' do not belong here", file=key)
        return entry


class EntryLog(Journal[E, E, E]):
    """The journal of one id. Each entry is the whole state after it, and a checkpoint is a copy of one."""

    def __init__(self, root: RootAccess, kind: EntryKind[E], id_: str) -> None:
        super().__init__(root, kind.prefix(id_), kind.title(id_))
        self.kind = kind
        self.id = id_

    def write(self, step: Step[E]) -> E:
        """Create the entry that the step makes of the newest state, and return the state after it. See `_write`."""
        return self._write(step)[1].state

    def latest_entries(self, limit: int) -> list[E]:
        """Read the newest entries, at most so many, the newest first; older ones may be gone. Raises `Corrupt`."""
        newest, entries = self.refresh().number, list[E]()
        for number in range(newest, max(newest - limit, -1), -1):
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
            raise BadRequest(f"{self.title} needs the sparklog features {unknown}; upgrade sparklog")
        number, now_ms = state.number + 1, self.env.wall_ms()
        times = next_times(state, number, now_ms, self._guard.store_ms(now_ms))
        chained = replace(draft, number=number, commit_id=commit_id, prev_crc=state.crc, **times)
        return self.kind.table.encode(chained)

    def _applied(self, state: E, entries: Sequence[E]) -> E:
        for entry in entries:
            if entry.prev_crc != state.crc:
                raise Corrupt(
                    f"the chain of {self.kind.what} is broken: entry {entry.number} was made after an entry with "
                    f"CRC-32C {entry.prev_crc}, entry {state.number} has {state.crc}; one of the two is not what was "
                    "written, or the store does not create objects exclusively (sparklog doctor tries it)",
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
"""An entry stays as long as a commit does, unless the caller has another time."""


def collect_log(log: EntryLog[E], now_ms: int, *, dry_run: bool) -> tuple[int, int]:
    """Delete an entire journal once its latest entry is listed and a week old; return the objects and bytes deleted.

    The remaining entries never have a gap: entries below the latest copy are deleted first, then the others from the
    latest one backwards, and the latest copy last.
    """
    objects = list(log.store.list(f"{log.prefix}/_log/"))
    newest = log.current().number
    if newest >= 0 and all(info.key != log.key(newest) for info in objects):
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
    newest = max((entry_number(info.key) or 0 for info in copies), default=-1)
    last = [info for info in copies if entry_number(info.key) == newest]
    yield from (info for info in objects if info not in last and (entry_number(info.key) or 0) < newest)
    left = [info for info in objects if info not in last and (entry_number(info.key) or 0) >= newest]
    yield from (*reversed(left), *last)


@dataclass
class Collected:
    """Objects and bytes that a collection of journals deletes (dry: would), and journals that cannot be read."""

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
    """Delete entries and checkpoints below the second newest sound checkpoint; return objects and bytes.

    Each is deleted `keep_ms` after the next one was written, by the store's clock (`now_ms`): the newest at any time
    since then stays. So do entries from `needed` on.
    """
    sound = (number for number in reversed(log.checkpoints()) if log.read_checkpoint(number) is not None)
    lowest = next(islice(sound, 1, None), None)
    if lowest is None:
        return 0, 0
    first = lowest if needed is None else min(lowest, needed)
    gone: list[ObjectInfo] = []
    for infos, limit in (
        (list_entries(log.store, log.prefix), commit_key(log.prefix, first)),
        (log.store.list(checkpoint_prefix(log.prefix)), checkpoint_key(log.prefix, lowest)),
    ):
        for info, newer in pairwise(infos):
            if info.key >= limit:
                break
            if now_ms - newer.modified_ms >= keep_ms:
                gone.append(info)
    if not dry_run:
        log.store.delete_many(info.key for info in gone)
    return len(gone), sum(info.size for info in gone)
