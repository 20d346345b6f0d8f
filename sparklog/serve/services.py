"""The parts of a server that requests are answered with, and a request with the client that sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from sparklog.serve.addresses import Address
from sparklog.serve.metrics import RequestMemory, ServerMetrics
from sparklog.serve.options import ServeOptions
from sparklog.serve.served_log import ServedLog, StoredPlace

if TYPE_CHECKING:
    from sparklog.serve.apis.table import Api
    from sparklog.serve.appends import Appends
    from sparklog.serve.coordinator import Coordinator
    from sparklog.serve.stored_batches import StoredBatches
    from sparklog.serve.users import SaslExchange, User

T = TypeVar("T")


@dataclass
class Services:
    """The log, what reads and writes it, and who the server is. `nodes`: the servers of this root, this one first.

    What only some requests need is made, and imported, with the first of them.
    """

    log: ServedLog
    nodes: tuple[Address, ...]
    options: ServeOptions
    pool: ThreadPoolExecutor
    memory: RequestMemory
    metrics: ServerMetrics

    @cached_property
    def batches(self) -> StoredBatches:
        from sparklog.serve.stored_batches import StoredBatches

        return StoredBatches(self.log)

    def holds(self, place: StoredPlace, nbytes: int) -> bool:
        """Return True if a fetch of so many bytes finds them in memory."""
        return "batches" in vars(self) and self.batches.holds(place, nbytes)

    @cached_property
    def coordinator(self) -> Coordinator | None:
        """None for a Kafka directory, where groups have no journal."""
        if self.log.root is None:
            return None
        from sparklog.serve.coordinator import Coordinator

        return Coordinator(self.log.root, self.nodes, self.run)

    @cached_property
    def appends(self) -> Appends | None:
        """None where nothing is written."""
        if not self.options.writable:
            return None
        from sparklog.serve.appends import Appends

        return Appends(self.log, self.run, self.options.linger_seconds)

    def close(self) -> None:
        self.log.close()
        if "coordinator" in vars(self) and self.coordinator is not None:
            self.coordinator.close()
        self.pool.shutdown(wait=False, cancel_futures=True)

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
    """A request that was read: its API, version, number (by which a client knows the answer) and fields."""

    services: Services
    client: Client
    api: Api
    version: int
    correlation: int
    fields: Fields = field(default_factory=dict)

    @property
    def isolation(self) -> str:
        return READ_COMMITTED if self.fields["isolationLevel"] == 1 else READ_UNCOMMITTED

    def may(self, operation: str, name: str) -> bool:
        """Return True if the client may read or write this topic, or use this group."""
        if self.services.options.users is None:
            return True
        return self.client.user is not None and self.client.user.may(operation, name)
