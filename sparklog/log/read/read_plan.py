"""Plan a read of a snapshot. A plan consists of parts, and each part is read by a task.

A plan contains offset ranges and their slices, so that tasks do not need to open the topic. With `read_committed`, a
plan excludes slices of aborted transactions, and offsets at or above the last stable offset. It also contains Kafka's
aborted transactions in imported slices, whose records must be skipped (`sparklog.log.read.aborted`). Offsets never
change, so a part remains valid even if maintenance rewrites the files: see `sparklog.log.read.fetch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Conflict, NotFound, Unavailable
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.read.planned_slices import ColumnRows, PlannedSlices, planned_ranges
from sparklog.log.state.slice_table import ABORTED, OPEN, Columns, ReadLatest, Slices, Snapshot
from sparklog.log.state.view import (
    COUNTED,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BatchRanges,
    Bounds,
    OffsetRange,
    PartitionSize,
    ReadPart,
    Stored,
)
from sparklog.storage.retries import Backoff
from sparklog.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.format.transaction_index import AbortedTransactions
    from sparklog.log.read.skipped import OnSkipped
    from sparklog.log.state.range_slices import RangeSlices
    from sparklog.log.state.topic_state import Offsets

BATCH_BYTES = 4 << 20


def check_isolation(isolation: str) -> str:
    if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise BadRequest(f"expected isolation level {READ_COMMITTED} or {READ_UNCOMMITTED}, found {isolation!r}")
    return isolation


def bounds_of(snapshot: Snapshot, ends: Offsets | None = None) -> dict[int, Bounds]:
    """Return the bounds of every partition. `ends` replaces the last stable offsets."""
    state = snapshot.state
    stable = (state.last_stable() if ends is None else ends).tolist()
    rows = zip(state.log_start.tolist(), state.log_end.tolist(), stable, strict=True)
    return {partition: Bounds(start, end, lso, end) for partition, (start, end, lso) in enumerate(rows)}


@dataclass(frozen=True, slots=True, eq=False)
class NativeReadPart:
    """An offset range of one partition of a native topic, with its slices. The part is picklable if its store is
    picklable.
    """

    store: Store
    topic_id: str
    range: OffsetRange
    isolation: str
    slices: PlannedSlices
    # if True, raise `NotFound` if the log start offset passes remaining offsets; if False, skip these offsets
    fail_on_data_loss: bool = True
    # only set for tables; `Conflict` is raised if this offset has increased and files are missing
    first_dirty_offset: int | None = None
    # picklable function that is called with each skipped range; if None, `Corrupt` is raised
    on_skipped: OnSkipped | None = None

    @property
    def records(self) -> int:
        return self._share("records")

    @property
    def nbytes(self) -> int:
        return self._share("size")

    def _share(self, column: str) -> int:
        # Assume that the contents of a slice are spread evenly over its offsets.
        base, end = self.slices.base, self.slices.end
        covered = np.clip(np.minimum(end, self.range.end) - np.maximum(base, self.range.start), 0, None)
        return int((self.slices.columns[column] * (covered / np.maximum(end - base, 1))).sum())

    def flat(self) -> tuple[Any, ...]:
        """Return all attributes except the store and the columns as plain values, which are fast to pickle."""
        offsets, slices = self.range, self.slices
        offset_range = offsets.topic, offsets.partition, offsets.start, offsets.end
        content = len(slices), slices.paths, slices.hidden
        policy = self.fail_on_data_loss, self.first_dirty_offset, self.on_skipped
        return self.topic_id, offset_range, self.isolation, content, policy

    def read(self, columns: Sequence[str], *, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        return read_parts([self], columns, batch_bytes=batch_bytes)

    def replan(self, opened: dict[tuple[str, str], ReadLatest], start: int) -> tuple[int, PlannedSlices]:
        """Plan the remaining offsets again. `opened` caches topics that have been opened for this purpose."""
        from sparklog.log.state.range_slices import select_ranges

        name, partition = self.range.topic, self.range.partition
        snapshot = self._newer(opened)
        state = snapshot.state
        if state.topic_id != self.topic_id:
            raise NotFound(
                f"topic {name} was deleted and recreated while it was being read: read the new topic from the start"
            )
        if self.first_dirty_offset is not None and int(state.first_dirty_offset[partition]) > self.first_dirty_offset:
            raise Conflict(f"{name}-{partition} was compacted while its table was being read: read the table again")
        log_start = int(state.log_start[partition])
        if log_start > start:
            if self.fail_on_data_loss:
                raise NotFound(
                    f"offset {start} of {name}-{partition} was deleted before it was read: the log now starts at "
                    f"offset {log_start}"
                )
            start = min(log_start, self.range.end)
        remaining = select_ranges({name: snapshot}, [replace(self.range, start=start)])
        return start, _planned(remaining, self.isolation)[0]

    def _newer(self, opened: dict[tuple[str, str], ReadLatest]) -> Snapshot:
        """Return a newer snapshot in which all offsets of the range are readable, as in the planned snapshot.

        The planning process may have read commits and decisions that a mount's name cache hides from this process. A
        plan that is based on an older state would skip the records of these commits.
        """
        from sparklog.log.decisions.decision_log import reader_of

        name, partition = self.range.topic, self.range.partition
        newer = opened.get((self.store.location, name))
        if newer is None:
            newer = opened[self.store.location, name] = reader_of(self.store, name)
        backoff = Backoff(SYSTEM)
        while True:
            snapshot = newer()
            bounds = bounds_of(snapshot).get(partition)
            is_reached = bounds is not None and bounds.end(self.isolation) >= self.range.end
            if is_reached or snapshot.state.topic_id != self.topic_id:
                return snapshot
            if not backoff.wait():
                planned = f"the plan of {name}-{partition} ends at offset {self.range.end}"
                raise Unavailable(f"{planned}, but this process cannot read up to this offset yet: try again later")


class TaskParts(tuple[Any, ...]):
    """The parts of one task. If all parts belong to native topics, they are pickled with one array per column."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        if not self or any(type(part) is not NativeReadPart or part.store is not self[0].store for part in self):
            return tuple, (list(self),)
        columns = _concatenated([part.slices.columns for part in self])
        return _unpickled, (self[0].store, columns, [part.flat() for part in self])


def _concatenated(columns: Sequence[Mapping[str, npt.NDArray[Any]]]) -> Columns:
    first, last = columns[0], columns[-1]
    rows = [item for item in columns if isinstance(item, ColumnRows)]
    is_one = len(rows) == len(columns) and all(a.whole is b.whole and a.high == b.low for a, b in pairwise(rows))
    if is_one and isinstance(first, ColumnRows) and isinstance(last, ColumnRows):
        return dict(ColumnRows(first.whole, first.low, last.high))
    return {name: np.concatenate([item[name] for item in columns]) for name in first}


def _unpickled(store: Store, columns: Columns, flat: Sequence[tuple[Any, ...]]) -> TaskParts:
    parts, low = [], 0
    for topic_id, offset_range, isolation, (count, paths, hidden), others in flat:
        slices = PlannedSlices(offset_range[0], offset_range[1], paths, ColumnRows(columns, low, low + count), hidden)
        parts.append(NativeReadPart(store, topic_id, OffsetRange(*offset_range), isolation, slices, *others))
        low += count
    return TaskParts(parts)


def read_parts(
    parts: Sequence[ReadPart], columns: Sequence[str], *, batch_bytes: int = BATCH_BYTES, threads: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yield the records of several parts.

    The records of a part are in offset order. Native parts are interleaved in the order of their files.

    `threads` is the number of threads that decode native parts, which does not affect the order. If `columns` is empty,
    the batches only have a number of rows.
    """
    if not columns:
        for batch in read_parts(parts, COUNTED, batch_bytes=batch_bytes, threads=threads):
            yield batch.select([])
        return
    opened: dict[tuple[str, str], ReadLatest] = {}
    for policy, group in groupby(parts, _policy):
        if policy is not None:
            from sparklog.log.read.decode_slices import read_cursors
            from sparklog.log.read.fetch import Cursor

            cursors = [
                Cursor(part.store, part.range, part.slices, partial(part.replan, opened), part.range.start)
                for part in group
                if isinstance(part, NativeReadPart)
            ]
            yield from read_cursors(cursors, columns, batch_bytes, threads, policy[0])
        else:
            for part in group:
                yield from part.read(columns, batch_bytes=batch_bytes)


def _policy(part: ReadPart) -> tuple[OnSkipped | None] | None:
    """Return the corruption policy of a native part, or None if the part is not native.

    Parts with the same policy are read together.
    """
    return (part.on_skipped,) if isinstance(part, NativeReadPart) else None


def plan_parts(selected: RangeSlices, isolation: str, on_skipped: OnSkipped | None = None) -> list[NativeReadPart]:
    """Return one part per non-empty range, in the given order.

    Raises `NotFound` if a partition does not exist, or if an offset is outside the bounds of this isolation level.
    """
    check_isolation(isolation)
    filled = [requested for requested in selected.ranges if requested.start < requested.end]
    bounds = {
        topic: bounds_of(selected.snapshots[topic]) for topic in dict.fromkeys(requested.topic for requested in filled)
    }
    for requested in filled:
        limits = check_partition(requested.topic, requested.partition, bounds[requested.topic])
        if requested.start < limits.log_start or requested.end > limits.end(isolation):
            raise NotFound(
                f"expected offsets {limits.log_start} to {limits.end(isolation)} of "
                f"{requested.topic}-{requested.partition} ({isolation}), found {requested.start} to {requested.end}"
            )
    parts = []
    for requested, slices in zip(selected.ranges, _planned(selected, isolation), strict=True):
        if requested.start < requested.end:
            snapshot = selected.snapshots[requested.topic]
            topic_id = snapshot.state.topic_id
            part = NativeReadPart(snapshot.store, topic_id, requested, isolation, slices, on_skipped=on_skipped)
            parts.append(part)
    return parts


def _planned(selected: RangeSlices, isolation: str) -> list[PlannedSlices]:
    """Return the slices of each range, with the range's aborted Kafka transactions."""
    hidden = _hidden(selected) if isolation == READ_COMMITTED else {}
    rows, cuts = selected.rows, selected.cuts
    if isolation == READ_COMMITTED:
        is_visible = _visible(rows)
        if not is_visible.all():
            rows, cuts = rows[is_visible], np.cumsum([0, *is_visible])[cuts]
    partitions = [(offsets.topic, offsets.partition) for offsets in selected.ranges]
    plans = planned_ranges(partitions, rows, cuts.tolist())
    for number, offsets in enumerate(selected.ranges if hidden else ()):
        aborted = hidden.get(partitions[number])
        covered = None if aborted is None else aborted.overlapping(offsets.start, offsets.end)
        if covered is not None and len(covered):
            plans[number] = replace(plans[number], hidden=covered)
    return plans


def _hidden(selected: RangeSlices) -> dict[tuple[str, int], AbortedTransactions | None]:
    """Return the aborted Kafka transactions in the ranges, by topic and partition."""
    from sparklog.log.state.slices import SliceFlag

    marked = {
        topic
        for topic in {offsets.topic for offsets in selected.ranges}
        if selected.snapshots[topic].slices.has_flag(SliceFlag.KAFKA_ABORTED)
    }
    if not marked:
        return {}
    # Import lazily, because most plans do not need modules that read files.
    from sparklog.log.read.aborted import aborted_ranges
    from sparklog.log.state.range_slices import spans_of

    # Search once per partition, because a long range may be divided into many ranges.
    filled = (offsets for offsets in selected.ranges if offsets.topic in marked and offsets.start < offsets.end)
    hidden = {}
    for (topic, partition), span in spans_of(filled).items():
        snapshot = selected.snapshots[topic]
        hidden[topic, partition] = aborted_ranges(snapshot.store, topic, snapshot.slices, partition, *span)
    return hidden


def check_partition(topic: str, partition: int, bounds: Mapping[int, Bounds]) -> Bounds:
    bound = bounds.get(partition)
    if bound is None:
        raise NotFound(f"topic {topic} has partitions 0 to {len(bounds) - 1}, found partition {partition!r}")
    return bound


def visible(slices: Slices, isolation: str) -> Slices:
    return slices[_visible(slices)] if isolation == READ_COMMITTED else slices


def _visible(slices: Slices) -> npt.NDArray[np.bool_]:
    is_visible: npt.NDArray[np.bool_] = (slices.status != ABORTED) & (slices.status != OPEN)
    return is_visible


def stored_in(selected: RangeSlices) -> list[Stored]:
    """Return the sizes of ranges, based on metadata. Each slice is one range with the maximum number of batches."""
    rows = selected.rows
    batches = np.minimum(rows.records, rows.size // HEADER_BYTES)
    runs = BatchRanges(rows.base, rows.end, rows.records, rows.size, batches).counted()
    contents = []
    spans = pairwise(selected.cuts.tolist())
    for offsets, (low, high), is_cut in zip(selected.ranges, spans, _cut(selected), strict=True):
        content = runs[low:high].clipped(offsets.start, offsets.end) if is_cut else runs[low:high]
        contents.append(Stored(offsets.start, offsets.end, content))
    return contents


def _cut(selected: RangeSlices) -> list[bool]:
    """Return, for each range, whether it starts or ends inside a slice."""
    start, end = np.array([(offsets.start, offsets.end) for offsets in selected.ranges], np.int64).reshape(-1, 2).T
    low, high = selected.cuts[:-1], selected.cuts[1:]
    is_cut = low < high
    first, last = low[is_cut], high[is_cut] - 1
    is_cut[is_cut] = (selected.rows.base[first] < start[is_cut]) | (selected.rows.end[last] > end[is_cut])
    result: list[bool] = is_cut.tolist()
    return result


def sizes_of(snapshot: Snapshot) -> list[PartitionSize]:
    rows = snapshot.slices.all()
    by_partition = []
    sealed, plain = rows.sealed(), rows.status != ABORTED
    for partition in range(snapshot.state.partitions):
        span = rows.partition_rows(partition)
        sizes, closed = rows.size[span], sealed[span]
        nbytes = int(sizes[~closed].sum()), int(sizes[closed].sum())
        records = int(rows.records[span][plain[span]].sum())
        by_partition.append(PartitionSize(snapshot.topic, partition, *nbytes, records, span.stop - span.start))
    return by_partition
