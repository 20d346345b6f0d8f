"""Maintenance of transactions, and transactions in merged, sealed and compacted topics."""

from __future__ import annotations

import gc
import json
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound, SparklogError
from sparklog.limits import Limits
from sparklog.log.decisions.decision import BY_OWNER
from sparklog.log.journal.names import commit_key
from sparklog.log.read.read_plan import read_parts
from sparklog.log.state.commit import TxnDecision
from sparklog.log.state.slice_table import ABORTED, OPEN
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import Root, RootView
from sparklog.log.write.append_target import TopicFiles
from sparklog.log.write.append_writer import AppendWriter
from sparklog.log.write.arrow_data import write_files
from sparklog.maintenance.report import document
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root, summary
from sparklog.storage.local import LocalStore
from sparklog.testing.wrapper_stores import HookedStore
from sparklog.transactions import publishing
from sparklog.transactions.completion import collect, resolve_topic, transactional_ids
from sparklog.transactions.listing import describe_transaction, list_transactions
from sparklog.transactions.producer import CommittedTransaction, Transaction, transactional
from sparklog.transactions.publishing import publish
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

DAY = 86_400_000


def test_maintenance_records_outcomes_in_an_idle_topic() -> None:
    world = TopicsWorld()
    world.prepare(world.producer(), a=["1"], b=["1"]).commit()
    topic = world.topic("a")
    assert [(item.id, item.n, item.committed) for item in resolve_topic(topic)] == [("job", 0, (1,))]
    assert topic.log.state().open == ()
    assert topic.log.state().siblings == {"b": 1}
    assert resolve_topic(topic) == ()
    assert topic.log.state().version == 2


def test_an_outcome_does_not_apply_to_a_recreated_topic() -> None:
    """Maintenance reads the topic state, stalls while the topic is recreated, and then records the outcome."""
    world = TopicsWorld()
    owner = world.producer(timeout_ms=3_600_000).begin()

    def share(part: str, *values: str) -> None:
        job = world.producer(timeout_ms=3_600_000).join(owner.n, part)
        job.append("a", rows(*values))
        job.prepare()

    share("first", "old")
    topic = world.topic("a")
    resolve = topic.root.engine.decisions.resolve

    def slowly(name: str, state: TopicState) -> list[TxnDecision]:
        world.root().delete_topic("a")
        world.root().create_topic("a")
        share("second", "new")
        owner.commit()
        return resolve(name, state)

    topic.root.engine.decisions.resolve = slowly  # type: ignore[method-assign]
    assert resolve_topic(topic) == ()
    assert world.values("a") == ["new"]
    assert [(item.id, item.n) for item in resolve_topic(world.topic("a"))] == [("job", 0)]
    assert world.values("a") == ["new"]


def test_commits_are_pruned_when_all_topics_have_recorded_them() -> None:
    world = TopicsWorld()
    producer = world.producer()
    for number in range(3):
        with producer.begin() as transaction:
            transaction.append("a", rows(f"{number}"))
            transaction.append("b", rows(f"{number}"))
    assert [item.n for item in producer.log.refresh().commits] == [2], "by whoever writes the next entry"
    producer.begin().abort()
    resolve_topic(world.topic("a"))
    assert collect(world.root()).forgotten == 0
    resolve_topic(world.topic("b"))
    found = collect(world.root())
    assert (found.ids, found.forgotten) == (1, 1)
    assert producer.log.refresh().commits == ()
    with producer.begin() as transaction:
        transaction.append("b", rows("gone"))
    producer.begin().abort()
    world.root().delete_topic("b")
    assert collect(world.root()).forgotten == 1, "what b was to record is gone with it"
    assert world.values("a") == ["0", "1", "2"]


def test_a_commit_is_kept_for_a_topic_that_has_not_recorded_it() -> None:
    world = TopicsWorld()
    producer = world.producer()
    with producer.begin() as transaction:
        transaction.append("a", rows("0"))
        transaction.append("c", rows("0"))
    for number in range(1, 20):
        with producer.begin() as transaction:
            transaction.append("a", rows(f"{number}"))
    assert [item.n for item in producer.log.refresh().commits] == [0, 19]
    assert world.values("c") == ["0"]


def test_old_entries_are_collected_by_the_stores_clock() -> None:
    world = TopicsWorld(limits=Limits(checkpoint_entries=4))
    producer = world.producer()

    def write(n: int) -> None:
        for _ in range(n):
            with producer.begin() as transaction:
                transaction.append("a", rows("x"))

    write(15)
    newest = producer.log.refresh()
    assert producer.log.checkpoints() == [3, 7, 11, 15]
    assert collect(world.root()).objects == 0, "all are young"
    world.now_ms += 7 * DAY
    dry = collect(world.root(), dry_run=True)
    found = collect(world.root())
    assert (found.objects, dry.objects) == (13, 13)
    left = sorted(info.key.rsplit("/", 1)[-1] for info in world.store.list("_transactions/job/_log/0"))
    assert left == [f"{number:020d}.json" for number in range(11, 16)]
    assert world.root().engine.decisions.log("job").refresh().newest == newest.newest
    assert collect(world.root()).objects == 0
    assert len(world.values("a")) == 15


def test_ids_of_single_writes_are_deleted_when_they_are_no_longer_needed() -> None:
    world = TopicsWorld()
    root = world.root()
    target = root.topic("a").log.append_target()
    sink = AppendWriter(target, env=world.env())
    for batch in rows("1").to_batches():
        sink.write(batch)
    publish(root, None, [TopicFiles(target, tuple(sink.finish()))])
    [name] = transactional_ids(world.store)
    assert name.startswith("one-write:")
    with pytest.raises(BadRequest, match="are reserved; choose another id"):
        world.producer(name)
    world.now_ms += 7 * DAY
    assert collect(world.root()).objects == 0, "a has not recorded it"
    resolve_topic(world.topic("a"))
    assert collect(world.root(), dry_run=True).objects == 2
    assert collect(world.root()).objects == 2
    assert list(world.store.list("_transactions/")) == []
    assert world.values("a") == ["1"]


def test_a_journal_is_kept_if_its_latest_entry_is_not_listed_yet() -> None:
    """The id of a single write whose transaction an administrator ended just now, a week after it began."""
    world = TopicsWorld()
    root = world.root()
    log = root.engine.decisions.log("one-write:x")
    log.abort(0, BY_OWNER)
    world.now_ms += 7 * DAY
    log.abort(1, BY_OWNER)
    assert [info.key for info in world.store.list(log.prefix)] == [log.key(0), log.key(1)]

    def hide(verb: str, prefix: str, result: Any) -> Any:
        return (info for info in result if info.key != log.key(1)) if verb == "list" else result

    unlisted = HookedStore(world.store, after=hide)
    assert collect(world.root(unlisted)).objects == 0
    world.now_ms += 7 * DAY
    assert collect(world.root()).objects == 2


def test_failures_are_reported_and_other_ids_are_maintained() -> None:
    world = TopicsWorld()
    for name in ("good", "bad", "worse"):
        with world.producer(name).begin() as transaction:
            transaction.append("a", rows(name))
    world.store.replace(commit_key("_transactions/bad", 1), b"damaged")
    world.store.replace(commit_key("_transactions/worse", 0), b"damaged")
    found = collect(world.root())
    assert found.ids == 2
    assert sorted(str(error).split("/")[1] for error in found.failures) == ["bad", "worse"]
    reports = retain_root(world.root(), Settings(world.now_ms))
    assert [(report.topic, len(report.failures)) for report in reports if report.failed] == [("(root)", 2)]
    failures: list[SparklogError] = []
    standings = list_transactions(world.root(), failures)
    listed = [(item.id, item.state, [held.topic for held in item.held]) for item in standings]
    assert sorted({str(error).split("/")[1] for error in failures}) == ["bad", "worse"]
    with pytest.raises(Corrupt, match="_transactions/"):
        list_transactions(world.root())
    assert listed == [("bad", "Corrupt", []), ("good", "CompleteCommit", []), ("worse", "Corrupt", ["a"])]
    with pytest.raises(Corrupt, match=r"_transactions/worse"):
        describe_transaction(world.root(), "worse", [])
    with pytest.raises(NotFound, match="did you mean 'good'"):
        describe_transaction(world.root(), "goodd", [])


def test_the_retention_job_records_and_times_out() -> None:
    world = TopicsWorld()
    world.prepare(world.producer("done"), a=["1"]).commit()
    world.prepare(world.producer("dead"), a=["2"], b=["2"])
    world.now_ms += 100_000
    root = world.root()
    dry = retain_root(root, Settings(world.now_ms), dry_run=True)
    assert [report.resolved for report in dry] == [0, 0, 0]
    assert world.topic("a").log.state().open
    reports = retain_root(root, Settings(world.now_ms))
    assert [(report.topic, report.resolved, report.failed) for report in reports[:3]] == [
        ("a", 1, False),
        ("b", 1, False),
        ("c", 0, False),
    ]
    assert (world.undecided("a"), world.undecided("b")) == ([0], [0])
    assert "a: the outcome of 1 transaction was recorded" in summary(reports)
    found = document(reports, root="r", now_ms=0, dry_run=False)
    assert [topic["resolvedTransactions"] for topic in json.loads(json.dumps(found))["topics"]][:2] == [1, 1]


def test_records_that_another_topic_hides_are_not_merged(tmp_path: Path) -> None:
    world = TopicsWorld(store=LocalStore(str(tmp_path), durable=False))
    world.now_ms = world.store.now_ms()
    world.topic("c").append(rows("below"))
    blocker = world.prepare(world.producer("blocker"), a=["open"])
    for names in ("ab", "bc"):
        with world.producer(names).begin() as transaction:
            for name in names:
                transaction.append(name, rows(names))

    def seen() -> dict[str, list[bytes]]:
        view = RootView(world.root())
        view.refresh(["a", "b", "c"])
        found = {}
        for name in ("a", "b", "c"):
            ranges = [OffsetRange(name, p, own.log_start, own.last_stable) for p, own in view.bounds(name).items()]
            batches = read_parts(view.plan(ranges, READ_COMMITTED), ("value",))
            found[name] = [value for batch in batches for value in batch["value"].to_pylist()]
        return found

    before = seen()
    assert before == {"a": [], "b": [], "c": [b"below"]}
    reports = compact_root(world.root(), Settings(world.now_ms), InProcess(), CompactOptions(roll=True))
    assert not any(report.failures for report in reports)
    assert seen() == before
    blocker.commit()
    compact_root(world.root(), Settings(world.now_ms), InProcess(), CompactOptions(roll=True))
    assert seen() == {"a": [b"open", b"ab"], "b": [b"ab", b"bc"], "c": [b"below", b"bc"]}
    assert all(world.topic(name).log.snapshot().slices.all().sealed().all() for name in "abc")


@pytest.mark.parametrize("roll", [False, True])
def test_records_that_another_topic_hides_without_an_outcome_are_not_rewritten(roll: bool) -> None:
    """Topic b has not recorded that "ab" is committed. There, "ab" is above "bc", which is hidden in topic c."""
    world = TopicsWorld()
    owner = world.producer("blocker", timeout_ms=3_600_000).begin()

    def block(part: str, topic: str) -> None:
        job = world.producer("blocker", timeout_ms=3_600_000).join(owner.n, part)
        job.append(topic, rows("open"))
        job.prepare()

    block("first", "c")
    for names in ("bc", "ab"):
        with world.producer(names).begin() as transaction:
            for name in names:
                transaction.append(name, rows(names))
    world.topic("a").append(rows("plain"))
    block("second", "a")
    assert [item.txn.id for item in world.topic("a").log.state().open] == ["blocker"]
    assert [item.txn.id for item in world.topic("b").log.state().open] == ["ab"]
    view = RootView(world.root())

    def seen() -> list[int]:
        view.refresh(["a", "b", "c"])
        return [view.bounds(name)[0].last_stable for name in "abc"]

    assert seen() == [0, 0, 0]
    reports = compact_root(world.root(), Settings(world.now_ms), InProcess(), CompactOptions(["a"], roll=roll))
    assert not any(report.failures or report.work for report in reports)
    assert seen() == [0, 0, 0]
    owner.commit()
    assert seen() == [3, 2, 2]
    [report] = compact_root(world.root(), Settings(world.now_ms), InProcess(), CompactOptions(["a"], roll=roll))
    assert report.work
    assert seen() == [3, 2, 2]


@pytest.mark.parametrize("roll", [False, True])
def test_merging_and_sealing_drop_aborted_slices_and_leave_open_ones(tmp_path: Path, roll: bool) -> None:
    world = TopicsWorld(partitions=2, store=LocalStore(str(tmp_path), durable=False))
    world.now_ms = world.store.now_ms()
    names = iter(range(100))

    def append(count: int) -> None:
        for _ in range(count):
            world.topic("a").append(rows(f"plain {next(names)}", partition=0))

    def transaction(commit: bool) -> None:
        open_one = world.producer(f"id {next(names)}").begin()
        for partition in (0, 1):
            open_one.append("a", rows(f"{'yes' if commit else 'no'} {next(names)}", partition=partition))
        open_one._prepare_topics()
        if commit:
            open_one.commit()
        else:
            open_one.abort()

    for _ in range(4):
        append(2)
        transaction(commit=True)
        transaction(commit=False)
    open_one = world.producer("open").begin()
    open_one.append("a", rows("late", partition=0))
    open_one._prepare_topics()
    transaction(commit=True)
    before = sorted(world.values("a"))
    with_aborted = world.values("a", READ_UNCOMMITTED)
    assert len(with_aborted) == len(before) + 8 + 3
    [report] = compact_root(world.root(), Settings(world.now_ms), InProcess(), CompactOptions(topics=["a"], roll=roll))
    assert not report.failures
    assert report.work
    assert sorted(world.values("a")) == before
    slices = world.topic("a").log.snapshot().slices.all()
    below = slices[slices.end <= world.topic("a").log.state().last_stable()[slices.partition]]
    assert not (below.status == ABORTED).any()
    assert (slices.status == OPEN).sum() == 1
    state = world.topic("a").log.state()
    assert [item.txn.id for item in state.open] == ["open"]
    open_one.commit()
    after = sorted(world.values("a"))
    assert after == sorted([value for value in with_aborted if not value.startswith("no")])
    [report] = compact_root(world.root(), Settings(world.now_ms), InProcess(), CompactOptions(topics=["a"], roll=True))
    assert not report.failures
    assert sorted(world.values("a")) == after == sorted(world.values("a", READ_UNCOMMITTED))


def write_without_id(root: Root, value: str, *topics: str) -> None:
    written = []
    for name in topics:
        target = root.topic(name).log.append_target()
        files = write_files(rows(value), target, root.env, options=None, writer=None)
        written.append(TopicFiles(target, tuple(files)))
    publish(root, None, written)


def test_consecutive_writes_without_an_id_share_an_id() -> None:
    world = TopicsWorld()
    root, other = world.root(), world.root()
    for number in range(10):
        write_without_id(root, f"{number}", "a", "b")
        world.now_ms += 3_599_000
    assert len(list(transactional_ids(world.store))) == 1
    world.now_ms += 2_000
    write_without_id(root, "after an hour", "a", "b")
    assert len(list(transactional_ids(world.store))) == 2
    write_without_id(other, "another process", "a", "b")
    assert len(list(transactional_ids(world.store))) == 3
    assert world.values("a") == world.values("b")
    assert len(world.values("a")) == 12


def test_a_root_with_reusable_ids_can_be_garbage_collected() -> None:
    root = TopicsWorld().root()
    write_without_id(root, "1", "a", "b")
    gone = weakref.ref(root)
    del root
    gc.collect()
    assert gone() is None


def test_concurrent_writes_without_an_id_use_two_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TopicsWorld()
    root = world.root()
    write_without_id(root, "first", "a")
    real, done = Transaction.commit, []

    def meanwhile(self: Transaction, **given: Any) -> CommittedTransaction:
        if not done:
            done.append(self)
            write_without_id(root, "beside", "a")
        return real(self, **given)

    monkeypatch.setattr(Transaction, "commit", meanwhile)
    write_without_id(root, "second", "a")
    assert len(list(transactional_ids(world.store))) == 2
    assert sorted(world.values("a")) == ["beside", "first", "second"]


def test_a_failed_write_does_not_make_its_id_reusable(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TopicsWorld()
    root = world.root()
    write_without_id(root, "first", "a")

    def refuse(self: Transaction, **given: Any) -> CommittedTransaction:
        raise Conflict("refused")

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", refuse)
        with pytest.raises(Conflict):
            write_without_id(root, "lost", "a")
    write_without_id(root, "second", "a")
    assert len(list(transactional_ids(world.store))) == 2
    assert world.values("a") == ["first", "second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_uses_its_own_ids() -> None:
    world = TopicsWorld()
    root = world.root()
    write_without_id(root, "parent", "a")
    assert publishing._reusable_ids[root]
    child = os.fork()
    if child == 0:
        os._exit(len(publishing._reusable_ids))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_logs_of_single_writes_do_not_accumulate_in_memory() -> None:
    world = TopicsWorld(limits=Limits(decision_logs=4, reused_ms=0))
    writer, reader = world.root(), world.root()
    view = RootView(reader)
    for number in range(10):
        write_without_id(writer, f"{number}", "a", "b")
        view.refresh(["a", "b"])
    assert max(len(writer.engine.decisions), len(reader.engine.decisions)) <= 4
    assert world.values("a") == [f"{number}" for number in range(10)]


def test_an_evicted_log_is_opened_again() -> None:
    world = TopicsWorld(limits=Limits(decision_logs=1))
    root = world.root()
    held = [world.prepare(transactional(root, name), a=[name]) for name in ("one", "two", "three")]
    assert len(root.engine.decisions) == 1
    for transaction in held:
        transaction.commit()
    assert world.values("a") == ["one", "two", "three"]
    assert root.engine.decisions.log("one").deciding(0).commit_of(0) is not None
