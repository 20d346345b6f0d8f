"""Stream-stream join: join views of advertisements with clicks that follow within 20 minutes."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from running import append, finish, read, start


def tail(spark: SparkSession, folder: str, topic: str) -> DataFrame:
    """Read the keys and timestamps of a topic as a stream, up to ten minutes out of order."""
    records = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{folder}/log/{topic}")
    return records.withWatermark("timestamp", "10 minutes").select("key", "timestamp")


def join_clicks(spark: SparkSession, folder: str) -> None:
    """Append each view to the topic `outcomes`, with its click or when a click can no longer follow."""
    views, clicks = tail(spark, folder, "views").alias("view"), tail(spark, folder, "clicks").alias("click")
    in_time = "click.timestamp BETWEEN view.timestamp AND view.timestamp + INTERVAL 20 MINUTES"
    joined = views.join(clicks, expr(f"view.key = click.key AND {in_time}"), "leftOuter")
    outcome = "coalesce(date_format(click.timestamp, 'HH:mm'), 'no click')"
    rows = joined.selectExpr("view.key", f"concat_ws(' ', date_format(view.timestamp, 'HH:mm'), {outcome}) AS value")

    writer = rows.writeStream.format("sparklog").option("path", f"{folder}/log").option("topic", "outcomes")
    finish(writer.option("checkpointLocation", f"{folder}/checkpoints/outcomes"))


def main(spark: SparkSession, folder: str) -> str:
    root = f"{folder}/log"
    append(root, "views", [("ad-1", None, "10:00"), ("ad-2", None, "10:01"), ("ad-3", None, "10:02")])
    append(root, "clicks", [("ad-1", None, "10:05"), ("ad-2", None, "10:30")])
    join_clicks(spark, folder)
    first = read(root, "outcomes")

    # These records advance the watermark to 10:30, so a click can no longer follow a view before 10:10.
    append(root, "views", [("ad-4", None, "10:40")])
    append(root, "clicks", [("ad-4", None, "10:41")])
    join_clicks(spark, folder)
    second = read(root, "outcomes")[len(first) :]
    return "\n".join(["first run:", *sorted(first), "second run:", *sorted(second)])


if __name__ == "__main__":
    start(main)
