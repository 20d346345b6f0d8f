"""The results of the streaming source: what Spark stores, compares and replays, without Spark."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from sparklog.datasource.offsets import StreamOffset
from sparklog.datasource.options import parse_options
from sparklog.datasource.stream_plan import Clock, StreamPlanner
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.log.state.view import LogView, OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.opening import KAFKA_DIRECTORY, ROOT, Location
from sparklog.storage.store import Store
from sparklog.testing.world import World
from tests.datasource.memory_view import RECORD_BYTES, MemoryView
from tests.support.name_caching_store import NameCachingStore
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

Document = dict[str, Any]


class Time:
    """A clock that advances when code sleeps."""

    def __init__(self) -> None:
        self.at = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.at += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.at, self.sleep)


def planner(view: LogView, time: Time | None = None, kind: str = ROOT, **options: str) -> StreamPlanner:
    options = {"startingoffsets": "earliest"} | {name.lower(): value for name, value in options.items()}
    if kind == ROOT and not {"subscribe", "subscribepattern", "assign"} & set(options):
        options["subscribe"] = "t"
    read = parse_options({name: value for name, value in options.items() if value != ""}).read
    subscriber = Subscriber(view, Location(kind, "/log", "/log"), read.subscription)
    return StreamPlanner(view, subscriber, read, (time or Time()).clock())


def stored(document: Document) -> Document:
    """Convert an offset to the form in Spark's checkpoint and back."""
    found: Document = json.loads(json.dumps(document))
    return found


def view_of(**counts: int) -> MemoryView:
    view = MemoryView()
    for topic, count in counts.items():
        view.create(topic)
        view.add(topic, count)
    return view


def read(ranges: list[OffsetRange]) -> list[tuple[str, int, int, int]]:
    return [(found.topic, found.partition, found.start, found.end) for found in ranges]


def test_the_first_result_contains_its_start_even_if_idle() -> None:
    view = view_of(t=3)
    source = planner(view, startingoffsets="latest")
    initial = stored(source.initial())
    assert initial == {"t": {"0": 3}, "$ids": {"t": "id-t"}, "$initial": True}
    first = source.latest(initial, limited=True)
    assert first == {"t": {"0": 3}, "$ids": {"t": "id-t"}, "$start": {"t": {"0": 3}}}
    again = stored(first)
    assert source.latest(again, limited=True) is again


def test_a_replayed_first_batch_reads_what_was_planned_whatever_the_initial_offset_is_by_then() -> None:
    view = view_of(t=2)
    source = planner(view, startingoffsets="latest")
    initial = source.initial()
    view.add("t", 3)
    end = stored(source.latest(initial, limited=True))
    assert read(source.ranges(initial, end)) == [("t", 0, 2, 5)]
    view.add("t", 10)
    restarted = planner(view, startingoffsets="latest")
    assert restarted.initial()["t"] == {"0": 15}
    assert read(restarted.ranges(stored(restarted.initial()), end)) == [("t", 0, 2, 5)]
    following = restarted.latest(end, limited=True)
    assert "$start" not in following
    assert read(restarted.ranges(end, following)) == [("t", 0, 5, 15)]


def test_a_start_after_the_end_is_an_empty_range() -> None:
    view = view_of(t=15)
    end = {"t": {"0": 10}, "$ids": {"t": "id-t"}}
    assert planner(view).ranges({"t": {"0": 15}, "$ids": {"t": "id-t"}}, end) == []


def test_initial_returns_the_same_result_twice() -> None:
    view = view_of(t=2)
    source = planner(view, startingoffsets="latest")
    first = source.initial()
    view.add("t", 5)
    assert source.initial() == first


def test_one_canonical_text() -> None:
    view = MemoryView()
    for topic in ("b", "a"):
        view.create(topic, 12)
    source = planner(view, subscribe="b,a")
    text = json.dumps(source.initial())
    assert text.index('"a"') < text.index('"b"') < text.index('"$ids"')
    assert text.index('"2"') < text.index('"10"')


def test_idle_polls_wait_one_interval_and_probe_once() -> None:
    view, time = view_of(t=3), Time()
    source = planner(view, time)
    end = source.latest(source.initial(), limited=True)
    assert time.slept == []
    before = len(view.refreshed)
    end = source.latest(end, limited=True)
    assert time.slept == []
    for _ in range(3):
        assert source.latest(end, limited=True) is end
    assert time.slept == [0.01] * 3
    assert view.refreshed[before:] == [("t",)] * 4
    view.add("t", 1)
    assert source.latest(end, limited=True)["t"] == {"0": 4}


def test_poll_interval_option_and_no_wait_under_once() -> None:
    view, time = view_of(t=0), Time()
    source = planner(view, time, **{"poll.interval.ms": "2000"})
    end = source.latest(source.initial(), limited=True)
    source.latest(end, limited=True)
    assert time.slept == [2.0]
    source.latest(end, limited=False)
    assert time.slept == [2.0]


@pytest.mark.parametrize(("given", "slept"), [("", [0.005, 0.04, 0.25]), ("100", [0.1] * 3)])
def test_a_given_poll_interval_is_fixed_else_the_view_says_it(given: str, slept: list[float]) -> None:
    view, time = view_of(t=0), Time()
    source = planner(view, time, **{"poll.interval.ms": given})
    end = source.latest(source.initial(), limited=True)
    for interval_ms in (5, 40, 250):
        view.poll_interval_ms = interval_ms
        source.latest(end, limited=True)
    assert time.slept == slept


def test_max_offsets_are_shared_in_proportion_with_one_each() -> None:
    view = MemoryView()
    view.create("t", 3)
    view.add("t", 100, 0)
    view.add("t", 50, 1)
    view.add("t", 1, 2)
    source = planner(view, maxOffsetsPerTrigger="15")
    start = source.initial()
    end = source.latest(start, limited=True)
    assert end["t"] == {"0": 9, "1": 4, "2": 1}
    assert source.latest(start, limited=False)["t"] == {"0": 100, "1": 50, "2": 1}


def test_max_offsets_are_exceeded_where_partitions_are_many_so_that_none_waits() -> None:
    view = MemoryView()
    view.create("t", 101)
    for partition in range(100):
        view.add("t", 1, partition)
    view.add("t", 900, 100)
    source = planner(view, maxOffsetsPerTrigger="100")
    end = source.latest(source.initial(), limited=True)["t"]
    assert (sum(end.values()), end["100"]) == (190, 90)


def test_every_batch_makes_progress_and_records_are_read_once() -> None:
    rng = random.Random(5)
    view = MemoryView()
    view.create("t", 4)
    for partition in range(4):
        view.add("t", rng.randrange(40), partition)
    source = planner(view, maxOffsetsPerTrigger="7", maxBytesPerTrigger=str(5 * RECORD_BYTES))
    start, seen = source.initial(), dict.fromkeys(range(4), 0)
    for _ in range(200):
        end = stored(source.latest(start, limited=True))
        if end == start:
            break
        for found in source.ranges(start, end):
            assert found.start == seen[found.partition]
            seen[found.partition] = found.end
        start = end
    assert seen == {p: view.partition("t", p).log_end for p in range(4)}


def test_max_bytes() -> None:
    view = view_of(t=100)
    source = planner(view, maxBytesPerTrigger=str(10 * RECORD_BYTES))
    assert source.latest(source.initial(), limited=True)["t"] == {"0": 10}
    tiny = planner(view, maxBytesPerTrigger="1")
    assert tiny.latest(tiny.initial(), limited=True)["t"] == {"0": 1}


def test_min_offsets_hold_back_until_the_delay_has_passed() -> None:
    view, time = view_of(t=3), Time()
    source = planner(view, time, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    end = source.latest(source.initial(), limited=True)
    assert end["t"] == {"0": 3}
    view.add("t", 9)
    assert source.latest(end, limited=True) is end
    view.add("t", 1)
    following = source.latest(end, limited=True)
    assert following["t"] == {"0": 13}
    view.add("t", 1)
    assert source.latest(following, limited=True) is following
    time.at += 61
    assert source.latest(following, limited=True)["t"] == {"0": 14}


def test_available_now_reads_to_the_target_and_no_further() -> None:
    view, time = view_of(t=10), Time()
    source = planner(view, time, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="4")
    source.prepare_available_now()
    start, ends = source.initial(), []
    for _ in range(10):
        view.add("t", 1)
        end = source.latest(start, limited=True)
        if end is start:
            break
        ends.append(end["t"]["0"])
        start = end
    assert ends == [4, 8, 10]
    assert time.slept == []


def test_available_now_ignores_a_deleted_topic() -> None:
    view = view_of(t=100)
    source = planner(view, failOnDataLoss="false", maxOffsetsPerTrigger="10")
    source.prepare_available_now()
    end = source.latest(source.initial(), limited=True)
    view.create("t", topic_id="id-2")
    view.add("t", 3)
    following = source.latest(stored(end), limited=True)
    assert following["t"] == {"0": 3}
    assert read(source.ranges(end, following)) == [("t", 0, 0, 3)]
    view.add("t", 200)
    again = stored(following)
    later = planner(view, failOnDataLoss="false").latest(again, limited=True)
    assert read(planner(view, failOnDataLoss="false").ranges(again, later)) == [("t", 0, 3, 203)]


def test_a_topic_that_assign_no_longer_names_is_an_error_of_one_line() -> None:
    view = view_of(t=5, u=5)
    source = planner(view, assign='{"t":[0],"u":[0]}')
    start = source.initial()
    end = stored(source.latest(start, limited=True))
    with pytest.raises(BadRequest, match=r"contains offsets of u-0, which this query does not read \(assign: t-0\)"):
        planner(view, assign='{"t":[0]}').ranges(start, end)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"subscribe": "t,u"}, {"subscribe": "t"}),
        ({"subscribePattern": "t|u"}, {"subscribePattern": "t"}),
        ({"assign": '{"t":[0],"u":[0]}'}, {"assign": '{"t":[0]}'}),
    ],
    ids=["subscribe", "pattern", "assign"],
)
def test_a_repeated_micro_batch_contains_topics_that_are_no_longer_read(
    before: dict[str, str], after: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """As in Spark's Kafka source, the offsets in the checkpoint determine the records of a repeated micro-batch."""
    view = view_of(t=5, u=5)
    source = planner(view, **before)
    start = source.initial()
    end = stored(source.latest(start, limited=True))
    planned = read(source.ranges(start, end))
    assert planned == [("t", 0, 0, 5), ("u", 0, 0, 5)]
    view.add("t", 1)
    view.add("u", 1)
    with pytest.raises(BadRequest, match="contains offsets of u-0, which this query does not read"):
        planner(view, **after).ranges(start, end)
    lenient = planner(view, **after, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "sparklog"):
        assert read(lenient.ranges(start, end)) == planned
        assert caplog.records == []
        following = stored(lenient.latest(end, limited=True))
    assert "offsets of u-0, which this query does not read; because failOnDataLoss=false, the query ignores them" in (
        caplog.text
    )
    assert read(lenient.ranges(end, following)) == [("t", 0, 5, 6)]


def test_a_repeated_micro_batch_waits_for_records_of_a_partition_that_is_no_longer_assigned() -> None:
    view, time = view_of(t=5, u=5), Time()
    source = planner(view, assign='{"t":[0],"u":[0]}')
    start = source.initial()
    end = stored(source.latest(start, limited=True))
    hidden = view_of(t=5, u=3)
    lenient = planner(hidden, time, assign='{"t":[0]}', failOnDataLoss="false")
    with pytest.raises(Unavailable, match="The checkpoint is ahead of the log of u-0"):
        lenient.ranges(start, end)


def test_new_topics_are_found_when_metadata_is_old_and_begin_at_their_start() -> None:
    view, time = view_of(orders=2), Time()
    source = planner(view, time, subscribepattern="ord.*", startingoffsets="latest", **{"metadata.max.age.ms": "5000"})
    end = source.latest(source.initial(), limited=True)
    view.create("ordinary")
    view.add("ordinary", 7)
    view.create("other")
    assert source.latest(end, limited=True) is end
    time.at += 5
    following = source.latest(end, limited=True)
    assert following["ordinary"] == {"0": 7}
    assert "other" not in following
    assert read(source.ranges(end, following)) == [("ordinary", 0, 0, 7)]


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_topic_deleted_after_listing_is_skipped(start: str, loss: str) -> None:
    view = view_of(orders=2, ordinary=3)
    view.deleted_once_listed = ("ordinary",)
    source = planner(view, subscribepattern="ord.*", startingoffsets=start, failOnDataLoss=loss)
    assert set(source.initial()) == {"orders", "$ids", "$initial"}
    assert source.latest(source.initial(), limited=True)["orders"] == {"0": 2}
    view.create("ordinary", topic_id="id-2")
    view.add("ordinary", 1)
    view.deleted_once_listed = ()
    later = planner(view, subscribepattern="ord.*", startingoffsets=start, failOnDataLoss=loss)
    end = later.latest(stored(source.initial()), limited=True)
    assert ("ordinary", 0, 0, 1) in read(later.ranges(source.initial(), end))


def test_new_partitions_begin_at_their_log_start() -> None:
    view = view_of(t=5)
    source = planner(view, startingoffsets="latest")
    end = source.latest(source.initial(), limited=True)
    view.add("t", 4, partition=1)
    following = source.latest(end, limited=True)
    assert read(source.ranges(end, following)) == [("t", 1, 0, 4)]


@pytest.mark.parametrize("added", ["partition", "topic", "recreated topic"])
def test_a_repeated_micro_batch_reports_deleted_records_that_its_start_does_not_contain(
    added: str, caplog: pytest.LogCaptureFixture
) -> None:
    view = view_of(t=5)
    options = {"subscribepattern": "t.*", "metadata.max.age.ms": "0", "failOnDataLoss": "false"}
    source = planner(view, **options)
    start = stored(source.latest(source.initial(), limited=True))
    topic, partition = ("new", 0) if added == "topic" else ("t", 1)
    if added == "topic":
        options["subscribepattern"] = "t|new"
        view.create(topic)
    elif added == "recreated topic":
        view.create(topic, topic_id="id-2")
    view.add(topic, 10, partition)
    view.partition(topic, partition).log_start = 2
    source = planner(view, **options)
    end = stored(source.latest(start, limited=True))
    assert end["$added"] == {topic: {str(partition): 2}}
    assert (topic, partition, 2, 10) in read(source.ranges(start, end))
    view.partition(topic, partition).log_start = 6
    with pytest.raises(NotFound, match=f"Offsets 2 to 5 of {topic}-{partition} were deleted"):
        planner(view, **options | {"failOnDataLoss": "true"}).ranges(start, end)
    with caplog.at_level(logging.WARNING, "sparklog"):
        assert (topic, partition, 6, 10) in read(planner(view, **options).ranges(start, end))
    assert f"Offsets 2 to 5 of {topic}-{partition} were deleted" in caplog.text
    view.add(topic, 1, partition)
    following = planner(view, **options).latest(end, limited=True)
    assert "$added" not in following
    assert (topic, partition, 10, 11) in read(source.ranges(end, following))


def test_a_micro_batch_that_an_earlier_version_planned_begins_at_the_log_start() -> None:
    view = view_of(t=5)
    view.add("t", 10, partition=1)
    view.partition("t", 1).log_start = 2
    start, end = {"t": {"0": 5}}, {"t": {"0": 5, "1": 10}}
    assert read(planner(view).ranges(start, end)) == [("t", 1, 2, 10)]


def test_a_partition_without_records_does_not_start_a_batch() -> None:
    view = view_of(t=5)
    source = planner(view)
    end = source.latest(source.initial(), limited=True)
    view.add("t", 0, partition=1)
    assert source.latest(end, limited=True) is end


def test_a_topic_created_again_is_an_error_or_read_from_its_start(caplog: pytest.LogCaptureFixture) -> None:
    view = view_of(t=5)
    source = planner(view)
    end = source.latest(source.initial(), limited=True)
    view.create("t", topic_id="id-2")
    view.add("t", 9)
    with pytest.raises(NotFound, match=r"deleted and recreated while a stream was reading it \(id id-t, now id-2\)"):
        source.latest(end, limited=True)
    lenient = planner(view, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "sparklog"):
        following = lenient.latest(end, limited=True)
        assert read(lenient.ranges(end, following)) == [("t", 0, 0, 9)]
        lenient.latest(end, limited=True)
    assert len(caplog.records) == 1
    assert "continues at the start of the new topic" in caplog.text


def test_a_batch_planned_before_the_topic_was_created_again(caplog: pytest.LogCaptureFixture) -> None:
    view = view_of(t=5)
    first = planner(view)
    start = first.initial()
    end = stored(first.latest(start, limited=True))
    view.create("t", topic_id="id-2")
    view.add("t", 50)
    with pytest.raises(NotFound, match="before the offsets planned for this micro-batch were read"):
        planner(view).ranges(start, end)
    with caplog.at_level(logging.WARNING, "sparklog"):
        assert planner(view, failOnDataLoss="false").ranges(start, end) == []


OWN = "give this query a separate checkpointLocation"
ELSEWHERE = (
    f", or the checkpoint belongs to another root. In this case, {OWN}."
    " If this loss is acceptable, set failOnDataLoss=false"
)


@pytest.mark.parametrize(
    ("checkpoint", "options", "error", "expected"),
    [
        # The checkpoint belongs to another query. None of it is read here, so nothing may be skipped.
        ({"u": {"0": 5}}, {}, BadRequest, f"offsets of u-0, which this query does not read (subscribe=t): {OWN}"),
        ({"gone": {"0": 5}}, {}, BadRequest, f"offsets of gone-0, which this query does not read (subscribe=t): {OWN}"),
        ({"u": {"0": 5}}, {"failOnDataLoss": "false"}, BadRequest, f"(subscribe=t): {OWN}"),
        ({"u": {"0": 5}}, {"subscribepattern": "t.*"}, BadRequest, f"(subscribePattern=t.*): {OWN}"),
        ({"u": {"0": 5}}, {"assign": '{"t":[0]}'}, BadRequest, f"(assign: t-0): {OWN}"),
        # The subscription has changed.
        (
            {"t": {"0": 5}, "u": {"0": 5}},
            {},
            BadRequest,
            "or subscribe to these topics again if the checkpoint belongs to this query",
        ),
        ({"t": {"0": 5, "1": 2}}, {"assign": '{"t":[0]}'}, BadRequest, "offsets of t-1, which this query does not"),
        # The topic was created again, in this root or in another root.
        (
            {"t": {"0": 5}, "$ids": {"t": "id-0"}},
            {},
            NotFound,
            f"while a stream was reading it (id id-0, now id-t){ELSEWHERE}, so that the query continues at the",
        ),
        # The topic was deleted.
        (
            {"t": {"0": 5}, "gone": {"0": 5}},
            {"subscribe": "t,gone"},
            NotFound,
            f"The topic 'gone' was deleted while a stream was reading it{ELSEWHERE}, so that the query skips it",
        ),
        (
            {"t": {"0": 9}},
            {},
            NotFound,
            f"Offset 9 of t-0 is out of range: the log ends at 5; it was restored from an older copy{ELSEWHERE}",
        ),
    ],
)
def test_a_checkpoint_of_another_query_is_an_error(
    checkpoint: Document, options: dict[str, str], error: type[Exception], expected: str
) -> None:
    view = view_of(t=5, u=5)
    start = {"$ids": {}} | checkpoint
    with pytest.raises(error) as raised:
        planner(view, **options).latest(start, limited=True)
    assert expected in str(raised.value)
    assert ("set failOnDataLoss" in str(raised.value)) is (error is NotFound)
    if error is BadRequest:
        with pytest.raises(BadRequest):
            planner(view, **options).ranges({"$ids": {}}, start)


def test_an_unsubscribed_topic_is_skipped_if_data_loss_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    view = view_of(t=5, u=5)
    start = {"t": {"0": 3}, "u": {"0": 3}, "$ids": {"t": "id-t", "u": "id-u"}}
    source = planner(view, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "sparklog"):
        end = stored(source.latest(start, limited=True))
        assert source.latest(end, limited=True) is end
    assert (end["t"], "u" in end, read(source.ranges(start, end))) == ({"0": 5}, False, [("t", 0, 3, 5)])
    (record,) = caplog.records
    assert (
        "offsets of u-0, which this query does not read; because failOnDataLoss=false, the query ignores them"
        in record.getMessage()
    )


def test_an_idle_query_keeps_an_unsubscribed_topic_in_its_checkpoint() -> None:
    view = view_of(t=5, u=5)
    start = {"t": {"0": 5}, "u": {"0": 3}, "$ids": {"t": "id-t", "u": "id-u"}}
    source = planner(view, failOnDataLoss="false")
    assert source.latest(start, limited=True) is start
    assert read(
        planner(view, subscribe="t,u").ranges(start, planner(view, subscribe="t,u").latest(start, limited=True))
    ) == [("u", 0, 3, 5)]


def test_a_deleted_topic_with_a_partition_that_is_no_longer_assigned(caplog: pytest.LogCaptureFixture) -> None:
    view = view_of(u=5)
    start = {"t": {"0": 3, "1": 4}, "u": {"0": 5}, "$ids": {"t": "id-t", "u": "id-u"}}
    source = planner(view, assign='{"t":[0],"u":[0]}', failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "sparklog"):
        source.latest(start, limited=True)
    assert "offsets of t-1, which this query does not read" in caplog.text
    assert "The topic 't' was deleted while a stream was reading it" in caplog.text


def test_a_deleted_topic() -> None:
    view = view_of(t=5, u=5)
    source = planner(view, subscribe="t,u")
    end = source.latest(source.initial(), limited=True)
    del view.now["u"]
    with pytest.raises(NotFound, match="The topic 'u' was deleted while a stream was reading it"):
        source.latest(end, limited=True)
    lenient = planner(view, subscribe="t,u", failOnDataLoss="false")
    following = lenient.latest(end, limited=True)
    assert following["t"] == {"0": 5}
    assert "u" not in following
    assert lenient.ranges(end, following) == []


def test_start_deleted_by_retention(caplog: pytest.LogCaptureFixture) -> None:
    view = view_of(t=10)
    source = planner(view, maxOffsetsPerTrigger="2")
    end = source.latest(source.initial(), limited=True)
    view.partition("t").log_start = 6
    with pytest.raises(
        NotFound, match=r"Offsets 2 to 5 of t-0 were deleted: the log starts at 6.*failOnDataLoss=false"
    ):
        source.ranges(end, source.latest(end, limited=True))
    lenient = planner(view, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "sparklog"):
        assert read(lenient.ranges(end, lenient.latest(end, limited=True))) == [("t", 0, 6, 10)]
    assert "Offsets 2 to 5 of t-0 were deleted" in caplog.text


def test_a_log_that_ends_before_offsets_without_an_id_is_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    """The offsets may belong to another topic, because they were edited by hand or come from Kafka's connector."""
    view, end = view_of(t=6), {"t": {"0": 10}}
    with pytest.raises(NotFound, match="Offset 10 of t-0 is out of range: the log ends at 6"):
        planner(view).latest(end, limited=True)
    lenient = planner(view, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "sparklog"):
        following = lenient.latest(end, limited=True)
    assert "because failOnDataLoss=false, the query continues at the log end" in caplog.text
    assert following["t"] == {"0": 6}
    assert lenient.ranges(end, following) == []
    view.add("t", 1)
    assert read(lenient.ranges(following, lenient.latest(following, limited=True))) == [("t", 0, 6, 7)]


def test_an_end_below_the_start_that_is_only_not_visible_yet_is_idle() -> None:
    view = view_of(t=10)
    source = planner(view)
    end = source.latest(source.initial(), limited=True)
    view.partition("t").last_stable = 8
    assert source.latest(end, limited=True) is end


def test_isolation_decides_where_it_ends() -> None:
    view = view_of(t=10)
    view.partition("t").last_stable = 4
    committed, uncommitted = planner(view), planner(view, **{"kafka.isolation.level": "read_uncommitted"})
    assert committed.latest(committed.initial(), limited=True)["t"] == {"0": 4}
    assert uncommitted.latest(uncommitted.initial(), limited=True)["t"] == {"0": 10}


def test_starting_offsets_and_timestamps() -> None:
    view = MemoryView()
    view.create("t", 2)
    for time in (10, 20, 30):
        view.add("t", 1, 0, time)
        view.add("t", 1, 1, time + 100)
    assert planner(view, startingoffsets='{"t":{"0":1,"1":-1}}').initial()["t"] == {"0": 1, "1": 3}
    assert planner(view, startingoffsets='{"t":{"0":-2,"1":2}}').initial()["t"] == {"0": 0, "1": 2}
    assert planner(view, startingoffsets="", startingTimestamp="20").initial()["t"] == {"0": 1, "1": 0}
    each = '{"t":{"0":30,"1":111}}'
    assert planner(view, startingoffsets="", startingOffsetsByTimestamp=each).initial()["t"] == {"0": 2, "1": 1}
    with pytest.raises(NotFound, match="t-0 has no record at or after 31 ms"):
        planner(view, startingoffsets="", startingTimestamp="31").initial()
    latest = planner(view, startingoffsets="", startingTimestamp="31", startingOffsetsByTimestampStrategy="latest")
    assert latest.initial()["t"] == {"0": 3, "1": 0}
    with pytest.raises(BadRequest, match="must contain each partition that is read; missing: t-1"):
        planner(view, startingoffsets='{"t":{"0":1}}').initial()
    with pytest.raises(BadRequest, match="contains partitions that are not read: t-7"):
        planner(view, startingoffsets='{"t":{"0":1,"1":1,"7":1}}').initial()
    with pytest.raises(NotFound, match="is out of range: the log ends at 3: startingOffsets accepts 0 to 3"):
        planner(view, startingoffsets='{"t":{"0":9,"1":1}}').initial()


def test_subscriptions_of_a_root() -> None:
    view = view_of(orders=1, payments=1)
    with pytest.raises(NotFound, match=r"no topic 'order' at memory: did you mean 'orders'\?"):
        planner(view, subscribe="order").initial()
    read_options = parse_options({}).read
    subscriber = Subscriber(view, Location(ROOT, "/log", "/log"), read_options.subscription)
    with pytest.raises(BadRequest, match="a root with the topics orders, payments: select topics with"):
        subscriber.topics()
    with pytest.raises(NotFound, match="partition 3 of topic 'orders', which has partition 0 only"):
        planner(view, assign='{"orders":[0,3]}').initial()


def test_a_restart_with_a_topic_that_does_not_exist() -> None:
    view = view_of(t=1)
    source = planner(view)
    end = source.latest(source.initial(), limited=True)
    with pytest.raises(NotFound, match="There is no topic 'u'"):
        planner(view, subscribe="t,u").latest(end, limited=True)


def test_a_kafka_directory_is_all_its_topics_but_kafkas_own() -> None:
    view = view_of(a=1, __consumer_offsets=5)
    source = planner(view, kind=KAFKA_DIRECTORY)
    assert source.initial() == {"a": {"0": 0}, "$ids": {"a": "id-a"}, "$initial": True}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"t": {"0": -5}}, "invalid: offset of t-0 must be an integer >= 0"),
        ({"t": 5}, "invalid: topic 't' must map partitions"),
        ({"t": {"0": 1}, "$future": 1}, "which this version of sparklog does not support"),
        ({"t": {"0": 1}, "$ids": []}, "must be an object of topic ids"),
    ],
)
def test_an_offset_edited_by_hand(document: Document, expected: str) -> None:
    with pytest.raises(BadRequest, match=expected.replace("$", r"\$")):
        planner(view_of(t=1)).latest(document, limited=True)


def test_an_offset_of_kafkas_own_connector_is_understood() -> None:
    source = planner(view_of(t=5))
    end = source.latest({"t": {"0": 2}}, limited=True)
    assert read(source.ranges({"t": {"0": 2}}, end)) == [("t", 0, 2, 5)]


# -- a host that does not see the offsets of a checkpoint yet


class Lagging(Time):
    """A clock that makes more records visible after a number of seconds."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        super().__init__()
        self.then: Callable[[], None] | None = then
        self.due = self.at + seconds

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.then is not None and self.at >= self.due:
            self.then()
            self.then = None


class Passing(Time):
    """A clock that advances the clock of a world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.world.now_ms += round(seconds * 1000)


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_restarted_stream_waits_for_offsets_that_it_does_not_see_yet(loss: str) -> None:
    whole = view_of(t=10)
    before = planner(whole)
    start = stored(before.initial())
    end = stored(before.latest(start, limited=True))
    for ask in ("ranges", "latest"):
        stale = view_of(t=4)
        time = Lagging(40, lambda stale=stale: stale.add("t", 7))  # type: ignore[misc]
        after = planner(stale, time, failOnDataLoss=loss)
        if ask == "ranges":
            assert read(after.ranges(start, end)) == [("t", 0, 0, 10)]
        else:
            assert after.latest(end, limited=True) == {"t": {"0": 11}, "$ids": {"t": "id-t"}}
        assert 40 <= sum(time.slept) < 42


def test_a_restarted_stream_waits_for_partitions_that_it_does_not_see_yet() -> None:
    whole = MemoryView()
    whole.create("t", partitions=2)
    whole.add("t", 3, partition=1)
    before = planner(whole)
    start = stored(before.initial())
    end = stored(before.latest(start, limited=True))
    stale = view_of(t=0)

    def grow() -> None:
        stale.create("t", partitions=2)
        stale.add("t", 3, partition=1)

    assert read(planner(stale, Lagging(40, grow)).ranges(start, end)) == [("t", 1, 0, 3)]


def test_a_batch_waits_until_what_was_decided_when_it_was_planned_is_decided_here() -> None:
    whole = view_of(t=10)
    before = planner(whole)
    start = stored(before.initial())
    end = stored(before.latest(start, limited=True))
    for seconds in (40, 100):
        stale = view_of(t=12)
        stale.partition("t").last_stable = 4
        time = Lagging(seconds, lambda stale=stale: setattr(stale.partition("t"), "last_stable", None))  # type: ignore[misc]
        after = planner(stale, time, failOnDataLoss="false")
        if seconds < 90:
            assert read(after.ranges(start, end)) == [("t", 0, 0, 10)]
        else:
            with pytest.raises(
                Unavailable, match="A micro-batch of t-0 was planned up to offsets at which a transaction"
            ):
                after.ranges(start, end)


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("ask", ["ranges", "latest"])
def test_records_of_the_checkpoint_are_never_reported_as_lost(ask: str, loss: str) -> None:
    """A mount hides the records for longer than caches last. The query fails until the records are visible."""
    start, end = {"t": {"0": 1}, "$ids": {"t": "id-t"}}, {"t": {"0": 10, "1": 2}, "$ids": {"t": "id-t"}}
    view = view_of(t=4)

    def asked(time: Time) -> object:
        source = planner(view, time, failOnDataLoss=loss)
        return source.latest(end, limited=True) if ask == "latest" else read(source.ranges(start, end))

    for unseen in ("t-0, t-1", "t-1"):
        time = Time()
        with pytest.raises(Unavailable, match=f"is ahead of the log of {unseen} as seen from this host"):
            asked(time)
        assert 90 <= sum(time.slept) < 92
        view.add("t", 8)
    view.add("t", 2, partition=1)
    following = {"t": {"0": 20, "1": 2}, "$ids": {"t": "id-t"}}
    assert asked(Time()) == (following if ask == "latest" else [("t", 0, 1, 10), ("t", 1, 0, 2)])


@pytest.mark.parametrize("subscription", [{"subscribe": "a,new"}, {"subscribePattern": ".*"}])
@pytest.mark.parametrize("minutes", [1, 5])
def test_a_topic_of_which_nothing_can_be_seen_yet_is_not_deleted(subscription: dict[str, str], minutes: int) -> None:
    """This host looked for the topic before it was created. A deleted topic would still have its commits."""
    world = TopicsWorld()
    mount = NameCachingStore(world.store, lambda: world.now_ms, folder_ms=minutes * 60_000)
    with pytest.raises(NotFound):
        world.root(mount).topic("new")
    world.root().create_topic("new").append(rows("1", "2"))
    options = {**subscription, "failOnDataLoss": "false"}

    def source(store: Store | None = None) -> StreamPlanner:
        return planner(RootView(world.root(store)), Passing(world), **options)

    before = source()
    end = stored(before.latest(stored(before.initial()), limited=True))
    world.topic("new").append(rows("3"))
    after = source(mount)
    if minutes == 5:
        with pytest.raises(Unavailable, match="is ahead of the log of new-0"):
            after.latest(end, limited=True)
        world.now_ms += 300_000
    assert stored(after.latest(end, limited=True))["new"] == {"0": 3}
    world.root().delete_topic("new")
    assert "new" not in source().latest(end, limited=True)


def test_a_commit_that_a_cache_of_names_hides_is_waited_for() -> None:
    """The client of query A caches for a minute that a name is missing.

    1. A looks for the first commit with records, which does not exist.
    2. Writer B creates the commit, and a query on another host reads it. The checkpoint of that query is copied to A.
    3. A resumes from the checkpoint.
    """
    world = TopicsWorld()
    mount = NameCachingStore(world.store, world.clock, name_ms=60_000)
    here, there = (
        planner(RootView(world.root(store)), Passing(world), subscribe="a") for store in (mount, world.store)
    )
    start = stored(here.initial())
    here.latest(start, limited=True)
    world.topic("a").append(rows("1", "2"))
    end = stored(there.latest(start, limited=True))
    begun = world.now_ms
    assert stored(here.latest(end, limited=True))["a"] == {"0": 2}
    assert 60_000 <= world.now_ms - begun <= 90_000
    assert read(here.ranges(start, end)) == [("a", 0, 0, 2)]


def test_a_topic_that_was_created_again_is_not_waited_for() -> None:
    time = Time()
    source = planner(view_of(t=4), time)
    with pytest.raises(NotFound, match="was deleted and recreated"):
        source.latest({"t": {"0": 10}, "$ids": {"t": "id-of-before"}}, limited=True)
    assert time.slept == []


def test_an_idle_call_reuses_the_previous_result(monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(t=3, u=2)
    source = planner(view, subscribe="t,u")
    at_end = stored(source.latest(stored(source.initial()), limited=True))
    assert source.latest(at_end, limited=True) is at_end
    parsed = Mock(wraps=StreamOffset.from_json)
    monkeypatch.setattr(StreamOffset, "from_json", parsed)
    for _ in range(3):
        again = stored(at_end)
        assert source.latest(again, limited=True) is again
    assert parsed.call_count == 0
    view.add("u", 1)
    assert read(source.ranges(at_end, source.latest(at_end, limited=True))) == [("u", 0, 2, 3)]


def test_a_topic_created_again_with_the_same_end_is_seen_by_an_idle_query() -> None:
    view = view_of(t=3)
    source = planner(view)
    at_end = stored(source.latest(stored(source.initial()), limited=True))
    assert source.latest(at_end, limited=True) is at_end
    view.create("t", topic_id="id-2")
    view.add("t", 3)
    with pytest.raises(NotFound, match="deleted and recreated"):
        source.latest(at_end, limited=True)
