"""The command `sparklog serve`, which serves a root to Kafka clients with Kafka's protocol."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from click import BadParameter

from sparklog.console.locations import resolve_root_name
from sparklog.console.options import CorruptOption, integer_option
from sparklog.console.parameters import Argument, Commands, Option
from sparklog.console.terminal import warn
from sparklog.limits import (
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    GROUP_SESSION_TIMEOUTS_MS,
    MAX_CONNECTIONS_PER_IP,
    MAX_SESSION_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
)

if TYPE_CHECKING:
    from sparklog.serve.options import Address, ServeOptions

app = Commands()


@dataclass
class Listening:
    """The options for addresses, encryption and access."""

    listen: Annotated[str, Option(metavar="HOST:PORT", help="Address to listen on (port 0 for any free port).")] = (
        "127.0.0.1:9092"
    )
    advertise: Annotated[
        list[str] | None,
        Option(
            metavar="HOST:PORT",
            help="Addresses to advertise to clients: the address of this server, then the addresses of the"
            " other servers of the root.",
            show_default="--listen",
        ),
    ] = None
    tls_cert: Annotated[
        str | None, Option(metavar="FILE", needs="--tls-key", help="File with the TLS certificate in PEM format.")
    ] = None
    tls_key: Annotated[
        str | None,
        Option(metavar="FILE", needs="--tls-cert", help="File with the private key of the certificate in PEM format."),
    ] = None
    users: Annotated[
        str | None,
        Option(metavar="FILE", help="File with the SASL users and their permissions. See docs/guides/serve.md."),
    ] = None
    insecure: Annotated[
        bool, Option(help="Allow unencrypted connections on an address that other hosts can reach.")
    ] = False
    max_connections_per_ip: Annotated[
        int, integer_option(low=1, text="Maximum number of connections from each IP address.")
    ] = MAX_CONNECTIONS_PER_IP
    metrics_port: Annotated[
        int | None, integer_option(high=65535, text="Port on which to serve Prometheus metrics.", default="off")
    ] = None
    group_min_session_timeout_ms: Annotated[
        int,
        integer_option(
            low=1, high=MAX_SESSION_TIMEOUT_MS, text="Minimum session timeout of a group member in milliseconds."
        ),
    ] = GROUP_SESSION_TIMEOUTS_MS[0]
    group_max_session_timeout_ms: Annotated[
        int,
        integer_option(
            low=1, high=MAX_SESSION_TIMEOUT_MS, text="Maximum session timeout of a group member in milliseconds."
        ),
    ] = GROUP_SESSION_TIMEOUTS_MS[1]
    group_consumer_session_timeout_ms: Annotated[
        int,
        integer_option(
            low=1,
            high=MAX_SESSION_TIMEOUT_MS,
            text="Session timeout of members of the consumer protocol (KIP-848) in milliseconds.",
        ),
    ] = SESSION_TIMEOUT_MS
    group_consumer_heartbeat_interval_ms: Annotated[
        int,
        integer_option(
            low=1,
            high=MAX_SESSION_TIMEOUT_MS,
            text="Heartbeat interval of members of the consumer protocol (KIP-848) in milliseconds.",
        ),
    ] = CONSUMER_HEARTBEAT_INTERVAL_MS

    def options(self, *, writable: bool, auto_create: bool) -> ServeOptions:
        from sparklog.serve.options import ServeLimits, ServeOptions, tls_context

        users = None
        if self.users is not None:
            from sparklog.serve.users import read_users

            users = read_users(self.users)
        # Keep duplicates, which are an error.
        advertised = [name.strip() for text in self.advertise or () for name in text.split(",") if name.strip()]
        listen, advertise = _address(self.listen), tuple(map(_address, advertised))
        _check_listen(listen)
        _check_advertised(listen, advertise)
        return ServeOptions(
            listen,
            advertise,
            insecure=self.insecure,
            writable=writable,
            auto_create=auto_create,
            tls=None if self.tls_cert is None or self.tls_key is None else tls_context(self.tls_cert, self.tls_key),
            metrics_port=self.metrics_port,
            users=users,
            limits=ServeLimits(connections_per_ip=self.max_connections_per_ip),
            session_timeouts_ms=(self.group_min_session_timeout_ms, self.group_max_session_timeout_ms),
            consumer_session_ms=self.group_consumer_session_timeout_ms,
            consumer_heartbeat_ms=self.group_consumer_heartbeat_interval_ms,
        )


def _address(text: str) -> Address:
    """Parse an address. Raises a usage error for an address with a protocol, as in the `listeners` of a broker."""
    from sparklog.serve.options import Address

    protocol, slashes, rest = text.rpartition("://")
    if slashes:
        how = "; encrypt with --tls-cert and --tls-key" if "SSL" in protocol.upper() else ""
        raise BadParameter(f"expected HOST:PORT without {protocol}://, found {text!r}: specify {rest}{how}")
    return Address.of(text)


def _check_listen(address: Address) -> None:
    """Raise a usage error if the host name cannot be resolved."""
    try:
        socket.getaddrinfo(address.host, address.port)
    except OSError as error:
        raise BadParameter(
            f"cannot resolve {address.host!r}: {error.strerror}; specify a host name or address of this host",
            param_hint="'--listen'",
        ) from None


def _check_advertised(listen: Address, advertise: tuple[Address, ...]) -> None:
    """Raise a usage error if an address is repeated, or if the first address is not the address of this server. Print a
    warning if the address of this server seems to be missing.
    """
    repeated = next((address for address in advertise if advertise.count(address) > 1), None)
    if repeated is not None:
        raise BadParameter(
            f"{repeated} is given more than once: specify each server once, this server first",
            param_hint="'--advertise'",
        )
    if listen in advertise[1:]:
        raise BadParameter(
            f"the first address must be the address of this server, found {advertise[0]}: put {listen} first",
            param_hint="'--advertise'",
        )
    if advertise and listen.port and advertise[0].host == listen.host and advertise[0] != listen:
        warn(
            f"clients will connect to {advertise[0]}, but this server listens on {listen}; check that the port is "
            "forwarded"
        )


@app.add("serve", "sparklog serve /data/log --listen 127.0.0.1:9092")
def serve(
    location: Annotated[
        str | None,
        Argument(
            metavar="LOCATION",
            envvar="SPARKLOG_ROOT",
            parser=resolve_root_name,
            help="Location to serve: a root, topic directory, backup repository, Kafka log directory or Kafka"
            " partition directory. The default is the value of SPARKLOG_ROOT.",
        ),
    ] = None,
    *,
    root: Annotated[
        str | None,
        Option(
            "--root",
            "-r",
            metavar="PATH",
            excludes="LOCATION",
            parser=resolve_root_name,
            help="Location to serve. May be given instead of LOCATION.",
        ),
    ] = None,
    writable: Annotated[bool, Option(help="Allow clients to produce, and to create, alter and delete topics.")] = False,
    backup: Annotated[
        int | None,
        integer_option(
            low=1,
            text="Number of the backup to serve, as printed by `sparklog backup --list`.",
            default="latest",
            excludes="--writable",
            why="a backup is read-only",
        ),
    ] = None,
    memory: Annotated[
        bool,
        Option(
            excludes="LOCATION --root --backup",
            why="--memory serves an empty root in memory, which is lost on exit",
            help="Serve an empty root in memory for tests. Topics are created when clients request them.",
        ),
    ] = False,
    corrupt_records: CorruptOption = "fail",
    listening: Listening,
) -> None:
    """Serve a root to Kafka clients until interrupted.

    Kafka clients can read topics, use consumer groups and, if --writable is given, produce to topics. The server does
    not have any state of its own. You can stop the server, start it on another host, or run several servers for one
    root, while Spark and other programs read and write the root.
    """
    import asyncio

    from sparklog.opening import resolve
    from sparklog.serve.server import in_memory, open_served, serve_until_signal

    location = location if root is None else root
    if location is None and not memory:
        raise BadParameter("expected a root or a Kafka directory: specify LOCATION, or set SPARKLOG_ROOT")
    options = listening.options(writable=writable or memory, auto_create=memory)
    log = (
        in_memory()
        if memory
        else open_served(resolve(location), create=writable, backup=backup, corrupt_records=corrupt_records)
    )

    def ready(address: Address) -> None:
        print(f"serving {'a root in memory' if memory else log.location} on {address}", flush=True)

    asyncio.run(serve_until_signal(log, options, ready))
