"""Spark Connect: batches and streams in both directions, and the lag of a group, in a separate process."""

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
assert sparklog.read(spark, root, topic="t", columns=["offset"]).columns == ["offset"]
shuffled = sparklog.partitioned(spark.read.format("sparklog").load(root + "/t").select("key", "value"), 2)
shuffled.write.format("sparklog").mode("append").option("topic", "u").option("num.partitions", 2).save(root)
assert spark.read.format("sparklog").load(root + "/u").count() == 50
stream = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(root + "/t")
writer = stream.select("key", "value").writeStream.format("sparklog").option("topic", "copy")
query = writer.option("path", root).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
assert query.awaitTermination(400)
copied = spark.read.format("sparklog").option("subscribe", "copy").load(root)
assert sorted(int(row.value) for row in copied.collect()) == list(range(50))
from sparklog.groups.lag import Groups
from sparklog.groups.lag import lag
from tests.datasource.streams import wait_for
group = Groups(root).group("g")
group.alter({"t": {0: 3, 1: 4}})
options = {"kafka.group.id": "g", "startingOffsets": "group"}
assert spark.read.format("sparklog").options(**options).load(root + "/t").count() == 43
lines = []
lags = sparklog.watch(spark, tell=lines.append)
stream = spark.readStream.format("sparklog").options(**options).option("maxOffsetsPerTrigger", 30).load(root + "/t")
writer = stream.writeStream.format("noop").queryName("q").option("checkpointLocation", checkpoint + ".group")
query = writer.trigger(processingTime="0 seconds").start()
from sparklog.datasource.spark_versions import READ_LIMITS
if READ_LIMITS:
    assert wait_for(lambda: lines and lines[-1].endswith(": 0 offsets behind latest (t 0)")), lines
    assert lines[0].startswith("query q, batch 0: ") and ": 0 offsets" not in lines[0], lines
assert wait_for(lambda: sum(row.lag for row in lag(sparklog.open(root), ["g"])) == 0)
assert (group.description().state, [item.behind for item in lags()]) == ("Stable", [0] if READ_LIMITS else [])
query.stop()
assert wait_for(lambda: lags() == [])
lags.stop()
try:
    spark.read.format("sparklog").option("subscribe", "nope").load(root).count()
    raise SystemExit("a missing topic was no error")
except Exception as error:
    assert "[SPARKLOG_NOT_FOUND]: There is no topic 'nope'" in str(error), error
print("CONNECT WORKS")
spark.stop()
"""


@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("connect_port")
@pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None or importlib.util.find_spec("pandas") is None,
    reason="Spark Connect needs grpcio and pandas: pip install 'sparklog[connect]'",
)
@pytest.mark.slow
@pytest.mark.usefixtures("spark_folder")
def test_batch_and_stream_over_connect(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "log"), str(tmp_path / "c")],
        env={**os.environ, **spark_session.environment()},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "CONNECT WORKS" in done.stdout
