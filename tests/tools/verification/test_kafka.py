"""Kafka's own directories: what Kafka wrote is sound, what was damaged is found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.tools.verification.kafka_directory import verify_log_dir
from tests.fixture_data import copied, fixture_tree
from tests.tools.verification.damage import flip

ENV = Env(SYSTEM.wall_ms, SYSTEM.boot_ms, lambda seconds: None, random.Random(1))
UNKNOWN = ("-offset-checkpoint", "meta.properties", ".kafka_cleanshutdown")
"""Of these only bounds are known, or nothing."""


def stages() -> list[str]:
    tree = fixture_tree()
    found = []
    for file in sorted(tree.glob("**/fixture.json")):
        name = file.parent.relative_to(tree).as_posix()
        if not name.startswith(("damaged/", "partitioner")):
            found += [f"{name}/{stage.name}" for stage in sorted(file.parent.iterdir()) if stage.is_dir()]
    return [name for name in found if not name.endswith("/expected")]


STAGES = stages()
SAMPLE = [name for name in STAGES if "/data" in name or "transactions" in name or "old-formats" in name]


@pytest.mark.parametrize("stage", SAMPLE)
def test_fixtures_of_kafka_are_sound(fixtures: Path, stage: str) -> None:
    report = verify_log_dir(fixtures / stage, env=ENV)
    assert report.findings == report.notes == report.unreferenced == report.foreign == ()
    assert report.counts.batches > 0


@pytest.mark.slow
@pytest.mark.parametrize("stage", [name for name in STAGES if name not in SAMPLE])
def test_all_other_fixtures_of_kafka_are_sound(fixtures: Path, stage: str) -> None:
    report = verify_log_dir(fixtures / stage, env=ENV)
    assert report.findings == report.notes == ()


DAMAGED = {
    "bit-flipped": "damaged-0/00000000000000000197.log",
    "empty-segment-middle": "damaged-0/00000000000000000197.index",
    "garbage-appended": "damaged-0/00000000000000000322.log",
    "indexes-missing": "damaged-0/00000000000000000000.index",
    "indexes-wrong": "damaged-0/00000000000000000000.index",
    "last-batch-cut": "damaged-0/00000000000000000322.log",
    "length-field-huge": "damaged-0/00000000000000000322.log",
    "snapshots-damaged": "damaged-0/00000000000000000322.snapshot",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_reported(fixtures: Path, name: str) -> None:
    report = verify_log_dir(fixtures / "damaged" / name / "data", env=ENV)
    assert DAMAGED[name] in {finding.file for finding in report.findings}


def test_gap_between_records_with_keys_is_a_note(fixtures: Path) -> None:
    report = verify_log_dir(fixtures / "damaged/segment-missing/data", env=ENV)
    assert report.sound
    (note,) = report.notes
    assert (note.file, note.position, note.offset) == ("damaged-0/00000000000000000256.log", 0, 197)
    assert "from here on, 59 offsets are missing in 1 gaps above the cleaner's checkpoint (0)" in note.message


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(each.name for each in (fixture_tree() / "damaged").iterdir()))
def test_directory_after_kafkas_recovery_is_sound(fixtures: Path, name: str) -> None:
    for folder in sorted((fixtures / "damaged" / name).glob("recovered/*")):
        if folder.is_dir():
            assert verify_log_dir(folder, env=ENV).sound


def test_trailing_zeros_of_a_killed_broker_are_not_damage(fixtures: Path) -> None:
    for name in ("zeros-appended", "killed-broker", "good"):
        assert verify_log_dir(fixtures / "damaged" / name / "data", env=ENV).sound


def sweep(folder: Path, seed: int, many: int) -> list[str]:
    """Flip bits one after the other; the places that were not found."""
    rng = random.Random(seed)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    files = [path for path in files if not path.name.endswith(UNKNOWN)]
    missed = []
    for number in range(many):
        path = files[number % len(files)] if number < len(files) else rng.choice(files)
        data = path.read_bytes()
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        path.write_bytes(flip(data, at, bit))
        try:
            report = verify_log_dir(path.parent.parent, topics=[path.parent.name.rsplit("-", 1)[0]], env=ENV)
        finally:
            path.write_bytes(data)
        if str(path.relative_to(folder)) not in {finding.file for finding in (*report.findings, *report.notes)}:
            missed.append(f"{path.relative_to(folder)} byte {at} bit {bit}")
    return missed


@pytest.mark.parametrize("fixture", ["damaged/good/data", "transactions/data"])
def test_flipped_bits_are_reported(fixtures: Path, tmp_path: Path, fixture: str) -> None:
    assert sweep(copied(fixtures / fixture, tmp_path / "log"), 1, 60) == []


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["damaged/good/data", "transactions/data", "segments/data"])
def test_thousand_flipped_bits_are_reported(fixtures: Path, tmp_path: Path, fixture: str) -> None:
    """Not: the id of a topic with one partition, and where an epoch began that no batch is of."""
    missed = sweep(copied(fixtures / fixture, tmp_path / "log"), 2, 1000)
    assert [place for place in missed if "partition.metadata" not in place and "leader-epoch" not in place] == []
    assert len(missed) <= 30


@pytest.mark.slow
def test_few_flipped_bits_of_old_messages_are_not_reported(fixtures: Path, tmp_path: Path) -> None:
    """Their offsets and lengths lie outside the checksum, and entries of their indexes may name several at once."""
    missed = sweep(copied(fixtures / "legacy/broker-2.8.2/data", tmp_path / "log"), 2, 1000)
    assert len(missed) <= 10


def test_foreign_and_deleted_files_are_not_damage(fixtures: Path, tmp_path: Path) -> None:
    folder = copied(fixtures / "damaged/good/data", tmp_path / "log")
    for name in ("notes.txt", "damaged-0/00000000000000000322.log.deleted", "damaged-0/odd.bin"):
        (folder / name).write_bytes(b"123")
    (folder / "damaged-1-delete").mkdir()
    report = verify_log_dir(folder, env=ENV)
    assert report.sound
    assert {each.file for each in report.unreferenced} == {
        "damaged-0/00000000000000000322.log.deleted",
        "damaged-1-delete",
    }
    assert {each.file for each in report.foreign} == {"notes.txt", "damaged-0/odd.bin"}


def test_different_topic_ids_are_reported(fixtures: Path, tmp_path: Path) -> None:
    folder = copied(fixtures / "transactions/data", tmp_path / "log")
    other = folder / "txn-a-1" / "partition.metadata"
    other.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    assert "txn-a-1/partition.metadata" in {each.file for each in verify_log_dir(folder, env=ENV).findings}
