"""Catalogs for tests of Iceberg tables: in memory, SQLite, PostgreSQL, and REST over HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.rest_catalog import RestServer, rest_server

CatalogKind = Literal["memory", "sqlite", "rest"]
CATALOGS: tuple[CatalogKind, ...] = ("memory", "sqlite", "rest")


@dataclass(frozen=True)
class CatalogSetup:
    """A catalog and its properties. `server` is the REST server."""

    catalog: Catalog
    properties: dict[str, str]
    server: RestServer | None = None


def new_id() -> str:
    return uuid.uuid4().hex


def sqlite_properties(directory: Path) -> dict[str, str]:
    return sql_properties(directory, f"sqlite:///{directory}/catalog.db")


def sql_properties(directory: Path, uri: str) -> dict[str, str]:
    return {"type": "sql", "uri": uri, "warehouse": f"file://{directory}/warehouse"}


@contextmanager
def open_catalog(kind: CatalogKind, directory: Path) -> Iterator[CatalogSetup]:
    properties = sqlite_properties(directory)
    if kind == "memory":
        with InMemoryCatalog("test", warehouse=properties["warehouse"]) as catalog:
            yield CatalogSetup(catalog, {"type": "in-memory", "warehouse": properties["warehouse"]})
        return
    with SqlCatalog("test", **properties) as catalog:
        if kind == "sqlite":
            yield CatalogSetup(catalog, properties)
            return
        # The threads of the server share the connections of the catalog.
        with rest_server(catalog) as server:
            rest = {"type": "rest", "uri": server.uri}
            with RestCatalog("test", **rest) as client:
                yield CatalogSetup(client, rest, server)
