"""The parts of a server that requests are answered with, and a request with the client that sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sparklog.format.coordinators.message_schema import Fields
from sparklog.serve.addresses import Address
from sparklog.serve.metrics import RequestMemory, ServerMetrics
from sparklog.serve.served_log import ServedLog, StoredPlace

if TYPE_CHECKING:
    from sparklog.serve.appends import Appends
    from sparklog.serve.coordinator import Coordinator
    from sparklog.serve.stored_batches import StoredBatches
    from sparklog.serve.users import SaslExchange, User

T = TypeVar("T")


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
    nodes: tuple[Address, ...]
    limits: ServeLimits
    pool: ThreadPoolExecutor
    memory: RequestMemory
    metrics: ServerMetrics
    coordinator: Coordinator | None
    """None for a Kafka directory, where groups have no journal."""
    appends: Appends | None
    """None where nothing is written."""
    auto_create: bool = False
    """Create topics that clients ask for."""
    users: Mapping[str, User] | None = None
    """None: all who can connect may do what the server does."""

    _batches: StoredBatches | None = None

    def holds(self, place: StoredPlace, nbytes: int) -> bool:
        """Return True if a fetch of so many bytes finds them in memory."""
        return self._batches is not None and self._batches.holds(place, nbytes)

    @property
    def batches(self) -> StoredBatches:
        """The batches that fetches answer with; what reads them is imported with the first one."""
        if self._batches is None:
            from sparklog.serve.stored_batches import StoredBatches

            self._batches = StoredBatches(self.log)
        return self._batches

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
    user: User | None = None
    exchange: SaslExchange | None = None

    def __str__(self) -> str:
        return f"{self.peer} ({self.name or 'no name'})"


@dataclass(slots=True)
class ServedRequest:
    """A request that was read: its version and fields."""

    services: Services
    client: Client
    version: int
    fields: Fields = field(default_factory=dict)

    def may(self, operation: str, name: str) -> bool:
        """Return True if the client may read or write this topic, or use this group."""
        if self.services.users is None:
            return True
        return self.client.user is not None and self.client.user.may(operation, name)
