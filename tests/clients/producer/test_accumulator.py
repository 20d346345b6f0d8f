"""The accumulator: when a batch is due, and how much memory it uses, with the clock of a `World`."""

from __future__ import annotations

import pytest

from sparklog.clients.producer.accumulator import RECORD_BYTES, Accumulator, Row
from sparklog.clients.producer.options import ProducerOptions, producer_options
from sparklog.errors import BadRequest, Unavailable
from sparklog.testing import World

VALUE = b"x" * 100
ROW: Row = (None, VALUE, None, 5, None, None)


def accumulator(world: World, linger_ms: float = 60_000, batch_size: int = 1 << 20, records: int = 100) -> Accumulator:
    """Create an accumulator with memory for this number of records."""
    memory = records * (RECORD_BYTES + 100)
    options = ProducerOptions(linger_ms=linger_ms, batch_size=batch_size, buffer_memory=memory, max_block_ms=0)
    return Accumulator(producer_options(options), world.env())


def test_a_batch_is_due_after_the_linger_time() -> None:
    world = World()
    waiting = accumulator(world)
    for number in range(3):
        waiting.append("t", ROW, 100)
        if number < 2:
            waiting.append("u", ROW, 100)
        world.advance(20_000)
    world.advance(1)
    (batch, other) = waiting.drain()
    assert [(taken.topic, taken.count, taken.nbytes) for taken in (batch, other)] == [("t", 3, 300), ("u", 2, 200)]
    records = batch.records()
    assert (list(records.values), list(records.timestamps), list(records.numbers)) == ([VALUE] * 3, [5] * 3, [0, 1, 2])
    assert list(records.select([2, 0]).numbers) == [2, 0]


def test_a_full_batch_is_due_before_the_linger_time() -> None:
    waiting = accumulator(World(), batch_size=250)
    waiting.append("u", ROW, 100)
    for _ in range(3):
        waiting.append("t", ROW, 100)
    assert [batch.topic for batch in waiting.drain()] == ["t"]


def test_memory_is_released_when_a_batch_is_done() -> None:
    waiting = accumulator(World(), batch_size=100, records=2)
    waiting.append("t", ROW, 100)
    waiting.append("t", ROW, 100)
    with pytest.raises(Unavailable, match="is full for max_block_ms"):
        waiting.append("t", ROW, 100)
    batches = waiting.drain()
    with pytest.raises(Unavailable, match="is full for max_block_ms"):
        waiting.append("t", ROW, 100)
    waiting.release(batches)
    waiting.append("t", ROW, 100)


def test_a_closed_accumulator_drains_and_rejects_records() -> None:
    waiting = accumulator(World())
    future = waiting.append("t", ROW, 100)
    waiting.close()
    with pytest.raises(BadRequest, match="this producer is closed"):
        waiting.append("t", ROW, 100)
    assert len(waiting.drain()) == 1
    assert waiting.drain() == []
    waiting.fail_all(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        future.result(0)
