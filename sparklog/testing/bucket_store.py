"""A bucket at its worst: what an object store does to all its clients, and a disk never does.

| behaviour        | what clients see                                                                             |
|------------------|----------------------------------------------------------------------------------------------|
| late listings    | a new object is missing from them and a deleted one still shown, each for a while of its own |
| whole seconds    | times of objects lack their milliseconds, and the store's clock is up to two seconds behind  |
| writes too quick | a create of a key right after another one of it: False or `Unavailable`, nothing happened    |
| bulk deletes     | some keys of a request are not deleted, in any order: `Unavailable`                          |

Reads by key (`get`, `stat`) are never stale, as with all of S3, Azure and Google. What goes wrong between one client
and the bucket is drawn by a `FaultyStore` around this one, of `BUCKET_FAULTS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from sparklog.errors import Unavailable
from sparklog.storage.store import ObjectInfo, ObjectWriter, Store, check_prefix
from sparklog.testing.faulty_store import FaultKind
from sparklog.testing.wrapper_stores import WrapperStore, WrapperWriter

BUCKET_FAULTS = (
    FaultKind.ERROR_BEFORE,  # 503 until the client gave up
    FaultKind.ERROR_AFTER,  # a timeout: it took effect
    FaultKind.LATE,  # a timeout: it takes effect yet
    FaultKind.TWICE,  # a lost answer; the client's retry got 412
    FaultKind.FALSE_EXISTS,  # 409, and nothing is there
)
"""How a request to a bucket fails, for a `Seeded` plan."""


@dataclass(frozen=True, slots=True)
class _Change:
    """An object made (`info` None) or deleted (`info`: as it was), not listed so before one of these has passed."""

    requests: int
    time_ms: int
    info: ObjectInfo | None


class BucketStore(WrapperStore):
    """One bucket, around a store of this process that all its clients share. `source` draws, `clock` is true time.

    * `late_requests`, `late_ms`: a change is listed after so many requests of anybody, or so many ms, at the latest
    * `quick_ms`: how soon another create of a key is too quick; Google and R2 allow one a second
    * `bulk_failures`: the chance that a key of a bulk delete is not deleted
    * `parallel_reads`: requests worth making at once; this double itself is not for threads
    """

    def __init__(
        self,
        inner: Store,
        source: random.Random,
        clock: Callable[[], int],
        *,
        late_requests: int = 40,
        late_ms: int = 30_000,
        quick_ms: int = 1_000,
        bulk_failures: float = 0.02,
        parallel_reads: int = 1,
    ) -> None:
        super().__init__(inner)
        self._source = source
        self._clock = clock
        self._late = late_requests, late_ms
        self._quick_ms = quick_ms
        self._bulk_failures = bulk_failures
        self._parallel_reads = parallel_reads
        self._requests = 0
        self._asked: dict[str, int] = {}
        self._changes: dict[str, _Change] = {}

    def create(self, key: str, data: bytes) -> bool:
        self._requests += 1
        now_ms = self._clock()
        asked_ms, self._asked[key] = self._asked.get(key), now_ms
        if asked_ms is not None and now_ms - asked_ms < self._quick_ms:
            answer = self._source.random()
            if answer < 0.2:
                raise Unavailable(f"{key} in {self.location}: 429, too many creates of it; try again")
            if answer < 0.6:
                return False
        created = self.inner.create(key, data)
        if created:
            self._changed(key, None)
        return created

    def overwrite(self, key: str, parts: Iterable[bytes]) -> None:
        self._requests += 1
        self.inner.overwrite(key, parts)

    def writer(self, key: str) -> ObjectWriter:
        return _BucketWriter(self, key, self.inner.writer(key))

    def delete(self, key: str) -> None:
        self._requests += 1
        before = self.stat(key)
        self.inner.delete(key)
        if before is not None:
            self._changed(key, before)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete what it can, in an order of its own; `Unavailable` if something is left."""
        shuffled = list(keys)
        self._source.shuffle(shuffled)
        left = [key for key in shuffled if self._source.random() < self._bulk_failures]
        for key in shuffled:
            if key not in left:
                self.delete(key)
        if left:
            raise Unavailable(f"{left[0]} in {self.location} and {len(left) - 1} more were not deleted; try again")

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        self._requests += 1
        return iter([info for info in self._listed(check_prefix(prefix)) if info.key > after])

    def list_folders(self, prefix: str) -> Iterator[str]:
        self._requests += 1
        below = (info.key[len(prefix) :] for info in self._listed(check_prefix(prefix, folder=True)))
        return iter(sorted({name.partition("/")[0] for name in below if "/" in name}, key=lambda name: name + "/"))

    def stat(self, key: str) -> ObjectInfo | None:
        info = self.inner.stat(key)
        return None if info is None else replace(info, modified_ms=_whole_second(info.modified_ms))

    @property
    def parallel_reads(self) -> int:
        return self._parallel_reads

    @property
    def clock_step_ms(self) -> int:
        return 1_000

    def now_ms(self) -> int:
        return _whole_second(self.inner.now_ms()) - 999

    def made(self, key: str) -> None:
        """Count an object as made just now, by a writer."""
        self._requests += 1
        self._changed(key, None)

    def _changed(self, key: str, info: ObjectInfo | None) -> None:
        late_requests, late_ms = self._late
        if self._source.random() < 0.5:
            requests = self._requests + self._source.randint(1, late_requests)
            self._changes[key] = _Change(requests, self._clock() + late_ms, info)
        else:
            self._changes.pop(key, None)

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield what a listing shows, in key order."""
        now_ms = self._clock()
        self._changes = {
            key: change
            for key, change in self._changes.items()
            if change.requests >= self._requests and change.time_ms > now_ms
        }
        shown = {
            info.key: replace(info, modified_ms=_whole_second(info.modified_ms)) for info in self.inner.list(prefix)
        }
        for key, change in self._changes.items():
            if not key.startswith(prefix):
                continue
            if change.info is None:
                shown.pop(key, None)
            else:
                shown[key] = change.info
        return iter(sorted(shown.values(), key=lambda info: info.key))


class _BucketWriter(WrapperWriter):
    """A data object of a bucket: not listed at once when it is closed."""

    def close(self) -> None:
        super().close()
        self._store.made(self._key)


def _whole_second(time_ms: int) -> int:
    return time_ms // 1_000 * 1_000
