"""The format `sparklog`: Spark finds every top-level module `pyspark_*` that has a `DefaultSource`.

Spark imports this in half a dozen processes per query, so it imports nothing but the class.
"""

from sparklog.datasource.source import SparklogDataSource


class DefaultSource(SparklogDataSource):
    """The data source of `spark.read.format("sparklog")`, and of readStream, write and writeStream."""
