"""Read a journal whose entries each carry the whole state, without its root; nothing is kept between two calls.

A checkpoint is a copy of an entry: either of the two will do. `EntryLog` is for those who write as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic

from sparklog.errors import Corrupt, NotFound, SparklogError
from sparklog.log.journal.clocks import Env, latest_at
from sparklog.log.journal.documents import EXPIRED_IDS
from sparklog.log.journal.entry_log import E, EntryKind
from sparklog.log.journal.gaps import missing_numbers
from sparklog.log.journal.names import (
    checkpoint_key,
    checkpoint_prefix,
    commit_key,
    entry_number,
    entry_numbers,
    id_folder,
    list_entries,
    numbers_below,
)
from sparklog.log.journal.stored_object import StoredObject, read_object
from sparklog.storage.parallel_reads import read_each
from sparklog.storage.patient_store import patient
from sparklog.storage.retries import Backoff
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of the entries of a journal that exist, and of their copies, each in order."""

    entries: tuple[int, ...]
    copies: tuple[int, ...]


def list_numbers(store: Store, prefix: str) -> Numbers:
    """List a journal: copies first, so that an entry that is deleted meanwhile has its copy here."""
    copies = tuple(numbers_below(store, checkpoint_prefix(prefix)))
    return Numbers(tuple(entry_numbers(store, prefix)), copies)


@dataclass(frozen=True, slots=True)
class EntryChain(Generic[E]):
    """The entries of one id in a store.

    With an `env`, reads wait up to 90 s for entries that a mount's cache of names may hide.
    """

    store: Store
    kind: EntryKind[E]
    id: str
    env: Env | None = None

    @property
    def prefix(self) -> str:
        return self.kind.prefix(self.id)

    def read(self, number: int) -> tuple[bytes, E] | None:
        """Return an entry and its bytes, or those of its copy; None if there is neither. `Corrupt`: damaged."""
        store = patient(self.store, self.env)
        stored: StoredObject[E] | None = None
        for key in (commit_key(self.prefix, number), checkpoint_key(self.prefix, number)):
            with suppress(NotFound):
                stored = read_object(store, key, partial(self.kind.decode_of, self.id), number)
                if stored.damage is None:
                    break
        return None if stored is None else (stored.data, stored.expect())

    def state_at(self, number: int) -> E | None:
        """Return the state after an entry, after -1 that of an id without entries; None if it is not there."""
        if number < 0:
            return self.kind.empty(self.id)
        stored = self.read(number)
        return None if stored is None else stored[1]

    def existing(self, number: int) -> E:
        """Return the state after an entry; `NotFound` if it is not there."""
        return self._expect(self.state_at(number), number)

    def after(self, state: E) -> E | None:
        """Return the state after one more entry, None if there is none. `Corrupt` if it does not follow."""
        entry = self.state_at(state.number + 1)
        if entry is not None and entry.prev_crc != state.crc:
            raise Corrupt(
                f"entry {entry.number} of {self.kind.title(self.id)} does not follow entry {state.number}; one of the "
                "two is not what was written",
                file=commit_key(self.prefix, entry.number),
            )
        return entry

    def walk(self, first: E, last: int) -> Iterator[E]:
        """Yield the states after `first` up to entry `last`. `NotFound` if one is gone."""
        state = first
        while state.number < last:
            state = self._expect(self.after(state), state.number + 1)
            yield state

    def span(self) -> EntrySpan[E]:
        """Return the latest contiguous entries. Raises `Corrupt` if an entry that must exist is missing.

        A listing that others write to meanwhile may show an entry without an earlier one: list again before that.
        """
        backoff = None if self.env is None else Backoff(self.env)
        while True:
            try:
                return self._span()
            except Corrupt:
                if backoff is None or not backoff.wait():
                    raise

    def _span(self) -> EntrySpan[E]:
        listed = list_numbers(self.store, self.prefix)
        numbers = {*listed.entries, *listed.copies}
        last = first = max(numbers, default=-1)
        while first - 1 in numbers:
            first -= 1
        # Entries up to the latest copy may be deleted, and a stalled process may have created one of them again.
        newest_copy = listed.copies[-1] if listed.copies else -1
        if first > newest_copy + 1 and not self._goes_on_at(first):
            missing = next(number for number in range(newest_copy + 1, first) if number not in numbers)
            raise Corrupt(missing_numbers(self.store, missing, listed.entries), file=commit_key(self.prefix, missing))
        return EntrySpan(self, max(first, 0), last)

    def _goes_on_at(self, number: int) -> bool:
        """Return True for an expired id that is in use again: its entries before `number` are deleted."""
        stored = self.read(number)
        return stored is None or EXPIRED_IDS in stored[1].read_features

    def latest(self) -> E:
        state = self.state_at(self.span().last)
        if state is None:
            raise NotFound(f"{self.kind.title(self.id)} lost its entries while they were read; try again")
        while (entry := self.after(state)) is not None:
            state = entry
        return state

    def latest_number_before(self, time_ms: int) -> int | None:
        """Return the newest entry that the store has had since a time, by its own clock; None if there is none."""
        number = None
        for info in list_entries(self.store, self.prefix):
            if info.modified_ms > time_ms:
                break
            number = entry_number(info.key)
        return number

    def _expect(self, entry: E | None, number: int) -> E:
        if entry is None:
            raise NotFound(f"entry {number} of {self.kind.title(self.id)} is no longer kept")
        return entry


@dataclass(frozen=True, slots=True)
class EntrySpan(Generic[E]):
    """Entries `first` to `last` of an id, which exist; `last` -1: there are none."""

    chain: EntryChain[E]
    first: int
    last: int

    def number_by(self, time_ms: int) -> int:
        """Return the newest entry made by a time: the first, if what came before it is not kept; -1: there was none."""
        number = latest_at(self.chain.existing, self.first, self.last, time_ms)
        return max(number, self.first) if self.first > 0 else number

    def state_by(self, time_ms: int) -> E | None:
        return self.chain.state_at(self.number_by(time_ms))

    def states_by(self, time_ms: int) -> list[E]:
        """Return the states from the first entry to the newest made by a time."""
        number = self.number_by(time_ms)
        state = self.chain.state_at(self.first) if number >= self.first else None
        return [] if state is None else [state, *self.chain.walk(state, number)]

    def first_after(self, time_ms: int) -> E | None:
        """Return the first entry if earlier ones are not kept, and even that one was made after a time."""
        if self.first == 0 or latest_at(self.chain.existing, self.first, self.last, time_ms) >= self.first:
            return None
        return self.chain.state_at(self.first)


def ids_of(store: Store, kind: EntryKind[E], failures: list[SparklogError] | None = None) -> list[str]:
    """Return the ids that have entries, from an entry of each folder. Errors are put into `failures`, or raised."""
    folders = list(store.list_folders(f"{kind.folder}/"))
    ids = read_each(store, lambda folder: id_in(store, kind, folder), folders, failures)
    return [id_ for id_ in ids.values() if id_ is not None]


def id_in(store: Store, kind: EntryKind[E], folder: str) -> str | None:
    """Return the id whose entries are in a folder; None without any, or where they are those of another folder.

    The first entry says it, a checkpoint or, without one, another entry; `Corrupt` if each of them is damaged.
    """
    prefix = f"{kind.folder}/{folder}"
    damage: Corrupt | None = None
    for key in _first_keys(store, prefix):
        if damage is not None and "/checkpoints/" not in key:
            break
        number = entry_number(key)
        if number is None:
            continue
        try:
            id_ = kind.decode(store.get(key), key, number).id
        except NotFound:
            continue
        except Corrupt as error:
            damage = error
            continue
        return id_ if id_folder(id_) == folder else None
    if damage is not None:
        raise damage
    return None


def _first_keys(store: Store, prefix: str) -> Iterator[str]:
    yield commit_key(prefix, 0)
    # Looked for only if the first entry is gone.
    yield from (info.key for info in store.list(checkpoint_prefix(prefix)))
    yield from (info.key for info in list_entries(store, prefix))
