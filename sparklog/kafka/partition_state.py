"""One partition as a planner knows it, kept up to date by looking only at what changed."""

from __future__ import annotations

import os

from sparklog.errors import Corrupt
from sparklog.format import transaction_index
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.directory import SegmentName, partition_metadata, settled_now, settled_segments
from sparklog.kafka.segment_file import SegmentFile
from sparklog.kafka.segment_state import SegmentState
from sparklog.kafka.transaction_state import TransactionState, merged
from sparklog.log.env import SYSTEM, Env

RACY_MS = 100
"""A folder that changed so shortly before it was listed may have changed again since without showing it."""
OPEN_TRIES = 5


class PartitionState:
    """Segments and transactions of one partition folder; `refresh` brings them up to date."""

    def __init__(self, folder: str, env: Env = SYSTEM) -> None:
        self.folder = folder
        self._env = env
        self.segments: list[SegmentState] = []
        self.transactions = TransactionState()
        self._changed_at = -1
        self._listed_at = -1
        self._replay = False
        self._metadata = b""
        self._indexed: dict[SegmentName, AbortedTransactions] = {}
        self._aborted: AbortedTransactions | None = None

    @property
    def first_base(self) -> int:
        """Where the log starts as far as its files say."""
        return self.segments[0].name.base if self.segments else 0

    @property
    def log_end(self) -> int:
        """The next offset to be written."""
        return self.segments[-1].next_offset if self.segments else 0

    def refresh(self) -> None:
        """Look at the folder if it changed, and at what was appended to the last segment.

        `NotFound` if the folder is gone, `Unavailable` if it never holds still.
        """
        for tries_left in reversed(range(OPEN_TRIES)):
            self._list()
            try:
                self._scan()
            except FileNotFoundError:
                # A segment went between the listing and its opening: look again, and trust nothing half done.
                self._changed_at, self._replay = -1, True
                if not tries_left:
                    raise
            else:
                return

    def _list(self) -> None:
        """Take over the folder's listing, keeping what is known of the segments that are still there."""
        try:
            changed_at = os.stat(self.folder).st_mtime_ns
        except FileNotFoundError:
            changed_at = -1
        quiet = self._listed_at - changed_at // 1_000_000 > RACY_MS
        if self.segments and quiet and changed_at == self._changed_at:
            return
        now = self._env.wall_ms()
        # A tail goes on in the segments it knows while the folder changes; a first look has to wait.
        names = settled_now(self.folder) if self.segments else settled_segments(self.folder, env=self._env)
        if names is None:
            return
        self._changed_at, self._listed_at = changed_at, now
        metadata = partition_metadata(self.folder)
        if metadata != self._metadata:
            self.segments, self._metadata, self._replay = [], metadata, True
        before = {state.name: state for state in self.segments}
        self.segments = [self._known(name, before) for name in names]
        # Growing at the end and expiring at the start leave the middle as it was. All else is read and replayed anew.
        kept = [name for name in names if name in before]
        old = list(before)
        if old != list(names) and old and (not kept or kept != old[-len(kept) :] or kept != list(names[: len(kept)])):
            self._replay = True

    def _known(self, name: SegmentName, before: dict[SegmentName, SegmentState]) -> SegmentState:
        state = before.get(name)
        if state is not None and state.unchanged(name):
            return state
        self._replay |= state is not None
        return SegmentState(name)

    def _scan(self) -> None:
        """Read what has not been read, and bring the transactions up to it."""
        for position, state in enumerate(self.segments):
            last = position == len(self.segments) - 1
            if state.closed and not last and not self._replay:
                continue
            with SegmentFile(state.name.path) as file:
                replaced = not state.still_holds(file) or (state.closed and (last or file.size != state.size))
                if replaced:
                    state = SegmentState(SegmentName(state.name.base, state.name.path, file.inode))
                    self.segments[position] = state
                    self._replay = True
                seen = len(state.events.triples)
                if not state.closed:
                    state.scan(file, last=last)
                if len(state.events.triples) > seen:
                    self.transactions.apply(state.events.triples, seen)
                    self._aborted = None
        if self._replay:
            self._indexed.clear()
            self.transactions = TransactionState()
            for state in self.segments:
                self.transactions.apply(state.events.triples)
            self._replay, self._aborted = False, None

    def aborted(self, start: int, end: int) -> AbortedTransactions:
        """The aborted transactions that matter to offsets `[start, end)`, from the whole partition's markers.

        `Corrupt` if damage hides the end of a transaction in that range.
        """
        indexed = [self._transaction_index(state.name) for state in self.segments]
        for producer, first, last in self.transactions.unknown:
            if first >= end or last < start:
                continue
            known = any(((index.producer_ids == producer) & (index.first_offsets <= first)).any() for index in indexed)
            if not known:
                raise Corrupt(
                    f"the outcome of a transaction of producer {producer} cannot be known: its marker is damaged; read"
                    " other offsets, or all with read_uncommitted",
                    file=self._path_at(last),
                    offset=last,
                )
        if self._aborted is None:
            self._aborted = merged(self.transactions, indexed)
        return self._aborted.overlapping(start, end)

    def _transaction_index(self, name: SegmentName) -> AbortedTransactions:
        """The `.txnindex` of a segment, empty where it is missing or wrong. That of the last segment still grows."""
        found = self._indexed.get(name)
        if found is None:
            path = f"{name.path.removesuffix('.log')}.txnindex"
            try:
                with open(path, "rb") as source:
                    found = transaction_index.parse(source.read(), name.base, file=path)
            except (FileNotFoundError, Corrupt):
                found = transaction_index.none()
            if self.segments and name != self.segments[-1].name:
                self._indexed[name] = found
        return found

    def _path_at(self, offset: int) -> str:
        paths = [state.name.path for state in self.segments if state.name.base <= offset]
        return paths[-1] if paths else self.folder

    def position_estimate(self, offset: int) -> int:
        """About how many bytes of the partition lie before `offset`."""
        return sum(state.position_estimate(offset) for state in self.segments)
