"""A group member in its own process, which a test can kill. It prints its assignment, records and commits as lines.

    python -m tests.serve.member_process kafka-python 127.0.0.1:9092 g 3 [INSTANCE]

3 is the session timeout in seconds.

Each line is JSON: `{"assigned": [0, 1]}`, `{"read": [[partition, offset, value], ...]}`, `{"failed": ...}` for a poll,
or `{"refused": ...}` for a commit. A record is printed before its commit is sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

REPOSITORY = Path(__file__).parents[2]
Row = tuple[int, int, str]


class AnyConsumer(Protocol):
    """A consumer of any client. `poll` returns the records that arrive within 100 ms."""

    def poll(self) -> list[Row]: ...
    def assigned(self) -> list[int]: ...
    def commit(self) -> None: ...


def _settings(addresses: str, group: str, session: str, instance: str | None) -> dict[str, Any]:
    return {
        "bootstrap_servers": addresses.split(","),
        "group_id": group,
        "group_instance_id": instance,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": int(session) * 1000,
        "heartbeat_interval_ms": 200,
        "request_timeout_ms": 5_000,
        "metadata_max_age_ms": 1_000,
    }


class KafkaPython:
    def __init__(self, *settings: Any) -> None:
        from kafka import KafkaConsumer

        more = {"reconnect_backoff_max_ms": 200}
        self._consumer = KafkaConsumer("t", **_settings(*settings), **more)

    def poll(self) -> list[Row]:
        batches = self._consumer.poll(100).values()
        return [(row.partition, row.offset, row.value.decode()) for batch in batches for row in batch]

    def assigned(self) -> list[int]:
        return sorted(topic_partition.partition for topic_partition in self._consumer.assignment())

    def commit(self) -> None:
        self._consumer.commit()


class Aiokafka:
    def __init__(self, *settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start(*settings))

    async def _start(self, *settings: Any) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        more = {"partition_assignment_strategy": [RangePartitionAssignor]}
        self._consumer = AIOKafkaConsumer("t", **_settings(*settings), **more)
        await self._consumer.start()

    def poll(self) -> list[Row]:
        batches = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=100)).values()
        return [(row.partition, row.offset, row.value.decode()) for batch in batches for row in batch]

    def assigned(self) -> list[int]:
        return sorted(topic_partition.partition for topic_partition in self._consumer.assignment())

    def commit(self) -> None:
        self._loop.run_until_complete(self._consumer.commit())


class Librdkafka:
    settings: Mapping[str, str] = {}

    def __init__(self, addresses: str, group: str, session: str, instance: str | None) -> None:
        from confluent_kafka import Consumer

        settings = {
            "bootstrap.servers": addresses,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": int(session) * 1000,
            "heartbeat.interval.ms": 200,
            "reconnect.backoff.max.ms": 200,
            **self.settings,
        }
        if "group.protocol" in settings:
            # The server chooses these.
            del settings["session.timeout.ms"], settings["heartbeat.interval.ms"]
        self._consumer = Consumer(settings | ({} if instance is None else {"group.instance.id": instance}))
        self._consumer.subscribe(["t"])

    def poll(self) -> list[Row]:
        rows = [row for row in self._consumer.consume(500, 0.1) if row.error() is None]
        return [(row.partition(), row.offset(), row.value().decode()) for row in rows]

    def assigned(self) -> list[int]:
        return sorted(topic_partition.partition for topic_partition in self._consumer.assignment())

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)


class LibrdkafkaConsumerProtocol(Librdkafka):
    """librdkafka with the consumer protocol (KIP-848), from version 2.4 on."""

    settings: Mapping[str, str] = {"group.protocol": "consumer"}


class Native:
    """`sparklog.consumer`. Its address is the location of the root."""

    def __init__(self, location: str, group: str, session: str, instance: str | None) -> None:
        import sparklog

        self._consumer = sparklog.consumer(
            location,
            group,
            topics="t",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=int(session) * 1000,
            group_instance_id=instance,
            partition_assignment_strategy=["range"],
        )

    def poll(self) -> list[Row]:
        columns = ("partition", "offset", "value")
        batches = self._consumer.poll(timeout=0.1)
        rows = [
            row for batch in batches for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        ]
        return [(partition, offset, value.decode()) for partition, offset, value in rows]

    def assigned(self) -> list[int]:
        return sorted(partition for _, partition in self._consumer.assignment())

    def commit(self) -> None:
        self._consumer.commit()


CLIENTS: dict[str, Callable[[str, str, str, str | None], AnyConsumer]] = {
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
    "librdkafka": Librdkafka,
    "consumer protocol": LibrdkafkaConsumerProtocol,
    "sparklog": Native,
}


def main(client: str, addresses: str, group: str, session: str, instance: str | None = None) -> None:
    consumer = CLIENTS[client](addresses, group, session, instance)
    assigned: list[int] = []
    must_commit = False
    while True:
        try:
            rows = consumer.poll()
        except Exception as error:  # noqa: BLE001 - as below: kafka-python gives up a look for a server that has ended
            print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), flush=True)
            continue
        if assigned != (assigned := consumer.assigned()):
            print(json.dumps({"assigned": assigned}), flush=True)
        if rows:
            print(json.dumps({"read": rows}), flush=True)
        must_commit = must_commit or bool(rows)
        if must_commit:
            try:
                consumer.commit()
                must_commit = False
            except Exception as error:  # noqa: BLE001 - each client has its own errors; the test looks at what follows
                print(json.dumps({"refused": f"{type(error).__name__}: {error}"}), flush=True)


def console_consumer(addresses: str, session: int, instance: str) -> list[str]:
    """Return the command of Kafka's console consumer. Its lines are not JSON."""
    from tests.kafka_broker import console_jars
    from tests.kafka_tools import find_java, kafka_jars

    settings = {"session.timeout.ms": session * 1000, "auto.commit.interval.ms": 200, "auto.offset.reset": "earliest"}
    settings |= {"group.instance.id": instance} if instance else {}
    java = [find_java(), "-Xmx256m", "-cp", f"{kafka_jars()}{os.sep}*{os.pathsep}{console_jars()}"]
    tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    command = [*java, tool, "--bootstrap-server", addresses, "--topic", "t", "--group", "g"]
    return command + [text for name, value in settings.items() for text in ("--consumer-property", f"{name}={value}")]


class MemberProcess:
    """A running member, and its output."""

    def __init__(
        self,
        client: str,
        addresses: str,
        output: Path,
        *,
        group: str = "g",
        session: int = 3,
        instance: str = "",
    ) -> None:
        self.output = output
        command = [sys.executable, "-m", "tests.serve.member_process", client, addresses, group, str(session)]
        command += [instance] if instance else []
        if client == "java":
            command = console_consumer(addresses, session, instance)
        with output.open("ab") as file, output.with_suffix(".err").open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=file, stderr=errors, cwd=REPOSITORY)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def lines(self) -> list[dict[str, Any]]:
        lines = self.output.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def assigned(self) -> list[int]:
        return next((line["assigned"] for line in reversed(self.lines()) if "assigned" in line), [])

    @property
    def rows(self) -> list[Row]:
        return [(row[0], row[1], row[2]) for line in self.lines() for row in line.get("read", ())]


@contextmanager
def member_processes(folder: Path, addresses: str, *clients: str) -> Iterator[list[MemberProcess]]:
    """Start members, and kill them at the end of the block."""
    with ExitStack() as stack:
        running = []
        for number, client in enumerate(clients):
            running.append(MemberProcess(client, addresses, folder / f"member-{number}-{time.time_ns()}.jsonl"))
            stack.callback(running[-1].kill)
        yield running


if __name__ == "__main__":
    main(*sys.argv[1:])
