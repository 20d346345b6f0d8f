"""Execute SQL with Spark or DuckDB in another interpreter, which does not have sparklog.

Standard input is JSON with the settings and the statements. Standard output is JSON with the rows of each statement.
With the setting `may_fail`, a statement that fails has the row `error` and its message.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def with_spark(settings: dict[str, Any]) -> list[list[list[Any]]]:
    from pyspark.sql import SparkSession

    configs = {
        "spark.jars": settings["jar"],
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.test": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.test.type": "rest",
        "spark.sql.catalog.test.uri": settings["uri"],
        "spark.ui.enabled": "false",
        "spark.driver.memory": "800m",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in configs.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    found: list[list[list[Any]]] = []
    for statement in settings["statements"]:
        try:
            found.append([list(row) for row in spark.sql(statement).collect()])
        except Exception as error:
            if not settings.get("may_fail"):
                raise
            found.append([["error", str(error)]])
    spark.stop()
    return found


def with_duckdb(settings: dict[str, Any]) -> list[list[list[Any]]]:
    from importlib import import_module
    from pathlib import Path

    import duckdb

    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        package = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
        [extension] = package.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    return [[list(row) for row in connection.execute(statement).fetchall()] for statement in settings["statements"]]


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps((with_spark if "jar" in given else with_duckdb)(given)))
