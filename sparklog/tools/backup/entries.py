"""Logs of entries (decisions, group offsets) in a root or a backup, without a process that follows them.

Each entry carries the whole state, and a checkpoint is a copy of one: whichever of the two is there will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparklog.errors import Corrupt, NotFound
from sparklog.log.journal.clock import newest_at
from sparklog.log.journal.entry_log import Entry, EntryKind
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, checkpoint_version, commit_key
from sparklog.storage.store import Store

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class EntryChain(Generic[E]):
    """The entries of one id in a store: each call looks for itself."""

    store: Store
    kind: EntryKind[E]
    id: str

    @property
    def prefix(self) -> str:
        return self.kind.prefix(self.id)

    def numbers(self) -> list[int]:
        """Numbers of the entries that are there, as entries or as checkpoints, in order."""
        found = {checkpoint_version(info.key) for info in self.store.list(checkpoint_prefix(self.prefix))}
        # 20 digits hold every number with a zero in front, and so no checkpoint is listed with the entries.
        found |= {checkpoint_version(info.key) for info in self.store.list(f"{self.prefix}/_log/0")}
        return sorted(number for number in found if number is not None)

    def data(self, number: int) -> bytes | None:
        """The bytes of an entry, from wherever they are whole; None if it is in neither place. `Corrupt`: damaged."""
        damage: Corrupt | None = None
        for key in (commit_key(self.prefix, number), checkpoint_key(self.prefix, number)):
            for _ in range(2):
                try:
                    data = self.store.get(key)
                except NotFound:
                    break
                try:
                    found = self.kind.decode(data, key, number)
                except Corrupt as error:
                    # A bit that flipped on the way: read again before calling it damaged.
                    damage = error
                    continue
                if found.id != self.id:
                    raise Corrupt(f"{self.kind.what} of '{self.id}' should lie here, found '{found.id}'", file=key)
                return data
        if damage is not None:
            raise damage
        return None

    def at(self, number: int) -> E | None:
        """The state after an entry; of -1 that of an id without entries. None if it is not there."""
        if number < 0:
            return self.kind.empty(self.id)
        data = self.data(number)
        return None if data is None else self.kind.decode(data, commit_key(self.prefix, number), number)

    def next(self, state: E) -> E | None:
        """The state after one more entry, None if there is none. `Corrupt` if it does not follow."""
        found = self.at(state.number + 1)
        if found is not None and found.prev_crc != state.crc:
            raise Corrupt(
                f"entry {found.number} of {self.kind.title(self.id)} does not follow entry {state.number}; one of the "
                "two is not what was written",
                file=commit_key(self.prefix, found.number),
            )
        return found

    def run(self) -> tuple[int, int]:
        """First and last of the newest numbers that follow one another; (0, -1) if there are none."""
        numbers = self.numbers()
        if not numbers:
            return 0, -1
        first = numbers[-1]
        for number in reversed(numbers[:-1]):
            if number != first - 1:
                break
            first = number
        return first, numbers[-1]

    def newest(self) -> E:
        """The newest state, read on from what a listing shows."""
        state = self.at(self.run()[1])
        if state is None:
            raise NotFound(f"{self.kind.title(self.id)} lost its entries while they were read; try again")
        while (found := self.next(state)) is not None:
            state = found
        return state

    def walk(self, first: E, last: int) -> Iterator[E]:
        """The states after `first` up to entry `last`. `NotFound` if one is gone."""
        state = first
        while state.number < last:
            found = self.next(state)
            if found is None:
                raise NotFound(f"entry {state.number + 1} of {self.kind.title(self.id)} is no longer kept")
            state = found
            yield state

    def number_at(self, time_ms: int, first: int, last: int) -> int:
        """The newest entry of `first` to `last` that was not made after a time; `first` - 1 if all were."""

        def entry(number: int) -> E:
            state = self.at(number)
            if state is None:
                raise NotFound(f"entry {number} of {self.kind.title(self.id)} is no longer kept")
            return state

        return newest_at(entry, first, last, time_ms)
