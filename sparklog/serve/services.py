"""The parts of a server that requests are answered with, and a request with the client that sent it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from sparklog.errors import BadRequest
from sparklog.format.coordinators.message_schema import Fields
from sparklog.parsing import is_digits
from sparklog.serve.metrics import RequestMemory, ServerMetrics
from sparklog.serve.served_log import ServedLog
from sparklog.serve.stored_batches import StoredBatches

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; `node_id` is the same on every server that is told of it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, text: str) -> Address:
        """Parse `host:port`. `BadRequest` for anything else."""
        host, _, port = text.rpartition(":")
        if not host or not is_digits(port) or not 0 <= int(port) <= 65535:
            raise BadRequest(f"expected an address as host:port, found {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def node_id(self) -> int:
        return zlib.crc32(str(self).encode()) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class ServeLimits:
    """Limits of a server: connections, bytes of a request, bytes of a fetch's answer, threads."""

    connections: int = 1_000
    request_bytes: int = 100 << 20
    waiting_request_bytes: int = 256 << 20
    """Of all requests that are read and not answered."""
    answer_bytes: int = 8 << 20
    threads: int = 16
    idle_seconds: float = 600.0


@dataclass(slots=True)
class Services:
    """The log, what reads it, and who the server is. `nodes`: the servers of this root, this one first."""

    log: ServedLog
    batches: StoredBatches
    nodes: tuple[Address, ...]
    limits: ServeLimits
    pool: ThreadPoolExecutor
    memory: RequestMemory
    metrics: ServerMetrics

    @property
    def me(self) -> Address:
        return self.nodes[0]

    @property
    def cluster_id(self) -> str:
        return self.log.root.id if self.log.root is not None else "sparklog"

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that waits for the store, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *arguments)


@dataclass(slots=True)
class Client:
    """A connection's other end. `name` is what it calls itself."""

    peer: str
    name: str = ""


@dataclass(slots=True)
class Request:
    """A request that was read: its version and fields."""

    services: Services
    client: Client
    version: int
    fields: Fields = field(default_factory=dict)
