"""Options of a server: where it listens, whom it lets in, and its limits."""

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

if TYPE_CHECKING:
    from sparklog.serve.users import User

SINGLE_NODE_ID = 1
NODE_IDS = 2, 1_000
"""The range of the ids of several servers, end exclusive; Kafka's `reserved.broker.max.id` is 1000."""


SESSION_TIMEOUTS_MS = 6_000, 1_800_000
"""Kafka's default limits of a session timeout."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port."""

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
    def is_loopback(self) -> bool:
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"


def node_ids(addresses: Sequence[Address]) -> dict[Address, int]:
    """Return the node id of each server. All servers with the same addresses, in any order, compute the same ids.

    The ids are small, as those of brokers are, because librdkafka 2.3 to 2.15 crashes on ids of nine digits. A single
    server has id 1. The ids of several servers are hashes of their addresses, so that adding a server does not change
    the ids of the others. If two hashes are equal, the address that sorts last gets the next free id.
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
    * `request_bytes`: size of a request; `login_request_bytes`: size of a request before the client has logged in, as
      Kafka's `sasl.server.max.receive.size`
    * `waiting_request_bytes`: total size of the unanswered requests that have arrived at least in part
    * `handshake_seconds`: duration of a TLS handshake; `login_seconds`: time from the connection to the end of login
    * `request_seconds`: time from the first byte of a request to its last; clients time out after 30 to 60 s
    * `idle_seconds`: time between two requests of a connection
    * `logins`: passwords checked concurrently; only one of them may come from the same address
    * `failed_login_seconds`: delay of the response to a failed login, as `connection.failed.authentication.delay.ms`
    """

    connections: int = 1_000
    connections_per_ip: int = 500
    request_bytes: int = 100 << 20
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

    * `listen`: the address to listen on; port 0 takes a free one
    * `advertise`: what clients are told of: this server's own address first, then others of the same root; empty: the
      address that it listens on
    * `insecure`: allow an address that other machines reach, without TLS
    * `writable`: take what producers send, and changes of topics
    * `linger_seconds`: the time between two commits of a topic; None: 5 ms on a disk, 50 ms in a bucket
    * `auto_create`: create topics that clients ask for
    * `session_timeouts_ms`: the shortest and the longest session timeout of a member of a consumer group, as Kafka's
      `group.min.session.timeout.ms` and `group.max.session.timeout.ms`
    * `tls`: the certificate and key that connections are encrypted with
    * `metrics_port`: where Prometheus reads counters, on the same host
    * `users`: who may connect, by name; None: all
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
    session_timeouts_ms: tuple[int, int] = SESSION_TIMEOUTS_MS

    def __post_init__(self) -> None:
        """Raise `BadRequest` for an address that is open to others without a word that it may be."""
        if not (self.insecure or self.tls is not None or self.listen.is_loopback):
            raise BadRequest(
                f"the address {self.listen} is open to other machines, and what is sent there is not encrypted: listen"
                " on 127.0.0.1, give --tls-cert and --tls-key, or say --insecure"
            )


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """Return what encrypts connections, from PEM files. `BadRequest` if they cannot be read or do not fit."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for path in (cert, key):
        if not os.path.isfile(path):
            raise BadRequest(f"the PEM file {path!r} does not exist, or is a directory; check its path")
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(
            f"the certificate {cert!r} and its key {key!r} cannot be used: {error}; give the certificate and its own "
            "private key in PEM"
        ) from None
    return context
