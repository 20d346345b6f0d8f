"""Copies of topics to a table in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Conflict, NotFound, Unavailable
from sparklog.log.topic.root import Root, RootView
from sparklog.log.topic.topic import Topic
from sparklog.schemas.registry import SchemaRegistry
from sparklog.tables import copy as copy_module
from sparklog.tables import latest
from sparklog.tables.copy import MissingRecords, TableCopy, TableCopyOptions
from sparklog.tables.rows import BAD_RECORD_SCHEMA, RowOptions
from sparklog.tables.target import PartitionBy, TableState
from sparklog.tables.watermark import NewTopic, Watermark
from sparklog.testing.world import DAY_MS, START_MS, World
from sparklog.transactions.producer import transactional
from tests.tables.memory_table import MemoryCatalog, MemoryTable

JSON = RowOptions("json", schema="id BIGINT, name STRING")
UPSERT = replace(JSON, upsert=True, key_columns=("id",))


@pytest.fixture
def root() -> Root:
    return World().root()


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog()


def append(topic: Topic, *values: bytes | None, partition: int = 0, keys: Sequence[Any] | None = None) -> None:
    columns = {"key": pa.array(keys or [None] * len(values), pa.binary()), "value": pa.array(values, pa.binary())}
    topic.append(pa.table({**columns, "partition": pa.array([partition] * len(values), pa.int32())}))


def table_copy(
    root: Root, catalog: MemoryCatalog, options: TableCopyOptions | None = None, quarantine: MemoryCatalog | None = None
) -> TableCopy:
    bad = None if quarantine is None else MemoryTable(quarantine, "t_quarantine")
    return TableCopy(RootView(root), "t", MemoryTable(catalog, "t"), options or TableCopyOptions(), bad)


def positions(catalog: MemoryCatalog) -> list[tuple[int, int]]:
    rows = catalog.rows()
    return sorted(zip(rows["_partition_id"].to_pylist(), rows["_offset"].to_pylist(), strict=True))


def test_append_copies_each_record_once_and_continues_at_the_watermark(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t", partitions=2)
    append(topic, b"a", None)
    append(topic, b"b", partition=1, keys=[b"k"])
    report = table_copy(root, catalog).copy_existing()
    assert (report.records, report.rows, report.commits, report.files) == (3, 3, 1, 2)
    assert report.next_offsets == {0: 2, 1: 1}
    append(topic, b"c", partition=1)
    assert table_copy(root, catalog).copy_existing().records == 1
    assert table_copy(root, catalog).copy_existing().commits == 0
    rows = sorted(catalog.rows().to_pylist(), key=lambda row: (row["_partition_id"], row["_offset"]))
    assert [(row["key"], row["value"]) for row in rows] == [(None, b"a"), (None, None), (b"k", b"b"), (None, b"c")]
    assert {row["_topic"] for row in rows} == {"t"}
    assert positions(catalog) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert not catalog.unreferenced()


def test_append_contains_headers_and_timestamps(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t")
    headers = pa.array([[{"key": "h", "value": b"1"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
    time = pa.array([START_MS], pa.timestamp("ms", "UTC"))
    topic.append(pa.table({"value": [b"a"], "headers": headers, "timestamp": time}))
    table_copy(root, catalog).copy_existing()
    (row,) = catalog.rows().to_pylist()
    assert row["_headers"] == [{"key": "h", "value": b"1"}]
    assert row["_timestamp"].timestamp() * 1000 == START_MS


def test_files_contain_one_day_of_one_partition(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t", partitions=2)
    times = [START_MS, START_MS + DAY_MS, START_MS, START_MS + DAY_MS]
    columns = {"value": [b"%d" % n for n in range(4)], "timestamp": pa.array(times, pa.timestamp("ms", "UTC"))}
    topic.append(pa.table({**columns, "partition": pa.array([0, 0, 0, 1], pa.int32())}))
    assert table_copy(root, catalog).copy_existing().files == 3
    assert catalog.current is not None
    watermark = catalog.current.watermark
    assert watermark is not None
    ranges = [(0, 0, 3), (0, 1, 3), (1, 0, 1)]
    names = sorted(f"{watermark.topic_id}-{partition:05}-{first:020}-{end:020}-" for partition, first, end in ranges)
    assert [path[: len(names[0])] for path in sorted(catalog.current.paths)] == names
    # All files of an attempt contain the same random id.
    assert len({path[len(names[0]) : -len("0.parquet")] for path in catalog.current.paths}) == 1


def test_intervals_contain_at_most_the_maximum_number_of_records(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t", partitions=2)
    for number in range(10):
        append(topic, b"%d" % number, partition=number % 2)
    report = table_copy(root, catalog, TableCopyOptions(max_offsets=4)).copy_existing()
    assert (report.records, report.commits) == (10, 3)
    assert len(set(positions(catalog))) == catalog.rows().num_rows == 10


def test_records_that_fit_in_two_intervals_are_not_copied_in_three(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t", partitions=3)
    for partition, count in enumerate((3, 3, 4)):
        for _ in range(count):
            append(topic, b"a", partition=partition)
    report = table_copy(root, catalog, TableCopyOptions(max_offsets=5)).copy_existing()
    assert (report.records, report.commits) == (10, 2)


def test_aborted_records_are_not_copied(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t")
    producer = transactional(root, "writer")
    with producer.begin() as transaction:
        transaction.append("t", pa.table({"value": [b"committed"]}))
    aborted = producer.begin()
    aborted.append("t", pa.table({"value": [b"aborted"]}))
    aborted.abort()
    append(topic, b"later")
    table_copy(root, catalog).copy_existing()
    assert catalog.rows()["value"].to_pylist() == [b"committed", b"later"]


@pytest.mark.parametrize(("start", "expected"), [("earliest", 3), ("latest", 0), ({0: 2}, 1), (1, 2)])
def test_new_table_starts_at_the_starting_offsets(
    root: Root, catalog: MemoryCatalog, start: Any, expected: int
) -> None:
    topic = root.create_topic("t")
    append(topic, b"a", b"b", b"c")
    table_copy(root, catalog, TableCopyOptions(starting_offsets=start)).copy_existing()
    assert catalog.rows().num_rows == expected
    append(topic, b"d")
    table_copy(root, catalog, TableCopyOptions(starting_offsets="latest")).copy_existing()
    assert catalog.rows().num_rows == expected + 1, "a table with a watermark ignores the starting offsets"


def test_table_of_another_program_requires_starting_offsets(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t")
    append(topic, b"a")
    table_copy(root, catalog).copy_existing()
    catalog.change(watermark=None)
    with pytest.raises(BadRequest, match=r"table t exists, .* set starting_offsets"):
        table_copy(root, catalog).copy_existing()
    append(topic, b"b")
    table_copy(root, catalog, TableCopyOptions(starting_offsets={0: 1})).copy_existing()
    assert catalog.rows()["value"].to_pylist() == [b"a", b"b"]


def test_topic_that_was_created_again_stops_the_copy_unless_it_continues(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), b"a", b"b")
    table_copy(root, catalog).copy_existing()
    root.delete_topic("t")
    append(root.create_topic("t"), b"c")
    with pytest.raises(BadRequest, match="use new_topic='continue'"):
        table_copy(root, catalog).copy_existing()
    table_copy(root, catalog, TableCopyOptions(new_topic="continue")).copy_existing()
    table_copy(root, catalog).copy_existing()
    assert catalog.rows()["value"].to_pylist() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_of_a_topic_that_was_created_again_are_replaced(root: Root, catalog: MemoryCatalog, mode: str) -> None:
    """Another program changes the table before the rows are deleted."""

    def options(new_topic: NewTopic) -> TableCopyOptions:
        return TableCopyOptions(RowOptions(upsert=mode == "upsert"), new_topic=new_topic)

    append(root.create_topic("t"), b"a", b"b", keys=[b"1", b"2"])
    table_copy(root, catalog, options("replace")).copy_existing()
    assert catalog.rows().num_rows == 2
    root.delete_topic("t")
    append(root.create_topic("t"), b"c", b"d", keys=[b"2", b"3"])
    steps: list[str] = []

    def conflict(step: str) -> None:
        steps.append(step)
        if steps.count("clear") == 1 and step == "clear":
            assert catalog.current is not None
            catalog.commit(catalog.current)

    copy = TableCopy(RootView(root), "t", MemoryTable(catalog, "t", conflict), options("replace"))
    assert copy.copy_existing().records == 2
    assert steps.count("clear") == 2
    assert catalog.rows().select(["key", "value"]).to_pylist() == [
        {"key": b"2", "value": b"c"},
        {"key": b"3", "value": b"d"},
    ]
    append(root.topic("t"), b"e", keys=[b"4"])
    table_copy(root, catalog, options("fail")).copy_existing()
    assert catalog.rows().num_rows == 3


def test_deleted_records_stop_the_copy_unless_data_loss_is_allowed(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t")
    append(topic, b"a")
    table_copy(root, catalog).copy_existing()
    append(topic, b"b", b"c")
    topic.delete_records({0: 2})
    with pytest.raises(BadRequest, match="offsets 1 to 1 of t-0 were deleted before they were copied"):
        table_copy(root, catalog).copy_existing()
    table_copy(root, catalog, TableCopyOptions(fail_on_data_loss=False)).copy_existing()
    assert catalog.rows()["value"].to_pylist() == [b"a", b"c"]


def test_upsert_retains_the_latest_record_of_each_key(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t")
    options = TableCopyOptions(UPSERT)
    append(topic, b'{"id": 7, "name": "a"}', b'{"name": "b"}', b'{"name": "c"}', keys=[b"1", b"1", b"2"])
    report = table_copy(root, catalog, options).copy_existing()
    assert (report.records, report.rows, report.deleted, report.files) == (3, 2, 0, 1)
    assert report.file_bytes == sum(map(len, catalog.files.values()))
    append(topic, b'{"name": "d"}', None, b'{"name": "e"}', None, keys=[b"1", b"2", b"3", b"4"])
    report = table_copy(root, catalog, options).copy_existing()
    # The table does not contain key 4.
    assert (report.records, report.rows, report.deleted, report.files) == (4, 2, 1, 1)
    rows = catalog.rows().select(["id", "name", "_offset"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "d", 3), (3, "e", 5)]


def test_report_of_an_upsert_with_a_lost_response(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), b"a", b"b", keys=[b"1", b"2"])

    class Lossy(MemoryTable):
        def commit_merged(self, state: TableState, path: str, watermark: Watermark) -> None:
            super().commit_merged(state, path, watermark)
            raise Unavailable("the response was lost", is_unknown=True)

    options = TableCopyOptions(RowOptions(upsert=True))
    report = TableCopy(RootView(root), "t", Lossy(catalog, "t"), options).copy_existing()
    assert (report.rows, report.commits, report.files) == (2, 1, 1)


def test_upsert_of_raw_records(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t")
    append(topic, b"a", b"b", None, keys=[b"1", b"2", b"1"])
    table_copy(root, catalog, TableCopyOptions(RowOptions(upsert=True))).copy_existing()
    assert catalog.rows().select(["key", "value"]).to_pylist() == [{"key": b"2", "value": b"b"}]


@pytest.mark.parametrize(
    ("partition_by", "limit", "nbytes"),
    [(None, "UPSERT_BYTES", 3000), ("default", "UPSERT_BYTES", 3000), ("default", "FILE_BYTES", 9000)],
)
def test_upsert_uses_smaller_intervals_if_the_changes_do_not_fit(
    root: Root, catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch, partition_by: Any, limit: str, nbytes: int
) -> None:
    topic = root.create_topic("t")
    for number in range(8):
        append(topic, b"x" * 1000, keys=[b"%d0" % number])
    monkeypatch.setattr(latest, "BUFFER_BYTES", 1000)
    monkeypatch.setattr(latest if limit == "FILE_BYTES" else copy_module, limit, nbytes)
    monkeypatch.setattr(TableCopy, "batch_bytes", 1000)
    options = TableCopyOptions(RowOptions(upsert=True), partition_by=partition_by)
    report = table_copy(root, catalog, options).copy_existing()
    assert report.records == 8
    assert 2 < report.commits < 8
    assert catalog.rows().num_rows == 8


@pytest.mark.parametrize("partition_by", [None, "default"])
def test_intervals_grow_again_after_large_records(
    root: Root, catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch, partition_by: Any
) -> None:
    topic = root.create_topic("t")
    for number in range(8):
        append(topic, b"x" * 1000, keys=[b"%d0" % number])
    for number in range(200):
        append(topic, b"x", keys=[b"%d0" % (number % 8)])
    monkeypatch.setattr(latest, "BUFFER_BYTES", 1000)
    monkeypatch.setattr(copy_module, "UPSERT_BYTES", 3000)
    monkeypatch.setattr(latest, "FILE_BYTES", 40_000)
    monkeypatch.setattr(TableCopy, "batch_bytes", 1000)
    copy = table_copy(root, catalog, TableCopyOptions(RowOptions(upsert=True), partition_by=partition_by))
    sizes = []
    records = 0
    while copy.copy_interval():
        sizes.append(copy.report.records - records)
        records = copy.report.records
    assert records == 208
    # An interval that does not fit is not committed.
    assert min(sizes) == 0
    assert max(sizes[-4:]) > 4 * max(sizes[:4])


def test_upsert_copies_single_records_that_exceed_the_limit(
    root: Root, catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = root.create_topic("t", partitions=3)
    for partition in (0, 1, 2, 0):
        append(topic, b"x" * 1000, partition=partition, keys=[b"%d0" % topic.count().records])
    monkeypatch.setattr(latest, "BUFFER_BYTES", 900)
    monkeypatch.setattr(copy_module, "UPSERT_BYTES", 900)
    report = table_copy(root, catalog, TableCopyOptions(RowOptions(upsert=True))).copy_existing()
    assert (report.records, report.commits, catalog.rows().num_rows) == (4, 4, 4)


@pytest.mark.parametrize("partition_by", ["default", PartitionBy("bucket", ("id",), 3)], ids=["default", "3 buckets"])
def test_upsert_of_changes_in_a_temporary_file(
    root: Root, catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch, partition_by: Any
) -> None:
    monkeypatch.setattr(latest, "BUFFER_BYTES", 2000)
    monkeypatch.setattr(TableCopy, "batch_bytes", 1000)
    topic, expected = root.create_topic("t"), {}
    options = TableCopyOptions(UPSERT, partition_by=partition_by)
    for step in range(2):
        for number in range(120):
            key = f"{number * 7 % 90}"
            value = None if number % 11 == 5 else f'{{"name": "{step}-{number}"}}'.encode()
            append(topic, value, keys=[key.encode()])
            expected.pop(int(key), None)
            if value is not None:
                expected[int(key)] = f"{step}-{number}"
        report = table_copy(root, catalog, options).copy_existing()
        rows = catalog.rows().select(["id", "name"]).to_pylist()
        assert {row["id"]: row["name"] for row in rows} == expected
        assert len(rows) == len(expected)
        assert (report.records, report.commits) == (120, 1)
        assert report.rows == len(expected) == 82


BAD = (b'{"id": 1, "name": "a"}', b"nonsense", b'{"id": "x"}', b'{"id": 2}')


def test_bad_record_fails_the_copy_with_its_position(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), *BAD)
    with pytest.raises(BadRequest, match="t-0 offset 1: the value is not a JSON object; use bad_records='quarantine'"):
        table_copy(root, catalog, TableCopyOptions(JSON)).copy_existing()
    assert not catalog.versions


@pytest.mark.parametrize(
    ("value", "options", "error"),
    [
        (b"nonsense", TableCopyOptions(JSON), "t-0 offset 1: the value is not a JSON object"),
        (b'{"id": 2}', TableCopyOptions(replace(UPSERT, key_columns=("name",))), "t-0 offset 1: the record has no key"),
        (
            b'{"id": 2}',
            TableCopyOptions(replace(JSON, schema="id BIGINT, name STRING NOT NULL")),
            "t-0 offset 1: column name is null",
        ),
    ],
)
def test_copy_that_rejects_a_record_does_not_create_the_table(
    root: Root, catalog: MemoryCatalog, value: bytes, options: TableCopyOptions, error: str
) -> None:
    """The next run may use another mode and other columns."""
    append(root.create_topic("t"), b'{"id": 1, "name": "a"}', value, keys=[b"k", None])
    with pytest.raises(BadRequest, match=error):
        table_copy(root, catalog, options).copy_existing()
    assert not catalog.versions
    raw = TableCopyOptions(RowOptions(upsert=True), bad_records="skip")
    assert table_copy(root, catalog, raw).copy_existing().rows == 1


def test_records_that_are_deleted_before_the_table_is_created(root: Root, catalog: MemoryCatalog) -> None:
    """The copy starts at the new log start."""
    topic = root.create_topic("t")
    for number in range(3):
        append(topic, b'{"id": %d}' % number)

    class Deleting(TableCopy):
        def _check_first_interval(self, *arguments: Any) -> None:
            if not deleted:
                deleted.append(1)
                topic.delete_records({0: 1})
                raise MissingRecords(NotFound("offset 0 does not exist"))
            super()._check_first_interval(*arguments)

    deleted: list[int] = []
    copy = Deleting(RootView(root), "t", MemoryTable(catalog, "t"), TableCopyOptions(JSON))
    assert copy.copy_existing().records == 2
    assert positions(catalog) == [(0, 1), (0, 2)]


def test_bad_records_are_skipped(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), *BAD)
    report = table_copy(root, catalog, TableCopyOptions(JSON, bad_records="skip")).copy_existing()
    assert (report.records, report.rows, report.bad_records) == (4, 2, 2)
    assert positions(catalog) == [(0, 0), (0, 3)]


def test_bad_records_are_quarantined(root: Root, catalog: MemoryCatalog) -> None:
    topic, quarantine = root.create_topic("t"), MemoryCatalog()
    append(topic, *BAD)
    options = TableCopyOptions(JSON, bad_records="quarantine")
    report = table_copy(root, catalog, options, quarantine).copy_existing()
    assert (report.rows, report.bad_records) == (2, 2)
    append(topic, b"{}", b"[]")
    table_copy(root, catalog, options, quarantine).copy_existing()
    rows = quarantine.rows().to_pylist()
    assert [(row["topic"], row["partition"], row["offset"], row["value"]) for row in rows] == [
        ("t", 0, 1, b"nonsense"),
        ("t", 0, 2, b'{"id": "x"}'),
        ("t", 0, 5, b"[]"),
    ]
    assert rows[1]["reason"] == "the value does not match id bigint"
    assert positions(catalog) == [(0, 0), (0, 3), (0, 4)]


def test_runs_with_the_same_subject_have_the_same_fingerprint() -> None:
    """After a crash, the next run skips bad records that a run with the same fingerprint has quarantined."""

    def fingerprint(subject: str, url: str = "http://h:8081", columns: pa.Schema = BAD_RECORD_SCHEMA) -> str:
        schema = SchemaRegistry(url).subject(subject)
        return TableCopyOptions(RowOptions("avro", schema=schema)).fingerprint(columns)

    found = [fingerprint("a"), fingerprint("b"), fingerprint("a", "http://g"), fingerprint("a", columns=pa.schema([]))]
    assert found[0] == fingerprint("a")
    assert len(set(found)) == len(found)


def test_quarantine_requires_a_table(root: Root, catalog: MemoryCatalog) -> None:
    with pytest.raises(BadRequest, match="only be quarantined if"):
        table_copy(root, catalog, TableCopyOptions(JSON, bad_records="quarantine"))


def test_missing_columns_are_added_only_on_request(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t")
    append(topic, b'{"id": 1, "name": "a"}')
    table_copy(root, catalog, TableCopyOptions(JSON)).copy_existing()
    append(topic, b'{"id": 2, "name": "b", "age": 7}')
    wider = replace(JSON, schema="id BIGINT, name STRING, age INT")
    with pytest.raises(
        BadRequest, match="table t does not have the columns of the records: age int; use grow_schema=True to change"
    ):
        table_copy(root, catalog, TableCopyOptions(wider)).copy_existing()
    report = table_copy(root, catalog, TableCopyOptions(wider, grow_schema=True)).copy_existing()
    assert report.changed_columns == ["age"]
    assert catalog.rows().select(["id", "age"]).to_pylist() == [{"id": 1, "age": None}, {"id": 2, "age": 7}]
    table_copy(root, catalog, TableCopyOptions(JSON)).copy_existing()


def test_wider_columns_are_named_with_both_types(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), b'{"id": 1}')
    narrow = RowOptions("json", schema="id INT")
    table_copy(root, catalog, TableCopyOptions(narrow)).copy_existing()
    with pytest.raises(BadRequest, match="columns of the records: id bigint instead of int, name string; use grow"):
        table_copy(root, catalog, TableCopyOptions(JSON)).copy_existing()


def test_columns_with_another_type_are_rejected(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), b'{"id": 1}')
    table_copy(root, catalog, TableCopyOptions(JSON)).copy_existing()
    with pytest.raises(BadRequest, match="column id of table t has the type bigint, but the records have the type str"):
        table_copy(root, catalog, TableCopyOptions(replace(JSON, schema="id STRING"), grow_schema=True)).copy_existing()


def test_columns_that_differ_in_case_are_rejected(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), b'{"id": 1}')
    table_copy(root, catalog, TableCopyOptions(JSON)).copy_existing()
    other = TableCopyOptions(replace(JSON, schema="ID BIGINT, name STRING"), grow_schema=True)
    with pytest.raises(BadRequest, match="records contain column ID, but table t has column id: use the same case"):
        table_copy(root, catalog, other).copy_existing()


def test_missing_topic_is_reported(root: Root, catalog: MemoryCatalog) -> None:
    with pytest.raises(NotFound, match="topic 't' does not exist"):
        table_copy(root, catalog).copy_existing()
    assert catalog.current is None


def test_conflict_with_another_program_commits_the_same_files_again(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), b"a")
    table = MemoryTable(catalog, "t")
    commits = []

    def step(what: str) -> None:
        if what == "append":
            commits.append(set(catalog.files))
            if len(commits) < 3:
                assert catalog.current is not None
                catalog.change(snapshot=catalog.current.snapshot + 100)

    table.step = step
    report = TableCopy(RootView(root), "t", table, TableCopyOptions()).copy_existing()
    assert report.commits == 1
    assert commits[0] == commits[1] == commits[2]
    assert catalog.rows().num_rows == 1


def test_conflict_with_another_run_deletes_the_files(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), b"a")
    table = MemoryTable(catalog, "t")

    def step(what: str) -> None:
        if what == "append":
            table.step = lambda what: None
            table_copy(root, catalog).copy_existing()

    table.step = step
    report = TableCopy(RootView(root), "t", table, TableCopyOptions()).copy_existing()
    assert report.commits == 0
    assert catalog.rows().num_rows == 1
    assert not catalog.unreferenced()


def test_persistent_conflicts_end_the_copy(root: Root, catalog: MemoryCatalog) -> None:
    append(root.create_topic("t"), b"a")
    table = MemoryTable(catalog, "t")

    def step(what: str) -> None:
        if what == "append":
            assert catalog.current is not None
            catalog.change(snapshot=catalog.current.snapshot + 100)

    table.step = step
    with pytest.raises(Conflict, match="attempts to commit to table t failed"):
        TableCopy(RootView(root), "t", table, TableCopyOptions()).copy_existing()
    assert not catalog.unreferenced()


def test_table_that_is_dropped_during_a_copy_is_not_created_again(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t")
    append(topic, b"a")
    table_copy(root, catalog).copy_existing()
    append(topic, b"b")

    def drop(step: str) -> None:
        if step == "append":
            catalog.versions.clear()
            append(topic, b"c")
            raise NotFound("table t was dropped")

    copy = TableCopy(RootView(root), "t", MemoryTable(catalog, "t", drop), TableCopyOptions())
    with pytest.raises(NotFound, match="table t was dropped"):
        copy.copy_existing()
    assert catalog.current is None


def test_records_that_are_deleted_while_they_are_read_are_reported(root: Root, catalog: MemoryCatalog) -> None:
    topic = root.create_topic("t")
    append(topic, b"a")
    append(topic, b"b")

    def delete(step: str) -> None:
        if step == "create":
            topic.delete_records({0: 1})

    copy = TableCopy(RootView(root), "t", MemoryTable(catalog, "t", delete), TableCopyOptions())
    with pytest.raises(BadRequest, match="offsets 0 to 0 of t-0 were deleted before they were copied"):
        copy.copy_existing()


def test_copy_waits_for_a_catalog_that_becomes_unavailable(root: Root, catalog: MemoryCatalog) -> None:
    """A catalog that is unavailable from the start may have a wrong configuration, which is an error."""
    append(root.create_topic("t"), b"a")
    failures = 3

    def step(what: str) -> None:
        nonlocal failures
        if what == "load" and failures:
            failures -= 1
            raise Unavailable("the database restarts")

    copy = TableCopy(RootView(root), "t", MemoryTable(catalog, "t", step), TableCopyOptions())
    for _ in range(3):
        with pytest.raises(Unavailable):
            copy.copy_existing()
    assert copy.copy_existing().commits == 1
    append(root.topic("t"), b"b")
    failures = 3
    assert copy.copy_existing().commits == 2
    assert failures == 0
