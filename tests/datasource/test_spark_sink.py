"""The streaming sink through Spark writes each batch once, regardless of changes to the checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparklog
from tests.datasource.streams import (
    WAIT_SECONDS,
    copy,
    failure,
    feed,
    finish,
    forget_commit,
    source,
    stored_offset,
    values,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def version(root: str, topic: str = "out") -> int:
    return sparklog.open(root).topic(topic).log.state().version


def test_a_replayed_batch_changes_nothing_also_with_another_task_layout(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    feed(root, "in", range(60))
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    before = sparklog.open(root).topic("out").log.snapshot()
    forget_commit(tmp_path / "c", 0)
    query = finish(copy(source(spark, f"{root}/in", minPartitions=7), root, tmp_path / "c"))
    assert query.recentProgress[0]["numInputRows"] == 60
    after = sparklog.open(root).topic("out").log.snapshot()
    assert after.state.log_end.tolist() == before.state.log_end.tolist()
    assert len(after.slices.all()) == len(before.slices.all())
    assert after.state.registry[query.id].run == query.runId
    feed(root, "in", range(60, 70))
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    assert values(root, "out") == list(range(70))


def test_forced_asynchronous_progress_is_rejected_without_data_loss(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    feed(root, "in", range(5))
    forced = {"asyncProgressTrackingEnabled": True, "_asyncProgressTrackingOverrideSinkSupportCheck": True}
    query = (
        copy(source(spark, f"{root}/in"), root, tmp_path / "c", **forced).trigger(processingTime="0 seconds").start()
    )
    with pytest.raises(Exception, match="'asyncProgressTrackingEnabled' is not supported: a restarted query"):
        query.awaitTermination(WAIT_SECONDS)
    assert "out" not in sparklog.open(root).topics()
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    assert values(root, "out") == list(range(5))


def test_an_empty_batch_writes_no_commit(spark: SparkSession, root: str, tmp_path: Path) -> None:
    sparklog.open(root, create=True).create_topic("in")
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    assert version(root) == 0
    assert (tmp_path / "c" / "commits" / "0").exists()
    feed(root, "in", range(3))
    filtered = source(spark, f"{root}/in").where("offset < 0")
    finish(copy(filtered, root, tmp_path / "c"))
    assert version(root) == 0
    assert stored_offset(tmp_path / "c", 1)["in"] == {"0": 3}


def test_a_restored_checkpoint_is_an_error_and_never_a_silent_skip(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    def run(numbers: range) -> None:
        feed(root, "in", numbers)
        finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))

    run(range(10))
    shutil.copytree(tmp_path / "c", tmp_path / "old")
    run(range(10, 20))
    shutil.copytree(tmp_path / "c", tmp_path / "one-back")
    run(range(20, 25))
    older = failure(copy(source(spark, f"{root}/in"), root, tmp_path / "old"))
    assert "[SPARKLOG_CONFLICT]: the checkpoint is older than the log" in older
    assert "continue with a new txnAppId" in older
    feed(root, "in", range(25, 27))
    back = failure(copy(source(spark, f"{root}/in"), root, tmp_path / "one-back"))
    assert "[SPARKLOG_CONFLICT]: replay mismatch" in back
    assert values(root, "out") == list(range(25))
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    assert values(root, "out") == list(range(27))


def test_a_replay_of_another_size_is_accepted_if_configured(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(10))
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    forget_commit(tmp_path / "c", 0)
    fewer = source(spark, f"{root}/in").where("offset > 1")
    assert "replay mismatch" in failure(copy(fewer, root, tmp_path / "c"))
    finish(copy(fewer, root, tmp_path / "c", replayMismatch="accept"))
    assert values(root, "out") == list(range(10))


def test_a_replay_without_rows_against_some_is_a_mismatch(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(10))
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    forget_commit(tmp_path / "c", 0)
    assert "replay mismatch" in failure(copy(source(spark, f"{root}/in").where("offset < 0"), root, tmp_path / "c"))


@pytest.mark.slow
def test_a_deleted_checkpoint_is_a_new_query_unless_it_has_a_name(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    feed(root, "in", range(10))

    def named() -> Any:
        return copy(source(spark, f"{root}/in"), root, tmp_path / "n", topic="named", txnAppId="app")

    for _ in range(2):
        finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
        shutil.rmtree(tmp_path / "c")
    assert values(root, "out") == sorted([*range(10), *range(10)])
    finish(named())
    feed(root, "in", range(10, 15))
    finish(named())
    shutil.rmtree(tmp_path / "n")
    assert "checkpoint is older than the log" in failure(named())
    assert values(root, "named") == list(range(15))


def test_two_writes_in_one_foreach_batch_are_both_committed(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(10))

    def twice(df: DataFrame, batch: int) -> None:
        for _ in range(2):
            df.select("key", "value").write.format("sparklog").mode("append").option("topic", "out").save(root)
        named = df.select("key", "value").write.format("sparklog").mode("append").option("topic", "once")
        named.options(txnAppId="app", txnVersion=batch).save(root)

    def run() -> None:
        stream = source(spark, f"{root}/in").writeStream.foreachBatch(twice)
        finish(stream.option("checkpointLocation", str(tmp_path / "c")))

    run()
    assert values(root, "out") == sorted([*range(10), *range(10)])
    forget_commit(tmp_path / "c", 0)
    run()
    assert len(values(root, "out")) == 40
    assert values(root, "once") == list(range(10))


@pytest.mark.slow
def test_complete_mode_appends_each_result(spark: SparkSession, root: str, tmp_path: Path) -> None:
    def query(checkpoint: str, mode: str) -> Any:
        counts = source(spark, f"{root}/in").groupBy().count()
        keyed = counts.selectExpr("'all' AS key", "cast(count AS string) AS value")
        return copy(keyed, root, tmp_path / checkpoint).outputMode(mode)

    for numbers in (range(10), range(10, 15)):
        feed(root, "in", numbers)
        finish(query("c", "complete"))
    assert values(root, "out") == [10, 15]
    with pytest.raises(Exception, match="does not support Update mode"):
        finish(query("u", "update"))


def test_several_topics_exactly_once_each(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(30))
    routed = source(spark, f"{root}/in").selectExpr("key", "value", "concat('t', int(string(value)) % 3) AS topic")

    def query(df: DataFrame) -> Any:
        writer = df.writeStream.format("sparklog").option("path", root)
        return writer.option("checkpointLocation", str(tmp_path / "c")).option("num.partitions", 2)

    finish(query(routed))
    topics = ("t0", "t1", "t2")
    assert [values(root, topic) for topic in topics] == [list(range(n, 30, 3)) for n in range(3)]
    forget_commit(tmp_path / "c", 0)
    finish(query(routed))
    assert sum(len(values(root, topic)) for topic in topics) == 30
    forget_commit(tmp_path / "c", 0)
    assert "replay mismatch" in failure(query(routed.where("topic != 't2'")))
    feed(root, "in", range(30, 33))
    finish(query(routed))
    assert sum(len(values(root, topic)) for topic in topics) == 33


def test_a_null_topic_stops_the_query_before_anything_is_published(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    feed(root, "in", range(30))
    routed = source(spark, f"{root}/in").selectExpr("value", "if(string(value) = '7', null, 't') AS topic")
    writer = routed.writeStream.format("sparklog").option("checkpointLocation", str(tmp_path / "c"))
    assert "[SPARKLOG_BAD_REQUEST]: The topic column has a null" in failure(writer.option("path", root))
    assert all(
        sum(sparklog.open(root).topic(t).log.state().log_end) == 0 for t in ("t",) if t in sparklog.open(root).topics()
    )


def test_a_wrong_option_surfaces_at_the_first_batch(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(3))
    message = failure(copy(source(spark, f"{root}/in"), root, tmp_path / "c", **{"compresion.type": "lz4"}))
    assert "[SPARKLOG_BAD_REQUEST]: Unknown option 'compresion.type': did you mean 'compression.type'?" in message
