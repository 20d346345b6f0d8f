"""Leave out of a plan the slices that cannot hold a key, by the filters of keys beside their files.

Filters are a help, never the truth: without one, or with one that is damaged or of other bytes, a slice is read. They
are kept in the process, `CACHE_BYTES` of them, those used last: files never change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

import numpy as np

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format.key_filter import Hashes, KeyFilter, decode_filters, hashes_of
from sparklog.log.journal.names import file_key, filter_path
from sparklog.log.read.read_plan import PlannedSlices
from sparklog.log.read.scan import NativeReadPart
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import ReadPart
from sparklog.storage.store import Store

CACHE_BYTES = 64 << 20
FILE_BYTES = 1024
"""Counted for a file beside its filters, also where it has none."""


class FilterCache:
    """Filters of the files used last."""

    def __init__(self, most: int = CACHE_BYTES) -> None:
        self._most = most
        self._files: OrderedDict[tuple[str, str], tuple[KeyFilter, ...]] = OrderedDict()
        self._nbytes = 0
        self._lock = Lock()

    def filters(self, store: Store, file: str) -> tuple[KeyFilter, ...]:
        """Return the filters beside a data file, in one request or none."""
        name = store.location, file
        with self._lock:
            if name in self._files:
                self._files.move_to_end(name)
                return self._files[name]
        try:
            filters = decode_filters(store.get(filter_path(file)), file=filter_path(file))
        except (NotFound, Corrupt, BadRequest):
            filters = ()
        with self._lock:
            if name not in self._files:
                self._files[name] = filters
                self._nbytes += _size(filters)
            while self._nbytes > self._most and self._files:
                self._nbytes -= _size(self._files.popitem(last=False)[1])
        return filters


def _size(filters: Sequence[KeyFilter]) -> int:
    return FILE_BYTES + sum(each.words.nbytes for each in filters)


cache = FilterCache()
"""Of this process."""


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
        for each in cache.filters(store, file_key(slices.topic, slices.paths[code])):
            if [each.position, each.nbytes, each.crc] == slice_bytes:
                keep[row] = each.may_hold(hashes)
    return slices[keep]
