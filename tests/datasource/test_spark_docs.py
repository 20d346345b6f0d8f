"""The examples of the Python API that need Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparklog
from tests.log.read.test_reading_less_guide import snippets
from tests.test_python_docs import run

pytestmark = pytest.mark.spark


def test_examples_run(tmp_path: Path, spark: SparkSession) -> None:
    sparklog.open(tmp_path / "log", create=True).create_topic("orders", partitions=2)
    assert run("python-maintenance.md", ["Spark"], tmp_path, {"spark": spark, "SparkSession": SparkSession}) == 5
    assert len(sparklog.open(tmp_path / "log").topic("orders").scan().to_table()) == 2


def test_the_guide_to_reading_less_runs(tmp_path: Path, spark: SparkSession) -> None:
    names: dict[str, object] = {"spark": spark}
    for text in snippets("In Spark", "python"):
        exec(compile(text.replace("/data/log", str(tmp_path)), "reading-less.md", "exec"), names)
    assert {"values", "some", "january", "first"} <= names.keys()
