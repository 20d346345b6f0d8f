"""The job `to-iceberg` under spark-submit: Spark tasks read the topic and write the files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="tasks need Spark: install sparklog[spark]")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install 'sparklog[iceberg]'")

from pyiceberg.catalog.sql import SqlCatalog

import sparklog
from sparklog.jobs import to_iceberg
from sparklog.jobs.common import DONE, FAILED
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.spark_runner import SUBMITTED
from sparklog.tables import slices
from sparklog.tables.copy import TableCopy
from sparklog.tables.iceberg import IcebergTable
from tests.datasource import spark_session
from tests.support.servers import schema_registry
from tests.tables.iceberg_catalogs import sqlite_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return sparklog.open(tmp_path / "root", create=True).create_topic("orders", partitions=2)


def append(topic: Topic, first: int, count: int) -> None:
    numbers = range(first, first + count)
    columns = {"key": [b"%d" % (number % 50) for number in numbers], "value": [b"v%d" % number for number in numbers]}
    topic.append(pa.table({name: pa.array(column, pa.binary()) for name, column in columns.items()}))


def words(tmp_path: Path, *more: str, table: str = "shop.orders") -> list[str]:
    properties = [f"--catalog-property={name}={value}" for name, value in sqlite_properties(tmp_path).items()]
    location = ("--root", str(tmp_path / "root"), "--topic", "orders", "--table", table, "--catalog", "test")
    return [*location, *properties, *more]


def table_rows(tmp_path: Path) -> pa.Table:
    with SqlCatalog("test", **sqlite_properties(tmp_path)) as catalog:
        return catalog.load_table(("shop", "orders")).scan().to_arrow()


def assert_rows_are_those_of_the_topic(topic: Topic, tmp_path: Path) -> None:
    found, expected = table_rows(tmp_path), topic.scan().to_table()
    in_table = zip(*(found[name].to_pylist() for name in ("_partition_id", "_offset", "key", "value")))  # noqa: B905
    in_topic = zip(*(expected[name].to_pylist() for name in ("partition", "offset", "key", "value")))  # noqa: B905
    assert Counter(in_table) == Counter(in_topic)


@pytest.fixture
def submitted(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Run jobs as if spark-submit had started them with the session. This process must not read or write slices."""
    monkeypatch.setenv(SUBMITTED, "1")
    monkeypatch.setattr(TableCopy, "min_slice_records", 10)
    monkeypatch.setattr(slices, "read_parts", None)
    return spark


@pytest.mark.spark
def test_tasks_write_the_files(
    submitted: SparkSession, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(IcebergTable, "open_output", None)
    append(topic, 0, 100)
    assert to_iceberg.main(words(tmp_path)) == DONE
    append(topic, 100, 60)
    assert to_iceberg.main(words(tmp_path)) == DONE
    assert "60 records in 1 commit" in capsys.readouterr().out
    assert_rows_are_those_of_the_topic(topic, tmp_path)
    assert submitted.sparkContext._jsc is not None, "the session of the caller is not stopped"


@pytest.mark.spark
@pytest.mark.usefixtures("submitted")
def test_tasks_decode_values_and_retain_the_latest_record_of_each_key(
    topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tasks open the registry with the options of the job. Bad records are reported as without Spark."""
    pytest.importorskip("fastavro")
    schema = '{"type": "record", "name": "A", "fields": [{"name": "n", "type": "long"}]}'
    upsert = ("--mode", "upsert", "--key-columns", "id", "--payload", "avro")
    with schema_registry.running() as server:
        server.authorization = "Bearer secret"
        (tmp_path / "registry.properties").write_text("bearer.auth.token=secret\n")
        registry = sparklog.formats.SchemaRegistry(server.url, token="secret").subject("orders-value")
        number = registry.register(schema).id
        values: list[Any] = [b"\0" + number.to_bytes(4, "big") + bytes([2 * n]) for n in range(60)]
        values[3], values[58] = b"broken", None
        keys = [b"%d" % (n % 20) for n in range(60)]
        topic.append(pa.table({"key": keys, "value": pa.array(values, pa.binary())}))
        access = ("--schema-registry", server.url, "--registry-config", str(tmp_path / "registry.properties"))
        assert to_iceberg.main(words(tmp_path, *upsert, *access, "--bad-records", "quarantine")) == DONE
        assert "60 records in 1 commit, 1 bad record" in capsys.readouterr().out
        assert to_iceberg.main(words(tmp_path, *upsert, *access, table="shop.others")) == FAILED
        assert "use --bad-records quarantine or skip to continue without it" in capsys.readouterr().err
    found = {row["id"]: row["n"] for row in table_rows(tmp_path).to_pylist()}
    assert found == {str(n % 20): n for n in range(40, 60) if n != 58}


@pytest.mark.spark
def test_python_programs_pass_a_session(
    spark: SparkSession, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "read_parts", None)
    append(topic, 0, 20)
    report = sparklog.to_iceberg(topic.root, "orders", "shop.orders", catalog=sqlite_properties(tmp_path), spark=spark)
    assert report.rows == 20
    if find_spec("deltalake"):
        assert sparklog.to_delta(topic.root, "orders", str(tmp_path / "delta"), spark=spark).rows == 20


SCRIPT = """
import os, signal, sys
from pathlib import Path
from sparklog.jobs import to_iceberg
from sparklog.tables import copy
from sparklog.tables.iceberg import IcebergTable
from sparklog.tables.slices import SliceWork

KILLED, FLAG = sys.argv[1], Path(sys.argv[2])

def kill_once():
    try:
        FLAG.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

class KilledWork(SliceWork):
    def run(self, progress=lambda records, nbytes: None):
        result = SliceWork.run(self, progress)
        kill_once()
        return result

def append(self, *arguments, real=IcebergTable.append):
    kill_once()
    real(self, *arguments)

copy.TableCopy.min_slice_records = 10
if KILLED == "task":
    copy.SliceWork = KilledWork
else:
    IcebergTable.append = append
sys.exit(to_iceberg.main(sys.argv[3:]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("spark_folder")
@pytest.mark.parametrize("killed", ["task", "driver"])
def test_a_killed_process_adds_no_rows(topic: Topic, tmp_path: Path, killed: str) -> None:
    """The first attempt of a task is killed after it has written its files, or the driver before its first commit."""
    append(topic, 0, 100)
    (tmp_path / "script.py").write_text(SCRIPT)
    submit = Path(sys.executable).with_name("spark-submit")
    # Spark runs a task at most twice.
    command = [submit, "--master", "local[2,2]", tmp_path / "script.py", killed, tmp_path / "flag", *words(tmp_path)]
    for attempt in range(1 if killed == "task" else 2):
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **spark_session.environment()}, check=False
        )
        assert (done.returncode == 0) == (killed == "task" or attempt == 1), done.stderr
    assert (tmp_path / "flag").exists()
    assert_rows_are_those_of_the_topic(topic, tmp_path)
    # The files of the killed attempt remain, but are not part of the table.
    with SqlCatalog("test", **sqlite_properties(tmp_path)) as catalog:
        referenced = [task.file.file_path for task in catalog.load_table(("shop", "orders")).scan().plan_files()]
    written = list((tmp_path / "warehouse").rglob("*.parquet"))
    assert len(written) > len(referenced)
