"""Test that other engines read the tables of copies, and that copies continue after their changes.

The engines are DuckDB with its Iceberg extension, and Spark 4.0 with Iceberg's runtime.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import sparklog
from sparklog.jobs import to_iceberg
from sparklog.jobs.common import DONE
from sparklog.log.topic.root import Root
from sparklog.tables.iceberg_schema import RESERVED_NAMES
from tests.support.rest_catalog import RestServer
from tests.support.servers.programs import DUCKDB_ICEBERG, ICEBERG_RUNTIME, PYSPARK_4_0, Missing, Program, find_or_fetch
from tests.tables.iceberg_catalogs import open_catalog

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(900)]
SCRIPT = Path(__file__).with_name("iceberg_sql.py")
ORDERS = (
    "SELECT CAST(key AS STRING), CAST(value AS STRING), _topic, _partition_id, _offset FROM {}"
    " ORDER BY CAST(key AS STRING)"
)
CUSTOMERS = "SELECT id, name FROM {} ORDER BY id"


def program(wanted: Program) -> str:
    try:
        return find_or_fetch(wanted)
    except Missing as missing:
        pytest.skip(str(missing))


def execute(interpreter: str, settings: dict[str, Any]) -> list[list[list[Any]]]:
    """Execute SQL in another interpreter, and return the rows of each statement."""
    result = subprocess.run(
        [interpreter, str(SCRIPT)], input=json.dumps(settings), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-20000:]
    found: list[list[list[Any]]] = json.loads(result.stdout.splitlines()[-1])
    return found


class Tables:
    """A root with two topics, and their tables. The watermark of the table of customers is in the root."""

    def __init__(self, root: Root, directory: Path, server: RestServer) -> None:
        self.root = root
        self.directory = directory
        self.server = server
        root.create_topic("orders", partitions=2)
        root.create_topic("customers")

    def produce(self, numbers: Sequence[int]) -> None:
        keys = [b"k%d" % number for number in numbers]
        self.root.topic("orders").append(pa.table({"key": keys, "value": [b"v%d" % number for number in numbers]}))
        names = [json.dumps({"name": f"name {number}"}).encode() for number in numbers]
        ids = [b"%d" % (number % 20) for number in numbers]
        self.root.topic("customers").append(pa.table({"key": ids, "value": names}))

    def copy(self) -> None:
        more = ("--mode", "upsert", "--payload", "json", "--schema", "id INT, name STRING", "--key-columns", "id")
        for topic, options in (("orders", ()), ("customers", (*more, "--watermark", "root"))):
            words = [
                *("--root", str(self.directory / "root"), "--topic", topic, "--table", f"shop.{topic}"),
                *("--catalog", "test", "--catalog-property", "type=rest"),
                *("--catalog-property", f"uri={self.server.uri}", "--snapshot-age", "never"),
            ]
            assert to_iceberg.main([*words, *options]) == DONE

    def rows(self) -> list[list[list[Any]]]:
        """Return the rows that pyiceberg reads."""
        with RestCatalog("test", uri=self.server.uri) as catalog:
            orders, customers = (
                catalog.load_table(("shop", name)).scan().to_arrow().to_pylist() for name in ("orders", "customers")
            )
        positions = ("_topic", "_partition_id", "_offset")
        found = [[row["key"].decode(), row["value"].decode(), *(row[name] for name in positions)] for row in orders]
        return [sorted(found), sorted([row["id"], row["name"]] for row in customers)]

    def with_duckdb(self) -> list[list[list[Any]]]:
        with RestCatalog("test", uri=self.server.uri) as catalog:
            locations = [catalog.load_table(("shop", name)).metadata_location for name in ("orders", "customers")]
        scans = [f"iceberg_scan('{location.removeprefix('file://')}')" for location in locations]
        statements = [ORDERS.format(scans[0]), CUSTOMERS.format(scans[1])]
        return execute(program(DUCKDB_ICEBERG), {"statements": statements})

    def with_spark(self, *statements: str) -> list[list[list[Any]]]:
        """Execute statements, and return the rows that Spark reads afterwards."""
        selects = [ORDERS.format("test.shop.orders"), CUSTOMERS.format("test.shop.customers")]
        settings = {"uri": self.server.uri, "jar": program(ICEBERG_RUNTIME), "statements": [*statements, *selects]}
        return execute(program(PYSPARK_4_0), settings)[-2:]


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    with open_catalog("rest", tmp_path) as setup:
        assert setup.server is not None
        yield Tables(sparklog.open(tmp_path / "root", create=True), tmp_path, setup.server)


def expected(numbers: Sequence[int], without: Sequence[int] = ()) -> tuple[set[tuple[str, str]], dict[int, str]]:
    customers = {number % 20: f"name {number}" for number in numbers}
    orders = {(f"k{number}", f"v{number}") for number in numbers}
    return orders, {number: name for number, name in customers.items() if number not in without}


def check(rows: list[list[list[Any]]], numbers: Sequence[int], without: Sequence[int] = ()) -> None:
    orders, customers = expected(numbers, without)
    assert len(rows[0]) == len(orders)
    assert {(key, value) for key, value, *_ in rows[0]} == orders
    assert [tuple(row) for row in rows[1]] == sorted(customers.items())


def test_duckdb_reads_the_same_rows(tables: Tables) -> None:
    tables.produce(range(30))
    tables.copy()
    check(tables.rows(), range(30))
    assert tables.with_duckdb() == tables.rows()


def test_spark_cannot_read_columns_with_reserved_names(tables: Tables) -> None:
    """Copies reject these columns. Spark reads columns with other names of the specification."""
    reserved = [pa.field(name, pa.string()) for name in RESERVED_NAMES]
    inner = pa.field("inner", pa.struct(reserved))
    allowed = [inner, *(pa.field(name, pa.string()) for name in ("_change_type", "_commit_snapshot_id", "pos"))]
    columns = [*reserved, *allowed]
    with RestCatalog("test", uri=tables.server.uri) as catalog:
        catalog.create_namespace("names")
        for number, column in enumerate(columns):
            catalog.create_table(("names", f"t{number}"), pa.schema([column])).append(
                pa.table([[None]], pa.schema([column]))
            )
    statements = [f"SELECT * FROM test.names.t{number}" for number in range(len(columns))]
    settings = {"uri": tables.server.uri, "jar": program(ICEBERG_RUNTIME), "statements": statements, "may_fail": True}
    found = execute(program(PYSPARK_4_0), settings)
    assert all("conflict with names reserved" in rows[0][1] for rows in found[: len(reserved)]), found
    assert found[len(reserved) :] == [[[None]]] * len(allowed)


def test_copies_continue_after_changes_of_spark(tables: Tables) -> None:
    for first in (0, 15):
        tables.produce(range(first, first + 15))
        tables.copy()
    assert tables.with_spark() == tables.rows()
    changes = (
        "ALTER TABLE test.shop.customers SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')",
        "DELETE FROM test.shop.customers WHERE id = 13",
        # Iceberg rejects statements that read all columns if one of them has a reserved name, such as _partition.
        "UPDATE test.shop.orders SET value = value",
        "CALL test.system.rewrite_data_files(table => 'shop.orders', options => map('rewrite-all', 'true'))",
        "SELECT count(*) FROM (SELECT * FROM test.shop.orders)",
        *(
            f"CALL test.system.expire_snapshots(table => 'shop.{name}', older_than => timestamp'2100-01-01',"
            " retain_last => 1)"
            for name in ("orders", "customers")
        ),
    )
    changed = tables.with_spark(*changes)
    check(changed, range(30), without=[13])
    assert changed == tables.rows() == tables.with_duckdb()
    # The table of customers has one snapshot, which is of Spark, so its watermark is only in the root.
    with RestCatalog("test", uri=tables.server.uri) as catalog:
        [snapshot] = catalog.load_table("shop.customers").snapshots()
        assert snapshot.summary is not None
        assert "sparklog.commit-id" not in snapshot.summary.additional_properties
    tables.copy()
    assert tables.rows() == changed
    tables.produce(range(30, 33))
    tables.copy()
    check(tables.rows(), range(33), without=[13])
    assert tables.with_spark() == tables.rows() == tables.with_duckdb()
