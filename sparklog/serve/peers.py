"""The servers of a root that are configured with each other's addresses (`--advertise`), and the leader of each
partition.

Every server can read and write every partition, because the writes of all servers are ordered by commits. Leaders are
only hints: they distribute clients over the servers, and direct clients to another server if a server stops responding.
Servers that agree on which servers respond return the same leaders.

Each server sends an ApiVersions request to every other server once per second, over a persistent connection. A server
is considered unresponsive if it refuses connections, or does not respond within four seconds because it hangs or its
host is down. Metadata responses of the other servers omit it until it responds again. Probes do not send requests to
the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress

from sparklog.serve.options import Address

PROBE_SECONDS, RESPONSE_SECONDS = 1.0, 4.0
MAX_RESPONSE_BYTES = 1 << 16
API_VERSIONS = 18
_CLIENT = b"sparklog-serve"
_HEADER = struct.pack(">hhih", API_VERSIONS, 0, 0, len(_CLIENT)) + _CLIENT
PROBE = struct.pack(">i", len(_HEADER)) + _HEADER
FAILURES = OSError, EOFError, asyncio.TimeoutError, UnicodeError
"""The exceptions of a failed probe. A `UnicodeError` means that the address is not a valid host name."""
_LOG = logging.getLogger("sparklog.serve")


class Peers:
    """The servers of a root.

    Args:
        nodes: the addresses of all servers, starting with this server.
        is_encrypted: True if the servers use TLS.
    """

    def __init__(self, nodes: Sequence[Address], *, is_encrypted: bool = False) -> None:
        self.nodes = tuple(dict.fromkeys(nodes))
        self.own = nodes[0]
        self._others = self.nodes[1:]
        self._responding = {self.own}
        self._probed = {node: asyncio.Event() for node in self._others}
        self._tls = _without_check() if is_encrypted and self._others else None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start probing the other servers."""
        self._tasks = [asyncio.create_task(self._probing(node)) for node in self._others]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def responding(self) -> list[Address]:
        """The servers that respond, starting with this server."""
        return [self.own, *(node for node in self._others if node in self._responding)]

    async def responds(self, node: Address) -> bool:
        """Return True if a server responds. Waits until the server has been probed once."""
        if self._tasks and node in self._probed:
            await self._probed[node].wait()
        return node in self._responding

    async def first_responding(self, nodes: Iterable[Address]) -> Address:
        """Return the first of these servers that responds, or this server if no server responds."""
        for node in nodes:
            if await self.responds(node):
                return node
        return self.own

    def coordinates(self, name: str) -> bool:
        """Return True if this server coordinates a transactional id, because it is the first server that responds."""
        return min(self.responding, key=lambda node: ranking(name, node)) == self.own

    def leaders(self, topic: str) -> list[Address]:
        """Return the leaders of a topic's partitions. The leader of partition p has index p modulo the number of
        leaders.

        The order of the servers depends on the topic's name. If a server does not respond, the next server that
        responds replaces it, so the leaders of other partitions do not change.
        """
        nodes = sorted(self.nodes, key=lambda node: ranking(topic, node))
        rotations = ([*nodes[first:], *nodes[:first]] for first in range(len(nodes)))
        return [next(node for node in rotation if node in self._responding) for rotation in rotations]

    async def _probing(self, node: Address) -> None:
        """Probe a server until cancelled."""
        while True:
            try:
                await self._probe(node)
            except FAILURES as error:
                self._note(node, responds=False, why=str(error) or "no response in time")
            await asyncio.sleep(PROBE_SECONDS)

    async def _probe(self, node: Address) -> None:
        """Probe a server once per second over one connection.

        Raises an error if the first response is not received, or if a later response times out. If the connection ends
        after a response, the caller connects again.
        """
        opening = asyncio.open_connection(node.host, node.port, ssl=self._tls)
        reader, writer = await asyncio.wait_for(opening, RESPONSE_SECONDS)
        has_responded = False
        try:
            while True:
                writer.write(PROBE)
                await asyncio.wait_for(_read_response(reader), RESPONSE_SECONDS)
                has_responded = True
                self._note(node, responds=True)
                await asyncio.sleep(PROBE_SECONDS)
        except (EOFError, ConnectionError):
            if not has_responded:
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
            _LOG.warning("server %s does not respond (%s); its clients are directed to other servers", node, why)
        self._probed[node].set()


async def _read_response(reader: asyncio.StreamReader) -> None:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    if not 0 <= size <= MAX_RESPONSE_BYTES:
        raise ConnectionError("the response is not a Kafka response")
    await reader.readexactly(size)


def _without_check() -> ssl.SSLContext:
    """Return a TLS context for probes. It does not verify certificates, because probes do not contain secrets."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def ranking(name: str, node: Address) -> bytes:
    """Return the sort key of a server for a topic or group. All servers compute the same key."""
    return hashlib.blake2b(f"{name} {node}".encode(), digest_size=8).digest()
