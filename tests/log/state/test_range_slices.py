"""Selecting the slices of ranges in many topics at once returns the same as selecting from each topic."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from unittest.mock import DEFAULT, Mock

import pytest

from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.log.state import range_slices
from sparklog.log.state.range_slices import RangeSlices, select_ranges
from sparklog.log.state.slice_table import SliceTable, Snapshot
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import OffsetRange
from sparklog.testing.world import World
from tests.log.state.test_slice_table import random_chain
from tests.log.topics import Chain

Patch = pytest.MonkeyPatch
TEXTS = ("file", "txn")


def snapshots_of(chains: Mapping[str, Chain]) -> dict[str, Snapshot]:
    store = World().store
    return {topic: Snapshot(topic, store, chain.state, chain.table) for topic, chain in chains.items()}


def counted(patch: Patch, place: object, name: str) -> Mock:
    """Count the calls of a function or method."""
    real: Callable[..., object] = getattr(place, name)
    calls = Mock(wraps=real, side_effect=lambda *_: DEFAULT)
    patch.setattr(place, name, lambda *given: calls(*given))
    return calls


def check(selected: RangeSlices) -> None:
    """Check that the slices of each range are those in the table of its topic."""
    cuts = selected.cuts.tolist()
    assert cuts[0] == 0
    assert cuts[-1] == len(selected.rows)
    for offsets, low, high in zip(selected.ranges, cuts, cuts[1:], strict=False):
        alone = selected.snapshots[offsets.topic].slices.select(offsets.partition, offsets.start, offsets.end)
        rows = selected.rows[low:high]
        for name in COLUMN_TYPES:
            if name not in TEXTS:
                assert rows.columns[name].tolist() == alone.columns[name].tolist()
                assert rows.columns[name].dtype == alone.columns[name].dtype
        for text_of in ("path", "txn_id"):
            texts = [[getattr(part, text_of)(row) for row in range(len(part))] for part in (rows, alone)]
            assert texts[0] == texts[1]


@pytest.mark.parametrize("few", [0, 3, range_slices.FEW_SLICES])
@pytest.mark.parametrize("seed", range(4))
def test_selecting_from_many_topics_equals_selecting_from_each(seed: int, few: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(range_slices, "FEW_SLICES", few)
    rng = random.Random(seed)
    snapshots = snapshots_of({f"t{number}": random_chain(rng, rng.randrange(40)) for number in range(6)})
    ranges = []
    for _ in range(40):
        topic = rng.choice(list(snapshots))
        partition = rng.randrange(snapshots[topic].state.partitions + 2)
        ranges.append(OffsetRange(topic, partition, *sorted((rng.randrange(60), rng.randrange(60)))))
    check(select_ranges(snapshots, ranges))
    of_one = [offsets for offsets in ranges if offsets.topic == ranges[0].topic]
    check(select_ranges(snapshots, of_one))
    check(select_ranges(snapshots, of_one[:1]))
    check(select_ranges(snapshots, []))


def test_topics_with_few_commits_are_joined_into_one_table(monkeypatch: Patch) -> None:
    chains = {f"t{number}": Chain(2) for number in range(50)}
    for chain in chains.values():
        chain.append((1, 3))
    snapshots = snapshots_of(chains)
    columns_of, select = counted(monkeypatch, range_slices, "columns_of"), counted(monkeypatch, SliceTable, "select")
    assert not any(snapshot.slices.has_flag(SliceFlag.KAFKA_ABORTED) for snapshot in snapshots.values())
    assert [len(snapshot.slices) for snapshot in snapshots.values()] == [1] * 50
    selected = select_ranges(
        snapshots, [OffsetRange(topic, partition, 0, 3) for topic in chains for partition in (0, 1)]
    )
    assert selected.cuts.tolist() == sorted([*range(51), *range(50)])
    assert (columns_of.call_count, select.call_count) == (1, 0)
    assert all(snapshot.slices.parts_and_pending()[0] == () for snapshot in snapshots.values())
    check(selected)


def test_only_requested_slices_of_a_large_topic_are_joined(monkeypatch: Patch) -> None:
    chains = {"few": Chain(1), "many": Chain(2)}
    chains["few"].append((0, 1))
    for _ in range(range_slices.FEW_SLICES + 1):
        chains["many"].append((0, 10), (1, 1))
    snapshots = snapshots_of(chains)
    in_order = counted(monkeypatch, range_slices, "in_order")
    selected = select_ranges(snapshots, [OffsetRange("many", 0, 15, 45), OffsetRange("few", 0, 0, 1)])
    ((columns, *_), _) = in_order.call_args
    assert len(columns["base"]) == 4 + 1
    assert selected.cuts.tolist() == [0, 4, 5]
    check(selected)
