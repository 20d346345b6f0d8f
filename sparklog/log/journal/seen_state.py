"""Values of a journal: its root, its latest known state, and the entries that were read to reach this state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sparklog.log.journal.clocks import ClockGuard, ClockReading, Env
from sparklog.log.journal.numbered_objects import EntryRef
from sparklog.storage.store import Store


class State(Protocol):
    """The state after entry `number`, whose bytes have the CRC-32C `crc`. -1 and None for an empty journal."""

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
    """Access of journals to their root: the store, the clocks, and the id of the opened root, if it is known."""

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
    """A state that was the latest one when it was read."""

    state: S
    seen: ClockReading  # taken before the request that read the end of the journal
    checked: ClockReading  # when it was last verified that no later number existed; a poll only reads the next number
    checkpoint: int = -1  # number of the latest known checkpoint
    tail_bytes: int = 0  # size of the entries since the checkpoint
    earlier: EntryRef | None = None  # an earlier entry that was not read again after the latest entries


@dataclass(frozen=True, slots=True)
class Advance(Generic[S, E]):
    """The latest state, and the entries that were read to reach it."""

    latest: SeenState[S]
    entries: Sequence[E] = ()
    is_root_checked: bool = False  # the id of the root was checked at the same time
    last_listed: int | None = None  # largest listed number; None if nothing was listed

    def with_id(self, commit_id: str) -> E | None:
        for entry in self.entries:
            if entry.commit_id == commit_id:
                return entry
        return None
