"""Record batches of uniform size: small ones are joined, large ones are sliced, and errors come last."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from sparklog.errors import Corrupt
from sparklog.log.read.record_batches import MAX_JOINED_BATCHES, joined

BATCH_BYTES = 1 << 20


def batches(count: int, size: int, rows: int = 1) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield pa.RecordBatch.from_pydict({"v": [b"%06d" % (number * rows + row) + b"x" * size for row in range(rows)]})


def values(read: list[pa.RecordBatch]) -> list[bytes]:
    return [value[:6] for batch in read for value in batch.column("v").to_pylist()]


def test_small_batches_are_joined() -> None:
    read = list(joined(batches(400, 1000), BATCH_BYTES))
    assert [batch.num_rows for batch in read] == [400]
    assert values(read) == values(list(batches(400, 1000)))
    read = list(joined(batches(10, BATCH_BYTES // 4), BATCH_BYTES))
    assert max(batch.nbytes for batch in read) <= BATCH_BYTES
    assert values(read) == values(list(batches(10, 1)))


def test_large_batches_are_sliced() -> None:
    large = list(batches(3, BATCH_BYTES // 4, rows=40))
    read = list(joined(large, BATCH_BYTES))
    assert values(read) == values(large)
    assert max(batch.nbytes for batch in read) <= 2 * BATCH_BYTES
    alone = list(batches(2, 5 * BATCH_BYTES))
    assert values(list(joined(alone, BATCH_BYTES))) == values(alone)


def test_batches_without_rows_go() -> None:
    empty = pa.RecordBatch.from_pydict({"v": pa.array([], pa.binary())})
    assert list(joined([empty, empty], BATCH_BYTES)) == []
    assert values(list(joined([empty, *batches(1, 1), empty], BATCH_BYTES))) == [b"000000"]


def test_batches_without_columns_keep_their_rows() -> None:
    rows = MAX_JOINED_BATCHES + 1
    read = list(joined((batch.select([]) for batch in batches(rows, 1)), BATCH_BYTES))
    assert [batch.num_rows for batch in read] == [MAX_JOINED_BATCHES, 1]


def test_batches_before_an_error_are_yielded_before_it() -> None:
    def damaged() -> Iterator[pa.RecordBatch]:
        yield from batches(2, 1)
        raise Corrupt("damaged")

    read: list[pa.RecordBatch] = []
    with pytest.raises(Corrupt, match="damaged"):
        read.extend(joined(damaged(), BATCH_BYTES))
    assert values(read) == [b"000000", b"000001"]
