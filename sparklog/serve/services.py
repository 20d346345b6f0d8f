"""The parts of a server that requests are answered with, and a request with the client that sent it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from sparklog.serve.options import Address, ServeOptions, node_ids
from sparklog.serve.served_log import ServedLog, StoredPlace

if TYPE_CHECKING:
    from sparklog.serve.apis.table import Api
    from sparklog.serve.appends import Appends
    from sparklog.serve.coordinator import Coordinator
    from sparklog.serve.stored_batches import StoredBatches
    from sparklog.serve.users import SaslExchange, User

T = TypeVar("T")


@dataclass(slots=True)
class ServerMetrics:
    """Requests by API and version, bytes sent, connections: in total, and refused for the limit."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    sent_bytes: int = 0
    accepted: int = 0
    refused: int = 0

    def text(self, connections: int) -> str:
        """Return the counters, and how many connections are open, as Prometheus reads them."""
        from sparklog.tools.report.metrics import Labels, Metric, text_of

        def metric(name: str, text: str, *values: tuple[Labels, int]) -> Metric:
            return Metric(f"sparklog_serve_{name}", text, values, "counter" if name.endswith("_total") else "gauge")

        requests = (({"api": api, "version": n}, count) for (api, n), count in sorted(self.requests.items()))
        metrics = (
            metric("connections", "Connections that are open.", ({}, connections)),
            metric("accepted_total", "Connections that were accepted.", ({}, self.accepted)),
            metric("refused_total", "Connections over the limit.", ({}, self.refused)),
            metric("sent_bytes_total", "Bytes of responses.", ({}, self.sent_bytes)),
            metric("requests_total", "Requests by API and version.", *requests),
        )
        return text_of(metrics)


class RequestMemory:
    """Bytes that requests may take together: one more waits until others were answered, in the order they came."""

    def __init__(self, nbytes: int) -> None:
        self._room = nbytes
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, nbytes: int) -> None:
        if self._room >= nbytes and not self._turn.locked():
            self._room -= nbytes
            return
        async with self._turn:
            while self._room < nbytes:
                self._freed.clear()
                await self._freed.wait()
            self._room -= nbytes

    def give_back(self, nbytes: int) -> None:
        self._room += nbytes
        self._freed.set()


class Services:
    """The log, what reads and writes it, and who the server is. `nodes`: the servers of this root, this one first.

    What only some requests need is made, and imported, with the first of them.
    """

    def __init__(self, log: ServedLog, options: ServeOptions) -> None:
        limits = options.limits
        self.log = log
        self.options = options
        self.nodes = options.advertise
        self.memory = RequestMemory(max(limits.waiting_request_bytes, limits.request_bytes))
        self.metrics = ServerMetrics()
        self._pool = ThreadPoolExecutor(limits.threads, "sparklog-serve")

    @cached_property
    def node_ids(self) -> dict[Address, int]:
        """The node ids of `nodes`."""
        return node_ids(self.nodes)

    @cached_property
    def batches(self) -> StoredBatches:
        from sparklog.serve.stored_batches import StoredBatches

        return StoredBatches(self.log)

    def holds(self, place: StoredPlace, nbytes: int) -> bool:
        """Return True if a fetch of so many bytes finds them in memory. Imports nothing: the event loop asks."""
        return "batches" in vars(self) and self.batches.holds(place, nbytes)

    @cached_property
    def coordinator(self) -> Coordinator | None:
        """None for a Kafka directory, where groups have no journal."""
        if self.log.root is None:
            return None
        from sparklog.serve.coordinator import Coordinator

        return Coordinator(self.log.root, self.nodes, self.run)

    @cached_property
    def appends(self) -> Appends:
        from sparklog.serve.appends import Appends

        return Appends(self.log, self.run, self.options.linger_seconds)

    def close(self) -> None:
        self.log.close()
        if "coordinator" in vars(self) and self.coordinator is not None:
            self.coordinator.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that waits for the store, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


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
        user = self.client.user
        return self.services.options.users is None or (user is not None and user.may(operation, name))
