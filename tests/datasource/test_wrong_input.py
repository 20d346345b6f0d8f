"""Invalid input to the data source is a one-line error. The source is called as by Spark's planner.

`test_spark_errors.py` tests how Spark shows such a line, with the first case of each kind.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.datasource.spark_workers import HIDE_TRACEBACK
from sparklog.datasource.subscription import _partitions
from tests.datasource.streams import feed

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from sparklog.datasource.data_source import SparklogDataSource

VALUE = StructType().add("value", StringType())
KEYS = StructType().add("key", BinaryType())
TOPIC_AND_VALUE = StructType().add("topic", StringType()).add("value", StringType())


@pytest.fixture(autouse=True)
def _keep_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE_TRACEBACK, "")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = str(tmp_path_factory.mktemp("errors") / "log")
    feed(made, "orders", range(10), partitions=1)
    feed(made, "payments", range(3), partitions=1)
    return made


def line(action: Callable[[], Any]) -> str:
    """Return the error as Spark shows it: its name and one line."""
    with pytest.raises(Exception) as error:
        action()
    text = f"{type(error.value).__name__}: {error.value}"
    assert text.startswith("[SPARKLOG_")
    assert "\n" not in text
    return text


def source(path: str | None, **options: str) -> SparklogDataSource:
    """Return the source with options as passed by Spark, with names in lower case."""
    given = {name.lower(): value for name, value in options.items()}
    return SparklogDataSource(given if path is None else {"path": path, **given})


def plan(path: str, schema: StructType = KEYS, **options: str) -> Any:
    return source(path, **options).reader(schema).partitions()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"subscribe": "orders", "startingOffset": "earliest"},
            "[SPARKLOG_BAD_REQUEST]: Unknown option 'startingoffset': did you mean 'startingOffsets'?",
        ),
        (
            {"subscribe": "orders", "startingOffsets": "erliest"},
            (
                "[SPARKLOG_BAD_REQUEST]: Option 'startingOffsets' must be 'earliest', 'latest', 'group' or JSON such "
                "as {\"topic\":{\"0\":23}}: found 'erliest'; did you mean 'earliest'?"
            ),
        ),
        (
            {"subscribe": "orders", "subscribePattern": "o.*"},
            (
                "[SPARKLOG_BAD_REQUEST]: Set one of 'subscribe', 'subscribePattern' and 'assign', not 'subscribe' and "
                "'subscribePattern'"
            ),
        ),
        (
            {"topic": "orders"},
            "[SPARKLOG_BAD_REQUEST]: Option 'topic' applies only to writes; set the topics to read with",
        ),
    ],
)
def test_options_are_checked_at_load(root: str, options: dict[str, str], expected: str) -> None:
    assert line(lambda: source(root, **options).schema()).startswith(expected)


def test_paths_are_checked_at_load(root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file: use a root" in line(lambda: source(str(tmp_path / "file")).schema())
    assert "[SPARKLOG_NOT_FOUND]: There is no log at" in line(lambda: source(str(tmp_path / "none")).schema())
    assert "Expected the path of a root" in line(lambda: source(None).schema())


def test_missing_topic_options_are_reported_at_load(root: str) -> None:
    nameless = "is a root with the topics orders, payments: select topics with 'subscribe'"
    assert nameless in line(lambda: source(root).schema())
    assert nameless in line(lambda: source(root, startingOffsets="earliest").schema())
    other = line(lambda: source(f"{root}/orders", subscribe="payments").schema())
    assert "is the directory of topic 'orders' only: to read other topics, use the root" in other
    assert source(f"{root}/orders").schema() == source(root, subscribe="orders").schema()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": "order"}, "[SPARKLOG_NOT_FOUND]: There is no topic 'order' at"),
        ({}, "is a root with the topics orders, payments: select topics with 'subscribe'"),
        (
            {"assign": '{"orders":[4]}'},
            "Option 'assign' contains partition 4 of topic 'orders', which has partition 0 only",
        ),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"0":99}}'},
            "[SPARKLOG_NOT_FOUND]: Offset 99 of orders-0 is out of range: the log ends at 10",
        ),
        (
            {"subscribe": "orders", "endingOffsets": '{"orders":{"0":11}}'},
            "[SPARKLOG_NOT_FOUND]: Offset 11 of orders-0 is out of range: the log ends at 10",
        ),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"1":0}}'},
            "startingOffsets contains partitions that are not read: orders-1",
        ),
        ({"subscribe": "orders", "startingOffsets": "latest"}, "startingOffsets=latest applies only to streams"),
    ],
)
def test_missing_topics_partitions_and_offsets_are_errors(root: str, options: dict[str, str], expected: str) -> None:
    assert expected in line(lambda: plan(root, **options))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (StructType().add("offsett", LongType()), "contains the unknown column 'offsett' (did you mean 'offset'?)"),
        (StructType().add("offset", IntegerType()), "Column 'offset' must have the type bigint, but has the type int"),
        (StructType().add("key", BinaryType(), nullable=False), "Column 'key' can contain nulls"),
    ],
)
def test_schemas_of_reads(root: str, schema: StructType, expected: str) -> None:
    assert expected in line(lambda: plan(root, schema, subscribe="orders"))


@pytest.mark.parametrize(
    ("schema", "options", "expected"),
    [
        (
            StructType().add("value", IntegerType()),
            {"topic": "orders"},
            "[SPARKLOG_BAD_REQUEST]: Column 'value' must be string or binary but is int: cast the column",
        ),
        (StructType().add("key", StringType()), {"topic": "orders"}, "A column 'value' (string or binary) is required"),
        (VALUE, {}, "No topic: set the option 'topic'"),
        (VALUE, {"topic": "orders", "txnAppId": "a"}, "txnAppId is set without txnVersion"),
        (
            TOPIC_AND_VALUE,
            {"kafka.transaction.timeout.ms": "86400001"},
            "Option 'transaction.timeout.ms' must be an integer from 1 to 86400000, found '86400001'",
        ),
        (VALUE, {"subscribe": "orders"}, "set the topic to write to with 'topic'"),
    ],
)
def test_invalid_writes_are_rejected(root: str, schema: StructType, options: dict[str, str], expected: str) -> None:
    assert expected in line(lambda: source(root, **options).writer(schema, False))
    assert sparklog.open(root).topic("orders").log.state().log_end.tolist() == [10]


def test_internal_ids_are_rejected_as_options(root: str) -> None:
    writer = source(root, txnAppId="one-write:x", txnVersion="1").writer(TOPIC_AND_VALUE, False)
    expected = "ids that begin with 'one-write:' are reserved; choose another id"
    assert expected in line(lambda: writer.commit([]))


def test_where_nothing_can_be_written(root: str, fixtures: Path) -> None:
    assert "A log is append-only" in line(lambda: source(root, topic="orders").writer(VALUE, True))
    kafka = str(fixtures / "codecs" / "data")
    assert "is a Kafka log directory, which is read-only" in line(lambda: source(kafka, topic="t").writer(VALUE, False))


def test_the_folder_of_a_far_partition_costs_no_memory() -> None:
    """In a Kafka log directory, the names of the directories determine which partitions exist."""
    tracemalloc.start()
    try:
        assert _partitions([0, 2_000_000]) == "partitions 0, 2000000"
        assert _partitions([2, 3, 4]) == "partitions 2 to 4"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("use", "warning"),
    [
        (
            lambda root: plan(root, subscribePattern="nosuch.*"),
            "subscribePattern=nosuch.* does not match any topic at {root}, which has the topics orders, payments",
        ),
        (
            lambda root: plan(root, subscribe="orders", maxOffsetsPerTrigger="10"),
            "Option 'maxOffsetsPerTrigger' has no effect in a batch read: it applies only to streams",
        ),
        (
            lambda root: source(root, topic="orders", checkpointLocation="/c").writer(VALUE, overwrite=False),
            "Option 'checkpointLocation' has no effect in a batch write: txnAppId and txnVersion",
        ),
    ],
)
def test_options_without_effect_warn(
    root: str,
    use: Callable[[str], object],
    warning: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use(root)
    assert warning.format(root=root) in caplog.text
