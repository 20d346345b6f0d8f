"""Test damaged directories, read and imported, against Kafka's recovery (recovery.json and the recovered files)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import BadRequest, Corrupt
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.read_part import KafkaReadPart
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP, TRUNCATE
from sparklog.log.read.skipped import Skipped
from sparklog.log.read.topic_scan import Scan
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import InProcess, Settings
from tests.fixture_data import ExpectedRecord, copied, expected_offsets, expected_records, fixture_tree
from tests.kafka.logs import HOUR_MS, offsets, read, records, segment, without_epochs
from tests.support.compaction import compact_topic

ISOLATION = (READ_UNCOMMITTED, READ_COMMITTED)
RECOVERED = "recovered/unclean-recovery-point-0"
LAST_SEGMENT = "unclean-recovery-point-last-segment"
POINT_0 = "unclean-recovery-point-0"
BIT_FLIPPED = "bit-flipped"


def damages() -> list[str]:
    return sorted(folder.name for folder in (fixture_tree() / "damaged").iterdir() if folder.name != "good")


DAMAGES = damages()
LOADED_THREE_WAYS = [name for name in DAMAGES if name != "killed-broker"]


def topic_of(name: str) -> str:
    return "prealloc" if name == "killed-broker" else "damaged"


def recovery(fixtures: Path, name: str, mode: str) -> dict[str, Any]:
    document = json.loads((fixtures / "damaged" / name / "expected/recovery.json").read_text())
    found: dict[str, Any] = document["modes"][mode]
    return found


def batch_at(view: KafkaView, offset: int) -> int | str | None:
    """Return the base offset of the batch that a fetch at `offset` begins with, or the error."""
    log_end = view.bounds("damaged")[0].log_end
    (part,) = view.plan([OffsetRange("damaged", 0, offset, log_end)], READ_UNCOMMITTED)
    assert isinstance(part, KafkaReadPart)
    try:
        window = next(part.windows(1 << 16))
    except Corrupt as error:
        return f"invalid batch with base offset {error.offset}"
    return int(window.headers.base_offset[0])


# ---------------------------------------------------------------- in place


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("name", DAMAGES)
def test_truncate_policy_matches_kafkas_recovery(fixtures: Path, name: str, isolation: str) -> None:
    fixture, topic = fixtures / "damaged" / name, topic_of(name)
    view = KafkaView(fixture / "data", corrupt_records=TRUNCATE)
    expected = without_epochs(expected_records(fixture, f"{topic}-0", isolation, "recovered"))
    assert expected
    assert read(view, topic, isolation=isolation) == expected
    bounds, kafka = view.bounds(topic)[0], expected_offsets(fixture, "recovered")[f"{topic}-0"]
    assert (bounds.log_start, bounds.log_end) == (kafka["logStartOffset"], kafka["logEndOffset"])
    assert bounds.last_stable == kafka["lastStableOffset"]


@pytest.mark.parametrize("name", LOADED_THREE_WAYS)
def test_fail_policy_matches_kafka_with_recovery_point_in_last_segment(fixtures: Path, name: str) -> None:
    view = KafkaView(fixtures / "damaged" / name / "data")
    kafka, bounds = recovery(fixtures, name, LAST_SEGMENT), view.bounds("damaged")[0]
    assert (bounds.log_start, bounds.log_end) == (kafka["logStartOffset"], kafka["logEndOffset"])
    assert bounds.last_stable == kafka["lastStableOffset"]
    found: list[ExpectedRecord] = []
    (part,) = view.plan([OffsetRange("damaged", 0, bounds.log_start, bounds.log_end)], READ_UNCOMMITTED)
    stopped = None
    try:
        for piece in part.read(COLUMNS):
            found += records(piece)
    except Corrupt as error:
        stopped = f"CorruptRecordException at or after offset {error.offset}"
    assert stopped == kafka["readStoppedBy"]
    assert len(found) == kafka["readableRecords"]


@pytest.mark.parametrize(("mode", "policy"), [(LAST_SEGMENT, FAIL), (POINT_0, TRUNCATE)])
@pytest.mark.parametrize("name", LOADED_THREE_WAYS)
def test_fetch_at_any_offset_starts_with_kafkas_batch(fixtures: Path, name: str, mode: str, policy: str) -> None:
    view = KafkaView(fixtures / "damaged" / name / "data", corrupt_records=policy)
    expected = recovery(fixtures, name, mode)["fetchAt"]
    if name == "indexes-wrong" and mode == LAST_SEGMENT:
        # Kafka trusts the wrong index of a segment that it does not recover. It raises an error, or skips segments.
        assert expected["138"] == "CorruptRecordException"
        assert expected["36"] == 60
        expected = recovery(fixtures, name, POINT_0)["fetchAt"]
    assert len(expected) > 70
    assert {at: batch_at(view, int(at)) for at in expected} == expected


@pytest.mark.parametrize("name", ["garbage-appended", "last-batch-cut", "length-field-huge", "zeros-appended"])
def test_clean_shutdown_marker_has_no_effect(fixtures: Path, tmp_path: Path, name: str) -> None:
    """With the marker, Kafka fails to load zeros, and uses indexes to find the log end, so that reads hang."""
    log_dir = tmp_path / "data"
    log_dir.mkdir()
    (log_dir / "damaged-0").symlink_to(fixtures / "damaged" / name / "data/damaged-0")
    (log_dir / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    assert KafkaView(log_dir).bounds("damaged")[0].log_end == recovery(fixtures, name, LAST_SEGMENT)["logEndOffset"]


# ---------------------------------------------------------------- reading after damage


@pytest.mark.parametrize("isolation", ISOLATION)
def test_skip_loses_only_the_batch_with_a_flipped_bit(fixtures: Path, isolation: str) -> None:
    good = without_epochs(expected_records(fixtures / "damaged/good", "damaged-0", isolation))
    said: list[Skipped] = []
    folder = fixtures / "damaged" / BIT_FLIPPED / "data"
    view = KafkaView(folder, corrupt_records=SKIP, on_skipped=said.append)
    (part,) = view.plan([OffsetRange("damaged", 0, 0, 339)], isolation)
    found = [record for piece in part.read(COLUMNS) for record in records(piece)]
    (skipped,) = said
    assert (skipped.topic, skipped.partition, skipped.start, skipped.end) == ("damaged", 0, 226, 232)
    assert skipped.file == str(segment(folder / "damaged-0", 197))
    assert skipped.position == 3395
    assert skipped.position <= 4014 < skipped.position + skipped.nbytes
    assert "CRC-32C" in skipped.reason
    assert str(skipped).startswith("skipped corrupt offsets 226 to 231 of damaged-0: the batch's CRC-32C does not")
    assert found == [record for record in good if not 226 <= record.offset < 232]
    assert len(found) < len(good)


def test_skipped_damage_is_logged_unless_a_callback_is_set(fixtures: Path, caplog: pytest.LogCaptureFixture) -> None:
    view = KafkaView(fixtures / "damaged" / BIT_FLIPPED / "data", corrupt_records=SKIP)
    assert len(read(view, "damaged", start=220, end=260))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "sparklog.kafka"]
    assert line.startswith("sparklog: skipped corrupt offsets 226 to 231 of damaged-0: ")


@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in (BIT_FLIPPED, "length-field-huge")])
def test_skip_policy_does_not_affect_intact_logs(fixtures: Path, name: str) -> None:
    said: list[Skipped] = []
    topic = topic_of(name)
    data = fixtures / "damaged" / name / "data"
    view = KafkaView(data, corrupt_records=SKIP, on_skipped=said.append)
    for isolation in ISOLATION:
        plain = KafkaView(data)
        assert view.bounds(topic) == plain.bounds(topic)
        assert read(view, topic, isolation=isolation) == read(plain, topic, isolation=isolation)
    assert said == []


def test_skip_finds_batches_after_an_impossible_length(fixtures: Path) -> None:
    """Kafka truncates the log there, although all later batches are complete. The damaged batch is a marker."""
    good = without_epochs(expected_records(fixtures / "damaged/good", "damaged-0"))
    said: list[Skipped] = []
    data = fixtures / "damaged/length-field-huge/data"
    view = KafkaView(data, corrupt_records=SKIP, on_skipped=said.append)
    (bounds,) = view.bounds("damaged").values()
    assert (bounds.log_end, bounds.last_stable) == (339, 339)
    (part,) = view.plan([OffsetRange("damaged", 0, 0, 339)], READ_UNCOMMITTED)
    assert [record for piece in part.read(COLUMNS) for record in records(piece)] == good
    assert [(skipped.start, skipped.end, skipped.position) for skipped in said] == [(322, 323, 0)]
    # The transaction index still contains the aborted transaction.
    committed = without_epochs(expected_records(fixtures / "damaged/good", "damaged-0", READ_COMMITTED))
    assert read(view, "damaged", isolation=READ_COMMITTED) == committed


def test_skip_looks_up_timestamps_after_damage(fixtures: Path) -> None:
    good = without_epochs(expected_records(fixtures / "damaged/good", "damaged-0"))
    data = fixtures / "damaged" / BIT_FLIPPED / "data"
    lost = next(record for record in good if record.offset == 227)
    with pytest.raises(Corrupt):
        KafkaView(data).offsets_for_timestamps("damaged", {0: lost.timestamp})
    found = KafkaView(data, corrupt_records=SKIP).offsets_for_timestamps("damaged", {0: lost.timestamp})[0]
    expected = next(r for r in good if r.timestamp >= lost.timestamp and not 226 <= r.offset < 232)
    assert found is not None
    assert found.offset == expected.offset


def test_truncate_reports_lost_records(fixtures: Path) -> None:
    said: list[Skipped] = []
    folder = fixtures / "damaged" / BIT_FLIPPED / "data"
    view = KafkaView(folder, corrupt_records=TRUNCATE, on_skipped=said.append)
    assert view.bounds("damaged")[0].log_end == 226
    view.refresh(["damaged"])
    places = [(Path(skipped.file).name[17:], skipped.position, skipped.nbytes, skipped.start) for skipped in said]
    assert places == [("197.log", 3395, 7671 - 3395, 226), ("256.log", 0, 8190, 226), ("322.log", 0, 1569, 226)]
    assert all(skipped.end is None for skipped in said)
    assert "skipped corrupt offsets 226 and later of damaged-0" in str(said[1])


def test_unknown_policy_is_rejected(fixtures: Path, root: Root) -> None:
    with pytest.raises(BadRequest, match="unknown corrupt_records 'ignore': expected one of fail, skip, truncate"):
        KafkaView(fixtures / "damaged/good/data", corrupt_records="ignore")
    with pytest.raises(BadRequest, match="unknown corrupt_records"):
        import_log_dir(root, fixtures / "damaged/good/data", ImportOptions(corrupt_records="ignore"))


# ---------------------------------------------------------------- imported


def imported(root: Root, fixtures: Path, name: str, policy: str, said: list[Skipped]) -> list[ExpectedRecord]:
    """Return all records of the imported topic."""
    data = fixtures / "damaged" / name / "data"
    configs = {"index.interval.bytes": 512}
    import_log_dir(root, data, ImportOptions(configs=configs, corrupt_records=policy), on_skipped=said.append)
    return [record for piece in scan(root.topic(topic_of(name))) for record in records(piece)]


def scan(topic: Topic) -> Scan:
    return topic.scan(isolation_level=READ_UNCOMMITTED, columns=COLUMNS)


@pytest.mark.parametrize("name", DAMAGES)
def test_import_with_truncate_matches_kafkas_recovery(fixtures: Path, root: Root, name: str) -> None:
    fixture, topic = fixtures / "damaged" / name, topic_of(name)
    said: list[Skipped] = []
    found = imported(root, fixtures, name, TRUNCATE, said)
    assert found == without_epochs(expected_records(fixture, f"{topic}-0", READ_UNCOMMITTED, "recovered"))
    kafka = expected_offsets(fixture, "recovered")[f"{topic}-0"]
    state = root.topic(topic).log.state()
    assert (state.log_start[0], state.log_end[0]) == (kafka["logStartOffset"], kafka["logEndOffset"])
    assert bool(said) == (name in (BIT_FLIPPED, "garbage-appended", "last-batch-cut", "length-field-huge"))


@pytest.mark.parametrize("name", DAMAGES)
def test_closed_segments_of_import_with_truncate_equal_recovered_files(
    fixtures: Path, root: Root, tmp_path: Path, name: str
) -> None:
    """Compare bytes, including indexes, for those of Kafka's files that are non-empty closed segments."""
    data = copied(fixtures / "damaged" / name / "data", tmp_path / "data")
    for index in data.glob("*/*.index"):
        if not index.stat().st_size:
            index.unlink()  # DumpLogSegments created this file when it searched for the index of a time index.
    import_log_dir(root, data, ImportOptions(configs={"index.interval.bytes": 512}, corrupt_records=TRUNCATE))
    after = "recovered" if name == "killed-broker" else RECOVERED
    recovered = fixtures / "damaged" / name / after / f"{topic_of(name)}-0"
    compared = 0
    closed = [log for log in sorted(recovered.glob("*.log"))[:-1] if log.stat().st_size]
    files = {info.key.rsplit("/", 1)[-1]: info.key for info in root.store.list(f"{topic_of(name)}/sealed/")}
    assert len([file for file in files if file.endswith(".log")]) == len(closed)
    for log in closed:
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            file = log.with_suffix(suffix)
            if suffix == ".index" and name == "killed-broker":
                continue  # This topic has another index.interval.bytes.
            if file.exists():
                assert root.store.get(files[file.name]) == file.read_bytes(), file.name
                compared += 1
    assert compared >= 2


def test_import_with_skip_loses_only_the_damaged_batch(fixtures: Path, root: Root) -> None:
    good = without_epochs(expected_records(fixtures / "damaged/good", "damaged-0"))
    said: list[Skipped] = []
    found = imported(root, fixtures, BIT_FLIPPED, SKIP, said)
    assert [(skipped.start, skipped.end, skipped.position) for skipped in said] == [(226, 232, 3395)]
    assert found == [record for record in good if not 226 <= record.offset < 232]
    topic = root.topic("damaged")
    for offset in (197, 225, 232, 240, 255, 256, 338):
        for piece in topic.scan(
            start={0: offset}, end={0: offset + 1}, isolation_level=READ_UNCOMMITTED, columns=COLUMNS
        ):
            assert records(piece) == [record for record in good if record.offset == offset]


def test_import_reports_bytes_after_the_log_end(fixtures: Path, root: Root) -> None:
    said: list[Skipped] = []
    imported(root, fixtures, "garbage-appended", FAIL, said)
    assert [(skipped.start, skipped.end, skipped.position, skipped.nbytes) for skipped in said] == [
        (339, None, 1569, 632)
    ]


@pytest.mark.parametrize(
    ("name", "policy"),
    [pytest.param(BIT_FLIPPED, SKIP, marks=pytest.mark.slow), *((name, TRUNCATE) for name in DAMAGES)],
)
def test_imported_records_survive_sealing_and_compaction(fixtures: Path, root: Root, name: str, policy: str) -> None:
    """Segments with a hole, rebuilt indexes and a truncated end can be maintained like any other segments."""
    before = imported(root, fixtures, name, policy, [])
    topic = root.topic(topic_of(name))
    settings = Settings(now_ms=HOUR_MS)
    report = compact_topic(topic, settings, InProcess(), CompactOptions(roll=True))
    assert not report.failures
    assert [record for piece in scan(topic) for record in records(piece)] == before
    topic.alter(configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}, force=True)
    report = compact_topic(topic, settings, InProcess(), CompactOptions(roll=True))
    assert not report.failures
    after = [record for piece in scan(topic) for record in records(piece)]
    assert after
    assert set(offsets(after)) <= set(offsets(before))
