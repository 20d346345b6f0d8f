"""Pipeline with an AUTO CDC flow, which maintains the latest record of each key of a topic in a table."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
ROOT = spark.conf.get("example.root")


@dp.temporary_view
def changes() -> DataFrame:
    records = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{ROOT}/customers")
    return records.selectExpr("CAST(key AS STRING) AS customer", "CAST(value AS STRING) AS town", "offset")


dp.create_streaming_table("towns", format=spark.conf.get("example.format"))
dp.create_auto_cdc_flow(
    target="towns",
    source="changes",
    keys=["customer"],
    sequence_by="offset",
    apply_as_deletes="town IS NULL",
    except_column_list=["offset"],
    stored_as_scd_type=1,
)
