"""How much one Spark task reads: small ranges are packed into one task, big ones split.

A task costs 15 to 30 ms in Python however little it reads, so a thousand partitions of a few records are a few tasks.
A range is split where it is larger than `SPLIT_BYTES` or `SPLIT_OFFSETS`, where `maxRecordsPerPartition` asks for it,
and where it is more than its share of `minPartitions` tasks. Pieces keep the order of the ranges and of their
offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparklog.log.view import LogView, OffsetRange, ReadPart

PACK_BYTES = 16 << 20
PACK_OFFSETS = 100_000
"""Stored bytes, or offsets (compressed bytes say little), that are worth a task of their own: some 50 to 100 ms of
work."""

PACK_PIECES = 512
"""Ranges in one task at most: each one costs at least a request."""

SPLIT_BYTES = 128 << 20
SPLIT_OFFSETS = 1_000_000
"""Stored bytes, or offsets, beyond which a range is split. Tasks keep the order of offsets, and so does a sink's
commit."""


@dataclass(frozen=True)
class Piece:
    """A range that one task reads whole; `nbytes` is estimated."""

    range: OffsetRange
    nbytes: float

    @property
    def offsets(self) -> int:
        return self.range.end - self.range.start


def split(
    ranges: Sequence[OffsetRange],
    nbytes: Sequence[int],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[Piece]:
    """Cut ranges (non-empty) into pieces of nearly equal numbers of offsets. Pure."""
    total = sum(found.end - found.start for found in ranges)
    pieces: list[Piece] = []
    for found, size in zip(ranges, nbytes, strict=True):
        offsets = found.end - found.start
        count = max(-(-size // SPLIT_BYTES), -(-offsets // SPLIT_OFFSETS))
        if max_records is not None:
            count = max(count, -(-offsets // max_records))
        if min_partitions is not None:
            count = max(count, -(-offsets * min_partitions // total))
        count = max(1, min(count, offsets))
        cuts = [found.start + offsets * index // count for index in range(count + 1)]
        pieces += [
            Piece(OffsetRange(found.topic, found.partition, low, high), size * (high - low) / offsets)
            for low, high in pairwise(cuts)
        ]
    return pieces


def pack(
    pieces: Sequence[Piece], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[list[Piece]]:
    """Put neighbouring pieces into tasks while they are small. Pure.

    With `min_partitions`, a task takes at most its share of all offsets, so that there are at least so many tasks (or
    one per piece); with `max_records`, at most so many offsets.
    """
    offsets_each = float("inf") if max_records is None else float(max_records)
    if min_partitions is not None:
        offsets_each = min(offsets_each, sum(piece.offsets for piece in pieces) / min_partitions)
    tasks: list[list[Piece]] = []
    nbytes = offsets = 0.0
    for piece in pieces:
        full = (
            not tasks
            or len(tasks[-1]) >= PACK_PIECES
            or nbytes + piece.nbytes > PACK_BYTES
            or offsets + piece.offsets > min(offsets_each, PACK_OFFSETS)
        )
        if full:
            tasks.append([])
            nbytes = offsets = 0.0
        tasks[-1].append(piece)
        nbytes += piece.nbytes
        offsets += piece.offsets
    return tasks


def plan_tasks(
    view: LogView,
    ranges: Sequence[OffsetRange],
    isolation: str,
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[list[ReadPart]]:
    """What each task reads of these ranges, from the view's snapshot. Ranges without records give no task."""
    wanted = [found for found in ranges if found.end > found.start]
    pieces = split(wanted, view.nbytes(wanted), min_partitions=min_partitions, max_records=max_records)
    tasks = pack(pieces, min_partitions=min_partitions, max_records=max_records)
    parts = {part.range: part for part in view.plan([piece.range for piece in pieces], isolation)}
    planned = [[parts[piece.range] for piece in task if piece.range in parts] for task in tasks]
    return [task for task in planned if task]
