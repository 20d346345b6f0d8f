"""Iceberg catalogs, as pyiceberg loads them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparklog.common.lazy import install_command
from sparklog.errors import BadRequest, SparklogError, Unavailable, advice
from sparklog.tables.option_names import option_name

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def open_catalog(name: str | None, properties: Mapping[str, str]) -> Catalog:
    """Load a catalog. Raises `BadRequest` if its configuration is invalid or a package is missing."""
    try:
        pyiceberg: Any = import_module("pyiceberg.catalog")
    except ImportError:
        raise BadRequest(f"Iceberg tables require pyiceberg: {install_command('iceberg')}") from None
    try:
        catalog: Catalog = pyiceberg.load_catalog(name, **properties)
    except SparklogError:
        raise
    except Exception as error:  # Each catalog raises errors of its own libraries.
        if isinstance(error, OSError):
            raise Unavailable(f"cannot open the Iceberg catalog: {error}") from error
        properties_name = advice(python="properties", shell="--catalog-property")
        raise BadRequest(
            f"cannot open the Iceberg catalog: {error}; configure it in .pyiceberg.yaml or with {properties_name}"
        ) from error
    return catalog


def table_identifier(table: str) -> tuple[str, ...]:
    """Return the namespace and the name of a table such as `shop.orders`."""
    identifier = tuple(table.split("."))
    if len(identifier) < 2 or not all(identifier):
        raise BadRequest(f"{option_name('table')} must be NAMESPACE.TABLE, found '{table}'")
    return identifier
