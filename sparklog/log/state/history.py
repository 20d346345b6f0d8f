"""Older versions of a topic: what its log still holds, and the state at any version that can be rebuilt from it.

A state is rebuilt from the newest sound checkpoint at or below its version and the commits after it; the newest state
is `CommitLog`'s.

A number may be used twice once its commit was collected: a stalled writer creates it again, and its predecessor's CRC
is right. So whatever is taken from a commit is taken along the chain from a checkpoint: the CRC of each commit must
be what its successor says.
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
from sparklog.log.state.commit import MAX_EMBEDDED, Commit, decode_commit
from sparklog.log.state.embedded_commits import BLOCK_COMMITS, commits_to_read, verified_chain, with_embedded_copies
from sparklog.log.state.invariants import check_state
from sparklog.log.state.slice_table import SliceTable, Snapshot
from sparklog.log.state.topic_state import EMPTY, TopicState
from sparklog.storage.patient_store import PatientStore
from sparklog.storage.store import ObjectInfo, Store

_LOG = logging.getLogger("sparklog.log")
_BLOCKS = 16
"""Blocks whose objects are in memory at once."""
_decode_document = partial(decode_commit, whole=False)
_Read = Callable[[Callable[[int], bytes], Iterable[int]], Iterable[bytes]]


@dataclass(frozen=True, slots=True, eq=False)
class CommitFiles:
    """The commits in the log, by version: int64[n] each; `modified_ms` by the store's clock."""

    version: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    modified_ms: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.version)

    def has(self, first: int, last: int) -> bool:
        if last < first:
            return True
        places = np.searchsorted(self.version, [first, last])
        inside = places[1] < len(self) and self.version[places[0]] == first and self.version[places[1]] == last
        return bool(inside) and int(places[1] - places[0]) == last - first


def first_of_run(versions: npt.NDArray[np.int64]) -> int:
    """Return the index of the first version from which on none is missing: what is before a gap leads nowhere."""
    gaps = np.flatnonzero(np.diff(versions) != 1)
    return int(gaps[-1]) + 1 if len(gaps) else 0


class History:
    """The commits and checkpoints of a topic, from one listing each. `tables`: whether or not a head names them.

    With an `env` reads wait up to 90 s for a commit that a listing shows and a cache of names denies.
    """

    def __init__(self, store: Store, topic: str, env: Env | None = None) -> None:
        self.store = store
        self.topic = topic
        self.env = env
        self.commits = _commits(list_entries(store, topic))
        below = list(store.list(checkpoint_prefix(topic)))
        heads = {version: info for info in below if (version := entry_number(info.key)) is not None}
        self.checkpoints: dict[int, ObjectInfo] = dict(sorted(heads.items()))
        self.tables = [info for info in below if is_checkpoint_table_name(info.key.rsplit("/", 1)[-1])]
        self._sound: dict[int, Snapshot | None] = {}
        self._table_keys: dict[int, str] = {}

    def sound(self, version: int) -> Snapshot | None:
        """Return the state in a checkpoint: head, table and place in the chain are checked. None if it is damaged."""
        if version not in self._sound:
            try:
                self._sound[version] = self._verify(version)
            except (Corrupt, NotFound, BadRequest) as error:
                _LOG.warning("checkpoint %s of topic %s is not sound: %s", version, self.topic, error)
                self._sound[version] = None
        return self._sound[version]

    def distrust(self, version: int) -> None:
        """Do without a checkpoint from now on."""
        self._sound[version] = None

    def table_of(self, version: int) -> str | None:
        """Return the key of the slice table that a sound checkpoint names."""
        return None if self.sound(version) is None else self._table_keys[version]

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
                raise Corrupt(f"commit {version} has CRC-32C {crc}, its checkpoint says {stored}", file=key)
        self._table_keys[version] = table_key
        return Snapshot(self.topic, self.store, checkpoint.state, table)

    def sound_below(self, version: int) -> Iterator[int]:
        """Versions of sound checkpoints at or below a version, newest first; each is read when it is asked for."""
        return (base for base in reversed(self.checkpoints) if base <= version and self.sound(base) is not None)

    def base_of(self, version: int) -> int | None:
        """The version that `at(version)` starts from: a checkpoint, -1 for the log's beginning; None: no way."""
        for base in self.sound_below(version):
            # The commits before a gap lead nowhere, so an older checkpoint does not either.
            return base if self.commits.has(base + 1, version) else None
        return -1 if self.commits.has(0, version) else None

    def at(self, version: int) -> Snapshot:
        """Return head and slices at a version. `NotFound` if it cannot be rebuilt, `Corrupt` if the chain is broken."""
        base = self.base_of(version)
        if base is None:
            raise NotFound(
                f"version {version} of topic '{self.topic}' cannot be rebuilt: no sound checkpoint at or below it has "
                "all commits between; run verify"
            )
        start = self.sound(base) if base >= 0 else Snapshot(self.topic, self.store, EMPTY, SliceTable())
        if start is None:
            raise Corrupt(f"checkpoint {base} is not sound", file=checkpoint_key(self.topic, base))
        state, table = start.state, start.slices
        for after, commit in self.walk(start.state, version):
            state = after
            try:
                table = table.apply(commit, state)
            except Conflict as error:
                raise Corrupt(f"{error}; run verify", file=commit_key(self.topic, commit.version)) from None
        return Snapshot(self.topic, self.store, state, table)

    def version_at(self, time_ms: int) -> int:
        """Return the newest version that was not made after a time (ms, of the writers' clocks); else `NotFound`."""
        kept = self.commits.version
        first, last = (int(kept[first_of_run(kept)]), int(kept[-1])) if len(kept) else (0, -1)
        version = latest_at(self.commit, first, last, time_ms)
        if version >= first:
            return version
        reason = "it was created later" if first == 0 else f"its log goes back to version {first}, which is newer"
        raise NotFound(f"there is no version of topic '{self.topic}' at {iso_time(time_ms)}: {reason}")

    def walk(self, state: TopicState, last: int) -> Iterator[tuple[TopicState, Commit]]:
        """Yield the commits after `state` up to version `last`, each with the head after it. Raises as `at` does."""
        for commit in self._commits(state, last):
            try:
                state = state.apply(commit)
            except Corrupt as error:
                key = commit_key(self.topic, commit.version)
                raise error if error.file else Corrupt(error.message, file=key) from None
            yield state, commit

    def _commits(self, state: TopicState, last: int) -> Iterator[Commit]:
        """Yield the commits after `state`: of each block what few commits carry, where that fits, else one by one."""
        first, crc = state.version + 1, state.crc
        starts = (
            [first, *range((first // BLOCK_COMMITS + 1) * BLOCK_COMMITS, last + 1, BLOCK_COMMITS)]
            if first <= last
            else []
        )
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
        """Return one commit, whatever its place in the chain. `NotFound` if it is gone."""
        return self._decode(version, self._data(version))

    def _decode(self, version: int, data: bytes) -> Commit:
        return decode_object(self.store, commit_key(self.topic, version), data, _decode_document, version).expect()

    @contextmanager
    def _reader(self) -> Iterator[_Read]:
        """Give what reads several objects in order: at once on a store with round trips."""
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
    # As they come: a week of a commit a second is 600,000 rows.
    return CommitFiles(*np.fromiter(rows, np.dtype((np.int64, 3))).T)
