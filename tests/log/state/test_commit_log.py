"""The commit protocol, one rule at a time: races, lost responses, stalls, clocks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, Unavailable
from sparklog.limits import Limits
from sparklog.log.journal import documents
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.journal.names import commit_key
from sparklog.log.state.commit import TAKEOVER, Txn, TxnDecision, VersionLease
from sparklog.log.state.commit_object import decode_commit, encode_commit
from sparklog.log.state.invariants import check_state
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import open_root
from sparklog.log.write.append_target import AppendOutcome
from sparklog.storage.local import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.testing.faulty_store import Crash, Fault, FaultKind, FaultyStore, Script
from sparklog.testing.world import HOUR_MS
from sparklog.testing.wrapper_stores import CountingStore, HookedStore
from tests.log.protocol import collect, faulty, other, publish, setup, topic_records
from tests.log.topics import append, file_of
from tests.support.maintaining import maintain

COMMIT = "create:commit"


# -- races


def test_a_writer_that_loses_a_race_commits_after_the_winners() -> None:
    world, store, _, topic = setup()
    rival = other(world, store)
    for _ in range(5):
        publish(rival)
    counting = CountingStore(store)
    late = world.root(counting).topic("t")
    late.log.append_target(refresh=False)
    late.log._latest = topic.log._latest  # the state of a process that has not read since version 0
    counting.reset()
    outcome = publish(late, 4)
    assert (outcome.version, dict(outcome.base)) == (6, {0: 15})
    # The create of commit 1 loses. The winner, commits 2 to 5 and the missing commit 6 are read, and commit 6 is
    # created. Before that, commits 0 and 5 must still exist.
    assert counting.by_kind["create", "commit"] == 2
    assert counting.by_kind["get", "commit"] == 6 + 2
    assert world.slept == []


def test_a_writer_backs_off_after_the_third_lost_race() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")

    def lose() -> None:
        publish(rival)
        losses.append(len(world.slept))
        if len(losses) < 5:
            hooked.before_next("create:commit", lose)

    losses: list[int] = []
    hooked.before_next("create:commit", lose)
    outcome = publish(topic)
    assert outcome.version == 6
    assert losses == [0, 0, 0, 1, 2]
    assert len(world.slept) == 3
    assert all(0 < seconds <= 2 for seconds in world.slept)


def test_a_batch_committed_concurrently_is_skipped_on_retry() -> None:
    """A restarted driver and a zombie write the same batch. The writer that loses the race must check the registry
    again.
    """
    world, store, _, _ = setup()
    zombie, restarted = other(world, store), other(world, store)
    first = publish(restarted, 3, WriterKey("q", 7, "run"))
    second = publish(zombie, 3, WriterKey("q", 7, "run"))
    assert (first.version, first.skipped) == (1, False)
    assert (second.version, second.skipped) == (1, True)
    assert topic_records(world, store) == 3


def test_a_zombie_that_loses_a_race_is_fenced() -> None:
    world, store, _, _ = setup()
    zombie, restarted = other(world, store), other(world, store)
    publish(zombie, 3, WriterKey("q", 1, "old"))
    publish(restarted, 3, WriterKey("q", 2, "new"))
    with pytest.raises(Fenced, match="run old of writer 'q' was superseded by run new"):
        publish(zombie, 3, WriterKey("q", 3, "old"))
    assert topic_records(world, store) == 6


def test_a_replay_by_a_new_run_commits_a_takeover_without_slices() -> None:
    _, store, _, topic = setup()
    publish(topic, 3, WriterKey("q", 1, "old"))
    outcome = publish(topic, 3, WriterKey("q", 1, "new"))
    assert (outcome.skipped, outcome.records, topic.log.state().version) == (True, 0, 2)
    data = store.get(commit_key("t", 2))
    assert decode_commit(data, "k", 2).op == TAKEOVER
    assert publish(topic, 3, WriterKey("q", 1, "new")).skipped
    assert topic.log.state().version == 2


# -- lost responses

FAULTS = [
    FaultKind.ERROR_BEFORE,
    FaultKind.ERROR_AFTER,
    FaultKind.LATE,
    FaultKind.TWICE,
    FaultKind.FALSE_EXISTS,
]


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("keyed", [True, False])
def test_a_create_with_an_unknown_result_is_committed_once(kind: FaultKind, keyed: bool) -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {(COMMIT, 0): Fault(kind, 2)})
    outcome = publish(topic, 3, WriterKey("q", 0, "r") if keyed else None)
    assert (outcome.version, outcome.skipped) == (1, False)
    topic.store.land()  # type: ignore[attr-defined]
    assert topic_records(world, store) == 3
    assert other(world, store).log.state().version == 1


@pytest.mark.parametrize("kind", FAULTS)
def test_a_create_with_many_unknown_results(kind: FaultKind) -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {(COMMIT, n): Fault(kind, 1) for n in range(6)})
    assert publish(topic).version == 1
    assert topic_records(world, store) == 3


def test_a_lost_response_and_a_hidden_commit() -> None:
    """The response is lost, and a stale cache hides the object for a while."""
    world, store, _, _ = setup()
    absent: dict[str | tuple[str, int], Fault] = {("get:commit", n): Fault(FaultKind.ABSENT) for n in range(4)}
    topic = faulty(world, store, {**absent, (COMMIT, 0): Fault(FaultKind.ERROR_AFTER)})
    assert publish(topic).version == 1
    assert topic_records(world, store) == 3


def test_a_commit_that_exists_but_is_hidden_fails_after_90_seconds() -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {COMMIT: Fault(FaultKind.FALSE_EXISTS)})
    begun = world.now_ms
    with pytest.raises(Unavailable, match="is unknown: it exists, but cannot be read"):
        publish(topic)
    assert 90_000 < world.now_ms - begun < 95_000
    assert topic_records(world, store) == 0


def test_an_unavailable_store_fails_with_the_commit_in_the_error() -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {COMMIT: Fault(FaultKind.ERROR_BEFORE), "get:commit": Fault(FaultKind.ERROR_BEFORE)})
    with pytest.raises(
        Unavailable,
        match=r"commit [\w-]{22} to topic 't': the outcome of .* is unknown.*check the log before you write again",
    ):
        publish(topic)
    assert topic_records(world, store) == 0


@pytest.mark.parametrize("lost", [False, True])
def test_a_denied_request_fails_immediately_unless_an_earlier_attempt_is_unresolved(lost: bool) -> None:
    world, store, _, topic = setup()
    attempts: list[str] = []

    def denied(key: str, data: bytes) -> bool:
        attempts.append(key)
        raise Unavailable(f"cannot create {key}", is_denied=not lost or len(attempts) > 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "create", denied)
        begun = world.now_ms
        with pytest.raises(Unavailable, match="the outcome of creating" if lost else "; nothing was written"):
            publish(topic)
    assert (len(attempts) > 1, world.now_ms - begun > 90_000) == (lost, lost)
    assert topic_records(world, store) == 0


def test_a_stopped_clock_does_not_wait_forever() -> None:
    world, store, _, _ = setup()
    env = replace(world.env(), sleep=lambda seconds: world.slept.append(seconds))
    topic = world.root(FaultyStore(store, Script({})), env).topic("t")
    topic.store.decide = Script({COMMIT: Fault(FaultKind.FALSE_EXISTS)})  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="the outcome of creating"):
        publish(topic)
    assert len(world.slept) < 300


def test_a_damaged_response_is_not_a_lost_race() -> None:
    """Reading the winner's commit fails. The process must not treat its own commit as another writer's commit."""
    world, store, _, _ = setup()
    for amount in (30, 7, 1):
        topic = faulty(
            world,
            store,
            {(COMMIT, 0): Fault(FaultKind.ERROR_AFTER), ("get:commit", 0): Fault(FaultKind.SHORT, amount)},
        )
        before = topic_records(world, store)
        publish(topic)
        assert topic_records(world, store) == before + 3


@pytest.mark.parametrize("bit", [800, 1500, 2300])
def test_a_bit_flipped_in_transit_is_read_again(bit: int) -> None:
    world, store, _, _ = setup()
    topic = faulty(
        world, store, {(COMMIT, 0): Fault(FaultKind.ERROR_AFTER), ("get:commit", 0): Fault(FaultKind.FLIP, bit)}
    )
    assert publish(topic).version == 1
    assert topic_records(world, store) == 3


@pytest.mark.parametrize("when", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
def test_a_restarted_writer_finds_its_commit(when: FaultKind) -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {(COMMIT, 0): Fault(when)})
    with pytest.raises(Crash):
        publish(topic, 3, WriterKey("q", 0, "one"))
    outcome = publish(other(world, store), 3, WriterKey("q", 0, "two"), name="y")
    assert outcome.skipped == (when is FaultKind.CRASH_AFTER)
    assert topic_records(world, store) == 3


# -- stalls


@pytest.mark.parametrize("collected", [2, 3])
def test_a_stalled_create_with_a_deleted_number_is_not_acknowledged(collected: int) -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")

    def sleep_long() -> None:
        for _ in range(3):
            publish(rival)
        rival.log.write_checkpoint()
        collect(store, collected)
        world.now_ms += 8 * 24 * HOUR_MS

    hooked.before_next("create:commit", sleep_long)
    if collected == 2:
        # This process also created commit 1, but the chain shows that the log has another commit 1.
        assert publish(topic, 5).version == 4
        assert topic_records(world, store) == 14
    else:
        # No object is left that would show the result.
        with pytest.raises(Unavailable, match=r"its outcome is unknown: .* has been deleted; check the log before"):
            publish(topic, 5)
        assert topic_records(world, store) == 9


@pytest.mark.parametrize("which", ["wall", "boot"])
def test_a_stall_after_the_create_searches_for_the_commit(which: str) -> None:
    world, store, _, _ = setup()
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")
    rival = other(world, store)

    def stall() -> None:
        publish(rival)
        if which == "wall":
            world.set_wall_clock(2 * HOUR_MS)
        else:
            world.boot_ahead_ms += 2 * HOUR_MS

    hooked.after_next("create:commit", stall)
    assert publish(topic, 5).version == 1
    assert topic_records(world, store) == 8


@pytest.mark.parametrize("keyed", [True, False])
def test_a_stall_over_checkpoints(keyed: bool) -> None:
    """The commit was created, and other writers then wrote a checkpoint. The chain from the checkpoint shows that the
    commit is valid.
    """
    world, store, _, _ = setup()
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")
    rival = other(world, store)

    def stall() -> None:
        for _ in range(4):
            publish(rival)
        rival.log.write_checkpoint()
        world.now_ms += 2 * HOUR_MS

    hooked.after_next("create:commit", stall)
    outcome = publish(topic, 5, WriterKey("q", 1, "r") if keyed else None)
    assert (outcome.version, outcome.skipped, outcome.records) == (1, False, 5)
    assert topic_records(world, store) == 17


def test_a_commit_deleted_during_a_stall() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)

    def stalled(key: WriterKey | None) -> AppendOutcome:
        hooked = HookedStore(store)
        topic = world.root(hooked).topic("t")

        def stall() -> None:
            publish(rival)
            publish(rival)
            rival.log.write_checkpoint()
            collect(store, rival.log.state().version)
            world.now_ms += 8 * 24 * HOUR_MS

        hooked.after_next("create:commit", stall)
        return publish(topic, 5, key)

    with pytest.raises(Unavailable, match=r"its outcome is unknown: .* has been deleted; check the log before"):
        stalled(None)
    # With an idempotency key, the state itself shows the result.
    assert stalled(WriterKey("q", 1, "r")).skipped
    assert topic_records(world, store) == 22


def test_a_store_failure_during_the_search_after_a_stall() -> None:
    world, store, _, _ = setup()
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")

    def stall() -> None:
        world.now_ms += 2 * HOUR_MS
        hooked.before = fail

    def fail(verb: str, key: str) -> None:
        if verb == "list":
            raise Unavailable("the store is down")

    hooked.after_next("create:commit", stall)
    with pytest.raises(
        Unavailable, match=r"commit [\w-]{22} to topic 't' stalled .* outcome is unknown: .*the store is down"
    ):
        publish(topic)


def test_many_recent_commits_load_the_table_and_a_failure_is_ignored() -> None:
    world, store, _, topic = setup()
    for _ in range(128):
        publish(topic, 1)
    store.limits = Limits(tail_commits=3)
    failing = faulty(world, store, {"get:checkpoint": Fault(FaultKind.ERROR_BEFORE)})
    known = failing.log._open_if_stale()
    failing.log._latest = replace(known, state=replace(known.state, table=None))
    for _ in range(5):
        publish(failing, 1)
    assert failing.log.current().table is None
    failing.store.decide = lambda call: None  # type: ignore[attr-defined]
    publish(failing, 1)
    table = failing.log.current().table
    assert table is not None
    assert table.all().base.tolist() == list(range(134))


def test_a_stalled_reader_opens_the_log_again() -> None:
    """The reader's next commit was deleted. If the reader only polled for it, the topic would look idle forever."""
    world, store, _, topic = setup()
    reader = other(world, store)
    assert reader.log.state().version == 0
    for _ in range(3):
        publish(topic)
    topic.log.write_checkpoint()
    collect(store, 3)
    world.boot_ahead_ms += HOUR_MS + 1
    assert reader.log.state().version == 3
    assert reader.log.snapshot().slices.all().base.tolist() == [0, 3, 6]


def test_a_long_running_follower_keeps_one_name_to_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that runs for a year must not keep, or sync one by one, the names of all commits that it has read."""
    world, store, _, topic = setup()
    follower = other(world, store)
    names: list[str] = []
    monkeypatch.setattr(store, "settle", names.append)
    for _ in range(20):
        publish(topic)
        follower.log.refresh()
    follower.log.make_durable()
    assert names == [commit_key("t", 20)]
    follower.log.make_durable()
    assert len(names) == 1


def test_a_reader_ignores_a_zombies_commit() -> None:
    world, store, _, topic = setup()
    reader = other(world, store)
    zombie = other(world, store)
    target = zombie.log.append_target()
    for _ in range(3):
        publish(topic)
    topic.log.write_checkpoint()
    collect(store, 3)
    draft_of_zombie = encode_commit(
        replace(
            decode_commit(store.get(commit_key("t", 3)), "k", 3),
            version=1,
            prev_crc=reader.log.state(refresh=False).crc,
            files=(file_of([(0, 50)], read_version=target.read_version).with_base((0,)),),
            embedded=None,
        )
    )
    store.create(commit_key("t", 1), draft_of_zombie)
    world.now_ms += 8 * 24 * HOUR_MS
    assert reader.log.state().log_end.tolist() == [9, 0]


# -- clocks


def test_a_writer_whose_clock_is_far_ahead_does_not_commit() -> None:
    world, store, _, _ = setup()
    fast = replace(world.env(), wall_ms=lambda: world.now_ms + 301_000)
    topic = world.root(store, fast).topic("t")
    with pytest.raises(Unavailable, match=r"clock is 301 s ahead of memory:test; commits require at most 300 s"):
        publish(topic)
    slow = replace(world.env(), wall_ms=lambda: world.now_ms - 10 * HOUR_MS)
    assert publish(world.root(store, slow).topic("t")).version == 1


def test_the_stores_clock_is_read_rarely_and_after_clock_jumps() -> None:
    world, store, _, _ = setup()
    counting = CountingStore(store)
    jumped = [0]
    topic = world.root(counting, replace(world.env(), wall_ms=lambda: world.now_ms + jumped[0])).topic("t")
    for _ in range(5):
        publish(topic)
        world.now_ms += 1000
    assert counting.counts["now_ms"] == 1
    world.now_ms += 600_000
    publish(topic)
    assert counting.counts["now_ms"] == 2
    jumped[0] = 400_000
    with pytest.raises(Unavailable, match="ahead"):
        publish(topic)


def test_commit_time_increases_when_a_clock_is_behind() -> None:
    world, store, _, topic = setup()
    publish(topic)
    slow = replace(world.env(), wall_ms=lambda: world.now_ms - 10 * HOUR_MS)
    late = world.root(store, slow).topic("t")
    publish(late)
    assert late.log.state().time_ms == topic.log.state().time_ms == world.now_ms


# -- transactions and other intents


def test_every_commit_records_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    world, store, _, _ = setup()
    root = world.root(store)
    decided: list[TxnDecision] = []
    asked: list[int] = []

    def resolve(topic: str, state: object) -> Sequence[TxnDecision]:
        asked.append(len(decided))
        return tuple(decided)

    monkeypatch.setattr(root.engine.decisions, "resolve", resolve)
    topic = root.topic("t")
    publish(topic, 3, txn=Txn("t", 1))
    assert topic.log.state().last_stable().tolist() == [0, 0]
    decided.append(TxnDecision("t", 1, (1,)))
    publish(topic, 2, name="y")
    publish(topic, 2, name="z")
    assert topic.log.state().last_stable().tolist() == [7, 0]
    assert asked == [1], "it asks only while a transaction is open"


def test_an_alter_that_loses_a_race_to_the_same_alter() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")
    hooked.before_next("create:commit", lambda: rival.alter(configs={"retention.ms": 7}))
    with pytest.raises(Conflict, match=r"another process changed config retention.ms of topic 't'"):
        topic.alter(configs={"retention.ms": 5})
    hooked.before_next("create:commit", lambda: rival.alter(configs={"segment.ms": 7}))
    assert topic.alter(configs={"retention.ms": 5}).configs.retention_ms == 5


def test_a_topic_that_becomes_compacted_between_upload_and_commit() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")
    hooked.before_next("create:commit", lambda: rival.alter(configs={"cleanup.policy": "compact"}))
    with pytest.raises(BadRequest, match="is compacted, so every record must have a key"):
        append(topic, (0, 3), flags=1)
    assert topic_records(world, store) == 0


def test_an_append_to_a_topic_that_was_deleted_concurrently() -> None:
    world, store, root, _ = setup()
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")
    hooked.before_next("create:commit", lambda: root.delete_topic("t"))
    with pytest.raises(NotFound, match="was deleted"):
        publish(topic)

    def again() -> None:
        root.create_topic("t")

    root.create_topic("t")
    late = world.root(hooked).topic("t")
    target = late.log.append_target()
    root.delete_topic("t")
    root.create_topic("t")
    with pytest.raises(Conflict, match="deleted and recreated"):
        late.log.commit_append([file_of([(0, 1)])], target)


def test_a_rejection_is_never_based_on_an_outdated_state() -> None:
    """The cached state rejects the change, but the latest state accepts it."""
    world, store, _, topic = setup()
    topic.alter(configs={"cleanup.policy": "compact"})
    late = other(world, store)
    topic.alter(configs={"cleanup.policy": None})
    target = late.log.append_target(refresh=False)
    assert target.configs.is_compacted
    late.log.commit_append([file_of([(0, 3)], read_version=1, flags=1)], target)
    assert topic_records(world, store) == 3


def test_threads_share_a_topic(tmp_path: Path) -> None:
    topic = open_root(LocalStore(tmp_path, durable=False), create=True).create_topic("t", partitions=2)

    def work(number: int) -> list[int]:
        versions = []
        for turn in range(15):
            target = topic.log.append_target()
            file = file_of([(0, 2), (1, 1)], read_version=target.read_version, name=f"w{number}-{turn}")
            versions.append(topic.log.commit_append([file], target).version)
            assert len(topic.log.snapshot().slices.all()) % 2 == 0
        return versions

    with ThreadPoolExecutor(6) as pool:
        versions = sorted(version for found in pool.map(work, range(6)) for version in found)
    # Concurrent appends share a commit.
    assert len(versions) == 90
    assert sorted(set(versions)) == list(range(1, versions[-1] + 1))
    state = topic.log.state()
    assert state.log_end.tolist() == [180, 90]
    check_state(state, topic.log.snapshot().slices)
    again = open_root(LocalStore(tmp_path, durable=False)).topic("t")
    assert again.log.state() == state
    assert again.log.snapshot().slices.select(0).base.tolist() == list(range(0, 180, 2))


def test_a_commit_that_readers_would_reject_is_not_written() -> None:
    topic = open_root(MemoryStore(SYSTEM.wall_ms), create=True).create_topic("orders")
    with pytest.raises(Corrupt, match="expiresMs"):
        maintain(topic, leases={"clone": VersionLease(0, -5)})
    assert topic.log.state().version == 0
    assert [info.key for info in topic.store.list("orders/_log/")] == [commit_key("orders", 0)]


def test_each_commit_has_the_crc_of_its_predecessor() -> None:
    _, store, _, topic = setup()
    publish(topic)
    first, second = store.get(commit_key("t", 0)), store.get(commit_key("t", 1))
    assert decode_commit(second, "k", 1).prev_crc == documents.crc32c.crc32c(first)
    assert topic.log.state().crc == documents.crc32c.crc32c(second)
