"""A server that answers as a script says, and else as a bucket that does what it is asked."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

DROP = 0
"""Carry the request out, and close the connection without an answer."""
SILENT = -1
"""Carry the request out, and answer after longer than a client waits."""
LATE = -2
"""As `SILENT`; but a client that waits gets the answer that it asked for."""

AS_ASKED = -3
"""As if nothing were scripted."""


CUT = -4
"""The answer that was asked for, with half of its body."""


@dataclass(frozen=True)
class Answer:
    """A status to answer with. `lands`: the request has its effect all the same."""

    status: int
    code: str = ""
    lands: bool = False
    body: str = ""
    """In place of an error with the code."""


@dataclass
class StubBucket:
    """The objects of the bucket, the answers to give before any other, and the requests that came."""

    objects: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Of uploads that are under way."""
    headers: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Verbs and headers of the requests, names in small letters."""
    script: list[tuple[str, Answer]] = field(default_factory=list)
    """Verbs and the answers to the next requests of each.

    PUT, GET, HEAD, DELETE, POST (a bulk delete), LIST; BEGIN, PART, COMPLETE and ABORT of a multipart upload.
    """
    always: dict[str, Answer] = field(default_factory=dict)
    """Answers to all requests of a verb."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""
    denied: frozenset[str] = frozenset()
    """Verbs that a policy denies."""
    heeds_offset: bool = True
    page: int = 1000
    """Keys of one list."""
    reverse: bool = False
    silence_s: float = 3.0
    clock_s: Callable[[], float] = lambda: 1_790_000_000

    def answer_next(self, verb: str, *answers: Answer) -> None:
        self.script.extend((verb, answer) for answer in answers)

    def take(self, verb: str) -> Answer | None:
        for number, (wanted, answer) in enumerate(self.script):
            if wanted == verb:
                del self.script[number]
                return answer
        return self.always.get(verb)

    def count(self, verb: str) -> int:
        return sum(made == verb for made, _ in self.requests)


@contextmanager
def stub_bucket(scheme: str = "s3", certificate: str | None = None) -> Iterator[StubBucket]:
    """Serve an empty bucket; `url` is its location. With TLS if there is a `certificate`: a file that has its key."""
    bucket = StubBucket()
    server = _Server(bucket)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    bucket.url = f"{scheme}://bucket/log?endpoint=http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, bucket: StubBucket) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bucket = bucket


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_CONNECT(self) -> None:
        """Refuse to be a proxy."""
        self._send(403, b"", {})

    def log_message(self, *args: object) -> None:
        return

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = self._key()
        number = parse_qs(urlsplit(self.path).query).get("partNumber")

        def land_part() -> int:
            self.server.bucket.parts[key][int((number or "0")[0])] = body
            return 200

        if number:
            return self._answer("PART", land_part)

        def land() -> int:
            if self.headers.get("If-None-Match") == "*" and key in self.server.bucket.objects:
                return 412
            self.server.bucket.objects[key] = body
            return 200

        return self._answer("PUT", land)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self._answer("LIST", lambda: 200, self._listing(query))
        body = self.server.bucket.objects.get(self._key())
        if body is None:
            return self._answer("GET", lambda: 404)
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._answer("GET", lambda: 200, body)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = body[int(first) : int(last) + 1 if last else None]
        if not part:
            return self._answer("GET", lambda: 416)
        shown = f"bytes {first}-{int(first) + len(part) - 1}/{len(body)}"
        return self._answer("GET", lambda: 206, part, {"Content-Range": shown})

    def do_HEAD(self) -> None:
        body = self.server.bucket.objects.get(self._key())
        self._answer("HEAD", lambda: 404 if body is None else 200, body or b"")

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "uploads" in query:
            return self._answer("BEGIN", self._begin_upload, b"<R><UploadId>u</UploadId></R>")
        if "uploadId" in query:
            return self._answer("COMPLETE", self._complete_upload, b"<R><ETag>x</ETag></R>")
        keys = [each.partition("</Key>")[0] for each in sent.split("<Key>")[1:]]
        if "DELETE" in self.server.bucket.denied:
            refused = "<Code>AccessDenied</Code><Message>Access Denied</Message>"
            errors = "".join(f"<Error><Key>{key}</Key>{refused}</Error>" for key in keys)
            return self._answer("POST", lambda: 200, f"<DeleteResult>{errors}</DeleteResult>".encode())
        for key in keys:
            self.server.bucket.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return self._answer("POST", lambda: 200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _begin_upload(self) -> int:
        self.server.bucket.parts[self._key()] = {}
        return 200

    def _complete_upload(self) -> int:
        parts = self.server.bucket.parts.pop(self._key(), None)
        if parts is None:
            return 404
        self.server.bucket.objects[self._key()] = b"".join(part for _, part in sorted(parts.items()))
        return 200

    def do_DELETE(self) -> None:
        if "uploadId" in parse_qs(urlsplit(self.path).query):
            return self._answer(
                "ABORT", lambda: 404 if self.server.bucket.parts.pop(self._key(), None) is None else 204
            )
        return self._answer(
            "DELETE", lambda: 204 if self.server.bucket.objects.pop(self._key(), None) is not None else 404
        )

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        after = query.get("start-after", [""])[0] if self.server.bucket.heeds_offset else ""
        after = max(after, query.get("continuation-token", [""])[0])
        keys = sorted(
            (k for k in self.server.bucket.objects if k.startswith(prefix) and k > after),
            reverse=self.server.bucket.reverse,
        )
        more = (
            f"<NextContinuationToken>{keys[self.server.bucket.page - 1]}</NextContinuationToken>"
            if (is_truncated := len(keys) > self.server.bucket.page)
            else ""
        )
        keys = keys[: self.server.bucket.page]
        folders: list[str] = []
        if query.get("delimiter"):
            below = [key[len(prefix) :].partition("/") for key in keys]
            folders = sorted({prefix + name for name, slash, _ in below if slash})
            keys = [prefix + name for name, slash, _ in below if not slash]
        entries = "".join(f"<CommonPrefixes><Prefix>{name}/</Prefix></CommonPrefixes>" for name in folders)
        entries += "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.server.bucket.objects[key])}</Size><ETag>x</ETag>"
            "<LastModified>2026-11-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys
        )
        truncated = f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>"
        shown = f"<ListBucketResult>{truncated}{more}{entries}</ListBucketResult>"
        return shown.encode()

    def _answer(self, verb: str, land: object, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.server.bucket.requests.append((verb, self.path))
        self.server.bucket.headers.append((verb, {name.lower(): value for name, value in self.headers.items()}))
        denied = Answer(403, "AccessDenied") if verb in self.server.bucket.denied else None
        scripted = denied or self.server.bucket.take(verb)
        if scripted is not None and scripted.status == LATE:
            time.sleep(self.server.bucket.silence_s)
        if scripted is not None and scripted.status == CUT:
            return self._send(land(), body, headers or {}, cut=True)  # type: ignore[operator]
        if scripted is not None and scripted.status in (LATE, AS_ASKED):
            scripted = None
        if scripted is None:
            return self._send(land(), body, headers or {})  # type: ignore[operator]
        if scripted.lands:
            land()  # type: ignore[operator]
        if scripted.status == SILENT:
            time.sleep(self.server.bucket.silence_s)
        if scripted.status in (DROP, SILENT):
            self.close_connection = True
            return None
        error = scripted.body or f"<Error><Code>{scripted.code}</Code></Error>"
        return self._send(scripted.status, error.encode(), {})

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", formatdate(self.server.bucket.clock_s(), usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection |= cut
