"""One connection: frames in, requests to their handlers, responses out, in the order of the requests.

A request is four bytes of length, a header and a message. A client that sends anything else is dropped with one line
of log: its bytes have no end that could be found again. A request is answered before the next one is read, but for
Produce, of which several may be under way: a producer sends the next batch before it hears of the last one.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from socket import SHUT_RDWR
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
MIN_REQUEST_BYTES = _HEADER.size
MAX_PRODUCES_IN_FLIGHT = 5
SMALL_BYTES = 64 << 10
"""A request up to this size never waits for memory."""
READ_BYTES = 1 << 20
"""Maximum bytes of a larger request to read before counting their memory."""
WRITE_BYTES = 256 << 10
"""Handed to a stream at once: what it cannot send is copied, and waits in memory."""
MAX_BUFFERS = 512
"""Of one call of the system, which takes 1,024."""


class DropConnection(Exception):  # noqa: N818
    """A reason to drop a connection."""


class Connection:
    """A client connection; `run` serves it until it ends."""

    def __init__(self, services: Services, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._services = services
        self._reader = reader
        self._writer = writer
        # `drain` waits until nothing is left. Under TLS asyncio would take an empty buffer for a full one at 0.
        writer.transport.set_write_buffer_limits(int(writer.get_extra_info("ssl_object") is not None), 0)
        peer = writer.get_extra_info("peername")
        self.client = Client(*(("?",) if not peer else (f"{peer[0]}:{peer[1]}", peer[0])))
        self._logs_in = services.options.users is not None
        """True while the client still has to log in."""
        # Loop times of the connection, of its latest request, and of the first byte of the request being received.
        self._connected = self._last = asyncio.get_running_loop().time()
        self._begun: float | None = None
        self._produces: deque[tuple[ServedRequest, Produced, RequestBytes]] = deque()
        """Unanswered produce requests, in order."""

    def is_overdue(self, now: float) -> bool:
        """Return True if the client took too long to log in or to send a request, or was silent for too long."""
        limits = self._services.options.limits
        return (
            (self._logs_in and now - self._connected > limits.login_seconds)
            or (self._begun is not None and now - self._begun > limits.request_seconds)
            or now - self._last > limits.idle_seconds
        )

    def close(self) -> None:
        with suppress(OSError):
            # Ends an answer that is being sent, too.
            self._writer.get_extra_info("socket").shutdown(SHUT_RDWR)
        self._writer.transport.abort()

    async def run(self) -> None:
        try:
            while True:
                await self._next(await self._read_size())
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        except (DropConnection, Corrupt) as error:
            _LOG.warning("dropped %s: %s", self.client, error)
            await self._answered(0)
        except Exception:  # noqa: BLE001 - one client's request must not end the server
            _LOG.exception("dropped %s for an error of this server", self.client)
            await self._answered(0)
        finally:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()

    async def _read_size(self) -> int:
        """Wait for the next request; return its size in bytes."""
        size = await self._reader.read(_SIZE.size)
        self._begun = asyncio.get_running_loop().time()
        if len(size) < _SIZE.size:
            size += await self._reader.readexactly(_SIZE.size - len(size))
        return int(_SIZE.unpack(size)[0])

    async def _next(self, size: int) -> None:
        """Read and answer a request of so many bytes."""
        memory, limits, request = self._services.memory, self._services.options.limits, RequestBytes(self.close)
        limit = limits.request_bytes if self._is_known else limits.login_request_bytes
        if not MIN_REQUEST_BYTES <= size <= limit:
            raise DropConnection(f"expected a request of {MIN_REQUEST_BYTES} to {limit} bytes, found {size}")
        is_under_way = False
        try:
            if size <= SMALL_BYTES:
                data = await self._reader.readexactly(size)
                memory.add(request, size)
            else:
                data = await self._read_large(size, request)
            self._begun = None
            is_under_way = await self._serve(data, request)
        finally:
            if not is_under_way:
                memory.release(request)

    async def _read_large(self, size: int, request: RequestBytes) -> bytes:
        """Read a request and count its memory as bytes arrive, so that an announced size alone uses no memory."""
        pieces = list[bytes]()
        while request.nbytes < size:
            piece = await self._reader.read(min(size - request.nbytes, READ_BYTES))
            if not piece:
                raise asyncio.IncompleteReadError(b"", size)
            await self._services.memory.acquire(request, len(piece))
            pieces.append(piece)
        self._services.memory.arrived(request)
        return b"".join(pieces)

    @property
    def _is_known(self) -> bool:
        """True if the client has logged in or does not have to."""
        return self._services.options.users is None or self.client.user is not None

    async def _serve(self, data: bytes, memory: RequestBytes) -> bool:
        """Answer a request; return True if it is in progress, and its response and the release of its memory follow."""
        self._last = asyncio.get_running_loop().time()
        key, version, correlation = _HEADER.unpack_from(data)
        api = table.APIS.get(key)
        if api is None:
            raise DropConnection(f"expected an API that is served, found number {key}")
        request = ServedRequest(self._services, self.client, api, version, correlation)
        if not api.lowest <= version <= api.highest:
            if key != table.API_VERSIONS:
                raise DropConnection(f"{api.name} is served in versions {api.lowest} to {api.highest}, found {version}")
            # The client learns what is served, and asks again.
            request.version = 0
            await self._send(self._encoded(request, await table.api_versions(request, Code.UNSUPPORTED_VERSION)))
            return False
        if key not in table.BEFORE_LOGIN:
            if not self._is_known:
                raise DropConnection(f"expected an authentication, found {api.name}")
            self._logs_in = False
        self._read(request, data)
        self._services.metrics.requests[api.name, version] += 1
        if key == table.PRODUCE:
            await self._produce(request, memory)
            return True
        await self._answered(0)
        await self._send(self._encoded(request, await self._handled(request)))
        return False

    def _read(self, request: ServedRequest, data: bytes) -> None:
        schema, version = request.api.request, request.version
        header, position = read_message(message(table.FOLDER, "RequestHeader"), 1 + schema.is_flexible(version), data)
        self.client.name = (header["clientId"] or "")[:100]
        # Like a broker, ignore bytes after the message: librdkafka 2.2 to 2.16 send one after a null list.
        request.fields, _ = read_message(schema, version, data, position)

    async def _handled(self, request: ServedRequest) -> Fields | None:
        try:
            if request.api.waits:
                return await self._services.run(request.api.handler, request)
            fields: Fields | None = await request.api.handler(request)
            return fields
        except SparklogError as error:
            raise DropConnection(f"{request.api.name} cannot be answered: {error}") from error

    async def _produce(self, request: ServedRequest, memory: RequestBytes) -> None:
        """Take the batches of a request, once there is room for it; its answer follows in its turn."""
        await self._answered(MAX_PRODUCES_IN_FLIGHT - 1)
        # A client that takes no answers is not read on.
        await self._writer.drain()
        produced: Produced = request.api.handler(request)
        self._produces.append((request, produced, memory))
        for batch in produced.waiting:
            batch.add_done_callback(self._answer_produces)
        if not produced.waiting:
            self._answer_produces()

    async def _answered(self, most: int) -> None:
        """Wait until at most so many requests are under way."""
        while len(self._produces) > most:
            await asyncio.wait(self._produces[0][1].waiting)

    def _answer_produces(self, _: object = None) -> None:
        """Answer in the order of the requests; what is done by now, as batches of one commit are, in one call."""
        answers: list[Buffer] = []
        try:
            while self._produces and self._produces[0][1].is_done():
                request, produced, memory = self._produces.popleft()
                self._services.memory.release(memory)
                answers += self._encoded(request, produced.fields())
        except Exception:  # noqa: BLE001 - as in `run`
            _LOG.exception("dropped %s for an error of this server", self.client)
            self.close()
        if answers and not self._writer.is_closing():
            self._writer.write(b"".join(answers))

    def _encoded(self, request: ServedRequest, fields: Fields | None) -> list[Buffer]:
        """Return the parts of an answer; none to a request that wants none."""
        if fields is None:
            return []
        output, schema = MessageBytes(), request.api.response
        # The header of ApiVersions is never flexible: its reader does not know yet what it talks to.
        flexible = request.api.key != table.API_VERSIONS and schema.is_flexible(request.version)
        header = {"correlationId": request.correlation}
        write_message(message(table.FOLDER, "ResponseHeader"), int(flexible), header, output)
        write_message(schema, request.version, fields, output)
        first, *rest = output.finish()
        size = len(first) + sum(map(len, rest))
        self._services.metrics.sent_bytes += size
        # With the size in front: a small answer is one call of the system, and one packet.
        return [_SIZE.pack(size) + first, *rest]

    async def _send(self, parts: Sequence[Buffer]) -> None:
        if len(parts) > 1 and self._writer.get_extra_info("ssl_object") is None:
            await self._send_records([memoryview(part) for part in parts])
            return
        for piece in _pieces(parts):
            self._writer.write(piece)
            await self._writer.drain()

    async def _send_records(self, parts: Sequence[memoryview]) -> None:
        """Send by the socket itself: the stream takes one part at a time, and copies what is not sent at once."""
        await self._writer.drain()
        # By a copy of it: the event loop lets nothing but the stream wait for the stream's own.
        with self._writer.get_extra_info("socket").dup() as direct:
            sent = 0
            with suppress(BlockingIOError):
                sent = direct.sendmsg(parts[:MAX_BUFFERS])
            for part in parts:
                skipped = min(sent, len(part))
                sent -= skipped
                if skipped < len(part):
                    await asyncio.get_running_loop().sock_sendall(direct, part[skipped:])


def _pieces(parts: Sequence[Buffer]) -> Iterator[bytearray]:
    """Yield the bytes of parts so many at a time: in as few records of TLS as can be, and never all of them twice."""
    piece = bytearray()
    for part in parts:
        view = memoryview(part)
        while len(view):
            room = WRITE_BYTES - len(piece)
            piece += view[:room]
            view = view[room:]
            if len(piece) == WRITE_BYTES:
                yield piece
                piece = bytearray()
    if piece:
        yield piece
