"""JDBC out: write each micro-batch to a database table exactly once, even after a crash, using the batch id."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from running import append, finish, start

JOB = "payments-to-table"
TABLE = """
CREATE TABLE payments (
    batch VARCHAR(100), log_partition INT, log_offset BIGINT, customer VARCHAR(100), amount INT,
    PRIMARY KEY (batch, log_partition, log_offset)
)
"""


def database(folder: str) -> dict[str, str]:
    """Return options for Spark's JDBC source and sink. Derby is an embedded database that is part of Spark."""
    return {"url": f"jdbc:derby:{folder}/database;create=true", "driver": "org.apache.derby.jdbc.EmbeddedDriver"}


def rows(spark: SparkSession, folder: str, query: str) -> DataFrame:
    return spark.read.format("jdbc").options(**database(folder)).option("query", query).load()


def create_table(spark: SparkSession, folder: str) -> None:
    """Create the table with a statement that runs before a query. In your programs, use the tools of your database."""
    reader = spark.read.format("jdbc").options(**database(folder)).option("sessionInitStatement", TABLE)
    reader.option("query", "SELECT ibmreqd FROM sysibm.sysdummy1").load().collect()


def copy(spark: SparkSession, folder: str, crash: bool = False) -> None:
    """Copy payments to the table. If `crash` is True, fail after the table has a batch and before Spark has recorded
    it.
    """
    payments = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{folder}/log/payments")
    columns = ("`partition` AS log_partition", "`offset` AS log_offset", "CAST(key AS STRING) AS customer")
    amounts = payments.selectExpr(*columns, "CAST(CAST(value AS STRING) AS INT) AS amount")

    def write(batch: DataFrame, batch_id: int) -> None:
        name = f"{JOB}/{batch_id}"
        if rows(batch.sparkSession, folder, f"SELECT batch FROM payments WHERE batch = '{name}'").isEmpty():
            whole = batch.withColumn("batch", lit(name)).coalesce(1)  # one task, so one database transaction
            whole.write.format("jdbc").options(**database(folder), dbtable="payments").mode("append").save()
        if crash:
            raise RuntimeError("the power failed after the transaction")

    finish(amounts.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoints/payments"))


def copied(spark: SparkSession, folder: str) -> list[str]:
    table = rows(spark, folder, "SELECT * FROM payments").orderBy("log_partition", "log_offset")
    return [f"{row['BATCH']} {row['LOG_OFFSET']} {row['CUSTOMER']} {row['AMOUNT']}" for row in table.collect()]


def main(spark: SparkSession, folder: str) -> str:
    append(f"{folder}/log", "payments", [("anna", "20", "10:00"), ("ben", "300", "10:01")])
    create_table(spark, folder)
    try:
        copy(spark, folder, crash=True)
    except Exception as error:  # noqa: BLE001  (Spark wraps exceptions of foreachBatch)
        reason = "the power failed" if "the power failed" in str(error) else repr(error)
    crashed = copied(spark, folder)

    copy(spark, folder)
    second = copied(spark, folder)

    append(f"{folder}/log", "payments", [("dora", "700", "10:03")])
    copy(spark, folder)
    third = copied(spark, folder)
    return "\n".join([f"crash: {reason}", *crashed, "started again:", *second, "one payment later:", *third])


if __name__ == "__main__":
    start(main)
