"""Options of a server: its addresses, users and limits."""

from __future__ import annotations

import ipaddress
import os
import ssl
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparklog.common.parsing import is_digits
from sparklog.errors import BadRequest
from sparklog.limits import (
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    GROUP_SESSION_TIMEOUTS_MS,
    MAX_CONNECTIONS_PER_IP,
    SESSION_TIMEOUT_MS,
)

if TYPE_CHECKING:
    from sparklog.serve.users import User

SINGLE_NODE_ID = 1
NODE_IDS = 2, 1_000
"""The range of node ids if there are several servers (end exclusive). Kafka's `reserved.broker.max.id` is 1000."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, text: str) -> Address:
        """Parse `host:port`. Raises `BadRequest` if the text is not an address."""
        host, _, port = text.rpartition(":")
        if not host or not is_digits(port) or not 0 <= int(port) <= 65535:
            raise BadRequest(f"expected an address as host:port, found {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def is_loopback(self) -> bool:
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"


def node_ids(addresses: Sequence[Address]) -> dict[Address, int]:
    """Return the node id of each server. All servers with the same addresses, in any order, compute the same ids.

    The ids are small, like broker ids, because librdkafka 2.3 to 2.15 crashes on ids with nine digits. A single server
    has id 1. The ids of several servers are hashes of their addresses, so that adding a server does not change the ids
    of the others. If two hashes are equal, the address that sorts last gets the next free id.
    """
    if len(set(addresses)) == 1:
        return {addresses[0]: SINGLE_NODE_ID}
    first, end = NODE_IDS
    count = max(end - first, len(addresses))
    by_id: dict[int, Address] = {}
    for address in sorted(set(addresses), key=str):
        number = zlib.crc32(str(address).encode()) % count
        while first + number in by_id:
            number = (number + 1) % count
        by_id[first + number] = address
    ids = {address: node_id for node_id, address in by_id.items()}
    return {address: ids[address] for address in addresses}


@dataclass(frozen=True, slots=True)
class ServeLimits:
    """Limits of a server.

    * `connections`, `connections_per_ip`: open connections, including TLS handshakes in progress
    * `request_bytes`: size of a request
    * `request_elements`: number of array elements in a request, for example topics and partitions, because decoding
      them takes memory and stops the event loop
    * `login_request_bytes`: size of a request before the client has logged in, like Kafka's
      `sasl.server.max.receive.size`
    * `waiting_request_bytes`: total size of requests without a response, including partially received requests
    * `response_bytes`: record bytes in a Fetch response, unless the first batch is larger
    * `threads`: threads for blocking calls of Fetch requests (fewer on a disk), and of all other requests
    * `handshake_seconds`: duration of a TLS handshake
    * `login_seconds`: time from the start of the connection to the end of the login
    * `request_seconds`: time from the first to the last byte of a request; clients time out after 30 to 60 s
    * `idle_seconds`: time between two requests on a connection
    * `logins`: number of passwords checked concurrently, at most one per client address
    * `failed_login_seconds`: delay of the response to a failed login, like `connection.failed.authentication.delay.ms`
    """

    connections: int = 1_000
    connections_per_ip: int = MAX_CONNECTIONS_PER_IP
    request_bytes: int = 100 << 20
    request_elements: int = 30_000
    login_request_bytes: int = 512 << 10
    waiting_request_bytes: int = 256 << 20
    response_bytes: int = 8 << 20
    threads: int = 16
    handshake_seconds: float = 10.0
    login_seconds: float = 60.0
    request_seconds: float = 60.0
    idle_seconds: float = 600.0
    logins: int = 2
    failed_login_seconds: float = 0.1


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of a server.

    * `listen`: the address to listen on; port 0 selects a free port
    * `advertise`: the addresses that are returned to clients: the address of this server, followed by the addresses of
      the other servers of the root; if empty, the listen address is returned
    * `insecure`: allow connections from other hosts without TLS
    * `writable`: accept records and topic changes from clients
    * `linger_seconds`: minimum time between two commits of a topic; if None, 0 on a disk and 50 ms in a bucket
    * `auto_create`: create requested topics that do not exist
    * `session_timeouts_ms`: minimum and maximum session timeout of group members, like Kafka's
      `group.min.session.timeout.ms` and `group.max.session.timeout.ms`
    * `consumer_session_ms`, `consumer_heartbeat_ms`: the session timeout and the heartbeat interval of members of the
      consumer protocol, like Kafka's `group.consumer.session.timeout.ms` and `group.consumer.heartbeat.interval.ms`
    * `tls`: the TLS context for connections, or None if connections are not encrypted
    * `metrics_port`: port for Prometheus, on the same host
    * `users`: the users who may connect, by name, or None if authentication is disabled
    """

    listen: Address = Address("127.0.0.1", 9092)
    advertise: tuple[Address, ...] = ()
    insecure: bool = False
    writable: bool = False
    linger_seconds: float | None = None
    auto_create: bool = False
    tls: ssl.SSLContext | None = None
    metrics_port: int | None = None
    users: Mapping[str, User] | None = None
    limits: ServeLimits = field(default_factory=ServeLimits)
    session_timeouts_ms: tuple[int, int] = GROUP_SESSION_TIMEOUTS_MS
    consumer_session_ms: int = SESSION_TIMEOUT_MS
    consumer_heartbeat_ms: int = CONSUMER_HEARTBEAT_INTERVAL_MS

    @property
    def listener(self) -> str:
        """The security protocol of the listener, which is also its name."""
        encryption = "PLAINTEXT" if self.tls is None else "SSL"
        return encryption if self.users is None else f"SASL_{encryption}"

    def __post_init__(self) -> None:
        """Raise `BadRequest` if other hosts can connect without TLS and `insecure` is False, or if no member could keep
        the group's timeouts.
        """
        if not (self.insecure or self.tls is not None or self.listen.is_loopback):
            raise BadRequest(
                f"other hosts can connect to {self.listen} without encryption; listen on 127.0.0.1, set --tls-cert and"
                " --tls-key, or set --insecure"
            )
        shortest, longest = self.session_timeouts_ms
        if shortest > longest:
            raise BadRequest(
                f"group.min.session.timeout.ms {shortest} must not exceed group.max.session.timeout.ms {longest}; "
                "increase the maximum or decrease the minimum"
            )
        if self.consumer_heartbeat_ms >= self.consumer_session_ms:
            raise BadRequest(
                f"group.consumer.heartbeat.interval.ms {self.consumer_heartbeat_ms} must be less than "
                f"group.consumer.session.timeout.ms {self.consumer_session_ms}; decrease the interval or increase the "
                "timeout"
            )


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """Return a TLS context from PEM files. Raises `BadRequest` if the files cannot be read or do not match."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for path in (cert, key):
        if not os.path.isfile(path):
            raise BadRequest(f"the PEM file {path!r} does not exist or is a directory; check the path")
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(
            f"cannot use the certificate {cert!r} with the key {key!r}: {error}; set a certificate and its private key"
            " in PEM format"
        ) from None
    return context
