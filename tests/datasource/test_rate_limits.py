"""The end of a micro-batch for the rate options, without Spark and without a planner."""

from __future__ import annotations

from sparklog.datasource.offsets import Positions
from sparklog.datasource.options import parse_options
from sparklog.datasource.rate_limits import RateLimits
from sparklog.storage.retries import Clock
from tests.datasource.memory_view import RECORD_BYTES, MemoryView


class Limited:
    """The rate limits of a query of topics, and its clock."""

    def __init__(self, options: dict[str, str], **counts: int) -> None:
        self.view = MemoryView()
        for topic, count in counts.items():
            self.view.create(topic)
            self.view.add(topic, count)
        self.now = 100.0
        given = {"subscribe": ",".join(counts)} | {name.lower(): value for name, value in options.items()}
        self.limits = RateLimits(self.view, parse_options(given).read, Clock(lambda: self.now, lambda seconds: None))

    def plan(self, may_delay: bool = True, **begin: int) -> dict[str, int]:
        """Return the end of each topic's partition for a micro-batch that starts at these offsets."""
        self.view.refresh(list(begin))
        bounds = {topic: self.view.bounds(topic) for topic in begin}
        start: Positions = {topic: {0: offset} for topic, offset in begin.items()}
        available = {topic: {0: bounds[topic][0].log_end} for topic in begin}
        end = self.limits.plan(start, available, bounds, may_delay=may_delay)
        return {topic: offsets[0] for topic, offsets in end.items()}


def test_without_options_everything_is_read() -> None:
    assert Limited({}, t=10, u=5).plan(t=3, u=5) == {"t": 10, "u": 5}


def test_max_offsets_are_divided_by_size_with_at_least_one_record_each() -> None:
    limited = Limited({"maxOffsetsPerTrigger": "10"}, t=90, u=9, v=1)
    assert limited.plan(t=0, u=0, v=0) == {"t": 9, "u": 1, "v": 1}
    assert limited.plan(t=85, u=9, v=0) == {"t": 90, "u": 9, "v": 1}


def test_max_bytes_read_at_least_one_record() -> None:
    assert Limited({"maxBytesPerTrigger": str(5 * RECORD_BYTES)}, t=20).plan(t=2) == {"t": 7}
    assert Limited({"maxBytesPerTrigger": "1"}, t=20).plan(t=2) == {"t": 3}


def test_both_limits_apply() -> None:
    limited = Limited({"maxOffsetsPerTrigger": "4", "maxBytesPerTrigger": str(3 * RECORD_BYTES)}, t=20)
    assert limited.plan(t=0) == {"t": 3}


def test_a_micro_batch_is_delayed_since_the_last_one_that_was_not_delayed() -> None:
    limited = Limited({"minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s"}, t=3)
    assert limited.plan(t=0) == {"t": 3}, "the first micro-batch is not delayed"
    limited.view.add("t", 5)
    limited.now += 59
    assert limited.plan(t=3) == {"t": 3}
    assert limited.plan(False, t=3) == {"t": 8}, "AvailableNow does not wait"
    limited.now += 59
    assert limited.plan(t=3) == {"t": 3}, "the delay has started again"
    limited.now += 1
    assert limited.plan(t=3) == {"t": 8}
    limited.now += 60
    assert limited.plan(t=8) == {"t": 8}, "an empty micro-batch"
    limited.view.add("t", 9)
    assert limited.plan(t=8) == {"t": 8}, "the empty micro-batch has started the delay again"
    limited.view.add("t", 1)
    assert limited.plan(t=8) == {"t": 18}
