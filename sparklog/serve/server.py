"""A server, from the first connection to the last.

It keeps nothing that another one could not read from the location. `serving` runs one in a thread, for tests and
programs; `sparklog serve` runs one until it is interrupted.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ssl import SSLContext
from typing import TypeAlias

from sparklog.errors import BadRequest, Unavailable
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.opening import NOTHING, ROOT, TOPIC, Location, open_log, open_view, resolve
from sparklog.serve.addresses import Address
from sparklog.serve.apis.table import import_handlers
from sparklog.serve.connection import Connection
from sparklog.serve.metrics import RequestMemory, ServerMetrics
from sparklog.serve.options import ServeOptions
from sparklog.serve.served_log import ServedLog
from sparklog.serve.services import Services
from sparklog.storage import open_store

BACKLOG = 512
SWEEP_SECONDS = 5.0
IMPORT_SECONDS = 0.2
SCRAPE_SECONDS = 10.0
BUFFER_BYTES = 1 << 20
ClientConnected: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def open_served(location: Location, *, create: bool = False, backup: int | None = None) -> ServedLog:
    """Open a root, a topic's folder, a backup, a Kafka directory or a partition's folder to be served.

    `create`: make a new root where there is nothing. `backup`: the number of one, in a place of backups.
    """
    if location.kind in (ROOT, TOPIC) or (create and location.kind == NOTHING):
        from sparklog.log.topic.root import RootView, open_root

        if backup is None:
            root = open_log(location, create=create)
        else:
            from sparklog.log.topic.backup_manifest import one_backup

            root = open_root(one_backup(open_store(location.root), backup))
        return ServedLog(RootView(root), root, location.topic)
    return ServedLog(open_view(location, tailing=True), None, location.topic)


def in_memory(env: Env = SYSTEM) -> ServedLog:
    """Return an empty root in this process's memory, to be served."""
    from sparklog.log.topic.root import RootView, open_root
    from sparklog.storage.memory import MemoryStore

    root = open_root(MemoryStore(env.wall_ms), create=True, env=env)
    return ServedLog(RootView(root), root, None)


class Server:
    """Serves a log. `start` returns once it listens, `stop` closes all connections."""

    def __init__(self, log: ServedLog, options: ServeOptions) -> None:
        options.check()
        self._options = options
        if options.writable and (log.root is None or not log.root.store.writable):
            raise BadRequest(
                f"{log.location} is only read, as backups and Kafka's directories are: leave --writable out"
            )
        self._log = log
        self.metrics = ServerMetrics()
        self._connections: set[Connection] = set()
        self._listening: list[asyncio.Server] = []

    async def start(self) -> Address:
        """Listen; return the address."""
        options, limits = self._options, self._options.limits
        server = await self._listen(self._connected, options.listen, options.tls)
        address = Address(options.listen.host, server.sockets[0].getsockname()[1])
        memory = RequestMemory(max(limits.waiting_request_bytes, limits.request_bytes))
        pool = ThreadPoolExecutor(limits.threads, "sparklog-serve")
        self._services = Services(self._log, options.advertise or (address,), options, pool, memory, self.metrics)
        self._sweeper = asyncio.create_task(self._sweeping())
        if options.metrics_port is not None:
            await self._listen(self._scraped, Address(options.listen.host, options.metrics_port), None)
        return address

    async def _listen(self, client: ClientConnected, address: Address, tls: SSLContext | None) -> asyncio.Server:
        try:
            server = await asyncio.start_server(
                client, address.host, address.port, backlog=BACKLOG, limit=BUFFER_BYTES, ssl=tls
            )
        except OSError as error:
            raise Unavailable(f"cannot listen on {address}: {error.strerror or error}") from None
        self._listening.append(server)
        return server

    async def stop(self) -> None:
        for server in self._listening:
            server.close()
        self._sweeper.cancel()
        for connection in list(self._connections):
            connection.close()
        self._services.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._options.limits.connections:
            self.metrics.refused += 1
            writer.transport.abort()
            return
        connection = Connection(self._services, reader, writer)
        self._connections.add(connection)
        self.metrics.accepted += 1
        self.metrics.connections = len(self._connections)
        try:
            # Of a server that ends: the task is ours, and its end needs no word.
            with suppress(asyncio.CancelledError):
                await connection.run()
        finally:
            self._connections.discard(connection)
            self.metrics.connections = len(self._connections)

    async def _scraped(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer Prometheus: whatever it asks for, the counters."""
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SCRAPE_SECONDS)
            body = self.metrics.text().encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()

    async def _sweeping(self) -> None:
        """Drop connections that were silent for too long, those that never sent a request among them.

        Before that, import what the first requests would wait for, once the server has begun to answer.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(IMPORT_SECONDS)
        await self._services.run(import_handlers)
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for connection in list(self._connections):
                if loop.time() - connection.last > self._options.limits.idle_seconds:
                    connection.close()


async def serve_until_signal(log: ServedLog, options: ServeOptions, ready: Callable[[Address], object]) -> None:
    """Serve until SIGTERM or Ctrl-C; `ready` is called with the address once the server listens."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = Server(log, options)
    ready(await server.start())
    await stopped.wait()
    await server.stop()


@contextmanager
def serving(location: str | ServedLog, options: ServeOptions) -> Iterator[Address]:
    """Serve in a thread while the block runs; yields the address."""
    log = location if isinstance(location, ServedLog) else open_served(resolve(location))
    result: Future[Address] = Future()
    leaving = threading.Event()

    async def run() -> None:
        server = Server(log, options)
        result.set_result(await server.start())
        await asyncio.get_running_loop().run_in_executor(None, leaving.wait)
        await server.stop()

    def serve() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001 - the caller's, where it waits for the start
            if not result.done():
                result.set_exception(error)

    thread = threading.Thread(target=serve, name="sparklog-serve", daemon=True)
    thread.start()
    try:
        yield result.result()
    finally:
        leaving.set()
        thread.join(10)
