"""Retention rules: the same segments expire as in Kafka, for the same reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import Segment
from sparklog.retention.expiry_plan import SIZE, START, TIME, Expiry, plan_expiry
from tests.retention.fixture_stages import expired, fixture, segments, stage_segments

FIXTURES = [
    ("retention/bytes", "before", "after", SIZE),
    ("retention/delete-records", "start-moved", "after", START),
    ("retention/high-watermark", "before", "after", TIME),
    ("retention/ms", "before", "after", TIME),
    ("retention/ms-all", "before", "after", TIME),
    ("retention/ms-blocked", "before", "after", TIME),
    ("retention/ms-exact", "before", "at-the-edge", TIME),
    ("retention/ms-exact", "at-the-edge", "after", TIME),
]


@pytest.mark.parametrize(("name", "before", "after", "reason"), FIXTURES)
def test_fixtures_expire_as_in_kafka(fixtures: Path, name: str, before: str, after: str, reason: str) -> None:
    folder = fixtures / name
    configs, stages = fixture(folder)
    found = stage_segments(folder, stages[before])
    expiry = expired(found, stages[before], stages[after], configs)
    gone = {item.segment.base for item in expiry.expired}
    # Kafka creates a new, empty segment if all segments expire.
    left = [item["baseOffset"] for item in stages[after]["segments"] if item["size"]]
    assert [segment.base for segment in found if segment.base not in gone] == left
    assert expiry.log_start == stages[after]["logStartOffset"]
    assert {item.reason for item in expiry.expired} == {reason}
    assert len(expiry.expired) == stages[after]["cleaner"]["deletedSegments"] > 0


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("compaction/compact-delete", "before", "pass-1"),
        ("compaction/compact-delete", "pass-1", "after"),
        ("compaction/compact-delete-bytes", "before", "after"),
    ],
)
def test_compacted_and_deleted_topics_expire_after_cleaning(fixtures: Path, name: str, before: str, after: str) -> None:
    configs, stages = fixture(fixtures / name)
    told = stages[after]["cleaner"]
    found = segments(told["segmentsAfterCleaning"], stages[after]["logEndOffset"])
    expiry = expired(found, stages[before], stages[after], configs)
    assert len(expiry.expired) == told["deletedSegments"] > 0
    assert expiry.log_start == stages[after]["logStartOffset"]


def row(base: int, end: int, *, size: int = 70, max_ts: int = 0, active: bool = False) -> Segment:
    return Segment(0, base, end, end, 0, 1 if size else 0, size, max_ts, max_ts, not active, active)


def plan(found: list[Segment], now_ms: int = 0, log_start: int = 0, **configs: object) -> Expiry:
    log_end = found[-1].next_base
    return plan_expiry(
        found,
        partition=0,
        log_start=log_start,
        log_end=log_end,
        high_watermark=log_end,
        configs=TopicConfigs.of({name.replace("_", "."): value for name, value in configs.items()}),
        now_ms=now_ms,
    )


FOUR = [row(0, 2), row(2, 4), row(4, 6), row(6, 7, active=True)]


@pytest.mark.parametrize(("log_start", "gone"), [(0, []), (1, []), (2, [0]), (3, [0]), (7, [0, 2, 4])])
def test_segments_below_the_log_start_expire(log_start: int, gone: list[int]) -> None:
    expiry = plan(FOUR, log_start=log_start, retention_ms=-1)
    assert [item.segment.base for item in expiry.expired] == gone
    assert expiry.log_start == log_start


@pytest.mark.parametrize(
    ("limit", "log_start"),
    [(281, 0), (280, 0), (211, 0), (210, 2), (141, 2), (140, 4), (139, 4), (70, 6), (0, 7), (-1, 0)],
)
def test_size_rule_keeps_at_least_retention_bytes(limit: int, log_start: int) -> None:
    expiry = plan(FOUR, retention_ms=-1, retention_bytes=limit)
    assert expiry.log_start == log_start
    assert sum(each.segment.size for each in expiry.expired) == 70 * len(expiry.expired)


def test_active_segment_expires_after_all_its_records() -> None:
    found = [row(0, 2, max_ts=10), row(2, 5, max_ts=20, active=True)]
    assert plan(found, now_ms=1020, retention_ms=1000).log_start == 2
    expiry = plan(found, now_ms=1021, retention_ms=1000)
    assert (expiry.log_start, len(expiry.expired)) == (5, 2)


def test_empty_active_segment_is_kept() -> None:
    expiry = plan(
        [row(5, 5, size=0, max_ts=-1, active=True)], now_ms=10**15, log_start=5, retention_ms=0, retention_bytes=0
    )
    assert (expiry.log_start, expiry.expired) == (5, ())


def test_future_timestamp_keeps_all_later_segments() -> None:
    found = [row(0, 2, max_ts=10), row(2, 4, max_ts=10**15), row(4, 5, max_ts=10, active=True)]
    assert plan(found, now_ms=10**9, retention_ms=1000).log_start == 2


def test_log_start_inside_a_segment_never_moves_backwards() -> None:
    found = [row(0, 2, max_ts=10), row(2, 6, max_ts=10**15), row(6, 7, active=True)]
    assert plan(found, now_ms=10**9, log_start=4, retention_ms=1000).log_start == 4


def test_size_rule_applies_to_the_remaining_segments() -> None:
    """Two of four segments are below the log start; of the remaining 140 bytes, one segment exceeds the limit of 70."""
    expiry = plan(FOUR, log_start=4, retention_ms=-1, retention_bytes=70)
    assert [(item.segment.base, item.reason) for item in expiry.expired] == [(0, START), (2, START), (4, SIZE)]
    assert expiry.log_start == 6


def test_compacted_topic_only_expires_below_its_log_start() -> None:
    expiry = plan(FOUR, now_ms=10**15, log_start=2, cleanup_policy="compact", retention_ms=0, retention_bytes=0)
    assert [(item.segment.base, item.reason) for item in expiry.expired] == [(0, START)]


def test_log_start_after_a_gap_is_the_next_base_offset() -> None:
    found = [row(0, 2, max_ts=10), row(8, 9, max_ts=10**15, active=True)]
    assert plan(found, now_ms=10**9, retention_ms=1).log_start == 8


@pytest.mark.parametrize(("modified", "log_start"), [(None, 0), (500, 2), (5000, 0)])
def test_segments_without_timestamps_use_the_file_time(modified: int | None, log_start: int) -> None:
    found = [row(0, 2, max_ts=-1), row(2, 3, max_ts=5000, active=True)]
    expiry = plan_expiry(
        found,
        partition=0,
        log_start=0,
        log_end=3,
        high_watermark=3,
        configs=TopicConfigs.of({"retention.ms": 1000}),
        now_ms=5500,
        modified_ms=None if modified is None else lambda segment: modified,
    )
    assert expiry.log_start == log_start
