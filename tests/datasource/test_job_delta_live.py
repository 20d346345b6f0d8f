"""The Delta jobs with Delta. The results are read with `deltalake`."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparklog
from sparklog.maintenance.table_runs import read_table_runs
from tests.datasource.live_delta import Driver, avro_jars
from tests.datasource.streams import forget_commit
from tests.kafka_tools import Missing

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(1800)]

DDL = "id BIGINT NOT NULL, name STRING, amount DOUBLE"
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


@pytest.fixture(scope="module")
def driver(spark_folder: Path) -> Iterator[Driver]:
    pytest.importorskip("deltalake", reason="tables are read back by deltalake: pip install deltalake")
    try:
        started = Driver(spark_folder)
    except Missing as missing:
        pytest.skip(str(missing))
    yield started
    started.close()


class Case:
    """A topic, a table and a checkpoint, and the job that copies between the topic and the table."""

    def __init__(self, driver: Driver, folder: Path, *options: str) -> None:
        self.driver, self.root, self.table = driver, folder / "log", folder / "tables" / "t"
        self.checkpoint = folder / "checkpoint"
        self.options = options

    def append(self, *records: tuple[bytes | None, bytes | None], partitions: int = 2) -> None:
        keys, values = zip(*records, strict=True)
        topic = sparklog.open(self.root, create=True).ensure_topic("orders", partitions=partitions)
        topic.append(pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}))

    def run(self, *more: object, die: str = "", driver: Driver | None = None) -> tuple[int, str]:
        given = ("--root", self.root, "--topic", "orders", "--table", self.table, "--checkpoint", self.checkpoint)
        return (driver or self.driver).job("to-delta", *given, *self.options, *more, die=die)

    def rows(self, table: Path | None = None) -> list[dict[str, Any]]:
        """Return the rows that deltalake reads. Spark reads the same rows."""
        path = table or self.table
        found = read(path)
        assert sorted(map(str, self.driver.sql(f"SELECT * FROM delta.`{path}`"))) == sorted(
            str({name: bytearray(v) if isinstance(v, bytes) else v for name, v in row.items() if name != "headers"})
            for row in found
        ) or any({"timestamp", "_timestamp", "at"} & row.keys() for row in found)
        return found

    @property
    def bad(self) -> list[dict[str, Any]]:
        return read(Path(f"{self.table}_quarantine"))


def read(path: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return rows


def order(number: int, name: str | None = "x", amount: float | None = 1.0) -> tuple[bytes, bytes]:
    return str(number).encode(), json.dumps({"id": number, "name": name, "amount": amount}).encode()


def fine(answer: tuple[int, str]) -> None:
    assert answer[0] == 0, answer[1]


def fails(answer: tuple[int, str], *texts: str) -> None:
    code, errors = answer
    lines = errors.splitlines()
    assert code == 1, errors
    assert len(lines) == 1, errors
    for text in texts:
        assert text in lines[0]


def test_raw_records_are_appended_once(driver: Driver, tmp_path: Path) -> None:
    case = Case(driver, tmp_path, "--max-offsets-per-trigger", "40")
    case.append(*((f"k{n % 7}".encode() if n % 5 else None, b"\xff%d" % n if n % 3 else None) for n in range(100)))
    for again in range(3):
        fine(case.run())
        if again == 0:
            forget_commit(case.checkpoint, 2)
        records = sparklog.open(case.root).topic("orders").scan().to_table().to_pylist()
        written = read(case.table)
        place = ("partition", "offset")
        assert len(written) == len(records) == 100
        names = ("topic", "key", "value", "timestamp", *place)
        for table in (written, records):
            table.sort(key=lambda row: [row[name] for name in place])
        assert [[row[name] for name in names] for row in written] == [[row[name] for name in names] for row in records]
    case.append((b"later", b"1"))
    fine(case.run())
    assert len(read(case.table)) == 101


def test_runs_are_recorded_in_the_root(driver: Driver, tmp_path: Path) -> None:
    case = Case(driver, tmp_path, "--max-offsets-per-trigger", "2")
    case.append(*((b"k", b"%d" % number) for number in range(4)), partitions=1)
    fine(case.run())
    fine(case.run())
    runs = read_table_runs(sparklog.open(case.root), ["orders"], [])["orders"].runs
    assert [(run.job, run.table, run.copied.records, run.copied.commits, run.failure) for run in runs] == [
        ("to-delta", str(case.table), 4, 2, ""),
        ("to-delta", str(case.table), 0, 0, ""),
    ]


def test_an_upsert_is_a_dictionary(driver: Driver, tmp_path: Path) -> None:
    options = ("--payload", "json", "--schema", DDL, "--mode", "upsert", "--key-columns", "id")
    case = Case(driver, tmp_path, *options, "--max-offsets-per-trigger", "37")
    seeded, model = random.Random(7), dict[int, tuple[str, float]]()
    for round_ in range(4):
        records = []
        for number in range(120):
            key = seeded.randrange(25)
            if seeded.random() < 0.3:
                model.pop(key, None)
                records.append((str(key).encode(), None))
            else:
                model[key] = (f"n{round_}-{number}", seeded.random())
                records.append(order(key, *model[key]))
        case.append(*records)
        fine(case.run())
        if round_ == 2:
            last = max(int(entry.name) for entry in (case.checkpoint / "commits").iterdir() if entry.name.isdigit())
            forget_commit(case.checkpoint, last)
            fine(case.run())
        assert {row["id"]: (row["name"], row["amount"]) for row in case.rows()} == model
        assert len(case.rows()) == len(model)


@pytest.mark.parametrize("seed", range(3))
def test_after_any_history_the_rows_are_those_of_the_topics_table(driver: Driver, tmp_path: Path, seed: int) -> None:
    options = ("--payload", "json", "--schema", DDL, "--mode", "upsert", "--key-columns", "id")
    case = Case(driver, tmp_path, *options, "--max-offsets-per-trigger", "23")
    seeded = random.Random(seed)
    root = sparklog.open(case.root, create=True)
    small = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    topic = root.create_topic("orders", partitions=3, configs=small)
    producer = sparklog.transactional(root, "shop")
    for _ in range(4):
        for _ in range(seeded.randrange(1, 4)):
            records = [
                (str(number).encode(), None) if seeded.random() < 0.3 else order(number, f"n{seeded.random()}")
                for number in (seeded.randrange(15) for _ in range(seeded.randrange(1, 40)))
            ]
            keys, values = (pa.array(column, pa.binary()) for column in zip(*records, strict=True))
            rows = pa.table({"key": keys, "value": values})
            step = seeded.choice(("append", "commit", "abort", "compact", "roll"))
            if step in ("commit", "abort"):
                transaction = producer.begin()
                transaction.append("orders", rows)
                transaction.commit() if step == "commit" else transaction.abort()
            elif step == "append":
                topic.append(rows)
            else:
                sparklog.compact(root, roll=step == "roll")
        fine(case.run())
        latest = (json.loads(value) for value in topic.table().to_table()["value"].to_pylist())
        assert sorted(latest, key=lambda row: int(row["id"])) == sorted(case.rows(), key=lambda row: int(row["id"]))
    assert topic.scan(isolation_level="read_uncommitted").to_table().num_rows > 0


@pytest.mark.parametrize("step", ["write_bad", "write_rows"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_kills_between_steps_do_not_lose_or_repeat_records(
    driver: Driver, spark_folder: Path, tmp_path: Path, step: str, mode: str
) -> None:
    options = ("--payload", "json", "--schema", DDL, "--bad-records", "quarantine", "--key-columns", "id")
    case = Case(driver, tmp_path, *options, "--mode", mode, "--max-offsets-per-trigger", "20")
    case.append(*(order(n) if n % 10 else (b"%d" % n, b"bad %d" % n) for n in range(60)), partitions=1)
    killed = Driver(spark_folder)
    with suppress(BrokenProcessPool):
        case.run(die=step, driver=killed)
        raise AssertionError("it was not killed")
    assert len(case.bad) == 4
    assert len(read(case.table)) == {"write_bad": 18, "write_rows": 36}[step]
    fine(case.run())
    assert sorted(row["id"] for row in case.rows()) == [n for n in range(60) if n % 10]
    assert sorted(row["offset"] for row in case.bad) == list(range(0, 60, 10))


BAD = [
    ((b"1", b"{"), "the value is not a JSON object"),
    ((b"1", b""), "the value is not a JSON object"),
    ((b"1", b"[1]"), "the value is not a JSON object"),
    ((b"1", b'{"id":1,"amount":"x","name":"n"}'), "the value does not match amount double"),
    ((b"1", b'{"id":1,"name":"\xff"}'), "the value is not UTF-8"),
    ((b"one", b'{"id":1}'), "the key does not match id bigint"),
    ((b"\xff", b'{"id":1}'), "the key does not match id bigint"),
    ((None, b'{"id":1}'), "the record has no key"),
]


def test_bad_records_fail_or_go_into_quarantine(driver: Driver, tmp_path: Path) -> None:
    options = ("--payload", "json", "--schema", "id BIGINT, name STRING, amount DOUBLE", "--key-columns", "id")
    case = Case(driver, tmp_path, *options, "--mode", "upsert")
    case.append(order(1), *(record for record, _ in BAD), order(2), (b"1", None), (b"3", None), partitions=1)
    fails(case.run(), "orders-0 offset 1: the value is not a JSON object", "--bad-records quarantine")
    assert case.rows() == []
    fine(case.run("--bad-records", "quarantine"))
    assert case.rows() == [{"id": 2, "name": "x", "amount": 1.0}]
    found = sorted(case.bad, key=lambda row: int(row["offset"]))
    assert [(row["key"], row["value"]) for row in found] == [record for record, _ in BAD]
    assert [row["reason"] for row in found] == [reason for _, reason in BAD]
    assert {(row["topic"], row["partition"]) for row in found} == {("orders", 0)}
    assert [row["offset"] for row in found] == list(range(1, 1 + len(BAD)))


def test_what_an_append_makes_of_tombstones_nulls_and_several_keys(driver: Driver, tmp_path: Path) -> None:
    options = ("--payload", "json", "--schema", "a BIGINT, b STRING, c INT NOT NULL", "--key-columns", "a,b")
    case = Case(driver, tmp_path, *options, "--bad-records", "quarantine", "--metadata")
    good = (b'{"a":1,"b":"x"}', b'{"c":3,"a":9}')
    wrong = [(good[0], None), (b'{"a":1}', good[1]), (good[0], b"{}")]
    case.append(good, (None, good[1]), *wrong, partitions=1)
    fine(case.run())
    rows = sorted(case.rows(), key=lambda row: int(row["_offset"]))
    assert [(row["a"], row["b"], row["c"], row["_topic"], row["_partition"]) for row in rows] == [
        (1, "x", 3, "orders", 0),
        (None, None, 3, "orders", 0),
    ]
    assert [row["reason"] for row in sorted(case.bad, key=lambda row: int(row["offset"]))] == [
        "the record has no value; tombstones require the mode upsert",
        "the key is not a JSON object with a, b",
        "column c is null",
    ]


def test_the_schema_grows_on_request(driver: Driver, tmp_path: Path) -> None:
    case = Case(driver, tmp_path, "--payload", "json")
    case.append((b"1", b'{"id":1,"more":"m"}'))
    fine(case.run("--schema", "id BIGINT"))
    case.append((b"2", b'{"id":2,"more":"m"}'))
    fails(case.run("--schema", "id STRING"), "column 'id' is bigint in the table and string in the rows")
    fails(case.run("--schema", "id BIGINT, more STRING"), "has no column 'more' (string); use --grow-schema to add it")
    fine(case.run("--schema", "id BIGINT, more STRING", "--grow-schema"))
    case.append((b"3", b'{"id":3,"more":"m"}'))
    fine(case.run("--schema", "id BIGINT"))
    rows = sorted(case.rows(), key=lambda row: int(row["id"]))
    assert rows == [{"id": 1, "more": None}, {"id": 2, "more": "m"}, {"id": 3, "more": None}]
    fails(case.run("--schema", "id INT,"), "--schema must be a list of columns")


@pytest.mark.parametrize("frame", [b"", b"\0\0\0\0\x07"], ids=["bare", "framed"])
def test_avro(driver: Driver, tmp_path: Path, frame: bytes) -> None:
    fastavro = pytest.importorskip("fastavro", reason="writes Avro values: pip install 'sparklog[avro]'")
    if not avro_jars():
        pytest.skip("the jar of from_avro cannot be fetched here")
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(AVRO))

    def encoded(row: dict[str, Any]) -> bytes:
        written = BytesIO()
        fastavro.schemaless_writer(written, AVRO, row)
        return frame + written.getvalue()

    schema = f"7={file}" if frame else str(file)
    case = Case(driver, tmp_path, "--payload", "avro", "--schema", schema, "--bad-records", "quarantine")
    whole = encoded({"id": 5, "name": "five"})
    wrong = [whole[:-1], whole + b"x", b"", frame] + ([b"\0\0\0\0\x08" + whole[5:]] if frame else [])
    case.append((b"1", encoded({"id": 1, "name": None})), *((b"w", value) for value in wrong), (b"2", whole))
    fine(case.run())
    assert sorted(case.rows(), key=lambda row: int(row["id"])) == [
        {"id": 1, "name": None},
        {"id": 5, "name": "five"},
    ]
    assert sorted(row["value"] for row in case.bad) == sorted(wrong)
    assert {row["reason"] for row in case.bad} <= {
        "the value does not match the Avro schema",
        "the value does not start with the schema registry header of schema 7",
    }


def test_a_new_checkpoint_begins_at_any_offset(driver: Driver, tmp_path: Path) -> None:
    case = Case(driver, tmp_path)
    case.append(*((b"k", b"%d" % n) for n in range(30)), partitions=1)
    fine(case.run("--starting-offsets", '{"orders":{"0":17}}'))
    assert sorted(row["offset"] for row in read(case.table)) == list(range(17, 30))
    other = Case(driver, tmp_path / "b")
    other.append((b"k", b"1"))
    fails(other.run("--starting-offsets", "seventeen"), "startingOffsets")


def changes(driver: Driver, table: Path) -> None:
    """A table with all kinds of rows, and a history of changes."""
    name = f"delta.`{table}`"
    driver.sql(
        f"CREATE TABLE {name} (id BIGINT, part STRING, amount DECIMAL(20,4), at TIMESTAMP, bytes BINARY, "
        "list ARRAY<INT>, nested STRUCT<a: INT, b: STRING>) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    row = (
        "'p', CAST(id AS DECIMAL(20,4)) / 8, timestamp_micros(1700000000123456 + id), CAST('b' || id AS BINARY), "
        "array(CAST(id AS INT), null), named_struct('a', CAST(id AS INT), 'b', null)"
    )
    driver.sql(f"INSERT INTO {name} SELECT id, {row} FROM range(0, 40)")
    driver.sql(f"UPDATE {name} SET amount = null, list = null WHERE id % 4 = 0")
    driver.sql(f"DELETE FROM {name} WHERE id % 5 = 1")
    driver.sql(f"UPDATE {name} SET id = id + 100 WHERE id % 7 = 0")
    driver.sql(
        f"MERGE INTO {name} t USING (SELECT id FROM range(30, 50)) s ON t.id = s.id "
        "WHEN MATCHED AND s.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET part = 'merged' "
        "WHEN NOT MATCHED THEN INSERT (id, part) VALUES (s.id, 'new')"
    )


@pytest.mark.parametrize("starting", [(), ("--starting-version", "0")], ids=["rows", "history"])
@pytest.mark.parametrize("keys", ["id", "id,part"])
def test_changes_into_a_topic_and_back(driver: Driver, tmp_path: Path, keys: str, starting: tuple[str, ...]) -> None:
    table, case = tmp_path / "from", Case(driver, tmp_path)
    changes(driver, table)
    given = ("--table", table, "--root", case.root, "--topic", "orders", "--key-columns", keys)
    given += ("--num-partitions", 3, "--checkpoint", tmp_path / "out", *starting)
    ddl = "id BIGINT, part STRING, amount DECIMAL(20,4), at TIMESTAMP, bytes BINARY, list ARRAY<INT>, "
    case.options = ("--payload", "json", "--mode", "upsert", "--key-columns", keys)
    case.options += ("--schema", ddl + "nested STRUCT<a: INT, b: STRING>")
    for again in range(3):
        fine(driver.job("from-delta", *given))
        if again == 0:
            count = sum(batch.num_rows for batch in sparklog.open(case.root).topic("orders").scan())
            forget_commit(tmp_path / "out", 0)
            fine(driver.job("from-delta", *given))
            assert sum(batch.num_rows for batch in sparklog.open(case.root).topic("orders").scan()) == count
        fine(case.run())
        both = [sorted(map(str, read(path))) for path in (table, case.table)]
        assert both[0] == both[1]
        driver.sql(f"UPDATE delta.`{table}` SET amount = {again} WHERE id < 20")
        driver.sql(f"DELETE FROM delta.`{table}` WHERE id BETWEEN {again} AND {again * 3}")
    topic = sparklog.open(case.root).topic("orders")
    assert topic.log.state().configs.is_compacted


def test_a_raw_table_goes_back_as_it_came(driver: Driver, tmp_path: Path) -> None:
    case = Case(driver, tmp_path, "--mode", "upsert")
    case.append(*((b"k%d" % (n % 9), b"\xff%d" % n if n % 4 else None) for n in range(50)))
    fine(case.run())
    name = f"delta.`{case.table}`"
    driver.sql(f"ALTER TABLE {name} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    given = ("--table", case.table, "--root", case.root, "--topic", "back", "--key-columns", "key", "--payload", "raw")
    fine(driver.job("from-delta", *given, "--checkpoint", tmp_path / "out"))
    back = sparklog.open(case.root).topic("back").scan().to_table().to_pylist()
    assert {row["key"]: row["value"] for row in back} == {row["key"]: row["value"] for row in read(case.table)}


def test_table_errors_are_one_line(driver: Driver, tmp_path: Path) -> None:
    plain, rows = tmp_path / "plain", tmp_path / "rows"
    driver.sql(f"CREATE TABLE delta.`{plain}` (id BIGINT) USING delta")
    driver.sql(
        f"CREATE TABLE delta.`{rows}` (id BIGINT, no STRING) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    driver.sql(f"INSERT INTO delta.`{rows}` VALUES (1, 'a'), (1, 'b'), (2, null)")
    (tmp_path / "empty").mkdir()
    for number, (table, more, texts) in enumerate(
        (
            (tmp_path / "empty", "id", ("there is no Delta table at", "--table")),
            (plain, "id", ("does not have a change data feed", "ALTER TABLE delta.`")),
            (rows, "key", ("there is no column 'key' in the table", "the columns are id, no")),
            (rows, "Id", ("did you mean 'id'?",)),
            (rows, "id", ("id 1 identifies two rows of version 1", "choose --key-columns")),
            (rows, "no", ("no is null in a row of version 1",)),
            (rows, "id,no", ("id, no is null in a row of version 1",)),
        )
    ):
        given = ("--table", table, "--root", tmp_path / "log", "--topic", "t", "--key-columns", more)
        fails(driver.job("from-delta", *given, "--checkpoint", tmp_path / f"c{number}"), *texts)
    case = Case(driver, tmp_path / "to")
    case.append((b"k", b"v"))
    (case.table / "part").mkdir(parents=True)
    (case.table / "data.parquet").write_bytes(b"PAR1")
    fails(case.run(), f"{case.table} is not a Delta table, but contains files such as ", "use a new directory")
    assert sorted(file.name for file in case.table.iterdir()) == ["data.parquet", "part"]
    case.table = plain
    fails(case.run(), "the table has no column 'key' (binary); use --grow-schema to add it")


def test_a_relative_table_and_what_an_interrupted_creation_left(driver: Driver, tmp_path: Path) -> None:
    case = Case(driver, tmp_path, "--payload", "json", "--schema", DDL, "--mode", "upsert", "--key-columns", "id")
    case.append((b"1", b'{"id": 1, "name": "anna"}'), (b"2", b'{"id": 2, "name": "ben"}'), (b"1", None), partitions=1)
    table = case.table
    (table / "_delta_log" / "_staged_commits").mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), table / "part-0.parquet")
    case.table = Path(os.path.relpath(table))
    code, said = case.run()
    assert code == 0, said
    assert [(row["id"], row["name"]) for row in case.rows(table)] == [(2, "ben")]
    (first, *_) = driver.sql(f"DESCRIBE HISTORY delta.`{table}` ")[::-1]
    assert (first["version"], first["operation"]) == (0, "CREATE TABLE"), "no file without rows"
    code, said = driver.job(
        *("from-delta", "--table", case.table, "--root", tmp_path / "log", "--topic", "back", "--key-columns", "id"),
        *("--checkpoint", tmp_path / "back"),
    )
    assert f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES" in said


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_spark_reads_and_maintains_a_table_that_was_written_without_spark(
    driver: Driver, tmp_path: Path, mode: Any
) -> None:
    case = Case(driver, tmp_path, "--mode", mode)

    def copy() -> None:
        sparklog.to_delta(case.root, "orders", str(case.table), mode=mode)

    def check(count: int) -> None:
        statement = f"SELECT key, value, _partition_id, _offset, day(_timestamp) AS day FROM delta.`{case.table}`"
        found = [
            {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}
            for row in driver.sql(statement)
        ]
        expected = [
            {**{name: row[name] for name in ("key", "value", "_partition_id", "_offset")}, "day": row["_timestamp"].day}
            for row in read(case.table)
        ]
        assert sorted(map(str, found)) == sorted(map(str, expected))
        assert len(found) == count

    case.append(*((b"k%d" % number, b"1") for number in range(20)))
    copy()
    check(20)
    case.append(*((b"k%d" % number, b"2" if number % 2 else None) for number in range(10, 30)))
    copy()
    check(40 if mode == "append" else 20)
    # Spark skips files by the statistics of the copy.
    [row] = driver.sql(f"SELECT count(*) AS n FROM delta.`{case.table}` WHERE _offset = 0 AND _partition_id = 0")
    assert row["n"] == (1 if any(row["_offset"] == 0 and row["_partition_id"] == 0 for row in read(case.table)) else 0)
    driver.sql(f"OPTIMIZE delta.`{case.table}`")
    driver.sql(f"VACUUM delta.`{case.table}`")
    case.append((b"k1", b"3"), (b"k90", b"3"))
    copy()
    check(42 if mode == "append" else 21)
    fails(case.run(), "was written by to-delta without --checkpoint: omit --checkpoint, or use another table")
    check(42 if mode == "append" else 21)


def test_table_of_the_job_on_spark_is_rejected_without_spark(driver: Driver, tmp_path: Path) -> None:
    case = Case(driver, tmp_path)
    case.append((b"a", b"1"))
    fine(case.run())
    with pytest.raises(sparklog.BadRequest, match="was not created by copying a topic: use another table"):
        sparklog.to_delta(case.root, "orders", str(case.table))
    assert len(read(case.table)) == 1
