"""The four calls, and tables in SQL, on a bucket: nothing of it lies on a disk but the stream's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparklog
from sparklog.storage.locations import join
from tests.datasource.streams import copy, source, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_four_calls_and_a_table(spark: SparkSession, bucket: str, tmp_path: Path) -> None:
    location = join(bucket, "log")
    plain, _, endpoint = location.partition("?endpoint=")
    settings = {"endpoint": endpoint, "fs.s3a.path.style.access": "true"}
    rows = spark.createDataFrame([(str(n), str(n)) for n in range(20)], "key string, value string")
    rows.write.format("sparklog").option("topic", "in").mode("append").save(location)
    rows.write.format("sparklog").options(**settings).option("topic", "in").mode("append").save(plain)
    assert spark.read.format("sparklog").load(join(location, "in")).count() == 40
    assert spark.read.format("sparklog").options(**settings).load(f"{plain}/in").count() == 40
    for _ in range(2):
        stream = source(spark, join(location, "in"))
        query = copy(stream, location, tmp_path / "checkpoint").trigger(availableNow=True).start(location)
        query.awaitTermination()
    assert values(location, "out") == sorted([*range(20), *range(20)])

    spark.sql(f"CREATE TABLE bucket_url USING sparklog OPTIONS (path '{location}', subscribe 'in')")
    given = ", ".join(f"'{name}' '{value}'" for name, value in settings.items())
    spark.sql(f"CREATE TABLE bucket_options USING sparklog OPTIONS (path '{plain}/in', {given})")
    for table in ("bucket_url", "bucket_options"):
        spark.sql(f"INSERT INTO {table} (value) VALUES (CAST('20' AS BINARY))")
        assert spark.sql(f"SELECT * FROM {table} WHERE value = CAST('20' AS BINARY)").count() == 1
        spark.sql(f"DROP TABLE {table}")
        sparklog.open(location).topic("in").delete_records({0: -1})
