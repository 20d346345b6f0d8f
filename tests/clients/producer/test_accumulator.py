"""The accumulator: when a batch is due, and how much memory it uses, with the clock of a `World`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pyarrow as pa
import pytest

from sparklog.clients.producer.accumulator import RECORD_BYTES, Accumulator
from sparklog.clients.producer.batch_rows import COLUMNS, Records
from sparklog.clients.producer.options import ProducerOptions, producer_options
from sparklog.errors import BadRequest, Unavailable
from sparklog.testing import World

VALUE = b"x" * 100
RECORD = (None, VALUE, 100, 5_999_999, None)


def accumulator(world: World, linger_ms: float = 60_000, batch_size: int = 1 << 20, records: int = 100) -> Accumulator:
    """Create an accumulator with memory for this number of records."""
    memory = records * (RECORD_BYTES + 100)
    options = ProducerOptions(linger_ms=linger_ms, batch_size=batch_size, buffer_memory=memory, max_block_ms=0)
    return Accumulator(producer_options(options), world.env())


def test_a_batch_is_due_after_the_linger_time() -> None:
    world = World()
    waiting = accumulator(world)
    for number in range(3):
        waiting.append("t", *RECORD)
        if number < 2:
            waiting.append("u", *RECORD)
        world.advance(20_000)
    world.advance(1)
    (batch, other) = waiting.drain()
    assert [(taken.topic, taken.rows, taken.nbytes) for taken in (batch, other)] == [("t", 3, 300), ("u", 2, 200)]
    records = Records.of(batch)
    columns = records.columns.to_pydict()
    assert (columns["value"], columns["timestamp"], list(records.numbers)) == ([VALUE] * 3, [5] * 3, [0, 1, 2])
    assert list(records.select([2, 0]).numbers) == [2, 0]


def test_a_full_batch_is_due_before_the_linger_time() -> None:
    waiting = accumulator(World(), batch_size=250)
    waiting.append("u", *RECORD)
    for _ in range(3):
        waiting.append("t", *RECORD)
    assert [batch.topic for batch in waiting.drain()] == ["t"]


def test_memory_is_released_when_a_batch_is_done() -> None:
    waiting = accumulator(World(), batch_size=100, records=2)
    waiting.append("t", *RECORD)
    waiting.append("t", *RECORD)
    with pytest.raises(Unavailable, match="is full for max_block_ms"):
        waiting.append("t", *RECORD)
    batches = waiting.drain()
    with pytest.raises(Unavailable, match="is full for max_block_ms"):
        waiting.append("t", *RECORD)
    waiting.release(batches)
    waiting.append("t", *RECORD)


def test_a_closed_accumulator_drains_and_rejects_records() -> None:
    waiting = accumulator(World())
    future = waiting.append("t", *RECORD)
    waiting.close()
    with pytest.raises(BadRequest, match="this producer is closed"):
        waiting.append("t", *RECORD)
    assert len(waiting.drain()) == 1
    assert waiting.drain() == []
    waiting.fail_all(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        future.result(0)


def test_columns_and_rows_are_in_the_order_of_the_calls() -> None:
    waiting = accumulator(World())
    columns = pa.RecordBatch.from_pylist([{"value": b"a", "timestamp": 6}, {"value": b"b", "timestamp": 7}], COLUMNS)
    first = waiting.append("t", *RECORD)
    span = waiting.append_columns("t", columns)
    waiting.append("t", b"k", None, 100, 0, ([("h", b"1")], 8, 2, None))
    waiting.close()
    (batch,) = waiting.drain()
    assert (span.first_row, span.rows, batch.rows) == (1, 2, 4)
    assert batch.memory == 2 * (RECORD_BYTES + 100) + columns.nbytes
    assert Records.of(batch).columns.to_pydict() == {
        "key": [None, None, None, b"k"],
        "value": [VALUE, b"a", b"b", None],
        "headers": [None, None, None, [{"key": "h", "value": b"1"}]],
        "timestamp": [5, 6, 7, 8],
        "partition": [None, None, None, 2],
    }
    batch.result.fail(Unavailable("gone"))
    assert first.done()


def test_the_memory_of_columns_is_released_when_a_batch_is_done() -> None:
    value = b"x" * 1000
    columns = pa.RecordBatch.from_pylist([{"value": value, "timestamp": 6}], COLUMNS)
    waiting = accumulator(World(), batch_size=1, records=4)
    waiting.append_columns("t", columns)
    with pytest.raises(Unavailable, match="is full for max_block_ms"):
        waiting.append_columns("t", columns)
    waiting.release(waiting.drain())
    waiting.append_columns("t", columns)
    waiting.release(waiting.drain())
    for _ in range(4):
        waiting.append("t", *RECORD)


def test_a_batch_reserves_room_for_its_next_records() -> None:
    waiting = accumulator(World(), batch_size=1000, records=1000)
    room = []
    for _ in range(12):
        waiting.append("t", *RECORD)
        (batch,) = waiting.batches.values()
        assert not batch.is_full or batch.nbytes >= 1000
        assert batch.memory == batch.room + batch.rows * (RECORD_BYTES + 100)
        room.append(batch.room)
    # The record that fills the batch reserves memory itself, and then the batch continues to reserve room.
    assert (batch.nbytes, batch.is_full) == (1200, True)
    assert max(room[:9]) > 300
    assert max(room[9:]) > 10_000
    waiting.release(waiting.drain())
    assert waiting._used_bytes == 0


def test_the_room_that_is_reserved_during_a_wait_for_memory_is_counted_once() -> None:
    waiting = accumulator(World(), records=3)

    def wait_for(condition: Callable[[], bool], timeout: float | None) -> bool:
        waiting.lock.release()
        waiting.release(waiting.drain())
        waiting.append("t", None, b"", 0, 0, None)
        waiting.lock.acquire()
        return condition()

    waiting._released.wait_for = wait_for  # type: ignore[method-assign]
    for _ in range(4):
        waiting.append("t", *RECORD)
    (batch,) = waiting.batches.values()
    assert (batch.rows, batch.nbytes) == (2, 100)
    assert waiting._used_bytes == batch.memory == batch.room + 2 * RECORD_BYTES + 100


def test_a_closed_accumulator_has_no_room() -> None:
    waiting = accumulator(World(), records=1000)
    waiting.append("t", *RECORD)
    (batch,) = waiting.batches.values()
    assert batch.room > 0
    waiting.close()
    assert (batch.room, batch.memory) == (0, RECORD_BYTES + 100)


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted_call", [1, 2])
def test_an_append_repeats_an_interrupted_notification(monkeypatch: pytest.MonkeyPatch, interrupted_call: int) -> None:
    waiting, calls = accumulator(World(), batch_size=100), list[int]()

    def notify() -> None:
        calls.append(len(calls) + 1)
        if calls[-1] == interrupted_call:
            raise KeyboardInterrupt

    monkeypatch.setattr(waiting._due, "notify", notify)
    # The first record opens a batch and fills it, and the sender is notified of both.
    with pytest.raises(KeyboardInterrupt):
        waiting.append("t", *RECORD)
    waiting.append("t", *RECORD)
    assert calls == [1, 2, 3]
    assert [batch.rows for batch in waiting.drain()] == [1]


def test_columns_whose_append_was_interrupted_are_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pa.RecordBatch.from_pylist([{"value": b"a", "timestamp": 6}], COLUMNS)
    waiting = accumulator(World())
    waiting.append("t", *RECORD)
    with monkeypatch.context() as patch:
        patch.setattr("sparklog.clients.producer.accumulator.Cells", interrupt)
        with pytest.raises(KeyboardInterrupt):
            waiting.append_columns("t", columns)
    span = waiting.append_columns("t", columns)
    waiting.close()
    (batch,) = waiting.drain()
    values = Records.of(batch).columns.column("value").to_pylist()
    assert (span.first_row, batch.rows, values) == (1, 2, [VALUE, b"a"])


def test_an_interrupted_flush_does_not_make_later_batches_due(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = accumulator(World())
    monkeypatch.setattr(waiting._due, "notify", interrupt)
    with pytest.raises(KeyboardInterrupt):
        waiting.flush(0)
    assert waiting._waiting_calls == 0
