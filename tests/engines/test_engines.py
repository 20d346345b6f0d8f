"""Engines return the same records as a scan, read less data if there is a filter, and report one-line errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparklog
from sparklog.engines.narrowing import columns_of
from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.log.read import topic_scan
from sparklog.log.topic.topic import Topic

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PAGES = "".join((GUIDES / name).read_text() for name in ("arrow-engines.md", "duckdb.md"))
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGES, re.MULTILINE | re.DOTALL)
COMMITS, ROWS, START_MS = 20, 50, 1_700_000_000_000
LINE = "[SPARKLOG_CORRUPT] a batch is wrong: restore the file (file x.log, position 3)"
OFFSET, PARTITION, TIME = pc.field("offset"), pc.field("partition"), pc.field("timestamp")


def time(ms: int, unit: str = "us") -> pa.Scalar:
    return pa.scalar(ms, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp(unit, tz="UTC"))


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Topic:
    root = sparklog.open(tmp_path_factory.mktemp("engines") / "log", create=True)
    orders = root.create_topic("orders", partitions=2, configs={"retention.ms": -1})
    for commit in range(COMMITS):
        numbers = range(commit * ROWS, (commit + 1) * ROWS)
        rows = {
            "key": [b"key-%d" % (n % 7) for n in numbers],
            "value": [b"value %d" % n for n in numbers],
            "timestamp": pa.array([START_MS + n * 1000 for n in numbers], pa.timestamp("ms")),
            "partition": pa.array([n % 2 for n in numbers], pa.int32()),
        }
        orders.append(pa.table(rows))
    return orders


def ordered(table: pa.Table) -> list[dict[str, Any]]:
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()


@pytest.mark.parametrize(
    ("expression", "offsets"),
    [
        (OFFSET == 123, 2),
        ((PARTITION == 1) & (OFFSET >= 200) & (OFFSET < 210), 10),
        (OFFSET.isin([5, 77]), 4),
        ((OFFSET < 5) | (OFFSET >= 495), 20),
        (~(OFFSET > 3), 8),
        (time(START_MS + 950_000) <= TIME, 50),
        ((time(START_MS + 100_000, "ns") <= TIME) & (time(START_MS + 100_001, "ms") > TIME), 25),
        (time(START_MS + 1) > TIME, 1000),
        ((pc.field("key") == b"key-3") & (OFFSET < 10), 20),
        ((pc.field("key") == b"key-3") | (OFFSET < 10), 1000),
        (pc.field("topic") == "other", 0),
        (OFFSET.is_null(), 0),
        (PARTITION == 7, 0),
        (OFFSET + 1 == 9, 1000),
        (pc.field("headers").is_null(), 1000),
    ],
)
def test_a_filter_reads_possible_matches_and_returns_matches(topic: Topic, expression: Any, offsets: int) -> None:
    dataset: Any = sparklog.datasets(topic.root)["orders"]
    ranges = dataset.ranges(expression, columns_of(expression))
    assert sum(each.end - each.start for each in ranges) == offsets
    assert ordered(dataset.to_table(filter=expression)) == ordered(pa.table(topic.scan()).filter(expression))


def test_the_first_and_the_last_time_of_a_slice_are_found(tmp_path: Path) -> None:
    """Three appends create three slices, which can be distinguished only by their timestamps."""
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("t", configs={"retention.ms": -1})
    for commit in range(3):
        times = pa.array([START_MS + 1000 * commit + ms for ms in (0, 400, 900)], pa.timestamp("ms"))
        topic.append(pa.table({"value": [b"a", b"b", b"c"], "timestamp": times}))
    dataset = sparklog.datasets(tmp_path / "log")["t"]
    for commit in range(3):
        for number, ms in enumerate((0, 400, 900)):
            found = dataset.to_table(filter=pc.equal(TIME, time(START_MS + 1000 * commit + ms)))
            assert found["offset"].to_pylist() == [3 * commit + number]
        for ms in (-1, 401, 901):
            assert dataset.to_table(filter=pc.equal(TIME, time(START_MS + 1000 * commit + ms))).num_rows == 0


def test_columns_of_a_filter_are_read_in_addition(topic: Topic) -> None:
    dataset = sparklog.datasets(topic.root)["orders"]
    assert columns_of((OFFSET > 1) & pc.field("headers").is_null()) == {"offset", "headers"}
    assert dataset.to_table(columns=["value"], filter=OFFSET == 1).column_names == ["value"]
    assert dataset.count_rows() == COMMITS * ROWS
    assert dataset.head(3, columns=["key"]).num_rows == 3


def test_records_without_a_time_are_not_lost_to_an_upper_bound(topic: Topic) -> None:
    dataset: Any = sparklog.datasets(topic.root)["orders"]
    early = time(0) > TIME
    assert sum(each.end - each.start for each in dataset.ranges(early, {"timestamp"})) == COMMITS * ROWS


def test_a_kafka_directory_is_a_set_of_datasets() -> None:
    kafka = Path(__file__).parents[2] / "examples" / "data" / "kafka-log-dir"
    view = sparklog.open_view(kafka)
    for name, dataset in sparklog.datasets(kafka).items():
        wanted = pa.table(view.topic(name).scan())
        assert ordered(dataset.to_table()) == ordered(wanted)
        assert ordered(dataset.to_table(filter=OFFSET >= 2)) == ordered(wanted.filter(OFFSET >= 2))


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("batch_bytes", [1000, 4 << 20])
def test_threads_keep_the_order(topic: Topic, threads: int, batch_bytes: int) -> None:
    plain = topic.scan(batch_bytes=batch_bytes).to_table()
    assert topic.scan(batch_bytes=batch_bytes, threads=threads).to_table().equals(plain)


@pytest.mark.parametrize(
    ("call", "kind", "line"),
    [
        (lambda topic: topic.scan(threads=0), BadRequest, "threads must be an integer of at least 1, found 0"),
        (
            lambda topic: topic.scan(threads=True),
            BadRequest,
            "threads must be an integer .*, found True",
        ),
        (lambda topic: sparklog.datasets(topic.root, threads=0), BadRequest, "threads must be an integer"),
        (lambda topic: sparklog.duckdb(object(), topic.root), BadRequest, "con must be a DuckDB connection"),
        (lambda topic: sparklog.datasets(topic.root, topics=["none"]), NotFound, "none"),
        (lambda topic: sparklog.datasets(topic.root, isolation_level="x"), BadRequest, "isolation_level must be"),
        (lambda topic: sparklog.datasets("/nowhere/at/all"), NotFound, "no log at"),
        (lambda topic: sparklog.datasets(topic.root)["orders"].to_table(columns=["no"]), BadRequest, "columns of key"),
        (lambda topic: sparklog.datasets(topic.root)["orders"].sort_by("key"), BadRequest, "does not support this"),
        (lambda topic: topic.count(isolation_level="x"), BadRequest, "isolation_level must be"),
    ],
)
def test_wrong_input_is_one_line(topic: Topic, call: Any, kind: type[Exception], line: str) -> None:
    with pytest.raises(kind, match=line) as raised:
        call(topic)
    assert "\n" not in str(raised.value)


def test_missing_polars_is_reported(monkeypatch: pytest.MonkeyPatch, topic: Topic) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(BadRequest, match=r'requires Polars: pip install "polars>=1\.33"'):
        sparklog.polars(topic.root)


def test_old_polars_is_reported(monkeypatch: pytest.MonkeyPatch, topic: Topic) -> None:
    monkeypatch.setattr("polars.io.plugins.register_io_source", lambda io_source, *, schema: None)
    with pytest.raises(BadRequest, match=r'requires Polars 1.33 or newer, found [\d.]+: pip install "polars>=1.33"'):
        sparklog.polars(topic.root)


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Iterator[pa.RecordBatch]:
        raise Corrupt("a batch is wrong: restore the file", file="x.log", position=3)
        yield

    monkeypatch.setattr(topic_scan, "read_parts", fail)


@pytest.mark.usefixtures("damaged")
def test_an_error_in_a_stream_has_its_code_and_line(topic: Topic) -> None:
    with pytest.raises(pa.ArrowInvalid, match=re.escape(LINE)) as raised:
        pa.table(topic.scan())
    assert "\n" not in str(raised.value).strip()
    with pytest.raises(Corrupt):
        topic.scan().to_table()


def test_a_stream_casts_as_it_is_asked_and_ends_early(topic: Topic) -> None:
    scan = topic.scan(columns=["offset"], batch_bytes=1)
    assert pa.table(scan, schema=pa.schema([("offset", pa.int32())])).schema.field(0).type == pa.int32()
    reader = pa.RecordBatchReader.from_stream(scan)
    assert reader.read_next_batch().num_rows >= 1
    del reader
    scan.__arrow_c_stream__()
    assert pa.table(scan).num_rows == COMMITS * ROWS


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_the_guide_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], snippet: str) -> None:
    for name in re.findall(r"^import (\w+)", snippet, re.MULTILINE):
        pytest.importorskip(name, reason=f"{name} is not installed")
    orders = sparklog.open(tmp_path / "log", create=True).create_topic("orders", configs={"retention.ms": -1})
    orders.append(pa.table({"key": ["anna", "carl"], "value": ["book", "sofa"]}))
    exec(compile(snippet.replace("/data/log", str(tmp_path / "log")), "guide", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "where",
    [
        '"offset" = 123',
        'partition IN (1, 5) AND "offset" BETWEEN 200 AND 209',
        "timestamp >= '2023-11-14 22:28:00+00' AND timestamp < '2023-11-14 22:28:30+00'",
        "key = 'key-3'::BLOB OR \"offset\" < 10",
        '"offset" % 9 = 0',
    ],
)
def test_duckdb_returns_the_same_as_for_a_table(topic: Topic, where: str) -> None:
    con = pytest.importorskip("duckdb", reason="duckdb is not installed").connect()
    assert sparklog.duckdb(con, topic.root) == ["orders"]
    plain = pa.table(topic.scan())
    con.register("plain", plain)
    query = 'SELECT partition, "offset", key, value FROM {} WHERE {} ORDER BY ALL'
    rows = con.sql(query.format("orders", where)).fetchall()
    assert rows == con.sql(query.format("plain", where)).fetchall() != []


@pytest.mark.usefixtures("damaged")
def test_duckdb_reports_errors(topic: Topic) -> None:
    con = pytest.importorskip("duckdb", reason="duckdb is not installed").connect()
    con.register("scan", topic.scan())
    with pytest.raises(Exception, match=re.escape(LINE)) as raised:
        con.sql("SELECT count(value) FROM scan").fetchall()
    assert "\n" not in str(raised.value).strip()


def test_polars_returns_the_same_as_for_a_frame(topic: Topic) -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    translated = import_module("sparklog.engines.datasets").translated
    late = datetime(2023, 11, 14, 22, 28, tzinfo=timezone.utc)
    column, frame = pl.col, pl.DataFrame(topic.scan())
    orders = sparklog.polars(topic.root)["orders"]
    place = ["partition", "offset"]
    for predicate, known in [
        ((column("offset") >= 5) & (column("partition") == 1), True),
        (column("partition").is_in([1, 2]) & column("offset").is_between(3, 4), True),
        (column("timestamp") >= late, True),
        (pl.lit(490) < column("offset"), True),
        ((column("offset") == 1) | (column("key") == b"key-3"), True),
        ((column("offset") == 1) & (column("offset") % 2 == 1), True),
        (column("offset") + 1 == 9, False),
        (column("offset") == column("partition"), False),
        (~(column("offset") > 3), False),
    ]:
        assert (translated(predicate) is not None) is known, predicate
        assert orders.filter(predicate).collect().sort(place).equals(frame.filter(predicate).sort(place)), predicate
    assert orders.head(3).filter(column("offset") >= 1).collect().height <= 2
    assert orders.select(pl.len()).collect().item() == COMMITS * ROWS
