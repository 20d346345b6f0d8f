"""Processes that sleep for days in the middle of a request while others go on and old commits are collected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.errors import Unavailable
from sparklog.log.state.writer_runs import WriterKey
from sparklog.testing.faulty_store import FaultKind
from sparklog.testing.world import DAY_MS, HOUR_MS
from tests.log.simulation.watched_world import WatchedWorld


def days(world: WatchedWorld, commits: int = 10, collected: int = 0, checkpoints_gone: int = 0) -> Callable[[], None]:
    """What goes on while a process sleeps for eight days: commits of others, and old ones are collected."""

    def pass_by() -> None:
        world.commits(commits)
        world.advance(8 * DAY_MS)
        if collected:
            world.collect(collected)
        for info in list(world.store.list("t/_log/checkpoints/"))[:checkpoints_gone]:
            world.store.delete(info.key)

    return pass_by


class TestStalls:
    """A number that was collected and is used again (SIGSTOP, a laptop's lid, retries below us)."""

    @pytest.mark.parametrize("collected", [2, 5])
    @pytest.mark.parametrize("key", [None, WriterKey("q", 0, "run")])
    def test_a_create_that_succeeds_on_a_collected_number_is_not_acknowledged(
        self, collected: int, key: WriterKey | None
    ) -> None:
        world = WatchedWorld()
        sleeper = world.process()
        target = sleeper.target()
        sleeper.at("create:commit", days(world, collected=collected))
        file = sleeper.upload(target, {1: 5})
        if collected == 5 and key is None:
            # The commits that would tell are gone: never a false yes, never a second copy.
            with pytest.raises(Unavailable, match="outcome is unknown"):
                sleeper.commit([file], target, key)
            assert world.times_named(file) == 0
        else:
            outcome = sleeper.commit([file], target, key)
            assert outcome.version == 11
            assert world.log.file_versions[file.path] == 11
            assert outcome.base == {1: 0}
        assert world.log.zombies, "the number was not used again: this tests nothing"

    @pytest.mark.parametrize("stands_still", ["none", "boot", "wall"])
    def test_a_stall_after_the_effect_is_found_in_the_log(self, stands_still: str) -> None:
        """One of the clocks may not see the sleep: Python's monotonic clock does not on Linux and macOS."""
        world = WatchedWorld()
        sleeper = world.process()
        target = sleeper.target()

        def away() -> None:
            days(world)()
            sleeper.asleep_ms = 8 * DAY_MS if stands_still == "boot" else 0
            sleeper.skew_ms = -8 * DAY_MS if stands_still == "wall" else 0

        sleeper.after("create:commit", away)
        outcome = sleeper.append({0: 5}, target)
        assert outcome.version == 1
        assert world.log.state.log_end == (15, 0)

    def test_a_commit_that_was_collected_meanwhile_is_known_by_the_chain(self) -> None:
        world = WatchedWorld()
        sleeper = world.process()
        target = sleeper.target()
        sleeper.after("create:commit", days(world, collected=2))
        outcome = sleeper.append({0: 5}, target)
        assert outcome.version == 1
        assert world.log.state.log_end == (15, 0)

    def test_nobody_is_fooled_by_a_zombie_under_the_same_number(self) -> None:
        """Ours was collected, then another sleeper's create took its number."""
        world = WatchedWorld()
        sleeper, other = world.process(), world.process()
        target = sleeper.target()
        others_target = other.target()

        def away() -> None:
            other.at("create:commit", days(world, collected=2))
            other.append({1: 1}, others_target)

        sleeper.after("create:commit", away)
        outcome = sleeper.append({0: 5}, target)
        assert world.log.zombies
        assert outcome.version == 1
        assert world.log.state.log_end == (15, 1)

    def test_a_lost_answer_and_a_zombie_under_the_same_number(self) -> None:
        """The answer was lost, we fell asleep, and when we look another sleeper's create has taken the number."""
        world = WatchedWorld()
        sleeper, other = world.process(), world.process()
        target = sleeper.target()
        others_target = other.target()

        def away() -> None:
            other.at("create:commit", days(world, collected=2))
            other.append({1: 1}, others_target)

        sleeper.fail("create:commit", FaultKind.ERROR_AFTER)
        sleeper.at("get:commit", away)
        outcome = sleeper.append({0: 5}, target)
        assert world.log.zombies
        assert outcome.version == 1
        assert world.log.state.log_end == (15, 1)

    def test_an_outcome_that_nobody_can_tell_any_more_is_unknown(self) -> None:
        world = WatchedWorld()
        sleeper = world.process()
        target = sleeper.target()
        sleeper.after("create:commit", days(world, 12, collected=8, checkpoints_gone=2))
        with pytest.raises(Unavailable, match=r"outcome is unknown.*check the log before you write again"):
            sleeper.append({0: 5}, target)
        assert world.log.state.log_end == (17, 0)

    def test_with_a_writer_key_the_state_knows_the_outcome(self) -> None:
        world = WatchedWorld()
        sleeper = world.process()
        target = sleeper.target()
        sleeper.after("create:commit", days(world, 12, collected=8, checkpoints_gone=2))
        outcome = sleeper.append({0: 5}, target, WriterKey("q", 3, "run"))
        assert (outcome.skipped, outcome.version) == (True, 1)
        assert world.log.state.log_end == (17, 0)

    def test_a_reader_that_slept_does_not_look_idle(self) -> None:
        world = WatchedWorld()
        reader = world.process()
        topic = reader.topic()
        assert topic.log.snapshot().version == 0
        days(world, collected=5)()
        assert topic.log.snapshot().version == 10

    def test_a_reader_that_slept_does_not_deliver_a_zombie(self) -> None:
        world = WatchedWorld()
        reader, sleeper = world.process(), world.process()
        topic, target = reader.topic(), sleeper.target()

        sleeper.at("create:commit", days(world, collected=2))
        sleeper.append({1: 5}, target)
        assert world.log.zombies
        state = topic.log.state()
        assert state.version == 11
        assert tuple(state.log_end.tolist()) == world.log.state.log_end

    def test_a_reader_that_falls_asleep_during_its_probe(self) -> None:
        world = WatchedWorld()
        reader = world.process()
        topic = reader.topic()

        reader.at("get:commit", days(world, collected=5))
        assert topic.log.state().version == 10

    def test_a_log_that_seems_to_go_back_is_not_believed(self) -> None:
        world = WatchedWorld()
        world.commits(2)
        reader = world.process()
        topic = reader.topic()
        assert topic.log.state().version == 2
        world.advance(2 * HOUR_MS)
        reader.hidden = lambda key: key.endswith("2.json")
        with pytest.raises(Unavailable, match="this process has already read beyond"):
            topic.log.state()
        reader.hidden = lambda key: False
        assert topic.log.state().version == 2
