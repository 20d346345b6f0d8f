"""The search for the maximum timestamp in a view of a list."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from sparklog.log.read.time_lookup import offsets_of_max_timestamp
from sparklog.log.state.view import READ_UNCOMMITTED, Bounds, TimestampOffset

TIMES = st.integers(-1, 50) | st.integers(1_700_000_000_000, 1_700_100_000_000) | st.integers(2**63 - 3, 2**63 - 1)


class ListView:
    """The part of `LogView` that the search uses: timestamps by offset, per partition. Counts lookups."""

    def __init__(self, timestamps: Mapping[int, list[int]]) -> None:
        self.timestamps = timestamps
        self.questions = 0

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        return {
            partition: Bounds(0, len(times), len(times), len(times)) for partition, times in self.timestamps.items()
        }

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[int, TimestampOffset | None]:
        self.questions += 1
        return {partition: self._first(partition, target) for partition, target in targets.items()}

    def _first(self, partition: int, target: int) -> TimestampOffset | None:
        found = (TimestampOffset(n, time) for n, time in enumerate(self.timestamps[partition]) if time >= target)
        return next(found, None)


@given(st.dictionaries(st.integers(0, 3), st.lists(TIMES, max_size=9), max_size=3))
def test_max_timestamp_returns_the_first_such_record(timestamps: dict[int, list[int]]) -> None:
    view = ListView(timestamps)
    expected = {}
    for partition, times in timestamps.items():
        largest = max(times, default=-1)
        expected[partition] = TimestampOffset(times.index(largest), largest) if largest >= 0 else None
    assert offsets_of_max_timestamp(view, "t") == expected  # type: ignore[arg-type]
    assert view.questions <= 140


def test_maximum_timestamp_takes_few_lookups() -> None:
    view = ListView({0: list(range(1_700_000_000_000, 1_700_086_400_000, 5_000))})
    assert offsets_of_max_timestamp(view, "t") == {0: TimestampOffset(17_279, 1_700_086_395_000)}  # type: ignore[arg-type]
    assert view.questions <= 70
