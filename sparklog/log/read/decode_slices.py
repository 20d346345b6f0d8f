"""Decode fetched bytes to Arrow record batches. Runs only in tasks, because it loads the kernels.

Small slices of different partitions are decoded together, and small results are joined, so that a thousand small slices
do not result in a thousand record batches. Large slices are decoded a few Kafka batches at a time.
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
"""Size of a record in Arrow without key, value and headers. It includes the offset, the timestamp and its type, the
partition, and array offsets.
"""
MAX_BATCHES_PER_CALL = 256
"""Maximum number of batches to decode together. The limit is required because later batches may have another
compression ratio.
"""
FIRST_EXPANSION = 4.0
"""Assumed ratio of decoded bytes to stored bytes before the first batch is decoded."""


def read_cursors(
    cursors: Sequence[Cursor],
    columns: Sequence[str],
    batch_bytes: int,
    threads: int = 1,
    on_skipped: OnSkipped | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the ranges. Corrupt batches are reported to `on_skipped`. If `on_skipped` is None, `Corrupt`
    is raised at the first corrupt batch.
    """
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
    chunks = _chunks(pieces, decoder, batch_bytes)
    decoded = map(decoder.decode, chunks) if threads == 1 else _in_threads(decoder, chunks, threads)
    return joined(chain.from_iterable(decoded), batch_bytes)


def _in_threads(
    decoder: _Decoder, chunks: Iterable[list[FetchedBatches]], threads: int
) -> Iterator[list[pa.RecordBatch]]:
    def decode_chunk(pieces: list[FetchedBatches]) -> tuple[list[pa.RecordBatch], UntilError[pa.RecordBatch]]:
        batches = UntilError(decoder.decode(pieces))
        return list(batches), batches

    for batches, ended in work_ahead(decode_chunk, chunks, threads):
        yield batches
        ended.raise_error()


def _chunks(pieces: Iterable[FetchedBatches], decoder: _Decoder, batch_bytes: int) -> Iterator[list[FetchedBatches]]:
    """Yield lists of fetched batches to decode together. Only complete slices are grouped."""
    chunk: list[FetchedBatches] = []
    filled = 0.0
    pieces = UntilError(pieces)
    for piece in pieces:
        alone = piece.cut or len(piece.data) < piece.slice.size
        grown = len(piece.data) * decoder.expansion
        if chunk and (alone or filled + grown > batch_bytes):
            yield chunk
            chunk, filled = [], 0.0
        if alone:
            yield [piece]
        else:
            chunk.append(piece)
            filled += grown
    yield chunk
    pieces.raise_error()


@dataclass(slots=True)
class _DecodeChunk:
    """Fetched batches in one contiguous buffer. `piece_of` contains, for each batch, its index in `pieces`."""

    pieces: list[FetchedBatches]
    data: memoryview
    headers: BatchHeaders
    piece_of: Int64s
    shift: Int64s

    def __getitem__(self, batches: slice | npt.NDArray[np.bool_]) -> _DecodeChunk:
        return _DecodeChunk(self.pieces, self.data, self.headers[batches], self.piece_of[batches], self.shift[batches])

    def file_position(self) -> tuple[str | None, int]:
        first = self.pieces[0]
        return (first.slice.file, first.position) if len(self.pieces) == 1 else (None, 0)


class _Decoder:
    """Decodes fetched batches. Threads may share a decoder, because the measured expansion is only an estimate."""

    def __init__(self, columns: tuple[str, ...], batch_bytes: int, on_skipped: OnSkipped | None = None) -> None:
        self._on_skipped = on_skipped
        self.expansion = FIRST_EXPANSION
        self._is_measured = False
        self._columns = columns
        self._schema = schema_of(columns)
        self._batch_bytes = batch_bytes
        self._decoded_names = {*DECODED.intersection(columns), "offset", "timestamp"}
        self._topics: dict[str, pa.Array] = {}

    def decode(self, pieces: list[FetchedBatches]) -> Iterator[pa.RecordBatch]:
        """Decode the fetched batches of one slice, or the complete and verified batches of several slices together."""
        if len(pieces) == 1:
            yield from self._batches(pieces, pieces[0].data)
        elif pieces:
            data = _contiguous([piece.data for piece in pieces])
            try:
                batches = list(self._batches(pieces, data))
            except Corrupt:
                # Decode each slice separately, so that the valid batches are yielded and the error contains the file
                # and the position.
                for piece in pieces:
                    yield from self._batches([piece], piece.data)
                return
            yield from batches

    def _batches(self, pieces: list[FetchedBatches], data: memoryview) -> Iterator[pa.RecordBatch]:
        chunk = _checked_chunk(pieces, data)
        stored, opened = np.cumsum(chunk.headers.size), _opened_before(chunk.headers)
        low = 0
        while low < len(chunk.headers):
            # Decode one batch first, to measure how much the stored bytes expand.
            max_stored = self._batch_bytes / self.expansion if self._is_measured else 0.0
            reached = (int(stored[low - 1]) if low else 0) + max_stored
            high = int(np.searchsorted(stored, reached, side="right"))
            many = int(np.searchsorted(opened, opened[low] + MAX_BATCHES_PER_CALL))
            if self._is_measured and stored[-1] - reached < max_stored / 2:
                # The remaining batches are too small for a separate call, so decode them together with these batches.
                high = len(stored)
            high = max(low + 1, min(high, many))
            yield from self._valid_batches(chunk[low:high])
            low = high

    def _valid_batches(self, chunk: _DecodeChunk) -> Iterator[pa.RecordBatch]:
        """Decode batches, and yield the valid ones.

        If corrupt batches are not skipped, the first corrupt batch raises `Corrupt` after the valid batches before it.
        """
        try:
            batch = self._batch(chunk)
        except Corrupt as error:
            if len(chunk.pieces) > 1:
                raise
            if len(chunk.headers) > 1:
                for row in range(len(chunk.headers)):
                    yield from self._valid_batches(chunk[row : row + 1])
                return
            if self._on_skipped is None:
                raise
            piece, header = chunk.pieces[0], chunk.headers.row(0)
            start = max(header.base_offset + int(chunk.shift[0]), piece.start)
            end = min(int(chunk.headers.next_offset[0] + chunk.shift[0]), piece.end)
            position = piece.position + int(chunk.headers.position[0])
            self._on_skipped(skipped(piece.slice, position, header.size, start, end, error.message))
            return
        if batch.num_rows:
            yield batch

    def _batch(self, chunk: _DecodeChunk) -> pa.RecordBatch:
        first, (file, position) = chunk.pieces[0], chunk.file_position()
        records = self._offsets_only(chunk)
        if records is None:
            records = decode(
                chunk.data,
                chunk.headers,
                columns=self._decoded_names,
                offset_shift=first.slice.shift if len(chunk.pieces) == 1 else 0,
                start_offset=first.start if first.cut else None,
                end_offset=first.end if first.cut else None,
                check_crc=not first.verified,
                location=DataLocation(file, position),
            )
            if len(chunk.pieces) > 1:
                records.offset += np.repeat(chunk.shift, records.batch_rows)
        columns = [self._column(name, records, chunk) for name in self._columns]
        if len(records):
            arrays = [array for name in DECODED if (array := getattr(records, name)) is not None]
            grown = sum(array.nbytes for array in arrays) + ROW_BYTES * len(records)
            self.expansion, self._is_measured = max(1.0, grown / int(chunk.headers.size.sum())), True
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _offsets_only(self, chunk: _DecodeChunk) -> RecordColumns | None:
        """Return records without decoding batches.

        Return None if other columns are also requested, or if an offset has no record.
        """
        headers = chunk.headers
        cheap = not {"key", "value", "headers", "timestamp"}.intersection(self._columns)
        if not cheap or chunk.pieces[0].cut or (headers.count != headers.last_offset_delta + 1).any():
            return None
        if not chunk.pieces[0].verified:
            wrong = crc_failures(chunk.data, headers)
            if len(wrong):
                bad, (file, position) = int(wrong[0]), chunk.file_position()
                position, offset = (
                    position + int(headers.position[bad]),
                    int(headers.base_offset[bad] + chunk.shift[bad]),
                )
                raise Corrupt(crc_message(headers, bad), file=file, position=position, offset=offset)
        before = np.cumsum(headers.count) - headers.count
        offsets = np.arange(headers.count.sum(), dtype=np.int64)
        offsets += np.repeat(headers.base_offset + chunk.shift - before, headers.count)
        types = headers.timestamp_type
        return RecordColumns(offsets, np.empty(0, np.int64), batch_rows=headers.count, batch_time_type=types)

    def _column(self, name: str, records: RecordColumns, chunk: _DecodeChunk) -> pa.Array:
        if name in DECODED:
            return getattr(records, name)
        if name == "offset":
            return fixed_array(records.offset, pa.int64())
        if name == "timestamp":
            return fixed_array(self._times(records, chunk), RECORD_SCHEMA.field("timestamp").type)
        if name == "timestampType":
            return fixed_array(np.repeat(records.batch_time_type, records.batch_rows).astype(np.int32), pa.int32())
        if name == "partition":
            return fixed_array(self._partitions(records, chunk), pa.int32())
        return self._topic(records, chunk)

    @staticmethod
    def _times(records: RecordColumns, chunk: _DecodeChunk) -> Int64s:
        """Return the timestamps of the records. If a LogAppendTime batch does not store the append time, its records
        have the append time of the commit.
        """
        append_times = np.asarray([piece.slice.append_time for piece in chunk.pieces], np.int64)
        if (append_times < 0).all():
            return records.timestamp
        of_batch = np.where(chunk.headers.is_log_append_time, append_times[chunk.piece_of], -1)
        of_record = np.repeat(of_batch, records.batch_rows)
        return np.where(of_record >= 0, of_record, records.timestamp)

    @staticmethod
    def _partitions(records: RecordColumns, chunk: _DecodeChunk) -> npt.NDArray[np.int32]:
        numbers = np.asarray([piece.slice.partition for piece in chunk.pieces], np.int32)
        if (numbers == numbers[0]).all():
            return np.full(len(records), numbers[0], np.int32)
        return np.repeat(numbers[chunk.piece_of], records.batch_rows)

    def _topic(self, records: RecordColumns, chunk: _DecodeChunk) -> pa.Array:
        names = [piece.slice.topic for piece in chunk.pieces]
        if len(set(names)) == 1:
            return self._repeated(names[0], len(records))
        # The pieces of a topic are consecutive, so there are few groups.
        rows = np.bincount(chunk.piece_of, weights=records.batch_rows, minlength=len(names)).astype(np.int64)
        chunks = groupby(zip(names, rows.tolist(), strict=True), itemgetter(0))
        return pa.concat_arrays([self._repeated(name, sum(count for _, count in group)) for name, group in chunks])

    def _repeated(self, topic: str, n: int) -> pa.Array:
        made = self._topics.get(topic)
        if made is None or len(made) < n:
            made = self._topics[topic] = repeated_text(topic, n)
        return made.slice(0, n)


def _contiguous(parts: list[memoryview]) -> memoryview:
    """Return the parts as one buffer. If one request returned adjacent slices, the buffer is not copied."""
    arrays = [as_bytes_array(part) for part in parts]
    edges = [array.__array_interface__["data"][0] for array in arrays]
    ends = [start + len(array) for start, array in zip(edges, arrays, strict=True)]
    if edges[1:] != ends[:-1] or any(part.obj is not parts[0].obj for part in parts):
        return memoryview(b"".join(parts))
    whole = as_bytes_array(parts[0].obj)
    start = edges[0] - whole.__array_interface__["data"][0]
    return whole[start : start + ends[-1] - edges[0]].data


def _opened_before(headers: BatchHeaders) -> Int64s:
    """Return the number of batches before each batch. Uncompressed messages in format v0 or v1 are not counted."""
    if headers.magic is None:
        return np.arange(len(headers), dtype=np.int64)
    counted = (~headers.is_legacy | (headers.codec != 0)).astype(np.int64)
    before: Int64s = np.cumsum(counted) - counted
    return before


def _checked_chunk(pieces: list[FetchedBatches], data: memoryview) -> _DecodeChunk:
    """Find the batches, and check that they cover the slice in offset order, which checksums do not guarantee."""
    file, position = (pieces[0].slice.file, pieces[0].position) if len(pieces) == 1 else (None, 0)
    headers = pieces[0].headers if len(pieces) == 1 else None
    headers = scan_headers(data, file=file, file_position=position) if headers is None else headers
    lengths = np.asarray([len(piece.data) for piece in pieces], np.int64)
    starts = np.cumsum(lengths) - lengths
    piece_of = np.searchsorted(starts, headers.position, side="right") - 1
    shift = np.asarray([piece.slice.shift for piece in pieces], np.int64)[piece_of]
    start, end = headers.base_offset + shift, headers.next_offset + shift
    low = np.asarray([piece.slice.base for piece in pieces], np.int64)[piece_of]
    high = np.asarray([piece.slice.end for piece in pieces], np.int64)[piece_of]
    dense = np.asarray([piece.slice.records == piece.slice.end - piece.slice.base for piece in pieces])[piece_of]
    wrong, _ = misplaced(headers, low, high, shift=shift, owner=piece_of)
    wrong[1:] |= dense[1:] & (piece_of[1:] == piece_of[:-1]) & (start[1:] > end[:-1])
    if (headers.position.take(np.searchsorted(headers.position, starts), mode="clip") != starts).any():
        raise Corrupt("a slice does not begin with a record batch", file=file, position=position)
    if wrong.any():
        bad = int(np.argmax(wrong))
        raise Corrupt(
            f"the batch offsets {start[bad]} to {end[bad] - 1} do not match the slice: restore the file",
            file=file,
            position=position + int(headers.position[bad]),
            offset=int(start[bad]),
        )
    chunk = _DecodeChunk(pieces, data, headers, piece_of, shift)
    plain = ~headers.is_control & ~_hidden(chunk)
    return chunk if plain.all() else chunk[plain]


def _hidden(chunk: _DecodeChunk) -> npt.NDArray[np.bool_]:
    """Return a mask (bool[m]) of the batches that belong to Kafka's aborted transactions and must be skipped."""
    headers, slices = chunk.headers, [piece.slice for piece in chunk.pieces]
    batches = np.zeros(len(headers), np.bool_)
    hidden = {id(planned.hidden): planned.hidden for planned in slices if planned.hidden is not None}
    if not hidden:
        return batches
    owner = np.array([id(planned.hidden) for planned in slices], np.int64)[chunk.piece_of]
    transactional = headers.is_transactional & ~headers.is_control
    for key, aborted in hidden.items():
        rows = np.flatnonzero(transactional & (owner == key))
        batches[rows] = aborted.covers(headers.producer_id[rows], headers.base_offset[rows] + chunk.shift[rows])
    return batches
