"""A driver on a cluster: `python -m tests.datasource.cluster_driver <folder> <master> <root> <name> {}`.

The last argument contains additional Spark settings as JSON. The last line on stdout is the result of the scenario with
the given name, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparklog.format.kernels.kernel_choice import LOADING_IS_WORTH
from tests.datasource import spark_session
from tests.datasource.streams import copy, finish, source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 2000
BATCH_RECORDS = 150
MANY = 4 * LOADING_IS_WORTH
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.executor.cores": "1",
}
MARKS = "spark.sparklog.tests.marks"


def numbers(spark: SparkSession, tasks: int = 4) -> DataFrame:
    return spark.range(0, RECORDS, 1, tasks).selectExpr("cast(id as string) AS key", "cast(id as string) AS value")


def append(rows: DataFrame, root: str, **options: Any) -> None:
    rows.write.format("sparklog").options(**options).mode("append").save(root)


def calls(spark: SparkSession, root: str, folder: Path) -> Any:
    """Make the four calls, and write two topics in one transaction."""
    append(numbers(spark), root, topic="in", **{"num.partitions": 2})
    topic = spark.read.format("sparklog").option("subscribe", "in").load(root)
    checkpoint = folder / f"checkpoint-{os.getpid()}"
    finish(copy(source(spark, root, subscribe="in", maxOffsetsPerTrigger=700), root, checkpoint))
    append(numbers(spark).selectExpr("key", "value", "explode(array('a', 'b')) AS topic"), root)
    places = spark.sparkContext.parallelize(range(8), 8).map(lambda _: (time.sleep(0.2), os.getcwd())[1]).collect()
    # Use the executors of this application, like a job that finds a session.
    from sparklog.jobs import compact, retain, verify

    codes = [compact.main(["--root", root, "--roll"]), retain.main(["--root", root])]
    codes.append(verify.main(["--root", root, "--json"]))
    total = topic.selectExpr("count(*)", "sum(cast(cast(value AS string) AS long))").first()
    return {"read": list(total or ()), "executors": len(set(places)), "codes": codes}


def many(spark: SparkSession, root: str, folder: Path) -> Any:
    """Write so many records in each process that kernels are compiled."""
    rows = spark.range(0, MANY, 1, 2).selectExpr("cast(id as string) AS key", "cast(id as string) AS value")
    append(rows, root, topic="many", **{"num.partitions": 2})
    topic = spark.read.format("sparklog").option("subscribe", "many").load(root)
    return list(topic.selectExpr("count(*)", "sum(cast(cast(value AS string) AS long))").first() or ())


def copying(spark: SparkSession, root: str, folder: Path) -> Any:
    """Run many micro-batches from topic `in` to topic `out`, and print a line for each."""
    stream = copy(source(spark, root, subscribe="in", maxOffsetsPerTrigger=BATCH_RECORDS), root, folder / "copying")
    query = stream.trigger(availableNow=True).start()
    shown = -1
    while not query.awaitTermination(0.1):
        batch = (query.lastProgress or {"batchId": -1})["batchId"]
        if batch > shown:
            shown = batch
            print(f"batch {batch}", flush=True)
    return {"batches": shown + 1}


def attempts(marks: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step of a plan that records each attempt of a task."""

    def marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        marks.mkdir(exist_ok=True)
        (marks / f"{task.stageId()}-{task.partitionId()}-{task.attemptNumber()}-{task.taskAttemptId()}").touch()
        yield from batches
        # The tasks are long enough that each executor gets some.
        time.sleep(0.5)

    return marked


def speculative(spark: SparkSession, root: str, folder: Path) -> Any:
    """One task is slow in its first attempt. The speculative copy is faster, and both attempts write."""
    marks = Path(spark.conf.get(MARKS) or "")

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        yield from batches
        if task is not None and (task.partitionId(), task.attemptNumber()) == (3, 0):
            time.sleep(30)

    schema = "key string, value string"
    append(numbers(spark).mapInArrow(attempts(marks), schema).mapInArrow(slow, schema), root, topic="speculative")
    return sorted(mark.name for mark in marks.iterdir())


def retried_stage(spark: SparkSession, root: str, folder: Path) -> Any:
    """An executor dies during the stage that writes, and its shuffle files of the previous stage are lost."""
    marks = Path(spark.conf.get(MARKS) or "")

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            (marks / "died").touch(exist_ok=False)
        except FileExistsError:
            return
        # The executor's JVM is the parent of the daemon that forked this worker.
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(daemon[1]), signal.SIGKILL)
        time.sleep(60)

    schema = "key string, value string"
    shuffled = numbers(spark).mapInArrow(attempts(marks), schema).repartition(4)
    append(shuffled.mapInArrow(die_once, schema), root, topic="retried")
    return sorted(mark.name for mark in marks.iterdir())


SCENARIOS: dict[str, Callable[[SparkSession, str, Path], Any]] = {
    each.__name__: each for each in (calls, many, copying, speculative, retried_stage)
}


def main(folder: Path, master: str, root: str, scenario: str, more: dict[str, str]) -> None:
    # The hosts of a cluster have no credentials of their own.
    secrets = {f"spark.executorEnv.{name}": value for name, value in os.environ.items() if name.startswith("AWS_")}
    spark = spark_session.start(folder, **{"spark.master": master, **SETTINGS, **secrets, **more})
    result = SCENARIOS[scenario](spark, root, folder)
    spark.stop()
    print(f"\n{json.dumps(result)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
