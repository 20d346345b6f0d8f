"""Clients that send garbage: their connections are cheap, and their number is logged."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from pathlib import Path

import pytest

import sparklog
from sparklog.common.warned import REPEAT_MS
from sparklog.opening import resolve
from sparklog.serve.connection import DropConnection, check_first_bytes
from sparklog.serve.options import ServeOptions, tls_context
from sparklog.serve.server import Server, open_served
from sparklog.serve.services import MAX_LOGGED_DROPS, Client, DroppedConnections, Services
from tests.serve.conftest import FREE
from tests.serve.test_command import certificate
from tests.serve.test_slow_clients import users_file

GARBAGE = b"GET / HTTP/1.1\r\n\r\n"
PENDING = 200


@pytest.fixture
def root(tmp_path: Path) -> Path:
    sparklog.open(tmp_path / "root", create=True).create_topic("t")
    return tmp_path / "root"


def start(size: int, key: int) -> bytes:
    return struct.pack(">ihhi", size, key, 0, 1)


@pytest.mark.parametrize(
    ("first", "with_users", "problem"),
    [
        (b"", True, None),
        (b"GET", True, None),
        (GARBAGE, True, "expected a request of 8 to 524288 bytes, found 1195725856"),
        (start(7, 18), True, "expected a request of 8 to 524288 bytes, found 7"),
        (start(-1, 18), True, "found -1"),
        (start(1 << 20, 18), True, "found 1048576"),
        (start(1 << 20, 18), False, None),
        (start(100, 18), True, None),
        (start(100, 999), True, "API 999 is not supported"),
        (start(100, 3), True, "the client must authenticate before Metadata"),
        (start(100, 3), False, None),
    ],
)
def test_the_first_bytes_of_a_connection_are_checked(
    root: Path, tmp_path: Path, first: bytes, with_users: bool, problem: str | None
) -> None:
    users = users_file(tmp_path) if with_users else None
    client, accepted = socket.socketpair()
    accepted.setblocking(False)
    with client, accepted:
        client.sendall(first)

        async def check() -> None:
            check_first_bytes(Services(open_served(resolve(str(root))), ServeOptions(users=users)), accepted)

        if problem is None:
            asyncio.run(check())
            assert not first or accepted.recv(100) == first
        else:
            with pytest.raises(DropConnection, match=problem):
                asyncio.run(check())


def test_the_first_bytes_of_a_tls_connection_are_a_handshake(root: Path, tmp_path: Path) -> None:
    tls = tls_context(*map(str, certificate(tmp_path)))

    async def check(first: bytes) -> None:
        client, accepted = socket.socketpair()
        accepted.setblocking(False)
        with client, accepted:
            client.sendall(first)
            check_first_bytes(Services(open_served(resolve(str(root))), ServeOptions(tls=tls)), accepted)

    asyncio.run(check(b"\x16\x03\x01\x02\x00\x01"))
    with pytest.raises(DropConnection, match="expected a TLS handshake; the client must connect with TLS"):
        asyncio.run(check(start(100, 18)))


def test_all_pending_connections_are_accepted_together(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise, connections that are opened faster than they are accepted would fill the operating system's queue."""

    async def accept() -> tuple[int, int]:
        server = Server(open_served(resolve(str(root))), ServeOptions(listen=FREE))
        address = await server.start()
        clients = [socket.create_connection((address.host, address.port)) for _ in range(PENDING)]
        for client in clients[1:]:
            client.sendall(GARBAGE)
        for _ in range(10):
            await asyncio.sleep(0)
        counts = server._services.metrics.accepted, server._hosts.total()
        for client in clients:
            client.close()
        await server.stop()
        return counts

    assert asyncio.run(accept()) == (PENDING, 1)
    lines = [record.getMessage() for record in caplog.records if "closed" in record.getMessage()]
    assert len(lines) == MAX_LOGGED_DROPS + 1
    assert f"closed {PENDING - 1 - MAX_LOGGED_DROPS} more connections in 0 s, the last one of 127.0.0.1:" in lines[-1]


def test_only_the_number_of_further_dropped_connections_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 5_000
    drops = DroppedConnections(lambda: now_ms)
    client, garbage = Client("10.0.0.1:5"), DropConnection("garbage")

    def logged() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    with caplog.at_level(logging.WARNING, "sparklog.serve"):
        for _ in range(MAX_LOGGED_DROPS + 3):
            drops.add(client, garbage)
        assert logged() == ["closed the connection of 10.0.0.1:5 (no name): garbage"] * MAX_LOGGED_DROPS
        now_ms += REPEAT_MS - 1
        drops.report()
        assert logged() == []
        now_ms += 1
        drops.report()
        assert logged() == ["closed 3 more connections in 60 s, the last one of 10.0.0.1:5 (no name): garbage"]
        drops.add(client, garbage)
        now_ms += REPEAT_MS
        drops.add(client, garbage)
        assert logged() == ["closed the connection of 10.0.0.1:5 (no name): garbage"] * 2
        drops.report(is_last=True)
        assert logged() == []
