"""The examples of the Python API that need Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparklog
from tests.log.read.test_topic_table import GUIDE, rows, snippets
from tests.test_python_docs import run

pytestmark = pytest.mark.spark


def test_examples_run(tmp_path: Path, spark: SparkSession) -> None:
    sparklog.open(tmp_path / "log", create=True).create_topic("orders", partitions=2)
    assert run("python-maintenance.md", ["Spark"], tmp_path, {"spark": spark, "SparkSession": SparkSession}) == 5
    assert len(sparklog.open(tmp_path / "log").topic("orders").scan().to_table()) == 2


def test_the_guide_of_tables(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("customers", partitions=2)
    topic.append(rows(("a", "1"), ("b", "2"), ("a", "3"), ("b", None)))
    snippet = snippets("python")[2].replace("/data/log", str(tmp_path / "log"))
    names: dict[str, object] = {"spark": spark}
    exec(compile(snippet, str(GUIDE), "exec"), names)
    assert capsys.readouterr().out == "[Row(key='a', value='3')]\n"
    early = spark.read.format("sparklog").option("view", "table").option("asOfOffsets", '{"customers":{"0":0,"1":0}}')
    assert early.load(str(tmp_path / "log" / "customers")).count() == 0
