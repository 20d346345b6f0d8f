"""Iceberg catalogs, as pyiceberg loads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparklog.common.lazy import install_command
from sparklog.errors import BadRequest, SparklogError, Unavailable, advice, did_you_mean
from sparklog.tables.option_names import option_name

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

READ_ONLY = "25006"
"""SQLSTATE of a write in a read-only transaction."""
SQLITE_READ_ONLY = "attempt to write a readonly database"
"""The message of SQLite, which has no SQLSTATEs."""
PASSWORD = re.compile(r"(//[^\s:/@]*):\S*@")
"""The user and the password in a URL."""


def open_catalog(name: str | None, properties: Mapping[str, str]) -> Catalog:
    """Load a catalog.

    Raises:
        BadRequest: If the configuration of the catalog is invalid, or a package is missing.
        Unavailable: If the catalog is not available.
    """
    try:
        pyiceberg: Any = import_module("pyiceberg.catalog")
    except ImportError:
        raise BadRequest(f"Iceberg tables require pyiceberg: {install_command('iceberg')}") from None
    try:
        catalog: Catalog = _load(pyiceberg.load_catalog, name, properties)
    except SparklogError:
        raise
    except OSError as error:
        raise Unavailable(f"cannot open the Iceberg catalog: {error_text(error)}") from error
    except Exception as error:  # Each catalog raises errors of its own libraries.
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name == "psycopg2":
            command = install_command("iceberg-postgres")
            raise BadRequest(f"Iceberg catalogs in PostgreSQL require psycopg2: {command}") from None
        reason = error_text(cause if isinstance(cause, ModuleNotFoundError) else error)
        if isinstance(error, ImportError) or type(error).__name__ == "NotInstalledError":
            raise BadRequest(f"cannot open the Iceberg catalog: {reason}; install the package") from error
        # pyiceberg lists the values of all properties, which include credentials.
        reason = reason.partition(" with the following properties")[0]
        advised = f"configure it in .pyiceberg.yaml or with {catalog_properties()}"
        if hasattr(error, "orig"):
            raise Unavailable(f"cannot open the Iceberg catalog: {reason}; {advised}") from error
        if "URI missing" in reason:
            # pyiceberg recommends an option of its own command.
            reason = "the property uri is missing"
            known = sorted(pyiceberg.list_catalogs())
            if not properties and name not in known:
                reason = (
                    f"catalog '{name}' is not configured{did_you_mean(name, known)}" if name else "none is specified"
                )
                advised += f", or use {option_name('catalog')} with one of {', '.join(known)}" if known else ""
        raise BadRequest(f"cannot open the Iceberg catalog: {reason}; {advised}") from error
    return catalog


def catalog_properties() -> str:
    """Return the name of the option that sets properties of a catalog."""
    return advice(python="properties", shell="--catalog-property")


def _load(load: Callable[..., Any], name: str | None, properties: Mapping[str, str]) -> Any:
    try:
        return load(name, **properties)
    except Exception as error:
        # Creating the tables of a SQL catalog fails if another process creates them at the same time.
        if not type(error).__module__.startswith("sqlalchemy"):
            raise
        return load(name, **properties)


def error_text(error: BaseException | None) -> str:
    """Return the message of an error in one line, without passwords in URLs. For an error of a database, this is the
    message of its driver.
    """
    text = " ".join(str(getattr(error, "orig", None) or error).split())
    return PASSWORD.sub(r"\1:***@", text) or type(error).__name__


def sqlstate(error: Exception) -> str | None:
    """Return the code of an error of a database, as defined in the SQL standard, or None if it has no code."""
    cause = getattr(error, "orig", None)
    if str(cause) == SQLITE_READ_ONLY:
        return READ_ONLY
    return getattr(cause, "pgcode", None) or getattr(cause, "sqlstate", None)


def table_identifier(table: str) -> tuple[str, ...]:
    """Return the namespace and the name of a table such as `shop.orders`."""
    identifier = tuple(table.split("."))
    if len(identifier) < 2 or not all(identifier):
        raise BadRequest(f"{option_name('table')} must be NAMESPACE.TABLE, found '{table}'")
    return identifier
