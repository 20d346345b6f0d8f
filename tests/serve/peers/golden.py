"""A root with everything that a client may encounter, and the records that Kafka's own consumer reads from it.

Kafka's topics are imported from the fixtures, whose expected records were read by a Java consumer from a real broker.
The records that sparklog wrote are expected as `scan` reads them. A Kafka log directory next to the root is served in
place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import sparklog
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.server import serving
from tests.fixture_data import expected_records, partitions, split_partition
from tests.kafka_broker import free_ports
from tests.serve.clients import ISOLATIONS, ReadRecord, filled_root, rows_of

STAGES = (
    ("codecs", "data"),
    ("transactions", "data"),
    ("timestamps", "data"),
    ("segments", "data"),
    ("legacy/broker-2.8.2", "data"),
    ("legacy/builder-gaps", "data"),
    ("compaction/transactions", "after"),
    ("compaction-by-broker", "after"),
    ("retention/delete-records", "start-moved"),
)
"""Fixtures whose topics have unique names: all codecs and producers, transactions (one is open), LogAppendTime, no
records, old formats, gaps, cleaned logs, a log start inside a segment.
"""
TIMED_MS = 1_577_836_800_000
"""The timestamp of the first record of the topic `timed`. Each further record is one second later."""
Place = tuple[str, int]


@dataclass
class Served:
    """A server's address, and the expected records of a client by isolation level."""

    address: Address
    metrics_port: int
    expected: dict[str, dict[Place, list[ReadRecord]]] = field(default_factory=dict)

    def requests(self) -> dict[tuple[str, int], int]:
        """Return the number of requests so far by API and version."""
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        counted = {}
        for line in lines:
            if line.startswith("sparklog_serve_requests_total{"):
                _, api, _, version, _ = line.split('"')
                counted[api, int(version)] = int(float(line.rsplit(" ", 1)[1]))
        return counted


@contextmanager
def served(location: Path, *, writable: bool = False) -> Iterator[Served]:
    """Serve a location during the block."""
    (port,) = free_ports(1)
    options = ServeOptions(
        listen=Address("127.0.0.1", 0),
        metrics_port=port,
        writable=writable,
        session_timeouts_ms=(1, 1_800_000),
        consumer_heartbeat_ms=300,
    )
    with serving(str(location), options) as address:
        yield Served(address, port)


def fill_golden_root(path: Path, fixtures: Path) -> dict[str, dict[Place, list[ReadRecord]]]:
    """Create the root. Return the expected records by isolation level."""
    root = filled_root(path)
    timed = root.create_topic("timed")
    timed.append({"value": list("0123456789"), "timestamp": [TIMED_MS + 1_000 * number for number in range(10)]})
    expected: dict[str, dict[Place, list[ReadRecord]]] = {isolation: {} for isolation in ISOLATIONS}
    for isolation in ISOLATIONS:
        for name in root.topics():
            for partition in root.topic(name).bounds():
                expected[isolation][name, partition] = rows_of(root.topic(name), partition, isolation)
    for fixture, stage in STAGES:
        source = fixtures / fixture / stage
        sparklog.import_kafka(path, source, groups=False, open_transactions="keep")
        for isolation, records in of_fixture(fixtures / fixture, stage).items():
            assert not expected[isolation].keys() & records.keys()
            expected[isolation] |= records
    return expected


def of_fixture(fixture: Path, stage: str = "data") -> Mapping[str, dict[Place, list[ReadRecord]]]:
    """Return the records that Kafka's consumer read from the topics of a directory."""
    return {
        isolation: {
            split_partition(name): [
                ReadRecord(row.offset, row.timestamp, row.timestamp_type, row.key, row.value, row.headers)
                for row in expected_records(fixture, name, isolation, stage)
            ]
            for name in partitions(fixture / stage)
            if not name.startswith("__")
        }
        for isolation in ISOLATIONS
    }
