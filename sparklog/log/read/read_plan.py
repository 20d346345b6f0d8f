"""Plan what to read from a snapshot, and the parts that tasks read.

A plan names offsets and, so that tasks need not open the topic, the slices they are in. Under `read_committed` slices
of aborted transactions are left out, what Kafka's own aborted transactions take back of imported slices goes along
(`sparklog.log.read.aborted`), and nothing at or above the last stable offset is planned. Offsets never change,
so a part stays right whatever maintenance does to the files: see `sparklog.log.read.fetch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.log.read.planned_slices import PlannedSlices, planned_slices
from sparklog.log.state.slice_table import ABORTED, OPEN, Columns, Newer, Slices, Snapshot
from sparklog.log.state.view import (
    COUNTED,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BatchRuns,
    Bounds,
    OffsetRange,
    PartitionSize,
    ReadPart,
    Stored,
)
from sparklog.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.format.transaction_index import AbortedTransactions
    from sparklog.log.state.topic_state import Offsets

BATCH_BYTES = 4 << 20


def check_isolation(isolation: str) -> str:
    if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise BadRequest(f"expected isolation {READ_COMMITTED} or {READ_UNCOMMITTED}, found {isolation!r}")
    return isolation


def bounds_of(snapshot: Snapshot, ends: Offsets | None = None) -> dict[int, Bounds]:
    """Return the bounds of every partition; `ends`: where to stop instead of the last stable offset."""
    head = snapshot.head
    stable = (head.last_stable() if ends is None else ends).tolist()
    rows = zip(head.log_start.tolist(), head.log_end.tolist(), stable, strict=True)
    return {partition: Bounds(start, end, lso, end) for partition, (start, end, lso) in enumerate(rows)}


@dataclass(frozen=True, slots=True, eq=False)
class NativeReadPart:
    """A range of one partition of a native topic with the slices it is in. Picklable if its store is.

    `fail_on_data_loss`: a log start that has passed offsets still wanted is an error (`NotFound`), else it is skipped.
    `cleaned_through`: of a table, whose read ends with `Conflict` if compaction has gone further and files are gone.
    """

    store: Store
    topic_id: str
    range: OffsetRange
    isolation: str
    slices: PlannedSlices
    fail_on_data_loss: bool = True
    cleaned_through: int | None = None

    @property
    def records(self) -> int:
        return self._share("records")

    @property
    def nbytes(self) -> int:
        return self._share("size")

    def _share(self, column: str) -> int:
        # Each slice's amount is spread evenly over its offsets.
        base, end = self.slices.base, self.slices.end
        covered = np.clip(np.minimum(end, self.range.end) - np.maximum(base, self.range.start), 0, None)
        return int((self.slices.columns[column] * (covered / np.maximum(end - base, 1))).sum())

    def flat(self) -> tuple[Any, ...]:
        """Return all but the store and the columns as plain values, which are quick to pickle: see `TaskParts`."""
        offsets, slices = self.range, self.slices
        place = offsets.topic, offsets.partition, offsets.start, offsets.end
        content = len(slices), slices.paths, slices.hidden
        return self.topic_id, place, self.isolation, content, (self.fail_on_data_loss, self.cleaned_through)

    def read(self, columns: Sequence[str], *, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        return read_parts([self], columns, batch_bytes=batch_bytes)

    def replan(self, opened: dict[tuple[str, str], Newer], start: int) -> tuple[int, PlannedSlices]:
        """Plan the remaining offsets again. `opened`: topics opened for that already."""
        from sparklog.log.decisions.decision_log import reader_of

        name, partition = self.range.topic, self.range.partition
        newer = opened.get((self.store.location, name))
        if newer is None:
            newer = opened[self.store.location, name] = reader_of(self.store, name)
        snapshot = newer()
        head = snapshot.head
        if head.topic_id != self.topic_id:
            raise NotFound(
                f"topic {name} was deleted and created again while it was read: start again from the new one"
            )
        if self.cleaned_through is not None and int(head.cleaned_through[partition]) > self.cleaned_through:
            raise Conflict(f"{name}-{partition} was compacted while its table was read: read it again")
        log_start = int(head.log_start[partition])
        if log_start > start:
            if self.fail_on_data_loss:
                raise NotFound(
                    f"expected offset {start} of {name}-{partition}, found a log that starts at {log_start}: the "
                    "records were deleted before they were read"
                )
            start = min(log_start, self.range.end)
        return start, _planned(snapshot, [replace(self.range, start=start)], self.isolation)[0]


class TaskParts(tuple[Any, ...]):
    """The parts of one task. Those of topics are pickled together, with one array for each column of all of them."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        if not self or any(type(part) is not NativeReadPart or part.store is not self[0].store for part in self):
            return tuple, (list(self),)
        names = self[0].slices.columns
        columns = {name: np.concatenate([part.slices.columns[name] for part in self]) for name in names}
        return _unpickled, (self[0].store, columns, [part.flat() for part in self])


def _unpickled(store: Store, columns: Columns, flat: Sequence[tuple[Any, ...]]) -> TaskParts:
    parts, low = [], 0
    for topic_id, place, isolation, (count, paths, hidden), others in flat:
        rows = {name: column[low : low + count] for name, column in columns.items()}
        slices = PlannedSlices(place[0], place[1], paths, rows, hidden)
        parts.append(NativeReadPart(store, topic_id, OffsetRange(*place), isolation, slices, *others))
        low += count
    return TaskParts(parts)


def read_parts(
    parts: Sequence[ReadPart], columns: Sequence[str], *, batch_bytes: int = BATCH_BYTES, threads: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yield the records of several parts, each part's in offset order, native parts interleaved as their files are.

    `threads`: how many decode records of native parts at once; the order is the same. Batches without columns have
    their rows, as Arrow's have.
    """
    if not columns:
        for batch in read_parts(parts, COUNTED, batch_bytes=batch_bytes, threads=threads):
            yield batch.select([])
        return
    opened: dict[tuple[str, str], Newer] = {}
    for native, group in groupby(parts, lambda part: isinstance(part, NativeReadPart)):
        if native:
            from sparklog.log.read.decode_slices import read_cursors
            from sparklog.log.read.fetch import Cursor

            cursors = [
                Cursor(part.store, part.range, part.slices, partial(part.replan, opened), part.range.start)
                for part in group
                if isinstance(part, NativeReadPart)
            ]
            yield from read_cursors(cursors, columns, batch_bytes, threads)
        else:
            for part in group:
                yield from part.read(columns, batch_bytes=batch_bytes)


def plan_parts(snapshot: Snapshot, ranges: Sequence[OffsetRange], isolation: str) -> list[NativeReadPart]:
    """Return one part per non-empty range of the snapshot's topic, in the order given.

    `NotFound` for a partition that does not exist, and for offsets below the log start or beyond what `isolation` sees.
    """
    check_isolation(isolation)
    bounds = bounds_of(snapshot)
    filled = [wanted for wanted in ranges if wanted.start < wanted.end]
    for wanted in filled:
        limits = check_partition(wanted.topic, wanted.partition, bounds)
        if wanted.start < limits.log_start or wanted.end > limits.end(isolation):
            raise NotFound(
                f"expected offsets {limits.log_start} to {limits.end(isolation)} of {wanted.topic}-{wanted.partition} "
                f"({isolation}), found {wanted.start} to {wanted.end}"
            )
    planned = _planned(snapshot, filled, isolation)
    topic_id = snapshot.head.topic_id
    return [
        NativeReadPart(snapshot.store, topic_id, wanted, isolation, slices)
        for wanted, slices in zip(filled, planned, strict=True)
    ]


def _planned(snapshot: Snapshot, ranges: Sequence[OffsetRange], isolation: str) -> list[PlannedSlices]:
    """Return the slices of each range, with what Kafka's aborted transactions hide of them."""
    from sparklog.log.state.slices import SliceFlag

    hidden: dict[int, AbortedTransactions | None] = {}
    if isolation == READ_COMMITTED and snapshot.slices.has_flag(SliceFlag.KAFKA_ABORTED):
        # Other plans need nothing that reads files.
        from sparklog.log.read.aborted import aborted_ranges

        # Once for all ranges of a partition: a long one may be cut into many.
        spans: dict[int, tuple[int, int]] = {}
        for offsets in ranges:
            low, high = spans.get(offsets.partition, (offsets.start, offsets.end))
            spans[offsets.partition] = min(low, offsets.start), max(high, offsets.end)
        for partition, span in spans.items():
            hidden[partition] = aborted_ranges(snapshot.store, snapshot.topic, snapshot.slices, partition, *span)
    rows, cuts = _selected(snapshot, ranges)
    if isolation == READ_COMMITTED:
        is_visible = _visible(rows)
        if not is_visible.all():
            rows, cuts = rows[is_visible], np.cumsum([0, *is_visible])[cuts]
    plans = []
    for offsets, (low, high) in zip(ranges, pairwise(cuts.tolist()), strict=True):
        aborted = hidden.get(offsets.partition)
        covered = None if aborted is None else aborted.overlapping(offsets.start, offsets.end)
        planned = planned_slices(snapshot.topic, offsets.partition, rows, low, high)
        plans.append(replace(planned, hidden=covered) if covered is not None and len(covered) else planned)
    return plans


def _selected(snapshot: Snapshot, ranges: Sequence[OffsetRange]) -> tuple[Slices, Offsets]:
    if len(ranges) == 1:
        # One partition in each of a thousand topics.
        rows = snapshot.slices.select(ranges[0].partition, ranges[0].start, ranges[0].end)
        return rows, np.array([0, len(rows)])
    columns = [(offsets.partition, offsets.start, offsets.end) for offsets in ranges]
    return snapshot.slices.select_each(*np.array(columns, np.int64).reshape(-1, 3).T)


def check_partition(topic: str, partition: int, bounds: Mapping[int, Bounds]) -> Bounds:
    bound = bounds.get(partition)
    if bound is None:
        raise NotFound(f"expected partitions 0 to {len(bounds) - 1} of topic {topic}, found {partition!r}")
    return bound


def visible(slices: Slices, isolation: str) -> Slices:
    return slices[_visible(slices)] if isolation == READ_COMMITTED else slices


def _visible(slices: Slices) -> npt.NDArray[np.bool_]:
    is_visible: npt.NDArray[np.bool_] = (slices.status != ABORTED) & (slices.status != OPEN)
    return is_visible


def stored_in(snapshot: Snapshot, ranges: Sequence[OffsetRange]) -> list[Stored]:
    """Return the contents of ranges, by metadata: a slice is a run, of as many batches as its bytes have room for."""
    rows, cuts = _selected(snapshot, ranges)
    batches = np.minimum(rows.records, rows.size // HEADER_BYTES)
    runs = BatchRuns(rows.base, rows.end, rows.records, rows.size, batches).counted()
    contents = []
    for offsets, (low, high) in zip(ranges, pairwise(cuts.tolist()), strict=True):
        content = runs[low:high]
        if low < high and (content.base[0] < offsets.start or content.end[-1] > offsets.end):
            content = content.clipped(offsets.start, offsets.end)
        contents.append(Stored(offsets.start, offsets.end, content))
    return contents


def sizes_of(snapshot: Snapshot) -> list[PartitionSize]:
    rows = snapshot.slices.all()
    by_partition = []
    sealed, plain = rows.sealed(), rows.status != ABORTED
    for partition in range(snapshot.head.partitions):
        span = rows.partition_rows(partition)
        sizes, closed = rows.size[span], sealed[span]
        nbytes = int(sizes[~closed].sum()), int(sizes[closed].sum())
        records = int(rows.records[span][plain[span]].sum())
        by_partition.append(PartitionSize(snapshot.topic, partition, *nbytes, records, span.stop - span.start))
    return by_partition
