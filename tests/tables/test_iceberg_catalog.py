"""Test how catalogs are opened, and the errors of SQL catalogs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sparklog.errors import BadRequest, Unavailable
from sparklog.tables.iceberg_catalog import open_catalog
from tests.tables.iceberg_catalogs import sql_properties, sqlite_properties


def test_another_process_creates_the_tables_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = SqlCatalog.create_tables

    def create_twice(self: SqlCatalog) -> None:
        create(self)
        with self.engine.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE iceberg_tables (a INT)")

    monkeypatch.setattr(SqlCatalog, "create_tables", create_twice)
    catalog = open_catalog("test", sqlite_properties(tmp_path))
    assert catalog.list_namespaces() == []
    catalog.close()


def test_missing_driver_of_postgres_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(BadRequest, match=r"Iceberg catalogs in PostgreSQL require psycopg2: .*(sql-postgres|extra)"):
        open_catalog("test", sql_properties(tmp_path, "postgresql+psycopg2://localhost/catalog"))


def test_error_of_a_database_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        open_catalog("test", sql_properties(tmp_path, f"sqlite:///{tmp_path}/missing/catalog.db"))
    assert str(caught.value) == (
        "cannot open the Iceberg catalog: unable to open database file; configure it in .pyiceberg.yaml or with "
        "properties"
    )


def test_other_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise ModuleNotFoundError("No module named 'pymysql'", name="pymysql")

    monkeypatch.setattr(SqlCatalog, "_init_catalog", missing)
    with pytest.raises(BadRequest, match="No module named 'pymysql'; install the package"):
        open_catalog("test", sqlite_properties(tmp_path))


@pytest.mark.parametrize(
    "properties",
    [
        {"uri": "postgres://anna:pa/ss@word@db/catalog"},
        {"type": "rest", "uri": "http//anna:pa/ss@word@db/catalog"},
        {"type": 7, "uri": "http://db", "credential": "anna:pa/ss@word"},
    ],
)
def test_errors_contain_no_password(properties: dict[str, str]) -> None:
    with pytest.raises((BadRequest, Unavailable)) as caught:
        open_catalog("test", properties)
    assert "cannot open the Iceberg catalog: " in str(caught.value)
    assert not re.search("pa/ss|word", str(caught.value))
