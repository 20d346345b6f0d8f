"""Plan the tasks of a read, and read in a task: small ranges are packed into one task, big ones are split.

A task costs 15 to 30 ms in Python however little it reads, so a thousand partitions of a few records are a few tasks.
A range is split where it holds more than `SPLIT_BYTES` or `SPLIT_RECORDS`, where `maxRecordsPerPartition` asks for it,
and where fewer partitions than `minPartitions` are read: then there are as many tasks as Kafka's connector makes, and
none is shared. What counts is what is stored: offsets without records cost nothing, however many there are. Pieces
keep the order of the ranges and of their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from sparklog.datasource.options import ReadOptions
from sparklog.datasource.schema import Projection
from sparklog.datasource.spark_workers import user_errors, warn
from sparklog.errors import NotFound
from sparklog.log.read.read_plan import TaskParts
from sparklog.log.read.record_batches import joined
from sparklog.log.state.view import LogView, OffsetRange, ReadPart, Stored
from sparklog.opening import Location, open_view
from sparklog.storage.fork_safety import freeze_gc

PACK_BYTES = 16 << 20
PACK_RECORDS = 100_000
"""Stored bytes, or records (compressed bytes say little), that are worth a task: some 50 to 100 ms of work."""

PACK_PIECES = 512
"""Ranges in one task at most: each one costs at least a request."""
SPLIT_BYTES = 128 << 20
SPLIT_RECORDS = 1_000_000
"""Stored bytes, or records, beyond which a range is split, but never into more pieces than it has batches."""

UNDOUBTED = 10_000
"""Pieces that a user may ask for anyway; beyond, no more than stored bytes: headers can claim any number of records."""


@dataclass(frozen=True)
class TaskRange:
    """A range that one task reads whole; `records` and `nbytes` are estimated."""

    range: OffsetRange
    records: int
    nbytes: int


def split(
    ranges: Sequence[OffsetRange],
    stored: Sequence[Stored],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[TaskRange]:
    """Cut ranges (non-empty) into pieces of nearly equal numbers of records, those with many bytes further. Pure."""
    parts = [
        (wanted, part)
        for wanted, held in zip(ranges, stored, strict=True)
        for part in _by_records(held, 1 if max_records is None else -(-held.records // max_records))
    ]
    pieces: list[TaskRange] = []
    for (wanted, held), asked in zip(parts, _shares_of_tasks(parts, min_partitions), strict=True):
        records = held.records
        most = 1 if records <= SPLIT_RECORDS else min(-(-records // SPLIT_RECORDS), held.batches)
        for part in _by_records(held, max(asked, most)):
            nbytes = part.nbytes
            count = 1 if nbytes <= SPLIT_BYTES else min(-(-nbytes // SPLIT_BYTES), part.batches)
            for cut in _shares(part, part.at_bytes, nbytes, count):
                is_whole = cut.start == wanted.start and cut.end == wanted.end
                offsets = wanted if is_whole else replace(wanted, start=cut.start, end=cut.end)
                pieces.append(TaskRange(offsets, *((records, nbytes) if cut is held else (cut.records, cut.nbytes))))
    return pieces


def _shares_of_tasks(parts: Sequence[tuple[OffsetRange, Stored]], least: int | None) -> list[int]:
    """Return into how many tasks to cut each part, as Kafka's connector does for `minPartitions`. Pure.

    That makes about `least` tasks: parts worth one are taken off first, and the others share the rest by their size. A
    partition of which one part is worth a task is not cut further.
    """
    if least is None:
        return [1] * len(parts)
    sizes = [held.records for _, held in parts]
    if sum(size > 0 for size in sizes) >= least:
        return [1] * len(parts)
    places = [(wanted.topic, wanted.partition) for wanted, _ in parts]
    total = sum(sizes)
    small = {index for index, size in enumerate(sizes) if size > 0 and _share(size, total, least) == 1}
    whole = {places[index] for index in small}
    left, tasks = total - sum(sizes[index] for index in small), max(least - len(small), 1)
    return [
        1 if place in whole or not size else _share(size, left, tasks)
        for place, size in zip(places, sizes, strict=True)
    ]


def _share(size: int, total: int, tasks: int) -> int:
    """Return a part's share of tasks, rounded half up and at least one, by the same steps in doubles as on the JVM."""
    share = size / total * tasks
    return max(int(share) + (share % 1 >= 0.5), 1)


def _by_records(stored: Stored, count: int) -> list[Stored]:
    if count <= 1:
        return [stored]
    return _shares(stored, stored.at_records, stored.records, min(count, stored.records, max(stored.nbytes, UNDOUBTED)))


def _shares(stored: Stored, offsets_at: Callable[..., list[int]], amount: int, count: int) -> list[Stored]:
    """Cut into parts of nearly the same amount, the smaller ones first, as Kafka's connector does."""
    if count <= 1:
        return [stored]
    share, small = amount // count, count - amount % count
    cuts = offsets_at(*(share * index + max(0, index - small) for index in range(1, count)))
    return [stored.part(low, high) for low, high in pairwise(sorted({stored.start, *cuts, stored.end}))]


def pack(
    pieces: Sequence[TaskRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[list[TaskRange]]:
    """Put neighbouring pieces into tasks while they are small. Pure.

    With `min_partitions`, there are at least so many tasks (or one per piece), of at most their share of all records
    where pieces allow it; with `max_records`, a task has at most so many records.
    """
    records_each: float = PACK_RECORDS if max_records is None else min(PACK_RECORDS, max_records)
    if min_partitions is not None:
        records_each = min(records_each, sum(piece.records for piece in pieces) / min_partitions)
    tasks: list[list[TaskRange]] = []
    nbytes = records = 0
    for index, piece in enumerate(pieces):
        full = (
            not tasks
            or len(tasks) + len(pieces) - index <= (min_partitions or 0)
            or len(tasks[-1]) >= PACK_PIECES
            or nbytes + piece.nbytes > PACK_BYTES
            or records + piece.records > records_each
        )
        if full:
            tasks.append([])
            nbytes = records = 0
        tasks[-1].append(piece)
        nbytes += piece.nbytes
        records += piece.records
    return tasks


def split_and_pack(
    ranges: Sequence[OffsetRange],
    stored: Sequence[Stored],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[list[TaskRange]]:
    """Return the pieces of each task. Pure.

    Where `min_partitions` asks for more tasks than partitions hold records, none is shared: the numbers are Kafka's.
    """
    pieces = split(ranges, stored, min_partitions=min_partitions, max_records=max_records)
    if min_partitions is not None and sum(held.records > 0 for held in stored) < min_partitions:
        return [[piece] for piece in pieces]
    return pack(pieces, min_partitions=min_partitions, max_records=max_records)


def plan_tasks(
    view: LogView, ranges: Sequence[OffsetRange], isolation: str, keys: KeySet | None = None, **limits: int | None
) -> list[list[ReadPart]]:
    """Return the parts of each task for these ranges, from the view's snapshot; `limits` are those of `split`.

    `keys`: only what can hold them.
    """
    filled = [offsets for offsets in ranges if offsets.end > offsets.start]
    filled = filled if keys is None else keys.ranges(view, filled)
    tasks = split_and_pack(filled, view.stored(filled), **limits)
    listed = view.plan([piece.range for task in tasks for piece in task], isolation)
    parts = {part.range: part for part in (listed if keys is None else keys.parts(listed))}
    planned = [[part for piece in task if (part := parts.get(piece.range)) is not None] for task in tasks]
    return [task for task in planned if task]


if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.log.read.key_lookup import KeySet

BATCH_BYTES = 4 << 20
"""Batches of 1 to 8 MB pass fastest to the JVM; above 25 MB everything degrades."""


class LogPartition(InputPartition):  # type: ignore[misc]
    """The parts of one Spark task: `value` is a tuple of `ReadPart`s, which name offsets and no positions.

    With `view=table` they are `sparklog.log.read.table_plan.PartitionTable`s.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__(TaskParts(parts))


def log_partitions(view: LogView, ranges: Sequence[OffsetRange], read: ReadOptions) -> list[InputPartition]:
    limits = {"min_partitions": read.min_partitions, "max_records": read.max_records_per_partition}
    tasks = plan_tasks(view, ranges, read.isolation, read.keys, **limits)
    return [LogPartition(parts) for parts in tasks]


class ReadTask:
    def __init__(self, location: Location, options: ReadOptions, projection: Projection) -> None:
        self._location = location
        self._options = options
        self._projection = projection
        self._columns = projection.columns if options.keys is None else options.keys.columns(projection.columns)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read a task; without a partition, or with one without a value, Spark means that there is nothing to read."""
        from sparklog.format.kernels.kernel_choice import choice

        parts = () if partition is None else partition.value or ()
        with user_errors():
            records, keys = self._records(parts), self._options.keys
            for batch in joined(records if keys is None else keys.rows(records), BATCH_BYTES):
                shown = self._projection.to_spark(batch)
                freeze_gc("read", choice.loaded)
                yield shown

    def _records(self, parts: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        if self._options.is_table:
            from sparklog.log.read.latest_by_key import latest_records, read_part

            read = read_part if self._options.fail_on_data_loss else self._what_is_left
            yield from latest_records(parts, self._columns, read=read)
            return
        if self._options.fail_on_data_loss:
            from sparklog.log.read.read_plan import read_parts

            # Together: what lies side by side in a file is fetched once for all partitions of the task.
            yield from read_parts(parts, self._columns, batch_bytes=BATCH_BYTES)
            return
        for part in parts:
            yield from self._what_is_left(part, self._columns)

    def _what_is_left(self, part: ReadPart, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """With failOnDataLoss=false: leave out, with a warning, records that were deleted since the plan was made."""
        columns = tuple(dict.fromkeys((*names, "offset")))
        following = part.range.start
        try:
            for batch in part.read(columns, batch_bytes=BATCH_BYTES):
                if batch.num_rows:
                    following = batch.column("offset")[batch.num_rows - 1].as_py() + 1
                yield batch.select(names)
        except NotFound as error:
            for again in self._again(part, following, error):
                yield from again.read(names, batch_bytes=BATCH_BYTES)

    def _again(self, part: ReadPart, following: int, error: NotFound) -> Sequence[ReadPart]:
        """Plan what is left of a part after `following`; raise `error` if no record of it is gone.

        Nothing is left of a topic that was created again under the same name.
        """
        from sparklog.log.read.read_plan import NativeReadPart

        planned = part.range
        view = open_view(self._location, tailing=False, corrupt_records=self._options.corrupt_records)
        limits = None
        with suppress(NotFound):
            view.refresh([planned.topic])
            if not isinstance(part, NativeReadPart) or view.topic_id(planned.topic) == part.topic_id:
                limits = view.bounds(planned.topic).get(planned.partition)
        if limits is not None and limits.log_start <= following and limits.log_end >= planned.end:
            raise error
        warn(f"{error}; failOnDataLoss=false: reading goes on with what is left")
        if limits is None:
            return ()
        start, end = max(following, limits.log_start), min(planned.end, limits.log_end)
        left = OffsetRange(planned.topic, planned.partition, start, end)
        return view.plan([left], self._options.isolation) if start < end else ()
