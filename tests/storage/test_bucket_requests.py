"""Requests of `ObjectStore`, and of a topic in a bucket, as counted by an S3 server."""

from __future__ import annotations

import logging
import pickle
import re
from collections import Counter
from collections.abc import Iterator

import pytest

import sparklog
from sparklog.datasource import spark_workers
from sparklog.doctor import costs
from sparklog.log.journal.clocks import ClockReading
from sparklog.opening import resolve
from sparklog.storage.store import Store
from sparklog.transactions.producer import transactional
from tests.support.records import random_rows, rows, small

object_store = pytest.importorskip("sparklog.storage.object_store", reason="obstore is not installed")


class ServerLog(logging.Handler):
    """The requests to the server: PUT (including parts of uploads), POST, GET, LIST, HEAD, DELETE."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for line in self.lines:
            match = re.search(r'"(?:\x1b\[\d+m)*([A-Z]+) (\S+)', line)
            assert match is not None, line
            verb, path = match.groups()
            found["LIST" if "list-type=" in path else verb] += 1
        return dict(found)

    def billed(self) -> costs.Requests:
        """Return the billed requests.

        As at cloud providers, deletes are free, including bulk deletes, which are POSTs to `?delete`.
        """
        counts = self.counts()
        free = sum("?delete" in line for line in self.lines)
        puts = counts.get("PUT", 0) + counts.get("POST", 0) - free
        return costs.Requests(puts, counts.get("GET", 0) + counts.get("HEAD", 0), counts.get("LIST", 0))


@pytest.fixture
def server(bucket: str) -> Iterator[ServerLog]:
    log = logging.getLogger("werkzeug")
    handler, level, propagates = ServerLog(), log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)
    log.propagate = propagates


def test_the_cost_calculator_uses_the_part_size() -> None:
    assert costs.PUT_BYTES == object_store.PART_BYTES


@pytest.mark.parametrize("nbytes", [10, costs.PUT_BYTES, costs.PUT_BYTES + 1, 20 << 20])
def test_requests_of_a_data_object(bucket: str, server: ServerLog, nbytes: int) -> None:
    store: Store = object_store.ObjectStore(bucket)
    writer = store.writer("t/append/x")
    for start in range(0, nbytes, 1 << 20):
        writer.write(bytes(min(1 << 20, nbytes - start)))
    writer.close()
    assert server.billed() == costs.upload(nbytes)


@pytest.mark.usefixtures("records_in_files")
def test_a_micro_batch_a_poll_and_a_bulk_delete(bucket: str, server: ServerLog) -> None:
    root = sparklog.open(bucket, create=True)
    topic = root.create_topic("t", partitions=16)
    reader = sparklog.open(bucket).topic("t")
    for number in range(2):
        topic.append(random_rows(400, first=number * 400), options=small("zstd"))
    assert len(reader.scan().to_table()) == 800
    server.lines.clear()
    topic.append(random_rows(400, first=800), options=small("zstd"))
    # One data object and the commit; reads of newer commits, of the root's id (at most twice), and of the previous
    # commit.
    assert server.billed().puts == 2
    assert server.billed().gets <= 4
    assert server.billed().lists == 0
    server.lines.clear()
    reader.log.snapshot()
    assert server.billed() == costs.NEW_COMMIT
    server.lines.clear()
    reader.log.snapshot()
    assert server.billed() == costs.IDLE_POLL
    server.lines.clear()
    assert len(reader.scan().to_table()) == 1200
    assert server.counts() == {"GET": 1 + 3}
    server.lines.clear()
    root.store.delete_many([f"t/append/{number}" for number in range(1200)])
    assert server.counts() == {"POST": 2}
    assert server.billed() == costs.Requests()


def test_requests_of_the_clock(bucket: str, server: ServerLog) -> None:
    object_store.ObjectStore(bucket).now_ms()
    assert server.billed() == costs.CLOCK


def test_a_transaction_across_three_topics_makes_no_listings(bucket: str, server: ServerLog) -> None:
    root = sparklog.open(bucket, create=True)
    for name in "abc":
        root.create_topic(name)
    producer = transactional(root, "p")
    for turn in range(2):
        server.lines.clear()
        with producer.begin() as transaction:
            for name in "abc":
                transaction.append(name, rows(f"{turn}"))
    assert "LIST" not in server.counts()
    # The prepares, with their records, and the decision.
    assert server.counts()["PUT"] == 3 + 1


def test_an_opened_location_does_not_read_its_root_again(bucket: str, server: ServerLog) -> None:
    root = sparklog.open(bucket, create=True)
    spark_workers.root_at(resolve(bucket))
    server.lines.clear()
    location = resolve(bucket)
    assert spark_workers.root_at(location).id == root.id
    assert server.counts() == {"GET": 1}
    # A task on another host checks the root itself, because its path may lead to another store.
    assert spark_workers.root_at(pickle.loads(pickle.dumps(location))).id == root.id
    assert server.counts() == {"GET": 2}


def test_a_root_that_was_checked_long_ago_is_checked_again(
    bucket: str, server: ServerLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparklog.open(bucket, create=True)
    location = resolve(bucket)
    spark_workers.root_at(location)
    monkeypatch.setattr(ClockReading, "is_soon_after", lambda self, earlier: False)
    server.lines.clear()
    spark_workers.root_at(location)
    assert server.counts() == {"GET": 1}


def test_connections_outlive_the_stores_of_a_location(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = object_store.ObjectStore(bucket), object_store.ObjectStore(bucket)
    assert first._client("document") is second._client("document")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert object_store.ObjectStore(bucket)._client("document") is not first._client("document")
