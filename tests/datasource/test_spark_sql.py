"""Tables of Spark's catalog in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparklog
from tests.datasource.streams import insert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_create_select_insert_and_drop(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "log"
    rows = spark.createDataFrame([("anna", "book")], "key string, value string")
    rows.write.format("sparklog").option("topic", "orders").mode("append").save(str(root))

    def keys(table: str, more: str = "") -> list[str]:
        found = spark.sql(f"SELECT CAST(key AS STRING) AS key FROM {table} {more} ORDER BY offset")
        return [row.key for row in found.collect()]

    spark.sql(
        f"CREATE TABLE by_option USING sparklog OPTIONS (path '{root}', subscribe 'orders', 'num.partitions' '1')"
    )
    spark.sql(f"CREATE TABLE by_place USING sparklog LOCATION '{root}/orders' COMMENT 'c' TBLPROPERTIES ('mine' = '1')")
    spark.sql(insert("by_option", "ben", "lamp"))
    spark.sql(insert("by_place", "carl", "lamp"))
    assert keys("by_option") == keys("by_place") == ["anna", "ben", "carl"]
    assert keys("by_place", """WITH ('startingOffsets' = '{"orders":{"0":2}}')""") == ["carl"]

    # The first INSERT creates the topic with its configs, if it does not exist.
    spark.sql(f"CREATE TABLE fresh USING sparklog OPTIONS (path '{root}', topic 'fresh', 'topic.retention.ms' '-1')")
    spark.sql(insert("fresh", "dora", "lamp"))
    assert keys("fresh") == ["dora"]
    assert sparklog.open(str(root)).topic("fresh").log.state().configs.explicit == {"retention.ms": "-1"}

    for wrong, expected in {
        f"CREATE TABLE x USING sparklog OPTIONS (path '{root}')": "is a root: set the topics of the table",
        f"CREATE TABLE x USING sparklog OPTIONS (path '{root}', topic 'x') AS SELECT 'v' AS value": "or AS SELECT",
        insert("by_place", "k", "v", "INSERT OVERWRITE"): "append-only",
        f"SELECT * FROM sparklog.`{root}/orders`": "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY",
    }.items():
        with pytest.raises(Exception, match=expected):
            spark.sql(wrong)
    for table in ("by_option", "by_place", "fresh"):
        spark.sql(f"DROP TABLE {table}")
    assert sparklog.open(str(root)).topic("orders").log.state().version > 0
    assert not spark.catalog.tableExists("x")
