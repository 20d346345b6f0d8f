"""Killed servers and members: each record is stored exactly once, in order, and is read. Offsets never decrease.

`SPARKLOG_SERVE_KILLS` is the number of kills (default 20). librdkafka is a member if confluent-kafka is installed.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.groups.group_state import GROUPS
from sparklog.log.journal.chain import EntryChain
from sparklog.storage.locations import join
from tests.serve.member_process import MemberProcess, member_processes
from tests.serve.test_groups import PARTITIONS, free_port, shares, wait_for

KILLS = int(os.environ.get("SPARKLOG_SERVE_KILLS", "20"))
UP_SECONDS = 2.0
PAUSE_SECONDS = 8.0
"""Longer than the request timeout of clients and the session timeout of members."""
SESSION_SECONDS, SPARE_SECONDS = 3, 5
HAS_LIBRDKAFKA = importlib.util.find_spec("confluent_kafka") is not None
THIRD = "librdkafka" if HAS_LIBRDKAFKA else "kafka-python"


class Servers:
    """Two servers of a root that know each other. `kill` kills the servers in turn, and restarts them."""

    def __init__(self, place: str, count: int = 2) -> None:
        self.place = place
        self.ports = [free_port() for _ in range(count)]
        self.addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.kills = 0
        self.processes = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[str]:
        """Start a server, and wait until it listens."""
        ports = self.ports[number:] + self.ports[:number]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        command = [sys.executable, "-m", "sparklog", "serve", self.place, "--writable", "--listen", addresses[0]]
        command += ["--advertise", ",".join(addresses), "--group-min-session-timeout-ms", "1000"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving")
        return process

    def kill(self) -> None:
        """Kill the next server, or both, and restart the killed servers."""
        turn = self.kills % len(self.processes)
        numbers = {turn, random.randrange(len(self.processes))}
        for number in numbers:
            self.processes[number].kill()
            self.processes[number].wait()
        for number in numbers:
            self.processes[number] = self._start(number)
        self.kills += 1

    def pause(self) -> None:
        """Pause the next server until clients continue with the other one, then let it continue."""
        turn = self.kills % len(self.processes)
        self.processes[turn].send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        self.processes[turn].send_signal(signal.SIGCONT)
        self.kills += 1

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def serving(place: object, count: int = 2) -> Iterator[Servers]:
    servers = Servers(str(place), count)
    try:
        yield servers
    finally:
        servers.stop()


class Sender(threading.Thread):
    """Sends numbers to all partitions in turn until it is stopped. `acknowledged` are the acknowledged numbers."""

    def __init__(self, addresses: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.addresses, self.partitions, self.stopped = addresses, partitions, threading.Event()
        self.acknowledged: list[int] = []
        self.failed: list[Any] = []
        self.start()

    def run(self) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.addresses.split(","),
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=5_000,
            delivery_timeout_ms=300_000,
            retry_backoff_ms=50,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=200,
            metadata_max_age_ms=1_000,
        )
        number = 0
        while not self.stopped.is_set():
            future = producer.send("t", b"%d" % number, partition=number % self.partitions)
            future.add_callback(lambda _, number=number: self.acknowledged.append(number))
            future.add_errback(self.failed.append)
            number += 1
            time.sleep(0.005)
        producer.flush(120)
        producer.close()

    def finish(self) -> None:
        self.stopped.set()
        self.join(150)
        assert not self.failed


def check_once(topic: Any, sender: Sender) -> int:
    """Check that each acknowledged record is stored exactly once and in order. Return the number of records."""
    table = topic.scan().to_table()
    values = [int(value) for value in table["value"].to_pylist()]
    assert sorted(values) == sorted(sender.acknowledged) == list(range(len(values)))
    by_partition: dict[int, list[int]] = {}
    for partition, value in zip(table["partition"].to_pylist(), values, strict=True):
        by_partition.setdefault(partition, []).append(value)
    for rows in by_partition.values():
        assert rows == sorted(rows)
    return len(values)


def check_group(place: object, *members: MemberProcess, records: int) -> None:
    """Check that all records were read and committed, and that no offset of the group has decreased."""
    root = sparklog.open(str(place))
    group = sparklog.Groups(root).group("g")
    wait_for(lambda: len({row[:2] for member in members for row in member.rows}) == records, 60)
    wait_for(lambda: sum(item.offset for item in group.committed().values()) == records, 60)
    chain = EntryChain(root.store, GROUPS, "g")
    state, seen = chain.existing(0), dict[int, int]()
    for entry in [state, *chain.walk(state, chain.latest().number)]:
        offsets = {
            (item.topic, partition): offset for item in entry.offsets for _, partition, offset in item.positions()
        }
        assert [place for place, offset in offsets.items() if offset < seen.get(place, 0)] == []
        assert seen.keys() <= offsets.keys()
        seen = offsets


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a new root on a disk or in a bucket."""
    return str(tmp_path / "log") if request.param == "disk" else join(request.getfixturevalue("bucket"), "log")


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("how", [Servers.kill, Servers.pause])
def test_each_record_is_stored_exactly_once(place: str, tmp_path: Path, how: Callable[[Servers], None]) -> None:
    topic = sparklog.open(place, create=True).create_topic("t", partitions=PARTITIONS)
    with (
        serving(place) as servers,
        member_processes(tmp_path, servers.addresses, "kafka-python", "aiokafka") as readers,
    ):
        sender = Sender(servers.addresses, PARTITIONS)
        for _ in range(KILLS if how is Servers.kill else KILLS // 4):
            time.sleep(random.uniform(0, 2 * UP_SECONDS))
            how(servers)
        sender.finish()
        check_group(place, *readers, records=check_once(topic, sender))


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("victim", ["kafka-python", "aiokafka", THIRD])
def test_a_killed_member_is_replaced_after_its_session_timeout(tmp_path: Path, victim: str) -> None:
    root = tmp_path / "log"
    topic = sparklog.open(root, create=True).create_topic("t", partitions=PARTITIONS)
    clients = ["kafka-python", "aiokafka", THIRD]
    with serving(root, 1) as servers, member_processes(tmp_path, servers.addresses, *clients) as members:
        sender = Sender(servers.addresses, PARTITIONS)
        wait_for(lambda: shares(*members))
        wait_for(lambda: all(member.rows for member in members))
        gone = members[clients.index(victim)]
        gone.kill()
        others = [member for member in members if member is not gone]
        wait_for(lambda: shares(*others), SESSION_SECONDS + SPARE_SECONDS)
        sender.finish()
        check_group(root, *members, records=check_once(topic, sender))
