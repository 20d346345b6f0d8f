"""Uploads by a thread: the object is complete, or `close` reports an error, whatever ends the thread."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from obstore import exceptions

import sparklog
from sparklog.errors import Unavailable
from sparklog.storage.uploads import Upload, _Sender
from sparklog.testing.world import World
from tests.support.failing_threads import KINDS, PART_BYTES, FailingThreads, Panic
from tests.support.records import random_rows, small
from tests.support.seeds import FAILING_THREADS

REPLAY = "SPARKLOG_SEED={} python -m pytest tests/storage/test_uploads.py -k test_one_seed"
KEY = "t/append/x"
DATA = os.urandom(10 * PART_BYTES)


class Bucket(FailingThreads):
    """Fails with one error at one point of an upload."""

    def __init__(self, point: str, error: BaseException | None) -> None:
        super().__init__(World().store, seed=0, rate=0)
        self.point, self.error = point, error

    def _strike(self, point: str, key: str) -> None:
        if point == self.point and self.error is not None:
            raise self.error


def upload(store: FailingThreads, data: bytes = DATA) -> None:
    writer = store.writer(KEY)
    try:
        for start in range(0, len(data), 50):
            writer.write(data[start : start + 50])
        writer.close()
    except BaseException:
        writer.discard()
        raise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["begin", "part", "complete"])
def test_any_end_of_the_upload_thread_is_a_failure(point: str, kind: type[BaseException]) -> None:
    store = Bucket(point, kind("struck"))
    with pytest.raises(Unavailable, match=r"struck|cannot create t/append/x in s3://bucket/log"):
        upload(store)
    assert store.inner.stat(KEY) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_complete_object_is_stored_regardless_of_the_last_response(kind: type[BaseException]) -> None:
    store = Bucket("after complete", kind("the answer is lost"))
    upload(store)
    assert store.inner.get(KEY) == DATA


class Shortening(FailingThreads):
    """Loses the last part, and reports success."""

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        super().put_parts(key, iter([*parts][:-1]))


class Losing(FailingThreads):
    """Stores nothing, and reports success."""

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        for _ in parts:
            pass


@pytest.mark.parametrize(
    ("kind", "words"), [(Shortening, r"expected 640 bytes, found 600;"), (Losing, "found no object")]
)
def test_the_size_of_an_upload_is_verified(kind: type[FailingThreads], words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        upload(kind(World().store, 0, 0))


def test_a_waiting_writer_continues_when_the_upload_thread_dies() -> None:
    writer = Bucket("part", Panic("struck")).writer(KEY)
    with pytest.raises(Unavailable, match=r"the client failed \(Panic\)"):  # noqa: PT012
        while True:
            writer.write(bytes(2 * PART_BYTES))


def test_discarded_writers_leave_no_objects() -> None:
    store = FailingThreads(World().store, 0, 0)
    writer = store.writer(KEY)
    writer.write(DATA)
    writer.discard()
    assert store.inner.stat(KEY) is None
    with pytest.raises(ValueError, match="is closed"):
        writer.write(b"more")


class KeepsExpectedErrorsOnly(Upload):
    """The earlier behavior: the thread stores errors of the client, and an upload without an error is complete."""

    def _finish(self, sender: _Sender) -> None:
        sender.end(None)
        if isinstance(sender.error, (exceptions.BaseError, OSError, ValueError)):
            raise self._failure(sender)


class KeepsExceptionsOnly(KeepsExpectedErrorsOnly):
    """Treats a panic or an exit as a normal end."""

    def _finish(self, sender: _Sender) -> None:
        sender.end(None)
        if isinstance(sender.error, Exception):
            raise self._failure(sender)


class Story:
    """One seed: appends and compactions with threads that fail, and then a check of all records without faults."""

    def __init__(self, seed: int, kind: type[Upload]) -> None:
        self.rng = random.Random(seed)
        self.world = World(seed=1000 * seed)
        self.world.root().create_topic("t")
        self.faulty = FailingThreads(self.world.store, seed, self.rng.choice([0.02, 0.1, 0.3]), kind)
        self.values: list[set[bytes]] = []
        self.acknowledged: list[set[bytes]] = []
        self.met: Counter[str] = Counter()

    def run(self) -> None:
        for step in range(8):
            work = self.append if step < 2 else self.rng.choice([self.append, self.append, self.compact, self.read])
            seen = None
            try:
                seen = work(self.world.root(self.faulty))
                self.met[f"{work.__name__} held"] += 1
            except (Exception, Panic, SystemExit) as error:  # noqa: BLE001 - any of them may come out, none may be lost
                self.met[f"{work.__name__} failed"] += 1
                self.met[type(error).__name__] += 1
            if seen is not None:
                self.check(seen)
        self.met.update(self.faulty.struck)
        self.check_result()

    def append(self, root: sparklog.Root) -> None:
        rows = random_rows(5, first=100 * len(self.values), value_bytes=60, seed=self.rng.randrange(1 << 30))
        self.values.append(set(rows["value"].to_pylist()))
        root.topic("t").append(rows, options=small())
        self.acknowledged.append(self.values[-1])

    def compact(self, root: sparklog.Root) -> None:
        for report in sparklog.compact(root, roll=True):
            self.met["compact failed"] += len(report.failures)

    def read(self, root: sparklog.Root) -> list[bytes]:
        values: list[bytes] = root.topic("t").scan().to_table()["value"].to_pylist()
        return values

    def check(self, values: list[bytes]) -> None:
        assert len(values) == len(set(values)), "a record was stored twice"
        for group in self.values:
            here = len(group & set(values))
            assert here in (0, len(group)), "a part of an append is there"
            assert here or group not in self.acknowledged, "an acknowledged append is lost"

    def check_result(self) -> None:
        root = self.world.root()
        report = sparklog.verify(root)
        assert report.sound, [str(finding) for finding in report.findings]
        self.check(self.read(root))


def run(seed: int, kind: type[Upload] = Upload) -> Counter[str]:
    story = Story(seed, kind)
    try:
        story.run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error}\nreplay: {REPLAY.format(seed)}") from error
    return story.met


@pytest.mark.sweep
@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("seeds", FAILING_THREADS.few())
def test_seeds(seeds: range) -> None:
    met: Counter[str] = Counter()
    for seed in seeds:
        met.update(run(seed))
    wanted = ["append held", "append failed", "compact held", "compact failed", "read held", "read failed", "Panic"]
    assert not [name for name in wanted if not met[name]], dict(met)
    points = {name.partition(":")[0] for name in met}
    assert points >= {"begin", "part", "complete", "after complete", "get", "after get"}, points


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.slow
@pytest.mark.parametrize("seeds", FAILING_THREADS.many())
def test_many_seeds(seeds: range) -> None:
    assert all(run(seed) for seed in seeds)


def test_one_seed() -> None:
    met = run(int(os.environ.get("SPARKLOG_SEED", "7")))
    assert met
    print(dict(met))


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("kind", [KeepsExpectedErrorsOnly, KeepsExceptionsOnly])
def test_a_violated_rule_is_detected(kind: type[Upload]) -> None:
    with pytest.raises(AssertionError, match=r"missing: t/|acknowledged append is lost"):  # noqa: PT012
        for seed in range(FAILING_THREADS.every_run):
            run(seed, kind)
