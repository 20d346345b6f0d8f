"""Plans of offset resets: every scenario, and the limits of offsets."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, NotFound
from sparklog.groups.group import Group
from sparklog.groups.lag import Groups
from sparklog.groups.reset import (
    NewOffset,
    Scenario,
    To,
    parse_duration,
    parse_offsets_file,
    plan_reset,
    with_offsets,
)
from sparklog.testing.world import START_MS
from tests.support.topics_world import TopicsWorld

HOUR = 3_600_000
ALL = {"a": None}


@pytest.fixture
def group() -> Group:
    """Return a group with topic a, whose partition 0 has offsets 2 to 6 (one record per hour) and partition 1 offset 0.

    The committed offset of partition 0 is 4.
    """
    world = TopicsWorld(partitions=2)
    topic = world.topic("a")
    rows = [(0, START_MS + HOUR * at) for at in range(6)] + [(1, START_MS)]
    topic.append(
        pa.table(
            {
                "value": [b"x"] * len(rows),
                "partition": pa.array([partition for partition, _ in rows], pa.int32()),
                "timestamp": pa.array([time for _, time in rows], pa.int64()),
            }
        )
    )
    topic.delete_records({0: 2})
    found = Groups(world.root()).group("g")
    found.alter({"a": {0: 4}})
    return found


def planned(group: Group, scenario: Scenario, topics: object = ALL, now_ms: int = START_MS + 6 * HOUR) -> list[int]:
    return [item.new for item in plan_reset(group, scenario, topics, now_ms=now_ms)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (Scenario(To.EARLIEST), [2, 0]),
        (Scenario(To.LATEST), [6, 1]),
        (Scenario(To.CURRENT), [4, 1]),
        (Scenario(To.OFFSET, 5), [5, 1]),
        (Scenario(To.OFFSET, 0), [2, 0]),
        (Scenario(To.DATETIME, START_MS + 3 * HOUR), [3, 1]),
        (Scenario(To.DATETIME, START_MS + 3 * HOUR + 1), [4, 1]),
        (Scenario(To.DATETIME, START_MS), [2, 0]),
        (Scenario(To.DURATION, 2 * HOUR), [4, 1]),
        (Scenario(To.DURATION, -HOUR), [6, 1]),
        (Scenario(To.FILE, offsets={("a", 1): 1, ("a", 0): 3}), [3, 1]),
    ],
)
def test_each_scenario_plans_its_offsets_and_changes_nothing(
    group: Group, scenario: Scenario, expected: list[int]
) -> None:
    before = group.committed()
    assert planned(group, scenario) == expected
    assert group.committed() == before


def test_shifts_require_an_offset_and_are_limited_to_the_log(group: Group) -> None:
    one = {"a": {0}}
    assert plan_reset(group, Scenario(To.SHIFT, -1), one, now_ms=0) == [NewOffset("a", 0, 4, 3)]
    (low,) = plan_reset(group, Scenario(To.SHIFT, -5), one, now_ms=0)
    assert (low.new, low.warning) == (
        2,
        "New offset (-1) is lower than the earliest offset for topic partition a-0. It will be 2.",
    )
    (high,) = plan_reset(group, Scenario(To.SHIFT, 50), one, now_ms=0)
    assert high.new == 6
    assert "higher than the latest" in str(high.warning)
    with pytest.raises(
        BadRequest, match="cannot be shifted in partitions 1: group 'g' has not committed offsets for them"
    ):
        planned(group, Scenario(To.SHIFT, 1))


def test_reset_scenarios_select_partitions(group: Group) -> None:
    assert planned(group, Scenario(To.EARLIEST), {"a": {1}}) == [0]
    assert planned(group, Scenario(To.EARLIEST), {"b": None}) == [0, 0]
    # Without topics, all partitions with committed offsets are reset, as with Kafka's --all-topics.
    assert plan_reset(group, Scenario(To.SHIFT, 1), None, now_ms=0) == [NewOffset("a", 0, 4, 5)]
    other = Groups(group.root).group("new")
    assert planned(other, Scenario(To.LATEST), {"a": None}) == [6, 1]
    with pytest.raises(BadRequest, match="group 'new' has no offsets, so there is nothing to reset; specify topics"):
        planned(other, Scenario(To.LATEST), None)
    with pytest.raises(BadRequest, match="topic 'a' has partitions 0 to 1, found partition 2, 7"):
        planned(group, Scenario(To.LATEST), {"a": {2, 7, 0}})
    with pytest.raises(NotFound, match="topic 'none' does not exist"):
        planned(group, Scenario(To.LATEST), {"none": None})


def test_alter_accepts_the_offsets_of_a_plan(group: Group) -> None:
    plan = plan_reset(group, Scenario(To.EARLIEST), ALL, now_ms=0)
    group.alter(with_offsets(plan))
    assert {topic_partition: item.offset for topic_partition, item in group.committed().items()} == {
        ("a", 0): 2,
        ("a", 1): 0,
    }


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT10S", 10_000), ("P1DT2H30M", 95_400_000), ("pt0.5s", 500), ("-PT1M", -60_000), ("P7D", 604_800_000)],
)
def test_durations_are_parsed_like_javas(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "10s", "P1M", "P1Y", "1d", "PT1H1D"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(BadRequest, match="expected a duration such as P1DT2H30M or PT10S"):
        parse_duration(text)


def test_an_offsets_file_has_lines_with_or_without_a_group() -> None:
    assert parse_offsets_file("a,0,4\n\n a , 1 , 5\n", "f") == {None: {("a", 0): 4, ("a", 1): 5}}
    assert parse_offsets_file('"g,1",a,0,4\nh,a,0,5\n', "f") == {"g,1": {("a", 0): 4}, "h": {("a", 0): 5}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,0\n", r"f, line 1: expected \[group,\]topic,partition,offset, found 'a,0'"),
        ("a,0,1\na,0,-1\n", "f, line 2: expected"),
        ("a,0,1\na,0,2\n", "f, line 2: a-0 occurs more than once"),
        ("a,0,9223372036854775808\n", "too large for Kafka"),
        ("a,0," + "9" * 5000, "f, line 1: expected"),
        ("a,0," + "9" * 200_000, "f is not a valid CSV file"),
        ("", "f contains no offsets"),
    ],
)
def test_invalid_offset_files_are_rejected(text: str, complaint: str) -> None:
    with pytest.raises(BadRequest, match=complaint):
        parse_offsets_file(text, "f")
