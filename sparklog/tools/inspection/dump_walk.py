"""The batches of a `.log` as Kafka's tools iterate over them: by their size fields alone, checksums or not.

Kafka's `FileLogInputStream` stops where too few bytes are left for a batch, and throws where a size field is too small;
everything else is a batch to it, whatever it holds. So is it here, except that a batch is also looked into: whether its
checksum holds, and where Kafka's tool dies of what its header says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sparklog.format.batch_scan import MIN_SCAN_BYTES, crc_failures, scan_headers, single_header
from sparklog.format.record_batch import (
    CODECS,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_SEQUENCE,
    MIN_SIZE_FIELD,
    NO_SEQUENCE,
    BatchHeaders,
    BoolArray,
    Int64Array,
)
from sparklog.tools.inspection.dump_halt import CORRUPT_RECORD, ILLEGAL_ARGUMENT, KAFKA, Halt
from sparklog.tools.inspection.dump_source import MAX_INT, Source

WINDOW_BYTES = 1 << 20
PIECE_RECORDS = 20_000
_LENGTH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Bytes of a file from `start`, the headers of the whole batches in them (positions count from `start`), whether
    their checksums hold (bool per batch), their magic as it is stored, and what Kafka's tool dies of behind them.
    """

    data: bytes
    start: int
    headers: BatchHeaders
    valid: BoolArray
    magic: list[int]
    halt: Halt | None = None


def pieces(window: Window, records: int = PIECE_RECORDS) -> Iterator[Window]:
    """A window in parts of about so many records: compressed batches may become a thousand times as large."""
    numbers = np.cumsum(window.headers.count.clip(0)) // records
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(window.headers)]
    for start, end in pairwise(cuts):
        rows = slice(start, end)
        halt = window.halt if end == len(window.headers) else None
        magic = window.magic[rows]
        yield Window(window.data, window.start, window.headers[rows], window.valid[rows], magic, halt)


class LogWalk:
    """Iterates over a file's batches from a position on, window by window. After it `end` is where it stopped."""

    def __init__(self, source: Source, start: int = 0, *, limit: int = MAX_INT, check: bool = True) -> None:
        """`limit`: bytes of the file that count. `check`: verify checksums (else `valid` is all True)."""
        self.source = source
        self.size = source.size()
        self.stop = min(self.size, limit)
        self.end = start
        self._check = check

    def __iter__(self) -> Iterator[Window]:
        length = WINDOW_BYTES
        while self.end < self.stop:
            data = self.source.read(self.end, min(length, self.stop - self.end))
            headers = scan_headers(data, whole=False, contents=False)
            if len(headers):
                window = self._window(data, headers)
                yield window
                if window.halt is not None:
                    return
                self.end += headers.end
                length = WINDOW_BYTES
                continue
            if self.stop - self.end < MIN_SCAN_BYTES:
                return
            size = int(_LENGTH.unpack_from(data, 8)[0])
            if size < MIN_SIZE_FIELD:
                said = f"Found record size {size} smaller than minimum record overhead ({MIN_SIZE_FIELD}) in file "
                yield self._nothing(Halt(CORRUPT_RECORD, f"{said}{self.source.absolute}."))
                return
            size += LOG_OVERHEAD
            if size > self.stop - self.end:
                return
            if size > len(data):
                length = size
                continue
            window = self._odd(data[:size])
            yield window
            if window.halt is not None:
                return
            self.end += size

    def _window(self, data: bytes, headers: BatchHeaders) -> Window:
        """Whole batches, up to one with a codec that there is none of."""
        unknown = np.flatnonzero(headers.codec >= len(CODECS))
        halt = None
        if len(unknown):
            row = int(unknown[0])
            halt = Halt(ILLEGAL_ARGUMENT, f"Unknown compression type id: {int(headers.codec[row])}")
            halt.printed = batch_starts(headers[row : row + 1], [_magic(data, int(headers.position[row]))])[0]
            headers = headers[:row]
        valid = np.ones(len(headers), np.bool_)
        if self._check:
            valid[crc_failures(data, headers)] = False
        magic = [MAGIC] * len(headers) if headers.magic is None else headers.magic.tolist()
        return Window(data, self.end, headers, valid, magic, halt)

    def _odd(self, batch: bytes) -> Window:
        """A batch that no reader takes: Kafka's iteration does not look at its magic or the size of its header."""
        magic = _magic(batch, 0)
        if magic < 0:
            halt = Halt(ILLEGAL_ARGUMENT, f"Invalid magic used in LegacyRecord: {magic}")
            halt.printed = f"offset: {_OFFSET.unpack_from(batch)[0]}"
            return self._nothing(halt)
        if magic < MAGIC:
            # A message of format v1 of 14 to 21 bytes: it claims fields that the next message's bytes would fill.
            return self._nothing(Halt(CORRUPT_RECORD, f"a message of magic {magic} has only {len(batch)} bytes"))
        if len(batch) < HEADER_BYTES:
            header = self.source.read(self.end, HEADER_BYTES)
            if len(header) < HEADER_BYTES:
                said = f"Failed to load record batch at position {self.end} from "
                return self._nothing(Halt(KAFKA, said + self.source.as_records(self.stop, 0, self.stop)))
            headers = single_header(header)
            sized = replace(headers, size=np.array([len(batch)]), magic=None)
            return Window(header, self.end, sized, np.zeros(1, np.bool_), [magic])
        known = batch[:MAGIC_POSITION] + bytes((MAGIC,)) + batch[MAGIC_POSITION + 1 :]
        headers = scan_headers(known, whole=False)
        window = self._window(known, headers)
        return replace(window, magic=[magic] * len(window.headers))

    def _nothing(self, halt: Halt) -> Window:
        return Window(b"", self.end, scan_headers(b""), np.empty(0, np.bool_), [], halt)


def _last_sequence(headers: BatchHeaders) -> Int64Array:
    """As Java counts, also from a sequence that is none."""
    base, delta = headers.base_sequence, headers.last_offset_delta
    limit = (MAX_SEQUENCE - delta).astype(np.int32)
    last = np.where(base > limit, base + delta - MAX_SEQUENCE - 1, base + delta).astype(np.int32)
    return np.where(base == NO_SEQUENCE, NO_SEQUENCE, last).astype(np.int64)


def _magic(data: bytes, position: int) -> int:
    value = data[position + MAGIC_POSITION]
    return value - 256 if value > 127 else value


def batch_starts(headers: BatchHeaders, magic: list[int]) -> list[str]:
    """Per batch, what Kafka's tool prints before it looks at position, codec and checksum."""
    columns = (
        headers.base_offset,
        headers.last_offset,
        headers.count,
        headers.base_sequence,
        _last_sequence(headers),
        headers.producer_id,
        headers.producer_epoch,
        headers.leader_epoch,
        headers.is_transactional,
        headers.is_control,
        np.where(headers.has_delete_horizon, headers.base_timestamp, -1),
    )
    return [
        f"baseOffset: {base} lastOffset: {last} count: {count} baseSequence: {sequence} lastSequence: {last_sequence}"
        f" producerId: {producer} producerEpoch: {epoch} partitionLeaderEpoch: {leader}"
        f" isTransactional: {'true' if transactional else 'false'} isControl: {'true' if control else 'false'}"
        f" deleteHorizonMs: {f'OptionalLong[{horizon}]' if horizoned else 'OptionalLong.empty'}"
        if number >= MAGIC
        else f"offset: {last}"
        for number, horizoned, (
            base,
            last,
            count,
            sequence,
            last_sequence,
            producer,
            epoch,
            leader,
            transactional,
            control,
            horizon,
        ) in zip(
            magic,
            headers.has_delete_horizon.tolist(),
            zip(*(column.tolist() for column in columns), strict=True),
            strict=True,
        )
    ]
