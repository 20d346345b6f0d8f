"""An Iceberg REST catalog over HTTP, which stores its tables in a SQL catalog and injects faults into commits.

The server implements the endpoints that pyiceberg and Spark use for namespaces and tables, as in the specification.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.typedef import IcebergBaseModel

Fault = Literal["lost request", "lost response", "delayed", "sent twice", "error 500", "error 503", "forbidden"]
"""What happens to the next commit. `lost request`: the connection is closed, and nothing is committed. `lost response`:
the connection is closed after the commit. `delayed`: the connection is closed, and `RestServer.deliver` commits later.
`sent twice`: the request is executed twice, and the second response is returned.
"""
PropertyRule = Literal["stored", "rejected", "not implemented", "forbidden", "dropped", "dropped by commits"]
"""What the catalog does with the properties of a watermark. `dropped by commits`: it stores those of a new table, but
ignores changes.
"""
PREFIX = "sparklog."
STATUS = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class RestServer(ThreadingHTTPServer):
    """The server. `faults` contains the faults of the next commits. `after_commit` is called after each commit."""

    daemon_threads = True

    def __init__(self, catalog: SqlCatalog) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.catalog = catalog
        self.faults: deque[Fault] = deque()
        self.property_rule: PropertyRule = "stored"
        self.delayed: list[CommitTableRequest] = []
        self.commits = 0
        self.after_commit: Callable[[], None] | None = None
        # SQLite connections wait for each other only for a few seconds.
        self.lock = threading.RLock()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, request: CommitTableRequest) -> dict[str, Any]:
        with self.lock:
            self.commits += 1
            table = self.catalog.load_table(_identifier(request))
            response = self.catalog.commit_table(table, request.requirements, request.updates)
        if self.after_commit is not None:
            self.after_commit()
        return {"metadata-location": response.metadata_location, "metadata": _json(response.metadata)}

    def deliver(self) -> list[str]:
        """Execute the delayed commits, and return the error of each, or an empty string."""
        results = []
        for request in self.delayed:
            try:
                self.commit(request)
                results.append("")
            except CommitFailedException as error:
                results.append(str(error))
        self.delayed.clear()
        return results


@contextmanager
def rest_server(catalog: SqlCatalog) -> Iterator[RestServer]:
    server = RestServer(catalog)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _identifier(request: CommitTableRequest) -> tuple[str, ...]:
    return (*request.identifier.namespace.root, request.identifier.name)


def _json(model: IcebergBaseModel) -> Any:
    return json.loads(model.model_dump_json())


def _loaded(table: Table) -> dict[str, Any]:
    return {"metadata-location": table.metadata_location, "metadata": _json(table.metadata), "config": {}}


class _NoResponseError(Exception):
    """Close the connection without a response."""


class _RejectedPropertiesError(Exception):
    """Reject a request that sets properties, with this HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: RestServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        return

    def _run(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        try:
            status, result = self._response(self.command, parts[1:], body)
        except _NoResponseError:
            self.close_connection = True
            return
        except _RejectedPropertiesError as error:
            status, result = error.status, _error(error.status, "Rejected", "table properties cannot be set")
        except tuple(STATUS) as error:
            status, result = STATUS[type(error)], _error(STATUS[type(error)], type(error).__name__, str(error))
        data = b"" if result is None else json.dumps(result).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_HEAD = do_DELETE = _run  # noqa: N815 - names of http.server

    def _response(self, method: str, parts: list[str], body: bytes) -> tuple[int, Any]:
        catalog = self.server.catalog
        match method, parts:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "GET", ["namespaces"]:
                return 200, {"namespaces": [list(name) for name in catalog.list_namespaces()]}
            case "POST", ["namespaces"]:
                wanted = json.loads(body)
                catalog.create_namespace(tuple(wanted["namespace"]), wanted.get("properties") or {})
                return 200, {"namespace": wanted["namespace"], "properties": {}}
            case "GET" | "HEAD", ["namespaces", namespace]:
                catalog.load_namespace_properties(tuple(namespace.split("\x1f")))
                return 200, {"namespace": namespace.split("\x1f"), "properties": {}}
            case "GET", ["namespaces", namespace, "tables"]:
                names = catalog.list_tables(tuple(namespace.split("\x1f")))
                return 200, {"identifiers": [{"namespace": list(name[:-1]), "name": name[-1]} for name in names]}
            case "POST", ["namespaces", namespace, "tables"]:
                return 200, _loaded(self._create((*namespace.split("\x1f"),), body))
            case "GET" | "HEAD", ["namespaces", namespace, "tables", name]:
                return 200, _loaded(catalog.load_table((*namespace.split("\x1f"), name)))
            case "DELETE", ["namespaces", namespace, "tables", name]:
                catalog.drop_table((*namespace.split("\x1f"), name))
                return 204, None
            case "POST", ["namespaces", namespace, "tables", name]:
                content = json.loads(body)
                content["identifier"] = {"namespace": namespace.split("\x1f"), "name": name}
                return self._commit(CommitTableRequest.model_validate(content))
        return 404, _error(404, "NoSuchEndpoint", f"{method} {self.path}")

    def _create(self, namespace: tuple[str, ...], body: bytes) -> Table:
        from pyiceberg.catalog.rest import CreateTableRequest

        request = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
        properties = dict(request.properties)
        if any(name.startswith(PREFIX) for name in properties):
            self._check_properties()
        if self.server.property_rule == "dropped":
            properties = {name: value for name, value in properties.items() if not name.startswith(PREFIX)}
        with self.server.lock:
            return self.server.catalog.create_table(
                (*namespace, request.name),
                request.table_schema,
                request.location,
                request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                request.write_order or UNSORTED_SORT_ORDER,
                properties,
            )

    def _check_properties(self) -> None:
        status = {"rejected": 400, "forbidden": 403, "not implemented": 501}.get(self.server.property_rule)
        if status is not None:
            raise _RejectedPropertiesError(status)

    def _commit(self, request: CommitTableRequest) -> tuple[int, Any]:
        server = self.server
        if any(isinstance(update, SetPropertiesUpdate) for update in request.updates):
            self._check_properties()
            if server.property_rule != "stored":
                updates = [update for update in request.updates if not isinstance(update, SetPropertiesUpdate)]
                request = request.model_copy(update={"updates": tuple(updates)})
        fault = server.faults.popleft() if server.faults else None
        if fault == "delayed":
            server.delayed.append(request)
        if fault in ("delayed", "lost request"):
            raise _NoResponseError
        if fault == "forbidden":
            return 403, _error(403, "NotAuthorizedException", "no permission to write")
        if fault in ("error 500", "error 503"):
            return int(fault[-3:]), _error(int(fault[-3:]), "ServerError", "the database does not respond")
        result = server.commit(request)
        if fault == "sent twice":
            result = server.commit(request)
        if fault == "lost response":
            raise _NoResponseError
        return 200, result


def _error(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}
