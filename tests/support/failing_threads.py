"""A store whose threads fail: any call that a thread of the package makes may raise any exception, before or after it.

Data objects are uploaded in parts, as in a bucket, and reads are made by several threads. Calls of the thread that made
the store do not fail: what goes wrong goes wrong where nobody waits for it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from sparklog.errors import SparklogError, Unavailable
from sparklog.storage.cloud_errors import cloud_error
from sparklog.storage.locations import StoreUrl
from sparklog.storage.store import ObjectWriter, Store
from sparklog.storage.uploads import Upload
from sparklog.testing.wrapper_stores import WrapperStore

T = TypeVar("T")
PART_BYTES = 64
"""So small that nearly every data object has several parts."""


class Panic(BaseException):
    """A panic of a library in Rust: no `Exception`."""


KINDS = (MemoryError, RuntimeError, OSError, Unavailable, Panic, SystemExit)


class FailingThreads(WrapperStore):
    """Fails by `seed` alone, whatever the order of threads. `struck` counts what was raised."""

    def __init__(self, inner: Store, seed: int, rate: float, upload: type[Upload] = Upload) -> None:
        super().__init__(inner)
        self._home = threading.get_ident()
        self._seed = seed
        self._rate = rate
        self._upload = upload
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()

    @property
    def parallel_reads(self) -> int:
        return 4

    def request(self, verb: str, key: str, send: Callable[[], T]) -> T:
        self._strike(verb, key)
        answer = send()
        self._strike(f"after {verb}", key)
        return answer

    def writer(self, key: str) -> ObjectWriter:
        return self._upload(self, key, PART_BYTES)

    def put_whole(self, key: str, data: bytes) -> None:
        writer = self.inner.writer(key)
        writer.write(data)
        writer.close()

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        self._strike("begin", key)
        writer = self.inner.writer(key)
        for part in parts:
            self._strike("part", key)
            writer.write(part)
        self._strike("complete", key)
        writer.close()
        self._strike("after complete", key)

    def upload_failure(self, error: BaseException, key: str) -> SparklogError:
        return cloud_error(error, "create", key, StoreUrl("s3", "bucket", "log"))

    def _strike(self, point: str, key: str) -> None:
        if threading.get_ident() == self._home:
            return
        with self._lock:
            label = f"{self._seed} {point} {key}"
            self._calls[label] += 1
            chance = random.Random(f"{label} {self._calls[label]}")
            if chance.random() < self._rate:
                kind = chance.choice(KINDS)
                self.struck[f"{point}: {kind.__name__}"] += 1
                raise kind(f"struck at {point} of {key}")
