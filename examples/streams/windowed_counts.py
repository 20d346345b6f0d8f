"""Windowed counts: count clicks per ten minutes, write each count once, and drop late records."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, window
from running import append, finish, read, start


def count_clicks(spark: SparkSession, folder: str) -> int:
    """Append the counts of complete windows to the topic `windows`. Return the number of dropped late rows."""
    clicks = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{folder}/log/clicks")
    pages = clicks.select(col("value").cast("string").alias("page"), "timestamp").withWatermark(
        "timestamp", "5 minutes"
    )
    counts = pages.groupBy(window("timestamp", "10 minutes"), "page").count()
    rows = counts.selectExpr("page AS key", "concat_ws(' ', date_format(window.start, 'HH:mm'), count) AS value")

    writer = rows.writeStream.format("sparklog").option("path", f"{folder}/log").option("topic", "windows")
    query = finish(writer.option("checkpointLocation", f"{folder}/checkpoints/windows"))
    return sum(
        state["numRowsDroppedByWatermark"] for batch in query.recentProgress for state in batch["stateOperators"]
    )


def main(spark: SparkSession, folder: str) -> str:
    root = f"{folder}/log"
    append(root, "clicks", [(None, "/home", "10:01"), (None, "/cart", "10:04"), (None, "/home", "10:08")])
    append(root, "clicks", [(None, "/home", "10:16")])
    dropped = count_clicks(spark, folder)
    first = read(root, "windows")

    # The latest timestamp is 10:16, so the watermark is 10:11, and windows that end before 10:11 are complete.
    in_time, too_late = (None, "/cart", "10:12"), (None, "/home", "10:09")
    append(root, "clicks", [in_time, too_late, (None, "/home", "10:27")])
    dropped_later = count_clicks(spark, folder)
    second = read(root, "windows")[len(first) :]
    lines = [f"first run, {dropped} dropped:", *sorted(first), f"second run, {dropped_later} dropped:", *sorted(second)]
    return "\n".join(lines)


if __name__ == "__main__":
    start(main)
