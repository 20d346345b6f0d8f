"""The format `sparklog`: Spark finds every top-level module `pyspark_*` that has a `DefaultSource`.

The first of Spark's Python processes looks for formats once in a session, and only asks for the name. So this imports
nothing of what reads or writes. That process warns of a Spark that is too new.
"""

import sys
from typing import Any

import pyspark
from pyspark.sql.datasource import DataSource

from sparklog.datasource.session import check_version

LOOKS = "pyspark.sql.worker.lookup_data_sources"

if LOOKS in sys.modules:
    check_version(pyspark.__version__)


class DefaultSource(DataSource):  # type: ignore[misc]
    """The data source of `spark.read.format("sparklog")`, and of readStream, write and writeStream."""

    def __new__(cls, options: Any) -> Any:
        """Return a `SparklogDataSource`."""
        from sparklog.datasource.data_source import SparklogDataSource

        return SparklogDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "sparklog"
