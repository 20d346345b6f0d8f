"""The examples of the Python API, and of the guide to tests, that need Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparklog
from sparklog.log.topic.root import Root
from sparklog.testing.records import RecordStream
from tests.test_python_docs import run
from tests.testing import test_guide

pytestmark = pytest.mark.spark


def test_examples_run(tmp_path: Path, spark: SparkSession) -> None:
    sparklog.open(tmp_path / "log", create=True).create_topic("orders", partitions=2)
    assert run("python-maintenance.md", ["Spark"], tmp_path, {"spark": spark, "SparkSession": SparkSession}) == 5
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
