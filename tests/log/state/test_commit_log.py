"""The commit protocol, one rule at a time: races, lost answers, stalls, clocks."""

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
from sparklog.log.state.commit import TAKEOVER, Resolved, Txn, VersionLease, decode_commit, encode_commit
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


def test_a_loser_reads_forward_and_commits_after_the_winners() -> None:
    world, store, _, topic = setup()
    rival = other(world, store)
    for _ in range(5):
        publish(rival)
    counting = CountingStore(store)
    late = world.root(counting).topic("t")
    late.log.append_target(refresh=False)
    late.log._latest = topic.log._latest  # the state of somebody who has not looked since version 0
    counting.reset()
    outcome = publish(late, 4)
    assert (outcome.version, dict(outcome.base)) == (6, {0: 15})
    # Lost at 1; the winner there, 2 to 5 and the missing 6 were read; created at 6. And 0, 5 are still there.
    assert counting.by_kind["create", "commit"] == 2
    assert counting.by_kind["get", "commit"] == 6 + 2
    assert world.slept == []


def test_waiting_begins_after_the_third_loss() -> None:
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


def test_a_rival_with_the_same_batch_is_found_on_the_new_base() -> None:
    """Restarted driver and zombie, one batch: the loser must look into the registry again."""
    world, store, _, _ = setup()
    zombie, restarted = other(world, store), other(world, store)
    first = publish(restarted, 3, WriterKey("q", 7, "run"))
    second = publish(zombie, 3, WriterKey("q", 7, "run"))
    assert (first.version, first.skipped) == (1, False)
    assert (second.version, second.skipped) == (1, True)
    assert topic_records(world, store) == 3


def test_fencing_a_zombie_that_loses_a_race() -> None:
    world, store, _, _ = setup()
    zombie, restarted = other(world, store), other(world, store)
    publish(zombie, 3, WriterKey("q", 1, "old"))
    publish(restarted, 3, WriterKey("q", 2, "new"))
    with pytest.raises(Fenced, match="run old of writer 'q' was taken over by run new"):
        publish(zombie, 3, WriterKey("q", 3, "old"))
    assert topic_records(world, store) == 6


def test_a_skipped_replay_by_a_new_run_is_one_commit_without_slices() -> None:
    _, store, _, topic = setup()
    publish(topic, 3, WriterKey("q", 1, "old"))
    outcome = publish(topic, 3, WriterKey("q", 1, "new"))
    assert (outcome.skipped, outcome.records, topic.log.state().version) == (True, 0, 2)
    data = store.get(commit_key("t", 2))
    assert decode_commit(data, "k", 2).op == TAKEOVER
    assert publish(topic, 3, WriterKey("q", 1, "new")).skipped
    assert topic.log.state().version == 2


# -- lost answers

FAULTS = [
    FaultKind.ERROR_BEFORE,
    FaultKind.ERROR_AFTER,
    FaultKind.LATE,
    FaultKind.TWICE,
    FaultKind.FALSE_EXISTS,
]


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("keyed", [True, False])
def test_a_create_with_an_unclear_answer_lands_once(kind: FaultKind, keyed: bool) -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {(COMMIT, 0): Fault(kind, 2)})
    outcome = publish(topic, 3, WriterKey("q", 0, "r") if keyed else None)
    assert (outcome.version, outcome.skipped) == (1, False)
    topic.store.land()  # type: ignore[attr-defined]
    assert topic_records(world, store) == 3
    assert other(world, store).log.state().version == 1


@pytest.mark.parametrize("kind", FAULTS)
def test_a_create_with_many_unclear_answers(kind: FaultKind) -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {(COMMIT, n): Fault(kind, 1) for n in range(6)})
    assert publish(topic).version == 1
    assert topic_records(world, store) == 3


def test_a_lost_answer_and_a_hidden_commit() -> None:
    """The answer is lost and a stale cache says for a while that nothing is there."""
    world, store, _, _ = setup()
    absent: dict[str | tuple[str, int], Fault] = {("get:commit", n): Fault(FaultKind.ABSENT) for n in range(4)}
    topic = faulty(world, store, {**absent, (COMMIT, 0): Fault(FaultKind.ERROR_AFTER)})
    assert publish(topic).version == 1
    assert topic_records(world, store) == 3


def test_exists_then_absent_ends_after_90_seconds() -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {COMMIT: Fault(FaultKind.FALSE_EXISTS)})
    begun = world.now_ms
    with pytest.raises(Unavailable, match="unknown outcome: it exists and cannot be read"):
        publish(topic)
    assert 90_000 < world.now_ms - begun < 95_000
    assert topic_records(world, store) == 0


def test_a_store_that_stays_away_gives_up_and_names_the_commit() -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {COMMIT: Fault(FaultKind.ERROR_BEFORE), "get:commit": Fault(FaultKind.ERROR_BEFORE)})
    with pytest.raises(
        Unavailable, match=r"commit [\w-]{22} to topic 't': .*unknown outcome.*check the log before you write again"
    ):
        publish(topic)
    assert topic_records(world, store) == 0


@pytest.mark.parametrize("lost", [False, True])
def test_a_missing_right_is_an_answer_at_once_unless_an_earlier_attempt_is_open(lost: bool) -> None:
    world, store, _, topic = setup()
    attempts: list[str] = []

    def denied(key: str, data: bytes) -> bool:
        attempts.append(key)
        raise Unavailable(f"cannot create {key}", is_denied=not lost or len(attempts) > 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "create", denied)
        begun = world.now_ms
        with pytest.raises(Unavailable, match="unknown outcome" if lost else "; nothing was written"):
            publish(topic)
    assert (len(attempts) > 1, world.now_ms - begun > 90_000) == (lost, lost)
    assert topic_records(world, store) == 0


def test_a_clock_that_stands_still_does_not_wait_for_ever() -> None:
    world, store, _, _ = setup()
    env = replace(world.env(), sleep=lambda seconds: world.slept.append(seconds))
    topic = world.root(FaultyStore(store, Script({})), env).topic("t")
    topic.store.decide = Script({COMMIT: Fault(FaultKind.FALSE_EXISTS)})  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="unknown outcome"):
        publish(topic)
    assert len(world.slept) < 300


def test_a_damaged_answer_is_not_a_loss() -> None:
    """Reading who won breaks off: our own commit must not be taken for somebody else's."""
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
def test_a_flipped_bit_on_the_way_is_read_again(bit: int) -> None:
    world, store, _, _ = setup()
    topic = faulty(
        world, store, {(COMMIT, 0): Fault(FaultKind.ERROR_AFTER), ("get:commit", 0): Fault(FaultKind.FLIP, bit)}
    )
    assert publish(topic).version == 1
    assert topic_records(world, store) == 3


@pytest.mark.parametrize("when", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
def test_a_writer_that_dies_and_comes_back(when: FaultKind) -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {(COMMIT, 0): Fault(when)})
    with pytest.raises(Crash):
        publish(topic, 3, WriterKey("q", 0, "one"))
    outcome = publish(other(world, store), 3, WriterKey("q", 0, "two"), name="y")
    assert outcome.skipped == (when is FaultKind.CRASH_AFTER)
    assert topic_records(world, store) == 3


# -- stalls


@pytest.mark.parametrize("collected", [2, 3])
def test_a_stalled_create_at_a_collected_number_is_not_acknowledged(collected: int) -> None:
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
        # Number 1 was created by it as well, but the chain shows that the log has another commit 1.
        assert publish(topic, 5).version == 4
        assert topic_records(world, store) == 14
    else:
        # Nothing is left that would tell.
        with pytest.raises(Unavailable, match=r"its outcome is unknown: .* is no longer kept; check the log before"):
            publish(topic, 5)
        assert topic_records(world, store) == 9


@pytest.mark.parametrize("which", ["wall", "boot"])
def test_a_stall_after_the_create_looks_for_the_commit(which: str) -> None:
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
    """Ours landed, then the log went on past a checkpoint: the chain from it shows that it counts."""
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


def test_a_stall_after_which_the_commit_is_gone() -> None:
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

    with pytest.raises(Unavailable, match=r"its outcome is unknown: .* is no longer kept; check the log before"):
        stalled(None)
    # With an idempotency key the state itself knows.
    assert stalled(WriterKey("q", 1, "r")).skipped
    assert topic_records(world, store) == 22


def test_a_store_that_fails_while_looking_after_a_stall() -> None:
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


def test_a_long_tail_loads_the_table_and_failing_to_does_not_matter() -> None:
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


def test_a_reader_that_slept_opens_afresh() -> None:
    """Its next number was collected: probing it would look idle for ever."""
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


def test_a_reader_that_follows_for_long_keeps_one_name_to_make_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of a year must not keep, nor settle one by one, each commit that it has read."""
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


def test_a_reader_is_not_led_astray_by_a_zombie() -> None:
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
        )
    )
    store.create(commit_key("t", 1), draft_of_zombie)
    world.now_ms += 8 * 24 * HOUR_MS
    assert reader.log.state().log_end.tolist() == [9, 0]


# -- clocks


def test_a_writer_far_ahead_refuses_to_commit() -> None:
    world, store, _, _ = setup()
    fast = replace(world.env(), wall_ms=lambda: world.now_ms + 301_000)
    topic = world.root(store, fast).topic("t")
    with pytest.raises(Unavailable, match=r"clock is 301 s ahead of memory:test; at most 300 s"):
        publish(topic)
    slow = replace(world.env(), wall_ms=lambda: world.now_ms - 10 * HOUR_MS)
    assert publish(world.root(store, slow).topic("t")).version == 1


def test_the_stores_clock_is_asked_rarely_and_when_the_clock_jumps() -> None:
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


def test_commit_time_goes_on_when_a_clock_is_behind() -> None:
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
    decided: list[Resolved] = []
    asked: list[int] = []

    def resolve(topic: str, state: object) -> Sequence[Resolved]:
        asked.append(len(decided))
        return tuple(decided)

    monkeypatch.setattr(root.engine.decisions, "resolve", resolve)
    topic = root.topic("t")
    publish(topic, 3, txn=Txn("t", 1))
    assert topic.log.state().last_stable().tolist() == [0, 0]
    decided.append(Resolved("t", 1, (1,)))
    publish(topic, 2, name="y")
    publish(topic, 2, name="z")
    assert topic.log.state().last_stable().tolist() == [7, 0]
    assert asked == [1], "it asks only while a transaction is open"


def test_an_alter_that_loses_to_the_same_alter() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")
    hooked.before_next("create:commit", lambda: rival.alter(configs={"retention.ms": 7}))
    with pytest.raises(Conflict, match=r"another process changed config retention.ms of topic 't'"):
        topic.alter(configs={"retention.ms": 5})
    hooked.before_next("create:commit", lambda: rival.alter(configs={"segment.ms": 7}))
    assert topic.alter(configs={"retention.ms": 5}).configs.retention_ms == 5


def test_a_switch_to_compact_between_upload_and_commit() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = HookedStore(store)
    topic = world.root(hooked).topic("t")
    hooked.before_next("create:commit", lambda: rival.alter(configs={"cleanup.policy": "compact"}))
    with pytest.raises(BadRequest, match="is compacted, so every record needs a key"):
        append(topic, (0, 3), flags=1)
    assert topic_records(world, store) == 0


def test_an_append_to_a_topic_deleted_meanwhile() -> None:
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
    with pytest.raises(Conflict, match="deleted and created again"):
        late.log.commit_append([file_of([(0, 1)])], target)


def test_a_refusal_is_never_based_on_an_old_state() -> None:
    """A cached state says no, the newest says yes."""
    world, store, _, topic = setup()
    topic.alter(configs={"cleanup.policy": "compact"})
    late = other(world, store)
    topic.alter(configs={"cleanup.policy": None})
    target = late.log.append_target(refresh=False)
    assert target.configs.is_compacted
    late.log.commit_append([file_of([(0, 3)], read_version=1, flags=1)], target)
    assert topic_records(world, store) == 3


def test_threads_that_share_a_topic(tmp_path: Path) -> None:
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
    # Appends that meet share a commit.
    assert len(versions) == 90
    assert sorted(set(versions)) == list(range(1, versions[-1] + 1))
    state = topic.log.state()
    assert state.log_end.tolist() == [180, 90]
    check_state(state, topic.log.snapshot().slices)
    again = open_root(LocalStore(tmp_path, durable=False)).topic("t")
    assert again.log.state() == state
    assert again.log.snapshot().slices.select(0).base.tolist() == list(range(0, 180, 2))


def test_what_no_reader_would_take_is_not_written() -> None:
    topic = open_root(MemoryStore(SYSTEM.wall_ms), create=True).create_topic("orders")
    with pytest.raises(Corrupt, match="expiresMs"):
        maintain(topic, holds={"clone": VersionLease(0, -5)})
    assert topic.log.state().version == 0
    assert [info.key for info in topic.store.list("orders/_log/")] == [commit_key("orders", 0)]


def test_crcs_of_the_chain() -> None:
    _, store, _, topic = setup()
    publish(topic)
    first, second = store.get(commit_key("t", 0)), store.get(commit_key("t", 1))
    assert decode_commit(second, "k", 1).prev_crc == documents.crc32c.crc32c(first)
    assert topic.log.state().crc == documents.crc32c.crc32c(second)
