"""Clients, a server with everything that they may encounter, and a real broker, shared by the tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing
from tests.serve.peers.golden import Served, fill_golden_root, of_fixture, served
from tests.serve.peers.peer import Peer, franz_go, java_clients, librdkafka, python_client
from tests.support.servers.programs import LIBRDKAFKA

STARTS: dict[str, Callable[[], AbstractContextManager[Peer]]] = {
    "java": java_clients,
    **{program.name: partial(librdkafka, program) for program in LIBRDKAFKA},
    "franz-go": franz_go,
    **{name: partial(python_client, name) for name in ("kafka-python", "aiokafka")},
}
PEERS = [pytest.param(name, marks=pytest.mark.java if name == "java" else ()) for name in STARTS]


@pytest.fixture(scope="session")
def start_peer() -> Iterator[Callable[[str], Peer]]:
    """Return a client by name. It runs until the end of the session. Skips the test if the client cannot be run."""
    running: dict[str, Peer] = {}
    with ExitStack() as stack:

        def start(name: str) -> Peer:
            if name not in running:
                try:
                    running[name] = stack.enter_context(STARTS[name]())
                except Missing as missing:
                    pytest.skip(str(missing))
            return running[name]

        yield start


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest, start_peer: Callable[[str], Peer]) -> Peer:
    return start_peer(request.param)


@pytest.fixture
def java(start_peer: Callable[[str], Peer]) -> Peer:
    return start_peer("java")


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[Served]:
    """A read-only server for a root with all features."""
    folder = tmp_path_factory.mktemp("golden") / "root"
    expected = fill_golden_root(folder, fixtures)
    with served(folder) as server:
        server.expected = expected
        yield server


@pytest.fixture(scope="session")
def in_place(fixtures: Path) -> Iterator[Served]:
    """A server for a Kafka log directory, with transactions of the older kind."""
    fixture = fixtures / "transactions-tv0"
    with served(fixture / "data") as server:
        server.expected = dict(of_fixture(fixture))
        yield server


@pytest.fixture(scope="session")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Any]]:
    """A writable server, and its root."""
    folder = tmp_path_factory.mktemp("writable") / "root"
    root = sparklog.open(folder, create=True)
    with served(folder, writable=True) as server:
        yield server, root


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        with Broker(tmp_path_factory.mktemp("kafka") / "broker") as running:
            yield running
    except Missing as missing:
        pytest.skip(str(missing))
