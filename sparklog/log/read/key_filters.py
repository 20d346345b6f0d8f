"""Use the key filters of data files to remove blocks that cannot contain a key from a read plan. A block is a part of a
slice.

Filters are only an optimization. If the filter of a slice is missing, unreadable, corrupt or does not match the slice,
the slice is read entirely. Each process caches recently used filters, because files never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.key_filter import Hashes, KeyFilter, decode_filters, hashes_of
from sparklog.format.record_batch import Int64Array
from sparklog.log.journal.names import filter_path
from sparklog.log.read.auxiliary_files import Unreadable, read_auxiliary_file
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices
from sparklog.log.read.read_plan import NativeReadPart
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import OffsetRange, ReadPart
from sparklog.storage.fork_safety import RecentlyUsed
from sparklog.storage.store import Store

Filters = tuple[KeyFilter, ...]


def _nbytes(filters: Filters) -> int:
    return sum(piece.words.nbytes for key_filter in filters for piece in key_filter.pieces)


cache = RecentlyUsed[tuple[str, str], Filters](_nbytes)
"""Cached key filters by the location of the store and the key of the data file."""


def key_filters_of(store: Store, file: str) -> Filters:
    """Return the key filters of a data file, with at most one request."""
    filters = cache.get((store.location, file))
    if filters is None:
        key = filter_path(file)
        try:
            data = read_auxiliary_file(store, key)
            filters = () if data is None else decode_filters(data, file=key)
        except Unreadable:
            return ()
        except (Corrupt, BadRequest):
            filters = ()
        cache.put((store.location, file), filters)
    return filters


def parts_with_keys(parts: Sequence[ReadPart], keys: Sequence[bytes]) -> list[ReadPart]:
    """Remove the blocks that contain none of the keys from the parts. Kafka directories have no key filters."""
    hashes: Hashes | None = None
    remaining: list[ReadPart] = []
    for part in parts:
        if isinstance(part, NativeReadPart):
            marked = np.flatnonzero(part.slices.flags & int(SliceFlag.KEY_FILTER))
            if len(marked):
                hashes = hashes_of(keys) if hashes is None else hashes
                part = replace(part, slices=_slices_with_keys(part, marked.tolist(), hashes))
            if not len(part.slices):
                continue
        remaining.append(part)
    return remaining


def _slices_with_keys(part: NativeReadPart, marked: Sequence[int], hashes: Hashes) -> PlannedSlices:
    slices = part.slices
    blocks_by_row: dict[int, _MatchingBlocks] = {}
    for row, planned in zip(marked, slices[np.array(marked)].rows(), strict=True):
        identity = (planned.position, planned.size, planned.crc)
        for key_filter in key_filters_of(part.store, planned.file):
            if (key_filter.position, key_filter.nbytes, key_filter.crc) == identity:
                blocks = _MatchingBlocks.of(key_filter, planned, hashes)
                if blocks is not None:
                    blocks_by_row[row] = blocks.within(part.range)
    return _replaced(slices, blocks_by_row) if blocks_by_row else slices


@dataclass(frozen=True, slots=True)
class _MatchingBlocks:
    """The blocks of a slice that may contain a key, as columns of the slice table (int64[n])."""

    columns: dict[str, Int64Array]

    @classmethod
    def of(cls, key_filter: KeyFilter, planned: PlannedSlice, hashes: Hashes) -> _MatchingBlocks | None:
        """Return the matching blocks. Return None if the offsets of the blocks are invalid, so that the entire slice
        must be read.
        """
        pieces = key_filter.pieces
        offset, size, crc = np.array([(piece.offset, piece.nbytes, piece.crc) for piece in pieces], np.int64).T
        base = np.concatenate(([planned.base], offset[1:] + planned.shift))
        end = np.append(base[1:], planned.end)
        if not (base < end).all():
            return None
        records = end - base
        if planned.records < planned.end - planned.base:
            # The number of records in a block is not stored. The estimate must be less than the number of offsets,
            # because readers treat a gap between batches as corruption if there is a record at each offset.
            records = np.minimum(-(-planned.records * size // planned.size), records - 1)
        position = planned.position + np.cumsum(size) - size
        columns = {"position": position, "size": size, "base": base, "end": end, "records": records, "crc": crc}
        return cls(columns)._select(key_filter.may_contain(hashes))

    def within(self, offsets: OffsetRange) -> _MatchingBlocks:
        return self._select((self.columns["base"] < offsets.end) & (self.columns["end"] > offsets.start))

    def _select(self, rows: npt.NDArray[np.bool_]) -> _MatchingBlocks:
        return _MatchingBlocks({name: column[rows] for name, column in self.columns.items()})

    def __len__(self) -> int:
        return len(self.columns["base"])


def _replaced(slices: PlannedSlices, blocks_by_row: Mapping[int, _MatchingBlocks]) -> PlannedSlices:
    """Replace slices by their matching blocks, which readers treat as small slices."""
    counts = np.ones(len(slices), np.int64)
    counts[list(blocks_by_row)] = [len(blocks) for blocks in blocks_by_row.values()]
    columns = slices[np.repeat(np.arange(len(slices)), counts)].columns
    ends = np.cumsum(counts)
    for row, blocks in blocks_by_row.items():
        for name, column in blocks.columns.items():
            columns[name][ends[row] - counts[row] : ends[row]] = column
    return replace(slices, columns=columns)
