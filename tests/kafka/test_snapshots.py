"""Test the checkpoint files of a running broker, and copies of its directory."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklog.errors import Corrupt, NotFound
from sparklog.kafka.in_place import KafkaView
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from tests.fixture_data import copied, expected_records
from tests.kafka.logs import (
    HOUR_MS,
    offsets,
    offsets_of,
    plan,
    read,
    without_epochs,
)

# ---------------------------------------------------------------- checkpoints


@pytest.fixture
def transactions(fixtures: Path, tmp_path: Path) -> Path:
    return copied(fixtures / "transactions/data", tmp_path / "data")


def test_only_a_tailing_reader_stops_at_the_high_watermark(transactions: Path) -> None:
    (transactions / "replication-offset-checkpoint").write_text("0\n2\ntxn-a 0 50\ntxn-b 0 9999\n")
    tail, whole = KafkaView(transactions, tailing=True), KafkaView(transactions)
    limited, unlimited = tail.bounds("txn-a")[0], whole.bounds("txn-a")[0]
    assert (limited.last_stable, limited.high_watermark, limited.log_end) == (50, 50, 75)
    assert (unlimited.last_stable, unlimited.high_watermark) == (62, 75)
    assert tail.bounds("txn-a")[1].last_stable == 35, "no entry: the last stable offset alone"
    assert tail.bounds("txn-b")[0].high_watermark == 105, "never beyond the log's end"
    assert offsets(read(tail, "txn-a", 0, READ_UNCOMMITTED))[-1] < 50


def test_log_start_may_be_inside_a_batch(folder: Path) -> None:
    (folder.parent / "log-start-offset-checkpoint").write_text("0\n2\nt 0 1\nother 3 7\n")
    view = KafkaView(folder.parent)
    assert view.bounds("t")[0].log_start == 1
    assert offsets(read(view, "t")) == [1, 2]
    assert view.offsets_for_timestamps("t", {0: 0})[0] == (view.offsets_for_timestamps("t", {0: HOUR_MS})[0])
    with pytest.raises(NotFound, match="out of range: the log contains 1 to 2"):
        plan(view, 0, 2)


def test_log_start_beyond_the_end_leaves_an_empty_log(folder: Path) -> None:
    (folder.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 50\n")
    view = KafkaView(folder.parent)
    bounds = view.bounds("t")[0]
    assert (bounds.log_start, bounds.log_end, bounds.last_stable, bounds.high_watermark) == (50, 50, 50, 50)
    assert view.plan([OffsetRange("t", 0, 50, 50)], READ_COMMITTED) == []


def test_damaged_checkpoint_is_corrupt(folder: Path) -> None:
    file = folder.parent / "log-start-offset-checkpoint"
    file.write_text("0\n3\nt 0 1\n")
    with pytest.raises(Corrupt, match="expected 3 entries in the checkpoint, found 1") as caught:
        KafkaView(folder.parent).refresh(["t"])
    assert caught.value.file == str(file)


# ---------------------------------------------------------------- copies of a running broker's directory


@pytest.fixture
def cut_anywhere(fixtures: Path, tmp_path: Path) -> Iterator[Callable[[int], KafkaView]]:
    source = fixtures / "transactions/data/txn-b-0"
    names = sorted(file.name for file in source.glob("*.log"))

    def cut(total: int) -> KafkaView:
        target = tmp_path / f"at-{total}" / "txn-b-0"
        target.mkdir(parents=True)
        for name in names:
            data = (source / name).read_bytes()[: max(total, 0)]
            (target / name).write_bytes(data)
            total -= len(data)
            if total <= 0:
                break
        return KafkaView(target.parent)

    yield cut
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_log_truncated_at_any_byte_is_a_prefix(fixtures: Path, cut_anywhere: Callable[[int], KafkaView]) -> None:
    fixture = fixtures / "transactions"
    everything = without_epochs(expected_records(fixture, "txn-b-0"))
    committed = without_epochs(expected_records(fixture, "txn-b-0", READ_COMMITTED))
    size = sum(file.stat().st_size for file in (fixture / "data/txn-b-0").glob("*.log"))
    ends = set()
    for total in random.Random(3).sample(range(size), 40):
        view = cut_anywhere(total)
        bounds = view.bounds("txn-b")[0]
        ends.add(bounds.log_end)
        assert read(view, "txn-b") == [record for record in everything if record.offset < bounds.log_end]
        stable = [record for record in committed if record.offset < bounds.last_stable]
        assert read(view, "txn-b", isolation=READ_COMMITTED) == stable
    assert len(ends) > 10


def test_deleted_directory_is_not_found(folder: Path) -> None:
    view = KafkaView(folder.parent)
    part = plan(view, 0, 3)
    shutil.rmtree(folder)
    with pytest.raises(NotFound, match="no longer exists"):
        offsets_of(part)
    with pytest.raises(NotFound, match="topic 't' does not exist"):
        view.refresh(["t"])
    assert not os.path.exists(folder)
