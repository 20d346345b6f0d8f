"""What users call: `sparklog.register(spark)` and `sparklog.partitioned(df, n)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparklog.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_COLUMN = "__sparklog_partition"


def register(spark: SparkSession) -> None:
    """Make the format `sparklog` known to a session. Needed only where Spark does not find `pyspark_sparklog` by
    itself.

    That is so with `--py-files`, and where any other module named `pyspark_*` cannot be imported: Spark then silently
    knows none of them.
    """
    from sparklog.datasource.source import SparklogDataSource

    spark.dataSource.register(SparklogDataSource)


def partitioned(df: DataFrame, n: int) -> DataFrame:
    """`df` shuffled so that all rows of one log partition are in one task, `n` being the topic's number of partitions.

    Rows go by their `partition` column where that is not null, else by murmur2 of the key as the sink itself does. So
    the order of a key's rows holds over a whole write, and a task writes for one partition: what a topic with very
    many partitions needs. Rows without either are spread evenly. Raises BadRequest without a `key` or `partition`
    column.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if n < 1:
        raise BadRequest(f"The number of partitions must be at least 1; found {n}")
    columns = {name.lower(): name for name in df.columns}
    if "key" not in columns and "partition" not in columns:
        raise BadRequest(f"Rows are partitioned by 'key' or 'partition'; the columns are {', '.join(df.columns)}")
    chosen: Any = F.pmod(F.monotonically_increasing_id(), F.lit(n)).cast("int")
    if "key" in columns:
        hashed = F.arrow_udf(_hasher(n), "int")(F.col(columns["key"]).cast("binary"))
        chosen = F.coalesce(hashed, chosen)
    if "partition" in columns:
        chosen = F.coalesce(F.col(columns["partition"]).cast("int"), chosen)
    return df.withColumn(_COLUMN, chosen).repartitionById(n, _COLUMN).drop(_COLUMN)


def _hasher(n: int) -> Any:
    """A function for Spark's workers: binary keys to partition numbers, null for null."""

    def partition_of(key: pa.Array) -> pa.Array:
        import pyarrow as pa

        from sparklog.format.murmur2 import partition_for_key

        numbers = partition_for_key(key, n)
        mask = key.is_null().to_numpy(zero_copy_only=False) if key.null_count else None
        return pa.array(numbers, pa.int32(), mask=mask)

    # arrow_udf reads the signature's types; annotations of this module are texts.
    import pyarrow as pa

    partition_of.__annotations__ = {"key": pa.Array, "return": pa.Array}
    return partition_of
