"""A server that speaks S3, moto, in this process: started by the first test that needs a bucket, ended with pytest.

moto answers conditional PUTs as S3 does. It keeps everything in memory and checks no signatures. It looks and then
writes, and a switch of threads between these lets two creators win: so writes come one at a time here.
"""

from __future__ import annotations

import http.client
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest

KEY_ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"

_numbers = count(1)
App = Callable[[dict[str, Any], Any], Iterable[bytes]]
"""A web application (WSGI)."""


def writing_in_turns(app: App) -> App:
    turn = threading.Lock()

    def answer(request: dict[str, Any], start: Any) -> Iterable[bytes]:
        if request["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(request, start)
        with turn:
            return app(request, start)

    return answer


class MotoServer:
    """A running server: its `endpoint`, and new buckets in it."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import create_backend_app
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        serving: Any = self._server._server
        # S3 alone: to choose one of its services moto lists its folders, twice at each request, a third of the time.
        serving.app = writing_in_turns(create_backend_app("s3"))
        _, self._port = self._server.get_host_and_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"

    def new_bucket(self) -> str:
        """Make an empty bucket and return its URL."""
        name = f"bucket-{os.getpid()}-{next(_numbers)}"
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("PUT", f"/{name}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        connection.close()
        return f"s3://{name}?endpoint={self.endpoint}"

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[server]'")
    server = MotoServer()
    yield server
    server.stop()


@pytest.fixture
def bucket(moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a new empty bucket, for this process and those that it starts."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # Twelve races and 16 MiB take half a second here, and most tests are not about them.
    monkeypatch.setattr("sparklog.storage.object_store.ObjectStore.probe_rounds", 2, raising=False)
    return moto_server.new_bucket()
