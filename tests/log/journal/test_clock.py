"""Times of commits after a clock jump: later times are not pinned, and versions are found by time."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import pyarrow as pa
import pytest

from sparklog.errors import NotFound
from sparklog.log.decisions.decision import BY_OWNER
from sparklog.log.journal.clocks import MAX_AHEAD_MS, latest_at, next_times
from sparklog.log.journal.documents import document_of
from sparklog.log.journal.names import commit_key
from sparklog.log.state.history import History
from sparklog.log.state.slices import SliceFlag
from sparklog.log.topic.appending import write_rows
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.root import Root, open_root
from sparklog.log.write.append_target import AppendOutcome
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_root
from sparklog.testing.world import START_MS, World
from tests.log.topics import append

DAY = 86_400_000
YEAR = 365 * DAY


@dataclass(frozen=True)
class Made:
    """A commit with only its times."""

    time_ms: int
    clock_ms: int | None = None
    clock_since: int | None = None

    @property
    def created_ms(self) -> int:
        return self.time_ms if self.clock_ms is None else self.clock_ms


def log_of(clocks: list[tuple[int, int]]) -> list[Made]:
    """Return commits created at these times of the writer's clock and the store's clock."""
    log = [Made(0)]
    for number, (now_ms, store_ms) in enumerate(clocks, 1):
        times = next_times(log[-1], number, now_ms, store_ms)
        log.append(Made(**times))
    return log


def test_commits_have_no_clock_fields_without_a_jump() -> None:
    log = log_of([(100, 100), (90, 120), (90 + MAX_AHEAD_MS, 100), (130, 130)])
    assert [each.created_ms for each in log] == [0, 100, 100, 90 + MAX_AHEAD_MS, 90 + MAX_AHEAD_MS]
    assert {(each.clock_ms, each.clock_since) for each in log} == {(None, None)}


def test_commit_times_after_a_clock_jump_are_not_pinned() -> None:
    log = log_of([(100, 100), (YEAR, YEAR), (200, 200), (150, 250), (YEAR + 5, YEAR + 5)])
    assert log[3:] == [Made(YEAR, 200, 3), Made(YEAR, 200, 3), Made(YEAR + 5, None, 3)]


def test_commit_times_do_not_decrease_with_a_slow_writer_clock() -> None:
    hour = 3_600_000
    log = log_of([(10 * hour, 10 * hour), (9 * hour, 10 * hour)])
    assert log[2] == Made(10 * hour)
    log = log_of([(YEAR, YEAR), (9 * hour, 10 * hour), (10 * hour, 10 * hour)])
    assert [each.created_ms for each in log[2:]] == [9 * hour, 10 * hour]


@pytest.mark.parametrize("seed", range(30))
def test_latest_at_finds_the_version_despite_clock_jumps(seed: int) -> None:
    source = random.Random(seed)
    now, clocks = 10 * DAY, []
    for _ in range(source.randint(1, 60)):
        now += source.randint(0, DAY)
        wrong = source.choice([0, 0, 0, 0, source.randint(-9 * DAY, YEAR)])
        clocks.append((now + wrong, now + wrong))
    log = log_of(clocks)
    assert [each.time_ms for each in log] == sorted(each.time_ms for each in log)
    first = source.randrange(len(log))
    for _ in range(50):
        time_ms = source.choice([source.randint(0, now + DAY), source.choice(log).created_ms])
        made = [at for at in range(first, len(log)) if log[at].created_ms <= time_ms]
        assert latest_at(log.__getitem__, first, len(log) - 1, time_ms) == (made[-1] if made else first - 1)


def jumped(world: World, root: Root) -> None:
    """Write a commit before the jump, one a year later, and two after the jump."""
    topic = root.create_topic("t", configs={"message.timestamp.type": "LogAppendTime", "retention.ms": "60000"})
    append(topic, (0, 1), name="before", flags=SliceFlag.LOG_APPEND_TIME)
    world.now_ms += 1000 + YEAR
    append(open_root(root.store, env=world.env()).topic("t"), (0, 1), name="during", flags=SliceFlag.LOG_APPEND_TIME)
    world.set_wall_clock(-YEAR)
    for name in ("after", "later"):
        world.now_ms += 10_000
        append(open_root(root.store, env=world.env()).topic("t"), (0, 1), name=name, flags=SliceFlag.LOG_APPEND_TIME)


def test_log_append_time_versions_and_retention_after_a_jump() -> None:
    world = World()
    root = world.root()
    jumped(world, root)
    topic = open_root(root.store, env=world.env()).topic("t")
    times = topic.log.snapshot().slices.all().append_time
    assert (times - START_MS).tolist() == [0, 1000 + YEAR, 11_000, 21_000]
    assert topic.describe().time_ms == START_MS + 21_000
    history = History(root.store, "t")
    for after_ms, version in ((0, 1), (10_999, 1), (11_000, 3), (21_000, 4), (2 * YEAR, 4)):
        assert history.version_at(START_MS + after_ms) == version
    with pytest.raises(NotFound, match="has no version at"):
        history.version_at(START_MS - 1)
    assert clone_topic(root, "t", "c", time_ms=START_MS + 12_000).version == 3
    stored = json.loads(document_of(root.store.get(commit_key("t", 3))))
    assert (stored["timeMs"], stored["clockMs"], stored["clockSince"]) == (START_MS + YEAR + 1000, START_MS + 11_000, 3)
    world.now_ms += DAY
    retain_root(root, Settings(now_ms=world.now_ms), topics=["t"])
    assert topic.log.state().log_start.tolist() == [4]


def test_appends_return_the_log_append_time_of_their_records_after_a_jump() -> None:
    """This also applies to appends that share a commit."""
    world = World()
    world.root().create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
    returned = list[int]()
    for ahead_ms in (0, YEAR, 1000 - YEAR):
        world.set_wall_clock(ahead_ms)
        log = world.topic("t").log
        first, *others = [write_rows(log, pa.table({"value": ["a"]})) for _ in range(3)]
        outcomes = [log.queue.publish(first), *log.queue._commit_all(others)]
        assert len({outcome.version for outcome in outcomes if isinstance(outcome, AppendOutcome)}) == 2
        returned += [outcome.time_ms for outcome in outcomes if isinstance(outcome, AppendOutcome)]
    assert returned == [START_MS] * 3 + [START_MS + YEAR] * 3 + [START_MS + 1000] * 3
    stored = world.topic("t").scan().to_table()["timestamp"]
    assert stored.cast(pa.int64()).to_pylist() == returned


def test_a_recreated_topic_continues_the_times_of_the_deleted_topic() -> None:
    world = World()
    root = world.root()
    jumped(world, root)
    root = open_root(root.store, env=world.env())
    root.delete_topic("t")
    world.now_ms += 1000
    state = root.create_topic("t").log.state()
    assert (state.time_ms, state.created_ms, state.clock_since) == (START_MS + YEAR + 1000, START_MS + 22_000, 3)


def test_entry_times_are_not_pinned_by_a_clock_jump() -> None:
    world = World()
    root = world.root()
    root.engine.decisions.log("x").abort(0, BY_OWNER)
    world.now_ms += YEAR
    open_root(root.store, env=world.env()).engine.decisions.log("x").abort(1, BY_OWNER)
    world.set_wall_clock(-YEAR)
    state = open_root(root.store, env=world.env()).engine.decisions.log("x").abort(2, BY_OWNER)
    assert (state.time_ms, state.created_ms, state.clock_since) == (START_MS + YEAR, START_MS, 2)
    assert open_root(root.store, env=world.env()).engine.decisions.log("x").refresh() == state
