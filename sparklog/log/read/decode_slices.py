"""Decode fetched bytes to Arrow record batches. Runs in tasks only (loads the kernels).

Small slices of any partitions are decoded together, and small results joined, so that a thousand small slices do not
yield a thousand batches. Large slices are decoded a few record batches at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import Corrupt
from sparklog.format.arrow_numpy import fixed_array, repeated_text
from sparklog.format.batch_scan import crc_failures, crc_message, misplaced, scan_headers
from sparklog.format.decode import RecordColumns, decode
from sparklog.format.record_batch import BatchHeaders, DataLocation, as_bytes_array
from sparklog.log.read.damaged_slices import skipped
from sparklog.log.read.fetch import Cursor, FetchedBatches, Fetcher
from sparklog.log.read.record_batches import joined, schema_of
from sparklog.log.read.skipped import OnSkipped
from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.log.state.view import check_columns
from sparklog.storage.parallel_reads import UntilError, work_ahead

Int64s = npt.NDArray[np.int64]

DECODED = {"key", "value", "headers"}
ROW_BYTES = 40
"""Bytes of a record in Arrow without key, value and headers: offset, time, type, partition, three offsets."""
BATCHES_AT_ONCE = 256
"""Maximum number of batches to decode together, because the expansion of later batches may differ."""
FIRST_EXPANSION = 4.0
"""Decoded bytes per stored byte, assumed until the first batch is decoded."""


def read_cursors(
    cursors: Sequence[Cursor],
    columns: Sequence[str],
    batch_bytes: int,
    threads: int = 1,
    on_skipped: OnSkipped | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges. Report corrupt batches to `on_skipped`; None: raise `Corrupt` at the first."""
    return read_fetched(Fetcher(cursors, on_skipped=on_skipped), columns, batch_bytes, threads, on_skipped)


def read_fetched(
    pieces: Iterable[FetchedBatches],
    columns: Sequence[str],
    batch_bytes: int,
    threads: int = 1,
    on_skipped: OnSkipped | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of fetched batches, like `read_cursors`."""
    decoder = _Decoder(check_columns(columns), batch_bytes, on_skipped)
    runs = _runs(pieces, decoder, batch_bytes)
    decoded = map(decoder.run, runs) if threads == 1 else _in_threads(decoder, runs, threads)
    return joined(chain.from_iterable(decoded), batch_bytes)


def _in_threads(
    decoder: _Decoder, runs: Iterable[list[FetchedBatches]], threads: int
) -> Iterator[list[pa.RecordBatch]]:
    def decode_run(pieces: list[FetchedBatches]) -> tuple[list[pa.RecordBatch], UntilError[pa.RecordBatch]]:
        batches = UntilError(decoder.run(pieces))
        return list(batches), batches

    for batches, ended in work_ahead(decode_run, runs, threads):
        yield batches
        ended.raise_error()


def _runs(pieces: Iterable[FetchedBatches], decoder: _Decoder, batch_bytes: int) -> Iterator[list[FetchedBatches]]:
    """Yield groups of pieces to decode together: entire slices. Other pieces are groups of one."""
    run: list[FetchedBatches] = []
    filled = 0.0
    pieces = UntilError(pieces)
    for piece in pieces:
        alone = piece.cut or len(piece.data) < piece.slice.size
        grown = len(piece.data) * decoder.expansion
        if run and (alone or filled + grown > batch_bytes):
            yield run
            run, filled = [], 0.0
        if alone:
            yield [piece]
        else:
            run.append(piece)
            filled += grown
    yield run
    pieces.raise_error()


@dataclass(slots=True)
class _BatchRun:
    """Pieces back to back in one buffer, and the piece of each batch."""

    pieces: list[FetchedBatches]
    data: memoryview
    headers: BatchHeaders
    piece_of: Int64s
    shift: Int64s

    def __getitem__(self, batches: slice | npt.NDArray[np.bool_]) -> _BatchRun:
        return _BatchRun(self.pieces, self.data, self.headers[batches], self.piece_of[batches], self.shift[batches])

    def place(self) -> tuple[str | None, int]:
        first = self.pieces[0]
        return (first.slice.file, first.position) if len(self.pieces) == 1 else (None, 0)


class _Decoder:
    """Decoder of groups of pieces. Threads may share it, because the expansion that it measures is an estimate."""

    def __init__(self, columns: tuple[str, ...], batch_bytes: int, on_skipped: OnSkipped | None = None) -> None:
        self._on_skipped = on_skipped
        self.expansion = FIRST_EXPANSION
        self._learned = False
        self._columns = columns
        self._schema = schema_of(columns)
        self._batch_bytes = batch_bytes
        self._wanted = {*DECODED.intersection(columns), "offset", "timestamp"}
        self._topics: dict[str, pa.Array] = {}

    def run(self, pieces: list[FetchedBatches]) -> Iterator[pa.RecordBatch]:
        """Decode pieces together: one, or several that are whole and verified."""
        if len(pieces) == 1:
            yield from self._batches(pieces, pieces[0].data)
        elif pieces:
            data = _back_to_back([piece.data for piece in pieces])
            try:
                batches = list(self._batches(pieces, data))
            except Corrupt:
                # Decode one by one, to yield the valid batches and to report file and position in the error.
                for piece in pieces:
                    yield from self._batches([piece], piece.data)
                return
            yield from batches

    def _batches(self, pieces: list[FetchedBatches], data: memoryview) -> Iterator[pa.RecordBatch]:
        run = _laid_out(pieces, data)
        stored, opened = np.cumsum(run.headers.size), _opened_before(run.headers)
        low = 0
        while low < len(run.headers):
            # Decode one batch first, to measure how much stored bytes expand.
            room = self._batch_bytes / self.expansion if self._learned else 0.0
            reached = (int(stored[low - 1]) if low else 0) + room
            high = int(np.searchsorted(stored, reached, side="right"))
            many = int(np.searchsorted(opened, opened[low] + BATCHES_AT_ONCE))
            if self._learned and stored[-1] - reached < room / 2:
                high = len(stored)  # The rest is too small for a call of its own.
            high = max(low + 1, min(high, many))
            yield from self._sound(run[low:high])
            low = high

    def _sound(self, run: _BatchRun) -> Iterator[pa.RecordBatch]:
        """Decode batches; if some are corrupt, yield those before the first, or all others if they are skipped."""
        try:
            batch = self._batch(run)
        except Corrupt as error:
            if len(run.pieces) > 1:
                raise
            if len(run.headers) > 1:
                for row in range(len(run.headers)):
                    yield from self._sound(run[row : row + 1])
                return
            if self._on_skipped is None:
                raise
            piece, header = run.pieces[0], run.headers.row(0)
            start = max(header.base_offset + int(run.shift[0]), piece.start)
            end = min(int(run.headers.next_offset[0] + run.shift[0]), piece.end)
            position = piece.position + int(run.headers.position[0])
            self._on_skipped(skipped(piece.slice, position, header.size, start, end, error.message))
            return
        if batch.num_rows:
            yield batch

    def _batch(self, run: _BatchRun) -> pa.RecordBatch:
        first, (file, position) = run.pieces[0], run.place()
        records = self._offsets_only(run)
        if records is None:
            records = decode(
                run.data,
                run.headers,
                columns=self._wanted,
                offset_shift=first.slice.shift if len(run.pieces) == 1 else 0,
                start_offset=first.start if first.cut else None,
                end_offset=first.end if first.cut else None,
                check_crc=not first.verified,
                location=DataLocation(file, position),
            )
            if len(run.pieces) > 1:
                records.offset += np.repeat(run.shift, records.batch_rows)
        columns = [self._column(name, records, run) for name in self._columns]
        if len(records):
            arrays = [array for name in DECODED if (array := getattr(records, name)) is not None]
            grown = sum(array.nbytes for array in arrays) + ROW_BYTES * len(records)
            self.expansion, self._learned = max(1.0, grown / int(run.headers.size.sum())), True
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _offsets_only(self, run: _BatchRun) -> RecordColumns | None:
        """Return records without decoding batches, if only offsets are requested and none is missing; else None."""
        headers = run.headers
        cheap = not {"key", "value", "headers", "timestamp"}.intersection(self._columns)
        if not cheap or run.pieces[0].cut or (headers.count != headers.last_offset_delta + 1).any():
            return None
        if not run.pieces[0].verified:
            wrong = crc_failures(run.data, headers)
            if len(wrong):
                bad, (file, position) = int(wrong[0]), run.place()
                place, offset = position + int(headers.position[bad]), int(headers.base_offset[bad] + run.shift[bad])
                raise Corrupt(crc_message(headers, bad), file=file, position=place, offset=offset)
        before = np.cumsum(headers.count) - headers.count
        offsets = np.arange(headers.count.sum(), dtype=np.int64)
        offsets += np.repeat(headers.base_offset + run.shift - before, headers.count)
        types = headers.timestamp_type
        return RecordColumns(offsets, np.empty(0, np.int64), batch_rows=headers.count, batch_time_type=types)

    def _column(self, name: str, records: RecordColumns, run: _BatchRun) -> pa.Array:
        if name in DECODED:
            return getattr(records, name)
        if name == "offset":
            return fixed_array(records.offset, pa.int64())
        if name == "timestamp":
            return fixed_array(self._times(records, run), RECORD_SCHEMA.field("timestamp").type)
        if name == "timestampType":
            return fixed_array(np.repeat(records.batch_time_type, records.batch_rows).astype(np.int32), pa.int32())
        if name == "partition":
            return fixed_array(self._partitions(records, run), pa.int32())
        return self._topic(records, run)

    @staticmethod
    def _times(records: RecordColumns, run: _BatchRun) -> Int64s:
        """Return the timestamps. Batches without their own LogAppendTime have the commit's."""
        append_times = np.asarray([piece.slice.append_time for piece in run.pieces], np.int64)
        if (append_times < 0).all():
            return records.timestamp
        of_batch = np.where(run.headers.is_log_append_time, append_times[run.piece_of], -1)
        of_record = np.repeat(of_batch, records.batch_rows)
        return np.where(of_record >= 0, of_record, records.timestamp)

    @staticmethod
    def _partitions(records: RecordColumns, run: _BatchRun) -> npt.NDArray[np.int32]:
        numbers = np.asarray([piece.slice.partition for piece in run.pieces], np.int32)
        if (numbers == numbers[0]).all():
            return np.full(len(records), numbers[0], np.int32)
        return np.repeat(numbers[run.piece_of], records.batch_rows)

    def _topic(self, records: RecordColumns, run: _BatchRun) -> pa.Array:
        names = [piece.slice.topic for piece in run.pieces]
        if len(set(names)) == 1:
            return self._repeated(names[0], len(records))
        # Pieces of a topic are consecutive, so there are few groups.
        rows = np.bincount(run.piece_of, weights=records.batch_rows, minlength=len(names)).astype(np.int64)
        runs = groupby(zip(names, rows.tolist(), strict=True), itemgetter(0))
        return pa.concat_arrays([self._repeated(name, sum(count for _, count in group)) for name, group in runs])

    def _repeated(self, topic: str, n: int) -> pa.Array:
        made = self._topics.get(topic)
        if made is None or len(made) < n:
            made = self._topics[topic] = repeated_text(topic, n)
        return made.slice(0, n)


def _back_to_back(parts: list[memoryview]) -> memoryview:
    """Return the parts back to back, without a copy if they already are: slices that one request returned."""
    arrays = [as_bytes_array(part) for part in parts]
    edges = [array.__array_interface__["data"][0] for array in arrays]
    ends = [start + len(array) for start, array in zip(edges, arrays, strict=True)]
    if edges[1:] != ends[:-1] or any(part.obj is not parts[0].obj for part in parts):
        return memoryview(b"".join(parts))
    whole = as_bytes_array(parts[0].obj)
    start = edges[0] - whole.__array_interface__["data"][0]
    return whole[start : start + ends[-1] - edges[0]].data


def _opened_before(headers: BatchHeaders) -> Int64s:
    """Return for each batch the number of batches before it, without uncompressed messages of formats v0 and v1."""
    if headers.magic is None:
        return np.arange(len(headers), dtype=np.int64)
    counted = (~headers.is_legacy | (headers.codec != 0)).astype(np.int64)
    before: Int64s = np.cumsum(counted) - counted
    return before


def _laid_out(pieces: list[FetchedBatches], data: memoryview) -> _BatchRun:
    """Find the batches, and check what their checksums do not cover: that they fill the slice in offset order."""
    file, position = (pieces[0].slice.file, pieces[0].position) if len(pieces) == 1 else (None, 0)
    headers = pieces[0].headers if len(pieces) == 1 else None
    headers = scan_headers(data, file=file, file_position=position) if headers is None else headers
    lengths = np.asarray([len(piece.data) for piece in pieces], np.int64)
    starts = np.cumsum(lengths) - lengths
    piece_of = np.searchsorted(starts, headers.position, side="right") - 1
    shift = np.asarray([piece.slice.shift for piece in pieces], np.int64)[piece_of]
    begin, end = headers.base_offset + shift, headers.next_offset + shift
    low = np.asarray([piece.slice.base for piece in pieces], np.int64)[piece_of]
    high = np.asarray([piece.slice.end for piece in pieces], np.int64)[piece_of]
    dense = np.asarray([piece.slice.records == piece.slice.end - piece.slice.base for piece in pieces])[piece_of]
    wrong, _ = misplaced(headers, low, high, shift=shift, owner=piece_of)
    wrong[1:] |= dense[1:] & (piece_of[1:] == piece_of[:-1]) & (begin[1:] > end[:-1])
    if (headers.position.take(np.searchsorted(headers.position, starts), mode="clip") != starts).any():
        raise Corrupt("a slice does not begin with a record batch", file=file, position=position)
    if wrong.any():
        bad = int(np.argmax(wrong))
        raise Corrupt(
            f"a batch claims the offsets {begin[bad]} to {end[bad]}, which are not its own: restore the file",
            file=file,
            position=position + int(headers.position[bad]),
            offset=int(begin[bad]),
        )
    run = _BatchRun(pieces, data, headers, piece_of, shift)
    plain = ~headers.is_control & ~_hidden(run)
    return run if plain.all() else run[plain]


def _hidden(run: _BatchRun) -> npt.NDArray[np.bool_]:
    """Return bool[m]: the batches of Kafka's aborted transactions, as far as the reader is not to see them."""
    headers, slices = run.headers, [piece.slice for piece in run.pieces]
    batches = np.zeros(len(headers), np.bool_)
    hidden = {id(planned.hidden): planned.hidden for planned in slices if planned.hidden is not None}
    if not hidden:
        return batches
    owner = np.array([id(planned.hidden) for planned in slices], np.int64)[run.piece_of]
    transactional = headers.is_transactional & ~headers.is_control
    for key, aborted in hidden.items():
        rows = np.flatnonzero(transactional & (owner == key))
        batches[rows] = aborted.covers(headers.producer_id[rows], headers.base_offset[rows] + run.shift[rows])
    return batches
