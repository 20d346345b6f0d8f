"""Word count: count the words of a topic's lines, and keep the latest counts in a compacted topic."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, explode, lit, split
from running import append, finish, read, start


def count_words(spark: SparkSession, folder: str) -> None:
    """Count the words of all lines. Append each changed count to the compacted topic `counts`, exactly once."""
    lines = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{folder}/log/lines")
    words = lines.select(explode(split(col("value").cast("string"), " ")).alias("key"))
    counts = words.groupBy("key").agg(count(lit(1)).cast("string").alias("value"))

    def upsert(batch: DataFrame, batch_id: int) -> None:
        once = {"txnAppId": "word-count", "txnVersion": batch_id}
        topic = {"topic": "counts", "topic.cleanup.policy": "compact"}
        batch.orderBy("key").write.format("sparklog").options(**once, **topic).mode("append").save(f"{folder}/log")

    writer = counts.writeStream.outputMode("update").foreachBatch(upsert)
    finish(writer.option("checkpointLocation", f"{folder}/checkpoints/word-count"))


def main(spark: SparkSession, folder: str) -> str:
    root = f"{folder}/log"
    append(root, "lines", [(None, "all streams lead to kafka", "10:00"), (None, "hello kafka streams", "10:01")])
    count_words(spark, folder)
    first = read(root, "counts")

    # As after a restart, the checkpoint contains the offsets that were read and all counts.
    append(root, "lines", [(None, "join kafka summit", "10:02")])
    count_words(spark, folder)
    second = read(root, "counts")[len(first) :]
    return "\n".join(["first run:", *first, "second run:", *second])


if __name__ == "__main__":
    start(main)
