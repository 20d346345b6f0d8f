"""The offsets that a batch reads, and rejected options."""

from __future__ import annotations

import logging

import pytest

from sparklog.datasource.options import parse_options
from sparklog.datasource.starting_offsets import batch_ranges
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, NotFound
from sparklog.opening import KAFKA_DIRECTORY, ROOT, TOPIC, Location
from tests.datasource.memory_view import MemoryView


def ranges(
    view: MemoryView, kind: str = ROOT, topic: str | None = None, **options: str
) -> list[tuple[str, int, int, int]]:
    parsed = parse_options({name.replace("_", ".").lower(): value for name, value in options.items()})
    parsed.check_batch_read()
    subscriber = Subscriber(view, Location(kind, "/log/t", "/log", topic), parsed.read.subscription)
    return [(r.topic, r.partition, r.start, r.end) for r in batch_ranges(view, subscriber, parsed.read)]


@pytest.fixture
def view() -> MemoryView:
    found = MemoryView()
    found.create("t", 2)
    found.create("u")
    for time in range(10):
        found.add("t", 1, 0, 100 * time)
    found.add("t", 4, 1, 1000)
    found.add("u", 3)
    return found


def test_a_batch_read_returns_all_records_by_default(view: MemoryView) -> None:
    assert ranges(view, subscribe="t,u") == [("t", 0, 0, 10), ("t", 1, 0, 4), ("u", 0, 0, 3)]
    assert ranges(view, subscribePattern="[tu]") == ranges(view, subscribe="u,t")
    assert ranges(view, subscribePattern="nothing") == []
    assert ranges(view, assign='{"t":[1]}') == [("t", 1, 0, 4)]


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_topic_deleted_after_listing_is_skipped(view: MemoryView, loss: str) -> None:
    view.deleted_once_listed = ("u",)
    assert ranges(view, subscribePattern="[tu]", failOnDataLoss=loss) == [("t", 0, 0, 10), ("t", 1, 0, 4)]
    view.create("u")
    assert ranges(view, KAFKA_DIRECTORY, failOnDataLoss=loss) == [("t", 0, 0, 10), ("t", 1, 0, 4)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [(ROOT, {"subscribe": "t,gone"}), (ROOT, {"assign": '{"gone":[0]}'}), (TOPIC, {"subscribePattern": "go.*"})],
)
def test_a_topic_given_by_the_user_must_exist(view: MemoryView, kind: str, options: dict[str, str]) -> None:
    with pytest.raises(NotFound, match="There is no topic 'gone' at memory"):
        ranges(view, kind, "gone", **options)


def test_a_topic_directory_reads_its_topic(view: MemoryView) -> None:
    assert ranges(view, TOPIC, "t") == [("t", 0, 0, 10), ("t", 1, 0, 4)]
    assert ranges(view, TOPIC, "t", assign='{"t":[0]}') == [("t", 0, 0, 10)]
    assert ranges(view, TOPIC, "u", subscribePattern="u|x") == [("u", 0, 0, 3)]
    with pytest.raises(BadRequest, match="is the directory of topic 't' only"):
        ranges(view, TOPIC, "t", subscribe="u")


def test_internal_topics_are_read_only_by_name(view: MemoryView) -> None:
    view.create("__consumer_offsets")
    view.add("__consumer_offsets", 1)
    assert {r[0] for r in ranges(view, KAFKA_DIRECTORY)} == {"t", "u"}
    assert {r[0] for r in ranges(view, KAFKA_DIRECTORY, subscribePattern=".*")} == {"t", "u"}
    assert ranges(view, KAFKA_DIRECTORY, subscribe="__consumer_offsets") == [("__consumer_offsets", 0, 0, 1)]


def test_offsets(view: MemoryView) -> None:
    start, end = '{"t":{"0":3,"1":-2}}', '{"t":{"0":7,"1":-1}}'
    assert ranges(view, subscribe="t", startingOffsets=start, endingOffsets=end) == [("t", 0, 3, 7), ("t", 1, 0, 4)]
    assert ranges(view, subscribe="u", startingOffsets="earliest", endingOffsets="latest") == [("u", 0, 0, 3)]


def test_times(view: MemoryView) -> None:
    assert ranges(view, subscribe="t", startingTimestamp="450", endingTimestamp="700") == [
        ("t", 0, 5, 7),
        ("t", 1, 0, 0),
    ]
    assert ranges(view, assign='{"t":[0]}', endingTimestamp="99999") == [("t", 0, 0, 10)]
    each = '{"t":{"0":200}}'
    assert ranges(view, assign='{"t":[0]}', startingOffsetsByTimestamp=each) == [("t", 0, 2, 10)]
    with pytest.raises(NotFound, match=r"at or after 950 ms \(1970-01-01T00:00:00.950Z\); set an earlier time"):
        ranges(view, subscribe="t", startingTimestamp="950")
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(view, subscribe="t", startingTimestamp="950", **strategy) == [("t", 0, 10, 10), ("t", 1, 0, 4)]


def test_a_reversed_time_range_is_empty(view: MemoryView) -> None:
    assert ranges(view, assign='{"t":[0]}', startingTimestamp="700", endingTimestamp="300") == [("t", 0, 3, 3)]


def test_isolation(view: MemoryView) -> None:
    view.partition("u").last_stable = 1
    assert ranges(view, subscribe="u") == [("u", 0, 0, 1)]
    assert ranges(view, subscribe="u", endingOffsets='{"u":{"0":3}}') == [("u", 0, 0, 1)]
    assert ranges(view, subscribe="u", kafka_isolation_level="read_uncommitted") == [("u", 0, 0, 3)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"u":{"0":9}}'}, "Offset 9 of u-0 is out of range: the log ends at 3"),
        ({"endingOffsets": '{"u":{"0":9}}'}, "Offset 9 of u-0 is out of range: the log ends at 3"),
        ({"startingOffsets": '{"u":{"0":0}}'}, "Offsets 0 to 0 of u-0 were deleted: the log starts at 1"),
    ],
)
def test_offsets_out_of_range(
    view: MemoryView, options: dict[str, str], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    view.partition("u").log_start = 1
    with pytest.raises(NotFound, match=expected) as raised:
        ranges(view, subscribe="u", **options)
    # The hint is given only if records were deleted.
    assert ("failOnDataLoss" in str(raised.value)) is ("deleted" in expected)
    assert ("Offsets accepts 1 to 3" in str(raised.value)) is ("deleted" not in expected)
    with caplog.at_level(logging.WARNING, "sparklog"):
        (found,) = ranges(view, subscribe="u", failOnDataLoss="false", **options)
    assert found in {("u", 0, 3, 3), ("u", 0, 1, 3)}
    assert expected in caplog.text


def test_start_after_end(view: MemoryView) -> None:
    with pytest.raises(BadRequest, match="u-0: startingOffsets 2 is after endingOffsets 1"):
        ranges(view, subscribe="u", startingOffsets='{"u":{"0":2}}', endingOffsets='{"u":{"0":1}}')


def test_offsets_of_unread_partitions_are_rejected(view: MemoryView) -> None:
    with pytest.raises(BadRequest, match="endingOffsets contains partitions that are not read: u-0"):
        ranges(view, subscribe="t", endingOffsets='{"t":{"0":1,"1":1},"u":{"0":1}}')
    with pytest.raises(BadRequest, match="startingOffsets must contain each partition that is read; missing: t-1"):
        ranges(view, subscribe="t", startingOffsets='{"t":{"0":1}}')
