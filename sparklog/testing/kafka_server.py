"""An in-process server of Kafka's protocol, for tests of programs that use a Kafka client."""

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
    """A running server, with its bootstrap address, root, consumer groups and clock.

    The clock starts at the current time, and only advances when a test advances it. For example, use
    `clock.advance(days=8)` to test retention or LogAppendTime.
    """

    bootstrap: str
    root: Root
    groups: Groups
    clock: World


@contextmanager
def running_kafka_server() -> Iterator[KafkaServer]:
    """Serve an empty root in a `with` block. Topics are created when a client requests them."""
    clock = World(now_ms=SYSTEM.wall_ms())
    root = clock.root()
    options = ServeOptions(listen=Address("127.0.0.1", 0), writable=True, auto_create=True, linger_seconds=0.0)
    with serving(ServedLog(RootView(root), root, None), options) as address:
        yield KafkaServer(str(address), root, Groups(root), clock)
