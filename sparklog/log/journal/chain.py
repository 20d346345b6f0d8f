"""Read a journal whose entries each contain the complete state, without opening the root and without a cache.

A checkpoint is a copy of an entry, so it can be read instead of the entry. Programs that also write use `EntryLog`.
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
    """The sorted numbers of a journal's existing entries and checkpoints. A checkpoint is a copy of an entry."""

    entries: tuple[int, ...]
    copies: tuple[int, ...]


def list_numbers(store: Store, prefix: str) -> Numbers:
    """List the numbers of a journal.

    Checkpoints are listed first, so that each number is listed even if its entry is deleted concurrently.
    """
    copies = tuple(numbers_below(store, checkpoint_prefix(prefix)))
    return Numbers(tuple(entry_numbers(store, prefix)), copies)


@dataclass(frozen=True, slots=True)
class EntryChain(Generic[E]):
    """The entries of one id in a store.

    If `env` is given, reads wait up to 90 s for entries that a mount's name cache may hide.
    """

    store: Store
    kind: EntryKind[E]
    id: str
    env: Env | None = None

    @property
    def prefix(self) -> str:
        return self.kind.prefix(self.id)

    def read(self, number: int) -> tuple[bytes, E] | None:
        """Return an entry or its checkpoint, and its bytes. Return None if neither exists. Raises `Corrupt` if it is
        damaged.
        """
        store = patient(self.store, self.env)
        stored: StoredObject[E] | None = None
        for key in (commit_key(self.prefix, number), checkpoint_key(self.prefix, number)):
            with suppress(NotFound):
                stored = read_object(store, key, partial(self.kind.decode_of, self.id), number)
                if stored.damage is None:
                    break
        return None if stored is None else (stored.data, stored.expect())

    def state_at(self, number: int) -> E | None:
        """Return the state after an entry, or None if the entry does not exist. The state after entry -1 is empty."""
        if number < 0:
            return self.kind.empty(self.id)
        stored = self.read(number)
        return None if stored is None else stored[1]

    def existing(self, number: int) -> E:
        """Return the state after an entry. Raises `NotFound` if the entry does not exist."""
        return self._expect(self.state_at(number), number)

    def after(self, state: E) -> E | None:
        """Return the state after the next entry, or None if there is no next entry.

        Raises `Corrupt` if the next entry does not follow `state`.
        """
        entry = self.state_at(state.number + 1)
        if entry is not None and entry.prev_crc != state.crc:
            raise Corrupt(
                f"entry {entry.number} of {self.kind.title(self.id)} does not follow entry {state.number}; one of the "
                "two is corrupt",
                file=commit_key(self.prefix, entry.number),
            )
        return entry

    def walk(self, first: E, last: int) -> Iterator[E]:
        """Yield the states after `first` up to entry `last`. Raises `NotFound` if an entry does not exist."""
        state = first
        while state.number < last:
            state = self._expect(self.after(state), state.number + 1)
            yield state

    def span(self) -> EntrySpan[E]:
        """Return the latest contiguous entries. Raises `Corrupt` if a required entry is missing.

        If entries are written during a listing, the listing may contain an entry but not an earlier one. Therefore the
        listing is repeated before an error is raised.
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
        # Entries up to the latest checkpoint may have been deleted, and a stalled process may have created one of them
        # again.
        latest_copy = listed.copies[-1] if listed.copies else -1
        if first > latest_copy + 1 and not self._resumes_at(first):
            missing = next(number for number in range(latest_copy + 1, first) if number not in numbers)
            raise Corrupt(missing_numbers(self.store, missing, listed.entries), file=commit_key(self.prefix, missing))
        return EntrySpan(self, max(first, 0), last)

    def _resumes_at(self, number: int) -> bool:
        """Return True if an expired id is used again. In this case, its entries before `number` have been deleted."""
        stored = self.read(number)
        return stored is None or EXPIRED_IDS in stored[1].read_features

    def latest(self) -> E:
        state = self.state_at(self.span().last)
        if state is None:
            raise NotFound(
                f"the entries of {self.kind.title(self.id)} were deleted while they were being read; try again later"
            )
        while (entry := self.after(state)) is not None:
            state = entry
        return state

    def latest_number_before(self, time_ms: int) -> int | None:
        """Return the number of the latest entry that existed at a time of the store's clock, or None if there was no
        entry.
        """
        number = None
        for info in list_entries(self.store, self.prefix):
            if info.modified_ms > time_ms:
                break
            number = entry_number(info.key)
        return number

    def _expect(self, entry: E | None, number: int) -> E:
        if entry is None:
            raise NotFound(f"entry {number} of {self.kind.title(self.id)} has been deleted")
        return entry


@dataclass(frozen=True, slots=True)
class EntrySpan(Generic[E]):
    """The existing entries `first` to `last` of an id. `last` is -1 if there are no entries."""

    chain: EntryChain[E]
    first: int
    last: int

    def number_by(self, time_ms: int) -> int:
        """Return the number of the latest entry created at or before a time, or -1 if there is no such entry.

        If earlier entries have been deleted, the result is at least `first`.
        """
        number = latest_at(self.chain.existing, self.first, self.last, time_ms)
        return max(number, self.first) if self.first > 0 else number

    def state_by(self, time_ms: int) -> E | None:
        return self.chain.state_at(self.number_by(time_ms))

    def states_by(self, time_ms: int) -> list[E]:
        """Return the states from the first entry to the latest entry created at or before a time."""
        number = self.number_by(time_ms)
        state = self.chain.state_at(self.first) if number >= self.first else None
        return [] if state is None else [state, *self.chain.walk(state, number)]

    def first_after(self, time_ms: int) -> E | None:
        """Return the first entry if earlier entries were deleted and the first entry was created after the time.
        Otherwise, return None.
        """
        if self.first == 0 or latest_at(self.chain.existing, self.first, self.last, time_ms) >= self.first:
            return None
        return self.chain.state_at(self.first)


def ids_of(store: Store, kind: EntryKind[E], failures: list[SparklogError] | None = None) -> list[str]:
    """Return the ids that have entries. Each id is read from one entry in its directory.

    Errors are added to `failures`. If `failures` is None, the first error is raised.
    """
    folders = list(store.list_folders(f"{kind.folder}/"))
    ids = read_each(store, lambda folder: id_in(store, kind, folder), folders, failures)
    return [id_ for id_ in ids.values() if id_ is not None]


def id_in(store: Store, kind: EntryKind[E], folder: str) -> str | None:
    """Return the id whose entries are in a directory. Return None if the directory contains no entries, or entries of
    another directory.

    The id is read from the first entry. If the first entry does not exist, the id is read from a checkpoint, or else
    from another entry. Raises `Corrupt` if all of them are damaged.
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
    # Checkpoints and other entries are listed only if the first entry does not exist or is damaged.
    yield from (info.key for info in store.list(checkpoint_prefix(prefix)))
    yield from (info.key for info in list_entries(store, prefix))
