"""Killed servers, producers and members: each record is stored exactly once, in order, and is read. Offsets of groups
never decrease, and transactions are atomic.

`SPARKLOG_SERVE_KILLS` is the number of kills (default 20, or 5 for all kinds of producers and groups at once), and
`SPARKLOG_SEEDS` the number of runs of the latter. librdkafka takes part if confluent-kafka is installed.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group_state import GROUPS
from sparklog.log.journal.chain import EntryChain
from sparklog.storage.locations import join
from sparklog.tools.verification.run import verify_root
from tests.serve.member_process import MemberProcess, member_processes
from tests.serve.producer_process import (
    IDEMPOTENT,
    PLAIN,
    TOPIC,
    TRANSACTIONAL,
    TRANSACTIONAL_PARTITIONS,
    TRANSACTIONAL_TOPICS,
    ProducerProcess,
)
from tests.serve.server_process import ServerProcess
from tests.serve.test_groups import PARTITIONS, free_port, shares, wait_for
from tests.support.seeds import Seeds

KILLS = int(os.environ.get("SPARKLOG_SERVE_KILLS", "20"))
FEW_KILLS = int(os.environ.get("SPARKLOG_SERVE_KILLS", "5"))
SEEDS = Seeds(every_run=0, slow_run=1, chunk=1, slow_chunk=1)
UP_SECONDS = 2.0
PAUSE_SECONDS = 8.0
"""Longer than the request timeout of clients and the session timeout of members."""
SESSION_SECONDS, SPARE_SECONDS = 3, 5
HAS_LIBRDKAFKA = importlib.util.find_spec("confluent_kafka") is not None
RDKAFKA_VERSION = tuple(map(int, version("confluent-kafka").split(".")[:2])) if HAS_LIBRDKAFKA else (0, 0)
THIRD = "librdkafka" if HAS_LIBRDKAFKA else "kafka-python"


class Servers:
    """Two servers of a root that know each other. `kill` kills the servers in turn, and restarts them."""

    def __init__(self, place: str, folder: Path, count: int = 2) -> None:
        self.addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(count))
        self.kills = 0
        self.processes = [self._new(place, folder / f"serve-{number}.log", number) for number in range(count)]

    def _new(self, place: str, log: Path, number: int) -> ServerProcess:
        addresses = self.addresses.split(",")
        advertised = ",".join(addresses[number:] + addresses[:number])
        options: tuple[str, ...] = ("--advertise", advertised, "--group-min-session-timeout-ms", "1000")
        options += ("--group-consumer-session-timeout-ms", "6000")
        return ServerProcess(place, log, addresses[number], options)

    def kill(self) -> None:
        """Kill the next server, or both, and restart the killed servers."""
        turn = self.kills % len(self.processes)
        numbers = {turn, random.randrange(len(self.processes))}
        for number in numbers:
            self.processes[number].kill()
        for number in numbers:
            self.processes[number].start()
        self.kills += 1

    def pause(self) -> None:
        """Pause the next server until clients continue with the other one, then let it continue."""
        turn = self.kills % len(self.processes)
        self.processes[turn].process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        self.processes[turn].process.send_signal(signal.SIGCONT)
        self.kills += 1

    def stop(self) -> None:
        for process in self.processes:
            process.kill()

    def internal_errors(self) -> list[str]:
        return [error for process in self.processes for error in process.internal_errors()]


@contextmanager
def serving(place: object, folder: Path, count: int = 2) -> Iterator[Servers]:
    servers = Servers(str(place), folder, count)
    try:
        yield servers
        assert not servers.internal_errors(), servers.internal_errors()[0]
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


def check_group(place: object, *members: MemberProcess, records: int, name: str = "g") -> None:
    """Check that all records were read and committed, and that no offset of the group has decreased."""
    group = sparklog.Groups(sparklog.open(str(place))).group(name)
    wait_for(lambda: len({row[:2] for member in members for row in member.rows}) == records, 60)
    wait_for(lambda: sum(item.offset for item in group.committed().values()) == records, 60)
    check_offsets(place, name)


def check_offsets(place: object, group: str) -> None:
    """Check that no committed offset of a group has decreased."""
    chain = EntryChain(sparklog.open(str(place)).store, GROUPS, group)
    state, seen = chain.existing(0), dict[TopicPartition, int]()
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
        serving(place, tmp_path) as servers,
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
    with serving(root, tmp_path, 1) as servers, member_processes(tmp_path, servers.addresses, *clients) as members:
        sender = Sender(servers.addresses, PARTITIONS)
        wait_for(lambda: shares(*members))
        wait_for(lambda: all(member.rows for member in members))
        gone = members[clients.index(victim)]
        gone.kill()
        others = [member for member in members if member is not gone]
        wait_for(lambda: shares(*others), SESSION_SECONDS + SPARE_SECONDS)
        sender.finish()
        check_group(root, *members, records=check_once(topic, sender))


CLIENTS = ["kafka-python", "aiokafka", *["librdkafka"] * HAS_LIBRDKAFKA]
GROUP_KINDS = {"classic": ["kafka-python", "aiokafka"], "native": ["sparklog"] * 2, "mixed": ["sparklog", THIRD]}
"""The members of each group."""
if RDKAFKA_VERSION >= (2, 4):
    GROUP_KINDS["consumer protocol"] = ["consumer protocol"] * 2
    GROUP_KINDS["mixed"].append("consumer protocol")
PRODUCER_KINDS = [PLAIN, IDEMPOTENT, IDEMPOTENT, TRANSACTIONAL, TRANSACTIONAL]


class WrittenLog:
    """The records of all topics at the end of a run, by value: for each record, its topic, partition and offset."""

    def __init__(self, root: sparklog.Root, isolation_level: str) -> None:
        self.by_value: dict[bytes, list[tuple[str, int, int]]] = {}
        columns = ["partition", "offset", "value"]
        for topic in (TOPIC, *TRANSACTIONAL_TOPICS):
            scan = root.topic(topic).scan(columns=columns, isolation_level=isolation_level)  # type: ignore[arg-type]
            for partition, offset, value in zip(*scan.to_table().to_pydict().values(), strict=True):
                self.by_value.setdefault(value, []).append((topic, partition, offset))

    def places(self, value: str) -> list[tuple[str, int, int]]:
        return sorted(self.by_value.get(value.encode(), ()))


def check_records(log: WrittenLog, producer: ProducerProcess) -> int:
    """Check the records of a producer without transactions. Return the number of acknowledged records."""
    acknowledged = [record for line in producer.lines() for record in line.get("records", ())]
    for topic, partition, offset, value in acknowledged:
        places = log.places(value)
        if producer.kind == PLAIN:
            assert (topic, partition, offset) in places, value
        else:
            assert places == [(topic, partition, offset)], value
    if producer.kind == IDEMPOTENT:
        mine = {value: places for value, places in log.by_value.items() if value.startswith(producer.name.encode())}
        assert all(len(places) == 1 for places in mine.values())
        in_order = sorted(mine, key=lambda value: [int(number) for number in value.partition(b".")[2].split(b"-")])
        latest: dict[int, int] = {}
        for value in in_order:
            ((_, partition, offset),) = mine[value]
            assert offset > latest.get(partition, -1), value
            latest[partition] = offset
    return len(acknowledged)


def check_transactions(log: WrittenLog, place: object, producer: ProducerProcess) -> Counter[str]:
    """Check that transactions are atomic, and that their outcome is the acknowledged one."""
    lines = [line for line in producer.lines() if "records" in line]
    outcomes = {line["records"][0][3]: line for line in lines}
    values = {value.decode() for value in log.by_value if value.startswith(producer.name.encode())}
    everywhere = [(topic, number) for topic in TRANSACTIONAL_TOPICS for number in range(TRANSACTIONAL_PARTITIONS)]
    latest = 0
    for value in values | outcomes.keys():
        outcome, places = outcomes.get(value, {}).get("outcome", "unknown"), log.places(value)
        assert not places or [(topic, number) for topic, number, _ in places] == everywhere, value
        assert outcome == "unknown" or bool(places) == (outcome == "committed"), (value, outcome)
        if outcome == "committed":
            assert places == [(topic, number, offset) for topic, number, offset, _ in outcomes[value]["records"]]
        if places:
            instance, number = value.rpartition(".")[2].split("-")
            latest = max(latest, 1_000_000 * int(instance) + int(number))
    # The offset of its group is that of the last committed transaction.
    committed = sparklog.Groups(sparklog.open(str(place))).group(producer.name).committed()
    assert committed[TOPIC, 0].offset == latest
    check_offsets(place, producer.name)
    return Counter(line["outcome"] for line in lines)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("seeds", SEEDS.many())
def test_all_kinds_of_producers_and_groups_survive_kills(bucket: str, tmp_path: Path, seeds: range) -> None:
    """Two servers of a root in a bucket and, sometimes, a producer are killed."""
    random_, place = random.Random(seeds[0]), join(bucket, "log")
    root = sparklog.open(place, create=True)
    root.create_topic(TOPIC, partitions=PARTITIONS)
    for topic in TRANSACTIONAL_TOPICS:
        root.create_topic(topic, partitions=TRANSACTIONAL_PARTITIONS)
    with ExitStack() as stack:
        servers = stack.enter_context(serving(place, tmp_path))
        members: dict[str, list[MemberProcess]] = {}
        for group, clients in GROUP_KINDS.items():
            for number, client in enumerate(clients):
                address = place if client == "sparklog" else servers.addresses
                member = MemberProcess(client, address, tmp_path / f"{group}-{number}.jsonl", group=group)
                stack.callback(member.kill)
                members.setdefault(group, []).append(member)
        producers = []
        for number, kind in enumerate(PRODUCER_KINDS):
            name, client = f"{kind}{number}", random_.choice(CLIENTS)
            output = tmp_path / f"{name}.jsonl"
            producers.append(ProducerProcess(client, kind, servers.addresses, name, output, seeds[0]))
            stack.callback(producers[-1].kill)
        wait_for(lambda: all(producer.lines() for producer in producers), 60)
        for _ in range(FEW_KILLS):
            time.sleep(random_.uniform(0, 2 * UP_SECONDS))
            servers.kill()
            if random_.random() < 0.3:
                random_.choice(producers).restart()
        for producer in producers:
            producer.finish()
        log = WrittenLog(root, "read_committed")
        for producer in producers:
            if producer.kind == TRANSACTIONAL:
                print(producer.client, producer.name, check_transactions(log, place, producer))
            else:
                print(producer.client, producer.name, check_records(log, producer))
        records = sum(topic == TOPIC for places in log.by_value.values() for topic, _, _ in places)
        for group, running in members.items():
            check_group(place, *running, records=records, name=group)
            print(group, [len(member.rows) for member in running], "of", records)
    assert not verify_root(root.store).findings
