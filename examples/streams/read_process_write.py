"""Read, process, write: process orders from two topics and write to three others atomically, even if killed."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import array, col, explode, lit, split, struct, when
from running import append, finish, read, start

OUTPUTS = ("alerts", "invoices", "shipments")


def process(spark: SparkSession, folder: str) -> None:
    """Write an invoice and a shipment for each order, and an alert if it is expensive, in one transaction."""
    source = spark.readStream.format("sparklog").option("startingOffsets", "earliest")
    orders = source.option("subscribe", "web-orders,shop-orders").load(f"{folder}/log")
    fields = split(col("value").cast("string"), " ")
    item, price = fields[0], fields[1]
    expensive = when(price.cast("decimal(9,2)") >= 100, lit("alerts"))
    records = orders.select(
        "key",
        explode(
            array(
                struct(lit("shipments").alias("topic"), item.alias("value")),
                struct(lit("invoices").alias("topic"), price.alias("value")),
                struct(expensive.alias("topic"), item.alias("value")),
            )
        ).alias("record"),
    )
    writer = records.select("key", "record.*").where("topic IS NOT NULL").writeStream.format("sparklog")
    finish(writer.option("path", f"{folder}/log").option("checkpointLocation", f"{folder}/checkpoints/orders"))


def remove_batch_commit(folder: str) -> None:
    """Simulate a kill after the sink has committed and before Spark's checkpoint records the micro-batch."""
    for name in ("0", ".0.crc"):
        Path(folder, "checkpoints", "orders", "commits", name).unlink(missing_ok=True)


def outputs(folder: str) -> list[str]:
    return [f"{topic}: {', '.join(sorted(read(f'{folder}/log', topic)))}" for topic in OUTPUTS]


def main(spark: SparkSession, folder: str) -> str:
    root = f"{folder}/log"
    append(root, "web-orders", [("anna", "book 12.50", "10:00"), ("ben", "desk 310.00", "10:01")])
    append(root, "shop-orders", [("carl", "lamp 80.00", "10:01")])
    process(spark, folder)
    first = outputs(folder)

    remove_batch_commit(folder)
    process(spark, folder)
    replayed = outputs(folder)

    append(root, "shop-orders", [("dora", "sofa 940.00", "10:05")])
    process(spark, folder)
    lines = ["first run:", *first, "killed, and run again: " + ("the same" if replayed == first else str(replayed))]
    return "\n".join([*lines, "one order later:", *outputs(folder)])


if __name__ == "__main__":
    start(main)
