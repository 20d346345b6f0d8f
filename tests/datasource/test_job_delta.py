"""The Delta jobs without Delta: command lines, schemas and error lines. For the rest, see test_job_delta_live."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="the jobs of Delta need Spark: install sparklog[spark]")

from py4j.java_gateway import JavaPackage
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import sparklog
from sparklog.errors import BadRequest
from sparklog.jobs import delta, from_delta, to_delta
from sparklog.jobs.to_delta import END, framed_schema, has_spark_functions, key_types
from sparklog.tables.rows import RowOptions
from tests.support.servers import schema_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TO = ["--root", "log", "--topic", "orders", "--table", "t/", "--checkpoint", "c"]
FROM = [*TO, "--key-columns", "id"]
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def avsc(tmp_path: Path) -> str:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    return str(tmp_path / "order.avsc")


def test_options_determine_the_rows(avsc: str) -> None:
    raw = to_delta.arguments(TO)
    assert raw.rows == RowOptions("raw", metadata=False)
    assert raw.keys == ("key",)
    assert (raw.mode, raw.bad_records, raw.starting_offsets, raw.follow) == ("append", "fail", "earliest", False)
    assert (raw.quarantine, raw.max_offsets_per_trigger) == ("t_quarantine", 1_000_000)
    parsed = to_delta.arguments(
        [*TO, "--payload", "json", "--schema", "a INT", "--mode", "upsert", "--key-columns", "a, b", "--metadata"]
    )
    assert parsed.rows == RowOptions("json", True, "a INT", ("a", "b"), metadata=True)
    assert parsed.keys == ("a", "b")
    avro = to_delta.arguments([*TO, "--payload", "avro", "--schema", avsc])
    assert json.loads(avro.rows.schema) == ORDER
    with_id = to_delta.arguments([*TO, "--payload", "avro", "--schema", f"12={avsc}"])
    assert json.loads(with_id.rows.schema[12]) == ORDER
    registry = to_delta.arguments([*TO, "--payload", "avro", "--schema-registry", "http://localhost:1"])
    assert registry.rows.schema.name == "orders-value"
    text = to_delta.arguments([*TO, "--payload", "string"])
    # Spark's Avro package is only required if Spark decodes the values.
    for job, by_spark, needs_avro in (
        (raw, True, False), (parsed, True, False), (avro, True, True), (with_id, True, True), (registry, False, False),
        (text, False, False),
    ):  # fmt: skip
        assert (has_spark_functions(job.rows), job.needs_spark_avro) == (by_spark, needs_avro)
    assert to_delta.arguments([*TO, "--follow", "--interval", "30 seconds"]).interval == "30 seconds"
    back = from_delta.arguments([*FROM, "--starting-version", "12"])
    assert (back.keys, back.starting_version, back.payload) == (("id",), "12", "json")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--schema", "a INT"], "--schema and --key-columns cannot be used with --payload raw"),
        (["--metadata"], "--metadata cannot be used with --payload raw"),
        (["--key-columns", "id"], "--schema and --key-columns cannot be used with --payload raw"),
        (["--payload", "json", "--schema-registry", "http://localhost:1"], "a schema registry requires --payload with"),
        (["--payload", "json"], "--payload json requires --schema: columns such as"),
        (["--payload", "avro"], "--payload avro requires --schema: the file of the Avro schema"),
        (["--payload", "json", "--schema", "a INT", "--mode", "upsert"], "--mode upsert requires --key-columns"),
        (["--payload", "avro", "--schema", "nowhere.avsc"], "'nowhere.avsc' cannot be read"),
        (["--payload", "avro", "--schema", "7=nowhere.avsc"], "'nowhere.avsc' cannot be read"),
        (["--payload", "xml"], "'raw', 'string', 'json', 'avro', 'json-schema', 'protobuf'"),
        (["--mode", "overwrite"], "'append', 'upsert'"),
        (["--bad-records", "drop"], "'fail', 'skip', 'quarantine'"),
        (["--interval", "1 minute"], "--interval requires --follow"),
        (["--follow", "--interval", "soon"], "a number and a unit such as '30 seconds', found 'soon'"),
        (["--max-offsets-per-trigger", "0"], "--max-offsets-per-trigger"),
    ],
)
def test_wrong_usage_of_to_delta_ends_with_2(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    ends_with_2(to_delta, [*TO, *given], says, capsys)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (TO, "--key-columns"),
        ([*TO, "--key-columns", " ,"], "Invalid value for '--key-columns'"),
        ([*FROM, "--starting-version", "first"], "a version of the table or latest, found 'first'"),
        ([*FROM, "--interval", "1 minute"], "--interval requires --follow"),
        ([*FROM, "--payload", "avro"], "'json', 'raw'"),
    ],
)
def test_wrong_usage_of_from_delta_ends_with_2(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    ends_with_2(from_delta, given, says, capsys)


def ends_with_2(job: Any, given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        job.arguments(given)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_packages_are_those_of_the_release_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "version", lambda name: "4.4.7")
    packages = "io.delta:delta-spark_4.2_2.13:4.4.7,org.apache.spark:spark-avro_2.13:4.2.0"
    assert delta.settings({}, "4.2.1", avro=True) == delta.SETTINGS | {"spark.jars.packages": packages}
    assert delta.settings({}, "4.2.1")["spark.jars.packages"] == packages.split(",")[0]
    # If Spark is started in another way, its jars were given there.
    for environ in ({"PYSPARK_GATEWAY_PORT": "1"}, {"PYSPARK_SUBMIT_ARGS": "--packages io.delta:x pyspark-shell"}):
        assert delta.settings(environ, "4.2.1") == delta.SETTINGS


def test_missing_jars_are_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "version", lambda name: "4.4.0")
    missing = JavaPackage("x", None)
    jvm = SimpleNamespace(
        io=SimpleNamespace(delta=SimpleNamespace(tables=SimpleNamespace(DeltaTable=object()))),
        org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=SimpleNamespace(avro=SimpleNamespace())))),
    )
    jvm.org.apache.spark.sql.avro.functions = missing
    spark: Any = SimpleNamespace(version="4.2.0", sparkContext=SimpleNamespace(_jvm=jvm))
    delta.check_delta(spark)
    with pytest.raises(
        BadRequest, match=r"Spark does not have the Avro package; .*:\S+4.4.0,org.apache.spark:spark-avro_2.13"
    ):
        delta.check_delta(spark, avro=True)
    jvm.io.delta.tables.DeltaTable = missing
    with pytest.raises(
        BadRequest, match=r"Spark does not have the Delta package; .*io.delta:delta-spark_4.2_2.13:4.4.0, or run python"
    ):
        delta.check_delta(spark)


TABLE = StructType([StructField("id", LongType(), nullable=False), StructField("Name", StringType())])


@pytest.mark.parametrize(
    ("rows", "missing", "says"),
    [
        ([("id", LongType()), ("Name", StringType())], [], ""),
        ([("name", StringType())], [], ""),
        (
            [("id", LongType()), ("at", TimestampType())],
            ["at"],
            "no column 'at' (timestamp); use --grow-schema to add it",
        ),
        ([("id", IntegerType())], ["id"], "column 'id' is bigint in the table and int in the rows; change --schema"),
    ],
)
def test_missing_columns_of_a_table(rows: list[tuple[str, Any]], missing: list[str], says: str) -> None:
    schema = StructType([StructField(*each) for each in rows])
    assert delta.missing_columns(TABLE, schema, grow=True) == missing
    if not says:
        assert delta.missing_columns(TABLE, schema, grow=False) == []
        return
    with pytest.raises(BadRequest) as refused:
        delta.missing_columns(TABLE, schema, grow=False)
    assert says in str(refused.value)


def test_key_columns_have_the_types_of_the_schema() -> None:
    schema = StructType([StructField("a", DoubleType()), StructField("b", BinaryType())])
    assert key_types(schema, ("a",)) == {"a": DoubleType()}
    assert key_types(schema, ("b", "a")) == {"b": BinaryType(), "a": DoubleType()}
    assert key_types(schema, ("other",)) == {"other": StringType()}
    for keys, says in (
        (("A",), "did you mean 'a'"),
        (("a", "other"), "there is no column 'other' in the schema; the columns are a, b"),
    ):
        with pytest.raises(BadRequest, match=says):
            key_types(schema, keys)


def test_an_avro_value_is_read_between_its_frame_and_its_end() -> None:
    for schema_id, fields in ((None, ["value", "end"]), (7, ["frame", "value", "end"])):
        made = json.loads(framed_schema(json.dumps(ORDER), schema_id))
        assert [field["name"] for field in made["fields"]] == fields
        types = {field["name"]: field["type"] for field in made["fields"]}
        assert (types["value"], types["end"]["size"]) == (ORDER, len(END))


@pytest.mark.parametrize(
    ("schema", "says"), [("{", "is not valid JSON"), ('"long"', "a record schema"), ("[]", "a record schema")]
)
def test_an_avro_schema_without_columns_is_rejected(schema: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        framed_schema(schema, None)


def test_an_upsert_deletes_updates_and_inserts() -> None:
    assert to_delta.merge("delta.`t`", ["`id`", "`x`"], ["`id`"]) == (
        "MERGE INTO delta.`t` AS t USING sparklog_rows AS s ON t.`id` = s.`id` "
        "WHEN MATCHED AND s._sparklog_deleted THEN DELETE WHEN MATCHED THEN UPDATE SET t.`id` = s.`id`, t.`x` = s.`x` "
        "WHEN NOT MATCHED AND NOT s._sparklog_deleted THEN INSERT (`id`, `x`) VALUES (s.`id`, s.`x`)"
    )
    assert delta.table_name("/a`b") == "delta.`/a``b`"


@pytest.mark.spark
def test_a_relative_path_of_a_table_becomes_absolute(spark: SparkSession) -> None:
    """In SQL, delta.`path` requires an absolute path."""
    for path in ("/tables/t", "s3a://bucket/t", "file:/t"):
        assert delta.absolute(spark, path) == path
    assert delta.absolute(spark, "tables/a b") == f"{os.getcwd()}/tables/a b"


@pytest.mark.spark
def test_an_interrupted_table_creation_can_be_repeated(spark: SparkSession, tmp_path: Path) -> None:
    def remainders() -> dict[str, bool]:
        folder, files = delta._folder(spark, str(tmp_path))
        return {
            status.getPath().getName(): delta._is_remainder(spark, files, status) for status in files.listStatus(folder)
        }

    log = tmp_path / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log / ".00000000000000000000.json.tmp").touch()
    rows = pa.table({"id": pa.array([], pa.int64())})
    pq.write_table(rows, tmp_path / "part-0.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "part-1.parquet")
    (tmp_path / "part-2.parquet").write_text("not Parquet")
    (tmp_path / "notes.txt").touch()
    assert remainders() == {
        "_delta_log": True,
        "part-0.parquet": True,
        "part-1.parquet": False,
        "part-2.parquet": False,
        "notes.txt": False,
    }
    (log / "_staged_commits" / "00000000000000000000.json").touch()
    assert not remainders()["_delta_log"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "options", "duplicate"),
    [
        ("id BIGINT, ID STRING", [], "ID"),
        ("id BIGINT, id STRING", [], "id"),
        ("id BIGINT, _offset BIGINT", ["--metadata"], "_offset"),
        ("id BIGINT, _Offset BIGINT", ["--metadata"], "_offset"),
        ("id BIGINT", ["--metadata", "--key-columns", "_topic"], "_topic"),
        ("id BIGINT, at STRUCT<x: INT, X: INT>", [], r"at\.X"),
        ("id BIGINT, at ARRAY<STRUCT<x: INT, X: INT>>", [], r"at\.item\.X"),
        ("id BIGINT, at MAP<STRING, STRUCT<x: INT, X: INT>>", [], r"at\.entries\.value\.X"),
    ],
)
def test_columns_with_the_same_name_are_rejected(
    spark: SparkSession, schema: str, options: list[str], duplicate: str
) -> None:
    job = to_delta.arguments([*TO, "--payload", "json", "--schema", schema, *options])
    record = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"
    with pytest.raises(BadRequest, match=f"would contain column {duplicate} twice"):
        to_delta.rows(spark.createDataFrame([], record), job.rows, "orders")


@pytest.mark.spark
def test_values_with_the_schemas_of_a_registry_become_rows_in_tasks(spark: SparkSession, root: str) -> None:
    """The values have two versions of the schema. A record that does not match it becomes a row with a reason."""
    pytest.importorskip("fastavro")
    topic = sparklog.open(root, create=True).create_topic("orders")
    item = {"name": "item", "type": ["null", "string"], "default": None}
    at = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0}
    newer = {**ORDER, "fields": [*ORDER["fields"], item, at]}  # type: ignore[misc]
    with schema_registry.running() as server:
        first, second = (server.register("orders-value", json.dumps(schema), "AVRO") for schema in (ORDER, newer))
        values = [
            b"\0" + first.to_bytes(4, "big") + b"\2",
            b"\0" + second.to_bytes(4, "big") + b"\4\2\2x\0",
            b"broken",
            None,
        ]
        topic.append(pa.table({"key": [b"1", b"2", b"3", b"4"], "value": pa.array(values, pa.binary())}))
        job = to_delta.arguments(
            [*TO, "--payload", "avro", "--schema-registry", server.url, "--mode", "upsert", "--key-columns", "id"]
        )
        records = spark.read.format("sparklog").option("subscribe", "orders").load(root)
        found = to_delta.rows(records, job.rows, "orders").orderBy("record.offset").collect()
        appended = to_delta.arguments([*TO, "--payload", "string", "--metadata"])
        records = spark.read.format("sparklog").option("subscribe", "orders").option("includeHeaders", True).load(root)
        texts = to_delta.rows(records, appended.rows, "orders").orderBy("record.offset").collect()
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    rows = [(row.row.id, row.row.item, row.row.at.astimezone(timezone.utc)) for row in found[:2]]
    assert rows == [(1, None, epoch), (2, "x", epoch)]
    assert [row.record.offset for row in found] == [0, 1, 2, 3]
    assert [row.deleted for row in found] == [False, False, False, True]
    assert found[2].row is None
    assert [row.reason is None for row in found] == [True, True, False, True]
    assert texts[2].row.asDict() == {
        "key": "3",
        "value": "broken",
        "_headers": None,
        "_topic": "orders",
        "_partition_id": 0,
        "_offset": 2,
        "_timestamp": texts[2].record.timestamp,
    }
