"""Single interleavings that broke simpler protocols, each by name."""

from __future__ import annotations

from collections import Counter

import pytest

from sparklog.common import reached
from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, Unavailable
from sparklog.log.journal.documents import document_of
from sparklog.log.state.writer_runs import WriterKey
from sparklog.testing.faulty_store import Crash, FaultKind
from sparklog.testing.world import DAY_MS, HOUR_MS
from tests.log.simulation.watched_world import WatchedWorld
from tests.support.maintaining import maintain
from tests.support.simulation.scheduler import Actor, SimulatedWorld


class TestLostAnswers:
    def test_a_lost_answer_is_found_by_its_commit_id(self) -> None:
        for kind in (FaultKind.ERROR_AFTER, FaultKind.TWICE):
            world = WatchedWorld()
            driver = world.process()
            target = driver.target()
            driver.fail("create:commit", kind)
            outcome = driver.append({0: 3}, target)
            assert (outcome.version, outcome.base) == (1, {0: 0})
            assert world.log.state.log_end == (3, 0)

    def test_an_answer_lost_to_a_winner_is_based_again(self) -> None:
        world = WatchedWorld()
        driver = world.process()
        target = driver.target()
        driver.at("create:commit", lambda: world.commits(3))
        driver.fail("create:commit", FaultKind.ERROR_BEFORE)
        outcome = driver.append({0: 2, 1: 1}, target)
        assert outcome.base == {0: 3, 1: 0}
        assert world.log.state.log_end == (5, 1)

    def test_a_put_that_lands_after_its_writer_gave_up_is_whole_or_not_there(self) -> None:
        world = WatchedWorld()
        driver = world.process()
        target = driver.target()
        for skip in range(200):
            driver.fail("create:commit", FaultKind.LATE, 10**9, skip=skip)
        with pytest.raises(Unavailable, match="unknown"):
            driver.append({0: 1}, target)
        world.commits(1)
        driver.store.land()
        assert world.log.state.log_end == (1, 0)

    def test_the_same_number_again_when_exists_turns_out_absent(self) -> None:
        world = WatchedWorld()
        driver = world.process()
        target = driver.target()
        driver.fail("create:commit", FaultKind.FALSE_EXISTS)
        assert driver.append({0: 1}, target).version == 1

    def test_a_put_that_lands_after_a_stall_counts_as_it_lies_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The try before the stall lands with an older time: the next commit must be chained to those bytes."""
        world = WatchedWorld()
        driver = world.process()
        target = driver.target()
        driver.fail("create:commit", FaultKind.LATE, 10**9)
        driver.at("get:commit", lambda: world.advance(2 * HOUR_MS))
        driver.at("create:commit", driver.store.land, skip=1)
        counts: Counter[str] = Counter()
        monkeypatch.setattr(reached, "_counts", counts)
        outcome = driver.append({0: 1}, target)
        assert counts["journal: an earlier attempt of the writer succeeded late"] == 1
        assert outcome.version == 1
        assert driver.append({0: 1}, driver.target()).version == 2
        assert world.log.state.log_end == (2, 0)


class TestRegistryOnEveryBase:
    def test_a_zombie_and_its_successor_write_a_batch_once(self) -> None:
        world = WatchedWorld()
        zombie, driver = world.process(), world.process()
        before = zombie.target(), driver.target()
        zombie.at("create:commit", lambda: driver.append({0: 2}, before[1], WriterKey("q", 7, "run-2")))
        outcome = zombie.append({1: 2}, before[0], WriterKey("q", 7, "run-1"))
        assert world.log.state.log_end == (2, 0)
        assert world.log.batch_versions == {(before[0].topic_id, "q", 7): 1}
        assert outcome.skipped

    def test_a_restarted_driver_whose_answer_was_lost_skips(self) -> None:
        world = WatchedWorld()
        driver = world.process()
        driver.fail("create:commit", FaultKind.CRASH_AFTER)
        with pytest.raises(Crash):
            driver.append({0: 2}, driver.target(), WriterKey("q", 0, "run-1"))
        again = world.process()
        outcome = again.append({1: 2}, again.target(), WriterKey("q", 0, "run-2"))
        assert outcome.skipped
        assert world.log.state.log_end == (2, 0)


class TestUploadFloor:
    def raise_floor(self, world: WatchedWorld, version: int) -> None:
        maintain(world.process().topic(), floor=version)

    def test_a_file_begun_below_the_floor_is_refused(self) -> None:
        world = WatchedWorld()
        slow = world.process()
        target = slow.target()
        file = slow.upload(target, {0: 1})
        world.commits(3)
        self.raise_floor(world, 2)
        with pytest.raises(Conflict, match=r"below the retention floor 2.*write the records again"):
            slow.commit([file], target)
        assert world.times_named(file) == 0
        fresh = slow.target()
        assert slow.append({0: 1}, fresh).base == {0: 3}

    def test_a_floor_that_comes_during_the_commit_is_seen_on_the_new_base(self) -> None:
        world = WatchedWorld()
        slow = world.process()
        target = slow.target()

        def vacuum() -> None:
            world.commits(3)
            self.raise_floor(world, 2)

        slow.at("create:commit", vacuum)
        with pytest.raises(Conflict, match="retention floor"):
            slow.append({0: 1}, target)
        assert world.log.state.log_end == (3, 0)

    def test_the_floor_never_goes_back_and_outlives_the_topic(self) -> None:
        world = WatchedWorld()
        world.commits(4)
        self.raise_floor(world, 3)
        self.raise_floor(world, 1)
        admin = world.process()
        admin.root.delete_topic("t")
        admin.root.create_topic("t")
        assert admin.topic().log.state().floor == 3
        assert world.log.state.floor == 3

    def test_a_hold_below_the_floor_is_refused(self) -> None:
        from sparklog.log.state.commit import VersionLease

        world = WatchedWorld()
        world.commits(4)
        self.raise_floor(world, 3)
        topic = world.process().topic()
        with pytest.raises(Conflict, match="below the retention floor"):
            maintain(topic, leases={"clone": VersionLease(2)})
        maintain(topic, leases={"clone": VersionLease(3)})
        assert topic.log.state().leases == {"clone": VersionLease(3)}


class TestRegistry:
    def test_replays_gaps_and_old_checkpoints(self) -> None:
        world = WatchedWorld()
        driver = world.process()

        def write(batch: int, count: int, run: str = "run-1", **how: str) -> bool:
            key = WriterKey("q", batch, run, **how)  # type: ignore[arg-type]
            records = {0: count} if count else {}
            return driver.append(records, driver.target(), key).skipped

        assert write(0, 3) is False
        assert write(0, 3) is True
        assert write(4, 2) is False, "a higher batch is written, also after a gap"
        with pytest.raises(Conflict, match=r"replay mismatch: batch 4 .* has 3 records, .* has committed it with 2"):
            write(4, 3)
        with pytest.raises(Conflict, match="replay mismatch"):
            write(4, 0)
        assert write(4, 3, replay_mismatch="accept") is True
        with pytest.raises(Conflict, match="checkpoint is older than the log"):
            write(3, 2)
        assert world.log.state.log_end == (5, 0)

    def test_the_run_that_took_over_fences_the_one_before(self) -> None:
        world = WatchedWorld()
        old, new = world.process(), world.process()
        assert old.append({0: 1}, old.target(), WriterKey("q", 0, "run-1")).version == 1
        assert new.append({0: 1}, new.target(), WriterKey("q", 1, "run-2")).version == 2
        for batch in (1, 2):
            with pytest.raises(Fenced, match=r"run-1 .* superseded by run run-2"):
                old.append({0: 1}, old.target(), WriterKey("q", batch, "run-1"))
        assert world.log.state.log_end == (2, 0)

    def test_a_replay_that_is_skipped_takes_over_all_the_same(self) -> None:
        world = WatchedWorld()
        old, new = world.process(), world.process()
        old.append({0: 1}, old.target(), WriterKey("q", 0, "run-1"))
        assert new.append({0: 1}, new.target(), WriterKey("q", 0, "run-2")).skipped
        with pytest.raises(Fenced):
            old.append({0: 1}, old.target(), WriterKey("q", 1, "run-1"))
        assert new.append({0: 1}, new.target(), WriterKey("q", 1, "run-2")).base == {0: 1}

    def test_txn_versions_at_or_below_the_newest_are_skipped(self) -> None:
        world = WatchedWorld()
        job = world.process()
        skipped = [
            job.append({0: 1}, job.target(), WriterKey("job", version, mode="txn")).skipped for version in (5, 5, 3, 6)
        ]
        assert skipped == [False, True, True, False]
        assert world.log.state.log_end == (2, 0)

    def test_an_empty_batch_writes_no_commit(self) -> None:
        world = WatchedWorld()
        driver = world.process()
        driver.append({}, driver.target(), WriterKey("q", 0, "run-1"))
        assert world.log.state.version == 0

    def test_an_entry_that_was_used_again_does_not_expire(self) -> None:
        world = WatchedWorld()
        driver, keeper = world.process(), world.process()
        driver.append({0: 1}, driver.target(), WriterKey("idle", 0))
        driver.append({0: 1}, driver.target(), WriterKey("q", 0))
        topic = keeper.topic()
        idle = {name: entry.version for name, entry in topic.log.state().registry.items()}
        keeper.at("create:commit", lambda: driver.append({0: 1}, driver.target(), WriterKey("q", 1)))
        maintain(topic, expired=idle)
        assert set(world.process().topic().log.state().registry) == {"q"}
        assert driver.append({0: 1}, driver.target(), WriterKey("q", 1)).skipped
        assert world.log.state.log_end == (3, 0)

    def test_the_registry_survives_checkpoints_and_collection(self) -> None:
        world = WatchedWorld()
        driver = world.process()
        driver.append({0: 2}, driver.target(), WriterKey("q", 0, "run-1"))
        world.commits(12)
        world.collect(8)
        again = world.process()
        assert again.append({0: 2}, again.target(), WriterKey("q", 0, "run-2")).skipped


class TestOpening:
    def test_a_damaged_checkpoint_costs_the_one_before(self) -> None:
        world = WatchedWorld()
        world.commits(9)
        heads = [info.key for info in world.store.list("t/_log/checkpoints/") if info.key.endswith(".json")]
        assert len(heads) >= 2
        for damage in (b"", b"{}", world.store.get(heads[-1])[:-5]):
            world.store.replace(heads[-1], damage)
            snapshot = world.process().topic().log.snapshot()
            assert snapshot.version == 9
            assert tuple(snapshot.state.log_end.tolist()) == world.log.state.log_end

    def test_a_damaged_table_costs_the_checkpoint_before(self) -> None:
        world = WatchedWorld()
        world.commits(9)
        tables = [info.key for info in world.store.list("t/_log/checkpoints/") if info.key.endswith(".arrow")]
        world.store.replace(tables[-1], world.store.get(tables[-1])[:-1] + b"x")
        snapshot = world.process().topic().log.snapshot()
        assert len(snapshot.slices) == 9

    def test_a_commit_that_is_missing_under_a_checkpoint_that_cannot_be_read_is_corrupt(self) -> None:
        world = WatchedWorld()
        world.commits(5)
        heads = [info.key for info in world.store.list("t/_log/checkpoints/") if info.key.endswith(".json")]
        world.store.replace(heads[-1], b"x")
        world.collect(3)
        with pytest.raises(Corrupt, match=r"missing.*restore"):
            world.process().topic()

    def test_a_crash_between_table_and_head_harms_nothing(self) -> None:
        for skip, kind in ((0, FaultKind.CRASH_AFTER), (1, FaultKind.CRASH_BEFORE), (1, FaultKind.CRASH_AFTER)):
            world = WatchedWorld()
            writer = world.process()
            for _ in range(2):
                writer.append({0: 1}, writer.target())
            writer.fail("create:checkpoint", kind, skip=skip)
            with pytest.raises(Crash):
                writer.append({0: 1}, writer.target())
            assert world.log.state.version == 3, "the commit before the checkpoint stands"
            world.commits(1)
            assert world.process().topic().log.snapshot().version == 4

    def test_a_checkpoint_that_cannot_be_written_does_not_fail_the_commit(self) -> None:
        world = WatchedWorld()
        writer = world.process()
        for skip in range(20):
            writer.fail("create:checkpoint", FaultKind.ERROR_BEFORE, skip=skip)
        for number in range(1, 7):
            assert writer.append({0: 1}, writer.target()).version == number
        assert list(world.store.list("t/_log/checkpoints/")) == []

    def test_damaged_commits_are_named(self) -> None:
        world = WatchedWorld()
        world.commits(2)
        key = "t/_log/00000000000000000001.json"
        whole = world.store.get(key)
        # What follows the document is for those who read it.
        document = document_of(whole)
        for damaged in (document[:-1], document[:-2], whole.replace(b'"append"', b'"appenb"'), b"", b" " + whole):
            world.store.replace(key, damaged)
            with pytest.raises(Corrupt, match=r"00000000000000000001\.json"):
                world.process().topic()

    def test_a_commit_of_another_chain_is_found(self) -> None:
        world = WatchedWorld()
        world.commits(2)
        other = WatchedWorld()
        other.process().append({0: 7})
        key = "t/_log/00000000000000000001.json"
        world.store.replace(key, other.store.get(key))
        with pytest.raises(Corrupt, match="chain"):
            world.process().topic()


def test_sixteen_writers_do_not_starve() -> None:
    """At 50 ms a request: every writer gets its commits in, none needs more than 64 tries for one."""
    world = SimulatedWorld(11, latency_ms=6)
    commits = 8
    most_tries = []

    def body(actor: Actor) -> None:
        from sparklog.log.topic.root import open_root
        from tests.log.simulation.workload import upload

        store = actor.store()
        topic = open_root(store, create=True, env=actor.env).ensure_topic("t", partitions=2)
        for _ in range(commits):
            target = topic.log.append_target()
            files = upload(store, actor, target, 2)
            before = store.calls["create:commit"]
            topic.log.commit_append(files, target)
            most_tries.append(store.calls["create:commit"] - before)

    for number in range(16):
        world.spawn(f"writer-{number}", body)
    world.run()
    assert len(most_tries) == 16 * commits
    assert max(most_tries) <= 64
    assert sum(most_tries) / len(most_tries) < 12


class TestClocks:
    def test_a_writer_far_ahead_refuses(self) -> None:
        world = WatchedWorld()
        fast = world.process(skew_ms=6 * 60_000)
        target = fast.target()
        with pytest.raises(Unavailable, match="360 s ahead"):
            fast.append({0: 1}, target)
        assert world.log.state.version == 0
        fast.skew_ms = 4 * 60_000
        assert fast.append({0: 1}, target).version == 1

    def test_a_clock_that_jumps_ahead_is_noticed(self) -> None:
        world = WatchedWorld()
        writer = world.process()
        writer.append({0: 1})
        writer.skew_ms = 10 * 60_000
        with pytest.raises(Unavailable, match="ahead"):
            writer.append({0: 1})

    def test_commit_time_never_goes_back(self) -> None:
        world = WatchedWorld()
        ahead, behind = world.process(skew_ms=4 * 60_000), world.process(skew_ms=-HOUR_MS)
        ahead.append({0: 1})
        behind.append({0: 1})
        times = [state.time_ms for state in world.log.states]
        assert times[2] == times[1] > times[0]


class TestCaches:
    def test_exists_then_absent_is_waited_for(self) -> None:
        """A directory cache of a network file system hides the winner for half a minute."""
        world = WatchedWorld()
        writer = world.process()
        target = writer.target()
        writer.at("create:commit", lambda: world.commits(1))
        hidden_until = world.now_ms + 30_000

        writer.hidden = lambda key: world.now_ms < hidden_until
        assert writer.append({0: 1}, target).version == 2
        assert world.now_ms >= hidden_until

    def test_exists_then_absent_for_longer_is_unavailable(self) -> None:
        world = WatchedWorld()
        writer = world.process()
        target = writer.target()
        writer.at("create:commit", lambda: world.commits(1))
        writer.hidden = lambda key: True
        began = world.now_ms
        with pytest.raises(Unavailable, match="unknown"):
            writer.append({0: 1}, target)
        assert 90_000 <= world.now_ms - began < 300_000


class TestPureState:
    def test_state_does_not_depend_on_the_reader(self) -> None:
        world = WatchedWorld()
        driver = world.process()
        driver.append({0: 1}, writer=WriterKey("q", 0, "run"))
        world.commits(6)
        soon = world.process().topic().log.snapshot()
        world.advance(400 * DAY_MS)
        late = world.process(skew_ms=-90 * DAY_MS).topic().log.snapshot()
        assert soon.state == late.state
        for info in list(world.store.list("t/_log/checkpoints/")):
            world.store.delete(info.key)
        replayed = world.process().topic().log.snapshot()
        assert replayed.state == soon.state
        names = ("partition", "base", "end", "position", "records", "crc", "append_time")
        for name in names:
            assert getattr(replayed.slices.all(), name).tolist() == getattr(soon.slices.all(), name).tolist()


class TestCreating:
    def test_create_create(self) -> None:
        for explicit in (True, False):
            world = WatchedWorld()
            first, second = world.process(), world.process()
            second.at("create:commit", lambda first=first: first.root.create_topic("n", partitions=3))
            if explicit:
                with pytest.raises(Conflict, match="already exists, with 3 partitions"):
                    second.root.create_topic("n", partitions=5)
            else:
                assert second.root.ensure_topic("n", partitions=5).log.state().partitions == 3
            assert len(world.model.topic("n").state.log_end) == 3

    def test_a_name_created_again_is_another_topic(self) -> None:
        world = WatchedWorld()
        writer, admin = world.process(), world.process()
        target = writer.target()
        file = writer.upload(target, {0: 1})
        admin.root.delete_topic("t")
        with pytest.raises(NotFound, match="deleted"):
            writer.commit([file], target)
        admin.root.create_topic("t", partitions=2)
        assert writer.topic().log.state().topic_id != target.topic_id
        with pytest.raises(Conflict, match="deleted and recreated"):
            writer.commit([file], target)
        assert admin.topic().log.state().version == 2
        assert admin.append({0: 1}).base == {0: 0}

    def test_a_topic_created_again_during_the_commit(self) -> None:
        world = WatchedWorld()
        writer, admin = world.process(), world.process()
        target = writer.target()

        def again() -> None:
            admin.root.delete_topic("t")
            admin.root.create_topic("t", partitions=2)

        writer.at("create:commit", again)
        with pytest.raises(Conflict, match="recreated"):
            writer.append({0: 1}, target)
        assert world.log.state.log_end == (0, 0)

    def test_of_two_deletes_one_succeeds(self) -> None:
        world = WatchedWorld()
        first, second = world.process(), world.process()
        second.topic()
        second.at("create:commit", lambda: first.root.delete_topic("t"))
        with pytest.raises(NotFound):
            second.root.delete_topic("t")
        assert world.log.state.deleted

    def test_null_keys_are_looked_for_again_when_a_switch_to_compact_came_between(self) -> None:
        world = WatchedWorld()
        writer, admin = world.process(), world.process()
        target = writer.target()
        writer.at("create:commit", lambda: admin.topic().alter(configs={"cleanup.policy": "compact"}))
        with pytest.raises(BadRequest, match=r"compacted.*must have a key"):
            writer.append({0: 1}, target, null_keys=True)
        assert writer.append({0: 1}, target).base == {0: 0}
