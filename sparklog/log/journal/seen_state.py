"""Values of a journal: its root, its latest known state, and the entries read to reach that state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sparklog.log.journal.clocks import ClockGuard, ClockReading, Env
from sparklog.log.journal.numbered_objects import EntryRef
from sparklog.storage.store import Store


class State(Protocol):
    """The state after entry `number`, whose bytes have the CRC-32C `crc`; -1 and None for an empty journal."""

    @property
    def number(self) -> int: ...
    @property
    def crc(self) -> int | None: ...


class Chained(Protocol):
    """A decoded entry, with the CRC-32C and length of its bytes, and the CRC-32C of the entry before it."""

    @property
    def commit_id(self) -> str: ...
    @property
    def prev_crc(self) -> int | None: ...
    @property
    def crc(self) -> int | None: ...
    @property
    def nbytes(self) -> int: ...


S = TypeVar("S", bound=State)
E = TypeVar("E", bound=Chained)


@dataclass
class RootAccess:
    """A root as its journals access it: store, clocks, and the id with which it was opened, if the caller knows it."""

    store: Store
    env: Env
    root_id: str | None = None

    def __post_init__(self) -> None:
        self.guard = ClockGuard(self.store, self.env)


@dataclass(frozen=True, slots=True)
class SeenState(Generic[S]):
    """A state that was the latest one when it was read."""

    state: S
    seen: ClockReading  # before the request that read the end of the journal
    checked: ClockReading  # when it was last known that no later number existed; a poll only reads the next one
    checkpoint: int = -1  # the number of the latest known checkpoint
    tail_bytes: int = 0  # the size of the entries since the checkpoint
    earlier: EntryRef | None = None  # an entry before the last ones that was not read again after them


@dataclass(frozen=True, slots=True)
class Advance(Generic[S, E]):
    """The latest state, and the entries read to reach it."""

    latest: SeenState[S]
    entries: Sequence[E] = ()
    root_seen: bool = False  # the root's id was checked at the same time
    last_listed: int | None = None  # the largest listed number; None if nothing was listed

    def with_id(self, commit_id: str) -> E | None:
        for entry in self.entries:
            if entry.commit_id == commit_id:
                return entry
        return None
