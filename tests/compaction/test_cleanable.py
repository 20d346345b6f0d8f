"""The range of a cleaning pass: comparison with Kafka's passes, and test vectors for other rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sparklog.compaction.clean_range import Cleanable, CleanerOffsets, cleanable
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import Segment
from tests.compaction.fixture_stages import Pass, all_passes


def found(one: Pass, segments: Sequence[Segment]) -> Cleanable:
    before = one.before
    return cleanable(
        segments,
        CleanerOffsets(0, before.first_dirty_offset, before.log_start, before.log_end, before.last_stable),
        before.configs,
        one.now_ms,
        before.first_batch_ts,
    )


@pytest.mark.parametrize("empty", [True, False], ids=["all", "without 0-byte segments"])
@pytest.mark.parametrize("one", all_passes(), ids=lambda each: each.name)
def test_the_range_agrees_with_kafkas_cleaner(one: Pass, empty: bool) -> None:
    told = one.after.cleaner
    mine = found(one, one.before.segments(empty=empty))
    assert mine.is_due == told["chosen"]
    if mine.is_due:
        assert (mine.first_dirty, mine.first_uncleanable) == (told["firstDirtyOffset"], told["firstUncleanableOffset"])
        assert (mine.clean_bytes, mine.cleanable_bytes) == (told["cleanBytes"], told["cleanableBytes"])
        assert mine.ratio == told["cleanableRatio"]
        below = [each for each in one.before.segments(empty=empty) if each.base < mine.first_uncleanable]
        assert list(mine.segments) == below


def segment(base: int, next_base: int, *, size: int = 100, max_ts: int = 1000, sealed: bool = True) -> Segment:
    return Segment(0, base, next_base, next_base, 0, 1, size, max_ts, max_ts, sealed=sealed, active=False)


def active(base: int, end: int) -> Segment:
    return replace(segment(base, end, sealed=False), active=True)


LOG = [segment(0, 10), segment(10, 20), segment(20, 30), active(30, 35)]


def plan(
    segments: Sequence[Segment] = LOG,
    *,
    first_dirty_offset: int = 0,
    log_start: int = 0,
    log_end: int = 35,
    last_stable: int = 35,
    now_ms: int = 10_000,
    asked: list[int] | None = None,
    **configs: object,
) -> Cleanable:
    def first_batch_ts(each: Segment) -> int:
        if asked is not None:
            asked.append(each.base)
        return each.first_ts

    named = {name.replace("_", "."): value for name, value in configs.items()}
    return cleanable(
        segments,
        CleanerOffsets(3, first_dirty_offset, log_start, log_end, last_stable),
        TopicConfigs.of({"cleanup.policy": "compact", **named}),
        now_ms,
        first_batch_ts,
    )


def test_everything_closed_below_the_last_stable_offset_is_cleanable() -> None:
    mine = plan()
    assert (mine.partition, mine.first_dirty, mine.first_uncleanable) == (3, 0, 30)
    assert (mine.clean_bytes, mine.cleanable_bytes, mine.ratio, mine.is_due) == (0, 300, 1.0, True)
    assert mine.segments == tuple(LOG[:3])


@pytest.mark.parametrize(("last_stable", "first_uncleanable"), [(35, 30), (30, 30), (29, 20), (20, 20), (5, 0)])
def test_an_open_transaction_holds_back_its_whole_segment(last_stable: int, first_uncleanable: int) -> None:
    mine = plan(last_stable=last_stable)
    assert mine.first_uncleanable == first_uncleanable
    assert [each.base for each in mine.segments] == [base for base in (0, 10, 20) if base < first_uncleanable]


def test_unsealed_segments_count_as_active() -> None:
    log = [segment(0, 10), segment(10, 20, sealed=False), segment(20, 30), active(30, 35)]
    mine = plan(log)
    assert (mine.first_uncleanable, mine.cleanable_bytes) == (10, 100)
    assert mine.segments == (log[0],)


def test_without_an_active_segment_the_log_end_is_the_limit() -> None:
    assert plan(LOG[:3], log_end=30, last_stable=30).first_uncleanable == 30
    assert plan([], log_end=30, last_stable=30) == Cleanable(3, 0, 30, 0, 0, 0.0, False, False, ())


@pytest.mark.parametrize(("cleaned", "first_dirty"), [(9, 10), (10, 10), (20, 20), (35, 35), (36, 10)])
def test_a_checkpoint_outside_the_log_starts_over_at_the_log_start(cleaned: int, first_dirty: int) -> None:
    assert plan(first_dirty_offset=cleaned, log_start=10).first_dirty == first_dirty


def test_a_segment_that_contains_the_checkpoint_is_clean_and_dirty() -> None:
    mine = plan(first_dirty_offset=15)
    assert (mine.first_dirty, mine.clean_bytes, mine.cleanable_bytes, mine.ratio) == (15, 200, 200, 0.5)
    assert not mine.is_due, "the ratio must exceed min.cleanable.dirty.ratio"
    assert plan(first_dirty_offset=15, min_cleanable_dirty_ratio=0.49).is_due


def test_a_clean_partition_is_not_due() -> None:
    mine = plan(first_dirty_offset=30, min_cleanable_dirty_ratio=0)
    assert (mine.first_uncleanable, mine.clean_bytes, mine.cleanable_bytes, mine.ratio) == (30, 300, 0, 0.0)
    assert not mine.is_due


def test_a_checkpoint_at_the_last_stable_offset_leaves_no_dirty_offsets() -> None:
    mine = plan(first_dirty_offset=25, last_stable=5)
    assert (mine.first_dirty, mine.first_uncleanable, mine.cleanable_bytes) == (25, 20, 0)
    assert not mine.is_due


def test_a_gap_belongs_to_the_segment_before_it() -> None:
    log = [replace(segment(0, 10), end=6), segment(10, 20), active(20, 20)]
    mine = plan(log, first_dirty_offset=8, log_end=20, last_stable=20)
    assert (mine.clean_bytes, mine.cleanable_bytes) == (100, 200)


@pytest.mark.parametrize(("lag", "first_uncleanable"), [(0, 30), (7999, 30), (8000, 30), (8001, 10), (9001, 0)])
def test_min_compaction_lag_protects_from_the_first_young_segment_on(lag: int, first_uncleanable: int) -> None:
    log = [segment(0, 10, max_ts=1000), segment(10, 20, max_ts=2000), segment(20, 30, max_ts=1500), active(30, 35)]
    assert plan(log, min_compaction_lag_ms=lag).first_uncleanable == first_uncleanable


def test_min_compaction_lag_checks_dirty_segments_only() -> None:
    log = [segment(0, 10, max_ts=9999), segment(10, 20), segment(20, 30), active(30, 35)]
    assert plan(log, min_compaction_lag_ms=100, first_dirty_offset=10).first_uncleanable == 30
    assert plan(log, min_compaction_lag_ms=100, first_dirty_offset=9).first_uncleanable == 0


@pytest.mark.parametrize(("lag", "overdue"), [(8999, True), (9000, False)])
def test_max_compaction_lag_overrides_the_dirty_ratio(lag: int, overdue: bool) -> None:
    asked: list[int] = []
    mine = plan(first_dirty_offset=20, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=lag, asked=asked)
    assert (mine.overdue, mine.is_due) == (overdue, overdue)
    assert asked == [20], "clean segments are not opened for it"


@pytest.mark.parametrize(("lag", "overdue"), [("8999", True), ("9000", False)])
def test_max_compaction_lag_may_be_a_root_default(lag: str, overdue: bool) -> None:
    own = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
    configs = TopicConfigs(own, {"max.compaction.lag.ms": lag})
    mine = cleanable(LOG, CleanerOffsets(3, 20, 0, 35, 35), configs, 10_000, lambda each: each.first_ts)
    assert (mine.overdue, mine.is_due) == (overdue, overdue)


def test_overdue_requires_a_timestamp_and_cleanable_offsets() -> None:
    late = {"max_compaction_lag_ms": 10, "min_cleanable_dirty_ratio": 1}
    assert not plan([segment(0, 10, max_ts=-1), active(10, 35)], **late).overdue
    assert not plan([segment(0, 10, max_ts=0), active(10, 35)], **late).overdue
    held = plan(first_dirty_offset=10, last_stable=10, **late)
    assert (held.overdue, held.clean_bytes, held.cleanable_bytes) == (True, 100, 0)
    assert not held.is_due


def test_without_max_compaction_lag_no_segment_is_opened() -> None:
    asked: list[int] = []
    plan(asked=asked)
    assert asked == []
