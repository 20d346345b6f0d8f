"""`sparklog.partitioned`, which shuffles a DataFrame so that all rows of a topic partition are in one task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparklog.common.settings import ValueType, int64
from sparklog.datasource.session import check_pyspark
from sparklog.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_COLUMN = "__sparklog_partition"
_FRAME = ValueType("a DataFrame", lambda value: hasattr(value, "withColumn"))


def partitioned(df: DataFrame, n: int) -> DataFrame:
    """Shuffle a DataFrame so that all rows of a topic partition are in one task.

    The order of the rows of a key is then preserved across the entire write. Each task writes to one partition, which
    is suitable for topics with many partitions. The `partition` column sets the partition of a row. If it is null or
    missing, the partition is the murmur2 hash of the key, as in Kafka. Rows that have neither a partition nor a key are
    distributed evenly.

    Args:
        df: A DataFrame with a column `key` or `partition`.
        n: The number of partitions of the topic.

    Returns:
        A DataFrame with the same rows, ready to write.

    Raises:
        BadRequest: If both columns are missing, or if PySpark is not installed.

    Example:
        rows = spark.createDataFrame([("anna", "book"), ("ben", "lamp")], "key string, value string")
        parted = sparklog.partitioned(rows, 2)
        parted.write.format("sparklog").option("topic", "orders").mode("append").save("/data/log")
    """
    check_pyspark("sparklog.partitioned")
    from pyspark.sql import functions as F  # noqa: N812

    from sparklog.datasource.spark_versions import repartition_by_id, udf_of_keys

    _FRAME.check("df", df)
    int64(1).check("n", n)
    columns = {name.lower(): name for name in df.columns}
    if "key" not in columns and "partition" not in columns:
        raise BadRequest(f"Rows are partitioned by 'key' or 'partition'; the columns are {', '.join(df.columns)}")
    partition: Any = F.pmod(F.monotonically_increasing_id(), F.lit(n)).cast("int")
    if "key" in columns:
        hashed = udf_of_keys(_hasher(n))(F.col(columns["key"]).cast("binary"))
        partition = F.coalesce(hashed, partition)
    if "partition" in columns:
        partition = F.coalesce(F.col(columns["partition"]).cast("int"), partition)
    return repartition_by_id(df.withColumn(_COLUMN, partition), n, _COLUMN).drop(_COLUMN)


def _hasher(n: int) -> Any:
    """Return a function for Spark workers that maps binary keys to partition numbers, and null to null."""

    def partition_of(key: pa.Array) -> pa.Array:
        import pyarrow as pa

        from sparklog.format.key_hash import partition_for_key

        numbers = partition_for_key(key, n)
        mask = key.is_null().to_numpy(zero_copy_only=False) if key.null_count else None
        return pa.array(numbers, pa.int32(), mask=mask)

    # arrow_udf reads the types from the signature, but the annotations in this module are strings.
    import pyarrow as pa

    partition_of.__annotations__ = {"key": pa.Array, "return": pa.Array}
    return partition_of
