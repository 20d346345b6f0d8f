"""The public functions that copy topics to tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog import formats
from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.tables.iceberg_catalog import open_catalog, table_identifier
from sparklog.tables.target import PartitionBy, parse_partition_by
from tests.support.servers import schema_registry

pyiceberg = pytest.importorskip("pyiceberg.catalog", reason="pyiceberg is not installed")


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def test_topic_is_copied_to_an_iceberg_table(tmp_path: Path) -> None:
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("t")
    topic.append(pa.table({"key": ["1", "2", "1"], "value": ['{"name": "a"}', '{"name": "b"}', "x"]}))
    options = {"payload": "json", "schema": "id INT, name STRING", "key_columns": ["id"], "bad_records": "quarantine"}
    report = sparklog.to_iceberg(tmp_path / "log", "t", "shop.t", catalog=properties(tmp_path), **options)  # type: ignore[arg-type]
    assert (report.records, report.rows, report.bad_records, report.next_offsets) == (3, 2, 1, {0: 3})
    catalog = pyiceberg.load_catalog("default", **properties(tmp_path))
    topic.append(pa.table({"key": ["3"], "value": ["{}"]}))
    assert sparklog.to_iceberg(topic.root, "t", "shop.t", catalog=catalog, **options).records == 1  # type: ignore[arg-type]
    rows = catalog.load_table("shop.t").scan().to_arrow().sort_by("_offset").to_pylist()
    assert [(row["id"], row["name"], row["_offset"]) for row in rows] == [(1, "a", 0), (2, "b", 1), (3, None, 3)]
    (bad,) = catalog.load_table("shop.t_quarantine").scan().to_arrow().to_pylist()
    assert (bad["offset"], bad["value"], bad["reason"]) == (2, b"x", "the value is not a JSON object")


def test_run_for_a_missing_topic_is_not_recorded(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    with pytest.raises(NotFound, match="'t'"):
        sparklog.to_iceberg(root, "t", "shop.t", catalog=properties(tmp_path))
    assert list(root.store.list_folders("_tables/")) == []


def test_only_catalogs_of_the_caller_remain_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    closed: list[object] = []
    catalog = open_catalog("default", properties(tmp_path))
    monkeypatch.setattr(SqlCatalog, "close", lambda catalog: closed.append(catalog))
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("t")
    sparklog.to_iceberg(root, "t", "shop.t", catalog=catalog)
    assert closed == []
    sparklog.to_iceberg(root, "t", "shop.t", catalog=properties(tmp_path))
    assert len(closed) == 1
    assert catalog not in closed


def test_read_only_database_of_a_catalog_is_a_missing_right(tmp_path: Path) -> None:
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("t")
    for number in range(2):
        topic.append(pa.table({"value": [b"%d" % number]}))
        if not number:
            sparklog.to_iceberg(topic.root, "t", "shop.t", catalog=properties(tmp_path))
    read_only = {**properties(tmp_path), "uri": f"sqlite:///file:{tmp_path}/catalog.db?mode=ro&uri=true"}
    with pytest.raises(Unavailable, match=r"access denied: cannot commit to table shop.t: attempt to write") as error:
        sparklog.to_iceberg(topic.root, "t", "shop.t", catalog=read_only)
    assert error.value.is_denied
    assert sparklog.to_iceberg(topic.root, "t", "shop.t", catalog=properties(tmp_path)).records == 1


def test_upsert_replaces_and_deletes_rows(tmp_path: Path) -> None:
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("t")
    catalog = pyiceberg.load_catalog("default", **properties(tmp_path))
    for keys, values in ((["a", "b"], ["1", "2"]), (["a", "c", "b"], ["3", "4", None])):
        topic.append(pa.table({"key": keys, "value": values}))
        sparklog.to_iceberg(topic.root, "t", "shop.t", catalog=catalog, mode="upsert", payload="string")
    rows = catalog.load_table("shop.t").scan().to_arrow().sort_by("key").select(["key", "value"]).to_pylist()
    assert rows == [{"key": "a", "value": "3"}, {"key": "c", "value": "4"}]


def test_invalid_arguments(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("t")
    catalog = properties(tmp_path)
    with pytest.raises(BadRequest, match=r"table must be NAMESPACE\.TABLE, found 't'"):
        sparklog.to_iceberg(root, "t", "t", catalog=catalog)
    with pytest.raises(BadRequest, match="mode must be append or upsert"):
        sparklog.to_iceberg(root, "t", "shop.t", catalog=catalog, mode="merge")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="cannot open the Iceberg catalog"):
        sparklog.to_iceberg(root, "t", "shop.t", catalog={"type": "unknown"})
    with pytest.raises(BadRequest, match="message requires payload='protobuf'"):
        sparklog.to_iceberg(root, "t", "shop.t", catalog=catalog, message="A")
    for offsets in ({"a": 1}, {0: "first"}, {"t": {"0": 3}}, "first", 1.5, [0]):
        with pytest.raises(
            BadRequest, match=r"starting_offsets must be earliest, latest, .* such as \{0: 23\} or None"
        ):
            sparklog.to_iceberg(root, "t", "shop.t", catalog=catalog, starting_offsets=offsets)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="topic 'u' does not exist"):
        sparklog.to_iceberg(root, "u", "shop.u", catalog=catalog)


SHOP = 'syntax = "proto3"; package shop; message Order { int32 id = 1; } message Refund { string reason = 1; }'


def test_a_registry_represents_the_subject_of_the_topic(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("t")
    with schema_registry.running() as server:
        server.register("t-value", SHOP, "PROTOBUF")
        registry = formats.SchemaRegistry(server.url)
        for message, row in (("shop.Order", {"id": 5}), ("shop.Refund", {"reason": "late"})):
            subject = registry.subject("t-value", message=message)
            topic.append(formats.encode_records(pa.table({"value": [row]}), value="protobuf", value_schema=subject))
        catalog = pyiceberg.load_catalog("default", **properties(tmp_path))
        options = {"catalog": catalog, "payload": "protobuf", "schema": registry, "bad_records": "skip"}
        sparklog.to_iceberg(topic.root, "t", "shop.orders", **options)  # type: ignore[arg-type]
        sparklog.to_iceberg(topic.root, "t", "shop.refunds", **options, message="shop.Refund")  # type: ignore[arg-type]
    assert catalog.load_table("shop.orders").scan().to_arrow()["id"].to_pylist() == [5]
    assert catalog.load_table("shop.refunds").scan().to_arrow()["reason"].to_pylist() == ["late"]


def test_identifiers_of_tables() -> None:
    assert table_identifier("a.b.t") == ("a", "b", "t")
    for text in ("", "t", "a.", ".t", "a..t"):
        with pytest.raises(BadRequest, match=r"table must be NAMESPACE\.TABLE"):
            table_identifier(text)


def test_catalog_without_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(BadRequest, match="Iceberg tables require pyiceberg: "):
        open_catalog(None, {})


def test_partitioning() -> None:
    assert parse_partition_by(None) == "default"
    assert parse_partition_by("none") is None
    assert parse_partition_by("day(_timestamp)") == PartitionBy("day", ("_timestamp",))
    assert parse_partition_by("bucket(8, id)") == PartitionBy("bucket", ("id",), 8)
    for text in ("bucket(0, id)", "hour(x)", "day()", ""):
        with pytest.raises(BadRequest, match="partition_by must be day"):
            parse_partition_by(text)


def test_table_of_an_earlier_release_continues_after_its_column_is_renamed(tmp_path: Path) -> None:
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("t")
    catalog = pyiceberg.load_catalog("default", **properties(tmp_path))

    def rename(old: str, new: str) -> None:
        with catalog.load_table("shop.t").update_schema() as update:
            update.rename_column(old, new)

    topic.append(pa.table({"value": ["a"]}))
    sparklog.to_iceberg(topic.root, "t", "shop.t", catalog=catalog)
    rename("_partition_id", "_partition")
    topic.append(pa.table({"value": ["b"]}))
    for grow_schema in (False, True):
        with pytest.raises(BadRequest, match=r"a release before 0\.15.*rename the column .* or copy the topic"):
            sparklog.to_iceberg(topic.root, "t", "shop.t", catalog=catalog, grow_schema=grow_schema)
    rename("_partition", "_partition_id")
    sparklog.to_iceberg(topic.root, "t", "shop.t", catalog=catalog)
    rows = catalog.load_table("shop.t").scan().to_arrow().sort_by("_offset")
    assert rows.select(["value", "_partition_id"]).to_pylist() == [
        {"value": b"a", "_partition_id": 0},
        {"value": b"b", "_partition_id": 0},
    ]


def test_fixed_values_are_copied_to_both_kinds_of_tables(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    fixed = {"type": "record", "name": "R", "fields": [
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "s", "type": {"type": "record", "name": "S", "fields": [{"name": "g", "type": "F"}]}},
    ]}  # fmt: skip
    topic = sparklog.open(tmp_path / "log", create=True).create_topic("t")
    row = {"f": b"ab", "s": {"g": b"\0\xff"}}
    topic.append(formats.encode_records(pa.table({"value": [row]}), value="avro", value_schema=fixed))
    catalog = pyiceberg.load_catalog("default", **properties(tmp_path))
    sparklog.to_iceberg(topic.root, "t", "shop.t", catalog=catalog, payload="avro", schema=fixed)
    sparklog.to_delta(topic.root, "t", str(tmp_path / "delta"), payload="avro", schema=fixed)
    delta = __import__("deltalake").DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    for rows in (catalog.load_table("shop.t").scan().to_arrow(), delta):
        assert rows.select(["f", "s"]).to_pylist() == [row]
