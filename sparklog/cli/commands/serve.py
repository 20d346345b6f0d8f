"""`sparklog serve`: Kafka's protocol over a root, for programs that speak nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from click import BadParameter

from sparklog.cli.locations import root_of_name
from sparklog.cli.options import comma_separated, whole_number
from sparklog.cli.parameters import Argument, Commands, Option

if TYPE_CHECKING:
    from sparklog.serve.options import Address, ServeOptions

app = Commands()


@dataclass
class Listening:
    """Addresses, and who may connect to them."""

    listen: Annotated[str, Option(metavar="HOST:PORT", help="Where clients connect; port 0: a free one.")] = (
        "127.0.0.1:9092"
    )
    advertise: Annotated[
        list[str] | None,
        Option(
            metavar="HOST:PORT",
            help="What clients are given: this server's address, then others of the same root.",
            show_default="--listen",
        ),
    ] = None
    tls_cert: Annotated[str | None, Option(metavar="FILE", help="Certificate (PEM) to encrypt connections with.")] = (
        None
    )
    tls_key: Annotated[str | None, Option(metavar="FILE", help="Its key (PEM).")] = None
    users: Annotated[
        str | None, Option(metavar="FILE", help="Who may connect (SASL), and do what; see docs/guides/serve.md.")
    ] = None
    insecure: Annotated[bool, Option(help="Listen on an address that other machines reach, without encryption.")] = (
        False
    )
    metrics_port: Annotated[
        int | None, whole_number(high=65535, text="Serve counters to Prometheus.", default="off")
    ] = None

    def options(self, *, writable: bool, auto_create: bool) -> ServeOptions:
        from sparklog.serve.options import Address, ServeOptions, tls_context

        if (self.tls_cert is None) != (self.tls_key is None):
            raise BadParameter("--tls-cert and --tls-key belong together")
        users = None
        if self.users is not None:
            from sparklog.serve.users import read_users

            users = read_users(self.users)
        return ServeOptions(
            Address.of(self.listen),
            tuple(map(Address.of, comma_separated(self.advertise))),
            insecure=self.insecure,
            writable=writable,
            auto_create=auto_create,
            tls=None if self.tls_cert is None or self.tls_key is None else tls_context(self.tls_cert, self.tls_key),
            metrics_port=self.metrics_port,
            users=users,
        )


@app.add("serve", "sparklog serve /data/log --listen 127.0.0.1:9092")
def serve(
    location: Annotated[
        str | None,
        Argument(
            metavar="LOCATION",
            envvar="SPARKLOG_ROOT",
            parser=root_of_name,
            help="A root, a topic's folder, a place of backups, a Kafka log directory or partition; or SPARKLOG_ROOT.",
        ),
    ] = None,
    *,
    writable: Annotated[bool, Option(help="Take what producers send, and changes of topics.")] = False,
    backup: Annotated[
        int | None, whole_number(low=1, text="Serve this backup (backup --list).", default="newest")
    ] = None,
    memory: Annotated[
        bool, Option(help="Serve an empty root in memory, for tests; topics are made when asked for.")
    ] = False,
    listening: Listening,
) -> None:
    """Serve Kafka's protocol until it is interrupted.

    Clients of Kafka read the topics and share them in consumer groups. The server keeps nothing of its own: stop it,
    start it elsewhere, or run several over one root, while Spark and others read and write the root.
    """
    import asyncio

    from sparklog.opening import resolve
    from sparklog.serve.server import in_memory, open_served, serve_until_signal

    if location is None and not memory:
        raise BadParameter("expected the LOCATION of a root or a Kafka directory, or SPARKLOG_ROOT")
    options = listening.options(writable=writable or memory, auto_create=memory)
    log = in_memory() if memory else open_served(resolve(location), create=writable, backup=backup)

    def ready(address: Address) -> None:
        print(f"serving {log.location} on {address}", flush=True)

    asyncio.run(serve_until_signal(log, options, ready))
