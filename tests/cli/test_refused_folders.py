"""All entry points reject a directory with other content as a root, with a one-line error, and do not write to the
directory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

import sparklog as package
from sparklog.datasource.data_source import SparklogDataSource
from sparklog.storage import LocalStore
from sparklog.tools.backup.backing_up import back_up
from tests.cli.conftest import Sparklog
from tests.kafka.logs import batch as kafka_batch
from tests.kafka.logs import write_partition

SCHEMA = StructType([StructField("value", StringType())])
Door = Callable[[Path, Path], object]


def spark_sink(folder: Path, kind: str) -> object:
    checkpoint = {"checkpointLocation": str(folder.parent / "checkpoint")} if kind == "streamWriter" else {}
    source = SparklogDataSource({"path": str(folder), "topic": "t", **checkpoint})
    return getattr(source, kind)(SCHEMA, False)


PYTHON: dict[str, Door] = {
    "open": lambda folder, _: package.open(folder, create=True),
    "import_kafka": lambda folder, kafka: package.import_kafka(folder, kafka),
    "a batch of Spark": lambda folder, _: spark_sink(folder, "writer"),
    "a stream of Spark": lambda folder, _: spark_sink(folder, "streamWriter"),
}
COMMANDS = (
    ("topics", "create", "t", "--root", "{folder}"),
    ("import", "{kafka}", "--root", "{folder}"),
    ("restore", "{backups}", "--to", "{folder}"),
    ("restore", "{other}", "--to", "{folder}"),
    ("backup", "--root", "{other}", "--to", "{folder}"),
)
NOT_MADE = (
    ("clone", "t", "u", "--root", "{folder}"),
    ("produce", "t", "--root", "{folder}"),
    ("backup", "--root", "{folder}", "--to", "{folder}/b"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a directory like /etc."""
    made = tmp_path / "etc"
    (made / "cron.d").mkdir(parents=True)
    (made / "hosts").write_text("127.0.0.1 localhost\n")
    return made


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    write_partition(tmp_path / "kafka", "orders-0", {0: kafka_batch(0, [b"a"])})
    return tmp_path / "kafka"


def content(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("entry_point", PYTHON)
def test_python_calls_do_not_create_a_root_in_the_directory(folder: Path, kafka: Path, entry_point: str) -> None:
    before = content(folder)
    with pytest.raises(Exception, match=r"nor empty, found cron.d: use an empty or new directory"):
        PYTHON[entry_point](folder, kafka)
    assert content(folder) == before


@pytest.mark.parametrize("words", COMMANDS + NOT_MADE, ids=lambda words: " ".join(words))
def test_commands_do_not_write_into_the_directory(
    folder: Path, kafka: Path, tmp_path: Path, sparklog: Sparklog, words: tuple[str, ...]
) -> None:
    before = content(folder)
    other = package.open(tmp_path / "other", create=True)
    other.create_topic("t")
    back_up(other, LocalStore(tmp_path / "backups"))
    places = {"folder": folder, "kafka": kafka, "other": tmp_path / "other", "backups": tmp_path / "backups"}
    said = sparklog(*(word.format(**places) for word in words), code=1)
    (line,) = said.err.splitlines()
    assert ("empty, found cron.d" in line) == (words in COMMANDS), line
    assert words in COMMANDS or "is not a sparklog root" in line
    assert content(folder) == before


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_spark_writes_report_created_roots_and_topics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    for _ in range(2):
        spark_sink(tmp_path / "new", kind)
    warnings = [each.getMessage() for each in caplog.records if each.name == "sparklog"]
    assert warnings == [
        f"sparklog: created root {tmp_path}/new",
        f"sparklog: created topic t with 1 partition in {tmp_path}/new",
    ]


def test_python_logs_created_roots_and_topics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sparklog.created.root")
    caplog.set_level("INFO", "sparklog.created.topic")
    for _ in range(2):
        package.open(tmp_path / "new", create=True).ensure_topic("t", partitions=3)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", f"created root {tmp_path}/new"),
        ("INFO", f"created topic t with 3 partitions in {tmp_path}/new"),
    ]


def test_an_empty_directory_can_become_a_root(tmp_path: Path, kafka: Path) -> None:
    for number, entry_point in enumerate(PYTHON.values()):
        (tmp_path / str(number)).mkdir()
        entry_point(tmp_path / str(number), kafka)
        assert (tmp_path / str(number) / "_root.json").exists()
