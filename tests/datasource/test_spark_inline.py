"""Spark tasks send small results to the driver, which stores them in the commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparklog
from sparklog.log.journal.documents import INLINE_RECORDS
from sparklog.storage.local import LocalStore
from sparklog.tools.verification.run import verify_root
from tests.datasource.streams import copy, feed, finish, forget_commit, source, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def append_files(root: str, topic: str) -> int:
    return len(list(Path(root, topic).glob("append/*.slices")))


def test_a_micro_batch_of_small_tasks_is_one_object(spark: SparkSession, root: str, tmp_path: Path) -> None:
    opened = sparklog.open(root, create=True)
    opened.create_topic("out", partitions=3, configs={"inline.records.bytes": 16384})
    feed(root, "in", range(60))
    query = finish(copy(source(spark, f"{root}/in", minPartitions=4), root, tmp_path / "c"))
    assert values(root, "out") == list(range(60))
    assert append_files(root, "out") == 0
    state = sparklog.open(root).topic("out").log.state()
    assert INLINE_RECORDS in state.read_features
    forget_commit(tmp_path / "c", 0)
    finish(copy(source(spark, f"{root}/in", minPartitions=7), root, tmp_path / "c"))
    assert values(root, "out") == list(range(60))
    assert state.registry[query.id].batch == 0
    frame = spark.range(200).selectExpr("cast(id as string) value").repartition(8)
    frame.write.format("sparklog").option("topic", "out").mode("append").save(root)
    assert spark.read.format("sparklog").option("subscribe", "out").load(root).count() == 260
    assert append_files(root, "out") == 0
    large = spark.range(20_000).selectExpr("cast(id as string) value").repartition(8)
    large.write.format("sparklog").option("topic", "out").mode("append").save(root)
    assert append_files(root, "out") > 0
    assert sparklog.open(root).topic("out").count().records == 20_260
    assert verify_root(LocalStore(root)).findings == ()
