"""A process outlives its root: the directory was restored, or removed and recreated, while the process is running.

Its writes must be rejected, must leave no objects behind, and must not block the new root.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pytest

from sparklog.errors import Corrupt, Fenced, SparklogError, Unavailable
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import Root, open_root
from sparklog.maintenance.work_items import InProcess, Settings, Work, WorkResult
from sparklog.storage.memory import MemoryStore, Snapshot
from sparklog.testing.faulty_store import Fault, FaultKind, FaultyStore, Script
from sparklog.testing.wrapper_stores import HookedStore
from sparklog.tools.verification.findings import LOG
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.support.compaction import compact_topic
from tests.support.records import rows
from tests.support.root_ids import replace_root_id
from tests.support.topics_world import TopicsWorld

Write = Callable[[], object]
"""A function that writes one more commit of a long-lived process to its log."""


def altering(root: Root) -> Write:
    """Return a write without data files, because the task that uploads a data file checks the root itself."""
    topic, value = root.topic("a"), count(1_000_000)
    return lambda: topic.alter(configs={"segment.bytes": next(value)})


def consuming(root: Root) -> Write:
    member = Groups(root).group("g").join("one")
    return lambda: member.commit({"a": {0: 0}})


def deciding(root: Root) -> Write:
    producer = transactional(root, "job")
    return lambda: producer.begin().abort()


LOGS = {"topic": altering, "group": consuming, "decisions": deciding}
PREFIXES = {"topic": "a", "group": "_groups/g", "decisions": "_transactions/job"}


class Old:
    """A root with three more commits of a log than `before`, written by a process that is still running."""

    def __init__(self, log: str) -> None:
        self.world = TopicsWorld()
        self.log = log
        self.writer = LOGS[log](self.world.root())
        self.writer()
        self.before: Snapshot = copy.copy(self.world.store.snapshot())
        for _ in range(3):
            self.writer()

    @property
    def store(self) -> MemoryStore:
        assert isinstance(self.world.store, MemoryStore)
        return self.world.store

    def numbers(self) -> list[str]:
        return [info.key for info in self.store.list(f"{PREFIXES[self.log]}/_log/0")]

    def through(self, store: HookedStore | FaultyStore) -> Write:
        """Return the same write in a process that accesses the store through another store."""
        return LOGS[self.log](open_root(store, env=self.world.env()))

    def restore(self) -> None:
        """Restore the files. The id of the root does not change."""
        self.store.restore(self.before)

    def restore_as_another(self) -> None:
        """Restore the root with another id, like `sparklog restore`."""
        self.restore()
        replace_root_id(self.store, self.world.env())

    def make_again(self) -> None:
        self.store.restore({})
        root = open_root(self.store, create=True, env=self.world.env())
        for name in "abc":
            root.create_topic(name)

    def remove(self) -> None:
        self.store.restore({})

    def go_on(self, steps: int = 12) -> None:
        """Another process opens the root and writes beyond the next number of the old process."""
        write = LOGS[self.log](self.world.root())
        for _ in range(steps):
            write()
        assert verify_root(self.store, env=self.world.env()).sound


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("replace", [Old.restore, Old.restore_as_another, Old.make_again, Old.remove])
def test_writes_after_the_root_was_replaced_are_rejected(log: str, replace: Callable[[Old], None]) -> None:
    old = Old(log)
    replace(old)
    left = old.store.snapshot()
    for _ in range(2):
        with pytest.raises(Fenced, match="stop this process, and reopen the root"):
            old.writer()
    assert old.store.snapshot() == left
    if replace is not Old.remove:
        old.go_on()


@pytest.mark.parametrize("log", LOGS)
def test_a_restored_log_that_has_grown_to_the_same_number_is_detected(log: str) -> None:
    old = Old(log)
    newest = old.numbers()
    old.restore()
    write = LOGS[log](old.world.root())
    while len(old.numbers()) < len(newest):
        write()
    assert old.numbers() == newest
    with pytest.raises(Fenced, match="differs from the object that this process has read"):
        old.writer()
    assert old.numbers() == newest
    old.go_on()


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("replace", [Old.restore, Old.restore_as_another, Old.make_again])
def test_a_root_that_is_replaced_between_the_check_and_the_create_is_detected(
    log: str, replace: Callable[[Old], None]
) -> None:
    old = Old(log)
    hooked = HookedStore(old.store)
    write = old.through(hooked)
    write()
    hooked.before_next("create:commit", lambda: replace(old))
    with pytest.raises(Fenced, match=r"was withdrawn; stop this process, and reopen the root"):
        write()
    old.go_on()


def test_a_first_entry_is_not_written_into_another_root() -> None:
    old = Old("topic")
    root = old.world.root()
    old.restore_as_another()
    with pytest.raises(Fenced, match=r"is another root \(id .*\) than the root that this process opened"):
        Groups(root).group("new").join("one")
    with pytest.raises(Fenced, match="was not written"):
        root.create_topic("new")
    assert "new" not in old.world.root().topics()


@pytest.mark.parametrize("replace", [Old.restore, Old.restore_as_another, Old.make_again])
def test_a_merge_planned_before_the_root_was_replaced_is_rejected(replace: Callable[[Old], None]) -> None:
    """The root is replaced after the task of a merge has run, and before its result is committed."""
    old = Old("topic")
    root = old.world.root()
    topic = root.topic("a")
    for value in ("1", "2", "3"):
        topic.append(rows(value))
    left: list[Snapshot] = []

    class Replacing(InProcess):
        def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
            for done in super().run(works):
                replace(old)
                left.append(copy.copy(old.store.snapshot()))
                yield done

    report = compact_topic(topic, Settings(old.world.now_ms), Replacing())
    assert [failure.code for failure in report.failures] == ["SPARKLOG_FENCED"]
    assert left == [old.store.snapshot()]
    old.go_on()


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("key", ["root", "commit"])
def test_an_entry_is_not_withdrawn_because_of_a_cache(log: str, key: str) -> None:
    old = Old(log)
    store = FaultyStore(old.store, Script({}), lambda seconds: None)
    write = old.through(store)
    write()
    before = old.numbers()
    faults = {(f"get:{key}", store.calls[f"get:{key}"] + n): Fault(FaultKind.ABSENT) for n in range(2)}
    store.decide = Script(faults)
    write()
    assert len(old.numbers()) == len(before) + 1


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.FLIP, FaultKind.SHORT])
def test_a_failed_read_is_repeated(kind: FaultKind) -> None:
    old = Old("group")
    store = FaultyStore(old.store, Script({}), lambda seconds: None)
    write = old.through(store)
    write()
    before = old.numbers()
    # The previous entry is read last, after the topic.
    store.decide = Script({("get:commit", store.calls["get:commit"] + 1): Fault(kind)})
    write()
    assert len(old.numbers()) == len(before) + 1


def test_an_unreadable_previous_number_leaves_the_outcome_unknown() -> None:
    old = Old("topic")
    store = FaultyStore(old.store, Script({}), lambda seconds: None)
    write = old.through(store)
    write()
    before = old.numbers()
    store.decide = lambda call: Fault(FaultKind.ERROR_BEFORE) if (call.verb, call.key) == ("get", before[-1]) else None
    with pytest.raises(Unavailable, match=r"the outcome of creating .* is unknown"):
        write()
    assert len(old.numbers()) == len(before) + 1


def test_a_damaged_previous_number_exists() -> None:
    old = Old("topic")
    newest = old.numbers()[-1]
    data = old.store.get(newest)
    at = data.index(b'"timeMs":1') + len(b'"timeMs":')
    old.store.replace(newest, data[:at] + b"2" + data[at + 1 :])
    old.writer()
    with pytest.raises(Corrupt, match="CRC-32C"):
        old.world.topic("a")


@pytest.mark.parametrize("log", ["topic", "group", "decisions"])
def test_verify_reports_entries_after_a_gap(log: str) -> None:
    """An older release, which does not check the previous entry, leaves this state."""
    old = Old(log)
    stray = old.numbers()[-1]
    data = old.store.get(stray)
    old.restore()
    end = old.numbers()[-1]
    old.store.create(stray, data)
    report = verify_root(old.store, env=old.world.env())
    named = [finding for finding in report.findings if finding.kind == LOG]
    assert [finding.file for finding in named] == [stray]
    number = int(end.rsplit("/", 1)[1][:20]) + 1
    assert f"is beyond a gap: {'commit' if log == 'topic' else 'entry'} {number} is missing" in named[0].message
    assert "a process that still had the root open after the root was restored" in named[0].remedy
    assert not any(file.file == end for file in report.unreferenced)
    old.store.delete(stray)
    old.go_on()


def test_the_owner_of_an_aborted_transaction_gets_an_error() -> None:
    old = Old("decisions")
    transaction = old.world.prepare(old.world.producer("writer"), a=["x"])
    old.restore_as_another()
    with pytest.raises(Fenced, match="was not written"):
        transaction.commit()
    assert transaction.state == "aborted"
    assert old.world.values("a") == []
