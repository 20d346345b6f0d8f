"""Servers that are configured to know each other: the leader of a partition, and unresponsive servers."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.serve import peers as module
from sparklog.serve.codes import Code
from sparklog.serve.options import Address, ServeOptions, node_ids, tls_context
from sparklog.serve.peers import Peers
from sparklog.serve.server import serving
from tests.serve.test_command import certificate
from tests.serve.wire import Wire, batch_of

NODES = [Address("one", 1), Address("two", 2), Address("three", 3)]
TOPICS = [f"topic-{number}" for number in range(60)]


def peers_of(own: Address, responding: list[Address]) -> Peers:
    peers = Peers([own, *NODES])
    for node in responding:
        if node != own:
            peers._note(node, responds=True)
    return peers


def test_all_servers_return_the_same_leaders_and_distribute_partitions() -> None:
    leaders = {topic: peers_of(NODES[0], NODES).leaders(topic) for topic in TOPICS}
    for own in NODES[1:]:
        assert {topic: peers_of(own, NODES).leaders(topic) for topic in TOPICS} == leaders
    assert all(sorted(nodes, key=str) == sorted(NODES, key=str) for nodes in leaders.values())
    first = Counter(nodes[0] for nodes in leaders.values())
    assert min(first[node] for node in NODES) > len(TOPICS) / 6, "partition 0 of topics is spread, too"


def test_only_partitions_of_a_server_that_does_not_respond_get_another_leader() -> None:
    for gone in NODES:
        left = [node for node in NODES if node != gone]
        for topic in TOPICS:
            before, after = (peers_of(left[0], nodes).leaders(topic) for nodes in (NODES, left))
            assert gone not in after
            assert all(new == old for new, old in zip(after, before, strict=True) if old != gone)
    assert Peers([NODES[0]]).leaders("t") == [NODES[0]]


class StubServer:
    """Responds to probes while `mode` is "answer"."""

    mode = "answer"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
                if self.mode == "answer":
                    writer.write(struct.pack(">i", 6) + bytes(6))
                elif self.mode == "answer and close":
                    writer.write(struct.pack(">i", 6) + bytes(6))
                    break
                elif self.mode == "close":
                    break
                elif self.mode == "garbage":
                    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(module, "RESPONSE_SECONDS", 0.3)


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 30)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("mode", ["hang", "close", "garbage"])
def test_unresponsive_and_responsive_servers_are_distinguished(mode: str) -> None:
    async def run() -> None:
        stub = StubServer()
        server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
        node = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        peers = Peers([NODES[0], node])
        peers.start()
        assert await peers.responds(node)
        stub.mode = "answer and close"
        changes, note = list[bool](), peers._note

        def noted(node: Address, *, responds: bool, why: str = "") -> None:
            changes.append(responds)
            note(node, responds=responds, why=why)

        peers._note = noted  # type: ignore[method-assign]
        await until(lambda: len(changes) > 5)
        assert all(changes), "a connection that ends is made again"
        stub.mode = mode
        await until(lambda: peers.responding == [NODES[0]])
        stub.mode = "answer"
        await until(lambda: peers.responding == [NODES[0], node])
        peers.close()
        server.close()

    asyncio.run(run())


@pytest.mark.usefixtures("quick")
def test_a_server_that_never_responded_is_unresponsive() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as hanging, closing(socket.socket()) as refusing:
            refusing.bind(("127.0.0.1", 0))
            nodes = [Address("127.0.0.1", one.getsockname()[1]) for one in (hanging, refusing)]
            peers = Peers([NODES[0], *nodes])
            peers.start()
            assert [await peers.responds(node) for node in nodes] == [False, False]
            peers.close()

    asyncio.run(run())


@pytest.mark.usefixtures("quick")
def test_a_server_with_an_invalid_host_name_is_unresponsive() -> None:
    async def run() -> None:
        node = Address("a..b", 1)
        peers = Peers([NODES[0], node])
        peers.start()
        assert not await asyncio.wait_for(peers.responds(node), 10)
        peers.close()

    asyncio.run(run())


@pytest.fixture
def addresses() -> list[Address]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(2)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [Address("127.0.0.1", probe.getsockname()[1]) for probe in probes]


def seen_by(address: Address, tls: Any) -> tuple[list[int], set[int]]:
    """Return the leaders of a topic's partitions, and the servers in a server's metadata."""
    wire = Wire(address)
    if tls is not None:
        import ssl

        context = ssl.create_default_context(cafile=str(tls))
        wire.socket = context.wrap_socket(wire.socket, server_hostname="127.0.0.1")
    answer = wire.ask("Metadata", 9, {"topics": [{"name": "t"}]})
    wire.close()
    brokers = {broker["nodeId"] for broker in answer["brokers"]}
    return [row["leaderId"] for row in answer["topics"][0]["partitions"]], brokers


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("encrypted", [False, True])
def test_leaders_are_distributed_over_responsive_servers(
    tmp_path: Path, addresses: list[Address], encrypted: bool
) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("t", partitions=4)
    cert, key = certificate(tmp_path) if encrypted else (None, None)
    tls = tls_context(str(cert), str(key)) if encrypted else None
    ids = node_ids(addresses)

    def server(own: Address) -> Any:
        others = [address for address in addresses if address != own]
        return serving(root.location, ServeOptions(own, (own, *others), writable=True, tls=tls))

    def wait_for(own: Address, *alive: Address) -> list[int]:
        for _ in range(2_000):
            leaders, brokers = seen_by(own, cert)
            if brokers == {ids[node] for node in alive}:
                return leaders
        pytest.fail(f"{own} does not see {alive}")

    first, second = addresses
    with server(first):
        assert wait_for(first, first) == [ids[first]] * 4
        with server(second):
            leaders = wait_for(first, first, second)
            assert Counter(leaders) == {ids[first]: 2, ids[second]: 2}
            assert wait_for(second, first, second) == leaders
        assert wait_for(first, first) == [ids[first]] * 4


@pytest.mark.usefixtures("quick")
def test_any_server_accepts_a_batch_regardless_of_the_leader(tmp_path: Path, addresses: list[Address]) -> None:
    topic = sparklog.open(tmp_path, create=True).create_topic("t", partitions=2)
    with ExitStack() as stack:
        for own, other in (addresses, addresses[::-1]):
            stack.enter_context(serving(str(tmp_path), ServeOptions(own, (own, other), writable=True)))
        for address in addresses:
            wire = Wire(address)
            answers = wire.produce("t", {0: batch_of([b"a"]), 1: batch_of([b"b"])})
            wire.close()
            assert [answer["errorCode"] for answer in answers] == [Code.NONE] * 2
    assert topic.count().records == 4
