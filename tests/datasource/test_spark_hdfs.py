"""Spark with a root in HDFS: the four calls of the README, in separate processes. Slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.minicluster import MiniCluster

pytestmark = [pytest.mark.slow]


def test_four_calls_on_a_root_in_hdfs(spark: SparkSession, minicluster: MiniCluster, tmp_path: Path) -> None:
    location = f"{minicluster.url}/spark/log"
    clicks = spark.createDataFrame([("anna", "/home"), ("carl", "/cart")], "key string, value string")
    clicks.write.format("sparklog").option("topic", "clicks").mode("append").save(location)
    seen = spark.read.format("sparklog").load(f"{location}/clicks")
    assert sorted(bytes(row.value) for row in seen.collect()) == [b"/cart", b"/home"]
    tail = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{location}/clicks")
    copy = tail.select("key", "value").writeStream.format("sparklog").option("topic", "clicks-copy")
    for _ in range(2):
        query = copy.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start(location)
        query.awaitTermination()
    copied = spark.read.format("sparklog").load(f"{location}/clicks-copy")
    assert sorted(bytes(row.value) for row in copied.collect()) == [b"/cart", b"/home"]
