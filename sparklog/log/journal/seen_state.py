"""Values of a journal: its root, its latest known state, and the entries read to reach that state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sparklog.log.journal.clocks import ClockGuard, ClockReading, Env
from sparklog.log.journal.numbered_objects import EntryRef
from sparklog.storage.store import Store


class State(Protocol):
    """The state after entry `number`, whose bytes have the CRC-32C `crc`; number -1: of an empty journal."""

    @property
    def number(self) -> int: ...
    @property
    def crc(self) -> int | None: ...


class Chained(Protocol):
    """An entry as it was read: `crc` and `nbytes` of its bytes, `prev_crc` of those of the entry before."""

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
    """A root as its journals see it: store, clocks, and the id with which it was opened, if that is known here."""

    store: Store
    env: Env
    root_id: str | None = None

    def __post_init__(self) -> None:
        self.guard = ClockGuard(self.store, self.env)


@dataclass(frozen=True, slots=True)
class SeenState(Generic[S]):
    """A state that was the newest when it was seen."""

    state: S
    seen: ClockReading  # both clocks before the request that showed it
    checked: ClockReading  # when it was last known that no later number existed; a poll looks only at the next one
    checkpoint: int = -1  # number of the newest one known
    tail_bytes: int = 0  # of the entries since
    earlier: EntryRef | None = None  # the entry before the last ones, where it was not seen after them


@dataclass(frozen=True, slots=True)
class Advance(Generic[S, E]):
    """The newest state, and the entries read to come to it. `root_seen`: the opened root was seen at the same time."""

    latest: SeenState[S]
    entries: Sequence[E] = ()
    root_seen: bool = False
    last_listed: int | None = None  # the largest listed number; None if nothing was listed

    def with_id(self, commit_id: str) -> E | None:
        for entry in self.entries:
            if entry.commit_id == commit_id:
                return entry
        return None
