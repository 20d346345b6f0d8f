"""A simulated bucket that has the visible differences between object stores and disks.

| behavior            | effect                                                                                    |
|---------------------|-------------------------------------------------------------------------------------------|
| late listings       | for some time, listings may omit new objects and contain deleted objects                  |
| whole seconds       | object times have no milliseconds, and the store's clock is up to two seconds behind      |
| rate-limited writes | a create soon after another create of the same key may have no effect, and returns False  |
|                     | or raises `Unavailable`                                                                   |
| bulk deletes        | keys are deleted in any order; if some are not deleted, the request raises `Unavailable`  |

Reads by key (`get`, `stat`) are never stale, as in S3, Azure and Google Cloud Storage. To simulate failures between a
client and the bucket, wrap this store in a `FaultyStore` with `BUCKET_FAULTS`.
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
    FaultKind.ERROR_BEFORE,  # The bucket returned 503 until the client gave up.
    FaultKind.ERROR_AFTER,  # The request timed out after it had taken effect.
    FaultKind.LATE,  # The request timed out, and takes effect later.
    FaultKind.TWICE,  # The response was lost, and the client's retry got 412.
    FaultKind.FALSE_EXISTS,  # The bucket returned 409 for an object that does not exist.
)
"""The faults that can occur in a request to a bucket, for `Seeded`."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A create (`info` is None) or a delete (`info` describes the deleted object) that is not included in listings yet.
    Listings include the change after a total of `requests` requests to the store, or after `time_ms`.
    """

    requests: int
    time_ms: int
    info: ObjectInfo | None


class BucketStore(WrapperStore):
    """A simulated bucket that is based on an in-process store. All clients of the bucket share the store. This class is
    not thread-safe.

    Args:
        inner: The store that contains the objects.
        source: The source of random numbers.
        clock: A function that returns the true time in milliseconds.
        late_requests: The maximum number of requests of all clients after which a change is listed.
        late_ms: The maximum time after which a change is listed.
        quick_ms: The time after a create of a key during which another create is rate-limited. Google Cloud Storage and
            R2 allow one create per second.
        bulk_failures: The probability that a bulk delete does not delete a key.
        parallel_reads: The recommended number of parallel reads, as in `Store`.
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
        self._create_times_ms: dict[str, int] = {}
        self._changes: dict[str, _Change] = {}

    def create(self, key: str, data: bytes) -> bool:
        self._requests += 1
        now_ms = self._clock()
        last_ms, self._create_times_ms[key] = self._create_times_ms.get(key), now_ms
        if last_ms is not None and now_ms - last_ms < self._quick_ms:
            draw = self._source.random()
            if draw < 0.2:
                raise Unavailable(f"{key} in {self.location}: 429, too many creates of this key; retry later")
            if draw < 0.6:
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
        """Delete keys in random order. Raises `Unavailable` if some keys were not deleted."""
        shuffled = list(keys)
        self._source.shuffle(shuffled)
        failed = [key for key in shuffled if self._source.random() < self._bulk_failures]
        for key in shuffled:
            if key not in failed:
                self.delete(key)
        if failed:
            raise Unavailable(
                f"{failed[0]} in {self.location} and {len(failed) - 1} other objects were not deleted; retry"
            )

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
        """Record that a writer has created an object."""
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
        """Return the objects that a listing contains, in key order."""
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
    """A writer of a data object. The object may be listed only some time after the writer is closed."""

    def close(self) -> None:
        super().close()
        self._store.made(self._key)


def _whole_second(time_ms: int) -> int:
    return time_ms // 1_000 * 1_000
