"""The mirror without a broker: its command line, its plan, and the conversion of rows. For the rest, see
test_job_mirror_live.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import sparklog
from sparklog.datasource.restarts import LOST_WORKER
from sparklog.errors import BadRequest, NotFound, SparklogError
from sparklog.jobs import mirror
from sparklog.jobs.stream import QueryStatus, reason
from sparklog.output import StatusLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KAFKA = "kafka://one:9092,two:9093"


def pairs_of(words: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(words[::2], words[1::2], strict=True))


INTO_ROOT = ["--from", KAFKA, "--to", "root", "--checkpoint", "c"]


class FakeKafka:
    """The topics of a cluster."""

    location = KAFKA

    def __init__(self, **topics: int) -> None:
        self.topics = topics

    def names(self) -> list[str]:
        return sorted(self.topics)

    def partitions(self, names: Collection[str]) -> dict[str, int]:
        return {name: self.topics[name] for name in names if name in self.topics}

    def create(self, name: str, partitions: int) -> None:
        self.topics[name] = partitions

    def grow(self, name: str, partitions: int) -> str:
        return f"grow {name} to {partitions}"

    def close(self) -> None:
        pass


def test_options_of_a_command_line(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("# as Kafka's tools take it\nsecurity.protocol=SASL_SSL\nsasl.mechanism: PLAIN\n")
    given = [*INTO_ROOT, "--topics", "orders, clicks,orders", "--kafka-config", str(config), "--follow"]
    given += ["--kafka-option", "kafka.sasl.mechanism=SCRAM-SHA-256", "--kafka-option", "sasl.jaas.config=a b=c;"]
    found = mirror.arguments(given)
    assert (found.source, found.target, found.servers, found.into_kafka) == (KAFKA, "root", KAFKA[8:], False)
    assert (found.topics, found.pattern, found.follow) == (("orders", "clicks"), None, True)
    assert (found.isolation, found.max_offsets_per_trigger) == ("read_committed", 1_000_000)
    assert not found.no_fail_on_data_loss
    assert found.options == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "a b=c;",
    }
    back = mirror.arguments(["--from", "root", "--to", "kafka://[::1]:9", "--checkpoint", "c", "--pattern", "o.*"])
    assert (back.into_kafka, back.servers, back.pattern, back.topics) == (True, "[::1]:9", "o.*", ())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--topics", "a", "--pattern", "b"], "specify --pattern or --topics, not both"),
        ([], "--topics"),
        (["--topics", " ,"], "Invalid value for '--topics'"),
        (["--pattern", "("], "not a regular expression"),
        (["--topics", "a", "--to", "kafka://b:1"], "one of --from and --to must be kafka://host:port"),
        (["--topics", "a", "--from", "other"], "sparklog stream"),
        (["--topics", "a", "--from", "kafka://broker"], "found 'kafka://broker'"),
        (["--topics", "a", "--kafka-option", "security.protocol"], "NAME=VALUE"),
        (["--topics", "a", "--kafka-option", "bootstrap.servers=b:1"], "kafka:// address"),
        (["--topics", "a", "--kafka-option", "kafka.isolation.level=x"], "--isolation-level"),
        (["--topics", "a", "--kafka-config", "nowhere.properties"], "'nowhere.properties' cannot be read"),
        (["--topics", "a", "--kafka-option", "metadata.max.age.ms=soon"], "an integer of at least 1 (milliseconds)"),
        (["--topics", "a", "--max-offsets-per-trigger", "0"], "--max-offsets-per-trigger"),
    ],
)
def test_wrong_usage_ends_with_2(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    # An option of the case replaces the same option of the usual command line.
    usual = [word for name, value in pairs_of(INTO_ROOT) if name not in given for word in (name, value)]
    with pytest.raises(SystemExit) as stopped:
        mirror.arguments([*usual, *given])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def planned(path: Path, kafka: FakeKafka, *what: str, back: bool = False) -> tuple[dict[str, int], list[str]]:
    root = mirror.RootEndpoint(str(path), target=not back)
    source, target = (root, kafka) if back else (kafka, root)
    return mirror.plan(mirror.arguments([*INTO_ROOT, *what]), source, target)


def test_topics_that_are_missing_get_the_partitions_of_the_source(tmp_path: Path) -> None:
    kafka = FakeKafka(orders=3, clicks=5, other=1, __consumer_offsets=50)
    assert planned(tmp_path / "new", kafka, "--topics", "orders,clicks") == (
        {"orders": 3, "clicks": 5},
        ["orders", "clicks"],
    )
    assert not (tmp_path / "new").exists()
    place = mirror.RootEndpoint(str(tmp_path / "new"), target=True)
    place.create("orders", 3)
    assert sparklog.open(tmp_path / "new").topic("orders").log.state().partitions == 3
    assert planned(tmp_path / "new", kafka, "--pattern", ".*r.*") == ({"orders": 3, "other": 1}, ["other"])
    assert planned(tmp_path / "new", kafka, "--pattern", ".*")[0].keys() == {"orders", "clicks", "other"}
    assert planned(tmp_path / "new", FakeKafka(), "--pattern", "o.*", back=True) == ({"orders": 3}, ["orders"])


def test_a_topic_deleted_since_the_pattern_was_looked_up_is_left_out(tmp_path: Path) -> None:
    class Deleting(FakeKafka):
        def names(self) -> list[str]:
            names = super().names()
            self.topics.pop("other", None)
            return names

    kafka = Deleting(orders=3, other=1)
    assert planned(tmp_path / "new", kafka, "--pattern", ".*") == ({"orders": 3}, ["orders"])


@pytest.mark.parametrize(
    ("topics", "what", "kind", "says"),
    [
        ({"orders": 3}, "order", NotFound, "there is no topic 'order' at kafka://one:9092,two:9093; did you mean 'ord"),
        ({"orders": 3}, "orders,gone", NotFound, "there is no topic 'gone'"),
        ({"new": 1, "old": 3}, "new,old", BadRequest, "sparklog topics alter old --partitions 3 --root"),
        ({"old": 1}, "old", BadRequest, "grow old to 2"),
        ({"new": 1, "a b": 1}, "new,a b", BadRequest, "may contain only letters"),
    ],
)
def test_unsupported_topics_are_reported_and_nothing_is_changed(
    tmp_path: Path, topics: dict[str, int], what: str, kind: type[SparklogError], says: str
) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("old", partitions=2)
    with pytest.raises(kind, match=says) as error:
        planned(tmp_path / "root", FakeKafka(**topics), "--topics", what)
    assert "\n" not in str(error.value)
    assert root.topics() == ["old"]


def test_a_pattern_that_nothing_matches_and_paths_that_are_no_roots(tmp_path: Path, fixtures: Path) -> None:
    with pytest.raises(NotFound, match=r"matches 'x\.'"):
        planned(tmp_path, FakeKafka(orders=1), "--pattern", "x.")
    with pytest.raises(BadRequest, match="found nothing yet"):
        planned(tmp_path, FakeKafka(), "--topics", "a", back=True)
    for target in (True, False):
        with pytest.raises(BadRequest, match="found a Kafka log directory"):
            mirror.RootEndpoint(str(fixtures / "transactions" / "data"), target=target)


def test_a_missing_connector_error_suggests_the_package(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into_root = [str(tmp_path / "root") if word == "root" else word for word in INTO_ROOT]
    given = mirror.arguments([*into_root, "--topics", "a"])
    assert mirror.run(spark, given) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    line = ".".join(spark.version.split(".")[:2])
    assert f"--packages org.apache.spark:spark-sql-kafka-0-10_2.13:{line}.0, or" in said[0]
    assert not (tmp_path / "root").exists()


class FakeQuery:
    """A running query. Each `awaitTermination` calls the next action, and returns True after the last action."""

    def __init__(self, happens: list[Callable[[], object]]) -> None:
        self.happens = happens
        self.status = {"isTriggerActive": True}
        self.waited: list[float] = []
        self.stopped = 0
        self.lastProgress = None
        self.recentProgress: list[dict[str, int]] = []

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
        self.waited.append(seconds)
        self.status["isTriggerActive"] = seconds != 0.5
        if seconds != 0.5 and self.happens:
            self.happens.pop(0)()
            return False
        return seconds != 0.5

    def stop(self) -> None:
        self.stopped += 1


def test_topics_created_while_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = FakeKafka(o1=2)
    place = mirror.RootEndpoint(str(tmp_path / "root"), target=True)
    place.create("o1", 2)
    root = sparklog.open(tmp_path / "root")

    def wrong() -> None:
        root.create_topic("o3", partitions=5)
        kafka.create("o3", 1)

    def away() -> None:
        kafka.topics.pop("o3")
        kafka.create("o4", 3)

    query = FakeQuery([lambda: None, lambda: kafka.create("o2", 1), wrong, away])
    started: list[dict[str, int]] = []

    def start(spark: object, what: mirror.Mirror, partitions: dict[str, int]) -> FakeQuery:
        assert partitions.keys() <= set(root.topics())
        started.append(dict(partitions))
        return query

    monkeypatch.setattr(mirror, "start", start)
    given = [*INTO_ROOT, "--pattern", "o.", "--follow", "--kafka-option", "metadata.max.age.ms=7000"]
    status = QueryStatus(StatusLine("mirror"))
    mirror.follow_pattern(Any, mirror.arguments(given), kafka, place, {"o1": 2}, status, query)  # type: ignore[arg-type]
    assert started == [{"o1": 2, "o2": 1}, {"o1": 2, "o2": 1, "o4": 3}]
    assert query.stopped == 2
    assert query.waited.count(7.0) == 5
    said = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert said[:2] == [f"created topic o2 with 1 partition at {place.location}", "new topics: o2"]
    assert said[2].startswith("sparklog mirror: topic 'o3' has 1 partition at kafka://one:9092,two:9093 and 5 at")
    assert said[2].endswith("continuing with the previous topics")
    assert said[-1] == "new topics: o4"


def test_restart_includes_topics_that_were_created_while_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, place = FakeKafka(o1=2), mirror.RootEndpoint(str(tmp_path / "root"), target=True)
    place.create("o1", 2)

    def lose() -> None:
        raise PySparkException(LOST_WORKER)

    query = FakeQuery([lambda: kafka.create("o2", 1), lose])
    started: list[dict[str, int]] = []

    def start(spark: object, what: mirror.Mirror, partitions: dict[str, int]) -> FakeQuery:
        started.append(dict(partitions))
        return query

    monkeypatch.setattr(mirror, "start", start)
    monkeypatch.setattr(mirror, "KafkaEndpoint", lambda *_: kafka)
    monkeypatch.setattr(mirror, "root_of", lambda _: place)
    monkeypatch.setattr(sparklog, "register", lambda _: None)
    given = mirror.arguments([*INTO_ROOT, "--pattern", "o.", "--follow"])
    assert mirror.run(Any, given) == 0
    assert started == [{"o1": 2}, {"o1": 2, "o2": 1}, {"o1": 2, "o2": 1}]


def test_the_error_line_of_kafka_exceptions() -> None:
    lost = "[STREAM_FAILED] Query terminated with exception: Some data may have been lost\nCaused by: other"
    assert reason(lost) == lost.splitlines()[0]
    sent = (
        "[STREAM_FAILED] Query terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: Traceback:\n"
        "    raise e\n: org.apache.spark.SparkException: Job aborted\n\tat org.apache\nCaused by: a.B: c\n\tat a.B\n"
        "Caused by: d.E: Invalid value bogus\n\t... 34 more\n"
    )
    assert reason(sent) == "d.E: Invalid value bogus"
    raised = (
        "[STREAM_FAILED] Query terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: Traceback:\n"
        '  File "a.py", line 1, in write\n'
        "pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] t-0 offset 1: x "
        "SQLSTATE: P0001\n"
        " SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
    )
    assert reason(raised) == "[USER_RAISED_EXCEPTION] t-0 offset 1: x"


def test_rows_of_the_connector_become_rows_of_the_sink(spark: SparkSession) -> None:
    """A negative timestamp means that there is no timestamp, and must not be written as a time in 1969."""
    rows = spark.sql(
        "SELECT CAST('k' AS BINARY) key, CAST(NULL AS BINARY) value, 't' topic, 1 partition, 7L offset, "
        "timestamp_millis(ms) timestamp, 0 timestampType, "
        "CAST(NULL AS array<struct<key:string,value:binary>>) headers "
        "FROM VALUES (-1L), (-5L), (0L), (1500L) AS times(ms)"
    )
    found = mirror.into_root(rows).selectExpr("*", "unix_millis(timestamp) ms").collect()
    assert [row.ms for row in found] == [None, None, 0, 1500]
    assert {(bytes(row.key), row.value, row.topic, row.partition, row.headers) for row in found} == {
        (b"k", None, "t", 1, None)
    }


def test_a_split_partition_is_sent_in_order(spark: SparkSession, tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    for name in ("a", "b"):
        topic = root.create_topic(name, partitions=3)
        for start in (0, 500):
            rows = list(range(start, start + 500))
            topic.append(
                pa.table(
                    {"value": [str(row) for row in rows], "partition": pa.array([row % 3 for row in rows], pa.int32())}
                )
            )
    reader = spark.read.format("sparklog").option("subscribe", "a,b").option("includeHeaders", True)
    rows = mirror.into_kafka(reader.option("maxRecordsPerPartition", 20).load(str(tmp_path / "root")), 6)
    assert rows.columns == ["topic", "partition", "key", "value", "headers"]
    tasks: dict[tuple[str, int], set[int]] = {}
    values: dict[tuple[str, int], list[int]] = {}
    for row in rows.selectExpr("*", "spark_partition_id() task").collect():
        tasks.setdefault((row.topic, row.partition), set()).add(row.task)
        values.setdefault((row.topic, row.partition), []).append(int(row.value))
    assert {len(found) for found in tasks.values()} == {1}
    assert values == {(name, p): list(range(p, 1000, 3)) for name in ("a", "b") for p in range(3)}
