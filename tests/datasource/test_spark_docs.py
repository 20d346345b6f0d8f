"""The examples of the Python API and of the pytest guide that require Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparklog
from sparklog.log.topic.root import Root
from sparklog.testing.records import RecordStream
from tests.log.read import test_reading_less_guide
from tests.log.read.test_topic_table import GUIDE, snippets
from tests.support.records import keyed_rows
from tests.test_python_reference import run
from tests.testing import test_guide

pytestmark = pytest.mark.spark


def test_examples_run(tmp_path: Path, spark: SparkSession) -> None:
    sparklog.open(tmp_path / "log", create=True).create_topic("orders", partitions=2)
    assert run("python-maintenance.md", ["Spark"], tmp_path, {"spark": spark, "SparkSession": SparkSession}) == 8
    assert len(sparklog.open(tmp_path / "log").topic("orders").scan().to_table()) == 2


@pytest.mark.slow
def test_the_job_of_the_guide_to_tests_is_tested(
    spark: SparkSession, sparklog_disk_root: Root, sparklog_records: RecordStream, tmp_path: Path
) -> None:
    names: dict[str, Any] = {}
    (match,) = [match for match in test_guide.SNIPPETS if test_guide.SPARK in match[1]]
    test_guide.run(match, names)
    names["test_visits_are_written_in_capitals"](spark, sparklog_disk_root, sparklog_records, tmp_path)
    assert sparklog_disk_root.topics() == ["capitals", "visits"]


def test_the_guide_of_tables(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("customers", partitions=2)
    topic.append(keyed_rows(("a", "1"), ("b", "2"), ("a", "3"), ("b", None)))
    snippet = snippets("python")[2].replace("/data/log", str(tmp_path / "log"))
    names: dict[str, object] = {"spark": spark}
    exec(compile(snippet, str(GUIDE), "exec"), names)
    assert capsys.readouterr().out == "[Row(key='a', value='3')]\n"
    early = spark.read.format("sparklog").option("view", "table").option("asOfOffsets", '{"customers":{"0":0,"1":0}}')
    assert early.load(str(tmp_path / "log" / "customers")).count() == 0


def test_the_guide_to_reading_less_runs(tmp_path: Path, spark: SparkSession) -> None:
    names: dict[str, object] = {"spark": spark}
    for text in test_reading_less_guide.snippets("In Spark", "python"):
        exec(compile(text.replace("/data/log", str(tmp_path)), "reading-less.md", "exec"), names)
    assert {"values", "some", "january", "first"} <= names.keys()
