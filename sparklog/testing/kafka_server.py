"""A server of Kafka's protocol in this process's memory, for tests of programs that speak to a broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparklog.groups.lag import Groups
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.topic.root import Root, RootView
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.served_log import ServedLog
from sparklog.serve.server import serving
from sparklog.testing.world import World


@dataclass(frozen=True)
class KafkaServer:
    """A running server: the address that clients take, its root, its groups, and its clock.

    The clock stands still at the time of the start: `clock.advance(days=8)` moves it, for retention and LogAppendTime.
    """

    bootstrap: str
    root: Root
    groups: Groups
    clock: World


@contextmanager
def running_kafka_server() -> Iterator[KafkaServer]:
    """Serve an empty root while the block runs. Topics are created when a client asks for them."""
    clock = World(now_ms=SYSTEM.wall_ms())
    root = clock.root()
    options = ServeOptions(listen=Address("127.0.0.1", 0), writable=True, auto_create=True, linger_seconds=0.0)
    with serving(ServedLog(RootView(root), root, None), options) as address:
        yield KafkaServer(str(address), root, Groups(root), clock)
