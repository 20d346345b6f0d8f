"""Invalid input through Spark is a clear one-line error without a Python traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparklog
from sparklog.log.journal.documents import decode, encode
from tests.datasource.streams import feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = str(tmp_path_factory.mktemp("errors") / "log")
    feed(found, "orders", range(10), partitions=1)
    feed(found, "payments", range(3), partitions=1)
    return found


def line(action: Callable[[], Any]) -> str:
    """Return the message that Spark shows, without the SQLSTATE. Fails for a traceback or a second line."""
    with pytest.raises(Exception) as error:
        action()
    text = str(error.value)
    assert "Traceback" not in text
    assert 'File "' not in text
    (found,) = (part for part in text.splitlines() if "[SPARKLOG_" in part)
    return found[found.index("[SPARKLOG_") :]


def load(spark: SparkSession, path: str | None, **options: str) -> Any:
    reader = spark.read.format("sparklog").options(**options)
    return reader.load(path) if path else reader.load()


def test_options_are_checked_at_load(spark: SparkSession, root: str) -> None:
    """The first case of each kind. For the other cases, see `test_wrong_input.py`."""
    expected = "[SPARKLOG_BAD_REQUEST]: Unknown option 'startingoffset': did you mean 'startingOffsets'?"
    assert line(lambda: load(spark, root, subscribe="orders", startingOffset="earliest")).startswith(expected)
    assert "Expected the path of a root" in line(lambda: load(spark, None))
    nameless = "is a root with the topics orders, payments: select topics with"
    assert nameless in line(lambda: load(spark, root))
    assert nameless in line(lambda: spark.readStream.format("sparklog").load(root))


def test_missing_topics_partitions_and_offsets_are_errors(spark: SparkSession, root: str) -> None:
    assert "[SPARKLOG_NOT_FOUND]: There is no topic 'order' at" in line(
        lambda: load(spark, root, subscribe="order").count()
    )


def test_schemas_of_reads(spark: SparkSession, root: str) -> None:
    stream = spark.read.format("sparklog").schema("offsett long").option("subscribe", "orders")
    assert "contains the unknown column 'offsett' (did you mean 'offset'?)" in line(lambda: stream.load(root).count())


def test_invalid_writes_are_rejected(spark: SparkSession, root: str) -> None:
    def write(sql: str, **options: str) -> Any:
        return spark.sql(sql).write.format("sparklog").mode("append").options(**options).save(root)

    wrong_type = line(lambda: write("SELECT 5 AS value", topic="orders"))
    assert wrong_type.startswith(
        "[SPARKLOG_BAD_REQUEST]: Column 'value' must be string or binary but is int: cast the column"
    )
    assert "expected partitions 0 to 0, found partition 5" in line(
        lambda: write("SELECT 'v' AS value, 5 AS partition", topic="orders")
    )
    assert sparklog.open(root).topic("orders").log.state().log_end.tolist() == [10]


def test_a_later_format_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path / "log", "t", range(3))
    path = tmp_path / "log" / "_root.json"
    document = dict(decode(path.read_bytes(), "_root.json", "root").document)
    document.pop("crc")
    path.write_bytes(encode({**document, "readFeatures": ["teleport"]}))
    message = line(lambda: load(spark, str(tmp_path / "log"), subscribe="t").count())
    assert message == (
        "[SPARKLOG_BAD_REQUEST]: reading root _root.json requires the sparklog features teleport; upgrade sparklog"
    )
    path.write_bytes(encode({**document, "format": 2}))
    message = line(lambda: load(spark, str(tmp_path / "log"), subscribe="t").count())
    assert "has format 2, but this release reads format 1; upgrade sparklog" in message


@pytest.mark.usefixtures("records_in_files")
def test_a_damaged_commit_and_damaged_data(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "log"
    feed(root, "t", range(30))
    (data,) = (root / "t" / "append").glob("*.slices")
    whole = data.read_bytes()
    data.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    message = line(lambda: load(spark, str(root), subscribe="t").collect())
    assert message.startswith("[SPARKLOG_CORRUPT]: ")
    assert data.name in message
    commit = root / "t" / "_log" / "00000000000000000001.json"
    commit.write_bytes(commit.read_bytes().replace(b'"timeMs"', b'"timeMz"'))
    message = line(lambda: load(spark, str(root), subscribe="t").count())
    assert message.startswith("[SPARKLOG_CORRUPT]: ")
    assert commit.name in message


def test_streams(spark: SparkSession, root: str, tmp_path: Path) -> None:
    def start(**options: str) -> Any:
        stream = spark.readStream.format("sparklog").options(**options).load(root)
        query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    assert "Option 'endingOffsets' applies only to batch reads" in line(
        lambda: start(subscribe="orders", endingOffsets="latest")
    )
    assert "There is no topic 'nope'" in line(lambda: start(subscribe="nope"))
