"""Pipeline that reads a topic into a table, maintains the latest town of each customer, and writes moves to a topic."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

spark = SparkSession.active()
ROOT = spark.conf.get("example.root")


@dp.table(comment="All records of the topic `customers`, each read once.")
def changes() -> DataFrame:
    records = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{ROOT}/customers")
    return records.selectExpr("CAST(key AS STRING) AS customer", "CAST(value AS STRING) AS town", "offset")


@dp.materialized_view(comment="The latest town of each customer, without deleted customers.")
def towns() -> DataFrame:
    latest = spark.read.table("changes").groupBy("customer").agg(expr("max_by(town, offset)").alias("town"))
    return latest.where("town IS NOT NULL")


dp.create_sink("moves", "sparklog", {"path": ROOT, "topic": "moves"})


@dp.append_flow(target="moves")
def to_moves() -> DataFrame:
    moved = spark.readStream.table("changes").where("town IS NOT NULL")
    return moved.selectExpr("customer AS key", "concat('to ', town) AS value")
