"""The contents of a report match the descriptions of the topics and the dry runs of the jobs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.groups.lag import Groups, lag
from sparklog.kafka.importing.coordinators import LogDir, kafka_groups
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place.files import file_path
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.decisions.decision_log import DecisionLogs
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.state.view import READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import Root, RootView
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.output import json_value
from sparklog.retention.retain import retain_root
from sparklog.testing.world import START_MS
from sparklog.tools.report.gather import gather
from sparklog.tools.report.page import as_html
from sparklog.tools.report.report_data import HOURS, RootReport
from tests.fixture_data import copied
from tests.support.topics_world import TopicsWorld

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def records(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": [b"key-%d" % (n % 10) for n in numbers],
            "value": [b"value %d" % n for n in numbers],
            "timestamp": pa.array([START_MS + n * 1000 for n in numbers], pa.int64()),
        }
    )


@pytest.fixture
def world() -> TopicsWorld:
    """A root with topic a with appends over two days, b compacted and dirty, and c with an open transaction."""
    world = TopicsWorld(partitions=2)
    root = world.root()
    for number in range(10):
        world.now_ms = START_MS + number * 5 * HOUR_MS
        root.topic("a").append(records(number * 100, 100))
    root.topic("b").alter(configs={"cleanup.policy": "compact"})
    for number in range(3):
        root.topic("b").append(records(number * 100, 100))
    compact_root(root, Settings(world.now_ms), InProcess(), CompactOptions(topics=["b"], seal_only=True, roll=True))
    transaction = world.producer("<script>alert(1)</script>", timeout_ms=HOUR_MS).begin()
    transaction.append("c", records(0, 50))
    transaction.prepare()
    world.now_ms += HOUR_MS // 2
    return world


def reported(world: TopicsWorld, settings: Settings | None = None, topics: tuple[str, ...] = ()) -> RootReport:
    return gather(RootView(world.root()), settings or Settings(world.now_ms), topics=topics)


def contents(root: Root) -> dict[str, bytes]:
    return {info.key: root.store.get(info.key) for info in root.store.list("")}


def test_topics_match_their_descriptions(world: TopicsWorld) -> None:
    before = contents(world.root())
    report = reported(world)
    assert contents(world.root()) == before
    assert [topic.topic for topic in report.topics] == ["a", "b", "c"]
    for topic in report.topics:
        described = world.topic(topic.topic).describe()
        assert topic.topic_id == described.topic_id
        assert topic.bytes == described.bytes
        assert [
            (part.partition, part.log_start, part.last_stable, part.log_end, part.slices, part.bytes)
            for part in topic.partitions
        ] == [
            (part.partition, part.log_start, part.last_stable, part.log_end, part.slices, part.bytes)
            for part in described.partitions
        ]
    a, b, c = report.topics
    assert (a.records, a.oldest_ms, a.newest_ms) == (1000, START_MS, START_MS + 999_000)
    assert (a.cleanup_policy, b.cleanup_policy, b.configs) == ("delete", "compact", {"cleanup.policy": "compact"})
    assert (a.unsealed, b.unsealed) == (20, 0)
    assert (a.held_back, c.held_back) == (0, 50)
    assert report.bytes == a.bytes + b.bytes + c.bytes
    assert report.partitions == 6


def test_skew_is_the_ratio_of_the_largest_partition_to_the_mean(world: TopicsWorld) -> None:
    topic = reported(world).topics[0]
    sizes = [part.bytes for part in topic.partitions]
    assert topic.skew == pytest.approx(max(sizes) / (sum(sizes) / 2))


def test_recent_commits_are_counted_by_the_clock_of_the_store(world: TopicsWorld) -> None:
    a = reported(world).topics[0].activity
    assert a is not None
    # There is one commit every five hours, and the last one was half an hour ago.
    assert (a.last_day, a.last_hour, a.newest_ms) == (5, 1, START_MS + 45 * HOUR_MS)
    earlier = reported(world, Settings(START_MS + 11 * HOUR_MS)).topics[0].activity
    assert earlier is not None
    # The commits are the creation and the appends of hours 0, 5 and 10.
    assert (earlier.last_day, earlier.last_hour) == (4, 0)


def test_open_transactions_have_their_records_and_bytes(world: TopicsWorld) -> None:
    held = reported(world).held_back
    state = world.topic("c").log.state()
    assert [(each.topic, each.partition, each.owner, each.first, each.end) for each in held] == [
        ("c", partition, "<script>alert(1)</script> #0", 0, int(state.log_end[partition])) for partition in range(2)
    ]
    assert {(each.age_ms, each.timeout_ms, each.overdue) for each in held} == {(HOUR_MS // 2, HOUR_MS, False)}
    world.now_ms += HOUR_MS
    late = reported(world)
    assert all(each.overdue for each in late.held_back)
    assert [note.topic for note in late.notes if "timed-out" in note.text] == ["c"]


def test_planned_maintenance_matches_the_dry_runs(world: TopicsWorld) -> None:
    settings = Settings(world.now_ms + 30 * DAY_MS, defaults={"retention.ms": str(DAY_MS)})
    report = reported(world, settings)
    planned = [
        (item.topic, item.partition, item.action, item.nbytes, item.why)
        for each in compact_root(world.root(), settings, InProcess(), CompactOptions(dry_run=True))
        for item in each.planned
    ]
    assert report.doing is not None
    found = [
        (item.topic, item.partition, item.action, item.bytes, item.why)
        for item in report.doing
        if item.action != "expire"
    ]
    assert sorted(found) == sorted(planned)
    assert {item.action for item in report.doing} == {"seal", "compact", "expire"}
    assert all(item.due != item.why.startswith("not due") for item in report.doing)
    retained = retain_root(world.root(), settings, dry_run=True)
    expired = {(each.topic, part.partition): part.expired_bytes for each in retained for part in each.expired}
    assert (
        {(item.topic, item.partition): item.bytes for item in report.doing if item.action == "expire"} == expired != {}
    )
    assert report.removals is not None
    assert sum(item.files for item in report.removals) == sum(
        each.vacuum.objects for each in retained if each.vacuum is not None
    )


def test_next_expiry_matches_the_retain_job(world: TopicsWorld) -> None:
    world.topic("a").alter(configs={"segment.bytes": "1000", "retention.ms": str(40 * DAY_MS)})
    settings = Settings(START_MS + 40 * DAY_MS + 500_000)
    before = reported(world, settings).topics[0]
    assert before.expiring
    assert any(note.topic == "a" and f"deletes {before.expiring} of 1,000 records" in note.text
               for note in reported(world, settings).notes)  # fmt: skip
    retain_root(world.root(), settings, topics=["a"])
    after = reported(world, settings).topics[0]
    assert after.records == 1000 - before.expiring
    assert [part.log_start for part in after.partitions] == [part.next_log_start for part in before.partitions]
    assert after.expiring == 0
    assert after.expires_ms is not None
    # Nothing is deleted until that time, and something is deleted after it.
    assert reported(world, Settings(after.expires_ms)).topics[0].expiring == 0
    assert reported(world, Settings(after.expires_ms + 1)).topics[0].expiring
    assert reported(world, settings).topics[1].expires_ms is None


def test_commits_and_bytes_are_counted_per_hour(world: TopicsWorld) -> None:
    a = reported(world).topics[0]
    assert a.activity is not None
    commits = a.activity.commits_by_hour
    assert (len(commits), len(a.bytes_by_hour)) == (HOURS, HOURS)
    # There is an append every five hours, the last one in the previous hour; the first is in the hour of the creation.
    assert [HOURS - 1 - hour for hour, number in enumerate(commits) if number] == [*range(0, 50, 5)][::-1]
    assert sum(commits) == 11
    # All records are in one hour and its neighbor.
    assert sum(a.bytes_by_hour) == pytest.approx(a.bytes, abs=2)
    assert [HOURS - 1 - hour for hour, nbytes in enumerate(a.bytes_by_hour) if nbytes] in ([45], [45, 44])
    later = reported(world, Settings(START_MS + 4 * DAY_MS)).topics[0]
    assert later.activity is not None
    assert not any(later.bytes_by_hour)


def test_groups_match_their_lag(world: TopicsWorld) -> None:
    groups = Groups(world.root())
    groups.group("<b>readers</b>").join("one").commit({"a": {0: 10, 1: 20}, "b": {0: 5}})
    groups.group("idle").alter({"c": {0: 0}})
    report = reported(world)
    assert report.groups is not None
    assert [(group.group, group.state, group.member) for group in report.groups] == [
        ("<b>readers</b>", "Stable", "one"),
        ("idle", "Empty", None),
    ]
    found = [
        (group.group, part.topic, part.partition, part.offset, part.log_start, part.log_end, part.lag,
         part.seconds_behind)
        for group in report.groups
        for part in group.partitions
    ]  # fmt: skip
    assert found == [
        (row.group, row.topic, row.partition, row.current_offset, row.log_start, row.log_end, row.lag, row.seconds)
        for row in lag(world.root(), now_ms=world.now_ms)
    ]
    assert len(found) == 5
    assert "&lt;b&gt;readers&lt;/b&gt;" in as_html(report)
    only_c = reported(world, topics=("c",)).groups
    assert only_c is not None
    assert [group.group for group in only_c] == ["idle"]


def test_unreadable_group_is_a_note(world: TopicsWorld) -> None:
    Groups(world.root()).group("readers").alter({"a": {0: 1}})
    [entry] = [info.key for info in world.store.list("_groups/") if "/checkpoints/" not in info.key]
    data = world.store.get(entry)
    world.store.delete(entry)
    world.store.create(entry, data.replace(b"{", b"[", 1))
    report = reported(world)
    assert not report.groups
    assert any("a consumer group cannot be read" in note.text for note in report.notes)


@pytest.mark.usefixtures("records_in_files")
def test_files_of_deleted_topics_are_reported(world: TopicsWorld) -> None:
    world.root().delete_topic("a")
    world.now_ms += 8 * DAY_MS
    report = reported(world)
    assert [topic.topic for topic in report.topics] == ["b", "c"]
    assert report.removals is not None
    assert {item.topic for item in report.removals if item.bytes} >= {"a"}


def test_report_of_selected_topics(world: TopicsWorld) -> None:
    report = reported(world, topics=("b",))
    assert [topic.topic for topic in report.topics] == ["b"]
    assert report.doing is not None
    assert {item.topic for item in report.doing} <= {"b"}
    assert not report.held_back
    with pytest.raises(NotFound, match="topic 'bb' does not exist"):
        reported(world, topics=("bb",))


def test_report_of_an_empty_root() -> None:
    world = TopicsWorld()
    for name in ("a", "b", "c"):
        world.root().delete_topic(name)
    report = reported(world)
    assert (report.topics, report.doing, report.held_back, report.notes) == ((), (), (), ())


def test_unreadable_topic_is_a_note(world: TopicsWorld) -> None:
    key = "b/_log/00000000000000000001.json"
    data = world.store.get(key)
    world.store.delete(key)
    world.store.create(key, data.replace(b"{", b"[", 1))
    report = reported(world)
    assert [topic.topic for topic in report.topics] == ["a", "c"]
    assert any(note.topic == "b" and "cannot be read" in note.text for note in report.notes)


def test_a_topic_whose_transactions_cannot_be_read_is_only_a_note(
    world: TopicsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> int:
        raise Unavailable("the decision cannot be read")

    monkeypatch.setattr(DecisionLogs, "prepared_ms", fail)
    report = reported(world)
    assert [topic.topic for topic in report.topics] == ["a", "b"]
    assert [note.topic for note in report.notes if "the topic cannot be read" in note.text] == ["c"]


def test_rejected_cleaning_is_not_due() -> None:
    world = TopicsWorld(partitions=1)
    world.topic("a").append(pa.table({"value": ["v"], "timestamp": [world.now_ms]}))
    report = reported(world, Settings(world.now_ms, defaults={"cleanup.policy": "compact"}), ("a",))
    assert report.doing is not None
    (work,) = (item for item in report.doing if item.action == "compact")
    assert (work.due, work.why[:9]) == (False, "rejected:")


def test_report_of_a_kafka_directory_matches_its_files(fixtures: Path, tmp_path: Path) -> None:
    log_dir = copied(fixtures / "transactions" / "data", tmp_path / "kafka")
    view = KafkaView(log_dir)
    report = gather(KafkaView(log_dir), Settings(START_MS))
    assert (report.kind, report.doing, report.removals) == ("kafka", None, None)
    assert [topic.topic for topic in report.topics] == view.topics()
    for topic in report.topics:
        bounds = view.bounds(topic.topic)
        assert [(part.partition, part.log_start, part.last_stable, part.log_end) for part in topic.partitions] == [
            (number, bound.log_start, bound.last_stable, bound.log_end) for number, bound in sorted(bounds.items())
        ]
        assert topic.internal == topic.topic.startswith("__")
        assert (topic.records, topic.activity, topic.cleanup_policy) == (None, None, None)
        folders = [log_dir / f"{topic.topic}-{part.partition}" for part in topic.partitions]
        assert topic.bytes == sum(file.stat().st_size for folder in folders for file in folder.glob("*.log"))
    stopped = {(held.topic, held.partition): held.first for held in report.held_back}
    assert stopped == {
        (name, number): bound.last_stable
        for name in view.topics()
        for number, bound in view.bounds(name).items()
        if bound.last_stable < bound.log_end
    }


def test_open_transaction_of_a_kafka_directory_has_an_age(fixtures: Path) -> None:
    log_dir = fixtures / "transactions" / "data"
    view = KafkaView(log_dir)
    begun = {}
    for name in view.topics():
        for number, state in view.partition_states(name).items():
            for first in state.transactions.open.values():
                [part] = view.plan([OffsetRange(name, number, first, first + 1)], READ_UNCOMMITTED)
                begun[name, number, first] = int(next(part.read(("timestamp",))).column(0)[0].value)
    assert begun
    now_ms = max(begun.values()) + 27 * HOUR_MS
    report = gather(KafkaView(log_dir), Settings(now_ms))
    assert {(each.topic, each.partition, each.first): each.age_ms for each in report.held_back} == {
        place: now_ms - since for place, since in begun.items()
    }
    noted = {note.topic for note in report.notes if "a transaction has been open for 27 h" in note.text}
    assert noted == {topic for topic, _, _ in begun}
    assert sum(sum(topic.bytes_by_hour) for topic in report.topics) == report.bytes


def test_damage_of_a_kafka_directory_is_a_note_if_no_broker_writes(fixtures: Path, tmp_path: Path) -> None:
    log_dir = copied(fixtures / "transactions" / "data", tmp_path / "kafka")
    file = next(log_dir.glob("txn-a-0/*.log"))
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:70])
    assert not [note for note in gather(KafkaView(log_dir), Settings(0)).notes if "corrupt" in note.text]
    file.write_bytes(whole + bytes(8) + b"\0\0\0\1" + b"\x7f" * 100)
    [note] = [note for note in gather(KafkaView(log_dir), Settings(0)).notes if "corrupt" in note.text]
    assert note.topic == "txn-a"
    assert f"partition 0 is corrupt in {file.name} at byte {len(whole):,}" in note.text


def test_groups_of_a_kafka_directory_match_the_coordinator(fixtures: Path) -> None:
    log_dir = fixtures / "transactions" / "data"
    groups = kafka_groups(LogDir(file_path(log_dir), SYSTEM), START_MS)
    report = gather(KafkaView(log_dir), Settings(START_MS))
    assert report.groups is not None
    assert [group.group for group in report.groups] == list(groups)
    found = {
        (group.group, part.topic, part.partition): part.offset for group in report.groups for part in group.partitions
    }
    assert found == {
        (name, topic, partition): value.offset
        for name, group in groups.items()
        for (topic, partition), value in group.offsets.items()
    } != {}  # fmt: skip
    for group in report.groups:
        assert (group.state, group.member) == ("Unknown", None)
        assert all(part.lag == part.log_end - (part.offset or 0) for part in group.partitions)
    assert gather(KafkaView(log_dir / "txn-a-0"), Settings(START_MS)).groups is None


def test_open_transaction_of_an_import_has_its_transactional_id(fixtures: Path, world: TopicsWorld) -> None:
    root = world.root()
    import_log_dir(root, fixtures / "transactions" / "data", ImportOptions(topics=["txn-a", "txn-b"]))
    found = gather(RootView(root), Settings(SYSTEM.wall_ms()), topics=["txn-a", "txn-b"], maintenance=False)
    held = found.held_back
    known = {
        (topic, each.partition, each.first): each
        for topic in ("txn-a", "txn-b")
        for each in root.topic(topic).log.state().kafka_open
    }
    assert {(item.topic, item.partition, item.first) for item in held} == set(known)
    assert known
    for item in held:
        each = known[item.topic, item.partition, item.first]
        assert each.transactional_id is not None
        assert item.owner == f"Kafka's {each.transactional_id}"
        assert item.age_ms is not None
        # The timeout belongs to Kafka, and no process of sparklog aborts the transaction.
        assert not item.overdue


def test_damaged_group_of_kafka_is_a_note(fixtures: Path, tmp_path: Path) -> None:
    log_dir = copied(fixtures / "transactions" / "data", tmp_path / "kafka")
    file = log_dir / "__consumer_offsets-0" / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[70] ^= 1
    file.write_bytes(data)
    report = gather(KafkaView(log_dir), Settings(START_MS))
    assert report.groups is None
    assert any("consumer groups cannot be read" in note.text for note in report.notes)


def test_report_rejects_other_directories(world: TopicsWorld) -> None:
    with pytest.raises(BadRequest, match="expected a sparklog root or a Kafka log directory"):
        gather(object(), Settings(0))  # type: ignore[arg-type]


def test_document_contains_all_fields_in_camel_case(world: TopicsWorld) -> None:
    report = reported(world)
    found = json_value(report)
    assert isinstance(found, dict)
    assert (found["nowMs"], found["kind"], found["bytes"]) == (world.now_ms, "root", report.bytes)
    topic = found["topics"][0]
    assert topic["partitions"][0]["logEnd"] == report.topics[0].partitions[0].log_end
    assert topic["activity"]["lastDay"] == 5
    assert found["heldBack"][0]["timeoutMs"] == HOUR_MS
