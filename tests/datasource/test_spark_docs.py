"""The examples of the Python API that need Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparklog
from tests.test_python_docs import run

pytestmark = pytest.mark.spark


def test_examples_run(tmp_path: Path, spark: SparkSession) -> None:
    sparklog.open(tmp_path / "log", create=True).create_topic("orders", partitions=2)
    assert run("python-maintenance.md", ["Spark"], tmp_path, {"spark": spark, "SparkSession": SparkSession}) == 5
    assert len(sparklog.open(tmp_path / "log").topic("orders").scan().to_table()) == 2
