"""Appends and scans on a failing store: appends are atomic, and records are never wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Corrupt, SparklogError, Unavailable
from sparklog.format.encode import encode_rows
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import open_root
from sparklog.log.topic.topic import Topic
from sparklog.log.write import append_writer
from sparklog.log.write.append_writer import AppendWriter
from sparklog.testing.faulty_store import Crash, Decide, Fault, FaultKind, FaultyStore, Script
from tests.support.counted_root import CountedRoot
from tests.support.records import random_rows, small


@pytest.fixture
def memory(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def through(counted_root: CountedRoot, script: Script) -> Topic:
    """Return the topic as seen by a process whose store fails as this script defines."""
    return open_root(FaultyStore(counted_root.inner, script), env=counted_root.world.env()).topic("t")


POINTS = ("get:root", "writer:append", "write:append", "close:append", "create:commit")
POINTS_WITHOUT_FILES = ("get:root", "create:commit")
KINDS = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("point", "inline"), [*((point, 0) for point in POINTS), *((point, 1 << 20) for point in POINTS_WITHOUT_FILES)]
)
def test_an_append_is_atomic_and_can_be_retried(memory: CountedRoot, point: str, inline: int, kind: FaultKind) -> None:
    topic = memory.topic(3, configs={"inline.records.bytes": inline})
    table = random_rows(200)
    key = WriterKey(id="query", batch=0, run="r", mode="stream")
    nth = 1 if point == "get:root" else 0
    script = Script({(point, nth): Fault(kind)})
    options = small(buffer_bytes=3000, file_bytes=6000)
    with contextlib.suppress(SparklogError, Crash):
        through(memory, script).append(table, options=options, writer=key)
    assert script.struck
    seen = memory.reopened().scan(columns=["value"]).to_table()
    assert seen.num_rows in (0, 200)
    again = memory.reopened().append(table, options=options, writer=key)
    assert again.skipped == (seen.num_rows == 200)
    read = topic.scan(columns=["value"]).to_table()
    assert sorted(read["value"].to_pylist()) == sorted(table["value"].to_pylist())


PARTS = [random_rows(8, first=100 * number, keys=9) for number in range(6)]
KEYLESS = random_rows(30, first=900, keys=None)
Encode = Callable[..., Iterator[object]]


def failing_once(real: Encode, nth: int) -> Encode:
    """Return `encode_rows` whose call `nth` fails with an error that is not a `SparklogError`."""
    calls = iter(range(10**6))

    def encode(*args: object, **kwargs: object) -> Iterator[object]:
        if next(calls) == nth:
            raise pa.ArrowMemoryError("out of memory")
        return real(*args, **kwargs)

    return encode


def failing_at(point: int) -> Decide:
    """Return the decisions of a store that fails at the request with this number."""
    return lambda call: Fault(FaultKind.ERROR_BEFORE) if call.number == point else None


def write_repeating(writer: AppendWriter, parts: list[pa.Table], is_flushing: bool) -> tuple[list[bytes], int]:
    """Write the parts like a caller that repeats a failed call and goes on. Return the accepted values, and the number
    of errors.
    """
    accepted: list[bytes] = []
    errors = 0
    for part in parts:
        (batch,) = part.combine_chunks().to_batches()
        for _ in range(2):
            try:
                writer.write(batch)
                accepted += part["value"].to_pylist()
                if is_flushing:
                    writer.flush()
                break
            except (SparklogError, pa.ArrowException):
                errors += 1
    return accepted, errors


@pytest.mark.parametrize("is_flushing", [False, True])
@pytest.mark.parametrize(
    ("what", "inline"),
    [("request", 0), ("encode", 0), ("encode", 1 << 20), ("keyless row", 0), ("keyless row", 1 << 20)],
)
def test_a_writer_that_is_used_after_an_error_publishes_all_accepted_rows_or_none(
    memory: CountedRoot, monkeypatch: pytest.MonkeyPatch, what: str, inline: int, is_flushing: bool
) -> None:
    """The error occurs at each request, in each call of the encoder, or because of a rejected row in each place."""
    topic = memory.topic(2, configs={"inline.records.bytes": inline, "cleanup.policy": "compact"})
    target, real = topic.log.append_target(), encode_rows
    expected: list[bytes] = []
    failed = published = 0
    for point in range(100):
        parts = [*PARTS[:point], KEYLESS, *PARTS[point:]] if what == "keyless row" else PARTS
        monkeypatch.setattr(append_writer, "encode_rows", failing_once(real, point) if what == "encode" else real)
        store, options = FaultyStore(memory.inner, lambda call: None), small(buffer_bytes=1500, file_bytes=2500)
        if what == "request":
            store.decide = failing_at(point)
        writer = AppendWriter(replace(target, store=store), options, memory.world.env(), seed=point)
        accepted, errors = write_repeating(writer, parts, is_flushing)
        try:
            topic.log.commit_append(writer.finish(), target)
        except (SparklogError, pa.ArrowException):
            failed += 1
            with pytest.raises(BadRequest, match="the writer of topic 't' has lost rows and can no longer be used: "):
                writer.finish()
        else:
            assert errors == 0
            published += 1
            expected += accepted
        writer.discard()
        assert sorted(topic.scan(columns=["value"]).to_table()["value"].to_pylist()) == sorted(expected)
        if published or (point == len(PARTS) and what == "keyless row"):
            break
    assert failed > 1


def test_a_batch_with_invalid_columns_does_not_make_the_writer_unusable(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    target = topic.log.append_target()
    writer = AppendWriter(target, small(), memory.world.env())
    writer.write(pa.record_batch({"value": ["a"]}))
    with pytest.raises(BadRequest, match="value to be binary or string"):
        writer.write(pa.record_batch({"value": [1.5]}))
    topic.log.commit_append(writer.finish(), target)
    assert topic.scan().to_table()["value"].to_pylist() == [b"a"]


def test_a_discarded_writer_cannot_be_used(memory: CountedRoot) -> None:
    writer = AppendWriter(memory.topic(1).log.append_target(), small(), memory.world.env())
    writer.write(pa.record_batch({"value": ["a"]}))
    writer.discard()
    for call in (writer.flush, writer.finish, lambda: writer.write(pa.record_batch({"value": ["b"]}))):
        with pytest.raises(BadRequest, match="the writer of topic 't' has discarded its rows"):
            call()


@pytest.mark.usefixtures("records_in_files")
def test_a_failed_upload_leaves_no_unfinished_file(memory: CountedRoot) -> None:
    memory.topic(1)
    script = Script({("write:append", 1): Fault(FaultKind.ERROR_BEFORE)})
    with pytest.raises(Unavailable):
        through(memory, script).append(random_rows(50), options=small(buffer_bytes=500))
    assert memory.append_files() == []


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("kind", [FaultKind.ABSENT, FaultKind.SHORT])
def test_a_failed_read_is_retried(memory: CountedRoot, kind: FaultKind) -> None:
    topic = memory.topic(2)
    topic.append(random_rows(100), options=small())
    script = Script({("get:append", 0): Fault(kind, 5)})
    assert through(memory, script).scan().to_table() == topic.scan().to_table()
    assert script.struck


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("bit", range(0, 40_000, 1777))
def test_a_bit_flipped_in_transit_is_detected(memory: CountedRoot, bit: int) -> None:
    topic = memory.topic(1)
    topic.append(random_rows(100), options=small())
    script = Script({"get:append": Fault(FaultKind.FLIP, bit)})
    with pytest.raises(Corrupt) as caught:
        through(memory, script).scan().to_table()
    assert caught.value.file == memory.append_files()[0]


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_a_finished_writer_cannot_be_used(memory: CountedRoot, inline: int) -> None:
    topic = memory.topic(1, configs={"inline.records.bytes": inline})
    target = topic.log.append_target()
    writer = AppendWriter(target, small(), memory.world.env())
    writer.write(pa.record_batch({"value": ["a"]}))
    topic.log.commit_append(writer.finish(), target)
    for call in (writer.flush, writer.finish, lambda: writer.write(pa.record_batch({"value": ["b"]}))):
        with pytest.raises(BadRequest, match="the writer of topic 't' has finished"):
            call()
    assert not writer.has_lost_rows
