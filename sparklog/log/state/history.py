"""Older versions of a topic. `History` lists the commits and checkpoints in a topic's log, and rebuilds earlier states
from them.

A state is rebuilt from the latest valid checkpoint at or below its version and the commits after this checkpoint. The
latest state is provided by `CommitLog`.

A commit number can be used twice if the vacuum has deleted a commit. For example:

1. Writer A stalls before it creates commit 7. Writer B creates commit 7, and more commits follow.
2. The vacuum deletes commit 7, which a checkpoint covers.
3. Writer A continues and creates its own commit 7. It contains the CRC of commit 6, so it appears to be valid.

Therefore, a commit is valid only if it is part of the chain from a checkpoint, which means that the next commit
contains its CRC.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from sparklog.common.times import iso_time
from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound
from sparklog.log.journal.clocks import Env, latest_at
from sparklog.log.journal.names import (
    checkpoint_key,
    checkpoint_prefix,
    commit_key,
    entry_number,
    is_checkpoint_table_name,
    list_entries,
)
from sparklog.log.journal.numbered_objects import READ_AHEAD
from sparklog.log.journal.stored_object import decode_object
from sparklog.log.state.checkpoint import decode_checkpoint, decode_table
from sparklog.log.state.commit import MAX_EMBEDDED, Commit
from sparklog.log.state.commit_object import decode_commit
from sparklog.log.state.embedded_commits import BLOCK_COMMITS, commits_to_read, verified_chain, with_embedded_copies
from sparklog.log.state.invariants import check_state
from sparklog.log.state.slice_table import SliceTable, Snapshot
from sparklog.log.state.topic_state import EMPTY, TopicState
from sparklog.storage.patient_store import PatientStore
from sparklog.storage.store import ObjectInfo, Store

_LOG = logging.getLogger("sparklog.log")
_BLOCKS = 16
"""The maximum number of blocks whose objects are in memory at the same time."""
_decode_document = partial(decode_commit, check_sections=False)
_Read = Callable[[Callable[[int], bytes], Iterable[int]], Iterable[bytes]]


@dataclass(frozen=True, slots=True, eq=False)
class CommitFiles:
    """The commits in the log, with one int64[n] array per field. `modified_ms` is the store's modification time."""

    version: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    modified_ms: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.version)

    def has(self, first: int, last: int) -> bool:
        if last < first:
            return True
        low, high = np.searchsorted(self.version, [first, last]).tolist()
        is_inside = high < len(self) and self.version[low] == first and self.version[high] == last
        return bool(is_inside) and high - low == last - first


def start_after_last_gap(versions: npt.NDArray[np.int64]) -> int:
    """Return the index of the first version after the last gap. Commits after a gap cannot be applied to the versions
    before the gap.
    """
    gaps = np.flatnonzero(np.diff(versions) != 1)
    return int(gaps[-1]) + 1 if len(gaps) else 0


class History:
    """The commits and checkpoints of a topic, each from one listing.

    `tables` contains all slice tables, including unreferenced ones. If `env` is set, reads wait for up to 90 s for a
    listed commit that a mount's directory cache still hides.
    """

    def __init__(self, store: Store, topic: str, env: Env | None = None) -> None:
        self.store = store
        self.topic = topic
        self.env = env
        self.commits = _commits(list_entries(store, topic))
        below = list(store.list(checkpoint_prefix(topic)))
        checkpoints = {version: info for info in below if (version := entry_number(info.key)) is not None}
        self.checkpoints: dict[int, ObjectInfo] = dict(sorted(checkpoints.items()))
        self.tables = [info for info in below if is_checkpoint_table_name(info.key.rsplit("/", 1)[-1])]
        self._valid: dict[int, Snapshot | None] = {}
        self._table_keys: dict[int, str] = {}

    def checkpoint(self, version: int) -> Snapshot | None:
        """Return the state in a checkpoint after checking both objects and the CRC of its commit.

        Return None if it is damaged.
        """
        if version not in self._valid:
            try:
                self._valid[version] = self._verify(version)
            except (Corrupt, NotFound, BadRequest) as error:
                _LOG.warning("checkpoint %s of topic %s is damaged: %s", version, self.topic, error)
                self._valid[version] = None
        return self._valid[version]

    def mark_damaged(self, version: int) -> None:
        """Treat a checkpoint as damaged from now on."""
        self._valid[version] = None

    def table_of(self, version: int) -> str | None:
        """Return the key of a checkpoint's slice table, or None if the checkpoint is damaged."""
        return None if self.checkpoint(version) is None else self._table_keys[version]

    def _verify(self, version: int) -> Snapshot:
        key = checkpoint_key(self.topic, version)
        checkpoint = decode_checkpoint(self.store.get(key), key, version)
        table_key = checkpoint_prefix(self.topic) + checkpoint.table.name
        data = self.store.get(table_key, 0, checkpoint.table.size + 1)
        table = decode_table(data, checkpoint.table, table_key, version)
        check_state(checkpoint.state, table)
        if self.commits.has(version, version):
            crc = self.commit(version).crc
            if crc != (stored := checkpoint.state.crc):
                raise Corrupt(f"commit {version} has CRC-32C {crc}, but its checkpoint expects {stored}", file=key)
        self._table_keys[version] = table_key
        return Snapshot(self.topic, self.store, checkpoint.state, table)

    def checkpoints_below(self, version: int) -> Iterator[int]:
        """Yield the versions of valid checkpoints at or below a version, latest first.

        Each checkpoint is read when needed.
        """
        return (base for base in reversed(self.checkpoints) if base <= version and self.checkpoint(base) is not None)

    def base_of(self, version: int) -> int | None:
        """Return the version from which `at(version)` rebuilds the state. It is the version of a checkpoint, -1 for the
        empty state, or None if the state cannot be rebuilt.
        """
        for base in self.checkpoints_below(version):
            # Using an older checkpoint does not help, because the commits after this checkpoint would also be needed.
            return base if self.commits.has(base + 1, version) else None
        return -1 if self.commits.has(0, version) else None

    def at(self, version: int) -> Snapshot:
        """Return the state and slices at a version.

        Raises:
            NotFound: If the version cannot be rebuilt
            Corrupt: If the chain of commits is broken
        """
        base = self.base_of(version)
        if base is None:
            raise NotFound(
                f"version {version} of topic '{self.topic}' cannot be rebuilt, because no valid checkpoint exists at "
                "or below this version, or commits after the checkpoint are missing; run `sparklog verify`"
            )
        start = self.checkpoint(base) if base >= 0 else Snapshot(self.topic, self.store, EMPTY, SliceTable())
        if start is None:
            raise Corrupt(f"checkpoint {base} is damaged", file=checkpoint_key(self.topic, base))
        state, table = start.state, start.slices
        for after, commit in self.walk(start.state, version):
            state = after
            try:
                table = table.apply(commit, state)
            except Conflict as error:
                raise Corrupt(f"{error}; run `sparklog verify`", file=commit_key(self.topic, commit.version)) from None
        return Snapshot(self.topic, self.store, state, table)

    def version_at(self, time_ms: int) -> int:
        """Return the latest version at or before a time. The time is in ms, according to the clocks of the writers.

        Raises `NotFound` if there is no such version.
        """
        versions = self.commits.version
        first, last = (int(versions[start_after_last_gap(versions)]), int(versions[-1])) if len(versions) else (0, -1)
        version = latest_at(self.commit, first, last, time_ms)
        if version >= first:
            return version
        reason = "the topic was created later" if first == 0 else f"the log starts at version {first}, which is later"
        raise NotFound(f"topic '{self.topic}' has no version at {iso_time(time_ms)}: {reason}")

    def walk(self, state: TopicState, last: int) -> Iterator[tuple[TopicState, Commit]]:
        """Yield each commit after `state` up to version `last`, with the state after the commit.

        Raises the errors of `at`.
        """
        for commit in self._commits(state, last):
            try:
                state = state.apply(commit)
            except Corrupt as error:
                key = commit_key(self.topic, commit.version)
                raise error if error.file else Corrupt(error.message, file=key) from None
            yield state, commit

    def _commits(self, state: TopicState, last: int) -> Iterator[Commit]:
        """Yield the commits after `state` block by block.

        Valid embedded copies are used, and other commits are read one by one.
        """
        first, crc = state.version + 1, state.crc
        next_block = (first // BLOCK_COMMITS + 1) * BLOCK_COMMITS
        starts = [first, *range(next_block, last + 1, BLOCK_COMMITS)] if first <= last else []
        bounds = [(start, min(last, start | MAX_EMBEDDED)) for start in starts]
        with self._reader() as read:
            for start in range(0, len(bounds), _BLOCKS):
                some = bounds[start : start + _BLOCKS]
                numbers = [number for block in some for number in commits_to_read(*block)]
                objects = dict(zip(numbers, read(self._data, numbers), strict=True))
                for block in some:
                    commits = self._block(block, objects, crc, read)
                    yield from commits
                    crc = commits[-1].crc

    def _block(
        self, block: tuple[int, int], objects: Mapping[int, bytes], crc: int | None, read: _Read
    ) -> list[Commit]:
        versions = range(block[0], block[1] + 1)
        objects_read = {
            number: (self._decode(number, objects[number]), objects[number]) for number in commits_to_read(*block)
        }
        chain = verified_chain(with_embedded_copies(self.topic, objects_read, block[0]), *block, crc)
        if chain is not None:
            return chain
        missing = [number for number in versions if number not in objects_read]
        singles = dict(zip(missing, read(self._data, missing), strict=True))
        return [
            objects_read[number][0] if number in objects_read else self._decode(number, singles[number])
            for number in versions
        ]

    def commit(self, version: int) -> Commit:
        """Return one commit without checking the chain. Raises `NotFound` if the commit was deleted."""
        return self._decode(version, self._data(version))

    def _decode(self, version: int, data: bytes) -> Commit:
        return decode_object(self.store, commit_key(self.topic, version), data, _decode_document, version).expect()

    @contextmanager
    def _reader(self) -> Iterator[_Read]:
        """Yield a function that reads objects in order. On a remote store, the function reads objects in parallel."""
        if self.store.parallel_reads <= 1:
            yield map
            return
        with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="sparklog-read") as pool:
            yield pool.map

    def _data(self, version: int) -> bytes:
        store = self.store if self.env is None else PatientStore(self.store, self.env)
        return store.get(commit_key(self.topic, version))


def _commits(listing: Iterator[ObjectInfo]) -> CommitFiles:
    versions = ((entry_number(info.key), info) for info in listing)
    rows = ((version, info.size, info.modified_ms) for version, info in versions if version is not None)
    # Do not create an intermediate list, because one commit per second results in 600,000 rows per week.
    return CommitFiles(*np.fromiter(rows, np.dtype((np.int64, 3))).T)
