"""Found by Spark by its name: every top-level module `pyspark_*` with a `DefaultSource` is a format, here `sparklog`.

Spark imports this in half a dozen processes per query, so it imports nothing but the class.
"""

from sparklog.datasource.source import SparklogDataSource


class DefaultSource(SparklogDataSource):
    """What `spark.read.format("sparklog")` and its three sisters use."""
