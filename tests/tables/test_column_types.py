"""Types of columns: Iceberg and Delta tables contain all values of formats with types that these tables do not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog import formats
from sparklog.errors import BadRequest
from sparklog.log.topic.root import RootView
from sparklog.tables.column_types import column_type, table_columns
from sparklog.tables.copy import TableCopy, TableCopyOptions
from sparklog.tables.rows import RowOptions, row_decoder
from sparklog.tables.target import TargetTable

PROTOBUF = """
syntax = "proto3";
import "google/protobuf/duration.proto";
message Row {
  uint32 small = 1;
  uint64 big = 2;
  google.protobuf.Duration wait = 3;
  Nothing nothing = 4;
  repeated Nothing nothings = 5;
  Inner inner = 6;
  repeated Inner list = 7;
  map<uint32, Inner> map = 8;
  map<string, Nothing> no_values = 9;
  message Inner { uint64 big = 1; google.protobuf.Duration wait = 2; Nothing nothing = 3; }
  message Nothing {}
}
"""
BIG = 2**64 - 1
WAIT = timedelta(days=2, microseconds=-1)
INNER = {"big": BIG, "wait": WAIT, "nothing": {}}
MESSAGE: dict[str, Any] = {
    "small": 2**32 - 1, "big": BIG, "wait": -WAIT, "nothing": {}, "nothings": [{}, {}],
    "inner": INNER, "list": [INNER, INNER | {"wait": None}], "map": [(2**32 - 1, INNER)], "no_values": [("k", {})],
}  # fmt: skip
MICROSECONDS = WAIT // timedelta(microseconds=1)
STORED_INNER = {"big": Decimal(BIG), "wait": MICROSECONDS}
STORED = {
    "small": 2**32 - 1, "big": Decimal(BIG), "wait": -MICROSECONDS, "inner": STORED_INNER,
    "list": [STORED_INNER, STORED_INNER | {"wait": None}], "map": [(2**32 - 1, STORED_INNER)],
}  # fmt: skip
Reader = Callable[[], pa.Table]
OpenTable = Callable[[Path], AbstractContextManager[tuple[TargetTable, Reader]]]


@contextmanager
def iceberg(folder: Path) -> Iterator[tuple[TargetTable, Reader]]:
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed")
    from sparklog.tables.iceberg import IcebergTable
    from tests.tables.iceberg_catalogs import new_id, sqlite_properties

    with sql.SqlCatalog("test", **sqlite_properties(folder)) as catalog:
        table = IcebergTable(catalog, ("shop", "orders"), new_id)
        yield table, lambda: catalog.load_table(("shop", "orders")).scan().to_arrow()


@contextmanager
def delta(folder: Path) -> Iterator[tuple[TargetTable, Reader]]:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    from sparklog.log.journal.clocks import SYSTEM
    from sparklog.tables.delta import DeltaLakeTable

    path = str(folder / "orders")
    yield DeltaLakeTable(path, {}, SYSTEM), lambda: pa.table(deltalake.DeltaTable(path).to_pyarrow_table())


@pytest.mark.parametrize("open_table", [iceberg, delta])
def test_tables_contain_all_protobuf_values(open_table: OpenTable, tmp_path: Path) -> None:
    kind = formats.open_format("protobuf", PROTOBUF).arrow_type()
    root = sparklog.open(tmp_path / "log", create=True)
    messages = pa.array([MESSAGE, {}], kind)
    root.create_topic("orders").append(pa.table({"value": formats.encode(messages, "protobuf", PROTOBUF)}))
    options = TableCopyOptions(rows=RowOptions("protobuf", schema=PROTOBUF))
    with open_table(tmp_path) as (table, read):
        report = TableCopy(RootView(root), "orders", table, options).copy_existing()
        rows = read().sort_by("_offset")
    assert (report.rows, report.bad_records) == (2, 0)
    first, second = rows.drop_columns(["_topic", "_partition_id", "_offset", "_timestamp"]).to_pylist()
    assert {name: value for name, value in first.items() if name != "_date"} == STORED
    assert (second["small"], second["big"], second["wait"], second["list"]) == (0, 0, None, [])


def test_types_are_converted_at_each_level() -> None:
    kind = pa.struct(
        [
            pa.field("a", pa.uint8(), nullable=False),
            pa.field("m", pa.map_(pa.uint16(), pa.list_(pa.struct([("x", pa.uint32()), ("n", pa.null())])))),
            pa.field("t", pa.time32("ms")),
            pa.field("nothing", pa.list_(pa.struct([("s", pa.struct([]))]))),
        ]
    )
    item = {"x": 2**32 - 1, "n": None}
    values = pa.array([{"a": 255, "m": [(65535, [item, None])], "t": time(1, 2, 3, 4000), "nothing": []}], kind)
    columns = table_columns(values)
    assert {name: str(column.type) for name, column in columns.items()} == {
        "a": "int16", "m": "map<int32, list<item: struct<x: int64>>>", "t": "time64[us]"
    }  # fmt: skip
    assert [column.to_pylist() for column in columns.values()] == [
        [255], [[(65535, [{"x": 2**32 - 1}, None])]], [time(1, 2, 3, 4000)]
    ]  # fmt: skip
    converted = column_type(kind)
    assert converted is not None
    assert not converted.field("a").nullable
    assert column_type(pa.string()) == pa.string()


def test_record_without_columns_is_rejected() -> None:
    schema = 'syntax = "proto3"; message Row { Row.Nothing nothing = 1; message Nothing {} }'
    with pytest.raises(BadRequest, match="payload='protobuf' requires a record schema"):
        row_decoder(RowOptions("protobuf", schema=schema), "t")
