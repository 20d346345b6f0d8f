"""The store with published latencies: the delay of each request, with the clock of the test."""

from __future__ import annotations

import itertools
import pickle
import random
import statistics
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparklog.errors import NotFound, Unavailable
from sparklog.storage import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.slow_store import S3_EXPRESS, S3_STANDARD, Latencies, Latency, SlowStore
from sparklog.testing.store_tests import StoreTests


def no_sleep(seconds: float) -> None:
    pass


def memory() -> MemoryStore:
    return MemoryStore(itertools.count(1_000_000).__next__)


class TestSlowStore(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return SlowStore(memory(), S3_STANDARD, random.Random(1), sleep=no_sleep)


@pytest.mark.parametrize("latency", [S3_STANDARD.get, S3_STANDARD.put, S3_EXPRESS.get, S3_EXPRESS.put])
def test_latencies_have_the_published_percentiles(latency: Latency) -> None:
    source = random.Random(2)
    drawn = sorted(latency.draw(source) for _ in range(20_000))
    assert statistics.median(drawn) == pytest.approx(latency.p50, rel=0.03)
    assert drawn[int(len(drawn) * 0.99)] == pytest.approx(latency.p99, rel=0.08)


def flat(ms: float) -> Latency:
    return Latency(ms, ms)


FLAT = Latencies(get=flat(2), put=flat(4), list=flat(6), head=flat(8), delete=flat(10), bytes_per_ms=1)


def asked(store: Store) -> None:
    with pytest.raises(NotFound):
        store.get("x")


def twice(store: Store) -> None:
    assert store.create("a", b"") is False


def written(store: Store) -> None:
    writer = store.writer("b")
    writer.write(b"12")
    writer.write(b"3")
    writer.close()
    writer.close()


def discarded(store: Store) -> None:
    writer = store.writer("b")
    writer.write(b"12")
    writer.discard()
    writer.close()


def in_bulk(store: SlowStore) -> None:
    store.delete_many(str(number) for number in range(1001))


def in_pages(store: SlowStore) -> None:
    for number in range(2000):
        store.inner.create(f"p/{number:04}", b"")
    assert len(list(store.list("p/"))) == 2000


def in_use(store: Store) -> None:
    writer = store.writer("a")
    with pytest.raises(Unavailable):
        writer.close()


@pytest.mark.parametrize(
    ("call", "slept"),
    [
        (lambda store: store.get("a"), [1, 1 + 5]),
        (lambda store: store.get("a", 0, 2), [1, 1 + 2]),
        (asked, [1, 1]),
        (lambda store: store.create("b", b"123"), [2 + 3, 2]),
        (twice, [2, 2]),
        (written, [2 + 3, 2]),
        (discarded, []),
        (in_use, [2, 2]),
        (lambda store: store.list(""), [3, 3]),
        (lambda store: store.list_folders(""), [3, 3]),
        (in_pages, [3, 3, 6]),
        (lambda store: store.stat("a"), [4, 4]),
        (lambda store: store.now_ms(), [4, 4]),
        (lambda store: store.delete("a"), [5, 5]),
        (in_bulk, [5, 5, 5, 5]),
    ],
)
def test_half_of_a_wait_before_the_effect_and_half_after(call: Callable[[SlowStore], object], slept: list[int]) -> None:
    inner = memory()
    inner.create("a", b"12345")
    waits: list[float] = []
    call(SlowStore(inner, FLAT, random.Random(1), sleep=lambda seconds: waits.append(round(seconds * 1000, 6))))
    assert waits == slept


def test_an_effect_is_visible_during_its_request() -> None:
    inner = memory()
    seen: list[bool] = []
    SlowStore(inner, FLAT, random.Random(1), sleep=lambda _: seen.append(inner.stat("a") is not None)).create("a", b"")
    assert seen == [False, True]


def waits_of(store: SlowStore, requests: int = 5) -> list[float]:
    waits: list[float] = []
    store.sleep = waits.append
    for _ in range(requests):
        store.stat("a")
    return waits


def test_a_seed_determines_the_waits_and_a_copy_has_its_own(tmp_path: Path) -> None:
    def store() -> SlowStore:
        return SlowStore(LocalStore(tmp_path, durable=False), S3_STANDARD, random.Random(7), sleep=no_sleep)

    assert waits_of(store()) == waits_of(store())
    original = store()
    copies = [pickle.loads(pickle.dumps(original)) for _ in range(2)]
    series = [waits_of(each) for each in (original, *copies)]
    assert len({tuple(each) for each in series}) == 3
    assert waits_of(pickle.loads(pickle.dumps(store()))) == series[1]
    copies[0].create("a", b"1")
    assert original.get("a") == b"1"


def test_requests_of_threads_wait_concurrently() -> None:
    together = threading.Barrier(8)
    store = SlowStore(memory(), S3_STANDARD, random.Random(1), sleep=lambda _: together.wait(300) and None)
    assert store.parallel_reads == 16
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(store.stat, map(str, range(8)))) == [None] * 8
