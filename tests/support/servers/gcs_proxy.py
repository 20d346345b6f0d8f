"""A stand-in for Google Cloud Storage: its conditional header turned into S3's, before a moto server.

Google's XML interface is S3's but for a few headers. `python -m tests.support.servers.gcs_proxy PORT URL` listens on
the port and passes everything on to the S3 server at the URL.
"""

from __future__ import annotations

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

CONDITION = "x-goog-if-generation-match"
DROPPED = {"host", "authorization", "connection", CONDITION}
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""moto checks no signature, but answers private objects to nobody without one."""


class Proxy(BaseHTTPRequestHandler):
    """One request: "no generation exists" (0) becomes `If-None-Match: *`, and a token of Google S3's signature."""

    protocol_version = "HTTP/1.1"
    target = ""

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in DROPPED}
        headers["Authorization"] = SIGNED
        if self.headers.get(CONDITION) == "0":
            headers["If-None-Match"] = "*"
        connection = http.client.HTTPConnection(self.target, timeout=60)
        path, query, settings = self.path.partition("?")
        # Google's client escapes `-` and `.`, also in the bucket's name, which moto takes as it comes.
        connection.request(self.command, quote(unquote(path)) + query + settings, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        # The answer to HEAD has no body, but the length of one.
        self.send_header("content-length", answer.getheader("content-length") or str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


if __name__ == "__main__":
    Proxy.target = urlsplit(sys.argv[2]).netloc
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Proxy).serve_forever()
