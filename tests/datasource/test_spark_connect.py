"""Spark Connect: batch and stream, both ways, in a process of its own (a client and a server are one per process)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.datasource import spark_session

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from tests.datasource.spark_session import SETTINGS

builder = SparkSession.builder.remote("local[2]")
for name, value in SETTINGS.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
root, checkpoint = sys.argv[1:]
df = spark.range(50).selectExpr("concat('k', id) AS key", "cast(id AS string) AS value")
df.write.format("sparklog").mode("append").option("topic", "t").option("num.partitions", 2).save(root)
assert spark.read.format("sparklog").load(root + "/t").count() == 50
import sparklog
shuffled = sparklog.partitioned(spark.read.format("sparklog").load(root + "/t").select("key", "value"), 2)
shuffled.write.format("sparklog").mode("append").option("topic", "u").option("num.partitions", 2).save(root)
assert spark.read.format("sparklog").load(root + "/u").count() == 50
stream = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(root + "/t")
writer = stream.select("key", "value").writeStream.format("sparklog").option("topic", "copy")
query = writer.option("path", root).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
assert query.awaitTermination(120)
copied = spark.read.format("sparklog").option("subscribe", "copy").load(root)
assert sorted(int(row.value) for row in copied.collect()) == list(range(50))
try:
    spark.read.format("sparklog").option("subscribe", "nope").load(root).count()
    raise SystemExit("a missing topic was no error")
except Exception as error:
    assert "[SPARKLOG_NOT_FOUND]: There is no topic 'nope'" in str(error), error
print("CONNECT WORKS")
spark.stop()
"""


@pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None or importlib.util.find_spec("pandas") is None,
    reason="Spark Connect needs grpcio and pandas: pip install 'sparklog[connect]'",
)
def test_batch_and_stream_over_connect(spark_folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "log"), str(tmp_path / "c")],
        env={**os.environ, **spark_session.environment(spark_folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "CONNECT WORKS" in done.stdout
