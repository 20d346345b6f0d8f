"""Leave out of a plan the slices that cannot hold a key, by the filters of keys beside their files.

Filters are a help, never the truth: a slice is read without one, or where it cannot be read, is damaged or of other
bytes. They are kept in the process, those used last: files never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.key_filter import Hashes, KeyFilter, decode_filters, hashes_of
from sparklog.log.journal.names import file_key, filter_path
from sparklog.log.read.helper_files import Unreadable, read_helper_file
from sparklog.log.read.planned_slices import PlannedSlices
from sparklog.log.read.read_plan import NativeReadPart
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import ReadPart
from sparklog.storage.fork_safety import RecentlyUsed
from sparklog.storage.store import Store

Filters = tuple[KeyFilter, ...]


def _nbytes(filters: Filters) -> int:
    return sum(key_filter.words.nbytes for key_filter in filters)


cache = RecentlyUsed[tuple[str, str], Filters](_nbytes)
"""Of this process, by the location of the store and the name of the data file."""


def filters_beside(store: Store, file: str) -> Filters:
    """Return the filters beside a data file, in one request or none."""
    filters = cache.get((store.location, file))
    if filters is None:
        key = filter_path(file)
        try:
            data = read_helper_file(store, key)
            filters = () if data is None else decode_filters(data, file=key)
        except Unreadable:
            return ()
        except (Corrupt, BadRequest):
            filters = ()
        cache.put((store.location, file), filters)
    return filters


def without_absent(parts: Sequence[ReadPart], keys: Sequence[bytes]) -> list[ReadPart]:
    """Return what is left of parts where slices that hold none of the keys are left out; empty parts go.

    Parts of Kafka's directories stay as they are: filters are sparklog's.
    """
    hashes: Hashes | None = None
    left: list[ReadPart] = []
    for part in parts:
        if isinstance(part, NativeReadPart):
            marked = np.flatnonzero(part.slices.flags & int(SliceFlag.KEY_FILTER))
            if len(marked):
                hashes = hashes_of(keys) if hashes is None else hashes
                part = replace(part, slices=_that_may_hold(part.store, part.slices, marked.tolist(), hashes))
            if not len(part.slices):
                continue
        left.append(part)
    return left


def _that_may_hold(store: Store, slices: PlannedSlices, marked: Sequence[int], hashes: Hashes) -> PlannedSlices:
    keep = np.ones(len(slices), np.bool_)
    columns = (slices.columns[name].tolist() for name in ("file", "position", "size", "crc"))
    rows = list(zip(*columns, strict=True))
    for row in marked:
        code, *slice_bytes = rows[row]
        for key_filter in filters_beside(store, file_key(slices.topic, slices.paths[code])):
            if [key_filter.position, key_filter.nbytes, key_filter.crc] == slice_bytes:
                keep[row] = key_filter.may_hold(hashes)
    return slices[keep]
