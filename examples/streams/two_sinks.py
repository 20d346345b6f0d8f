"""Two sinks: write each micro-batch to a topic and to Parquet exactly once, even after a crash between the writes."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from running import append, finish, read, start


def copy(spark: SparkSession, folder: str, crash: bool = False) -> None:
    """Copy payments to the topic `large-payments` and to Parquet. If `crash` is True, fail between the two writes."""
    payments = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{folder}/log/payments")
    amounts = payments.select(col("key").cast("string"), col("value").cast("string").cast("int").alias("amount"))

    def write_both(batch: DataFrame, batch_id: int) -> None:
        batch.persist()  # read and decode the batch once for both writes
        once = {"txnAppId": "large-payments", "txnVersion": batch_id}
        large = batch.where("amount >= 100").selectExpr("key", "CAST(amount AS STRING) AS value")
        large.write.format("sparklog").options(**once, topic="large-payments").mode("append").save(f"{folder}/log")
        if crash:
            raise RuntimeError("the power failed between the two sinks")
        batch.write.mode("overwrite").parquet(f"{folder}/payments/batch={batch_id}")
        batch.unpersist()

    finish(amounts.writeStream.foreachBatch(write_both).option("checkpointLocation", f"{folder}/checkpoints/payments"))


def copied(spark: SparkSession, folder: str) -> list[str]:
    rows = spark.read.parquet(f"{folder}/payments").orderBy("batch", "key").collect()
    files = ", ".join(f"batch {row.batch}: {row.key} {row.amount}" for row in rows)
    return [f"topic: {', '.join(read(f'{folder}/log', 'large-payments'))}", f"files: {files}"]


def main(spark: SparkSession, folder: str) -> str:
    root = f"{folder}/log"
    append(root, "payments", [("anna", "20", "10:00"), ("ben", "300", "10:01"), ("carl", "150", "10:02")])
    try:
        copy(spark, folder, crash=True)
    except Exception as error:  # noqa: BLE001  (Spark wraps exceptions of foreachBatch)
        reason = "the power failed" if "the power failed" in str(error) else repr(error)
    crashed = [f"crash: {reason}", f"topic: {', '.join(read(root, 'large-payments'))}"]

    copy(spark, folder)
    second = copied(spark, folder)

    append(root, "payments", [("dora", "700", "10:03")])
    copy(spark, folder)
    return "\n".join([*crashed, "started again:", *second, "one payment later:", *copied(spark, folder)])


if __name__ == "__main__":
    start(main)
