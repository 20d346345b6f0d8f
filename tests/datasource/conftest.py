"""Fixtures: one Spark session per test process, and a path for a root."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.datasource import spark_session
from tests.datasource.standard_error import StandardError, stderr_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory for Spark's scratch files. Skip the test if there is no Java."""
    if not spark_session.has_java():
        pytest.skip("Spark needs Java 17 or newer: there is no `java` on the PATH and no JAVA_HOME")
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_folder: Path) -> Iterator[SparkSession]:
    with stderr_to(spark_folder / "stderr"):
        session = spark_session.start(spark_folder)
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture
def connect_port() -> Iterator[None]:
    """Return the port of a local Spark Connect server. The port is fixed, so only one test on this host can use it at a
    time.
    """
    with open(Path(tempfile.gettempdir()) / "sparklog-tests-connect", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def standard_error(spark: SparkSession, spark_folder: Path) -> StandardError:
    """Return the standard error of Spark and its workers during this test."""
    return StandardError(spark_folder / "stderr")


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return the path at which a root may be created."""
    return str(tmp_path / "log")
