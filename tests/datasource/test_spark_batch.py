"""Batch reads and writes through Spark."""

from __future__ import annotations

import base64
import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparklog
from tests.datasource.standard_error import StandardError
from tests.datasource.streams import SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADERS = "array<struct<key:string,value:binary>>"
UTC = datetime.timezone.utc


def write(df: DataFrame, root: str, **options: Any) -> None:
    df.write.format("sparklog").mode("append").options(**options).save(root)


def read(spark: SparkSession, root: str, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("sparklog").options(**options)
    return (reader.schema(schema) if schema else reader).load(root)


def keyed(spark: SparkSession, n: int, first: int = 0) -> DataFrame:
    return spark.range(first, first + n).selectExpr("concat('k', id) AS key", "concat('v', id) AS value")


def test_appended_records_are_scanned(spark: SparkSession, root: str) -> None:
    when = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    rows = [
        ("a", b"1", 2, when, [("h", b"x"), ("h", None), ("\u00e9", b"")], "left out"),
        (None, b"", 0, when, None, "left out"),
        ("", None, 1, None, [], "left out"),
    ]
    schema = f"key string, value binary, partition int, timestamp timestamp, headers {HEADERS}, other string"
    before = datetime.datetime.now(UTC) - datetime.timedelta(seconds=1)
    write(spark.createDataFrame(rows, schema).coalesce(1), root, **{"topic": "t", "num.partitions": 3})
    df = read(spark, root, subscribe="t", includeHeaders=True)
    assert df.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        f"timestampType:int,headers:{HEADERS}>"
    )
    found = {row.partition: row for row in df.collect()}
    assert [(found[p].key, found[p].value, found[p].topic, found[p].offset) for p in range(3)] == [
        (None, b"", "t", 0),
        (b"", None, "t", 0),
        (b"a", b"1", "t", 0),
    ]
    assert [tuple(header) for header in found[2].headers] == [("h", b"x"), ("h", None), ("\u00e9", b"")]
    assert (found[0].headers, found[1].headers) == (None, None)
    micros = {row.partition: row.us for row in df.selectExpr("partition", "unix_micros(timestamp) us").collect()}
    assert micros[0] == micros[2] == int(when.timestamp()) * 1_000_000 + 123_000
    assert micros[1] >= before.timestamp() * 1_000_000
    assert {row.timestampType for row in found.values()} == {0}


def test_a_user_schema_is_the_projection(spark: SparkSession, root: str) -> None:
    write(keyed(spark, 100), root, topic="t")
    df = read(spark, root, "offset long, value binary", subscribe="t")
    assert df.columns == ["offset", "value"]
    assert sorted(row.offset for row in df.collect()) == list(range(100))
    headers = read(spark, root, columns="headers,topic,timestampType", subscribe="t")
    assert {(row.headers, row.topic, row.timestampType) for row in headers.collect()} == {(None, "t", 0)}
    assert read(spark, root, "offset long NOT NULL", subscribe="t").agg({"offset": "max"}).first()[0] == 99


def test_keys_go_where_kafka_would_send_them(spark: SparkSession, root: str, fixtures: Path) -> None:
    cases = json.loads((fixtures / "partitioner" / "murmur2.json").read_text())
    wanted = {base64.b64decode(case["key"]): case["partition"]["12"] for case in cases}
    df = spark.createDataFrame([(key, b"v") for key in wanted], "key binary, value binary")
    write(df, root, **{"topic": "t", "num.partitions": 12})
    found = read(spark, root, "key binary, partition int", subscribe="t").collect()
    assert {bytes(row.key): row.partition for row in found} == wanted


def test_several_topics_in_one_write(spark: SparkSession, root: str) -> None:
    df = spark.range(300).selectExpr("concat('t', id % 3) AS topic", "cast(id AS string) AS value")
    write(df, root, **{"num.partitions": 2, "write.buffer.bytes": 200})
    everything = read(spark, root, subscribePattern="t[01]")
    assert {
        row.topic: row.n for row in everything.groupBy("topic").agg({"*": "count"}).toDF("topic", "n").collect()
    } == {
        "t0": 100,
        "t1": 100,
    }
    assert len({int(row.value) for row in read(spark, root, subscribe="t0,t1,t2").collect()}) == 300
    assert sparklog.open(root).topic("t2").log.state().version == 1
    write(df, root, topic="all")
    assert read(spark, f"{root}/all").count() == 300
    # For each write, the partition in which a task starts with keyless rows is random.
    assert read(spark, root, assign='{"t0":[0,1],"all":[0]}').select("topic").distinct().count() == 2


def test_a_null_topic_commits_nothing(spark: SparkSession, root: str) -> None:
    df = spark.range(10).selectExpr("if(id = 7, null, 't') AS topic", "'v' AS value")
    with pytest.raises(Exception, match=r"\[SPARKLOG_BAD_REQUEST\]: The topic column has a null"):
        write(df, root)
    assert all(sparklog.open(root).topic(name).log.state().log_end.sum() == 0 for name in sparklog.open(root).topics())


def test_topics_are_created_only_if_allowed(spark: SparkSession, root: str) -> None:
    off = {"auto.create.topics.enable": False}
    with pytest.raises(Exception, match="There is no sparklog root at"):
        write(keyed(spark, 1), root, topic="t", **off)
    sparklog.open(root, create=True).create_topic("made", partitions=5)
    with pytest.raises(
        Exception, match=r"'mad' does not exist.*did you mean 'made'.*auto\.create\.topics\.enable=true"
    ):
        write(keyed(spark, 1), root, topic="mad", **off)
    write(keyed(spark, 1), root, topic="made", **off, **{"num.partitions": 2})
    write(keyed(spark, 1), f"{root}/new", **{"num.partitions": 2})
    opened = sparklog.open(root)
    assert {name: opened.topic(name).log.state().partitions for name in opened.topics()} == {"made": 5, "new": 2}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(spark: SparkSession, root: str, codec: str) -> None:
    write(keyed(spark, 500), root, **{"topic": "t", "compression.type": codec})
    assert read(spark, root, subscribe="t").agg({"offset": "max"}).first()[0] == 499


def test_large_arrow_types(spark: SparkSession, root: str) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        headers = "array(struct('h' AS key, binary('x') AS value)) AS headers"
        df = spark.sql(f"SELECT 'k' AS key, binary('v') AS value, {headers}, 't' AS topic")
        write(df, root)
        row = read(spark, root, subscribe="t", includeHeaders=True).first()
        assert (row.key, row.value, [tuple(h) for h in row.headers]) == (b"k", b"v", [("h", b"x")])
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_ranges(spark: SparkSession, root: str) -> None:
    df = spark.range(100).selectExpr(
        "'v' AS value", "cast(id % 2 AS int) AS partition", "timestamp_millis(1700000000000 + id * 1000) AS timestamp"
    )
    write(df.coalesce(1), root, **{"topic": "t", "num.partitions": 2})

    def offsets(**options: str) -> dict[int, tuple[int, int]]:
        found = read(spark, root, "partition int, offset long", subscribe="t", **options)
        rows = found.groupBy("partition").agg({"offset": "min", "partition": "count"}).collect()
        return {row[0]: (row["min(offset)"], row["count(partition)"]) for row in rows}

    assert offsets() == {0: (0, 50), 1: (0, 50)}
    start, end = '{"t":{"0":10,"1":-2}}', '{"t":{"0":-1,"1":20}}'
    assert offsets(startingOffsets=start, endingOffsets=end) == {0: (10, 40), 1: (0, 20)}
    assert offsets(startingTimestamp="1700000050000", endingTimestamp="1700000060000") == {0: (25, 5), 1: (25, 5)}
    each = '{"t":{"0":1700000098000,"1":1700000001000}}'
    assert offsets(startingOffsetsByTimestamp=each) == {0: (49, 1), 1: (0, 50)}
    assert offsets(endingOffsetsByTimestamp=each) == {0: (0, 49)}


def test_min_partitions_and_max_records(spark: SparkSession, root: str) -> None:
    write(keyed(spark, 1000), root, **{"topic": "t", "num.partitions": 4})

    def tasks(**options: Any) -> list[int]:
        df = read(spark, root, subscribe="t", **options)
        return _task_sizes(df)

    assert tasks() == [1000]
    assert len(tasks(minPartitions=7)) >= 7
    sizes = tasks(maxRecordsPerPartition=90)
    assert max(sizes) <= 90
    assert sum(sizes) == 1000


def _task_sizes(df: DataFrame) -> list[int]:
    from pyspark.sql import functions as F  # noqa: N812

    return [row["count"] for row in df.groupBy(F.spark_partition_id()).count().collect()]


def test_a_thousand_partitions_are_a_few_tasks(spark: SparkSession, root: str) -> None:
    topic = sparklog.open(root, create=True).create_topic("wide", partitions=1000)
    topic.append(pa.table({"value": [b"v"] * 3000, "partition": pa.array([i % 1000 for i in range(3000)], pa.int32())}))
    df = read(spark, f"{root}/wide")
    assert df.count() == 3000
    assert len(_task_sizes(df)) <= 4


def test_txn_version_makes_a_batch_write_repeatable(
    spark: SparkSession, root: str, standard_error: StandardError
) -> None:
    for version in (3, 3, 2, 4):
        write(keyed(spark, 10), root, topic="t", txnAppId="job", txnVersion=version)
    write(keyed(spark, 10), root, topic="t", txnAppId="other", txnVersion=0)
    assert read(spark, root, subscribe="t").count() == 30
    write(keyed(spark, 10), root, topic="t")
    write(keyed(spark, 10), root, topic="t")
    assert read(spark, root, subscribe="t").count() == 50
    assert standard_error.shows("skipped")


def test_a_loaded_frame_reads_the_same_offsets_again(spark: SparkSession, root: str) -> None:
    write(keyed(spark, 10), root, topic="t")
    df = read(spark, root, subscribe="t")
    assert df.count() == 10
    write(keyed(spark, 10), root, topic="t")
    seen = 10 if SPARK >= (4, 1) else 20  # Spark 4.0 plans each use of a frame again
    assert (df.count(), read(spark, root, subscribe="t").count()) == (seen, 20)
    assert df.union(df.where("offset < 3")).count() == seen + 3


def test_deleted_records(spark: SparkSession, root: str, standard_error: StandardError) -> None:
    write(keyed(spark, 10), root, topic="t")
    planned = read(spark, root, subscribe="t")
    sparklog.open(root).topic("t").delete_records({0: 4})
    assert read(spark, root, subscribe="t").agg({"offset": "min"}).first()[0] == 4
    start = '{"t":{"0":1}}'
    with pytest.raises(
        Exception, match=r"\[SPARKLOG_NOT_FOUND\]: Offsets 1 to 3 of t-0 were deleted: the log starts at 4"
    ):
        read(spark, root, subscribe="t", startingOffsets=start).count()
    lenient = read(spark, root, subscribe="t", startingOffsets=start, failOnDataLoss=False)
    assert lenient.count() == 6
    assert standard_error.shows("Offsets 1 to 3 of t-0 were deleted")
    assert planned.count() == 6


def test_append_time(spark: SparkSession, root: str) -> None:
    topic = sparklog.open(root, create=True).create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
    write(spark.sql("SELECT 'v' AS value, timestamp'2001-01-01' AS timestamp"), root, topic="t")
    row = read(spark, root, subscribe="t").selectExpr("unix_millis(timestamp) AS ms", "timestampType").first()
    assert (row.ms, row.timestampType) == (topic.log.state().time_ms, 1)


def test_partitioned_puts_each_partition_in_one_task(spark: SparkSession, root: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    df = spark.range(2000).selectExpr("concat('k', id % 50) AS key", "cast(id AS string) AS value").repartition(5)
    shuffled = sparklog.partitioned(df, 4)
    assert shuffled.columns == ["key", "value"]
    write(shuffled.sortWithinPartitions(F.col("value").cast("int")), root, **{"topic": "t", "num.partitions": 4})
    topic = sparklog.open(root).topic("t")
    assert topic.describe().slices == 4
    rows = read(spark, root, subscribe="t").selectExpr("key", "int(string(value)) AS v", "partition", "offset")
    keys: dict[bytes, list[int]] = {}
    for row in rows.orderBy("partition", "offset").collect():
        keys.setdefault(bytes(row.key), []).append(row.v)
    assert all(values == sorted(values) for values in keys.values())
    explicit = spark.range(100).selectExpr("int(id % 4) AS partition", "'v' AS value")
    ids = sparklog.partitioned(explicit, 4).select("partition", F.spark_partition_id().alias("task")).distinct()
    tasks = {(row.partition, row.task) for row in ids.collect()}
    assert (tasks == {(p, p) for p in range(4)}) or (SPARK < (4, 1) and [p for p, _ in sorted(tasks)] == [0, 1, 2, 3])
    nulls = spark.range(100).selectExpr("cast(null AS binary) AS key", "'v' AS value")
    assert sparklog.partitioned(nulls, 4).select(F.spark_partition_id()).distinct().count() == 4 or SPARK < (4, 1)
    with pytest.raises(sparklog.BadRequest, match="Rows are partitioned by 'key' or 'partition'"):
        sparklog.partitioned(spark.range(1).toDF("value"), 4)


def test_register_works_beside_auto_registration(spark: SparkSession, root: str) -> None:
    write(keyed(spark, 3), root, topic="t")
    session = spark.newSession()
    sparklog.register(session)
    assert session.read.format("sparklog").load(f"{root}/t").count() == 3


def test_sql_views(spark: SparkSession, root: str) -> None:
    write(keyed(spark, 5), root, topic="t")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING sparklog OPTIONS (path '{root}', subscribe 't')")
    assert spark.sql("SELECT count(*) FROM v WHERE offset >= 2").first()[0] == 3


def test_a_backup_is_read_only(spark: SparkSession, root: str) -> None:
    place = f"{root}-backup"
    sparklog.open(root, create=True).create_topic("t").append({"value": ["x"]})
    sparklog.backup(root, place)
    sparklog.open(root).topic("t").append({"value": ["later"]})
    for df in (read(spark, place, subscribe="t"), read(spark, f"{place}/t")):
        assert [row.value for row in df.collect()] == [b"x"]
    with pytest.raises(Exception, match="backup repository, which is read-only"):
        write(keyed(spark, 1), place, topic="t")
