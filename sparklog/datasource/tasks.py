"""How much one Spark task reads: small ranges are packed into one task, big ones split.

A task costs 15 to 30 ms in Python however little it reads, so a thousand partitions of a few records are a few tasks.
A range is split where it holds more than `SPLIT_BYTES` or `SPLIT_RECORDS`, where `maxRecordsPerPartition` asks for it,
and where it is more than its share of `minPartitions` tasks. What counts is what is stored: offsets that nothing lies
at cost nothing, however many there are. Pieces keep the order of the ranges and of their offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparklog.log.state.stored import Stored
from sparklog.log.state.view import LogView, OffsetRange, ReadPart

PACK_BYTES = 16 << 20
PACK_RECORDS = 100_000
"""Stored bytes, or records (compressed bytes say little), that are worth a task of their own: some 50 to 100 ms of
work."""

PACK_PIECES = 512
"""Ranges in one task at most: each one costs at least a request."""

SPLIT_BYTES = 128 << 20
SPLIT_RECORDS = 1_000_000
"""Stored bytes, or records, beyond which a range is split, but never into more pieces than it has batches. Tasks keep
the order of offsets, and so does a sink's commit."""

UNDOUBTED = 10_000
"""Pieces that a user may ask for anyway; beyond, no more than there are stored bytes. These pieces may cut through
batches, whose headers can claim any number of records."""


@dataclass(frozen=True)
class Piece:
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
) -> list[Piece]:
    """Cut ranges (non-empty) into pieces of nearly equal numbers of records, those with many bytes further. Pure."""
    total = max(sum(held.records for held in stored), 1)
    pieces: list[Piece] = []
    for wanted, held in zip(ranges, stored, strict=True):
        count = min(-(-held.records // SPLIT_RECORDS), held.batches)
        asked = 0 if max_records is None else -(-held.records // max_records)
        if min_partitions is not None:
            asked = max(asked, -(-held.records * min_partitions // total))
        for part in _by_records(held, max(count, min(asked, max(held.nbytes, UNDOUBTED)))):
            pieces += [
                Piece(OffsetRange(wanted.topic, wanted.partition, each.start, each.end), each.records, each.nbytes)
                for each in _by_bytes(part, min(-(-part.nbytes // SPLIT_BYTES), part.batches))
            ]
    return pieces


def _by_records(held: Stored, count: int) -> list[Stored]:
    records = held.records
    count = min(count, records)
    return _parts(held, held.at_records(*(records * index // count for index in range(1, count))))


def _by_bytes(held: Stored, count: int) -> list[Stored]:
    nbytes = held.nbytes
    return _parts(held, held.at_bytes(*(nbytes * index // count for index in range(1, count))))


def _parts(held: Stored, cuts: Sequence[int]) -> list[Stored]:
    if not cuts:
        return [held]
    places = sorted({held.start, *cuts, held.end})
    return [held.part(low, high) for low, high in pairwise(places)]


def pack(
    pieces: Sequence[Piece], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[list[Piece]]:
    """Put neighbouring pieces into tasks while they are small. Pure.

    With `min_partitions`, a task takes at most its share of all records, so that there are at least so many tasks (or
    one per piece); with `max_records`, at most so many records.
    """
    records_each = float("inf") if max_records is None else float(max_records)
    if min_partitions is not None:
        records_each = min(records_each, sum(piece.records for piece in pieces) / min_partitions)
    tasks: list[list[Piece]] = []
    nbytes = records = 0
    for piece in pieces:
        full = (
            not tasks
            or len(tasks[-1]) >= PACK_PIECES
            or nbytes + piece.nbytes > PACK_BYTES
            or records + piece.records > min(records_each, PACK_RECORDS)
        )
        if full:
            tasks.append([])
            nbytes = records = 0
        tasks[-1].append(piece)
        nbytes += piece.nbytes
        records += piece.records
    return tasks


def plan_tasks(
    view: LogView,
    ranges: Sequence[OffsetRange],
    isolation: str,
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[list[ReadPart]]:
    """What each task reads of these ranges, from the view's snapshot. Empty ranges give no task."""
    wanted = [each for each in ranges if each.end > each.start]
    pieces = split(wanted, view.stored(wanted), min_partitions=min_partitions, max_records=max_records)
    tasks = pack(pieces, min_partitions=min_partitions, max_records=max_records)
    parts = {part.range: part for part in view.plan([piece.range for piece in pieces], isolation)}
    planned = [[parts[piece.range] for piece in task if piece.range in parts] for task in tasks]
    return [task for task in planned if task]
