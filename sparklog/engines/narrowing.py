"""Determine the offsets that can match a filter from metadata alone.

A filter is a pyarrow expression, which cannot be inspected. However, pyarrow can determine which fragments of a dataset
may match an expression, based on an expression that describes each fragment. Therefore, a topic is presented as a
dataset of chunks with known partitions, offsets and timestamps. The chunks are never opened. A chunk next to a chunk
that cannot match is split repeatedly until it contains a single offset.

The resulting ranges always contain all matching records, but may also contain other records. The reader applies the
filter to the records.
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
"""The latest timestamp that can be compared as nanoseconds."""
CHUNKS_PER_ROUND = 128
"""The approximate total number of chunks into which all edges are split in a round."""
MIN_SPLIT = 8
"""The minimum number of chunks into which an edge is split."""
MAX_CHUNKS = 2048
"""The maximum number of chunks to evaluate for a filter."""
METADATA_COLUMNS = {"topic", "partition", "offset", "timestamp"}
"""The columns that the metadata describes."""


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of records of one partition in offset order, with the minimum and maximum timestamp (ms) of each span.

    `low` is the minimum of the non-negative timestamps, or -1 if all timestamps are negative. `low` and `high` are None
    if the timestamps are unknown.
    """

    base: Int64s
    end: Int64s
    low: Int64s | None = None
    high: Int64s | None = None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A range of offsets of a partition, and the rows of the spans that contain the offsets. A chunk that is an `edge`
    must be split again.
    """

    partition: int
    start: int
    end: int
    first: int
    last: int
    edge: bool = True


def columns_of(expression: ds.Expression, schema: pa.Schema = RECORD_SCHEMA) -> set[str]:
    """Return the columns of a schema that an expression uses."""
    needed = set()
    # pyarrow rejects an expression if one of its columns is missing in the dataset.
    for name in schema.names:
        rest = pa.schema([field for field in schema if field.name != name])
        try:
            ds.dataset(rest.empty_table()).scanner(filter=expression)
        except pa.ArrowException:
            needed.add(name)
    return needed


def narrowed(
    topic: str,
    spans: Mapping[int, Spans],
    expression: ds.Expression,
    needed: set[str],
    schema: pa.Schema = RECORD_SCHEMA,
) -> list[OffsetRange]:
    """Return the ranges that can match an expression, ordered by partition. `needed` contains the columns of `schema`
    that the expression uses.
    """
    chunks = [
        _Chunk(partition, int(rows.base[0]), int(rows.end[-1]), 0, len(rows.base))
        for partition, rows in spans.items()
        if len(rows.base)
    ]
    if needed & METADATA_COLUMNS:
        matcher = _Matcher(topic, spans, expression, schema, times="timestamp" in needed)
        chunks = [chunk for chunk, possible in zip(chunks, matcher.can_match(chunks), strict=True) if possible]
        while True:
            edges = sum(chunk.edge for chunk in chunks)
            count = max(MIN_SPLIT, CHUNKS_PER_ROUND // max(edges, 1))
            if not edges or matcher.evaluated + edges * count > MAX_CHUNKS:
                break
            chunks = _refined(chunks, count, spans, matcher)
    return _ranges(topic, chunks)


class _Matcher:
    """Uses pyarrow to decide which chunks a filter can match."""

    def __init__(
        self, topic: str, spans: Mapping[int, Spans], expression: ds.Expression, schema: pa.Schema, *, times: bool
    ) -> None:
        self.evaluated = 0
        self._topic = topic
        self._spans = spans
        self._expression = expression
        self._schema = schema
        self._times = times
        self._files = ds.IpcFileFormat(), LocalFileSystem()

    def can_match(self, chunks: Sequence[_Chunk]) -> list[bool]:
        """Return whether the filter can match records in each chunk."""
        self.evaluated += len(chunks)
        files, system = self._files
        fragments = [
            files.make_fragment(str(number), filesystem=system, partition_expression=fact)
            for number, chunk in enumerate(chunks)
            for fact in self._chunk_expressions(chunk)
        ]
        dataset = ds.FileSystemDataset(fragments, self._schema, files, system)
        try:
            matching = {int(fragment.path) for fragment in dataset.get_fragments(filter=self._expression)}
        except pa.ArrowException:
            return [True] * len(chunks)
        return [number in matching for number in range(len(chunks))]

    def _chunk_expressions(self, chunk: _Chunk) -> Iterator[ds.Expression]:
        """Yield expressions for a chunk. At least one of the expressions is true for each record of the chunk.

        If the filter uses timestamps, yields an expression for non-negative timestamps, and an expression for negative
        timestamps, or a single expression if the minimum of the non-negative timestamps is unknown.
        """
        offset, timestamp = pc.field("offset"), pc.field("timestamp")
        fact = (pc.field("topic") == self._topic) & (pc.field("partition") == pa.scalar(chunk.partition, pa.int32()))
        fact = fact & (offset >= chunk.start) & (offset <= chunk.end - 1)
        spans = self._spans[chunk.partition]
        if not self._times or spans.low is None or spans.high is None:
            yield fact
            return
        rows = slice(chunk.first, chunk.last)
        low, high = min(int(spans.low[rows].min()), LATEST_MS), int(spans.high[rows].max())
        if high <= LATEST_MS:
            fact = fact & (timestamp <= _time(high))
        if low < 0:
            yield fact
            return
        yield fact & (timestamp >= _time(low))
        yield fact & (timestamp < _time(0))


def _time(ms: int) -> pa.Scalar:
    return pa.scalar(ms, RECORD_SCHEMA.field("timestamp").type)


def _refined(chunks: Sequence[_Chunk], count: int, spans: Mapping[int, Spans], matcher: _Matcher) -> list[_Chunk]:
    """Split each edge into `count` chunks, and drop the chunks that cannot match. The chunks next to dropped chunks
    become edges.
    """
    splits = {chunk: list(_split(chunk, count, spans[chunk.partition])) for chunk in chunks if chunk.edge}
    results = iter(matcher.can_match([chunk for split in splits.values() for chunk in split]))
    refined: list[_Chunk] = []
    for chunk in chunks:
        if not chunk.edge:
            refined.append(chunk)
            continue
        split = splits[chunk]
        possible = [next(results) for _ in split]
        # The ends of an edge do not have to be checked, because they are next to a dropped chunk or at an end of the
        # log.
        for number, part in enumerate(split):
            if possible[number]:
                has_dropped_neighbor = not all(possible[max(number - 1, 0) : number + 2])
                is_divisible = part.last - part.first > 1 or part.end - part.start > 1
                refined.append(replace(part, edge=has_dropped_neighbor and is_divisible))
    return refined


def _split(chunk: _Chunk, count: int, spans: Spans) -> Iterator[_Chunk]:
    """Split a chunk between its spans or, if it has a single span, between offsets."""
    if chunk.last - chunk.first > 1:
        for first, last in _intervals(chunk.first, chunk.last, count):
            start, end = max(chunk.start, int(spans.base[first])), min(chunk.end, int(spans.end[last - 1]))
            yield replace(chunk, start=start, end=end, first=first, last=last)
    else:
        for start, end in _intervals(chunk.start, chunk.end, count):
            yield replace(chunk, start=start, end=end)


def _intervals(low: int, high: int, count: int) -> Iterator[tuple[int, int]]:
    count = min(count, high - low)
    return pairwise(low + (high - low) * number // count for number in range(count + 1))


def _ranges(topic: str, chunks: Sequence[_Chunk]) -> list[OffsetRange]:
    """Return the offset ranges of chunks, and join adjacent chunks."""
    joined: list[_Chunk] = []
    for chunk in chunks:
        last = joined[-1] if joined else None
        if (
            last
            and last.partition == chunk.partition
            and (last.last == chunk.first or (last.last, last.end) == (chunk.last, chunk.start))
        ):
            joined[-1] = replace(last, end=chunk.end, last=chunk.last)
        else:
            joined.append(chunk)
    return [OffsetRange(topic, chunk.partition, chunk.start, chunk.end) for chunk in joined]
