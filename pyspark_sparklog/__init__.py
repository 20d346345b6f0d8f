"""The format `sparklog`: Spark finds every top-level module `pyspark_*` that has a `DefaultSource`.

Spark imports this in half a dozen processes per query, so it imports nothing but the class. The first of them, which
looks for formats once in a session, warns of a Spark that is too new.
"""

import sys

import pyspark

from sparklog.datasource.data_source import SparklogDataSource
from sparklog.datasource.session import check_version

LOOKS = "pyspark.sql.worker.lookup_data_sources"

if LOOKS in sys.modules:
    check_version(pyspark.__version__)


class DefaultSource(SparklogDataSource):
    """The data source of `spark.read.format("sparklog")`, and of readStream, write and writeStream."""
