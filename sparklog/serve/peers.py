"""The servers of a root that know each other (`--advertise`): which ones respond, and which one leads a partition.

Any server may append to any partition and read it, because commits decide what was written. A leader is advice that
spreads clients over the servers, and that sends them to another server if one stops responding. All servers that see
the same servers respond give the same advice.

Each server sends each other one an ApiVersions request a second, over a connection that stays open. A server that
refuses connections, or does not answer within four seconds (it hangs, or its machine is gone), does not respond: the
others no longer name it, until it answers again. This makes no requests to the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress

from sparklog.serve.options import Address

PROBE_SECONDS, ANSWER_SECONDS = 1.0, 4.0
MAX_ANSWER_BYTES = 1 << 16
API_VERSIONS = 18
_CLIENT = b"sparklog-serve"
_HEADER = struct.pack(">hhih", API_VERSIONS, 0, 0, len(_CLIENT)) + _CLIENT
PROBE = struct.pack(">i", len(_HEADER)) + _HEADER
FAILURES = OSError, EOFError, asyncio.TimeoutError
_LOG = logging.getLogger("sparklog.serve")


class Peers:
    """The servers of a root. `nodes`: this one first. `is_encrypted`: they speak TLS."""

    def __init__(self, nodes: Sequence[Address], *, is_encrypted: bool = False) -> None:
        self.nodes = tuple(dict.fromkeys(nodes))
        self.own = nodes[0]
        self._others = self.nodes[1:]
        self._responding = {self.own}
        self._probed = {node: asyncio.Event() for node in self._others}
        self._tls = _without_check() if is_encrypted and self._others else None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to probe the other servers."""
        self._tasks = [asyncio.create_task(self._probing(node)) for node in self._others]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def responding(self) -> list[Address]:
        """The servers that respond, this one first."""
        return [self.own, *(node for node in self._others if node in self._responding)]

    async def responds(self, node: Address) -> bool:
        """Return True if a server responds; wait for the first probe of it."""
        if self._tasks and node in self._probed:
            await self._probed[node].wait()
        return node in self._responding

    def leaders(self, topic: str) -> list[Address]:
        """Return the leaders of a topic's partitions: partition p has the one at p modulo their number.

        The servers are in an order that the topic's name decides. A server that does not respond is replaced by the
        next one that does, so that the other partitions keep their leaders.
        """
        nodes = sorted(self.nodes, key=lambda node: ranking(topic, node))
        places = range(len(nodes))
        turns = ([*nodes[place:], *nodes[:place]] for place in places)
        return [next(node for node in turn if node in self._responding) for turn in turns]

    async def _probing(self, node: Address) -> None:
        """Keep asking a server, until cancelled."""
        while True:
            try:
                await self._ask(node)
            except FAILURES as error:
                self._note(node, responds=False, why=str(error) or "no answer in time")
            await asyncio.sleep(PROBE_SECONDS)

    async def _ask(self, node: Address) -> None:
        """Ask a server each second over one connection. Raises if the first answer does not come, or a later one late.

        A connection that ends after an answer is not a sign of trouble: the caller connects again.
        """
        opening = asyncio.open_connection(node.host, node.port, ssl=self._tls)
        reader, writer = await asyncio.wait_for(opening, ANSWER_SECONDS)
        has_answered = False
        try:
            while True:
                writer.write(PROBE)
                await asyncio.wait_for(_answer(reader), ANSWER_SECONDS)
                has_answered = True
                self._note(node, responds=True)
                await asyncio.sleep(PROBE_SECONDS)
        except (EOFError, ConnectionError):
            if not has_answered:
                raise
        finally:
            with suppress(OSError):
                writer.transport.abort()

    def _note(self, node: Address, *, responds: bool, why: str = "") -> None:
        if responds and node not in self._responding:
            self._responding = self._responding | {node}
            _LOG.info("server %s responds", node)
        elif not responds and (node in self._responding or not self._probed[node].is_set()):
            self._responding = self._responding - {node}
            _LOG.warning("server %s does not respond (%s): the other servers take over its clients", node, why)
        self._probed[node].set()


async def _answer(reader: asyncio.StreamReader) -> None:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    if not 0 <= size <= MAX_ANSWER_BYTES:
        raise ConnectionError("the answer is not Kafka's protocol")
    await reader.readexactly(size)


def _without_check() -> ssl.SSLContext:
    """Return what encrypts probes. They carry no secret, so the certificate is not checked."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def ranking(name: str, node: Address) -> bytes:
    """Return the place of a server among others for a topic or group: the same on every server."""
    return hashlib.blake2b(f"{name} {node}".encode(), digest_size=8).digest()
