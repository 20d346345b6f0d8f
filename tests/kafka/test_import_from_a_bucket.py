"""Test that Kafka directories in a bucket are imported, verified, inspected and exported like directories on a disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparklog.errors import BadRequest
from sparklog.kafka.exporting import ExportOptions, export_topics
from sparklog.kafka.importing.coordinators import KafkaGroups
from sparklog.kafka.importing.run import ImportOptions, ImportReport, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import World
from sparklog.tools.inspection.inspect import inspect_topic
from sparklog.tools.verification.findings import Report
from sparklog.tools.verification.kafka_directory import verify_log_dir
from tests.cli.test_expiring import FOREVER, POLICY, TOPIC_KEEP, kafka_batch
from tests.fixture_data import copied, expected_records
from tests.kafka.buckets import Bucket, counted, put, upload
from tests.kafka.logs import FIRST, SECOND, batch, read, read_topic, without_epochs, write_partition
from tests.tools.verification.test_kafka import ENV

NOW_MS = 1_900_000_000_000
TAKEN = {
    "transactions/data": (),
    "retention/delete-records/start-moved": (),
    "legacy/builder-mixed/data": (),
    "compaction/transactions/pass-3": (),
    "damaged/bit-flipped/data": (SKIP,),
    "damaged/last-batch-cut/data": (FAIL,),
}


def imported(path: object, policy: str) -> tuple[ImportReport, dict[str, bytes], list[str]]:
    """Import into an empty root. Return the report, all objects of the root, and the skipped damage."""
    world, left_out = World(), list[str]()
    options = ImportOptions(corrupt_records=policy, configs={"index.interval.bytes": 4096})
    report = import_log_dir(world.root(), path, options, on_skipped=lambda each: left_out.append(str(each)))  # type: ignore[arg-type]
    assert isinstance(world.store, MemoryStore)
    objects = {key: data for key, (data, _) in world.store.snapshot().items()}
    return report, objects, [each.replace(str(path), "") for each in left_out]


@pytest.mark.parametrize("name", TAKEN)
def test_import_from_bucket_equals_import_from_disk(fixtures: Path, tmp_path: Path, name: str) -> None:
    for policy in TAKEN[name] or (FAIL,):
        bucket = Bucket("import")
        path = upload(fixtures / name, bucket)
        # File times apply if records have no timestamps, and a bucket's times have whole seconds.
        assert imported(path, policy) == imported(fixtures / name, policy)


def test_import_continues_if_the_copy_has_grown(tmp_path: Path) -> None:
    bucket, root = Bucket("again"), World().root()
    path = upload(write_partition(tmp_path, "t-0", {0: FIRST}).parent, bucket)
    import_log_dir(root, path)
    bucket.now += 60_000
    put(bucket, "kafka/t-0/00000000000000000000.log", FIRST + SECOND)
    put(bucket, "kafka/t-0/00000000000000000006.log", batch(6, [b"g"]))
    store, path = counted(path)
    ((partition,),) = [topic.partitions for topic in import_log_dir(root, path).topics]
    assert (partition.since, partition.log_end, partition.records, partition.linked) == (3, 7, 4, 0)
    assert [record.offset for record in read_topic(root.topic("t"))] == list(range(7))
    assert store.counts == {"list": 1, "get": 4}, "two segments, to plan and to copy"


def test_configs_come_from_the_metadata_log_in_the_bucket(tmp_path: Path) -> None:
    write_partition(tmp_path, "keep-0", {0: FIRST})
    folder = write_partition(tmp_path, "__cluster_metadata-0", {0: kafka_batch(0, [POLICY, FOREVER, FOREVER])})
    (folder / "00000000000000000002-0000000001.checkpoint").write_bytes(kafka_batch(0, [TOPIC_KEEP, POLICY]))
    for place in (upload(tmp_path, Bucket("metadata")), tmp_path):
        (topic,) = import_log_dir(World().root(), place).topics
        assert topic.kafka_configs is not None
        assert topic.kafka_configs.taken == {"cleanup.policy": "compact,delete", "retention.ms": "-1"}


def reported(report: Report, place: object) -> Report:
    """Return a report without times and location."""
    unreferenced, foreign = (
        [replace(each, age_ms=0) for each in files] for files in (report.unreferenced, report.foreign)
    )
    assert report.location == str(place)
    return replace(report, location="", seconds=0, unreferenced=tuple(unreferenced), foreign=tuple(foreign))


@pytest.mark.parametrize(
    "name",
    ["transactions/data", "compaction/old-formats/before", "damaged/bit-flipped/data", "damaged/indexes-wrong/data"],
)
def test_verify_reports_the_same_findings_as_on_a_disk(fixtures: Path, tmp_path: Path, name: str) -> None:
    folder = copied(fixtures / name, tmp_path / "data")
    (folder / "notes").write_text("not Kafka's")
    (next(folder.glob("*-0")) / "00000000000000000000.log.deleted").write_text("left")
    path = upload(folder, Bucket("verify"))
    here, there = verify_log_dir(path, env=ENV), verify_log_dir(folder, env=ENV)
    assert reported(here, path) == reported(there, folder)
    assert [each.file for each in here.foreign] == ["notes"]
    assert len(here.unreferenced) == 1


def test_groups_and_batches_match_those_on_a_disk(fixtures: Path) -> None:
    folder = fixtures / "transactions/data"
    path = upload(folder, Bucket("looks"))
    here, there = (KafkaGroups(KafkaView(place), NOW_MS) for place in (path, folder))
    assert here.lag(["g-classic"]) == there.lag(["g-classic"])
    assert here.lag(seconds=False) == there.lag(seconds=False)
    assert here.descriptions(here.names()) == there.descriptions(there.names())
    mine, others = (inspect_topic(KafkaView(place), "txn-b", [1]) for place in (path, folder))
    assert (mine.batches, mine.files, mine.gaps) == (others.batches, others.files, others.gaps)


def test_export_requires_a_disk(fixtures: Path, tmp_path: Path) -> None:
    root = World().root()
    import_log_dir(root, upload(fixtures / "transactions/data", Bucket("source")))
    (exported, *_) = export_topics(
        root, tmp_path / "out", ["txn-a"], ExportOptions(groups="all", offsets_partitions=2, link=True, durable=False)
    )
    assert all(each.linked == 0 for each in exported.partitions)
    expected = without_epochs(expected_records(fixtures / "transactions", "txn-a-0", READ_UNCOMMITTED))
    assert read(KafkaView(tmp_path / "out"), "txn-a") == expected
    with pytest.raises(
        BadRequest, match=r"s3://b/out is in a bucket, but an export is atomic only on a disk.*s3 sync"
    ) as error:
        export_topics(root, "s3://b/out?endpoint=http://127.0.0.1:1", ["txn-a"])
    assert "endpoint" not in str(error.value)
