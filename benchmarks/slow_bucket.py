"""A bucket of S3 in this process (moto), each of whose requests takes as long as a distribution says."""

from __future__ import annotations

import http.client
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from sparklog.testing.slow_store import Latencies

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY",
}
VERBS = {"GET": "get", "PUT": "create", "HEAD": "stat", "DELETE": "delete", "POST": "delete_many"}


class SlowBucket:
    """`url` is the bucket's location, for this process and those that it starts from now on."""

    def __init__(self, latencies: Latencies, seed: int) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        os.environ.update(KEYS, AWS_EC2_METADATA_DISABLED="true")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._latencies = latencies
        self._source = random.Random(seed)
        self._app: Any = DomainDispatcherApplication(create_backend_app)
        self._is_slow = False
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", self._server.server_port)
        connection.request("PUT", "/bench")
        if connection.getresponse().status != 200:
            raise SystemExit("moto made no bucket: nothing was measured")
        self._is_slow = True
        self.url = f"s3://bench/log?endpoint=http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        verb = VERBS.get(environ["REQUEST_METHOD"], "get")
        if verb == "get" and ("list-type" in environ["QUERY_STRING"] or environ["PATH_INFO"].count("/") < 2):
            verb = "list"
        half_s = self._latencies.draw_ms(verb, self._source) / 2000 if self._is_slow else 0.0
        time.sleep(half_s)
        answer: Iterable[bytes] = self._app(environ, start)
        time.sleep(half_s)
        return answer
