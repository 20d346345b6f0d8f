"""Root defaults in processes: when they are read, how many requests this takes, races and crashes."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.compaction.run import compact_root
from sparklog.errors import BadRequest, NotFound, SparklogError
from sparklog.log.state.root_defaults import AUTO_CREATE, RootDefaults
from sparklog.log.topic.defaults import METADATA_MAX_AGE_MS
from sparklog.log.topic.root import Root, RootView, topic_for_writer
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.storage.parallel_reads import map_requests
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore, Script, Seeded
from sparklog.testing.world import DAY_MS, World
from sparklog.tools.report.gather import gather
from sparklog.tools.report.job_states import read_job_status
from sparklog.tools.verification.run import verify_root
from tests.support.counted_root import CountedRoot

ROWS = pa.table({"key": ["a", "b"], "value": ["1", "2"]})


def test_root_defaults_apply_immediately_and_do_not_change_topics() -> None:
    world = World()
    topic = world.root().create_topic("t", configs={"segment.bytes": 1000})
    world.root().alter_defaults({"log.segment.bytes": 2000, "log.retention.hours": 2, "num.partitions": 3})
    values = {config.name: (config.value, config.source, config.default) for config in topic.describe().configs}
    assert values["segment.bytes"] == ("1000", "DYNAMIC_TOPIC_CONFIG", "2000")
    assert values["retention.ms"] == ("7200000", "DYNAMIC_DEFAULT_BROKER_CONFIG", "7200000")
    assert values["segment.ms"] == ("604800000", "DEFAULT_CONFIG", "604800000")
    assert topic.log.state().configs.explicit == {"segment.bytes": "1000"}
    assert len(topic.bounds()) == 1
    assert len(world.root().create_topic("u").bounds()) == 3
    assert len(world.root().ensure_topic("v").bounds()) == 3
    assert len(world.root().create_topic("w", partitions=2).bounds()) == 2


def test_writers_use_root_defaults() -> None:
    world = World()
    root = world.root()
    topic = root.create_topic("t")
    root.alter_defaults({"message.max.bytes": 200, "inline.records.bytes": 0})
    with pytest.raises(BadRequest, match="200"):
        topic.append(pa.table({"value": ["x" * 300]}), options=sparklog.WriteOptions(codec="none"))
    root.alter_defaults({"message.max.bytes": None, "log.message.timestamp.type": "LogAppendTime"})
    topic.append(pa.table({"value": ["x"], "timestamp": [5]}))
    assert topic.scan(columns=["timestampType"]).to_table()["timestampType"].to_pylist() == [1]
    assert list(world.store.list("t/append/")), "the commit takes no records"
    root.alter_defaults({"cleanup.policy": "compact"}, pattern="t")
    with pytest.raises(BadRequest, match="key"):
        topic.append(pa.table({"value": ["no key"]}))
    with pytest.raises(BadRequest, match=r"cleanup\.policy is 'compact'"):
        topic.delete_records({0: 1})


def test_retention_uses_root_defaults() -> None:
    world = World()
    root = world.root()
    for name in ("audit.a", "b", "c"):
        configs = {"retention.ms": 30 * DAY_MS} if name == "c" else None
        root.create_topic(name, configs=configs).append(ROWS)
    root.alter_defaults({"log.retention.hours": 24, "log.roll.ms": 1})
    root.alter_defaults({"retention.ms": -1}, pattern=r"audit\..*")
    world.advance(days=10)
    retain_root(root, Settings(world.now_ms, {"segment.bytes": "14"}))
    records = {name: world.topic(name).scan().to_table().num_rows for name in ("audit.a", "b", "c")}
    assert records == {"audit.a": 2, "b": 0, "c": 2}


def test_the_backlog_uses_root_defaults() -> None:
    world = World()
    root = world.root()
    root.create_topic("t").append(ROWS)
    world.advance(days=10)
    settings = Settings(world.now_ms)

    def oldest_expired() -> set[bool]:
        report = gather(RootView(root), settings)
        backlogs = read_job_status(root, settings).backlogs["t"], report.topics[0].backlog
        return {backlog is None or backlog.oldest_expired_ms is None for backlog in backlogs}

    assert oldest_expired() == {False}
    root.alter_defaults({"log.retention.ms": -1})
    assert oldest_expired() == {True}


def test_job_properties_override_the_root_and_topics_override_both() -> None:
    world = World()
    root = world.root()
    root.create_topic("t", configs={"segment.ms": 1}).append(ROWS)
    root.alter_defaults({"log.retention.ms": 5, "log.segment.bytes": 600, "log.roll.ms": 7})
    settings = Settings(world.now_ms, {"retention.ms": "6"}).of_root(root)
    configs = settings.configs_of("t", root.topic("t").log.state().configs)
    assert [configs.text(name) for name in ("retention.ms", "segment.bytes", "segment.ms")] == ["6", "600", "1"]


def test_compaction_by_default_does_not_drop_records_without_keys() -> None:
    world = World()
    root = world.root()
    root.create_topic("t").append(pa.table({"value": ["no key"]}))
    root.alter_defaults({"log.cleanup.policy": "compact"})
    (report,) = compact_root(root, Settings(world.now_ms), InProcess())
    assert "set cleanup.policy=delete on the topic" in report.failures[0].message
    assert root.topic("t").scan().to_table().num_rows == 1


def test_an_open_handle_reads_the_defaults_again_after_five_minutes() -> None:
    world = World()
    topic = world.root().create_topic("t")
    topic.append(ROWS)
    world.root().alter_defaults({"compression.type": "gzip"})
    assert topic.log.append_target().configs.codec() == "zstd"
    world.advance(METADATA_MAX_AGE_MS)
    assert topic.log.append_target().configs.codec() == "gzip"
    world.root().alter_defaults({"compression.type": None})
    world.advance(METADATA_MAX_AGE_MS)
    assert topic.log.append_target().configs.codec() == "zstd"


@pytest.mark.parametrize("kind", ["memory", "bucket"])
def test_a_writer_reads_the_defaults_once_and_a_reader_never(kind: str, tmp_path: Path) -> None:
    counted_root = CountedRoot(kind, tmp_path)
    topic = counted_root.topic(configs={})
    counted_root.store.reset()
    handle = counted_root.world.root(counted_root.store)
    for _ in range(3):
        handle.topic("t").append(ROWS)
    asked = [item for item in counted_root.store.keys if item[1].startswith(("_root/", "_defaults/"))]
    assert sorted(asked) == [("get", f"_root/defaults/_log/{0:020d}.json"), ("list", "_defaults/")]
    counted_root.store.reset()
    assert counted_root.world.root(counted_root.store).topic("t").scan().to_table().num_rows == 6
    assert not [key for _, key in counted_root.store.keys if key.startswith("_root/")]
    assert topic.name == "t"


def test_auto_creation_of_topics_can_be_disabled() -> None:
    world = World()
    root = world.root()
    topic_for_writer(root, "before")
    root.alter_defaults({AUTO_CREATE: False})
    root.alter_defaults({AUTO_CREATE: True, "num.partitions": 2}, pattern="tmp-.*")
    assert topic_for_writer(root, "before").name == "before"
    with pytest.raises(NotFound, match=r"'orders' does not exist.*auto\.create\.topics\.enable is false"):
        topic_for_writer(root, "orders")
    assert len(topic_for_writer(root, "tmp-1").bounds()) == 2
    root.create_topic("orders")


def test_concurrent_changes_are_not_lost(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    handles = [sparklog.open(tmp_path / "root") for _ in range(4)]
    names = ["log.segment.bytes", "log.retention.bytes", "message.max.bytes", "log.index.interval.bytes"]

    def write(item: tuple[Root, str]) -> None:
        for value in range(100, 105):
            item[0].alter_defaults({item[1]: value})
            item[0].alter_defaults({"retention.ms": value}, pattern=item[1])

    class Far:
        parallel_reads = 4

    list(map_requests(Far(), write, list(zip(handles, names, strict=True))))  # type: ignore[arg-type]
    after = root.defaults()
    assert after.configs == dict.fromkeys(sorted(names), "104")
    assert {item.pattern: item.configs["retention.ms"] for item in after.patterns} == dict.fromkeys(names, "104")


def test_a_change_without_effect_writes_no_entry() -> None:
    world = World()
    for _ in range(2):
        world.root().alter_defaults({"num.partitions": 3})
        world.root().alter_defaults({"log.retention.ms": None})
    with pytest.raises(BadRequest):
        world.root().alter_defaults({"num.partitions": 4, "no.such": 1})
    assert [info.key for info in world.store.list("_root/")] == [f"_root/defaults/_log/{0:020d}.json"]
    assert world.root().defaults().partitions("t") == 3


def test_hundreds_of_changes_and_a_verified_root() -> None:
    world = World()
    for value in range(1, 150):
        world.root().alter_defaults({"num.partitions": value})
    assert world.root().defaults().partitions("t") == 149
    assert world.root().topics() == []
    report = verify_root(world.store)
    assert not report.findings
    assert not report.unreferenced
    assert not report.foreign
    key = f"_root/defaults/_log/{148:020d}.json"
    data = world.store.get(key)
    world.store.delete(key)
    world.store.create(key, data.replace(b'"149"', b'"148"'))
    assert {finding.kind for finding in verify_root(world.store).findings} == {"default"}


# -- failures


def changed(base: RootDefaults) -> tuple[str | None, str | None]:
    return base.configs.get("num.partitions"), base.configs.get("log.retention.ms")


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind not in (FaultKind.SHORT, FaultKind.FLIP)])
def test_a_change_is_atomic_if_any_request_fails(kind: FaultKind) -> None:
    for number in range(100):
        world = World()
        world.root().alter_defaults({"num.partitions": 2})
        calls: list[Call] = []

        def strike(call: Call, number: int = number, calls: list[Call] = calls) -> Fault | None:
            calls.append(call)
            return Fault(kind) if len(calls) == number + 1 else None

        store = FaultyStore(world.store, strike, world.sleep)
        outcome = "done"
        try:
            root = Root(store, world.root().id, world.env())
            root.alter_defaults({"num.partitions": 3, "log.retention.ms": 5})
        except Crash:
            outcome = "died"
        except (SparklogError, OSError):
            outcome = "failed"
        store.land()
        after = changed(world.root().defaults())
        assert after in {("2", None), ("3", "5")}, (kind, number)
        if outcome == "done":
            assert after == ("3", "5"), (kind, number)
        assert not verify_root(world.store).findings
        # The next change succeeds, whatever the state after the last one.
        world.root().alter_defaults({"log.retention.ms": 6})
        assert changed(world.root().defaults()) == (after[0], "6")
        if len(calls) <= number:
            assert number > 4
            return
    raise AssertionError("no end")


def raced(seed: int) -> int:
    """Let processes increment their own values, with faults. Each acknowledged value is stored."""
    source = random.Random(seed)
    world = World(seed=seed * 1000)
    root_id = world.root().id
    kinds = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.TWICE, FaultKind.FALSE_EXISTS, FaultKind.DELAY)
    kinds += (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.LATE)
    names = ("log.segment.bytes", "message.max.bytes", "log.retention.bytes")
    told, tried, races = dict.fromkeys(names, 0), dict.fromkeys(names, 0), 0
    handles: dict[str, Root] = {}
    faults = Seeded(source, source.choice([0.0, 0.05, 0.15]), kinds)
    for _ in range(40):
        name = source.choice(names)
        if name not in handles or source.random() < 0.2:
            handles[name] = Root(FaultyStore(world.store, faults, world.sleep), root_id, world.env())
        value = tried[name] = tried[name] + 100
        try:
            before = handles[name].engine.defaults.known()
            after = handles[name].alter_defaults({name: value})
            races += before is not None and after.number > before.number + 1
            told[name] = value
        except (SparklogError, Crash):
            del handles[name]
        world.advance(source.choice([10, 60_000, 400_000]))
    state = world.root().defaults()
    for name in names:
        assert told[name] <= int(state.configs.get(name, "0")) <= tried[name], (seed, name)
    assert not verify_root(world.store).findings
    return races


def test_processes_with_faults_lose_no_change() -> None:
    assert sum(map(raced, range(6))) > 20


@pytest.mark.slow
def test_processes_with_faults_lose_no_change_for_many_seeds() -> None:
    assert sum(map(raced, range(6, 300))) > 1000


def test_hidden_defaults_do_not_count_as_missing() -> None:
    world = World()
    world.root().create_topic("t")
    world.root().alter_defaults({"log.retention.ms": -1})
    hidden = Script({("get:commit", 0): Fault(FaultKind.ABSENT)})
    root = Root(FaultyStore(world.store, hidden, world.sleep), world.root().id, world.env())
    assert root.defaults().configs == {"log.retention.ms": "-1"}
    assert hidden.struck
