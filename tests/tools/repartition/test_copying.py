"""The copy of a topic: its contents, kills and repeated runs, and rejected arguments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sparklog.api import compact
from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, Unavailable
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import open_root
from sparklog.retention.vacuum import UpkeepIntent
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import DAY_MS
from sparklog.tools.repartition import Copying, repartition
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.support.counted_root import CountedRoot
from tests.support.crash_points import changes
from tests.support.read_only import read_only
from tests.tools.repartition.repartition_world import RepartitionWorld, check_copy, records_of


def test_request_counts_match_the_cost_page(tmp_path: Path) -> None:
    """The counts of docs/reference/cost.md include those of the scan of a commit."""
    counted_root = CountedRoot("bucket", tmp_path)
    old = counted_root.topic(2, name="old")
    old.append({"key": ["a", "b"], "value": ["1", "2"]})

    def spent(groups: bool = False) -> tuple[int, int, int]:
        counted_root.store.reset()
        repartition(counted_root.root, "old", "new", partitions=3, move_groups=groups)
        counts = counted_root.store.counts
        return (
            counts["create"] + counts["writer"],
            counts["get"] + counts["stat"],
            counts["list"] + counts["list_folders"],
        )

    spent()
    assert spent() == (0, 3, 0)
    old.append({"key": ["a", "b"], "value": ["1", "2"]})
    puts, gets, lists = spent()
    assert (puts, lists) == (1, 0)
    assert gets <= 8
    Groups(counted_root.root).group("g").alter({"old": {0: 1, 1: 1}})
    spent(groups=True)
    Groups(counted_root.root).group("g").alter({"old": dict(enumerate(old.log.state().log_end.tolist()))})
    puts, gets, lists = spent(groups=True)
    assert puts == 1
    assert gets <= 15
    assert lists <= 3


FILES = {"inline.records.bytes": "0"}


class TestCopy:
    @pytest.mark.parametrize(("before", "after"), [(1, 4), (3, 5), (6, 2)])
    def test_each_record_is_copied_once_to_kafkas_partition(self, before: int, after: int) -> None:
        world = RepartitionWorld(before)
        for number in range(5):
            world.append(by_hand=number == 3)
        made = world.copy(after, step_bytes=500)
        root = world.root()
        check_copy(root, after)
        assert (made.records, made.total, made.created, made.waiting) == (200, 200, True, 0)
        assert root.topic("new").log.state().version > 4
        assert root.topic("new").log.state().partitions == after
        again = world.copy(after)
        assert (again.records, again.total, again.created) == (0, 200, False)
        world.append(50)
        assert world.copy(after).total == 250
        check_copy(world.root(), after)

    def test_configs_and_timestamps_are_copied(self) -> None:
        configs = {
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.before.max.ms": "1000",
            "segment.bytes": "5000",
        }
        world = RepartitionWorld(configs=configs)
        for _ in range(3):
            world.now_ms += DAY_MS
            world.append()
        world.now_ms += DAY_MS
        world.copy()
        root = world.root()
        check_copy(root, 5)
        assert dict(root.topic("new").log.state().configs.explicit) == configs
        compact(root, topics=["new"], roll=True)
        check_copy(world.root(), 5)
        assert verify_root(world.store).sound
        world.append(topic="new")
        assert max(row["timestamp"].timestamp() for row in root.topic("new").scan().to_table().to_pylist()) * 1000 == (
            world.now_ms
        )

    def test_aborted_records_are_skipped_and_open_transactions_delay_the_copy(self) -> None:
        world = RepartitionWorld()
        root = world.root()
        for number, end in enumerate(("commit", "abort", "commit", "abort")):
            transaction = transactional(root, f"job {number}").begin()
            transaction.append("old", world.rows([b"key 1", b"key 2", None]))
            transaction._prepare_topics()
            getattr(transaction, end)()
        world.append()
        open_one = transactional(root, "open").begin()
        open_one.append("old", world.rows([b"key 1", b"key 2", b"key 3", b"key 4"]))
        open_one._prepare_topics()
        world.append()
        made = world.copy()
        assert made.records >= 46
        assert 4 <= made.waiting <= 44
        assert made.records == root.topic("old").scan().to_table().num_rows
        check_copy(world.root(), 5)
        open_one.abort()
        rest = world.copy()
        assert (rest.total, rest.waiting) == (86, 0)
        check_copy(world.root(), 5)

    def test_compacted_topic_with_gaps_and_a_log_start(self) -> None:
        world = RepartitionWorld(configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        root = world.root()
        for _ in range(4):
            root.topic("old").append(world.rows([b"a", b"b", b"c", b"d", b"e", b"f"]))
        compact(root, roll=True)
        root.topic("old").append(world.rows([b"a", b"b"]))
        world.copy()
        check_copy(world.root(), 5)
        root.topic("old").alter(configs={"cleanup.policy": "compact,delete"})
        root.topic("old").delete_records({0: root.topic("old").bounds()[0].log_end})
        root.topic("old").append(world.rows([b"a", b"b", b"c"]))
        assert world.copy().records == 3

    def test_copy_with_concurrent_retention(self) -> None:
        world = RepartitionWorld(1, FILES)
        for _ in range(10):
            world.append()
        done: list[int] = []

        def expire(records: int, nbytes: int, of_nbytes: int) -> None:
            # Files that have not been copied yet are deleted as well.
            if nbytes and not done:
                world.topic("old").delete_records({0: 320})
                paths = world.topic("old").log.snapshot().slices.paths()
                for info in list(world.store.list("old/append/")):
                    if info.key.removeprefix("old/") not in paths:
                        world.store.delete(info.key)
            done.extend([records] if nbytes else [])

        copy = begun(world)
        copy.run(1_000, expire)
        assert len(done) > 2
        assert 80 < done[-1] < 400
        names = {record.headers[0] for rows in records_of(world.root(), "new").values() for record in rows.values()}
        assert {("name", b"%d" % number) for number in range(320, 400)} <= names

    def test_topic_with_added_partitions_is_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        world = RepartitionWorld(2, {"retention.ms": "-1"})
        world.append()
        world.copy()
        assert not caplog.records
        # Partitions are added during the copy, and the new partitions are copied as well.
        world.topic("old").alter(partitions=7)
        world.append(100)
        assert world.copy().total == 140
        check_copy(world.root(), 5)
        world.root().delete_topic("new")
        world.copy()
        assert [record.getMessage() for record in caplog.records] == [
            "topic old had 2 partitions earlier, so the relative order of records of a key may be unknown"
        ]


def story(world: RepartitionWorld, store: FaultyStore) -> None:
    """The killed work: a copy in several steps, including one file, and groups."""
    world.copy(root=world.root(store), groups=True)


def furnished() -> RepartitionWorld:
    world = RepartitionWorld(2, {"inline.records.bytes": "1500"})
    for number in range(3):
        world.append(30 + 60 * (number == 1))
    world.group("half", old={0: 30, 1: 20})
    return world


@pytest.fixture(scope="module")
def labels() -> list[str]:
    """Return the requests of the story without faults."""
    seen: list[str] = []

    def watch(call: Call) -> Fault | None:
        seen.append(call.label)
        return None

    world = furnished()
    story(world, FaultyStore(world.store, watch, world.sleep))
    return seen


def die_at(point: int, kind: FaultKind, labels: list[str]) -> None:
    """Crash at a request, and check that the next run copies each record once."""
    world = furnished()

    def die(call: Call) -> Fault | None:
        return Fault(kind) if call.number == point else None

    # A request that finds nothing has no state after it.
    with suppress(Crash):
        story(world, FaultyStore(world.store, die, world.sleep))
        assert kind is FaultKind.CRASH_AFTER
        assert not changes(labels[point])
    world.append(10)
    made = world.copy(groups=True)
    assert made.total == 160
    check_copy(world.root(), 5)
    (half,) = made.groups
    assert not half.problem


class TestKilled:
    def test_copy_killed_after_each_change(self, labels: list[str]) -> None:
        assert sum(label == "create:commit" for label in labels) > 3
        assert "close:append" in labels
        for point, label in enumerate(labels):
            if changes(label):
                die_at(point, FaultKind.CRASH_AFTER, labels)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
    def test_copy_killed_at_any_request(self, kind: FaultKind, labels: list[str]) -> None:
        for point in range(len(labels)):
            die_at(point, kind, labels)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
    def test_copy_with_a_lost_response(self, kind: FaultKind, labels: list[str]) -> None:
        for point in [number for number, label in enumerate(labels) if label in ("create:commit", "close:append")]:
            world = furnished()

            def fail(call: Call, point: int = point) -> Fault | None:
                return Fault(kind) if call.number == point else None

            try:
                story(world, FaultyStore(world.store, fail, world.sleep))
            except Unavailable:
                world.copy()
            check_copy(world.root(), 5)
            assert world.copy().total == 150

    def test_two_concurrent_copies(self) -> None:
        world = furnished()
        other = world.root()
        taken: list[int] = []

        def interrupt(call: Call) -> Fault | None:
            # Just before a commit, the other run is faster and has steps of another size.
            if call.label == "create:commit" and call.key.startswith("new/") and call.nth in (1, 3):
                taken.append(world.copy(root=other, step_bytes=2_000 if call.nth == 1 else 800).records)
                if call.nth == 1:
                    world.append(60)
            return None

        root = world.root(FaultyStore(world.store, interrupt, world.sleep))
        first = world.copy(root=root)
        second = world.copy(root=root)
        assert taken[0] > 0
        assert first.records + second.records + sum(taken) == second.total == 210
        check_copy(world.root(), 5)


def with_other_records(world: RepartitionWorld) -> None:
    world.copy()
    world.append(3, topic="new")
    world.append(2)


def created_again(world: RepartitionWorld) -> None:
    world.copy()
    world.root().delete_topic("old")
    world.root().create_topic("old", partitions=3)
    world.append()


def forgotten(world: RepartitionWorld) -> None:
    world.copy()
    world.now_ms += 91 * DAY_MS
    log = world.topic("new").log
    log.commit(UpkeepIntent(world.now_ms))


class TestRejected:
    @pytest.mark.parametrize(
        ("prepare", "error", "message"),
        [
            (lambda world: world.root().delete_topic("old"), NotFound, "topic 'old' does not exist"),
            (
                lambda world: world.root().create_topic("new", partitions=5),
                Conflict,
                "was not created by repartitioning",
            ),
            (lambda world: world.copy(4), Conflict, "was created with 4 partitions, not 5; use 4 partitions"),
            (with_other_records, Conflict, "has 3 records of other writers"),
            (created_again, Conflict, "was not created by repartitioning topic 'old'"),
            (forgotten, Conflict, "was not created by repartitioning topic 'old'"),
        ],
    )
    def test_invalid_arguments_fail_with_one_line_and_no_changes(
        self, prepare: Callable[[RepartitionWorld], object], error: type[SparklogError], message: str
    ) -> None:
        world = RepartitionWorld()
        world.append()
        prepare(world)
        before = sorted(info.key for info in world.store.list(""))
        with pytest.raises(error, match=message) as raised:
            world.copy()
        assert "\n" not in str(raised.value)
        assert sorted(info.key for info in world.store.list("")) == before

    def test_invalid_names_and_numbers_are_rejected(self) -> None:
        world = RepartitionWorld()
        for name, partitions, message in (("old", 3, "another name"), ("new", 0, "1 to"), ("a/b", 3, "a/b")):
            with pytest.raises(BadRequest, match=message):
                repartition(world.root(), "old", name, partitions=partitions)
        with pytest.raises(SparklogError, match="differs only in case"):
            repartition(world.root(), "old", "OLD", partitions=3)
        assert world.root().topics() == ["old"]

    def test_copy_to_a_read_only_root_is_rejected(self) -> None:
        world = RepartitionWorld()
        world.append()
        with pytest.raises(Unavailable):
            world.copy(root=open_root(read_only(world.store), env=world.env()))
        assert world.root().topics() == ["old"]

    def test_copy_fails_if_the_source_topic_is_recreated(self) -> None:
        world = RepartitionWorld(1, FILES)
        for _ in range(6):
            world.append()

        def again(records: int, nbytes: int, of_nbytes: int) -> None:
            if nbytes and world.topic("old").bounds()[0].log_end == 240:
                world.root().delete_topic("old")
                world.root().create_topic("old")
                for info in list(world.store.list("old/append/")):
                    world.store.delete(info.key)

        with pytest.raises(NotFound, match="deleted and recreated while it was being read"):
            begun(world).run(500, again)
        assert 0 < world.topic("new").scan().to_table().num_rows < 240


def begun(world: RepartitionWorld) -> Copying:
    root = world.root()
    copy = Copying(root, root.topic("old").log.read_snapshot(), "new", 2)
    copy.create()
    return copy
