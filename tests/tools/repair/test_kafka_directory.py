"""Rebuilt index files of Kafka directories are identical to those of a broker or of its recovery."""

from __future__ import annotations

import fcntl
import multiprocessing
import random
from pathlib import Path

import pytest

from sparklog.errors import Conflict
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.storage.memory import MemoryStore
from sparklog.tools.repair import kafka_directory as repairing
from sparklog.tools.repair.kafka_directory import repair_log_dir
from sparklog.tools.verification.kafka_directory import verify_log_dir
from sparklog.tools.verification.kafka_partition import SNAPSHOT
from sparklog.tools.verification.slice_checks import REBUILD
from tests.fixture_data import copied
from tests.kafka.logs import batch, write_partition
from tests.support.seeds import thinned
from tests.tools.verification.damage import flip

ENV = Env(SYSTEM.wall_ms, SYSTEM.boot_ms, lambda seconds: None, random.Random(1))
FIXTURES = ("damaged/good/data", "codecs/data", "compaction/plain/after")
SLOW_FIXTURES = ("transactions/data", "segments/data")
INTERVAL = 512
"""`index.interval.bytes` of the damaged logs."""
SUFFIXES = (".index", ".timeindex", ".txnindex")


def indexes(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.stat().st_size)


def damage(path: Path, how: str, rng: random.Random) -> bytes:
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-5] if how == "cut" else flip(data, rng.randrange(len(data)), rng.randrange(8)))
    return data


def sweep(folder: Path, seed: int, many: int) -> None:
    """Damage the indexes one by one, and check that each rebuilt index equals that of the broker."""
    rng = random.Random(seed)
    files = indexes(folder)
    for number in range(many):
        path, how = rng.choice(files), ("flip", "gone", "cut")[number % 3]
        is_last = path.name[:20] == max(other.name[:20] for other in path.parent.glob("*.log"))
        if path.suffix == ".txnindex" and how == "gone" and is_last:
            # A running broker may not have created the index yet.
            continue
        data = damage(path, how, rng)
        report = repair_log_dir(folder, topics=[path.parent.name.rsplit("-", 1)[0]], execute=True, env=ENV)
        assert report.sound, (path, how, report.left)
        assert path.read_bytes() == data, (path, how)


def test_repaired_index_equals_the_index_of_the_broker(fixtures: Path, tmp_path: Path) -> None:
    sweep(copied(fixtures / "damaged/good/data", tmp_path / "log"), 1, 3)


@pytest.mark.sweep
@pytest.mark.parametrize("step", thinned(4))
@pytest.mark.parametrize(
    "fixture", [*FIXTURES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_FIXTURES)]
)
def test_repaired_indexes_of_all_types_of_logs(fixtures: Path, tmp_path: Path, fixture: str, step: int) -> None:
    sweep(copied(fixtures / fixture, tmp_path / "log"), 2, 100 // step)


@pytest.mark.parametrize(
    "name", ["indexes-missing", "snapshots-damaged", pytest.param("indexes-wrong", marks=pytest.mark.sweep)]
)
def test_repair_has_the_same_result_as_kafkas_recovery(fixtures: Path, tmp_path: Path, name: str) -> None:
    folder = copied(fixtures / "damaged" / name / "data", tmp_path / "log")
    report = repair_log_dir(folder, execute=True, index_interval_bytes=INTERVAL, env=ENV)
    assert report.sound
    assert report.repaired
    recovered = fixtures / "damaged" / name / "recovered/unclean-recovery-point-0"
    names = {item.file for item in report.repaired if item.file.endswith(SUFFIXES)}
    for file in names:
        assert (folder / file).read_bytes() == (recovered / file).read_bytes(), file
    assert names or name == "snapshots-damaged"


@pytest.mark.parametrize("name", ["bit-flipped", "last-batch-cut"])
def test_repair_does_not_change_segments(fixtures: Path, tmp_path: Path, name: str) -> None:
    folder = copied(fixtures / "damaged" / name / "data", tmp_path / "log")
    before = {path: path.read_bytes() for path in folder.rglob("*.log")}
    report = repair_log_dir(folder, execute=True, env=ENV)
    assert {path: path.read_bytes() for path in folder.rglob("*.log")} == before
    assert {finding.file for finding in report.left} <= {
        finding.file for finding in verify_log_dir(fixtures / "damaged" / name / "data", env=ENV).findings
    }


def test_dry_run_writes_nothing(fixtures: Path, tmp_path: Path) -> None:
    folder = copied(fixtures / "damaged/indexes-missing/data", tmp_path / "log")
    before = sorted(folder.rglob("*"))
    report = repair_log_dir(folder, env=ENV)
    assert report.sound
    assert len(report.repaired) > 1
    assert sorted(folder.rglob("*")) == before
    assert not verify_log_dir(folder, env=ENV).sound


def lock_file(path: str, ready: multiprocessing.synchronize.Event, done: multiprocessing.synchronize.Event) -> None:
    with open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        ready.set()
        done.wait(30)


def test_directory_of_a_running_broker_is_rejected(fixtures: Path, tmp_path: Path) -> None:
    """The broker is another process, because a process does not conflict with its own file lock."""
    folder = copied(fixtures / "damaged/indexes-missing/data", tmp_path / "log")
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    broker = context.Process(target=lock_file, args=(str(folder / ".lock"), ready, done))
    broker.start()
    try:
        assert ready.wait(30)
        before = sorted(folder.rglob("*"))
        for place in (folder, folder / "damaged-0"):
            with pytest.raises(Conflict, match="a broker is running"):
                repair_log_dir(place, execute=True, env=ENV)
        assert sorted(folder.rglob("*")) == before
    finally:
        done.set()
        broker.join()
    assert repair_log_dir(folder, execute=True, env=ENV).sound


def test_index_interval_is_rounded_if_indexes_do_not_change(fixtures: Path, tmp_path: Path) -> None:
    folder = copied(fixtures / "damaged/good/data", tmp_path / "log") / "damaged-0"
    segments = repairing._read(repairing.file_path(folder), ENV)
    interval = repairing._likely_interval(*repairing._interval_bounds(segments))
    assert interval != repairing.INDEX_INTERVAL_BYTES
    assert any(interval % step == 0 for step in repairing.ROUND_STEPS)
    assert repairing._likely_interval(*repairing._interval_bounds([])) == repairing.INDEX_INTERVAL_BYTES


INTERVAL_CONFIG = bytes.fromhex("01040002") + b"\x08damaged\x15index.interval.bytes\x04512\x00"
"""The value of a record of the metadata log that sets `index.interval.bytes` of topic `damaged` to 512."""


@pytest.mark.parametrize("source", ["metadata log", "other partition"])
def test_index_interval_is_read_from_the_metadata_log_or_another_partition(
    fixtures: Path, tmp_path: Path, source: str
) -> None:
    folder = copied(fixtures / "damaged/good/data", tmp_path / "log")
    if source == "metadata log":
        write_partition(folder, "__cluster_metadata-0", {0: batch(0, [INTERVAL_CONFIG])})
    else:
        copied(folder / "damaged-0", folder / "damaged-1")
    lost = [path for path in indexes(folder / "damaged-0") if path.suffix != ".txnindex"]
    before = {path: path.read_bytes() for path in lost}
    for path in lost:
        path.unlink()
    assert repair_log_dir(folder, execute=True, env=ENV).sound
    assert {path: path.read_bytes() for path in lost} == before
    assert len(lost) > 2


def test_kafka_directory_in_an_object_store(fixtures: Path) -> None:
    from sparklog.kafka.in_place.files import store_path

    source = fixtures / "damaged/indexes-missing/data"
    store = MemoryStore(lambda: 1)
    for path in source.rglob("*"):
        if path.is_file():
            store.create(f"log/{path.relative_to(source)}", path.read_bytes())
    report = repair_log_dir(store_path(store, "log"), execute=True, index_interval_bytes=INTERVAL, env=ENV)
    assert report.sound
    good = fixtures / "damaged/good/data"
    assert len(report.repaired) > 1
    for item in report.repaired:
        assert store.get(f"log/{item.file}") == (good / item.file).read_bytes(), item


@pytest.mark.parametrize("is_stopped", [True, False])
def test_missing_transaction_index_of_the_active_segment(fixtures: Path, tmp_path: Path, is_stopped: bool) -> None:
    """After a clean stop, Kafka assumes that no transaction was aborted; otherwise it rebuilds the index."""
    folder = copied(fixtures / "transactions/data", tmp_path / "log")
    if not is_stopped:
        (folder / ".kafka_cleanshutdown").unlink()
    index = folder / "txn-a-0/00000000000000000000.txnindex"
    data = index.read_bytes()
    index.unlink()
    report = verify_log_dir(folder, topics=["txn-a"], env=ENV)
    assert report.sound is not is_stopped
    (found,) = report.findings if is_stopped else report.notes
    assert (found.file, found.remedy) == ("txn-a-0/00000000000000000000.txnindex", REBUILD)
    assert repair_log_dir(folder, topics=["txn-a"], execute=True, env=ENV).sound
    assert index.read_bytes() == data


@pytest.mark.parametrize("data", [b"", bytes(80)])
def test_index_that_does_not_cover_its_segment_is_rebuilt(tmp_path: Path, data: bytes) -> None:
    folder = write_partition(tmp_path, "t-0", {0: b"".join(batch(n, [b"v" * 9000]) for n in range(300))})
    assert repair_log_dir(tmp_path, execute=True, env=ENV).sound
    index = folder / f"{0:020d}.index"
    whole = index.read_bytes()
    assert len(whole) == 8 * 299
    for sparse in (data, whole[: 8 * 100], whole[8 * 180 :]):
        index.write_bytes(sparse)
        (note,) = verify_log_dir(tmp_path, env=ENV).notes
        assert "do not cover the entire segment" in note.message
        assert repair_log_dir(tmp_path, execute=True, env=ENV).sound
        assert index.read_bytes() == whole
    assert verify_log_dir(tmp_path, env=ENV).notes == ()


@pytest.mark.parametrize("others", [True, False])
def test_last_producer_snapshot_is_not_deleted(fixtures: Path, tmp_path: Path, others: bool) -> None:
    folder = copied(fixtures / "transactions/data", tmp_path / "log")
    snapshot = folder / ("txn-b-0/00000000000000000105.snapshot" if others else "txn-a-0/00000000000000000075.snapshot")
    snapshot.write_bytes(b"")
    report = repair_log_dir(folder, execute=True, env=ENV)
    assert report.sound is snapshot.with_suffix(".snapshot.deleted").exists() is others
    assert [finding.remedy for finding in report.left] == [SNAPSHOT] * (not others)
