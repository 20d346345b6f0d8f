"""The commit protocol, opening and following a log, one rule at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, Unavailable
from sparklog.log import fields
from sparklog.log.commit import TAKEOVER, Resolved, Txn, decode_commit, encode_commit
from sparklog.log.names import checkpoint_key, checkpoint_prefix, commit_key
from sparklog.log.registry import WriterKey
from sparklog.log.root import Root
from sparklog.log.topic import AppendOutcome, Topic
from sparklog.storage.counting import CountingStore
from sparklog.storage.faulty import Crash, Fault, FaultKind, FaultyStore, Script
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from tests.log.topics import HOUR_MS, World, append, file_of

COMMIT = "create:commit"


class Hooked(FaultyStore):
    """A store that runs something once, just before or after the next create of a commit."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, lambda call: None)
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None

    def create(self, key: str, data: bytes) -> bool:
        if "/_log/0" not in key:
            return super().create(key, data)
        before, self.before = self.before, None
        if before:
            before()
        created = super().create(key, data)
        after, self.after = self.after, None
        if after:
            after()
        return created


def setup(partitions: int = 2) -> tuple[World, MemoryStore, Root, Topic]:
    world = World()
    store = world.store()
    root = world.root(store)
    return world, store, root, root.create_topic("t", partitions=partitions)


def other(world: World, store: Store) -> Topic:
    """The same topic in another process."""
    return world.root(store).topic("t")


def publish(
    topic: Topic, records: int = 3, key: WriterKey | None = None, txn: Txn | None = None, name: str = "x"
) -> AppendOutcome:
    target = topic.append_target(refresh=False)
    file = file_of([(0, records)], read_version=target.read_version, name=name)
    return topic.commit_append([file], target, writer=key, txn=txn)


def faulty(world: World, store: Store, faults: dict[str | tuple[str, int], Fault]) -> Topic:
    """The topic seen through a store that fails, opened before it begins to."""
    script: dict[str | tuple[str, int], Fault] = {}
    through = FaultyStore(store, Script(script), world.sleep)
    topic = world.root(through).topic("t")
    through.calls.clear()
    through.decide = Script(faults)
    return topic


# -- races


def test_a_loser_reads_forward_and_commits_after_the_winners() -> None:
    world, store, _, topic = setup()
    rival = other(world, store)
    for _ in range(5):
        publish(rival)
    counting = CountingStore(store)
    late = world.root(counting).topic("t")
    late.log._state = topic.log._state  # the state of somebody who has not looked since version 0
    counting.reset()
    outcome = publish(late, 4)
    assert (outcome.version, dict(outcome.base)) == (6, {0: 15})
    # Lost at 1; the winner there, 2 to 5 and the missing 6 were read; created at 6.
    assert counting.by_kind["create", "commit"] == 2
    assert counting.by_kind["get", "commit"] == 6
    assert world.slept == []


def test_waiting_begins_after_the_third_loss() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = Hooked(store)
    topic = world.root(hooked).topic("t")

    def lose() -> None:
        publish(rival)
        losses.append(len(world.slept))
        if len(losses) < 5:
            hooked.before = lose

    losses: list[int] = []
    hooked.before = lose
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


def topic_records(world: World, store: Store) -> int:
    return int(other(world, store).head().log_end[0])


def test_fencing_a_zombie_that_loses_a_race() -> None:
    world, store, _, _ = setup()
    zombie, restarted = other(world, store), other(world, store)
    publish(zombie, 3, WriterKey("q", 1, "old"))
    publish(restarted, 3, WriterKey("q", 2, "new"))
    with pytest.raises(Fenced, match="run old of writer 'q' was taken over by run new"):
        publish(zombie, 3, WriterKey("q", 3, "old"))
    assert topic_records(world, store) == 6


def test_a_skipped_replay_by_a_new_run_is_one_commit_without_slices() -> None:
    world, store, _, topic = setup()
    publish(topic, 3, WriterKey("q", 1, "old"))
    outcome = publish(topic, 3, WriterKey("q", 1, "new"))
    assert (outcome.skipped, outcome.records, topic.head().version) == (True, 0, 2)
    data = store.get(commit_key("t", 2))
    assert decode_commit(data, "k", 2).op == TAKEOVER
    assert publish(topic, 3, WriterKey("q", 1, "new")).skipped
    assert topic.head().version == 2


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
    assert other(world, store).head().version == 1


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
    begun = world.wall
    with pytest.raises(Unavailable, match="unknown outcome: it exists and cannot be read"):
        publish(topic)
    assert 90_000 < world.wall - begun < 95_000
    assert topic_records(world, store) == 0


def test_a_store_that_stays_away_gives_up_and_names_the_commit() -> None:
    world, store, _, _ = setup()
    topic = faulty(world, store, {COMMIT: Fault(FaultKind.ERROR_BEFORE), "get:commit": Fault(FaultKind.ERROR_BEFORE)})
    with pytest.raises(
        Unavailable, match=r"commit [\w-]{22} to topic 't': .*unknown outcome.*look before you write again"
    ):
        publish(topic)
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


def collect(store: MemoryStore, below: int) -> None:
    """What a vacuum does with commits below a checkpoint."""
    for version in range(below):
        store.delete(commit_key("t", version))


@pytest.mark.parametrize("collected", [2, 3])
def test_a_stalled_create_at_a_collected_number_is_not_acknowledged(collected: int) -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = Hooked(store)
    topic = world.root(hooked).topic("t")

    def sleep_long() -> None:
        for _ in range(3):
            publish(rival)
        rival.log.write_checkpoint(rival.log.with_table(rival.log.current()))
        collect(store, collected)
        world.pass_ms(8 * 24 * HOUR_MS)

    hooked.before = sleep_long
    if collected == 2:
        # Number 1 was created by it as well, but the chain shows that the log has another commit 1.
        assert publish(topic, 5).version == 4
        assert topic_records(world, store) == 14
    else:
        # Nothing is left that would tell.
        with pytest.raises(Unavailable, match="its outcome is unknown; look before you write again"):
            publish(topic, 5)
        assert topic_records(world, store) == 9


@pytest.mark.parametrize("which", ["wall", "boot"])
def test_a_stall_after_the_create_looks_for_the_commit(which: str) -> None:
    world, store, _, _ = setup()
    hooked = Hooked(store)
    topic = world.root(hooked).topic("t")
    rival = other(world, store)

    def stall() -> None:
        publish(rival)
        if which == "wall":
            world.wall += 2 * HOUR_MS
        else:
            world.boot += 2 * HOUR_MS

    hooked.after = stall
    assert publish(topic, 5).version == 1
    assert topic_records(world, store) == 8


@pytest.mark.parametrize("keyed", [True, False])
def test_a_stall_over_checkpoints(keyed: bool) -> None:
    """Ours landed, then the log went on past a checkpoint: the chain from it shows that it counts."""
    world, store, _, _ = setup()
    hooked = Hooked(store)
    topic = world.root(hooked).topic("t")
    rival = other(world, store)

    def stall() -> None:
        for _ in range(4):
            publish(rival)
        rival.log.write_checkpoint(rival.log.with_table(rival.log.current()))
        world.pass_ms(2 * HOUR_MS)

    hooked.after = stall
    outcome = publish(topic, 5, WriterKey("q", 1, "r") if keyed else None)
    assert (outcome.version, outcome.skipped, outcome.records) == (1, False, 5)
    assert topic_records(world, store) == 17


def test_a_stall_after_which_the_commit_is_gone() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)

    def stalled(key: WriterKey | None) -> AppendOutcome:
        hooked = Hooked(store)
        topic = world.root(hooked).topic("t")

        def stall() -> None:
            publish(rival)
            publish(rival)
            rival.log.write_checkpoint(rival.log.with_table(rival.log.current()))
            collect(store, rival.head().version)
            world.pass_ms(8 * 24 * HOUR_MS)

        hooked.after = stall
        return publish(topic, 5, key)

    with pytest.raises(Unavailable, match="its outcome is unknown; look before you write again"):
        stalled(None)
    # With an idempotency key the state itself knows.
    assert stalled(WriterKey("q", 1, "r")).skipped
    assert topic_records(world, store) == 22


def test_a_reader_that_slept_opens_afresh() -> None:
    """Its next number was collected: probing it would look idle for ever."""
    world, store, _, topic = setup()
    reader = other(world, store)
    assert reader.head().version == 0
    for _ in range(3):
        publish(topic)
    topic.log.write_checkpoint(topic.log.with_table(topic.log.current()))
    collect(store, 3)
    world.boot += HOUR_MS + 1
    assert reader.head().version == 3
    assert reader.snapshot().slices.all().base.tolist() == [0, 3, 6]


def test_a_reader_is_not_led_astray_by_a_zombie() -> None:
    world, store, _, topic = setup()
    reader = other(world, store)
    zombie = other(world, store)
    target = zombie.append_target()
    for _ in range(3):
        publish(topic)
    topic.log.write_checkpoint(topic.log.with_table(topic.log.current()))
    collect(store, 3)
    draft_of_zombie = encode_commit(
        replace(
            decode_commit(store.get(commit_key("t", 3)), "k", 3),
            version=1,
            prev_crc=reader.head(refresh=False).crc,
            files=(file_of([(0, 50)], read_version=target.read_version).based((0,)),),
        )
    )
    store.create(commit_key("t", 1), draft_of_zombie)
    world.pass_ms(8 * 24 * HOUR_MS)
    assert reader.head().log_end.tolist() == [9, 0]


# -- clocks


def test_a_writer_far_ahead_refuses_to_commit() -> None:
    world, store, _, _ = setup()
    fast = replace(world.env(), wall_ms=lambda: world.wall + 301_000)
    topic = world.root(store, fast).topic("t")
    with pytest.raises(Unavailable, match=r"clock is 301 s ahead of memory:test; at most 300 s"):
        publish(topic)
    slow = replace(world.env(), wall_ms=lambda: world.wall - 10 * HOUR_MS)
    assert publish(world.root(store, slow).topic("t")).version == 1


def test_the_stores_clock_is_asked_rarely_and_when_the_clock_jumps() -> None:
    world, store, _, _ = setup()
    counting = CountingStore(store)
    jumped = [0]
    topic = world.root(counting, replace(world.env(), wall_ms=lambda: world.wall + jumped[0])).topic("t")
    for _ in range(5):
        publish(topic)
        world.pass_ms(1000)
    assert counting.counts["now_ms"] == 1
    world.pass_ms(600_000)
    publish(topic)
    assert counting.counts["now_ms"] == 2
    jumped[0] = 400_000
    with pytest.raises(Unavailable, match="ahead"):
        publish(topic)


def test_commit_time_goes_on_when_a_clock_is_behind() -> None:
    world, store, _, topic = setup()
    publish(topic)
    slow = replace(world.env(), wall_ms=lambda: world.wall - 10 * HOUR_MS)
    late = world.root(store, slow).topic("t")
    publish(late)
    assert late.head().time_ms == topic.head().time_ms == world.wall


# -- checkpoints and opening


def checkpoints(store: Store) -> list[str]:
    return [info.key.rsplit("/", 1)[-1] for info in store.list(checkpoint_prefix("t"))]


def test_a_checkpoint_every_128_commits() -> None:
    _, store, _, topic = setup()
    for _ in range(260):
        publish(topic, 1)
    heads = [name for name in checkpoints(store) if name.endswith(".json")]
    assert heads == [f"{127:020d}.json", f"{255:020d}.json"]
    assert len(checkpoints(store)) == 4


def test_a_checkpoint_after_a_mebibyte_of_commits() -> None:
    _, store, _, topic = setup()
    target = topic.append_target()
    for number in range(3):
        many = file_of([(0, 1)] * 12_000, name=f"n{number}")
        topic.commit_append([many], target)
    assert [name for name in checkpoints(store) if name.endswith(".json")] == [f"{3:020d}.json"]


def test_opening_costs_a_listing_a_checkpoint_and_the_tail() -> None:
    world, store, _, topic = setup()
    for _ in range(135):
        publish(topic, 1)
    counting = CountingStore(store)
    root = world.root(counting)
    counting.reset()
    opened = root.topic("t")
    # The head of the checkpoint at 127, commits 128 to 135, and 136 that is missing.
    assert counting.counts == {"list": 1, "get": 10}
    counting.reset()
    assert opened.head() == topic.head()
    assert counting.counts == {"get": 1}
    counting.reset()
    snapshot = opened.snapshot()
    assert counting.counts == {"get": 2}
    assert snapshot.slices.all().base.tolist() == list(range(135))


def test_a_store_with_round_trips_is_asked_for_16_numbers_at_once() -> None:
    world, store, _, topic = setup()
    for _ in range(40):
        publish(topic, 1)
    counting = CountingStore(store)
    counting.parallel_reads = 16  # type: ignore[attr-defined]
    root = world.root(counting)
    counting.reset()
    opened = root.topic("t")
    assert opened.head(refresh=False) == topic.head()
    # Asked at once, some of the last 16 are not begun any more when the first missing one is known.
    assert counting.counts["list"] == 1
    assert 42 <= counting.counts["get"] <= 48
    for _ in range(20):
        publish(topic, 1)
    counting.reset()
    assert opened.head().version == 60
    assert 21 <= counting.counts["get"] <= 33
    counting.reset()
    assert opened.head().version == 60
    assert counting.counts == {"get": 1}


def test_a_commit_in_steady_state_costs_one_request() -> None:
    world, store, _, _ = setup()
    counting = CountingStore(store)
    topic = world.root(counting).topic("t")
    publish(topic)
    counting.reset()
    publish(topic)
    assert counting.counts == {"create": 1}
    counting.reset()
    topic.append_target()
    assert counting.counts == {"get": 1}


@pytest.mark.parametrize("what", ["head", "table", "head gone", "table gone"])
def test_a_damaged_checkpoint_costs_the_one_before(what: str, caplog: pytest.LogCaptureFixture) -> None:
    world, store, _, topic = setup()
    for _ in range(260):
        publish(topic, 1)
    expected = topic.head()
    name = next(
        n for n in checkpoints(store) if n.startswith(f"{255:020d}") and n.endswith("json" if "head" in what else "w")
    )
    key = checkpoint_prefix("t") + name
    if "gone" in what:
        store.delete(key)
    else:
        data = bytearray(store.get(key))
        data[len(data) // 2] ^= 1
        store.replace(key, bytes(data))
    with caplog.at_level(logging.WARNING, "sparklog.log"):
        if what == "table gone":
            store.delete(checkpoint_key("t", 255))
        opened = other(world, store)
        assert opened.head() == expected
        assert opened.snapshot().slices.all().base.tolist() == list(range(260))
    assert ("checkpoint" in caplog.text) == ("gone" not in what)


def test_without_a_readable_checkpoint_and_without_commits_the_topic_is_corrupt() -> None:
    world, store, _, topic = setup()
    for _ in range(130):
        publish(topic, 1)
    collect(store, 128)
    assert other(world, store).head().version == 130
    key = checkpoint_key("t", 127)
    store.replace(key, store.get(key)[:-5])
    with pytest.raises(Corrupt, match=r"commit 0 of topic 't' is missing, and no checkpoint up to version 127"):
        other(world, store)


def test_a_checkpoint_from_a_newer_release_is_not_passed_over() -> None:
    world, store, _, topic = setup()
    for _ in range(130):
        publish(topic, 1)
    key = checkpoint_key("t", 127)
    body = store.get(key).replace(b'"format":1', b'"format":9')
    store.replace(key, body)
    with pytest.raises(BadRequest, match="has format 9, this sparklog reads format 1"):
        other(world, store)


@pytest.mark.parametrize("label", ["create:checkpoint", "list:checkpoint", "list:other"])
@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_failing_to_write_a_checkpoint_does_not_fail_the_commit(label: str, kind: FaultKind) -> None:
    world, store, _, topic = setup()
    for _ in range(126):
        publish(topic, 1)
    failing = faulty(world, store, {label: Fault(kind)})
    assert publish(failing, 1).version == 127
    assert publish(failing, 1).version == 128
    assert topic_records(world, store) == 128


def test_a_table_written_and_its_head_lost_is_only_an_orphan() -> None:
    world, store, _, topic = setup()
    for _ in range(126):
        publish(topic, 1)
    failing = faulty(world, store, {("create:checkpoint", 1): Fault(FaultKind.CRASH_BEFORE)})
    with pytest.raises(Crash):
        publish(failing, 1)
    assert [name[-6:] for name in checkpoints(store)] == [".arrow"]
    survivor = other(world, store)
    assert publish(survivor, 1).version == 128
    assert len(checkpoints(store)) == 3
    assert other(world, store).snapshot().slices.all().base.tolist() == list(range(128))


def test_two_committers_write_one_checkpoint() -> None:
    world, store, _, topic = setup()
    for _ in range(120):
        publish(topic, 1)
    one, two = other(world, store), other(world, store)
    for _ in range(10):
        publish(one, 1)
        publish(two, 1)
    assert len([name for name in checkpoints(store) if name.endswith(".json")]) == 1
    assert one.head() == two.head()
    assert two.snapshot().slices.all().base.tolist() == list(range(140))


def test_a_reader_whose_checkpoint_was_removed_opens_afresh() -> None:
    world, store, _, topic = setup()
    for _ in range(130):
        publish(topic, 1)
    reader = other(world, store)
    for _ in range(130):
        publish(topic, 1)
    for name in checkpoints(store):
        if name.startswith(f"{127:020d}"):
            store.delete(checkpoint_prefix("t") + name)
    collect(store, 200)
    assert reader.head(refresh=False).version == 130
    assert reader.snapshot().slices.all().base.tolist() == list(range(260))


# -- damage


def damage(store: MemoryStore, version: int, change: Callable[[bytes], bytes]) -> str:
    key = commit_key("t", version)
    store.replace(key, change(store.get(key)))
    return key


@pytest.mark.parametrize("version", [0, 2, 3])
def test_a_damaged_commit_names_its_key(version: int) -> None:
    world, store, _, topic = setup()
    for _ in range(3):
        publish(topic)
    key = damage(store, version, lambda data: data.replace(b'"timeMs":1', b'"timeMs":2'))
    with pytest.raises(Corrupt, match="does not match its own CRC-32C; restore it") as error:
        other(world, store)
    assert error.value.file == key


def test_a_replaced_commit_breaks_the_chain() -> None:
    world, store, _, topic = setup()
    for _ in range(3):
        publish(topic)
    forged = replace(decode_commit(store.get(commit_key("t", 2)), "k", 2), commit_id="forged")
    damage(store, 2, lambda data: encode_commit(forged))
    with pytest.raises(Corrupt, match=r"the chain of commits is broken: commit 3 .*\(file t/_log"):
        other(world, store)


def test_a_commit_from_a_newer_release() -> None:
    world, store, _, topic = setup()
    publish(topic)
    body = store.get(commit_key("t", 1))
    store.create(commit_key("t", 2), body.replace(b'"format":1', b'"format":2'))
    with pytest.raises(BadRequest, match="has format 2"):
        topic.head()
    with pytest.raises(BadRequest, match="has format 2"):
        publish(topic)


# -- transactions and other intents


def test_every_commit_records_decisions() -> None:
    world, store, _, _ = setup()
    root = world.root(store)
    topic = root.topic("t")
    publish(topic, 3, txn=Txn("t", 1))
    assert topic.head().last_stable().tolist() == [0, 0]
    asked: list[int] = []

    def resolver(head: object) -> Sequence[Resolved]:
        asked.append(1)
        return (Resolved("t", 1, (1,)),)

    root.resolver = resolver
    publish(topic, 2, name="y")
    publish(topic, 2, name="z")
    assert topic.head().last_stable().tolist() == [7, 0]
    assert asked == [1]


def test_an_alter_that_loses_to_the_same_alter() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = Hooked(store)
    topic = world.root(hooked).topic("t")
    hooked.before = lambda: rival.alter(configs={"retention.ms": 7}) and None
    with pytest.raises(Conflict, match=r"config retention.ms of topic 't' was changed by somebody else"):
        topic.alter(configs={"retention.ms": 5})
    hooked.before = lambda: rival.alter(configs={"segment.ms": 7}) and None
    assert topic.alter(configs={"retention.ms": 5}).configs.retention_ms == 5


def test_a_switch_to_compact_between_upload_and_commit() -> None:
    world, store, _, _ = setup()
    rival = other(world, store)
    hooked = Hooked(store)
    topic = world.root(hooked).topic("t")
    hooked.before = lambda: rival.alter(configs={"cleanup.policy": "compact"}) and None
    with pytest.raises(BadRequest, match="is compacted: every record needs a key"):
        append(topic, (0, 3), flags=1)
    assert topic_records(world, store) == 0


def test_an_append_to_a_topic_deleted_meanwhile() -> None:
    world, store, root, _ = setup()
    hooked = Hooked(store)
    topic = world.root(hooked).topic("t")
    hooked.before = lambda: root.delete_topic("t")
    with pytest.raises(NotFound, match="was deleted"):
        publish(topic)

    def again() -> None:
        root.create_topic("t")

    root.create_topic("t")
    late = world.root(hooked).topic("t")
    target = late.append_target()
    root.delete_topic("t")
    root.create_topic("t")
    with pytest.raises(Conflict, match="deleted and created again"):
        late.commit_append([file_of([(0, 1)])], target)


def test_crcs_of_the_chain() -> None:
    _, store, _, topic = setup()
    publish(topic)
    first, second = store.get(commit_key("t", 0)), store.get(commit_key("t", 1))
    assert decode_commit(second, "k", 1).prev_crc == fields.crc32c.crc32c(first)
    assert topic.head().crc == fields.crc32c.crc32c(second)
