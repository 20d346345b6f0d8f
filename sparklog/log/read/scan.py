"""Plan what to read from a snapshot, and the parts that tasks read.

A plan names offsets and, so that tasks need not open the topic, the slices they lie in. Under `read_committed` slices
of aborted transactions are left out, what Kafka's own aborted transactions take back of imported slices goes along
(`sparklog.log.read.aborted`), and nothing at or above the last stable offset is planned. Offsets never change,
so a part stays right whatever maintenance does to the files: see `sparklog.log.read.fetch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sparklog.errors import BadRequest, NotFound
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.log.decisions.decision_log import reader_of
from sparklog.log.read.aborted import aborted_ranges, has_aborted
from sparklog.log.read.read_plan import PlannedSlices, planned_slices
from sparklog.log.state.slice_table import ABORTED, OPEN, Slices
from sparklog.log.state.view import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Bounds,
    OffsetRange,
    PartitionSize,
    ReadPart,
    Runs,
    Stored,
)
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.format.transaction_index import AbortedTransactions
    from sparklog.log.state.slice_table import Newer, Snapshot
    from sparklog.log.state.topic_state import Offsets


BATCH_BYTES = 4 << 20


def check_isolation(isolation: str) -> str:
    """Return `isolation` if it is one of Kafka's two levels, else raise `BadRequest`."""
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
    """A range of one partition of a native topic with the slices it lies in. Picklable if its store is.

    `fail_on_data_loss`: a log start that has passed offsets still wanted is an error (`NotFound`), else it is skipped.
    """

    store: Store
    topic_id: str
    range: OffsetRange
    isolation: str
    slices: PlannedSlices
    fail_on_data_loss: bool = True

    @property
    def records(self) -> int:
        """Records, estimated from the slices' counts."""
        return self._share("records")

    @property
    def nbytes(self) -> int:
        """Stored bytes, estimated."""
        return self._share("size")

    def _share(self, column: str) -> int:
        """The sum of a column over the range, each slice's amount spread evenly over its offsets."""
        base, end = self.slices.base, self.slices.end
        covered = np.clip(np.minimum(end, self.range.end) - np.maximum(base, self.range.start), 0, None)
        return int((self.slices.columns[column] * (covered / np.maximum(end - base, 1))).sum())

    def read(self, columns: Sequence[str], *, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield the records in offset order, as batches of about `batch_bytes` with exactly `columns`."""
        return read_parts([self], columns, batch_bytes=batch_bytes)


def read_parts(
    parts: Sequence[ReadPart], columns: Sequence[str], *, batch_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the records of several parts, each part's in offset order, native parts interleaved as their files are.

    Better than part by part for a task with many small parts: what lies together is fetched together, and small
    results are joined into batches of about `batch_bytes`. Errors: those of `NativeReadPart.read`, `Corrupt` and
    `NotFound` (data loss) among them.
    """
    opened: dict[tuple[str, str], Newer] = {}
    for native, group in groupby(parts, lambda part: isinstance(part, NativeReadPart)):
        if native:
            yield from _read_native(
                [part for part in group if isinstance(part, NativeReadPart)], opened, columns, batch_bytes
            )
        else:
            for part in group:
                yield from part.read(columns, batch_bytes=batch_bytes)


def _read_native(
    parts: list[NativeReadPart], opened: dict[tuple[str, str], Newer], columns: Sequence[str], batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    from sparklog.log.read.fetch import Cursor
    from sparklog.log.read.reading import read_cursors

    cursors = [
        Cursor(part.store, part.range, part.slices, _replanner(part, opened), part.range.start) for part in parts
    ]
    return read_cursors(cursors, columns, batch_bytes)


def _replanner(
    part: NativeReadPart, opened: dict[tuple[str, str], Newer]
) -> Callable[[int], tuple[int, PlannedSlices]]:
    """Return a function that plans a part's remaining offsets anew. `opened`: topics opened for that already."""

    def replan(start: int) -> tuple[int, PlannedSlices]:
        name = part.range.topic
        newer = opened.get((part.store.location, name))
        if newer is None:
            newer = opened[part.store.location, name] = reader_of(part.store, name)
        snapshot = newer()
        head = snapshot.head
        if head.topic_id != part.topic_id:
            raise NotFound(
                f"topic {name} was deleted and created again while it was read: start again from the new one"
            )
        log_start = int(head.log_start[part.range.partition])
        if log_start > start:
            if part.fail_on_data_loss:
                raise NotFound(
                    f"expected offset {start} of {name}-{part.range.partition}, found a log that starts at "
                    f"{log_start}: the records were deleted before they were read"
                )
            start = min(log_start, part.range.end)
        rest = replace(part.range, start=start)
        return start, _planned(snapshot, [rest], part.isolation)[0]

    return replan


def plan_parts(snapshot: Snapshot, ranges: Sequence[OffsetRange], isolation: str) -> list[NativeReadPart]:
    """Return one part per non-empty range of the snapshot's topic, in the order given.

    `NotFound` for a partition that does not exist, and for offsets below the log start or beyond what `isolation` sees.
    """
    check_isolation(isolation)
    bounds = bounds_of(snapshot)
    filled = [wanted for wanted in ranges if wanted.start < wanted.end]
    for wanted in filled:
        _check_range(wanted, bounds, isolation)
    planned = _planned(snapshot, filled, isolation)
    topic_id = snapshot.head.topic_id
    return [
        NativeReadPart(snapshot.store, topic_id, wanted, isolation, slices)
        for wanted, slices in zip(filled, planned, strict=True)
    ]


def _planned(snapshot: Snapshot, ranges: Sequence[OffsetRange], isolation: str) -> list[PlannedSlices]:
    """Return the slices of each range, with what Kafka's aborted transactions hide of them."""
    marked = isolation == READ_COMMITTED and has_aborted(snapshot.slices)
    hidden = _aborted_by_partition(snapshot, ranges) if marked else {}
    plans = []
    for wanted in ranges:
        slices = _visible(snapshot.slices.select(wanted.partition, wanted.start, wanted.end), isolation)
        aborted = hidden.get(wanted.partition)
        covered = None if aborted is None else aborted.overlapping(wanted.start, wanted.end)
        planned = planned_slices(snapshot.topic, wanted.partition, slices)
        plans.append(replace(planned, hidden=covered) if covered is not None and len(covered) else planned)
    return plans


def _aborted_by_partition(snapshot: Snapshot, ranges: Sequence[OffsetRange]) -> dict[int, AbortedTransactions]:
    """Look once for all ranges of a partition: a long one may be cut into many."""
    spans: dict[int, tuple[int, int]] = {}
    for wanted in ranges:
        low, high = spans.get(wanted.partition, (wanted.start, wanted.end))
        spans[wanted.partition] = min(low, wanted.start), max(high, wanted.end)
    by_partition = {
        partition: aborted_ranges(snapshot.store, snapshot.topic, snapshot.slices, partition, low, high)
        for partition, (low, high) in spans.items()
    }
    return {partition: aborted for partition, aborted in by_partition.items() if aborted is not None}


def check_partition(topic: str, partition: int, bounds: Mapping[int, Bounds]) -> Bounds:
    """Return the partition's bounds; `NotFound` if the topic has no such partition."""
    bound = bounds.get(partition)
    if bound is None:
        raise NotFound(f"expected partitions 0 to {len(bounds) - 1} of topic {topic}, found {partition}")
    return bound


def _check_range(wanted: OffsetRange, bounds: Mapping[int, Bounds], isolation: str) -> None:
    limits = check_partition(wanted.topic, wanted.partition, bounds)
    if wanted.start < limits.log_start or wanted.end > limits.end(isolation):
        raise NotFound(
            f"expected offsets {limits.log_start} to {limits.end(isolation)} of {wanted.topic}-{wanted.partition} "
            f"({isolation}), found {wanted.start} to {wanted.end}"
        )


def _visible(slices: Slices, isolation: str) -> Slices:
    """Leave out what `isolation` hides."""
    if isolation != READ_COMMITTED:
        return slices
    hidden = (slices.status == ABORTED) | (slices.status == OPEN)
    return slices[~hidden] if hidden.any() else slices


def stored_in(snapshot: Snapshot, wanted: OffsetRange) -> Stored:
    """Return the contents of a range, by metadata: a slice is a run, of as many batches as its bytes have room for."""
    slices = snapshot.slices.select(wanted.partition, wanted.start, wanted.end)
    batches = np.minimum(slices.records, slices.size // HEADER_BYTES)
    runs = Runs(slices.base, slices.end, slices.records, slices.size, batches)
    return Stored(wanted.start, wanted.end, runs.ordered().clipped(wanted.start, wanted.end))


def sizes_of(snapshot: Snapshot) -> list[PartitionSize]:
    """Return the size of each partition, from metadata alone."""
    rows = snapshot.slices.all()
    by_partition = []
    sealed, plain = rows.sealed(), rows.status != ABORTED
    for partition in range(snapshot.head.partitions):
        span = rows.partition_rows(partition)
        sizes, closed = rows.size[span], sealed[span]
        by_partition.append(
            PartitionSize(
                topic=snapshot.topic,
                partition=partition,
                append_bytes=int(sizes[~closed].sum()),
                sealed_bytes=int(sizes[closed].sum()),
                records=int(rows.records[span][plain[span]].sum()),
                slices=span.stop - span.start,
            )
        )
    return by_partition
