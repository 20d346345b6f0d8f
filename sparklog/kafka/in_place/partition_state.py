"""One partition as a planner knows it, kept up to date by looking only at what changed."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format import transaction_index
from sparklog.format.transaction_index import AbortedTransactions, concatenate
from sparklog.kafka.in_place.directory import (
    SegmentName,
    file_bytes,
    never_there,
    partition_metadata,
    settled_now,
    settled_segments,
)
from sparklog.kafka.in_place.segment_file import SegmentFile, companion
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP, TRUNCATE, Skipped
from sparklog.kafka.in_place.segment_state import SegmentState
from sparklog.kafka.in_place.transaction_state import TransactionState, merged
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.state.view import Runs, Stored

RACY_MS = 100
"""A folder that changed so shortly before it was listed may have changed again since without showing it."""
OPEN_TRIES = 5
DETAILED_BLOCKS = 1 << 17
"""Some 8 GB."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A transaction whose outcome damage hides; `first` to `last`: its offsets, `file`: where its marker was."""

    producer: int
    first: int
    last: int
    file: str


class PartitionState:
    """Segments and transactions of one partition folder; `refresh` brings them up to date.

    `policy`: what damage does (see `segment_recovery`); `cut`: what it left out behind the log's end.
    """

    def __init__(self, folder: str, topic: str, partition: int, env: Env = SYSTEM, policy: str = FAIL) -> None:
        self.folder = folder
        self.policy = policy
        self.cut: list[Skipped] = []
        self._key = topic, partition
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
        """The base offset of the first segment, 0 without one."""
        return self.segments[0].name.base if self.segments else 0

    @property
    def log_end(self) -> int:
        """The next offset to be written."""
        return self.segments[-1].next_offset if self.segments else 0

    def refresh(self) -> None:
        """Look at the folder if it changed, and at what was appended to the last segment.

        `NotFound` if the folder is gone, `Unavailable` if it never holds still.
        """
        gone = False
        for tries_left in reversed(range(OPEN_TRIES)):
            self._list(wait=gone or not self.segments)
            try:
                self._scan()
            except FileNotFoundError as error:
                # A segment went between the listing and its opening: look again, and trust nothing half done.
                self._changed_at, self._replay, gone = -1, True, True
                if not tries_left:
                    raise never_there(error) from None
            else:
                return

    def _list(self, *, wait: bool) -> None:
        """Take over the folder's listing, keeping what is known of the segments that are still there.

        A tail goes on in the segments it knows while the folder changes; a first look has to wait, and so has one that
        missed a segment.
        """
        try:
            changed_at = os.stat(self.folder).st_mtime_ns
        except FileNotFoundError:
            changed_at = -1
        quiet = self._listed_at - changed_at // 1_000_000 > RACY_MS
        if self.segments and quiet and changed_at == self._changed_at:
            return
        now = self._env.wall_ms()
        names = settled_segments(self.folder, env=self._env) if wait else settled_now(self.folder)
        if names is None:
            return
        self._changed_at, self._listed_at = changed_at, now
        metadata = partition_metadata(self.folder)
        if metadata != self._metadata:
            self.segments, self._metadata, self._replay = [], metadata, True
        before = {state.name: state for state in self.segments}
        self.segments = [SegmentState(name) for name in names]
        for at, name in enumerate(names):
            if name in before and before[name].unchanged(name):
                self.segments[at] = before[name]
            self._replay |= name in before and self.segments[at] is not before[name]
        # Growing at the end and expiring at the start leave the middle as it was. All else is read and replayed anew.
        kept = [name for name in names if name in before]
        old = list(before)
        if old != list(names) and old and (not kept or kept != old[-len(kept) :] or kept != list(names[: len(kept)])):
            self._replay = True

    def _scan(self) -> None:
        """Read what has not been read, and bring the transactions up to it."""
        self.cut = []
        for position, state in enumerate(self.segments):
            last = position == len(self.segments) - 1
            if not state.closed or last or self._replay:
                self._look_at(position, last=last)
            if self._truncated(position):
                break
        if self.policy == SKIP and self.segments and self.segments[-1].stray >= 0:
            state = self.segments[-1]
            reason = f"expected a batch at offset {state.next_offset} or above; found one below"
            self._leave_out(state.name.path, state.stray, state.size - state.stray, state.next_offset, reason)
        if self._replay:
            self._indexed.clear()
            self.transactions = TransactionState()
            for state in self.segments:
                self.transactions.apply(state.events.triples)
            self._replay, self._aborted = False, None

    def _look_at(self, position: int, *, last: bool) -> None:
        state = self.segments[position]
        with SegmentFile(state.name.path) as file:
            replaced = not state.still_holds(file) or (state.closed and (last or file.size != state.size))
            if replaced:
                state = SegmentState(SegmentName(state.name.base, state.name.path, file.inode))
                self.segments[position] = state
                self._replay = True
            seen = len(state.events.triples)
            if not state.closed:
                limit = None if last else self.segments[position + 1].name.base
                state.scan(file, last=last, policy=self.policy, limit=limit)
            if len(state.events.triples) > seen:
                self.transactions.apply(state.events.triples, seen)
                self._aborted = None

    def _truncated(self, position: int) -> bool:
        """End the log in a segment that damage cuts short, where that is the policy; the next listing looks anew."""
        state = self.segments[position]
        if self.policy != TRUNCATE or state.stop == "end":
            return False
        later = self.segments[position + 1 :]
        if later or state.stop != "zeros":
            self._leave_out(state.name.path, state.end, state.size - state.end, state.next_offset, state.reason)
        for each in later:
            behind = "it lies behind damage, where the log was cut"
            self._leave_out(each.name.path, 0, each.name.size, state.next_offset, behind)
        if later:
            del self.segments[position + 1 :]
            self._changed_at = -1
        return True

    def _leave_out(self, file: str, position: int, nbytes: int, start: int, reason: str) -> None:
        self.cut.append(Skipped(*self._key, file, position, nbytes, start, None, reason))

    def aborted(self, start: int, end: int) -> AbortedTransactions:
        """The aborted transactions that matter to offsets `[start, end)`, from the whole partition's markers.

        `Corrupt` if damage hides the end of a transaction in that range; where the policy is to skip what is damaged,
        such a transaction counts as aborted.
        """
        unknown = self.unknown(start, end)
        if unknown and self.policy != SKIP:
            raise Corrupt(
                f"the outcome of a transaction of producer {unknown[0].producer} cannot be known: its marker is"
                " damaged; read other offsets, or leave the transaction out with corruptRecords=skip",
                file=unknown[0].file,
                offset=unknown[0].last,
            )
        if self._aborted is None:
            indexed = [self._transaction_index(state.name) for state in self.segments]
            self._aborted = merged(self.transactions, indexed)
        aborted = self._aborted.overlapping(start, end)
        if not unknown:
            return aborted
        # As if they had been aborted where reading stopped.
        columns = np.array([(entry.producer, entry.first, entry.last, entry.last + 1) for entry in unknown], np.int64).T
        every = concatenate([aborted, AbortedTransactions(*columns)])
        return every.select(np.argsort(every.last_offsets, kind="stable"))

    def unknown(self, start: int, end: int) -> list[Unknown]:
        """Return transactions with offsets in `[start, end)` whose outcome is in no marker and no `.txnindex`."""
        entries = [entry for entry in self.transactions.unknown if entry[1] < end and entry[2] >= start]
        if not entries:
            return []
        indexed = [self._transaction_index(state.name) for state in self.segments]
        return [
            Unknown(producer, first, last, [s.name.path for s in self.segments if s.name.base <= last][-1])
            for producer, first, last in entries
            if not any(((index.producer_ids == producer) & (index.first_offsets <= first)).any() for index in indexed)
        ]

    def _transaction_index(self, name: SegmentName) -> AbortedTransactions:
        """Return the `.txnindex` of a segment, empty if missing or wrong. That of the last segment still grows."""
        index = self._indexed.get(name)
        if index is None:
            try:
                index = transaction_index.parse(file_bytes(companion(name.path, "txnindex")) or b"", name.base)
            except Corrupt:
                index = transaction_index.none()
            if self.segments and name != self.segments[-1].name:
                self._indexed[name] = index
        return index

    def stored(self, start: int, end: int, *, detailed: int = DETAILED_BLOCKS) -> Stored:
        """Return the stored size of these offsets: a run for each block of their segments.

        After the first `detailed` blocks a segment is one run, so that a stream with rate limits does not walk all
        blocks of a terabyte for each micro-batch.
        """
        low = max(bisect_right(self.segments, start, key=_base) - 1, 0)
        columns = [array("q") for _ in range(5)]
        edges = array("q")
        for state in self.segments[low : bisect_left(self.segments, end, key=_base)]:
            if len(edges) >= detailed:
                row = (state.name.base, state.next_offset, state.records, 0, state.batches)
                for column, number in zip(columns, row, strict=True):
                    column.append(number)
                edges.append(state.end)
                continue
            for column, numbers in zip(columns, state.block_columns, strict=True):
                column.extend(numbers)
            # A block ends where the next one begins, the last one of a segment where that does.
            edges.extend(state.block_position[1:])
            edges.extend([state.end] if state.block_position else ())
        base, stop, records, position, batches = (np.array(column, np.int64) for column in columns)
        runs = Runs(base, stop, records, np.array(edges, np.int64) - position, batches)
        return Stored(start, end, runs.ordered().clipped(start, end))


def _base(state: SegmentState) -> int:
    return state.name.base
