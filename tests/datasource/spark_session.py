"""Spark for tests: one small session per process, which starts as fast as possible."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.datasource.session import workers_python
from tests.support.moto_server import KEY_ID, SECRET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[2]

CHEAP_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options for short-lived processes: no threads that optimize code or collect garbage in the background.

The about 15,000 classes that Spark loads for the first query are not verified either.
"""
SCRATCH = tempfile.mkdtemp(prefix="sparklog-jvm-", dir="/tmp" if Path("/tmp").is_dir() else None)
"""The directory for files of JVMs until this process ends. The path is short, because socket paths have at most 104
characters.
"""
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
QUIET = f"-Djava.io.tmpdir={SCRATCH} -Dderby.stream.error.file=/dev/null"
LAUNCHING = dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), f"{CHEAP_JVM} {QUIET}")
"""The same options for the environment of a program that starts Spark."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.driver.extraJavaOptions": f"{CHEAP_JVM} -Dlog4j2.level=error",
}


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") is not None or (home is not None and os.access(f"{home}/bin/java", os.X_OK))


def environment() -> dict[str, str]:
    """Return the environment of a process that starts Spark for a test."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    return {
        **LAUNCHING,
        "PYSPARK_PYTHON": workers_python(),
        # The Pythons that plan for the JVM are the same as if neither variable were set, which saves a second of CPU
        # time for each kind.
        "PYSPARK_DRIVER_PYTHON": workers_python(),
        "PYTHONPATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Workers inherit the environment in which Spark was started. With these variables, they can access the buckets
        # of `moto_server`.
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def start(folder: Path, **settings: str) -> SparkSession:
    """Start a session with two task slots, and scratch files below `folder`."""
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("sparklog-tests")
    for name, value in (SETTINGS | settings).items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", tempfile.mkdtemp(dir=folder))
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
