"""Data classes of a journal: its root, its latest known state, and the entries that were read to reach this state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sparklog.log.journal.clocks import ClockGuard, ClockReading, Env
from sparklog.log.journal.numbered_objects import EntryRef
from sparklog.storage.store import Store


class State(Protocol):
    """The state after entry `number`, whose bytes have the CRC-32C `crc`. If the journal is empty, `number` is -1 and
    `crc` is None.
    """

    @property
    def number(self) -> int: ...
    @property
    def crc(self) -> int | None: ...


class Chained(Protocol):
    """A decoded entry, with the CRC-32C and length of its bytes, and the CRC-32C of the previous entry."""

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
    """The access of a journal to its root: the store, the clocks, and the id of the opened root, if the id is known."""

    store: Store
    env: Env
    root_id: str | None = None

    def __post_init__(self) -> None:
        self.guard = ClockGuard(self.store, self.env)

    def ensure_probed(self) -> None:
        """Check that the store provides the guarantees that commits need, once per day and process."""
        from sparklog.log.journal.probe_results import ensure_probed

        ensure_probed(self.store, self.env.wall_ms)


@dataclass(frozen=True, slots=True)
class SeenState(Generic[S]):
    """A state that was the latest state when it was read."""

    state: S
    seen: ClockReading  # the time before the request that read the end of the journal
    # the time at which it was last verified that no later number existed; a poll only reads the next number
    checked: ClockReading
    checkpoint: int = -1  # number of the latest known checkpoint
    tail_bytes: int = 0  # size of the entries since the checkpoint
    # an entry older than the latest entries that has not been read again since they were read
    earlier: EntryRef | None = None


@dataclass(frozen=True, slots=True)
class Advance(Generic[S, E]):
    """The latest state, and the entries that were read to reach it."""

    latest: SeenState[S]
    entries: Sequence[E] = ()
    is_root_checked: bool = False  # the id of the root was checked at the same time
    last_listed: int | None = None  # largest listed number, or None if nothing was listed

    def with_id(self, commit_id: str) -> E | None:
        for entry in self.entries:
            if entry.commit_id == commit_id:
                return entry
        return None
