"""Bad records: write valid JSON to one topic, and all other records to a dead-letter topic with reason and offset."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.functions import array, col, concat_ws, from_json, lit, struct, to_json, when
from running import append, finish, start

import sparklog

SCHEMA = "id BIGINT, item STRING, price DECIMAL(9,2), _corrupt STRING"
KEEP_BAD = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}


def separate(spark: SparkSession, folder: str) -> None:
    """Send each record to `orders` or to `orders-dead`, with one query and one transaction across both topics."""
    raw = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{folder}/log/orders-raw")
    parsed = raw.withColumn("order", from_json(col("value").cast("string"), SCHEMA, KEEP_BAD))
    reason = (
        when(col("value").isNull(), "no value")
        .when(col("order._corrupt").isNotNull(), "not JSON of the schema")
        .when(col("order.id").isNull(), "no id")
        .when(col("order.price") < 0, concat_ws(" ", lit("negative price"), col("order.price")))
    )
    checked = parsed.withColumn("reason", reason)
    names = ("topic", "partition", "offset", "reason")
    headers = [struct(lit(name).alias("key"), col(name).cast("string").cast("binary").alias("value")) for name in names]
    good = col("reason").isNull()
    records = checked.select(
        "key",
        when(good, lit("orders")).otherwise(lit("orders-dead")).alias("topic"),
        when(good, to_json(col("order")).cast("binary")).otherwise(col("value")).alias("value"),
        when(~good, array(*headers)).alias("headers"),
    )
    writer = records.writeStream.format("sparklog").option("includeHeaders", True).option("path", f"{folder}/log")
    finish(writer.option("checkpointLocation", f"{folder}/checkpoints/separate"))


def show(root: str, topic: str) -> list[str]:
    """Return the values and headers of a topic as lines, with plain Python."""
    lines = []
    for row in sparklog.open(root).topic(topic).scan(columns=["value", "headers"]).to_table().to_pylist():
        value = "null" if row["value"] is None else row["value"].decode()
        headers = ", ".join(f"{header['key']} {header['value'].decode()}" for header in row["headers"] or ())
        lines.append(f"{value}  ({headers})" if headers else value)
    return lines


def main(spark: SparkSession, folder: str) -> str:
    values = [
        '{"id": 1, "item": "book", "price": 12.50}',
        '{"id": 2, "item": "desk", "price": "cheap"}',
        '{"id": 3, "item": "la',
        '{"item": "lamp", "price": 80}',
        None,
        '{"id": 4, "item": "sofa", "price": -1}',
        '{"id": 5, "item": "chair"}',
    ]
    append(f"{folder}/log", "orders-raw", [("shop", value, "10:00") for value in values])
    separate(spark, folder)
    root = f"{folder}/log"
    return "\n".join(["orders:", *show(root, "orders"), "orders-dead:", *show(root, "orders-dead")])


if __name__ == "__main__":
    start(main)
