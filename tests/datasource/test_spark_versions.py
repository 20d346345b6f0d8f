"""The fallbacks for older Spark releases, without these releases: streams that are called without a start, and missing
names.
"""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions

from sparklog.datasource import spark_versions
from sparklog.datasource.data_source import SparklogDataSource
from sparklog.datasource.partitioned import _hasher
from sparklog.datasource.read_task import ReadTask
from sparklog.datasource.session import check_version
from sparklog.datasource.spark_versions import LimitsInside
from sparklog.errors import BadRequest
from sparklog.format.key_hash import partition_for_key
from sparklog.log.topic.root import open_root

Document = dict[str, Any]


class OldQuery:
    """A run of a query in Spark 4.1: its calls of the source, and the positions that it read."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        from pyspark.sql.types import BinaryType, StructField, StructType

        monkeypatch.setattr(spark_versions, "READ_LIMITS", False)
        given = {"path": str(root / "in"), "startingOffsets": "earliest", "poll.interval.ms": "0"} | options
        source = SparklogDataSource(given)
        self.reader = source.streamReader(StructType([StructField("value", BinaryType())]))
        assert isinstance(self.reader, LimitsInside)

    def plan(self, start: Document, end: Document) -> list[tuple[int, int]]:
        planned = self.reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
        return [(part.range.start, part.range.end) for task in planned for part in task.value]

    def latest(self) -> Document:
        answer: Document = json.loads(json.dumps(self.reader.latestOffset()))
        return answer

    def batch(self, committed: Document | None, *, planned: bool = True) -> tuple[Document, list[tuple[int, int]]]:
        """Run a micro-batch after the committed offset (None if new). `planned` is whether the batch is read."""
        end = self.latest()
        start = committed or json.loads(json.dumps(self.reader.initialOffset()))
        return end, self.plan(start, end) if planned and start != end else []


def test_a_task_gets_a_read_task_instead_of_the_reader(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = OldQuery(root, monkeypatch, subscribe="in").reader
    assert type(pickle.loads(pickle.dumps(reader))) is ReadTask


@pytest.fixture
def root(tmp_path: Path) -> Path:
    topic = open_root(tmp_path / "log", create=True).create_topic("in")
    for number in range(10):
        topic.append(pa.table({"value": [str(number)]}))
    return tmp_path / "log"


def test_limits_hold_without_a_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = OldQuery(root, monkeypatch, maxOffsetsPerTrigger="4")
    end, ranges = query.batch(None)
    assert ranges == [(0, 4)]
    # The rows of this batch are not used, so the batch is not planned.
    end, _ = query.batch(end, planned=False)
    end, ranges = query.batch(end)
    assert ranges == [(8, 10)]
    assert query.batch(end) == (end, [])


@pytest.mark.parametrize("done", [True, False])
def test_a_restarted_query_resumes_after_its_checkpoint(
    root: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    first = OldQuery(root, monkeypatch, maxOffsetsPerTrigger="3")
    before, _ = first.batch(None)
    newest, ranges = first.batch(before)
    again = OldQuery(root, monkeypatch, maxOffsetsPerTrigger="3")
    assert again.plan(newest, newest) == []
    if not done:
        assert again.plan(before, newest) == ranges == [(3, 6)]
    assert again.batch(newest)[1] == [(6, 9)]


def test_the_first_batch_is_replayed_from_where_it_began(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = OldQuery(root, monkeypatch, startingOffsets="latest")
    end = first.latest()
    open_root(root).topic("in").append(pa.table({"value": ["10"]}))
    assert first.plan(first.reader.initialOffset(), end) == []
    again = OldQuery(root, monkeypatch, startingOffsets="latest")
    assert again.plan(end, end) == []
    assert again.plan(again.reader.initialOffset(), end) == []
    assert again.batch(end)[1] == [(10, 11)]


def test_a_run_that_is_asked_before_it_plans_its_checkpoint(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's wrapper for AvailableNow does this. No records are skipped."""
    committed, _ = OldQuery(root, monkeypatch, maxOffsetsPerTrigger="4").batch(None)
    again = OldQuery(root, monkeypatch, startingOffsets="latest")
    assert again.plan(committed, again.latest()) == [(4, 10)]


def test_a_limit_is_warned_of_and_an_error_comes_through(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        OldQuery(root, monkeypatch).latest()
        assert not caplog.messages
        OldQuery(root, monkeypatch, maxBytesPerTrigger="100").latest()
    assert "does not report the trigger of a query" in caplog.text
    with pytest.raises(Exception, match="applies only to batch reads, because a stream has no end"):
        OldQuery(root, monkeypatch, endingOffsets="latest").latest()


WITHOUT = """
import sys
import pyspark
import pyspark.sql.datasource as there
pyspark.__version__ = "5.1.0"
sys.modules["pyspark.sql.worker.lookup_data_sources"] = sys
sys.modules["pyspark.sql.streaming.datasource"] = None
if hasattr(there, "DataSourceStreamArrowWriter"):
    del there.DataSourceStreamArrowWriter
import pyspark_sparklog
import sparklog.datasource.reader
from sparklog.datasource.spark_versions import READ_LIMITS
from sparklog.datasource.writer import SparklogStreamWriter as writer
print(READ_LIMITS, issubclass(writer, there.DataSourceArrowWriter), issubclass(writer, there.DataSourceStreamWriter))
writer(None, None).abort([], 1)
"""


def test_missing_features_have_fallbacks() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False True True"
    tried = "sparklog: pyspark 5.1.0 is later than the releases with which this sparklog was tested (up to 4.3)"
    assert done.stderr.splitlines() == [tried]


def test_keys_are_hashed_one_by_one_without_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(functions, "arrow_udf", raising=False)
    hashed = spark_versions.udf_of_keys(_hasher(7)).func
    keys = [b"", b"anna", b"\x00\xff", b"x" * 40]
    expected = partition_for_key(pa.array(keys, pa.binary()), 7).tolist()
    assert [hashed(bytearray(key)) for key in keys] == expected
    assert hashed(None) is None


class Frame:
    """A data frame that records how it was shuffled."""

    def repartition(self, n: int, column: str) -> tuple[str, int, str]:
        return "hash", n, column


class NewFrame(Frame):
    def repartitionById(self, n: int, column: str) -> tuple[str, int, str]:  # noqa: N802
        return "id", n, column


def test_rows_are_shuffled_by_hash_where_spark_has_nothing_better() -> None:
    assert spark_versions.repartition_by_id(NewFrame(), 3, "c") == ("id", 3, "c")
    assert spark_versions.repartition_by_id(Frame(), 3, "c") == ("hash", 3, "c")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.5.6", "Expected Spark 4.0 or later, which supports Python data sources, found pyspark 3.5.6: upgrade"),
        ("4.0.0", ""),
        ("4.3.2", ""),
        ("4.1.0.dev1", ""),
        ("4.4.0", "pyspark 4.4.0 is later than the releases with which this sparklog was tested (up to 4.3)"),
        ("5.0.0.dev0", "pyspark 5.0.0.dev0 is later than the releases"),
    ],
)
def test_an_untested_spark_warns(version: str, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    try:
        check_version(version)
        shown = caplog.messages
    except BadRequest as error:
        shown = [str(error)]
    assert [expected in line for line in shown] == ([True] if expected else [])
