"""The backlog of `retain`: expired records, the time since they expired, and the allowed wait by their config."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.errors import Unavailable
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.report import MAX_WAIT_MS, MIN_WAIT_MS, Backlog
from sparklog.maintenance.work_items import Settings
from sparklog.retention import retain
from sparklog.retention.backlog import expiry_backlog
from sparklog.retention.retain import retain_topic
from sparklog.testing.world import DAY_MS, HOUR_MS, World


def topic_of_two(world: World, **configs: object) -> Topic:
    """Return a topic with two records in segments of their own; the first is an hour older than the second."""
    settings = {"segment.bytes": 1024, "compression.type": "uncompressed"}
    settings |= {name.replace("_", "."): value for name, value in configs.items()}
    topic = world.root().create_topic("t", configs=settings)
    for _ in range(2):
        topic.append(pa.table({"value": ["v" * 900], "timestamp": [world.now_ms]}))
        world.now_ms += HOUR_MS
    return topic


def backlog(world: World, topic: Topic) -> Backlog:
    return expiry_backlog(topic.log.snapshot(), Settings(world.now_ms))


def test_backlog_of_expired_records_starts_at_their_expiry() -> None:
    world = World()
    first_ms = world.now_ms
    topic = topic_of_two(world, retention_ms=3 * HOUR_MS)
    assert backlog(world, topic) == Backlog()
    world.now_ms = first_ms + 3 * HOUR_MS + 1
    waiting = backlog(world, topic)
    assert waiting.oldest_expired_ms == first_ms
    (due,) = waiting.due
    assert (due.job, due.since_ms, due.allowed_ms) == ("retain", first_ms + 3 * HOUR_MS, 3 * HOUR_MS)
    retain_topic(topic, Settings(world.now_ms))
    assert backlog(world, topic) == Backlog()


@pytest.mark.parametrize(("retention_ms", "allowed_ms"), [(1, MIN_WAIT_MS), (7 * DAY_MS, MAX_WAIT_MS)])
def test_allowed_wait_is_bounded(retention_ms: int, allowed_ms: int) -> None:
    world = World()
    topic = topic_of_two(world, retention_ms=retention_ms)
    world.now_ms += 8 * DAY_MS
    assert [due.allowed_ms for due in backlog(world, topic).due] == [allowed_ms]


def test_excess_bytes_have_no_due_time() -> None:
    world = World()
    topic = topic_of_two(world, retention_bytes=1)
    (due,) = backlog(world, topic).due
    assert (due.since_ms, due.allowed_ms) == (-1, MAX_WAIT_MS)
    assert "above retention.bytes" in due.why


def test_records_below_the_log_start_are_not_in_the_backlog() -> None:
    world = World()
    topic = topic_of_two(world)
    topic.delete_records({0: 1})
    assert backlog(world, topic) == Backlog()


def test_failed_run_reports_its_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    first_ms = world.now_ms
    topic = topic_of_two(world, retention_ms=1)

    def refused(*arguments: object, **options: object) -> None:
        raise Unavailable("no commits today")

    monkeypatch.setattr(retain, "expire", refused)
    report = retain_topic(topic, Settings(world.now_ms))
    assert report.failed
    assert report.backlog.oldest_expired_ms == first_ms
