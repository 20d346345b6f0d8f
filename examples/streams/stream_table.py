"""Stream-table join: join each order with the current city of its customer, from a topic of changes."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import max_by
from running import append, finish, read, start


def latest(changes: DataFrame) -> DataFrame:
    """Return the latest value of each key. A key whose latest value is null (a tombstone) is deleted."""
    return changes.groupBy("key").agg(max_by("value", "offset").alias("city")).where("city IS NOT NULL")


def add_cities(spark: SparkSession, folder: str) -> None:
    """Append each order with its customer's city to the topic `deliveries`, exactly once."""
    orders = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{folder}/log/orders")

    def join(batch: DataFrame, batch_id: int) -> None:
        customers = latest(batch.sparkSession.read.format("sparklog").load(f"{folder}/log/customers"))
        joined = batch.join(customers, "key", "left").orderBy("partition", "offset")
        deliveries = joined.selectExpr("key", "concat_ws(' to ', value, coalesce(city, encode('?', 'UTF-8'))) AS value")
        once = {"txnAppId": "deliveries", "txnVersion": batch_id, "topic": "deliveries"}
        deliveries.write.format("sparklog").options(**once).mode("append").save(f"{folder}/log")

    finish(orders.writeStream.foreachBatch(join).option("checkpointLocation", f"{folder}/checkpoints/deliveries"))


def main(spark: SparkSession, folder: str) -> str:
    root = f"{folder}/log"
    append(root, "customers", [("anna", "Berlin", "09:00"), ("ben", "Paris", "09:01"), ("anna", "Rome", "09:02")])
    append(root, "orders", [("anna", "lamp", "10:00"), ("carl", "desk", "10:01"), ("ben", "sofa", "10:02")])
    add_cities(spark, folder)
    first = read(root, "deliveries")

    append(root, "customers", [("carl", "Oslo", "11:00"), ("ben", None, "11:01")])
    append(root, "orders", [("carl", "book", "11:02"), ("ben", "pen", "11:03")])
    add_cities(spark, folder)
    second = read(root, "deliveries")[len(first) :]
    return "\n".join(["first run:", *first, "second run:", *second])


if __name__ == "__main__":
    start(main)
