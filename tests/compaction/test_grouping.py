"""The segments that a pass writes into one segment: comparison with Kafka's passes, and each limit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparklog.compaction.clean_range import group_segments
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import Segment
from tests.compaction.fixture_stages import Pass, all_passes


@pytest.mark.parametrize("one", [each for each in all_passes() if each.after.cleaner["chosen"]], ids=lambda o: o.name)
def test_each_group_is_one_of_the_segments_that_kafka_left(one: Pass) -> None:
    told, files = one.after.cleaner, one.before.files
    mine = [each for each in one.before.segments() if each.base < told["endOffset"]]
    sizes = [(len(files[each.first_row].index), len(files[each.first_row].time_index)) for each in mine]
    groups = group_segments(mine, sizes, one.before.configs, told["firstUncleanableOffset"])
    assert [each for group in groups for each in group] == mine
    rest = [each.base for each in one.before.segments()[len(mine) :]]
    assert [group[0].base for group in groups] + rest == [each["baseOffset"] for each in told["segmentsAfterCleaning"]]


def bases(
    sizes: Sequence[int],
    *,
    starts: Sequence[int] | None = None,
    first_uncleanable: int | None = None,
    indexes: Sequence[tuple[int, int]] | None = None,
    **configs: int,
) -> list[list[int]]:
    starts = starts or [10 * i for i in range(len(sizes))]
    end = first_uncleanable or starts[-1] + 10
    ends = [*starts[1:], end]
    segments = [
        Segment(0, start, stop, stop, i, 1, size, 0, 0, sealed=True, active=False)
        for i, (start, stop, size) in enumerate(zip(starts, ends, sizes, strict=True))
    ]
    named = TopicConfigs.of({name.replace("_", "."): value for name, value in configs.items()})
    groups = group_segments(segments, indexes or [(0, 0)] * len(sizes), named, end)
    return [[each.base for each in group] for group in groups]


def test_no_segments_yield_no_groups() -> None:
    assert group_segments([], [], TopicConfigs(), 0) == []


def test_a_group_is_filled_up_to_segment_bytes() -> None:
    assert bases([40, 60, 1, 99, 1], segment_bytes=100) == [[0, 10], [20, 30], [40]]


def test_a_segment_larger_than_segment_bytes_stays_alone() -> None:
    assert bases([10, 500, 10, 10], segment_bytes=100) == [[0], [10], [20, 30]]


def test_both_indexes_are_bounded() -> None:
    assert bases([1, 1, 1], indexes=[(16, 0), (16, 0), (8, 0)], segment_index_bytes=32) == [[0, 10], [20]]
    assert bases([1, 1, 1], indexes=[(0, 24), (0, 12), (0, 12)], segment_index_bytes=36) == [[0, 10], [20]]


def test_relative_offsets_stay_within_31_bits() -> None:
    most = 2**31 - 1
    assert bases([1, 1], starts=[5, 10], first_uncleanable=5 + most + 1) == [[5, 10]]
    assert bases([1, 1], starts=[5, 10], first_uncleanable=5 + most + 2) == [[5], [10]]
    assert bases([1, 1, 1], starts=[0, 20, most + 2]) == [[0], [20, most + 2]]


def test_an_empty_segment_may_exceed_the_relative_offset() -> None:
    assert bases([1, 0], starts=[0, 10], first_uncleanable=2**32) == [[0, 10]]
