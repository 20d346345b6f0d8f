"""Offsets that a filter leaves to be read, by metadata alone.

A filter is an expression of pyarrow's, which cannot be taken apart. But pyarrow tells which fragments of a dataset it
can match, by what is known of each. So a topic becomes a dataset of pieces that are never opened, each with its
partition, its offsets and its times. Pieces beside others that cannot match are cut again, down to single offsets.

What is left may hold more than the filter wants, never less: the reader applies the filter to the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.log.state.view import OffsetRange

Int64s = npt.NDArray[np.int64]

LATEST_MS = 9_223_372_036_000
"""Times up to here can be compared as nanoseconds."""
AT_ONCE = 128
FEWEST = 8
MOST_PIECES = 2048
KNOWN = {"topic", "partition", "offset", "timestamp"}
"""Columns that metadata tells something about."""


@dataclass(frozen=True, eq=False)
class Spans:
    """Runs of records of one partition in offset order, and the smallest and largest time (ms) of each.

    `low` leaves out negative times (-1: none). No `low` and `high`: times are not known.
    """

    base: Int64s
    end: Int64s
    low: Int64s | None = None
    high: Int64s | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Offsets of a partition, and the rows of its spans that hold them. `edge`: to be cut again."""

    partition: int
    start: int
    end: int
    first: int
    last: int
    edge: bool = True


def columns_of(expression: ds.Expression) -> set[str]:
    """Return the columns that an expression needs: it is refused where one of them is not there."""
    needed = set()
    for name in RECORD_SCHEMA.names:
        rest = pa.schema([field for field in RECORD_SCHEMA if field.name != name])
        try:
            ds.dataset(rest.empty_table()).scanner(filter=expression)
        except pa.ArrowException:
            needed.add(name)
    return needed


def narrowed(topic: str, spans: Mapping[int, Spans], expression: ds.Expression, needed: set[str]) -> list[OffsetRange]:
    """Return the ranges that can hold what `expression` matches, partition by partition; `needed`: its columns."""
    kept = [
        _Piece(partition, int(rows.base[0]), int(rows.end[-1]), 0, len(rows.base))
        for partition, rows in spans.items()
        if len(rows.base)
    ]
    if needed & KNOWN:
        judge = _Judge(topic, spans, expression, times="timestamp" in needed)
        kept = [piece for piece, possible in zip(kept, judge.possible(kept), strict=True) if possible]
        while True:
            edges = sum(piece.edge for piece in kept)
            parts = max(FEWEST, AT_ONCE // max(edges, 1))
            if not edges or judge.judged + edges * parts > MOST_PIECES:
                break
            kept = _finer(kept, parts, spans, judge)
    return _ranges(topic, kept)


class _Judge:
    """Asks pyarrow which pieces a filter can match."""

    def __init__(self, topic: str, spans: Mapping[int, Spans], expression: ds.Expression, *, times: bool) -> None:
        self.judged = 0
        self._topic = topic
        self._spans = spans
        self._expression = expression
        self._times = times
        self._files = ds.IpcFileFormat(), LocalFileSystem()

    def possible(self, pieces: Sequence[_Piece]) -> list[bool]:
        self.judged += len(pieces)
        files, system = self._files
        fragments = [
            files.make_fragment(str(number), filesystem=system, partition_expression=fact)
            for number, piece in enumerate(pieces)
            for fact in self._facts(piece)
        ]
        dataset = ds.FileSystemDataset(fragments, RECORD_SCHEMA, files, system)
        try:
            left = {int(fragment.path) for fragment in dataset.get_fragments(filter=self._expression)}
        except pa.ArrowException:
            return [True] * len(pieces)
        return [number in left for number in range(len(pieces))]

    def _facts(self, piece: _Piece) -> Iterator[ds.Expression]:
        """Yield what is true of the records of a piece: of all, or of those with a time and of those without one."""
        offset, timestamp = pc.field("offset"), pc.field("timestamp")
        fact = (pc.field("topic") == self._topic) & (pc.field("partition") == pa.scalar(piece.partition, pa.int32()))
        fact = fact & (offset >= piece.start) & (offset <= piece.end - 1)
        spans = self._spans[piece.partition]
        if not self._times or spans.low is None or spans.high is None:
            yield fact
            return
        rows = slice(piece.first, piece.last)
        low, high = min(int(spans.low[rows].min()), LATEST_MS), int(spans.high[rows].max())
        if high <= LATEST_MS:
            fact = fact & (timestamp <= _time(high))
        yield fact & (timestamp >= _time(low))
        if low >= 0:
            yield fact & (timestamp < _time(0))


def _time(ms: int) -> pa.Scalar:
    return pa.scalar(ms, RECORD_SCHEMA.field("timestamp").type)


def _finer(kept: Sequence[_Piece], parts: int, spans: Mapping[int, Spans], judge: _Judge) -> list[_Piece]:
    """Cut the edges into so many parts, and keep those that can match; edges are then those beside what was dropped."""
    cut = [list(_cut(piece, parts, spans[piece.partition])) if piece.edge else [piece] for piece in kept]
    open_ = [part for piece, parts_ in zip(kept, cut, strict=True) if piece.edge for part in parts_]
    answers = iter(judge.possible(open_))
    finer: list[_Piece] = []
    for piece, parts_ in zip(kept, cut, strict=True):
        if not piece.edge:
            finer.append(piece)
            continue
        possible = [next(answers) for _ in parts_]
        # The ends of an edge are next to what was dropped before, or at an end of the log.
        for number, part in enumerate(parts_):
            if possible[number]:
                beside = not all(possible[max(number - 1, 0) : number + 2])
                divisible = part.last - part.first > 1 or part.end - part.start > 1
                finer.append(replace(part, edge=beside and divisible))
    return finer


def _cut(piece: _Piece, parts: int, spans: Spans) -> Iterator[_Piece]:
    """Yield a piece in parts: between its spans, or if it has one, between offsets."""
    if piece.last - piece.first > 1:
        for first, last in _parts(piece.first, piece.last, parts):
            start, end = max(piece.start, int(spans.base[first])), min(piece.end, int(spans.end[last - 1]))
            yield replace(piece, start=start, end=end, first=first, last=last)
    else:
        for start, end in _parts(piece.start, piece.end, parts):
            yield replace(piece, start=start, end=end)


def _parts(low: int, high: int, count: int) -> Iterator[tuple[int, int]]:
    count = min(count, high - low)
    return pairwise(low + (high - low) * part // count for part in range(count + 1))


def _ranges(topic: str, pieces: Sequence[_Piece]) -> list[OffsetRange]:
    """Return pieces as ranges, those that follow one another as one."""
    joined: list[_Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if (
            last
            and last.partition == piece.partition
            and (last.last == piece.first or (last.last, last.end) == (piece.last, piece.start))
        ):
            joined[-1] = replace(last, end=piece.end, last=piece.last)
        else:
            joined.append(piece)
    return [OffsetRange(topic, piece.partition, piece.start, piece.end) for piece in joined]
