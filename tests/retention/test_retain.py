"""Runs of retention over topics and roots: new log starts of sealed and unsealed segments, and failures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, NotFound
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.log.state.commit import RETAIN
from sparklog.log.state.history import History
from sparklog.log.topic.root import open_root
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.properties import settings_of
from sparklog.maintenance.report import document
from sparklog.maintenance.work_items import Settings
from sparklog.retention.backlog import plan_topic
from sparklog.retention.expiry_plan import SIZE, TIME
from sparklog.retention.retain import RetainReport, retain_root, retain_topic, summary
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore, Script
from sparklog.testing.world import DAY_MS, HOUR_MS, World
from tests.retention.fixture_stages import fixture
from tests.retention.vacuum_world import VacuumWorld


class RecordsWorld(World):
    """A world with records; `opened` is the root of the process that writes and runs retention."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = self.root()

    def topic(self, name: str = "t", partitions: int = 1, **configs: object) -> Topic:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        return self.opened.create_topic(name, partitions=partitions, configs=named)

    def hours(self, topic: Topic, count: int, records: int = 10, partition: int = 0) -> None:
        """Append once per hour, with the time of the append as timestamp."""
        for _ in range(count):
            table = pa.table(
                {
                    "key": pa.array([b"key"] * records),
                    "value": pa.array([bytes(100)] * records),
                    "timestamp": np.full(records, self.now_ms, np.int64),
                    "partition": pa.array([partition] * records, pa.int32()),
                }
            )
            topic.append(table)
            self.now_ms += HOUR_MS

    def settings(self, text: str = "") -> Settings:
        return settings_of(text, "test.properties", now_ms=self.now_ms)

    def retain(self, topic: Topic, text: str = "", **how: object) -> RetainReport:
        return retain_topic(topic, self.settings(text), **how)  # type: ignore[arg-type]


def test_old_records_expire_in_unsealed_slices() -> None:
    """The roll rule divides the appended records into segments of one hour, and five hours are kept."""
    world = RecordsWorld()
    topic = world.topic(retention_ms=5 * HOUR_MS, segment_ms=1)
    world.hours(topic, 24)
    report = world.retain(topic)
    state = topic.log.state()
    assert state.log_start.tolist() == [190]
    assert state.log_end.tolist() == [240]
    (item,) = report.expired
    assert (item.log_start_before, item.log_start, item.segments, item.expired_segments) == (0, 190, 24, 19)
    assert [gone.reason for gone in item.gone] == [TIME]
    assert 0 < item.expired_bytes < item.nbytes
    assert History(world.store, "t").commit(state.version).op == RETAIN
    assert topic.scan().to_table().num_rows == 50


def test_active_segment_is_kept_until_all_its_records_are_old() -> None:
    world = RecordsWorld()
    topic = world.topic(retention_ms=5 * HOUR_MS)
    world.hours(topic, 24)
    assert world.retain(topic).expired == ()
    world.now_ms += 4 * HOUR_MS + 1
    assert world.retain(topic).expired[0].log_start == 240
    assert topic.scan().to_table().num_rows == 0
    world.hours(topic, 1)
    assert topic.log.state().log_start.tolist() == [240]
    assert topic.scan().to_table().num_rows == 10


def test_size_rule_uses_segments_of_unsealed_slices() -> None:
    world = RecordsWorld()
    topic = world.topic(retention_ms=-1, compression_type="uncompressed")
    world.hours(topic, 10)
    one = topic.log.snapshot().slices.all().size[0]
    topic.alter(configs={"segment.bytes": int(2 * one), "retention.bytes": int(5 * one)})
    (item,) = world.retain(topic).expired
    assert [gone.reason for gone in item.gone] == [SIZE]
    assert (item.segments, item.expired_segments, item.log_start) == (5, 2, 40)
    assert item.nbytes - item.expired_bytes >= 5 * one


def test_partitions_expire_in_one_commit() -> None:
    world = RecordsWorld()
    topic = world.topic(partitions=3, retention_ms=5 * HOUR_MS, segment_ms=1)
    world.hours(topic, 6, partition=0)
    world.hours(topic, 6, partition=2)
    version = topic.log.state().version
    report = world.retain(topic)
    assert [(item.partition, item.log_start) for item in report.expired] == [(0, 60), (2, 10)]
    assert topic.log.state().log_start.tolist() == [60, 0, 10]
    assert topic.log.state().version == version + 1
    assert world.retain(topic).expired == ()
    assert topic.log.state().version == version + 1


def test_only_topics_with_policy_delete_expire() -> None:
    world = RecordsWorld()
    compacted = world.topic("compacted", cleanup_policy="delete", retention_ms=HOUR_MS, segment_ms=1)
    both = world.topic("both", cleanup_policy="delete", retention_ms=HOUR_MS, segment_ms=1)
    for topic in (compacted, both):
        world.hours(topic, 3)
    compacted.alter(configs={"cleanup.policy": "compact"})
    both.alter(configs={"cleanup.policy": "compact,delete"})
    reports = retain_root(world.opened, world.settings())
    assert {report.topic: len(report.expired) for report in reports} == {"both": 1, "compacted": 0}


@pytest.mark.parametrize(
    ("text", "log_start"),
    [
        ("log.retention.hours=5", 190),
        ("log.retention.hours=5\nlog.retention.minutes=120", 220),
        ("log.retention.hours=5\nlog.retention.minutes=120\nlog.retention.ms=18000000", 190),
        ("log.retention.ms=-5", 0),
        ("", 0),
    ],
)
def test_properties_have_kafkas_precedence(text: str, log_start: int) -> None:
    world = RecordsWorld()
    topic = world.topic(segment_ms=1)
    world.hours(topic, 24)
    world.retain(topic, text)
    assert topic.log.state().log_start.tolist() == [log_start]


def test_topic_config_overrides_the_properties() -> None:
    world = RecordsWorld()
    topic = world.topic(segment_ms=1, retention_ms=-1)
    world.hours(topic, 24)
    world.retain(topic, "log.retention.ms=1")
    assert topic.log.state().log_start.tolist() == [0]


@pytest.mark.parametrize("text", ["log.retention.ms=0", "log.retention.minutes=soon", "log.retention.year=1"])
def test_invalid_properties_are_rejected(text: str) -> None:
    with pytest.raises(BadRequest):
        settings_of(text, "test.properties")


def test_negative_retention_is_rejected_when_it_is_set() -> None:
    world = RecordsWorld()
    topic = world.topic()
    with pytest.raises(BadRequest, match=r"retention\.ms must be an integer of at least -1, found '-2'"):
        topic.alter(configs={"retention.ms": -2})
    with pytest.raises(BadRequest, match="unknown topic config"):
        topic.alter(configs={"retention.msec": 5})


def test_retention_after_delete_records() -> None:
    world = RecordsWorld()
    topic = world.topic(retention_ms=20 * HOUR_MS, segment_ms=1)
    world.hours(topic, 24)
    topic.delete_records({0: 35})
    assert world.retain(topic).expired[0].log_start_before == 35
    assert topic.log.state().log_start.tolist() == [40]


def test_dry_run_changes_nothing_and_reports_the_same() -> None:
    world = RecordsWorld()
    topic = world.topic(retention_ms=5 * HOUR_MS, segment_ms=1)
    world.hours(topic, 24)
    before = world.store.snapshot()
    told = world.retain(topic, dry_run=True)
    assert world.store.snapshot() == before
    assert told.expired == world.retain(topic).expired
    text = summary([told], dry_run=True)
    assert "WOULD EXPIRE BY" in text
    assert "t-0" in text
    assert "retention.ms" in text
    assert "19 of 24" in text
    assert "0 -> 190" in text


@pytest.mark.usefixtures("records_in_files")
def test_files_are_deleted_a_day_after_their_records_expire() -> None:
    world = RecordsWorld()
    topic = world.topic(retention_ms=5 * HOUR_MS, segment_ms=1)
    world.hours(topic, 24)
    world.retain(topic)
    count = len(list(world.store.list("t/append/")))
    world.now_ms += DAY_MS + 1
    topic.alter(configs={"retention.ms": -1})
    report = world.retain(topic)
    assert report.vacuum is not None
    assert report.vacuum.objects == 19
    assert len(list(world.store.list("t/append/"))) == count - 19
    assert topic.scan().to_table().num_rows == 50
    text = summary([report])
    assert "DELETED" in text
    assert "append file" in text
    assert "replaced or expired" in text


def test_reader_with_an_earlier_plan_can_still_read() -> None:
    world = RecordsWorld()
    topic = world.topic(retention_ms=5 * HOUR_MS, segment_ms=1)
    world.hours(topic, 24)
    reader = iter(topic.scan(batch_bytes=1))
    first = next(reader).num_rows
    world.retain(topic)
    assert first + sum(batch.num_rows for batch in reader) == 240


def test_segments_without_timestamps_expire_by_file_time() -> None:
    world = VacuumWorld(configs={"retention.ms": DAY_MS})
    world.append(2)
    snapshot = world.process().topic().log.snapshot()
    snapshot.slices.all().max_ts[:] = -1
    world.advance(DAY_MS)
    assert plan_topic(snapshot, world.settings())[0][0].expired == ()
    world.advance(1)
    assert plan_topic(snapshot, world.settings())[0][0].log_start == 4
    for path in world.files():
        world.store.delete(f"t/{path}")
    assert plan_topic(snapshot, world.settings())[0][0].expired == ()


class TestRoots:
    def test_retain_root_includes_deleted_topics(self) -> None:
        world = RecordsWorld()
        topics = [world.topic(name, retention_ms=5 * HOUR_MS, segment_ms=1) for name in ("a", "b", "c")]
        for topic in topics:
            world.hours(topic, 8)
        topics[1].delete()
        world.now_ms += DAY_MS + 1
        done: list[str] = []
        reports = retain_root(
            world.opened, world.settings(), on_done=lambda report, topics: done.append(f"{report.topic} of {topics}")
        )
        assert [(report.topic, report.deleted, len(report.expired)) for report in reports] == [
            ("a", False, 1),
            ("b", True, 0),
            ("c", False, 1),
        ]
        assert done == ["a of 3", "b of 3", "c of 3"]
        assert list(world.store.list("b/append/")) == []
        assert "8" in summary(reports)
        assert document(reports, root="r", now_ms=5, dry_run=False)["topics"][1]["deleted"] is True  # type: ignore[index]

    def test_retain_root_with_selected_topics(self) -> None:
        world = RecordsWorld()
        for name in ("a", "b"):
            world.hours(world.topic(name, retention_ms=1, segment_ms=1), 2)
        retain_root(world.opened, world.settings(), topics=("b",))
        assert world.opened.topic("a").log.state().log_start.tolist() == [0]
        assert world.opened.topic("b").log.state().log_start.tolist() == [20]

    @pytest.mark.usefixtures("records_in_files")
    def test_retain_root_with_a_deleted_topic(self) -> None:
        world = RecordsWorld()
        topic = world.topic("gone")
        world.hours(topic, 2)
        topic.delete()
        world.now_ms += 2 * DAY_MS
        (report,) = retain_root(world.opened, world.settings(), topics=("gone",))
        assert report.vacuum is not None
        assert report.vacuum.objects == 2

    def test_retain_root_rejects_an_unknown_topic(self) -> None:
        world = RecordsWorld()
        world.topic("orders", retention_ms=1)
        with pytest.raises(NotFound, match=r"topic 'order' does not exist.*did you mean 'orders'"):
            retain_root(world.opened, world.settings(), topics=("orders", "order"))

    def test_retain_root_without_topics(self) -> None:
        world = RecordsWorld()
        assert retain_root(world.opened, world.settings()) == []

    def test_failed_topic_does_not_affect_other_topics(self) -> None:
        world = RecordsWorld()
        for name in ("a", "b", "c"):
            world.hours(world.topic(name, retention_ms=5 * HOUR_MS, segment_ms=1), 8)
        world.store.replace("b/_log/00000000000000000008.json", b"{}")
        reports = retain_root(open_root(world.store, env=world.env()), world.settings())
        assert [report.topic for report in reports] == ["a", "b", "c"]
        assert [report.failed for report in reports] == [False, True, False]
        assert [len(report.expired) for report in reports] == [1, 0, 1]
        (failure,) = reports[1].failures
        assert "b/_log/00000000000000000008.json" in failure.line()

    def test_topic_deleted_during_the_commit_is_not_a_failure(self) -> None:
        world = RecordsWorld()
        world.hours(world.topic(retention_ms=5 * HOUR_MS, segment_ms=1), 8)
        through = FaultyStore(world.store, lambda call: None)
        root = open_root(through, env=world.env())
        topic = root.topic("t")

        struck = [False]

        def at_create(call: Call) -> Fault | None:
            if call.label == "create:commit" and not struck[0]:
                struck[0] = True
                open_root(world.store, env=world.env()).topic("t").delete()
            return None

        through.decide = at_create
        report = retain_topic(topic, world.settings())
        assert struck[0]
        assert not report.failed
        assert report.vacuum is not None
        assert topic.log.refresh().topic_state.deleted

    @pytest.mark.usefixtures("records_in_files")
    def test_rejected_deletes_are_reported(self) -> None:
        world = RecordsWorld()
        topic = world.topic(retention_ms=1, segment_ms=1)
        world.hours(topic, 5)
        world.retain(topic)
        world.now_ms += 2 * DAY_MS
        broken = FaultyStore(world.store, Script({"delete:append": Fault(FaultKind.ERROR_BEFORE)}))
        report = retain_topic(open_root(broken, env=world.env()).topic("t"), world.settings())
        assert report.failed
        assert report.vacuum is not None
        assert report.vacuum.objects == 0
        assert world.retain(topic).vacuum.objects == 5  # type: ignore[union-attr]


def test_summary_without_changes() -> None:
    world = RecordsWorld()
    report = world.retain(world.topic())
    assert summary([report]) == "1 topic: nothing was deleted"
    assert summary([report], dry_run=True) == "1 topic: nothing would be deleted"


def test_imported_fixtures_keep_the_same_segments_as_kafka(fixtures: Path) -> None:
    """Import a fixture and run retention with its clock; the log starts equal those of Kafka."""
    checked = 0
    for name, before, after in (
        ("bytes", "before", "after"),
        ("delete-records", "start-moved", "after"),
        ("ms", "before", "after"),
        ("ms-all", "before", "after"),
        ("ms-blocked", "before", "after"),
        ("ms-exact", "before", "at-the-edge"),
        ("ms-exact", "at-the-edge", "after"),
    ):
        folder = fixtures / "retention" / name
        configs, stages = fixture(folder)
        world = RecordsWorld()
        (topic_name,) = import_log_dir(
            world.opened, folder / before, ImportOptions(configs=dict(configs.explicit), force=True)
        ).names
        topic = world.opened.topic(topic_name)
        assert topic.log.state().log_start.tolist() == [stages[before]["logStartOffset"]]
        retain_topic(topic, Settings(stages[after]["clockMs"]))
        state = topic.log.state()
        assert state.log_start.tolist() == [stages[after]["logStartOffset"]]
        assert state.log_end.tolist() == [stages[after]["logEndOffset"]]
        left = topic.log.snapshot().slices.select(0)
        assert left.base.tolist() == [item["baseOffset"] for item in stages[after]["segments"] if item["size"]]
        checked += 1
    assert checked == 7
