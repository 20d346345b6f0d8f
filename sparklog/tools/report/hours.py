"""Count by the hour: commits, and stored bytes by the times of their records; no record is read for it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sparklog.kafka.in_place.partition_state import PartitionState
from sparklog.log.state.slice_table import Slices
from sparklog.tools.report.report_data import HOURS
from sparklog.units import HOUR_MS

BLOCK = 4096
Times = npt.NDArray[np.int64]


def edges(now_ms: int) -> Times:
    """Return where the last `HOURS` hours by the clock begin, and where the last of them, the current one, ends."""
    end = (now_ms // HOUR_MS + 1) * HOUR_MS
    return end - HOUR_MS * np.arange(HOURS, -1, -1, dtype=np.int64)


def events_by_hour(times: Times, now_ms: int) -> tuple[int, ...]:
    return _counted(times[times <= now_ms], None, now_ms)


def slices_by_hour(slices: Slices, now_ms: int) -> tuple[int, ...]:
    """Return bytes, those of a slice spread evenly over the times of its records."""
    limits = edges(now_ms)
    near = (slices.max_ts >= limits[0]) & (slices.min_ts >= 0)
    first, size = slices.min_ts[near], slices.size[near]
    span = slices.max_ts[near] - first + 1
    before = np.zeros(len(limits))
    for row in range(0, len(first), BLOCK):
        part = slice(row, row + BLOCK)
        before += np.clip((limits[:, None] - first[part]) / span[part], 0, 1) @ size[part]
    return tuple(np.diff(before).round().astype(np.int64).tolist())


def blocks_by_hour(states: Iterable[PartitionState], now_ms: int) -> tuple[int, ...]:
    """Return bytes of a Kafka directory, those of a block by the time of its newest record."""
    times, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for segment in (segment for state in states for segment in state.segments):
        times.append(np.array(segment.block_timestamp, np.int64))
        starts = np.array([*segment.block_position, segment.end], np.int64)
        sizes.append(starts[1:] - starts[:-1])
    return _counted(np.concatenate(times), np.concatenate(sizes), now_ms)


def _counted(times: Times, weights: Times | None, now_ms: int) -> tuple[int, ...]:
    counts, _ = np.histogram(times, edges(now_ms), weights=weights)
    return tuple(int(number) for number in counts)
