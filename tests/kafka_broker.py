"""A real Kafka broker for tests: one process, KRaft, its own log dir; started again on files that tests put there.

It runs from the jars of `tests.kafka_tools`. A broker takes about five seconds to start, so a test should put all its
topics into one.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from sparklog.format.checkpoint_files import (
    CLEANER_OFFSETS_FILE,
    LOG_STARTS_FILE,
    RECOVERY_POINTS_FILE,
    offsets_to_bytes,
    parse_offsets,
)
from tests.kafka_tools import KAFKA_VERSION, fetched_jars, find_java, kafka_jars

_IVY = f"""<ivy-module version="2.0">
  <info organisation="sparklog" module="kafka-console"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA_VERSION}" conf="default->master(*)"/>
    <dependency org="net.sourceforge.argparse4j" name="argparse4j" rev="0.7.0" conf="default->master(*)"/>
  </dependencies>
</ivy-module>
"""
QUICK_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Starts fast and takes little memory."""
SERVER_JVM = ("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As Kafka's own scripts start a broker, for benchmarks."""
ODD = "surrogateescape"
"""What bytes that are no text become in what tools print."""
START_SECONDS = 90
STOP_SECONDS = 60
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"


@dataclass(frozen=True, slots=True)
class Consumed:
    """A record as a consumer got it; `timestamp_type` 0: CreateTime, 1: LogAppendTime, -1: none."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def console_jars() -> str:
    """The classes of Kafka's command lines, which need those of `kafka_jars` too."""
    return f"{fetched_jars(f'kafka-console-{KAFKA_VERSION}', _IVY, f'kafka-tools-{KAFKA_VERSION}.jar')}{os.sep}*"


class Broker:
    """A broker over `folder`; `data` is its log dir. Use as a context: it is stopped in the end."""

    def __init__(self, folder: Path, more: str = "", jvm: Sequence[str] = QUICK_JVM) -> None:
        """`more`: further lines of `server.properties`. `Missing` (of `tests.kafka_tools`) where it cannot be run."""
        self._jvm = jvm
        self.folder = folder
        self.data = folder / "data"
        self._java = find_java()
        # Kafka's Scala code needs reflection, which its own jars leave to the installation.
        scala = (Path(pyspark.__file__).parent / "jars").glob("scala-reflect-*.jar")
        self._classes = os.pathsep.join([f"{kafka_jars()}{os.sep}*", *map(str, scala)])
        self._log = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.port, controller = free_ports(2)
        (folder / "server.properties").write_text(_properties(self.port, controller, self.data) + more)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run(
            "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(folder / "server.properties")
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self.folder / "server.properties")), stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while "Kafka Server started" not in self.said().rpartition("STARTING THE BROKER")[2]:
            ended = self._process.poll()
            assert ended is None, f"the broker ended with {ended}: {self.said()[-2000:]}"
            assert time.monotonic() < deadline, f"no broker after {START_SECONDS} s: {self.said()[-2000:]}"
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop it as an operator does, and wait."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with self._log.open("ab") as log:
            log.write(b"\nSTARTING THE BROKER\n")

    def said(self) -> str:
        """What it has logged so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def create(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic; the id that the cluster gave it, as `partition.metadata` has it."""
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))])
        finally:
            admin.close()
        metadata = self.data / f"{topic}-{partitions - 1}" / "partition.metadata"
        deadline = time.monotonic() + 30
        while not metadata.exists():
            assert time.monotonic() < deadline, f"no {metadata}"
            time.sleep(0.1)
        return metadata.read_text().rpartition("topic_id: ")[2].strip()

    def replace(self, exported: Path, topic: str, name: str | None = None) -> None:
        """Put the partitions of an exported topic in the place of the stopped broker's own, as the manual says.

        `name`: what the topic is called there.
        """
        assert self._process is None
        there = name or topic
        for folder in sorted(path for path in exported.iterdir() if path.is_dir()):
            exported_topic, _, partition = folder.name.rpartition("-")
            if exported_topic != topic:
                continue
            own = self.data / f"{there}-{partition}"
            shutil.rmtree(own)
            shutil.copytree(folder, own)
        for file in (LOG_STARTS_FILE, CLEANER_OFFSETS_FILE):
            known = self.data / file
            offsets = parse_offsets(known.read_bytes()) if known.exists() else {}
            moved = parse_offsets((exported / file).read_bytes()) if (exported / file).exists() else {}
            for (name_there, number), offset in moved.items():
                if name_there == topic:
                    offsets[there, number] = offset
            known.write_bytes(offsets_to_bytes(offsets))
        for file in (RECOVERY_POINTS_FILE, CLEAN_SHUTDOWN_FILE):
            (self.data / file).unlink(missing_ok=True)

    def consume(
        self, topic: str, partition: int, isolation: str, *, idle_ms: int = 5_000
    ) -> tuple[int, int, list[Consumed]]:
        """First offset, the offset that this isolation level ends at, and all records between, by kafka-python.

        A position does not move over a gap at the end: after `idle_ms` without records there are none.
        """
        from kafka import KafkaConsumer, TopicPartition

        at = TopicPartition(topic, partition)
        consumer: Any = KafkaConsumer(
            bootstrap_servers=self.address,
            isolation_level=isolation,
            enable_auto_commit=False,
            check_crcs=True,
            auto_offset_reset="none",
        )
        try:
            consumer.assign([at])
            start, end = consumer.beginning_offsets([at])[at], consumer.end_offsets([at])[at]
            consumer.seek(at, start)
            found: list[Consumed] = []
            deadline = time.monotonic() + idle_ms / 1000
            while consumer.position(at) < end and time.monotonic() < deadline:
                for record in consumer.poll(500).get(at, ()):
                    deadline = time.monotonic() + idle_ms / 1000
                    found.append(_consumed(record))
            return start, end, found
        finally:
            consumer.close()

    def console(self, topic: str, isolation: str, timeout_ms: int = 4000, group: str = "") -> list[str]:
        """Lines `Partition:<n>\\tOffset:<n>\\t<key>` of Java's console consumer, from the beginning or from where
        the group stands, for which it commits in the end (bytes that are no UTF-8: see `ODD`)."""
        answer = self.tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--topic", topic, "--from-beginning", *(("--group", group) if group else ())),
            *("--isolation-level", isolation, "--timeout-ms", str(timeout_ms)),
            *("--property", "print.partition=true", "--property", "print.offset=true"),
            *("--property", "print.key=true", "--property", "print.value=false"),
        )
        return answer.split("\n")[:-1]

    def groups(self, *arguments: str) -> list[str]:
        """Lines that `kafka-consumer-groups` prints."""
        answer = self.tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *arguments)
        return [line for line in answer.splitlines() if line.strip()]

    def tool(self, name: str, *arguments: str, text: str | None = None) -> str:
        """What the class of one of Kafka's command lines prints about this broker, or of `text`; it must end with 0."""
        return self.run_tool(name, "--bootstrap-server", self.address, *arguments, text=text)

    def run_tool(self, name: str, *arguments: str, text: str | None = None) -> str:
        """What it prints about the server that the arguments name."""
        return self._run(name, *arguments, classes=console_jars(), text=text)

    def _command(self, name: str, *arguments: str, classes: str = "") -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka=info"
        return [self._java, *self._jvm, quiet, "-cp", f"{self._classes}{os.pathsep}{classes}", name, *arguments]

    def _run(self, name: str, *arguments: str, classes: str = "", text: str | None = None) -> str:
        command = self._command(name, *arguments, classes=classes)
        answer = subprocess.run(
            command, input=text, capture_output=True, text=True, errors=ODD, timeout=120, check=False
        )
        assert answer.returncode == 0, (answer.stdout + answer.stderr)[-2000:]
        return answer.stdout


def free_ports(count: int) -> Sequence[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _consumed(record: Any) -> Consumed:
    headers = tuple((name, value) for name, value in record.headers or ())
    # Messages of format v0 have neither; Kafka's own consumers say -1.
    time, kind = (-1 if each is None else each for each in (record.timestamp, record.timestamp_type))
    return Consumed(record.offset, time, kind, record.key, record.value, headers)


def _properties(port: int, controller: int, data: Path) -> str:
    return f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.cleaner.enable=false
"""
