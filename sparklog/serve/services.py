"""The services that request handlers use, and the requests with their clients."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from sparklog.common.warned import REPEAT_MS
from sparklog.kafka.messages.message_schema import Fields
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from sparklog.serve.codes import CodeError
from sparklog.serve.options import Address, ServeLimits, ServeOptions, node_ids
from sparklog.serve.peers import Peers
from sparklog.serve.served_log import FetchPosition, ServedLog

if TYPE_CHECKING:
    from sparklog.serve.apis.table import Api
    from sparklog.serve.appends import Appends
    from sparklog.serve.coordinator import Coordinator
    from sparklog.serve.stored_batches import StoredBatches
    from sparklog.serve.transactions import TransactionCoordinator
    from sparklog.serve.users import SaslExchange, User

T = TypeVar("T")
_LOG = logging.getLogger("sparklog.serve")
STALL_SECONDS = 2.0
"""A request is stalled if no bytes have been received for this time. If other requests need its memory, the connection
of the stalled request is closed.
"""


DISK_FETCH_THREADS = 4
"""The maximum number of threads that read records from a disk. More threads would only compete for the interpreter."""


@dataclass(slots=True)
class ServerMetrics:
    """Counters: requests by API and version, sent bytes, accepted and refused connections."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    sent_bytes: int = 0
    accepted: int = 0
    refused: int = 0

    def text(self, connections: int, skipped: int) -> str:
        """Return the counters, the open connections and the skipped corrupt ranges in Prometheus text format."""
        from sparklog.tools.report.metrics import Labels, Metric, text_of

        def metric(name: str, text: str, *values: tuple[Labels, int]) -> Metric:
            return Metric(f"sparklog_serve_{name}", text, values, "counter" if name.endswith("_total") else "gauge")

        requests = (({"api": api, "version": n}, count) for (api, n), count in sorted(self.requests.items()))
        metrics = (
            metric("connections", "Open connections.", ({}, connections)),
            metric("accepted_total", "Accepted connections.", ({}, self.accepted)),
            metric("refused_total", "Connections that were refused because of a connection limit.", ({}, self.refused)),
            metric("sent_bytes_total", "Bytes of responses.", ({}, self.sent_bytes)),
            metric("requests_total", "Requests by API and version.", *requests),
            metric("skipped_total", "Skipped corrupt ranges of files.", ({}, skipped)),
        )
        return text_of(metrics)


MAX_LOGGED_DROPS = 10
"""The maximum number of dropped connections that are logged one by one in `REPEAT_MS`."""


class DroppedConnections:
    """Logs the clients whose connections the server closed because they sent invalid data.

    Such a client may connect thousands of times per second. Therefore, only the first connections in `REPEAT_MS` are
    logged one by one, and the others as one line with their number. `boot_ms` returns the time in milliseconds.
    """

    def __init__(self, boot_ms: Callable[[], int] = SYSTEM.boot_ms) -> None:
        self._boot_ms = boot_ms
        self._started_ms = boot_ms()
        self._count = 0
        self._last = ""

    def add(self, client: Client, reason: Exception) -> None:
        self.report()
        self._count += 1
        if self._count <= MAX_LOGGED_DROPS:
            _LOG.warning("closed the connection of %s: %s", client, reason)
        else:
            self._last = f"{client}: {reason}"

    def report(self, *, is_last: bool = False) -> None:
        """After `REPEAT_MS`, or if the server stops, log the number of connections that were not logged one by one."""
        seconds = (self._boot_ms() - self._started_ms) // 1000
        if not is_last and 1000 * seconds < REPEAT_MS:
            return
        if self._count > MAX_LOGGED_DROPS:
            count = self._count - MAX_LOGGED_DROPS
            _LOG.warning("closed %d more connections in %d s, the last one of %s", count, seconds, self._last)
        self._started_ms, self._count = self._boot_ms(), 0


@dataclass(slots=True, eq=False)
class RequestBytes:
    """The number of bytes of a request that have been received.

    * `close`: function that closes the connection of the request
    * `last`: the event loop time at which the latest bytes were received
    * `waits`: True while the request waits for memory. During this time, the request is not stalled.
    """

    close: Callable[[], None]
    nbytes: int = 0
    last: float = 0.0
    waits: bool = False


class RequestMemory:
    """Limits the memory of requests that have been received at least partially and do not have a response yet.

    The bytes of small requests are counted, but small requests do not wait. Large requests wait for memory in order of
    arrival. Two rules prevent deadlocks:

    * One request at a time may exceed the limit. Otherwise, partially received requests could wait for each other
      forever.
    * If no memory is released for `STALL_SECONDS`, the connection whose request has stalled the longest is closed.
      Otherwise, clients that stop in the middle of a request could block all other clients.
    """

    def __init__(self, nbytes: int) -> None:
        self._free_bytes = nbytes
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        self._exceeding: RequestBytes | None = None
        self._arriving: set[RequestBytes] = set()

    def add(self, request: RequestBytes, nbytes: int) -> None:
        """Count bytes of a request without waiting."""
        self._free_bytes -= nbytes
        request.nbytes += nbytes

    async def acquire(self, request: RequestBytes, nbytes: int) -> None:
        """Wait until memory is available for the bytes of a large request that have just been received, and count these
        bytes.
        """
        self._arriving.add(request)
        if self._exceeding is not request and (self._free_bytes < nbytes or self._turn.locked()):
            request.waits = True
            async with self._turn:
                while self._free_bytes < nbytes and self._exceeding is not None:
                    await self._wait()
                if self._free_bytes < nbytes:
                    self._exceeding = request
            request.waits = False
        request.last = asyncio.get_running_loop().time()
        self.add(request, nbytes)

    def arrived(self, request: RequestBytes) -> None:
        """Record that a request has been received completely, so that it can no longer stall."""
        self._arriving.discard(request)

    def release(self, request: RequestBytes) -> None:
        self.arrived(request)
        self._free_bytes += request.nbytes
        request.nbytes = 0
        if self._exceeding is request:
            self._exceeding = None
        self._freed.set()

    async def _wait(self) -> None:
        """Wait until a request releases its memory. If no memory is released, close a stalled connection."""
        self._freed.clear()
        try:
            await asyncio.wait_for(self._freed.wait(), STALL_SECONDS)
        except asyncio.TimeoutError:
            latest = asyncio.get_running_loop().time() - STALL_SECONDS
            stalled = [request for request in self._arriving if not request.waits and request.last <= latest]
            if stalled:
                first = min(stalled, key=lambda request: request.last)
                self._arriving.discard(first)
                first.close()


class Logins:
    """Limits concurrent logins, because checking a password is deliberately expensive for the server and cheap for the
    client.

    Only one login per address is checked at a time, and the response to a failed login is delayed. Therefore, an
    address that tries many passwords does not block other addresses.
    """

    def __init__(self, limits: ServeLimits) -> None:
        self._free = asyncio.Semaphore(limits.logins)
        self._delay = limits.failed_login_seconds
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        """For each address, its lock and the number of logins that hold the lock or wait for it."""

    async def step(self, host: str, check: Callable[[], Awaitable[bytes]]) -> bytes:
        """Process one message of a login with `check`, and return the response. Raises the exceptions of `check`."""
        turn, count = self._turns.get(host, (asyncio.Lock(), 0))
        self._turns[host] = turn, count + 1
        try:
            async with turn:
                try:
                    async with self._free:
                        return await check()
                except CodeError:
                    await asyncio.sleep(self._delay)
                    raise
        finally:
            turn, count = self._turns[host]
            self._turns[host] = turn, count - 1
            if count == 1:
                del self._turns[host]


class Services:
    """The log, its readers and writers, and the servers of this root.

    Services that only some requests need are imported and created when they are first used.
    """

    def __init__(self, log: ServedLog, options: ServeOptions) -> None:
        limits = options.limits
        self.log = log
        self.options = options
        self.has_writable_groups = log.root is not None and log.root.store.writable
        """False if the location was read-only when the server started, so that groups cannot have new members."""
        self.peers = Peers(options.advertise or (options.listen,), is_encrypted=options.tls is not None)
        self.memory = RequestMemory(limits.waiting_request_bytes)
        self.logins = Logins(limits)
        self.metrics = ServerMetrics()
        self.drops = DroppedConnections()
        self._pool = ThreadPoolExecutor(limits.threads, "sparklog-serve")
        fetch_threads = limits.threads if log.is_remote else min(limits.threads, DISK_FETCH_THREADS)
        self._fetch_pool = ThreadPoolExecutor(fetch_threads, "sparklog-serve-fetch")

    @cached_property
    def node_ids(self) -> dict[Address, int]:
        """The node ids of all servers of this root."""
        return node_ids(self.peers.nodes)

    @cached_property
    def batches(self) -> StoredBatches:
        from sparklog.serve.stored_batches import StoredBatches

        return StoredBatches(self.log)

    def has_buffered(self, position: FetchPosition, end: int, nbytes: int) -> bool:
        """Return True if all batches from a fetch position to offset `end`, or at least `nbytes`, are in memory.

        Does not block, because the event loop calls this method.
        """
        return "batches" in vars(self) and self.batches.has_buffered(position, end, nbytes)

    @cached_property
    def coordinator(self) -> Coordinator | None:
        """The group coordinator. None for a Kafka directory, which has no group journals."""
        if self.log.root is None:
            return None
        from sparklog.serve.coordinator import Coordinator

        return Coordinator(self.log.root, self.peers, self.run, self.options.consumer_session_ms)

    @cached_property
    def transactions(self) -> TransactionCoordinator | None:
        """The transaction coordinator. None for a Kafka directory, which has no journals of transactional ids."""
        if self.log.root is None:
            return None
        from sparklog.serve.transactions import TransactionCoordinator

        return TransactionCoordinator(self.log.root)

    @cached_property
    def appends(self) -> Appends:
        from sparklog.serve.appends import Appends

        return Appends(self.log, self.run, self.options.linger_seconds)

    async def finish_appends(self, timeout_seconds: float) -> None:
        """Wait for in-flight commits, and reject the batches whose commit has not started."""
        if "appends" in vars(self):
            await self.appends.close(timeout_seconds)

    async def leave_groups(self) -> None:
        """Remove the clients of this server from shared groups."""
        if "coordinator" in vars(self) and self.coordinator is not None:
            await self.coordinator.leave_shared()

    def close(self) -> None:
        self.log.close()
        self.peers.close()
        if "coordinator" in vars(self) and self.coordinator is not None:
            self.coordinator.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._fetch_pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a blocking function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def run_fetch(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function of a Fetch request in a thread.

        Fetches use separate threads, so that commits and heartbeats do not wait until records have been read.
        """
        return await asyncio.get_running_loop().run_in_executor(self._fetch_pool, function, *arguments)

    def start_fetch(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function in a thread for fetches, without waiting for it. The function must not raise exceptions."""
        self._fetch_pool.submit(function, *arguments)


@dataclass(slots=True)
class Client:
    """The client of a connection. `name` is the client id, and `host` is the client's address."""

    peer: str
    host: str = ""
    name: str = ""
    user: User | None = None
    exchange: SaslExchange | None = None

    @classmethod
    def of(cls, peer: Sequence[Any]) -> Client:
        """Return the client with this socket address. The address is empty if the connection has already ended."""
        return cls(f"{peer[0]}:{peer[1]}", peer[0]) if peer else cls("?")

    def __str__(self) -> str:
        return f"{self.peer} ({self.name or 'no name'})"


@dataclass(slots=True)
class ServedRequest:
    """A decoded request. The response contains the same `correlation` id."""

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
