"""Segments in the slice table: Kafka's roll rule with one append per slice, and rolling by the clock."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.log.state.configs import CONFIGS, TopicConfigs
from sparklog.log.state.segments import MAX_RELATIVE_OFFSET, RollRule, Segment, is_roll_due, segments_of
from sparklog.log.state.slice_table import Slices, Texts
from sparklog.log.state.slices import SliceFlag, with_tier

WEEK_MS = 604_800_000
RULE = RollRule(1000, WEEK_MS)


def table(*rows: tuple[int, int, int, int], sealed: tuple[int, ...] = ()) -> Slices:
    """Return slices of partition 3 as (base, end, size, max timestamp). The rows in `sealed` are segments already."""
    columns = {name: np.zeros(len(rows), dtype) for name, dtype in COLUMN_TYPES.items()}
    for name, values in zip(("base", "end", "size", "max_ts"), zip(*rows, strict=True), strict=False):
        columns[name] = np.array(values, np.int64)
    columns["partition"][:] = 3
    columns["footer_length"][:] = 40
    columns["footer_length"][list(sealed)] = 0
    return Slices(columns, Texts(), Texts())


def cuts(slices: Slices, rule: RollRule = RULE, log_end: int | None = None) -> list[tuple[int, int, int]]:
    """Return (base, end, size) of each segment."""
    end = log_end if log_end is not None else int(slices.end[-1]) if len(slices) else 0
    return [(found.base, found.end, found.size) for found in segments_of(slices, 3, end, rule)]


def test_a_partition_without_slices_is_one_empty_active_segment() -> None:
    expected = Segment(3, 42, 42, 42, 0, 0, 0, -1, -1, sealed=False, active=True)
    assert segments_of(table(), 3, 42, RULE) == [expected]


def test_a_slice_that_fits_exactly_does_not_roll() -> None:
    slices = table((0, 10, 400, 5), (10, 20, 600, 6), (20, 21, 1, 7))
    assert cuts(slices) == [(0, 20, 1000), (20, 21, 1)]
    assert cuts(slices, RollRule(999, WEEK_MS)) == [(0, 10, 400), (10, 21, 601)]


def test_a_slice_larger_than_a_segment_is_a_segment() -> None:
    assert cuts(table((0, 1, 10, 5), (1, 9, 5000, 5), (9, 10, 10, 5))) == [(0, 1, 10), (1, 9, 5000), (9, 10, 10)]


def test_a_future_append_time_is_reduced_to_later_append_times() -> None:
    """The clock was a year ahead while offsets 10 to 30 were appended. No slice follows the last of these appends."""
    year, ahead = 365 * 86_400_000, 200_000
    stamps = (1000, year, year + 1, 2000, 3000 + ahead, 3000, year)
    slices = table(*((10 * i, 10 * i + 10, 1, stamp) for i, stamp in enumerate(stamps)))
    assert [each.max_ts for each in segments_of(slices, 3, 70, RULE)] == [1000, year + 1], "times of the data"
    slices.columns["flags"][:] = SliceFlag.LOG_APPEND_TIME
    assert [each.max_ts for each in segments_of(slices, 3, 70, RULE)] == [3000 + ahead, year]


def test_segments_roll_by_time_as_in_kafka() -> None:
    """With segment.ms=100, the timestamps 1000, 1100, 1101, 500, 1202 roll only before 1101 and before 1202."""
    stamps = (1000, 1100, 1101, 500, 1202)
    slices = table(*((i, i + 1, 1, stamp) for i, stamp in enumerate(stamps)))
    assert cuts(slices, RollRule(1000, 100)) == [(0, 2, 2), (2, 4, 2), (4, 5, 1)]


def test_a_segment_without_first_timestamp_does_not_roll_by_time() -> None:
    slices = table((0, 1, 1, -1), (1, 2, 1, 10**12), (2, 3, 1, 0))
    assert cuts(slices, RollRule(1000, 100)) == [(0, 3, 3)]


def merged(*rows: tuple[int, int, int]) -> Slices:
    """Return slices of ten offsets as (merge tier, min timestamp, max timestamp)."""
    slices = table(*((10 * i, 10 * i + 10, 1, row[2]) for i, row in enumerate(rows)))
    slices.columns["min_ts"][:] = [row[1] for row in rows]
    slices.columns["flags"][:] = [with_tier(0, row[0]) for row in rows]
    return slices


def test_a_segment_with_a_merged_first_slice_ages_from_its_first_append() -> None:
    rule = RollRule(1000, 100)
    slices = merged((3, 1000, 1080), (1, 1081, 1100), (0, 1101, 1101), (0, 1150, 1150))
    assert cuts(slices, rule) == [(0, 20, 2), (20, 40, 2)]
    assert [found.first_ts for found in segments_of(slices, 3, 40, rule)] == [1000, 1101]
    (alone,) = segments_of(merged((3, 1000, 1080)), 3, 10, rule)
    assert (is_roll_due(alone, rule, 1100), is_roll_due(alone, rule, 1101)) == (False, True)


def test_an_appended_slice_ages_from_its_maximum_timestamp() -> None:
    """As in Kafka, the age is that of the first append, whatever other timestamps the slice has."""
    slices = merged((0, 100, 1000), (0, 100, 1100), (0, 100, 1101))
    assert cuts(slices, RollRule(1000, 100)) == [(0, 20, 2), (20, 30, 1)]


@pytest.mark.parametrize(
    ("before", "first_ts"),
    [((0, 5, 1990), 1990), ((2, 5, 1990), 1990), ((0, 5, 40), 50), ((0, 5, 9999), 2080), ((0, -1, -1), 50)],
    ids=["late records", "merged too", "older than all of it", "stamped in the future", "without time"],
)
def test_late_records_in_a_merged_slice_do_not_close_its_segment(before: tuple[int, int, int], first_ts: int) -> None:
    """The first append of the slice is not much earlier than the latest record before it, and not later than its own
    latest record.
    """
    slices = merged(before, (3, 50, 2080))
    slices.columns["footer_length"][0] = 0
    assert segments_of(slices, 3, 20, RULE)[1].first_ts == first_ts


def test_a_merged_slice_without_timestamps_ages_from_its_append_time() -> None:
    (active,) = segments_of(merged((1, -1, 77)), 3, 10, RULE)
    assert active.first_ts == 77


def test_offsets_stay_within_31_bits_of_the_base() -> None:
    last = MAX_RELATIVE_OFFSET
    slices = table((0, 1, 1, 5), (1, last + 1, 1, 5), (last + 1, last + 2, 1, 5))
    assert cuts(slices) == [(0, last + 1, 2), (last + 1, last + 2, 1)]


def test_sealed_slices_are_segments_and_close_the_unsealed_segment_before_them() -> None:
    slices = table((0, 5, 10, 1), (7, 9, 10, 2), (9, 12, 10, 3), (12, 13, 10, 4), (13, 15, 10, 9), sealed=(1, 2))
    first, second, third, active = segments_of(slices, 3, 15, RULE)
    assert first == Segment(3, 0, 7, 5, 0, 1, 10, 1, 1, sealed=False, active=False)
    assert second == Segment(3, 7, 9, 9, 1, 1, 10, 2, 2, sealed=True, active=False)
    assert third == Segment(3, 9, 12, 12, 2, 1, 10, 3, 3, sealed=True, active=False)
    assert active == Segment(3, 12, 15, 15, 3, 2, 20, 4, 9, sealed=False, active=True)


def test_the_active_segment_after_a_sealed_slice_is_empty() -> None:
    found = segments_of(table((0, 5, 10, 1), sealed=(0,)), 3, 8, RULE)
    assert found[0].next_base == 8
    assert not found[0].active
    assert found[1:] == [Segment(3, 8, 8, 8, 1, 0, 0, -1, -1, sealed=False, active=True)]


def test_jitter_is_deterministic_per_segment() -> None:
    rule = RollRule(10**9, 1000, 400, "topic-one")
    lives = {(p, base): rule.lifetime_ms(p, base) for p in range(5) for base in range(40)}
    assert all(600 < life <= 1000 for life in lives.values())
    assert len(set(lives.values())) > 100
    assert lives == {place: RollRule(10**9, 1000, 400, "topic-one").lifetime_ms(*place) for place in lives}
    assert lives != {place: RollRule(10**9, 1000, 400, "topic-two").lifetime_ms(*place) for place in lives}
    life = lives[3, 0]
    assert cuts(table((0, 1, 1, 100), (1, 2, 1, 100 + life)), rule) == [(0, 2, 2)]
    assert cuts(table((0, 1, 1, 100), (1, 2, 1, 101 + life)), rule) == [(0, 1, 1), (1, 2, 1)]


def test_the_roll_rule_follows_the_topic_configs() -> None:
    plain = TopicConfigs.of({"segment.bytes": 5000, "segment.ms": 900, "segment.jitter.ms": 50})
    assert RollRule.of(plain, "t") == RollRule(5000, 900, 50, "t")
    assert RollRule.of(TopicConfigs(), "t") == RollRule(1 << 30, WEEK_MS, 0, "t")
    assert RollRule.of(plain.changed({"segment.jitter.ms": 10**6}), "t").jitter_ms == 900
    lag = {"max.compaction.lag.ms": 700, "segment.jitter.ms": 800}
    assert RollRule.of(plain.changed(lag), "t") == RollRule(5000, 900, 800, "t"), "a lag counts on compacted topics"
    compacted = plain.changed({**lag, "cleanup.policy": "compact,delete"})
    assert RollRule.of(compacted, "t") == RollRule(5000, 700, 700, "t")


def test_the_clock_closes_an_idle_active_segment() -> None:
    rule = RollRule(1000, 100)
    slices = table((0, 1, 1, 1000), (1, 2, 1, 1050))
    (active,) = segments_of(slices, 3, 2, rule)
    assert not is_roll_due(active, rule, 1100)
    assert is_roll_due(active, rule, 1101)
    assert not is_roll_due(replace(active, active=False), rule, 10**9)
    assert not is_roll_due(replace(active, first_ts=-1), rule, 10**9)
    assert not is_roll_due(segments_of(table(), 3, 2, rule)[0], rule, 10**9)


ROLLED_BY_KAFKA = [
    ("segments/data/seg-small-0", 8),
    ("segments/data/seg-small-1", 10),
    ("segments/data/seg-ms-0", 3),
    ("segments/data/seg-one-0", 1),
    ("transactions/data/txn-b-0", 7),
    ("transactions-tv0/data/txn-a-0", 2),
    ("transactions-tv0/data/txn-b-0", 9),
    ("retention/ms/before/expiring-0", 15),
    ("compaction/plain/before/compacted-0", 9),
]


@pytest.mark.parametrize(("folder", "segments"), ROLLED_BY_KAFKA)
def test_kafkas_appends_roll_where_kafka_rolled(fixtures: Path, folder: str, segments: int) -> None:
    """With one slice per batch of a Kafka log, the segments are those of Kafka's files."""
    partition = fixtures / folder
    description = json.loads((partition.parents[1] / "fixture.json").read_text())
    given_configs = description["configs"] if "configs" in description else description["topics"]
    given_configs = given_configs.get(partition.name.rpartition("-")[0], {}).get("configs", given_configs)
    known = {
        name.replace("internal.segment", "segment"): value
        for name, value in given_configs.items()
        if name in CONFIGS or name.startswith("internal.segment")
    }
    logs = sorted(partition.glob("*.log"))
    rows = [batch for log in logs for batch in batches(log.read_bytes())]
    found = cuts(table(*rows), RollRule.of(TopicConfigs.of(known), "t"))
    assert [(base, size) for base, _, size in found] == [(int(log.stem), log.stat().st_size) for log in logs]
    assert len(found) == segments


def batches(log: bytes) -> list[tuple[int, int, int, int]]:
    """Return base offset, next offset, size and maxTimestamp of each batch, without the decoder."""
    found, position = [], 0
    while position < len(log):
        base, length = struct.unpack_from(">qi", log, position)
        (last,), (stamp,) = (struct.unpack_from(form, log, position + at) for form, at in ((">i", 23), (">q", 35)))
        found.append((base, base + last + 1, length + 12, stamp))
        position += length + 12
    return found


def rolled(rows: list[tuple[int, int, int, int]], rule: RollRule) -> list[int]:
    """Apply Kafka's LogSegment.shouldRoll to appends. Return the base offsets of the segments."""
    bases: list[int] = []
    size = first_ts = 0
    for base, end, nbytes, stamp in rows:
        waited = stamp - first_ts if bases and first_ts >= 0 else 0
        if (
            not bases
            or size > rule.segment_bytes - nbytes
            or (size > 0 and waited > rule.lifetime_ms(3, bases[-1]))
            or end - 1 - bases[-1] > MAX_RELATIVE_OFFSET
        ):
            bases.append(base)
            size, first_ts = 0, stamp
        size += nbytes
    return bases


SLICES = st.lists(
    st.tuples(
        st.integers(1, 2**30), st.integers(0, 3), st.integers(1, 700), st.integers(-1, 500), st.integers(0, 9).map(bool)
    ),
    max_size=40,
)


@given(SLICES, st.integers(1, 2000), st.integers(1, 400), st.integers(0, 100))
@settings(max_examples=200, deadline=None)
def test_any_table_is_divided_by_the_rule_without_gaps(
    shape: list[tuple[int, int, int, int, bool]], segment_bytes: int, segment_ms: int, jitter_ms: int
) -> None:
    rule = RollRule(segment_bytes, segment_ms, min(jitter_ms, segment_ms), "t")
    rows, at = [], 0
    for length, gap, size, stamp, _ in shape:
        rows.append((at + gap, at + gap + length, size, stamp))
        at += gap + length
    sealed = tuple(i for i, row in enumerate(shape) if not row[4])
    found = segments_of(table(*rows, sealed=sealed), 3, at + 5, rule)
    assert [segment.active for segment in found] == [False] * (len(found) - 1) + [True]
    assert [segment.next_base for segment in found] == [segment.base for segment in found[1:]] + [at + 5]
    assert sum(segment.rows for segment in found) == len(rows)
    for segment in found:
        own = rows[segment.first_row : segment.first_row + segment.rows]
        if segment.rows:
            assert (segment.base, segment.end) == (own[0][0], own[-1][1])
            assert (segment.size, segment.first_ts) == (sum(row[2] for row in own), own[0][3])
            assert segment.max_ts == max(row[3] for row in own)
        assert segment.sealed == (segment.rows == 1 and segment.first_row in sealed)
    # After a sealed segment, the rule starts from the beginning.
    expected: list[int] = []
    run: list[tuple[int, int, int, int]] = []
    for i, row in enumerate(rows):
        if i in sealed:
            expected += [*rolled(run, rule), row[0]]
            run = []
        else:
            run.append(row)
    expected += rolled(run, rule) or [at + 5]
    assert [segment.base for segment in found] == expected
