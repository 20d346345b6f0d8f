"""Options of a server: where it listens, whom it lets in, and its limits."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparklog.errors import BadRequest
from sparklog.serve.addresses import Address

if TYPE_CHECKING:
    from sparklog.serve.users import User


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


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of a server.

    * `listen`: the address to listen on; port 0 takes a free one
    * `advertise`: what clients are told of: this server's own address first, then others of the same root; empty: the
      address that it listens on
    * `writable`: take what producers send, and changes of topics
    * `linger_seconds`: the time between two commits of a topic; None: 5 ms on a disk, 50 ms in a bucket
    * `auto_create`: create topics that clients ask for
    * `tls`: the certificate and key that connections are encrypted with
    * `users`: who may connect, by name; None: all
    * `metrics_port`: where Prometheus reads counters, on the same host
    * `insecure`: allow an address that other machines reach, without TLS
    """

    listen: Address = field(default_factory=lambda: Address("127.0.0.1", 9092))
    advertise: tuple[Address, ...] = ()
    insecure: bool = False
    writable: bool = False
    linger_seconds: float | None = None
    auto_create: bool = False
    tls: ssl.SSLContext | None = None
    metrics_port: int | None = None
    users: Mapping[str, User] | None = None
    limits: ServeLimits = field(default_factory=ServeLimits)

    def check(self) -> None:
        """Raise `BadRequest` for an address that is open to others without a word that it may be."""
        if self.insecure or self.tls is not None or is_loopback(self.listen.host):
            return
        raise BadRequest(
            f"the address {self.listen} is open to other machines, and what is sent there is not encrypted: listen on"
            " 127.0.0.1, give --tls-cert and --tls-key, or say --insecure"
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """Return what encrypts connections, from PEM files. `BadRequest` if they cannot be read or do not fit."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(f"the certificate {cert} and its key {key} cannot be used: {error}") from None
    return context
