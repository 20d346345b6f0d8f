"""A store that delays each request by a random latency, in order to simulate a remote store.

Published latencies differ by a factor of two, depending on the region, client, day and size. These are the latencies
used here, in milliseconds, for small objects and a client in the region of the bucket:

| store         | request | p50 | p99 | source                                                                   |
|---------------|---------|-----|-----|--------------------------------------------------------------------------|
| `S3_STANDARD` | GET     | 22  | 80  | Tigris, July 2025: 1 KB, p50 22.4, p90 42.0; Quickwit, 2023: 30, tail 80 |
|               | PUT     | 40  | 140 | Tigris: 1 KB, p50 27.0, p90 41.2; SlateDB's guide: 50 to 100             |
|               | LIST    | 45  | 160 | no published figure: slightly more than a PUT                            |
|               | others  | 22  | 80  | assumed to be as for a GET without a body                                |
| `S3_EXPRESS`  | GET     | 4   | 10  | AWS: "consistent single-digit millisecond"; Quickwit: p90 5              |
|               | PUT     | 6   | 14  | SlateDB's guide: 5 to 10                                                 |
|               | LIST    | 8   | 20  | no published figure                                                      |
|               | others  | 4   | 10  | assumed to be as for a GET without a body                                |

Tigris: tigrisdata.com/blog/benchmark-small-objects. Quickwit: quickwit.io/blog/s3-express-speculations. SlateDB:
slatedb.io/docs/performance. AWS: "Performance guidelines for Amazon S3" and "Best practices to optimize S3 Express One
Zone performance", which also state 85 MB/s for the bytes of one request. According to
spiraldb.com/post/so-you-want-to-use-object-storage, latencies are approximately log-normal. Tigris' GETs, from a nearby
cloud, then have a p99 of 70.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from sparklog.storage.store import ObjectInfo, ObjectWriter, Store
from sparklog.testing.wrapper_stores import WrapperStore, WrapperWriter

T = TypeVar("T")
_Z99 = 2.3263
"""The 99th percentile of the normal distribution."""
PAGE = 1000
"""The maximum number of keys in a page of an S3 listing and in an S3 bulk delete."""


@dataclass(frozen=True, slots=True)
class Latency:
    """A log-normal distribution of latencies in milliseconds, with its median and its 99th percentile."""

    p50: float
    p99: float

    def draw(self, source: Random) -> float:
        return source.lognormvariate(math.log(self.p50), math.log(self.p99 / self.p50) / _Z99)


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of each kind of request. The transfer of a body takes additional time, at `bytes_per_ms`."""

    get: Latency
    put: Latency
    list: Latency
    head: Latency
    delete: Latency
    bytes_per_ms: float = 85_000

    def draw_ms(self, verb: str, source: Random) -> float:
        """Draw the latency of a method of `Store`. The latency is 0 if the method does not send a request."""
        latency: Latency | None = getattr(self, _REQUESTS.get(verb, ""), None)
        return 0.0 if latency is None else latency.draw(source)


_REQUESTS = {
    "get": "get",
    "create": "put",
    "close": "put",
    "list": "list",
    "list_folders": "list",
    "stat": "head",
    "now_ms": "head",
    "delete": "delete",
    "delete_many": "delete",
}

S3_STANDARD = Latencies(Latency(22, 80), Latency(40, 140), Latency(45, 160), Latency(22, 80), Latency(22, 80))
S3_EXPRESS = Latencies(Latency(4, 10), Latency(6, 14), Latency(8, 20), Latency(4, 10), Latency(4, 10))


class SlowStore(WrapperStore):
    """A store that delays every request to `inner` by a latency. Half of the latency precedes the effect, and half
    follows it.

    The body of a write is transferred before the effect, and the body of a read after the effect. A data object is sent
    in one PUT when it is closed. `sleep` is called with a number of seconds, so a simulation can pass the `sleep` of
    its clock. The store can be shared by threads. The store can be pickled if `inner` and `sleep` can be pickled. The
    seed of a copy is drawn from `source`.
    """

    def __init__(
        self,
        inner: Store,
        latencies: Latencies,
        source: Random,
        *,
        sleep: Callable[[float], None] = time.sleep,
        parallel_reads: int = 16,
    ) -> None:
        super().__init__(inner)
        self.latencies = latencies
        self.source = source
        self.sleep = sleep
        self._parallel_reads = parallel_reads

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "seed": self.source.getrandbits(64)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        seed = state.pop("seed")
        self.__dict__.update(state)
        self.source.seed(seed)

    @property
    def parallel_reads(self) -> int:
        return self._parallel_reads

    def request(self, verb: str, key: str, send: Callable[[], Any]) -> Any:
        return self._delayed(verb, send)

    def create(self, key: str, data: bytes) -> bool:
        return self._delayed("create", lambda: self.inner.create(key, data), len(data))

    def writer(self, key: str) -> ObjectWriter:
        return _SlowWriter(self, key, self.inner.writer(key))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        first: Iterator[ObjectInfo] = super().list(prefix, after)
        return self._pages(first)

    def delete_many(self, keys: Iterable[str]) -> None:
        remaining = [*keys]
        while remaining:
            page, remaining = remaining[:PAGE], remaining[PAGE:]
            self._delayed("delete_many", lambda page=page: [self.inner.delete(key) for key in page])  # type: ignore[misc]

    def _pages(self, listed: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        for number, info in enumerate(listed):
            if number and number % PAGE == 0:
                self.sleep(self.latencies.draw_ms("list", self.source) / 1000)
            yield info

    def _delayed(self, verb: str, send: Callable[[], T], nbytes: int = 0) -> T:
        half_s = self.latencies.draw_ms(verb, self.source) / 2000
        body_s = nbytes / self.latencies.bytes_per_ms / 1000
        if half_s:
            self.sleep(half_s + body_s)
        try:
            result = send()
            body_s = len(result) / self.latencies.bytes_per_ms / 1000 if isinstance(result, bytes) else 0.0
        except BaseException:
            body_s = 0.0
            raise
        finally:
            if half_s:
                self.sleep(half_s + body_s)
        return result


class _SlowWriter(WrapperWriter):
    """A writer that sends the data object when it is closed."""

    _nbytes: int | None = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        self._nbytes = (self._nbytes or 0) + len(data)

    def close(self) -> None:
        nbytes, self._nbytes = self._nbytes, None
        if nbytes is None:
            super().close()
        else:
            self._store._delayed("close", super().close, nbytes)

    def discard(self) -> None:
        self._nbytes = None
        super().discard()
