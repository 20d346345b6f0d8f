"""Run a server: accept connections, serve metrics, and stop. All state of the server is stored in the log."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from sparklog.errors import BadRequest, Unavailable
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.read.skipped import SkippedLog
from sparklog.log.topic.root import RootView, open_root
from sparklog.opening import NOTHING, ROOT, TOPIC, Location, check_policy_of_root, open_log, open_view, resolve
from sparklog.serve.apis.table import import_handlers
from sparklog.serve.connection import Connection, DropConnection, check_first_bytes
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.peers import Peers
from sparklog.serve.served_log import ServedLog
from sparklog.serve.services import Client, Services
from sparklog.storage import open_store

BACKLOG = 1_024
"""The maximum number of pending connections. The operating system uses `net.core.somaxconn` if it is smaller."""
ACCEPT_PAUSE_SECONDS = 0.5
SWEEP_SECONDS = 5.0
TIMEOUT_SECONDS = 10.0
"""The default of Kafka's `transaction.abort.timed.out.transaction.cleanup.interval.ms`."""
IMPORT_SECONDS, KERNEL_SECONDS = 0.2, 1.0
LOADING_SWITCH_SECONDS = 0.0005
SCRAPE_SECONDS = 10.0
STOP_SECONDS = 5.0
"""The maximum time that a stopping server waits for commits in flight, then for clients to receive responses, and then
for the clients to be removed from shared groups.
"""
BUFFER_BYTES = 1 << 20
_LOG = logging.getLogger("sparklog.serve")


def open_served(
    location: Location, *, create: bool = False, backup: int | None = None, corrupt_records: str = "fail"
) -> ServedLog:
    """Open a root, a topic directory, a backup, a Kafka log directory or a partition directory for a server.

    Args:
        location: the location to serve.
        create: create a root if the location is empty.
        backup: number of a backup in a backup repository.
        corrupt_records: the policy for corrupt records, as in `opening.open_view`.
    """
    skipped = SkippedLog()
    if backup is not None:
        from sparklog.log.topic.backup_manifest import one_backup

        root = open_root(one_backup(open_store(location.root), backup))
    elif location.kind in (ROOT, TOPIC) or (create and location.kind == NOTHING):
        root = open_log(location, create=create)
    else:
        view = open_view(location, tailing=True, corrupt_records=corrupt_records, on_skipped=skipped)
        return ServedLog(view, None, location.topic, skipped)
    check_policy_of_root(corrupt_records, location.root)
    return ServedLog(RootView(root, skipped if corrupt_records == "skip" else None), root, location.topic, skipped)


def in_memory() -> ServedLog:
    """Return an empty in-memory root to serve."""
    from sparklog.storage.memory import MemoryStore

    root = open_root(MemoryStore(SYSTEM.wall_ms), create=True)
    return ServedLog(RootView(root), root, None)


class Server:
    """Serves a log. `start` returns when the server listens, and `stop` closes all connections."""

    def __init__(self, log: ServedLog, options: ServeOptions) -> None:
        if options.writable and (log.root is None or not log.root.store.writable):
            raise BadRequest(f"{log.location} is read-only, like all backups and Kafka directories; omit --writable")
        self._services = Services(log, options)
        self._connections: set[Connection] = set()
        self._hosts: Counter[str] = Counter()
        """The number of open connections by address, including TLS handshakes in progress."""
        self._scrapes: asyncio.Server | None = None
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._connection_tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []

    async def start(self) -> Address:
        """Start to listen, and return the address."""
        options = self._services.options
        self._sockets = await _listen(options.listen)
        address = Address(options.listen.host, self._sockets[0].getsockname()[1])
        if not options.advertise:
            self._services.peers = Peers((address,))
        self._services.peers.start()
        for listener in self._sockets:
            _start(self._accepting(listener), self._background_tasks)
        _start(self._sweeping(), self._background_tasks)
        if options.writable:
            _start(self._timing_out(), self._background_tasks)
        if options.metrics_port is not None:
            scraped = Address(options.listen.host, options.metrics_port)
            listeners = await _listen(scraped)
            self._scrapes = await asyncio.start_server(self._scraped, sock=listeners[0])
        return address

    async def stop(self) -> None:
        """Stop accepting connections, respond to the batches of commits in flight, and close all connections."""
        if self._scrapes is not None:
            self._scrapes.close()
        for task in self._background_tasks:
            task.cancel()
        for listener in self._sockets:
            listener.close()
        await self._services.finish_appends(STOP_SECONDS)
        flushes = asyncio.gather(*(connection.flush() for connection in self._connections), return_exceptions=True)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(flushes, STOP_SECONDS)
        for task in self._connection_tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.close()
        self._services.drops.report(is_last=True)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._services.leave_groups(), STOP_SECONDS)
        self._services.close()

    async def _accepting(self, listener: socket.socket) -> None:
        """Accept connections until cancelled. Unlike asyncio's server, also count connections in a TLS handshake.

        All pending connections are accepted before other tasks run. If the server accepted them more slowly than a
        client that sends garbage opens them, the operating system would drop connections of other clients, which
        connect again only after 1, 3 and 7 s.
        """
        while True:
            # `sock_accept` does not let other tasks run if connections are pending.
            await asyncio.sleep(0)
            try:
                self._admit(*await asyncio.get_running_loop().sock_accept(listener))
                with suppress(BlockingIOError):
                    for _ in range(BACKLOG - 1):
                        self._admit(*listener.accept())
            except OSError as error:
                # The process may have no free file descriptors, so wait until some connections have been closed.
                _LOG.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)

    def _admit(self, accepted: socket.socket, peer: tuple[Any, ...]) -> None:
        """Start to serve an accepted connection, unless there are too many connections or the client has already sent
        data that is not a request.
        """
        services, limits, host = self._services, self._services.options.limits, peer[0]
        if self._hosts.total() >= limits.connections or self._hosts[host] >= limits.connections_per_ip:
            services.metrics.refused += 1
            accepted.close()
            return
        services.metrics.accepted += 1
        accepted.setblocking(False)
        try:
            check_first_bytes(services, accepted)
        except DropConnection as error:
            services.drops.add(Client.of(peer), error)
            with suppress(OSError):
                # Otherwise, the client would get a reset instead of the end of the connection.
                accepted.recv(BUFFER_BYTES)
            accepted.close()
        except ConnectionError:
            accepted.close()
        else:
            self._hosts[host] += 1
            _start(self._serving(accepted, host), self._connection_tasks)

    async def _serving(self, accepted: socket.socket, host: str) -> None:
        """Serve a connection, including its TLS handshake."""
        options, loop = self._services.options, asyncio.get_running_loop()
        reader = asyncio.StreamReader(BUFFER_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        seconds = None if options.tls is None else options.limits.handshake_seconds
        try:
            # `stop` cancels this task. A failed TLS handshake only affects its client.
            with suppress(asyncio.CancelledError, OSError):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, accepted, ssl=options.tls, ssl_handshake_timeout=seconds
                )
                connection = Connection(self._services, reader, asyncio.StreamWriter(transport, protocol, reader, loop))
                self._connections.add(connection)
                try:
                    await connection.run()
                finally:
                    self._connections.discard(connection)
        finally:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]

    async def _scraped(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the counters to Prometheus. The request is ignored."""
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SCRAPE_SECONDS)
            body = self._services.metrics.text(len(self._connections), len(self._services.log.skipped)).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()

    async def _sweeping(self) -> None:
        """Close overdue connections (see `Connection.is_overdue`), and report dropped connections, until cancelled.

        Shortly after the server has started to listen, this task imports the modules of the handlers, so that the first
        requests do not have to wait for them.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(IMPORT_SECONDS)
        try:
            await self._services.run(import_handlers)
        except Exception:  # noqa: BLE001 - connections must still be closed, and requests to other handlers work
            _LOG.exception("cannot import the modules of all request handlers")
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._services.drops.report()
            for connection in list(self._connections):
                if connection.is_overdue(loop.time()):
                    connection.close()

    async def _timing_out(self) -> None:
        """Until cancelled, abort transactions of the served topics that exceeded their timeout, as a broker does.
        Commits and `sparklog retain` also abort these transactions, but consumers may wait at the end of an idle
        topic.
        """
        while True:
            await asyncio.sleep(TIMEOUT_SECONDS)
            coordinator, log = self._services.transactions, self._services.log
            try:
                if coordinator is not None and await self._services.run(coordinator.abort_overdue, log.polled_topics()):
                    log.notify()
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                _LOG.warning("cannot abort transactions past their timeout: %s", error)


def _start(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Start a task, and keep it in `tasks` until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _listen(address: Address) -> list[socket.socket]:
    """Return sockets that listen on an address. A host name with several IP addresses has one socket per address."""
    host, port = address.host, address.port
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        resolved = dict.fromkeys((family, sockaddr) for family, _, _, _, sockaddr in rows)
        sockets = [socket.create_server(sockaddr, family=family, backlog=BACKLOG) for family, sockaddr in resolved]
    except OSError as error:
        raise Unavailable(f"cannot listen on {address}: {error.strerror or error}") from None
    for listener in sockets:
        listener.setblocking(False)
    return sockets


async def serve_until_signal(log: ServedLog, options: ServeOptions, ready: Callable[[Address], object]) -> None:
    """Serve until SIGTERM or Ctrl-C. When the server listens, call `ready` with the address."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = Server(log, options)
    ready(await server.start())
    if options.writable:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopped.wait(), KERNEL_SECONDS)
        if not stopped.is_set():
            await asyncio.to_thread(_load_kernels)
    await stopped.wait()
    await server.stop()


def _load_kernels() -> None:
    """Load the compiled kernel that validates batches, without long pauses of the other threads.

    If the kernel is in the cache, loading it takes 50 ms. Otherwise numba compiles it for several seconds, during which
    threads compete for the interpreter lock. Therefore this thread releases the lock more often. A garbage collection
    of all objects would stop all threads for about 0.1 s, so collections are paused. Most objects of numba exist as
    long as the process, so later collections ignore the existing objects.
    """
    from sparklog.format.kernels.kernel_choice import preload
    from sparklog.format.kernels.record_kernels import check_records

    interval = sys.getswitchinterval()
    sys.setswitchinterval(LOADING_SWITCH_SECONDS)
    gc.disable()
    try:
        preload(check_records)
    finally:
        gc.freeze()
        gc.enable()
        sys.setswitchinterval(interval)


@contextmanager
def serving(location: str | ServedLog, options: ServeOptions) -> Iterator[Address]:
    """Serve in a thread during a `with` block, for tests and programs. Yields the address of the server."""
    log = location if isinstance(location, ServedLog) else open_served(resolve(location))
    result: Future[Address] = Future()
    leaving = threading.Event()

    async def run() -> None:
        try:
            server = Server(log, options)
            result.set_result(await server.start())
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller, which waits for the start
            result.set_exception(error)
            return
        await asyncio.get_running_loop().run_in_executor(None, leaving.wait)
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="sparklog-serve", daemon=True)
    thread.start()
    try:
        yield result.result()
    finally:
        leaving.set()
        thread.join(10)
