"""Delta for tests: its jars, which are downloaded once per host like those of `tests.kafka_tools`, and Spark sessions
with the jars.

`Missing` reports why Delta is not available: there is no network, or Delta does not support this pyspark.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.datasource import spark_session
from tests.kafka_tools import Missing, fetched_jars

DELTA_VERSION, AVRO_VERSION = "4.4.0", "4.0.0"
"""The oldest release of Avro's functions that works with Spark 4.2 and that every mirror has."""
ICEBERG_VERSION = "1.11.0"
LINE = "4.2"
"""The Spark releases that this Delta supports."""


def _ivy(organisation: str, name: str, revision: str) -> str:
    """Return what Ivy must download, except the jars that Spark includes."""
    without = ("org.scala-lang", "org.scala-lang.modules", "org.apache.hadoop", "org.slf4j", "com.google.code.findbugs")
    excluded = "".join(f'<exclude org="{each}"/>' for each in without)
    return f"""<ivy-module version="2.0">
  <info organisation="sparklog" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->runtime(*),master(*)"/>
    <exclude org="org.apache.spark" module="spark-tags_2.13"/>{excluded}
  </dependencies>
</ivy-module>
"""


def delta_jars() -> list[Path]:
    """Return Delta's jars. Raises `Missing` if they are not available or do not support this pyspark."""
    try:
        import pyspark
    except ImportError:
        raise Missing("Delta needs Spark: install sparklog[delta]") from None
    if not pyspark.__version__.startswith(f"{LINE}."):
        raise Missing(f"Delta {DELTA_VERSION} is for pyspark {LINE}, found {pyspark.__version__}")
    return fetched()


def fetched() -> list[Path]:
    name = f"delta-spark_{LINE}_2.13"
    folder = fetched_jars(
        f"delta-{DELTA_VERSION}", _ivy("io.delta", name, DELTA_VERSION), f"{name}-{DELTA_VERSION}.jar"
    )
    return sorted(folder.glob("*.jar"))


def iceberg_jars() -> list[Path]:
    """Return Iceberg's runtime, for benchmarks. Raises `Missing` if it is not available or does not support this
    pyspark.
    """
    import pyspark

    if not pyspark.__version__.startswith("4.1."):
        raise Missing(f"Iceberg {ICEBERG_VERSION} is for pyspark 4.1, found {pyspark.__version__}")
    name = "iceberg-spark-runtime-4.1_2.13"
    jar = f"{name}-{ICEBERG_VERSION}.jar"
    ivy = _ivy("org.apache.iceberg", name, ICEBERG_VERSION)
    return [fetched_jars(f"iceberg-4.1-{ICEBERG_VERSION}", ivy, jar) / jar]


def avro_jars() -> list[Path]:
    """Return the jar of `from_avro`, or none."""
    name = "spark-avro_2.13"
    ivy = _ivy("org.apache.spark", name, AVRO_VERSION)
    try:
        return sorted(fetched_jars(f"spark-avro-{AVRO_VERSION}", ivy, f"{name}-{AVRO_VERSION}.jar").glob("spark-avro*"))
    except Missing:
        return []


class Driver:
    """A separate driver process with Delta, because jars cannot be added to a running session."""

    def __init__(self, folder: Path) -> None:
        jars = ",".join(map(str, delta_jars() + avro_jars()))
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, _start, (folder, jars))

    def job(self, name: str, *arguments: object, die: str = "") -> tuple[int, str]:
        """Run a job, and return its exit code and its stderr. `die` is a step of the job (see `_die_at`)."""
        return self._pool.submit(_job, name, [str(word) for word in arguments], die).result()

    def sql(self, text: str) -> list[dict[str, Any]]:
        return self._pool.submit(_sql, text).result()

    def close(self) -> None:
        self._pool.shutdown()


_session: Any = None


def _start(folder: Path, jars: str) -> None:
    global _session
    from sparklog.jobs.delta import SETTINGS

    # The tables are small, so Delta reads its log with one task instead of 50.
    small = {"spark.databricks.delta.snapshotPartitions": "1", "spark.sql.shuffle.partitions": "1"}
    _session = spark_session.start(folder, **{"spark.jars": jars, **SETTINGS, **small})


def _job(name: str, arguments: list[str], die: str) -> tuple[int, str]:
    module = import_module(f"sparklog.jobs.{name.replace('-', '_')}")
    if die:
        _die_at(module, die)
    with redirect_stderr(StringIO()) as errors:
        code = module.run(_session, module.arguments(arguments))
    return code, errors.getvalue()


def _die_at(module: ModuleType, step: str) -> None:
    """Kill the JVM and the driver when the function with this name returns in the second micro-batch."""
    before = getattr(module, step)

    def after(*given: Any) -> None:
        before(*given)
        if given[-1] == 1:
            os.kill(_session.sparkContext._gateway.proc.pid, signal.SIGKILL)
            os._exit(9)

    setattr(module, step, after)


def _sql(text: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in _session.sql(text).collect()]
