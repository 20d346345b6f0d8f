"""Serve one connection: read requests, call their handlers, and send the responses in request order.

A request consists of a four-byte length, a header and a message. If a client sends data that is not a request, the end
of the data is unknown, so the server closes the connection and logs one line. The response to a request is sent before
the next request is read. Produce requests are an exception: several of them may be in flight, because producers send
batches without waiting for responses.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from socket import MSG_PEEK, SHUT_RDWR, socket
from typing import TYPE_CHECKING

from sparklog.errors import Corrupt, SparklogError
from sparklog.kafka.messages.message_codec import Buffer, MessageBytes, read_message, write_message
from sparklog.kafka.messages.message_schema import Fields, message
from sparklog.serve.apis import table
from sparklog.serve.codes import Code
from sparklog.serve.services import Client, RequestBytes, ServedRequest, Services

if TYPE_CHECKING:
    from sparklog.serve.apis.produce import Produced

_LOG = logging.getLogger("sparklog.serve")
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")
_START = struct.Struct(">ih")
"""The size and the API key of a request."""
TLS_HANDSHAKE = 22
"""The first byte of a TLS connection."""
MIN_REQUEST_BYTES = _HEADER.size
MAX_PRODUCES_IN_FLIGHT = 5
SMALL_BYTES = 64 << 10
"""Requests up to this size do not wait for memory."""
READ_BYTES = 1 << 20
"""The maximum number of bytes of a large request that are read before their memory is counted."""
WRITE_BYTES = 256 << 10
"""The number of bytes that are passed to a stream in one call. The number is limited, because a stream copies and
buffers the bytes that it cannot send.
"""
FLUSH_PAUSE_SECONDS = 0.01
MAX_BUFFERS = 512
"""The maximum number of buffers per `sendmsg` call. The operating system allows 1,024."""


class DropConnection(Exception):  # noqa: N818
    """Raised to close a connection. The message is the reason."""


def check_first_bytes(services: Services, accepted: socket) -> None:
    """Check the bytes that a client has sent so far on a new connection, without a task or buffers for the connection.

    Most clients that send garbage send it immediately, so that this check makes a flood of such connections cheap.

    Raises:
        DropConnection: If the bytes are not the start of a request.
        ConnectionError: If the client has closed the connection.
    """
    options = services.options
    try:
        first = accepted.recv(_START.size, MSG_PEEK)
    except BlockingIOError:
        return
    if not first:
        raise ConnectionResetError
    if options.tls is not None:
        if first[0] != TLS_HANDSHAKE:
            raise DropConnection("expected a TLS handshake; the client must connect with TLS")
    elif len(first) == _START.size:
        size, key = _START.unpack(first)
        _check_size(size, options.limits.request_bytes if options.users is None else options.limits.login_request_bytes)
        _check_key(key, is_logged_in=options.users is None)


def _check_size(size: int, limit: int) -> None:
    if not MIN_REQUEST_BYTES <= size <= limit:
        raise DropConnection(f"expected a request of {MIN_REQUEST_BYTES} to {limit} bytes, found {size}")


def _check_key(key: int, *, is_logged_in: bool) -> None:
    if key not in table.APIS:
        raise DropConnection(f"API {key} is not supported")
    if not is_logged_in and key not in table.BEFORE_LOGIN:
        raise DropConnection(f"the client must authenticate before {table.APIS[key].name}")


class Connection:
    """A client connection. `run` serves it until it is closed."""

    def __init__(self, services: Services, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._services = services
        self._reader = reader
        self._writer = writer
        # `drain` waits until the buffer is empty. With TLS, asyncio treats an empty buffer as full if the limit is 0.
        writer.transport.set_write_buffer_limits(int(writer.get_extra_info("ssl_object") is not None), 0)
        self.client = Client.of(writer.get_extra_info("peername") or ())
        self._must_log_in = services.options.users is not None
        """True if the client must log in and has not logged in yet."""
        # Event loop times at which the connection was opened, the latest request was received, and the first bytes of
        # the current request were received.
        self._connected = self._last = asyncio.get_running_loop().time()
        self._request_started: float | None = None
        self._others_had_a_turn = True
        self._produces: deque[tuple[ServedRequest, Produced, RequestBytes]] = deque()
        """The Produce requests without a response, in request order."""

    def is_overdue(self, now: float) -> bool:
        """Return True if the client has not logged in or sent a complete request in time, or has been idle for too
        long.
        """
        limits = self._services.options.limits
        return (
            (self._must_log_in and now - self._connected > limits.login_seconds)
            or (self._request_started is not None and now - self._request_started > limits.request_seconds)
            or now - self._last > limits.idle_seconds
        )

    async def flush(self) -> None:
        """Wait until the responses have been passed to the operating system."""
        # On Python 3.10, only one task may wait for `drain`, and `run` may be waiting for it.
        while self._writer.transport.get_write_buffer_size():
            await asyncio.sleep(FLUSH_PAUSE_SECONDS)

    def close(self) -> None:
        # A closed TLS connection no longer has a socket.
        if (connected := self._writer.get_extra_info("socket")) is not None:
            with suppress(OSError):
                # This also aborts a response that is being sent.
                connected.shutdown(SHUT_RDWR)
        self._writer.transport.abort()

    async def run(self) -> None:
        try:
            while True:
                await self._serve_next(await self._read_size())
                await self._yield()
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        except (DropConnection, Corrupt) as error:
            self._services.drops.add(self.client, error)
            await self._wait_for_produces(0)
        except Exception:  # noqa: BLE001 - one client's request must not end the server
            _LOG.exception("internal error: closed the connection of %s", self.client)
            await self._wait_for_produces(0)
        finally:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()

    async def _yield(self) -> None:
        """Allow other connections to run, unless they have run since the last call.

        If a client sends requests without waiting for the responses, a small request may be read and processed without
        a pause of this task.
        """
        if not self._others_had_a_turn:
            await asyncio.sleep(0)
        self._others_had_a_turn = False
        asyncio.get_running_loop().call_soon(self._record_turn)

    def _record_turn(self) -> None:
        self._others_had_a_turn = True

    async def _read_size(self) -> int:
        """Wait for the next request, and return its size in bytes."""
        size = await self._reader.read(_SIZE.size)
        self._request_started = asyncio.get_running_loop().time()
        if len(size) < _SIZE.size:
            size += await self._reader.readexactly(_SIZE.size - len(size))
        return int(_SIZE.unpack(size)[0])

    async def _serve_next(self, size: int) -> None:
        """Read a request of `size` bytes and send the response."""
        memory, limits, request = self._services.memory, self._services.options.limits, RequestBytes(self.close)
        limit = limits.request_bytes if self._is_logged_in else limits.login_request_bytes
        _check_size(size, limit)
        in_progress = False
        try:
            if size <= SMALL_BYTES:
                data = await self._reader.readexactly(size)
                memory.add(request, size)
            else:
                data = await self._read_large(size, request)
            self._request_started = None
            in_progress = await self._serve(data, request)
        finally:
            if not in_progress:
                memory.release(request)

    async def _read_large(self, size: int, request: RequestBytes) -> bytes:
        """Read a large request.

        Its memory is counted when bytes are received, because a client can announce any size.
        """
        chunks = list[bytes]()
        while request.nbytes < size:
            chunk = await self._reader.read(min(size - request.nbytes, READ_BYTES))
            if not chunk:
                raise asyncio.IncompleteReadError(b"", size)
            await self._services.memory.acquire(request, len(chunk))
            chunks.append(chunk)
        self._services.memory.arrived(request)
        return b"".join(chunks)

    @property
    def _is_logged_in(self) -> bool:
        """Return True if the client has logged in or does not have to log in."""
        return self._services.options.users is None or self.client.user is not None

    async def _serve(self, data: bytes, memory: RequestBytes) -> bool:
        """Serve a request.

        Return True if the request is still in progress. In this case, its memory is released with its response.
        """
        self._last = asyncio.get_running_loop().time()
        key, version, correlation = _HEADER.unpack_from(data)
        _check_key(key, is_logged_in=self._is_logged_in)
        api = table.APIS[key]
        request = ServedRequest(self._services, self.client, api, version, correlation)
        if not api.min_version <= version <= api.max_version:
            if key != table.API_VERSIONS:
                versions = f"{api.min_version} to {api.max_version}"
                raise DropConnection(f"expected {api.name} version {versions}, found {version}")
            # The client retries with a version from this response.
            request.version = 0
            await self._wait_for_produces(0)
            await self._send(self._encoded(request, await table.api_versions(request, Code.UNSUPPORTED_VERSION)))
            return False
        if key not in table.BEFORE_LOGIN:
            self._must_log_in = False
        self._read(request, data)
        self._services.metrics.requests[api.name, version] += 1
        if key == table.PRODUCE:
            await self._produce(request, memory)
            return True
        await self._wait_for_produces(0)
        await self._send(self._encoded(request, await self._handled(request)))
        return False

    def _read(self, request: ServedRequest, data: bytes) -> None:
        schema, version = request.api.request, request.version
        max_elements = self._services.options.limits.request_elements
        header_schema = message(table.FOLDER, "RequestHeader")
        header, position = read_message(header_schema, 1 + schema.is_flexible(version), data, max_elements=max_elements)
        self.client.name = (header["clientId"] or "")[:100]
        # Like a broker, ignore bytes after the message, because librdkafka 2.2 to 2.16 send an extra byte after a null
        # list.
        request.fields, _ = read_message(schema, version, data, position, max_elements=max_elements)

    async def _handled(self, request: ServedRequest) -> Fields | None:
        try:
            if request.api.blocks:
                return await self._services.run(request.api.handler, request)
            fields: Fields | None = await request.api.handler(request)
            return fields
        except SparklogError as error:
            raise DropConnection(f"{request.api.name} failed: {error}") from error

    async def _produce(self, request: ServedRequest, memory: RequestBytes) -> None:
        """Wait until few enough requests are in flight, and queue the batches of a request.

        The response is sent later, in request order.
        """
        await self._wait_for_produces(MAX_PRODUCES_IN_FLIGHT - 1)
        # Stop reading requests from a client that does not read its responses.
        await self._writer.drain()
        produced: Produced = await request.api.handler(request)
        self._produces.append((request, produced, memory))
        for batch in produced.waiting:
            batch.add_done_callback(self._respond_to_produces)
        if not produced.waiting:
            self._respond_to_produces()

    async def _wait_for_produces(self, max_in_flight: int) -> None:
        """Wait until at most `max_in_flight` Produce requests are in flight."""
        while len(self._produces) > max_in_flight:
            await asyncio.wait(self._produces[0][1].waiting)

    def _respond_to_produces(self, _: object = None) -> None:
        """Send all complete responses in request order. The responses are sent in one call, because one commit may
        complete several responses.
        """
        responses: list[Buffer] = []
        try:
            while self._produces and self._produces[0][1].is_done():
                request, produced, memory = self._produces.popleft()
                self._services.memory.release(memory)
                responses += self._encoded(request, produced.fields())
        except Exception:  # noqa: BLE001 - as in `run`
            _LOG.exception("internal error: closed the connection of %s", self.client)
            self.close()
        if responses and not self._writer.is_closing():
            self._writer.write(b"".join(responses))

    def _encoded(self, request: ServedRequest, fields: Fields | None) -> list[Buffer]:
        """Return the buffers of a response. Return no buffers if the client does not expect a response."""
        if fields is None:
            return []
        output, schema = MessageBytes(), request.api.response
        # The response header of ApiVersions is never flexible, because clients do not know the server's versions yet.
        flexible = request.api.key != table.API_VERSIONS and schema.is_flexible(request.version)
        header = {"correlationId": request.correlation}
        write_message(message(table.FOLDER, "ResponseHeader"), int(flexible), header, output)
        write_message(schema, request.version, fields, output)
        first, *rest = output.finish()
        size = len(first) + sum(map(len, rest))
        self._services.metrics.sent_bytes += size
        # Send the size and a small response in one system call and one packet.
        return [_SIZE.pack(size) + first, *rest]

    async def _send(self, parts: Sequence[Buffer]) -> None:
        if len(parts) > 1 and self._writer.get_extra_info("ssl_object") is None:
            await self._send_records([memoryview(part) for part in parts])
            return
        for chunk in _chunks(parts):
            self._writer.write(chunk)
            await self._writer.drain()

    async def _send_records(self, parts: Sequence[memoryview]) -> None:
        """Send buffers directly through the socket, because a stream sends one buffer at a time and copies unsent
        bytes.
        """
        await self._writer.drain()
        # Use a duplicate of the socket, because asyncio allows only the stream to wait for the original socket.
        with self._writer.get_extra_info("socket").dup() as direct:
            sent = 0
            with suppress(BlockingIOError):
                sent = direct.sendmsg(parts[:MAX_BUFFERS])
            for part in parts:
                skipped = min(sent, len(part))
                sent -= skipped
                if skipped < len(part):
                    await asyncio.get_running_loop().sock_sendall(direct, part[skipped:])


def _chunks(parts: Sequence[Buffer]) -> Iterator[bytearray]:
    """Yield the bytes of buffers in chunks of `WRITE_BYTES`. This reduces the number of TLS records without copying all
    bytes.
    """
    chunk = bytearray()
    for part in parts:
        view = memoryview(part)
        while len(view):
            free = WRITE_BYTES - len(chunk)
            chunk += view[:free]
            view = view[free:]
            if len(chunk) == WRITE_BYTES:
                yield chunk
                chunk = bytearray()
    if chunk:
        yield chunk
