"""The store tests for every store, and behavior that is specific to the memory store and the wrappers."""

from __future__ import annotations

import itertools
import pickle
import random
from pathlib import Path

import pytest

from sparklog.errors import NotFound, Unavailable
from sparklog.storage import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store, key_kind
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore, Script, Seeded
from sparklog.testing.store_tests import StoreTests
from sparklog.testing.wrapper_stores import CountingStore


def memory() -> MemoryStore:
    return MemoryStore(itertools.count(1_000_000).__next__)


class TestLocalStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "new" / "root")


class TestLocalStoreNotDurable(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path, durable=False)


class TestMemoryStore(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return memory()


class TestCountingStore(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return CountingStore(memory())


class TestFaultyStoreWithoutFaults(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return FaultyStore(memory(), Script({}))


COMMIT = "t/_log/00000000000000000007.json"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("_root.json", "root"),
        (COMMIT, "commit"),
        ("_groups/g/_log/00000000000000000007.json", "commit"),
        ("t/_log/0007.json", "other"),
        ("t/_log/checkpoints/00000000000000000007.json", "checkpoint"),
        ("t/_log/checkpoints/00000000000000000007-abc.arrow", "checkpoint"),
        ("t/append/x.slices", "append"),
        ("t/sealed/3/x/00000000000000000000.log", "sealed"),
        ("t/x", "other"),
    ],
)
def test_key_kinds(key: str, kind: str) -> None:
    assert key_kind(key) == kind


def test_memory_store_goes_back_to_a_snapshot_and_is_not_picklable() -> None:
    store = memory()
    store.create("a", b"1")
    store.create("b", b"2")
    before = store.snapshot()
    store.delete("a")
    store.create("c", b"3")
    store.restore(before)
    assert [info.key for info in store.list("")] == ["a", "b"]
    assert store.get("a") == b"1"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(store)


def test_memory_store_uses_the_given_clock() -> None:
    now = [5_000]
    store = MemoryStore(lambda: now[0])
    store.create("a", b"")
    now[0] = 9_000
    info = store.stat("a")
    assert info is not None
    assert info.modified_ms == 5_000
    assert store.now_ms() == 9_000


def test_counting_by_verb_and_kind() -> None:
    store = CountingStore(memory())
    store.create(COMMIT, b"12345")
    store.create("x/other", b"")
    store.get(COMMIT, 1, 2)
    list(store.list(""))
    writer = store.writer("t/append/a.slices")
    writer.write(b"1")
    writer.close()
    assert store.counts == {"create": 2, "get": 1, "list": 1, "writer": 1}
    assert store.by_kind["create", "commit"] == 1
    assert store.bytes_read == 2
    store.expect(create=2, get=1, list=1, writer=1)
    store.expect(create_commit=1, create_other=1, get=1, list=1, writer=1)
    store.expect_at_most(create_commit=1, create_other=1, get=1, list=5, writer=1, delete=1)
    with pytest.raises(AssertionError, match=r"create: expected 1, made 2"):
        store.expect(create=1, get=1, list=1, writer=1)
    with pytest.raises(AssertionError, match=r"list: expected 5, made 1"):
        store.expect(create=2, get=1, list=5, writer=1)
    with pytest.raises(AssertionError, match=r"delete: expected 1, made 0"):
        store.expect(create=2, get=1, list=1, writer=1, delete=1)
    with pytest.raises(AssertionError, match=r"create: at most 1, made 2"):
        store.expect_at_most(create=1, get=1, list=1, writer=1)
    for check in (store.expect, store.expect_at_most):
        with pytest.raises(AssertionError, match=r"list: .* 0, made 1"):
            check(create=2, get=1, writer=1)
        with pytest.raises(AssertionError, match=r"create of other: .* 0, made 1: x/other"):
            check(create_commit=1, create_other=0, get=1, list=1, writer=1)
    store.reset()
    store.expect()
    assert store.keys == []


def test_counting_survives_pickling(tmp_path: Path) -> None:
    store = CountingStore(LocalStore(tmp_path, durable=False))
    store.create("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get("a") == b"1"
    assert (copy.counts, store.counts) == ({"create": 1, "get": 1}, {"create": 1})


def faulty(label: str, kind: FaultKind, amount: float = 1) -> FaultyStore:
    return FaultyStore(memory(), Script({(label, 0): Fault(kind, amount)}))


def test_error_before_has_no_effect_and_error_after_has() -> None:
    for kind, effect in ((FaultKind.ERROR_BEFORE, False), (FaultKind.ERROR_AFTER, True)):
        store = faulty("create:commit", kind)
        with pytest.raises(Unavailable, match="injected"):
            store.create(COMMIT, b"x")
        assert (store.stat(COMMIT) is not None) is effect
        assert store.create(COMMIT, b"y") is not effect


def test_crashes_pass_every_except_exception() -> None:
    for kind, effect in ((FaultKind.CRASH_BEFORE, False), (FaultKind.CRASH_AFTER, True)):
        store = faulty("create:commit", kind)
        assert not issubclass(Crash, Exception)
        with pytest.raises(Crash):
            store.create(COMMIT, b"x")
        assert (store.inner.stat(COMMIT) is not None) is effect


def test_a_late_create_takes_effect_after_later_requests() -> None:
    store = faulty("create:commit", FaultKind.LATE, 2)
    with pytest.raises(Unavailable):
        store.create(COMMIT, b"late")
    assert store.stat(COMMIT) is None
    assert store.stat(COMMIT) is None
    assert store.get(COMMIT) == b"late"


def test_a_late_create_loses_to_an_earlier_creator() -> None:
    store = faulty("create:commit", FaultKind.LATE, 100)
    with pytest.raises(Unavailable):
        store.create(COMMIT, b"late")
    assert store.create(COMMIT, b"first")
    store.land()
    assert store.get(COMMIT) == b"first"


def test_a_late_delete_takes_effect() -> None:
    store = faulty("delete:other", FaultKind.LATE, 100)
    store.create("a", b"")
    with pytest.raises(Unavailable):
        store.delete("a")
    assert store.stat("a") is not None
    store.land()
    assert store.stat("a") is None


def test_an_existing_object_may_be_ours_or_missing() -> None:
    store = faulty("create:commit", FaultKind.TWICE)
    assert store.create(COMMIT, b"mine") is False
    assert store.get(COMMIT) == b"mine"
    store = faulty("create:commit", FaultKind.FALSE_EXISTS)
    assert store.create(COMMIT, b"mine") is False
    assert store.stat(COMMIT) is None
    assert store.create(COMMIT, b"mine") is True


def test_stale_caches_hide_objects() -> None:
    absent = Fault(FaultKind.ABSENT)
    store = FaultyStore(memory(), Script({"get:commit": absent, ("stat:commit", 0): absent}))
    store.create(COMMIT, b"x")
    for _ in range(2):
        with pytest.raises(NotFound):
            store.get(COMMIT)
    assert store.stat(COMMIT) is None
    assert store.stat(COMMIT) is not None


def test_short_reads_and_flipped_bits() -> None:
    store = faulty("get:other", FaultKind.SHORT, 2)
    store.create("a", b"hello")
    assert [store.get("a"), store.get("a")] == [b"hel", b"hello"]
    store = faulty("get:other", FaultKind.FLIP, 8)
    store.create("a", b"hello")
    assert [store.get("a"), store.get("a")] == [b"h" + bytes([ord("e") ^ 1]) + b"llo", b"hello"]


def test_delays_use_the_given_clock() -> None:
    slept: list[float] = []
    script = Script({("get:other", 0): Fault(FaultKind.DELAY, 3), ("get:other", 1): Fault(FaultKind.DELAY_AFTER, 4)})
    store = FaultyStore(memory(), script, slept.append)
    store.create("a", b"x")
    assert [store.get("a"), store.get("a"), store.get("a")] == [b"x"] * 3
    assert slept == [3, 4]


def test_crash_points_in_a_writer() -> None:
    for label, fault, effect in (
        ("write:append", FaultKind.CRASH_AFTER, False),
        ("close:append", FaultKind.CRASH_BEFORE, False),
        ("close:append", FaultKind.CRASH_AFTER, True),
    ):
        store = faulty(label, fault)
        writer = store.writer("t/append/a")
        with pytest.raises(Crash):  # noqa: PT012
            writer.write(b"x")
            writer.close()
        assert (store.inner.stat("t/append/a") is not None) is effect
        assert store.calls[label] == 1


def test_seeded_faults_repeat() -> None:
    def run(seed: int) -> list[str]:
        store = FaultyStore(memory(), Seeded(random.Random(seed), 0.5, list(FaultKind)))
        outcomes = []
        for number in range(60):
            try:
                outcomes.append(str(store.create(f"a/{number % 20}", b"xyz")))
                outcomes.append(str(store.get(f"a/{number % 20}")))
            except (Unavailable, NotFound, Crash) as error:
                outcomes.append(type(error).__name__)
        return outcomes

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert {"Unavailable", "NotFound", "Crash", "True", "False"} <= {*run(1), *run(2), *run(3)}


def test_a_fault_that_does_not_fit_the_verb_is_not_injected() -> None:
    decide = Seeded(random.Random(1), 1.0, [FaultKind.TWICE])
    assert decide(Call("get", "a", "get:other", 0, 0)) is None
    assert decide(Call("create", "a", "create:other", 0, 0)) == Fault(FaultKind.TWICE, pytest.approx(4, abs=4))
