"""`sparklog serve` beside a Kafka broker: what clients of Kafka read and write a second, and when they see a record.

Run: `python -m benchmarks serve [bulk] [seen] [start] [--records N] [--rounds N] [--folder PATH]`.

Both are processes of this machine that serve on loopback, and every client is Kafka's own or librdkafka (where
confluent-kafka is installed; not a dependency of the project). They take turns; medians of `--rounds` are printed.

`bulk`: Java's producer performance tool (acks=all, linger 5 ms, lz4, records of 116 bytes) into a new topic, then
Java's consumer performance tool and librdkafka read it. `cpu` is processor time of the server alone. sparklog syncs
each commit, a broker leaves its files to the page cache; `broker-durable` is a topic with flush.messages=1, which syncs
each batch as well.
`seen`: a record each 10 ms with its time as the value, until a consumer that waits has it. The first 500 do not count:
a server just started loads the kernels of records meanwhile.
`start`: `sparklog serve` from its start to the first answer, and memory with 100 connections that wait.
Needs Linux, Java, and the network once, for Kafka's jars.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.kafka_broker import SERVER_JVM, Broker, free_ports

RECORD_BYTES = 116
SEEN_RECORDS, FIRST_RECORDS = 1_000, 500
IDLE_CONNECTIONS = 100
PRODUCER_TOOL = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_TOOL = "org.apache.kafka.tools.ConsumerPerformance"


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs: its address, its process, and configs of the topics that are created there."""

    name: str
    address: str
    pid: int
    configs: dict[str, str] = field(default_factory=dict)

    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def sparklog_server(root: Path) -> Iterator[Served]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "sparklog", "serve", str(root), "--writable", "--listen", f"127.0.0.1:{port}"]
    # Else each start compiles all modules, which an installation has done.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
    try:
        connected(port).close()
        yield Served("sparklog", f"127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        process.wait()


def connected(port: int) -> socket.socket:
    """Connect to a server that starts."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.002)


def produce(broker: Broker, server: Served, topic: str, records: int) -> float:
    """Return records a second, as Java's tool counts them."""
    options = ["acks=all", "linger.ms=5", "compression.type=lz4", f"bootstrap.servers={server.address}"]
    answer = broker.run_tool(
        PRODUCER_TOOL,
        *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", "--producer-props", *options),
    )
    return float(re.findall(r"([\d.]+) records/sec", answer)[-1])


def consume_java(broker: Broker, server: Served, topic: str, records: int) -> float:
    """Return MB (2^20 bytes of keys and values) a second while it fetched, without the group's rebalance."""
    arguments = ("--topic", topic, "--messages", str(records), "--hide-header", "--timeout", "60000")
    answer = broker.run_tool(CONSUMER_TOOL, "--bootstrap-server", server.address, *arguments)
    return float(answer.strip().splitlines()[-1].split(",")[-2])


def consume_librdkafka(_: Broker, server: Served, topic: str, records: int) -> float:
    kafka: Any = import_module("confluent_kafka")
    consumer = kafka.Consumer({"bootstrap.servers": server.address, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([kafka.TopicPartition(topic, 0, 0)])
    while not (first := consumer.consume(1, 1.0)):
        pass
    begun, count = time.perf_counter(), len(first)
    while count < records:
        # A call with more records than are left would wait until its timeout.
        count += len(consumer.consume(min(10_000, records - count), 1.0))
    seconds = time.perf_counter() - begun
    consumer.close()
    return count * RECORD_BYTES / seconds / 2**20


def bulk(servers: list[Served], broker: Broker, records: int, rounds: int) -> None:
    works: dict[str, Callable[[Broker, Served, str, int], float]] = {"produce": produce, "consume java": consume_java}
    if has_librdkafka():
        works["consume librdkafka"] = consume_librdkafka
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for server in servers if number % 2 == 0 else servers[::-1]:
            topic = f"bulk-{server.name}-{number}"
            create(server, topic)
            for work, run in works.items():
                if server.configs and work != "produce":
                    continue
                begun = server.cpu_s()
                rate = run(broker, server, topic, records)
                figures.setdefault((work, server.name), []).append((rate, server.cpu_s() - begun))
    for (work, name), pairs in figures.items():
        rate, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
        unit = "records/s" if work == "produce" else "MB/s"
        share = records * RECORD_BYTES / 2**20 / max(cpu, 0.01)
        print(f"{work:20} {name:14} {rate:12,.1f} {unit:10} server cpu {cpu:6.2f} s, {share:6.0f} MB a CPU second")


def seen(servers: list[Served]) -> None:
    """Print how long a record takes from a producer's call to a consumer that waits."""
    for server in servers:
        create(server, "seen")
        delays = sorted(seen_delays(server))
        p50, p99 = (delays[int(len(delays) * share)] for share in (0.5, 0.99))
        print(f"{'produce to seen':20} {server.name:9} p50 {p50:6.1f} ms  p99 {p99:6.1f} ms  most {delays[-1]:6.1f} ms")


def seen_delays(server: Served) -> list[float]:
    kafka: Any = import_module("confluent_kafka")
    consumer = kafka.Consumer({"bootstrap.servers": server.address, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([kafka.TopicPartition("seen", 0, 0)])
    delays: list[float] = []

    def read() -> None:
        while len(delays) < FIRST_RECORDS + SEEN_RECORDS:
            message = consumer.poll(1.0)
            if message is not None and not message.error():
                delays.append(time.time() * 1000 - float(message.value()))

    reader = threading.Thread(target=read)
    reader.start()
    producer = kafka.Producer({"bootstrap.servers": server.address, "acks": "all", "linger.ms": 0})
    time.sleep(1.0)
    begun = time.perf_counter()
    for number in range(FIRST_RECORDS + SEEN_RECORDS):
        time.sleep(max(0.0, begun + number * 0.01 - time.perf_counter()))
        producer.produce("seen", repr(time.time() * 1000).encode(), partition=0)
        producer.poll(0)
    producer.flush()
    reader.join()
    consumer.close()
    return delays[FIRST_RECORDS:]


def start(root: Path, rounds: int) -> None:
    """Print the time to the first answer, and memory of a server of 100 connections."""
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    seconds, cpu = list[float](), list[float]()
    for number in range(rounds + 1):
        begun = time.perf_counter()
        with sparklog_server(root) as server:
            port = int(server.address.rpartition(":")[2])
            connections = [answered(port, request)]
            # The first one may compile modules.
            if number:
                seconds.append(time.perf_counter() - begun)
                cpu.append(server.cpu_s())
            else:
                connections += [answered(port, request) for _ in range(IDLE_CONNECTIONS)]
                print(f"{'memory':20} sparklog  {resident_mib(server.pid):.0f} MiB, {len(connections)} connections")
            for connection in connections:
                connection.close()
    print(f"{'start':20} sparklog  {statistics.median(seconds):.2f} s, {statistics.median(cpu):.2f} s of CPU")


def answered(port: int, request: bytes) -> socket.socket:
    connection = connected(port)
    connection.sendall(request)
    connection.recv(1)
    return connection


def create(server: Served, topic: str) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=server.address)
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs=server.configs)])
    admin.close()


def has_librdkafka() -> bool:
    try:
        import_module("confluent_kafka")
    except ImportError:
        print("librdkafka is left out: confluent-kafka is not installed")
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="bulk, seen, start; all without one")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    parts = chosen.parts or ["bulk", "seen", "start"]
    folder = Path(tempfile.mkdtemp(prefix="sparklog-serve-", dir=chosen.folder))
    try:
        if "bulk" in parts or "seen" in parts:
            with Broker(folder / "broker", jvm=SERVER_JVM) as broker, sparklog_server(folder / "root") as server:
                servers = [server, Served("broker", broker.address, broker.pid)]
                if "seen" in parts and has_librdkafka():
                    seen(servers)
                if "bulk" in parts:
                    durable = replace(servers[1], name="broker-durable", configs={"flush.messages": "1"})
                    bulk([*servers, durable], broker, chosen.records, chosen.rounds)
        if "start" in parts:
            start(folder / "root", chosen.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
