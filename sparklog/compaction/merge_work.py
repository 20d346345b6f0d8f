"""A merge as a work item, which reads many small slices and writes one slice per contiguous offset range.

Batches are copied, and only their headers change. Base offsets are relative to the base offset of the new slice, and
include gaps. The leader epoch and the append time, which the old slices stored for their batches, are written into the
batches, and the CRCs are updated. The new slices are marked accordingly (`leader_epoch` -1, `TIMES_IN_BATCHES`). No
data is decompressed.

Inputs are read in *loads* of up to `load_bytes`, in the order of their files, so that adjacent slices of several
partitions are fetched with one request, into one buffer in the order of the output. Large slices are read in requests
of `request_bytes`, which suits the processor caches and the allocator better, or in windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog.compaction.seal_work import check_offsets, patch_batches, scan_slices
from sparklog.compaction.segment_writer import WrittenObjects
from sparklog.errors import Conflict
from sparklog.format.append_file import WrittenSlice, build_index
from sparklog.format.crc32c import crc32c
from sparklog.format.key_filter import FilterBuilder, KeyFilter, encode_filters
from sparklog.format.record_batch import BatchHeaders
from sparklog.format.transaction_index import AbortedTransactions, concatenate
from sparklog.limits import Limits
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.names import append_path, file_key, filter_path, is_commit
from sparklog.log.journal.numbered_objects import READ_AHEAD
from sparklog.log.read.aborted import aborted_of
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices, count_files
from sparklog.log.read.slice_files import MissingFile, check_slice, read_range, read_windows
from sparklog.log.state.commit import MERGE, Edit, Op
from sparklog.log.state.rewrites import Rewrite
from sparklog.log.state.slices import FileSlices, SliceFlag, with_tier
from sparklog.log.write.append_output import AppendOutput
from sparklog.maintenance.work_items import Progress, WorkReport, WorkResult, silent
from sparklog.storage.store import Store

Int64s = npt.NDArray[np.int64]
LARGE_SLICE_BYTES = 256 << 10
"""The average slice size at which one request per slice costs little compared with reading the data."""
NO_TIME = -1


@dataclass(frozen=True)
class MergeWork:
    """Merges each of `sources` into a slice of tier `tier`. Each attempt writes files with other names (`env`)."""

    store: Store
    topic: str
    topic_id: str
    read_version: int
    tier: int
    sources: tuple[PlannedSlices, ...]
    env: Env = field(default=SYSTEM, repr=False)
    op: ClassVar[Op] = MERGE

    @property
    def title(self) -> str:
        low, high = self.sources[0].partition, self.sources[-1].partition
        return f"merge {self.topic}-{low}" + (f" to {high}" if high != low else "")

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(source.partition for source in self.sources))

    @property
    def nbytes(self) -> int:
        return sum(source.nbytes for source in self.sources)

    @property
    def of_commits(self) -> bool:
        """True if some inputs are inline records."""
        return any(is_commit(path) for path in self.sources[0].paths)

    @property
    def file_count(self) -> int:
        return count_files(self.sources)

    def run(self, progress: Progress = silent) -> WorkResult:
        """Write the merged files. Raises `Corrupt` for a damaged input, and `Conflict` if an input was replaced."""
        started = self.env.now()
        runs = [_MergedRun(source) for source in self.sources]
        files = _MergeOutputs(self)
        try:
            for load in _loads([run for run in runs if run.nbytes], self.store.limits):
                for batches in _read(self.store, load):
                    files.add(batches)
                progress(sum(part.records for part in load), sum(part.nbytes for part in load))
            written = files.close()
        except MissingFile as missing:
            files.discard()
            raise Conflict(
                f"{missing.file}, which is in the plan for topic {self.topic}, does not exist, because it was merged "
                "or sealed, and then deleted, after the work was planned; run the compaction again"
            ) from None
        except BaseException:
            files.discard()
            raise
        seconds = self.env.elapsed_ms(started) / 1000
        return WorkResult(tuple(run.rewrite() for run in runs), written, _reports(self, runs, seconds))


class _MergedRun:
    """A contiguous range of input slices, and the slice that is written from it."""

    def __init__(self, source: PlannedSlices) -> None:
        self.source = source
        self.partition = source.partition
        self.live = [row for row in source.rows() if not row.aborted]
        self.nbytes = sum(row.size for row in self.live)
        self.base = self.live[0].base if self.live else 0
        self.offsets = self.live[-1].end - self.base if self.live else 0
        self.records = sum(row.records for row in self.live)

    def rewrite(self) -> Rewrite:
        start, end = int(self.source.base[0]), int(self.source.end[-1])
        return Rewrite(Edit(self.partition, start, end), self.source.inputs())

    def flags(self, tier: int) -> int:
        flags = 0
        for row in self.live:
            flags |= row.flags & ~SliceFlag.KEY_FILTER
        if flags & SliceFlag.LOG_APPEND_TIME:
            flags |= SliceFlag.TIMES_IN_BATCHES
        return with_tier(flags, tier)

    def aborted(self, store: Store) -> AbortedTransactions:
        """Return the transactions that were aborted by Kafka's markers in the inputs. Marker offsets are relative to
        the base offset.
        """
        marked = [row for row in self.live if row.flags & SliceFlag.KAFKA_ABORTED]
        aborted = concatenate([aborted_of(store, row) for row in marked])
        return replace(aborted, last_offsets=aborted.last_offsets - self.base)

    def times(self, latest: int) -> tuple[int, int]:
        """Return the smallest and largest timestamp.

        `latest` is the largest timestamp of the batches. If it is -1, no batch has a timestamp, and the largest
        timestamp is the time of the write.
        """
        oldest = min((row.min_ts for row in self.live if row.min_ts >= 0), default=NO_TIME)
        return oldest, latest if latest >= 0 else max(row.max_ts for row in self.live)


@dataclass(frozen=True, slots=True)
class _LoadPart:
    """Adjacent inputs of a range. A small range has a single part."""

    run: _MergedRun
    rows: Sequence[PlannedSlice]
    nbytes: int

    @property
    def records(self) -> int:
        return sum(row.records for row in self.rows)

    @property
    def is_large(self) -> bool:
        """True if the slices are so large that this part is a load by itself."""
        return self.nbytes >= LARGE_SLICE_BYTES * len(self.rows)


def _loads(runs: Sequence[_MergedRun], limits: Limits) -> Iterator[list[_LoadPart]]:
    """Divide the inputs, in the order of the output, into loads. A slice that is too large is a load by itself."""
    load: list[_LoadPart] = []
    filled = 0
    for run in runs:
        for part in _parts(run, limits):
            if load and (part.is_large or load[-1].is_large or filled + part.nbytes > limits.load_bytes):
                yield load
                load, filled = [], 0
            load.append(part)
            filled += part.nbytes
    if load:
        yield load


def _parts(run: _MergedRun, limits: Limits) -> Iterator[_LoadPart]:
    limit = limits.request_bytes if _LoadPart(run, run.live, run.nbytes).is_large else limits.load_bytes
    rows: list[PlannedSlice] = []
    filled = 0
    for row in run.live:
        if rows and filled + row.size > limit:
            yield _LoadPart(run, rows, filled)
            rows, filled = [], 0
        rows.append(row)
        filled += row.size
    yield _LoadPart(run, rows, filled)


class _Rewritten(NamedTuple):
    """Batches in the form in which they are written into the slice of a range: their bytes and headers."""

    run: _MergedRun
    data: memoryview
    headers: BatchHeaders


def _read(store: Store, load: Sequence[_LoadPart]) -> Iterator[_Rewritten]:
    """Yield the rewritten batches of each part of a load. For a large slice, yield the batches of each window."""
    if len(load) == 1 and len(load[0].rows) == 1 and load[0].nbytes > store.limits.request_bytes:
        yield from _windows(store, load[0])
        return
    rows = [row for part in load for row in part.rows]
    ends = np.cumsum(np.array([row.size for row in rows], np.int64))
    starts = np.concatenate(([0], ends[:-1]))
    data = _fetch(store, rows, starts.tolist(), int(ends[-1]))
    headers, row_of = scan_slices(data, rows, starts)
    bases = np.repeat([part.run.base for part in load], [len(part.rows) for part in load])
    headers = patch_batches(data, headers, rows, row_of, bases)
    part_ends = ends[np.cumsum([len(part.rows) for part in load]) - 1]
    batch_ends = np.searchsorted(headers.position, part_ends).tolist()
    low = first = 0
    for part, high, last in zip(load, part_ends.tolist(), batch_ends, strict=True):
        part_headers = headers[first:last]
        yield _Rewritten(part.run, data[low:high], replace(part_headers, position=part_headers.position - low))
        low, first = high, last


def _windows(store: Store, part: _LoadPart) -> Iterator[_Rewritten]:
    """Yield the batches of a large slice in windows. The slice's checksum is verified when the last window is read."""
    (row,) = part.rows
    next_offset = 0
    for window in read_windows(store, row):
        headers, row_of = window.headers, np.zeros(len(window.headers), np.int64)
        check_offsets(headers, [row], row_of, np.array([row.position - window.start]), next_offset)
        next_offset = int(headers.next_offset[-1]) + row.shift
        data = memoryview(bytearray(window.data))
        yield _Rewritten(part.run, data, patch_batches(data, headers, [row], row_of, np.array([part.run.base])))


@dataclass(slots=True)
class _Request:
    """Adjacent slices of a file, given by row indices, that one request fetches."""

    file: str
    start: int
    nbytes: int
    rows: list[int]


def _requests(rows: Sequence[PlannedSlice], max_bytes: int) -> list[_Request]:
    requests: list[_Request] = []
    file, end, filled = "", 0, 0
    for i in sorted(range(len(rows)), key=lambda i: (rows[i].file, rows[i].position)):
        row = rows[i]
        if row.position == end and row.file == file and filled + row.size <= max_bytes:
            requests[-1].rows.append(i)
            filled += row.size
            requests[-1].nbytes = filled
        else:
            requests.append(_Request(row.file, row.position, row.size, [i]))
            file, filled = row.file, row.size
        end = row.position + row.size
    return requests


def _fetch(store: Store, rows: Sequence[PlannedSlice], starts: Sequence[int], total: int) -> memoryview:
    """Return all slices in one buffer. Each slice is verified, and is at its position in `starts`.

    If requests cost a round trip, several requests are in flight, with up to `request_bytes` in total. Requests that
    are larger than their share run one after the other.
    """
    data = np.empty(total, np.uint8).data

    def fetch(request: _Request) -> None:
        data_read = read_range(store, request.file, request.start, request.nbytes)
        for i in request.rows:
            row = rows[i]
            body = data_read[row.position - request.start :][: row.size]
            if crc32c(body) != row.crc:
                check_slice(body, row)
            data[starts[i] : starts[i] + row.size] = body

    share = store.limits.request_bytes // (1 if store.parallel_reads <= 1 else READ_AHEAD)
    requests = _requests(rows, share)
    if store.parallel_reads > 1:
        with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="sparklog-read") as pool:
            list(pool.map(fetch, [request for request in requests if request.nbytes <= share]))
        requests = [request for request in requests if request.nbytes > share]
    for request in requests:
        fetch(request)
    return data


class _MergeOutputs:
    """The files that are being written: a file for all small slices, and a file for each large slice. Ranges are
    written in order.
    """

    def __init__(self, work: MergeWork) -> None:
        self._work = work
        self._shared: AppendOutput | None = None
        self._bases: list[int] = []
        self._filters: list[KeyFilter] = []
        """The filters of the shared file."""
        self._written = WrittenObjects(work.store)
        """The files of the filters, which `discard` deletes."""
        self._current: _OutputSlice | None = None
        self._done: list[FileSlices] = []

    def add(self, batches: _Rewritten) -> None:
        run = batches.run
        if self._current is None or self._current.run is not run:
            self._current = _OutputSlice(run, self._output(run), self._work.store.limits.filter_min_bytes)
        current = self._current
        if current.add(batches.data, batches.headers):
            filters = current.end(self._work)
            if current.output is self._shared:
                self._bases.append(run.base)
                self._filters += filters
            else:
                self._done.append(self._close(current.output, (run.base,), filters))
            # Do this after the file is closed, because `discard` handles failures until then.
            self._current = None

    def close(self) -> tuple[FileSlices, ...]:
        if self._shared is not None:
            self._done.append(self._close(self._shared, tuple(self._bases), self._filters))
            self._shared = None
        return tuple(self._done)

    def _close(self, output: AppendOutput, bases: tuple[int, ...], filters: Sequence[KeyFilter]) -> FileSlices:
        """Write the filters of a file, if there are any, and then its footer."""
        if filters:
            self._written.create(filter_path(file_key(self._work.topic, output.path)), encode_filters(filters))
        file, n = output.close(), len(bases)
        return replace(file, base=bases, append_time=(NO_TIME,) * n, leader_epoch=(-1,) * n)

    def discard(self) -> None:
        """Delete the written files. Files that cannot be deleted are left to the vacuum."""
        outputs = [self._shared, None if self._current is None else self._current.output]
        self._shared = self._current = None
        for output in dict.fromkeys(outputs):
            if output is not None:
                output.discard()
        self._written.keys += [file_key(self._work.topic, file.path) for file in self._done]
        self._done.clear()
        self._written.discard()

    def _output(self, run: _MergedRun) -> AppendOutput:
        large, work = run.nbytes >= self._work.store.limits.own_file_bytes, self._work
        if self._shared is not None and not large:
            return self._shared
        output = AppendOutput(work.store, work.topic, append_path(work.read_version, work.env.new_id()))
        if not large:
            self._shared = output
        return output


class _OutputSlice:
    """An output slice that is being written."""

    def __init__(self, run: _MergedRun, output: AppendOutput, filter_min_bytes: int) -> None:
        self.run = run
        self.output = output
        self._crc = 0
        self._nbytes = 0
        self._index: list[tuple[Int64s, Int64s, Int64s]] = []
        self._keys = FilterBuilder() if run.nbytes >= filter_min_bytes else None

    def add(self, data: memoryview, headers: BatchHeaders) -> bool:
        self.output.write(data)
        if self._keys is not None:
            self._keys.add(data, headers)
        self._crc = crc32c(data, self._crc)
        self._index.append((headers.position + self._nbytes, headers.base_offset, headers.max_timestamp))
        self._nbytes += len(data)
        return self._nbytes == self.run.nbytes

    def end(self, work: MergeWork) -> list[KeyFilter]:
        """Finish the slice. Return the filter of its keys, or None if it has no filter."""
        keys = None if self._keys is None else self._keys.finish(self.output.position, self._nbytes, self._crc)
        positions, offsets, latest = (np.concatenate(columns) for columns in zip(*self._index, strict=True))
        min_ts, max_ts = self.run.times(int(latest.max()))
        self.output.end_slice(
            WrittenSlice(
                partition=self.run.partition,
                nbytes=self._nbytes,
                offsets=self.run.offsets,
                records=self.run.records,
                min_ts=min_ts,
                max_ts=max_ts,
                crc=self._crc,
                flags=self.run.flags(work.tier) | (0 if keys is None else SliceFlag.KEY_FILTER),
                index=build_index(positions, offsets, latest, self._nbytes),
                aborted=self.run.aborted(work.store),
            )
        )
        return [] if keys is None else [keys]


def _reports(work: MergeWork, runs: Sequence[_MergedRun], seconds: float) -> tuple[WorkReport, ...]:
    nbytes, reports = work.nbytes, []
    for partition, group in groupby(runs, key=lambda run: run.partition):
        partition_runs = list(group)
        before = sum(run.source.nbytes for run in partition_runs)
        reports.append(
            WorkReport(
                action=MERGE,
                topic=work.topic,
                partition=partition,
                records_before=sum(int(run.source.records.sum()) for run in partition_runs),
                records_after=sum(run.records for run in partition_runs),
                bytes_before=before,
                bytes_after=sum(run.nbytes for run in partition_runs),
                seconds=seconds * before / nbytes,
            )
        )
    return tuple(reports)
