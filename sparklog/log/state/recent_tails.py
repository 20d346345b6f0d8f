"""The records of the newest commits, kept where a fetch finds them: a reader that follows a log has read them already.

A follower reads each new commit whole. If records are in it, they would be asked for again a moment later. So this
process keeps the tails of the last commits it has decoded, of all topics and stores (`Limits.kept_tails`,
`Limits.kept_tail_bytes`).
The store counts: a reader that takes bytes from here checks their CRC-32C, and on a difference forgets them and asks.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass

from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class _Kept:
    """Bytes `[start, start + len(data))` of an object."""

    store: weakref.ref[Store]
    start: int
    data: bytes


class RecentTails:
    """Tails by store and key, the newest ones last. Threads may share it."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._kept: OrderedDict[tuple[int, str], _Kept] = OrderedDict()
        self._bytes = 0

    def keep(self, store: Store, key: str, start: int, tail: bytes) -> None:
        """Keep the tail of a commit, which begins at `start` of its object."""
        with self._lock:
            self._drop((id(store), key))
            self._kept[id(store), key] = _Kept(weakref.ref(store), start, tail)
            self._bytes += len(tail)
            limits = store.limits
            while self._kept and (len(self._kept) > limits.kept_tails or self._bytes > limits.kept_tail_bytes):
                self._drop(next(iter(self._kept)))

    def read(self, store: Store, key: str, start: int, length: int) -> bytes | None:
        """Return bytes of an object, None if they are not kept."""
        kept = self._kept.get((id(store), key))
        if kept is None or kept.store() is not store:
            return None
        low = start - kept.start
        return kept.data[low : low + length] if 0 <= low <= len(kept.data) - length else None

    def forget(self, store: Store, key: str) -> bool:
        """Keep no bytes of an object any more; False if none were."""
        with self._lock:
            return self._drop((id(store), key))

    def _drop(self, place: tuple[int, str]) -> bool:
        kept = self._kept.pop(place, None)
        self._bytes -= 0 if kept is None else len(kept.data)
        return kept is not None


RECENT = RecentTails()
