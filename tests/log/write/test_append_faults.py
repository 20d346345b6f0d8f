"""Appends and scans on a failing store: appends are atomic, and records are never wrong."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from sparklog.errors import Corrupt, SparklogError, Unavailable
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import open_root
from sparklog.log.topic.topic import Topic
from sparklog.testing.faulty_store import Crash, Fault, FaultKind, FaultyStore, Script
from tests.support.counted_root import CountedRoot
from tests.support.records import random_rows, small


@pytest.fixture
def memory(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


def through(place: CountedRoot, script: Script) -> Topic:
    """Return the topic as seen by a process whose store fails as this script defines."""
    return open_root(FaultyStore(place.inner, script), env=place.world.env()).topic("t")


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
