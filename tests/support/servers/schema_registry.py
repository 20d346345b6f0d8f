"""A schema registry in memory that answers as the documentation of Confluent's REST API describes."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Response = tuple[int, Any]
"""The status and the JSON of a response. Bytes are sent unchanged."""


def error(code: int, message: str) -> Response:
    return int(str(code)[:3]), {"error_code": code, "message": message}


class FakeRegistry:
    """Subjects and schemas. `requests` lists the requests as `GET /subjects`.

    If `authorization` is set, other values of this header are rejected. `fail` returns a response that replaces the
    response to a request, or None.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.authorization: str | None = None
        self.fail: Callable[[str], Response | None] = lambda request: None
        self._ids: dict[str, int] = {}
        self._subjects: dict[str, list[dict[str, Any]]] = {}
        self.is_compatible: Callable[[str], bool] = lambda schema: True

    def register(self, subject: str, schema: Any, schema_type: str = "AVRO", references: Any = ()) -> int:
        """Add a version to a subject without a request, and return the schema id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": schema_type, "references": list(references)}
        return int(self._register(subject, body)[1]["id"])

    def answer(self, method: str, path: str, body: Any) -> Response:
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "GET", ["subjects"]:
                return 200, list(self._subjects)
            case "GET", ["schemas", "ids", number]:
                versions = (version for versions in self._subjects.values() for version in versions)
                found = next((version for version in versions if str(version["id"]) == number), None)
                if found is None:
                    return error(40403, "Schema not found")
                return 200, {name: found[name] for name in found if name in ("schema", "schemaType", "references")}
            case _, ["subjects", subject, *_] if subject not in self._subjects:
                return self._of_missing_subject(method, path, subject, body)
            case "GET", ["subjects", subject, "versions"]:
                return 200, [version["version"] for version in self._subjects[subject]]
            case "GET", ["subjects", subject, "versions", number]:
                versions = self._subjects[subject]
                found = versions[-1] if number == "latest" else self._version(subject, number)
                return (200, found) if found is not None else error(40402, "Version not found")
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, body)
            case "POST", ["subjects", subject]:
                found = self._same(subject, body)
                return (200, found) if found is not None else error(40403, "Schema not found")
        return error(404, "HTTP 404 Not Found")

    def _of_missing_subject(self, method: str, path: str, subject: str, body: Any) -> Response:
        if method == "POST" and path.endswith("/versions"):
            return self._register(subject, body)
        return error(40401, f"Subject '{subject}' not found.")

    def _version(self, subject: str, number: str) -> dict[str, Any] | None:
        return next((each for each in self._subjects[subject] if str(each["version"]) == number), None)

    def _same(self, subject: str, body: dict[str, Any]) -> dict[str, Any] | None:
        return next((each for each in self._subjects[subject] if each["schema"] == body["schema"]), None)

    def _register(self, subject: str, body: dict[str, Any]) -> Response:
        if not self.is_compatible(body["schema"]):
            return error(409, "Schema being registered is incompatible with an earlier schema")
        if body.get("schemaType", "AVRO") == "AVRO":
            try:
                json.loads(body["schema"])
            except ValueError:
                return error(42201, "Invalid schema")
        versions = self._subjects.setdefault(subject, [])
        if (same := self._same(subject, body)) is not None:
            return 200, {"id": same["id"]}
        schema_id = self._ids.setdefault(json.dumps(body, sort_keys=True), len(self._ids) + 1)
        version = {"subject": subject, "version": len(versions) + 1, "id": schema_id, "schema": body["schema"]}
        # The API omits the type AVRO and empty references.
        if body.get("schemaType", "AVRO") != "AVRO":
            version["schemaType"] = body["schemaType"]
        if body.get("references"):
            version["references"] = body["references"]
        versions.append(version)
        return 200, {"id": schema_id}


@contextmanager
def running(context: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    """Run a registry on a free port, with HTTPS if a TLS context is given."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            path = urlsplit(self.path).path
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            request = f"{self.command} {path}"
            registry.requests.append(request)
            if registry.authorization not in (None, self.headers.get("Authorization")):
                status, reply = error(401, "Unauthorized")
            else:
                status, reply = registry.fail(request) or registry.answer(self.command, path, body)
            content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _respond  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.url = f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
