"""A producer in a process of its own: it sends numbered values until its input ends, and prints what was acknowledged.

    python -m tests.serve.producer_process CLIENT KIND ADDRESSES NAME SEED

KIND is plain, idempotent or transactional. Each line is JSON: `{"records": [[topic, partition, offset, value], ...],
"outcome": ...}`. A record is printed when it was acknowledged. A transaction is printed when its outcome is known:
`committed` or `aborted`, or `unknown` if its commit failed. Its offsets of the group NAME are the number of the
transaction, from 1.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar, cast

REPOSITORY = Path(__file__).parents[2]
PLAIN, IDEMPOTENT, TRANSACTIONAL = KINDS = "plain", "idempotent", "transactional"
TOPIC, PARTITIONS = "t", 12
TRANSACTIONAL_TOPICS, TRANSACTIONAL_PARTITIONS = ("a", "b"), 2
PAUSE_SECONDS, WAIT_SECONDS, STUCK_SECONDS = 0.05, 120, 40
Record = tuple[str, int, bytes]
Offset = Callable[[], int]
T = TypeVar("T")


class AnyProducer(Protocol):
    """A producer of any client. A transaction is the time from `begin` to `commit` or `abort`."""

    def send(self, topic: str, partition: int, value: bytes) -> Offset:
        """Send a record, and return a function that waits for its offset."""
        ...

    def begin(self) -> None: ...
    def send_offset(self, group: str, offset: int) -> None:
        """Send an offset of a group, whose name is that of the transactional id."""
        ...

    def commit(self) -> None: ...
    def abort(self) -> None: ...


class KafkaPython:
    def __init__(self, addresses: str, kind: str, name: str) -> None:
        from kafka import KafkaProducer

        more: dict[str, Any] = {"transactional_id": name} if kind == TRANSACTIONAL else {}
        self._producer = KafkaProducer(
            bootstrap_servers=addresses.split(","),
            acks="all",
            enable_idempotence=kind != PLAIN,
            request_timeout_ms=5_000,
            delivery_timeout_ms=WAIT_SECONDS * 1000,
            retry_backoff_ms=50,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=200,
            metadata_max_age_ms=1_000,
            **more,
        )
        if more:
            self._producer.init_transactions()

    def send(self, topic: str, partition: int, value: bytes) -> Offset:
        future = self._producer.send(topic, value, partition=partition)
        return lambda: int(future.get(WAIT_SECONDS).offset)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send_offset(self, group: str, offset: int) -> None:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        self._producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): OffsetAndMetadata(offset, "", -1)}, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()


class Aiokafka:
    def __init__(self, addresses: str, kind: str, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._wait(self._start(addresses, kind, name))

    def _wait(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(WAIT_SECONDS)

    async def _start(self, addresses: str, kind: str, name: str) -> None:
        from aiokafka import AIOKafkaProducer

        self._producer = AIOKafkaProducer(
            bootstrap_servers=addresses.split(","),
            acks="all",
            enable_idempotence=kind != PLAIN,
            transactional_id=name if kind == TRANSACTIONAL else None,
            request_timeout_ms=5_000,
            metadata_max_age_ms=1_000,
        )
        await self._producer.start()

    def send(self, topic: str, partition: int, value: bytes) -> Offset:
        future = self._wait(self._producer.send(topic, value, partition=partition))

        async def offset() -> int:
            return int((await future).offset)

        return lambda: int(self._wait(offset()))

    def begin(self) -> None:
        self._wait(self._producer.begin_transaction())

    def send_offset(self, group: str, offset: int) -> None:
        from aiokafka import TopicPartition

        self._wait(self._producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): offset}, group))

    def commit(self) -> None:
        self._wait(self._producer.commit_transaction())

    def abort(self) -> None:
        self._wait(self._producer.abort_transaction())


class Librdkafka:
    def __init__(self, addresses: str, kind: str, name: str) -> None:
        from confluent_kafka import Consumer, Producer

        settings: dict[str, Any] = {
            "bootstrap.servers": addresses,
            "enable.idempotence": kind != PLAIN,
            "linger.ms": 5,
            "socket.timeout.ms": 5_000,
            "request.timeout.ms": 5_000,
            "message.timeout.ms": WAIT_SECONDS * 1000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        if kind == TRANSACTIONAL:
            settings |= {"transactional.id": name, "message.timeout.ms": 60_000}
        self._producer = Producer(settings)
        if kind == TRANSACTIONAL:
            consumer = Consumer({"bootstrap.servers": addresses, "group.id": name, "log_level": 0})
            self._metadata = consumer.consumer_group_metadata()
            self._retried(lambda: self._producer.init_transactions(WAIT_SECONDS))

    def _retried(self, call: Callable[[], object]) -> None:
        """Repeat a call after errors that librdkafka calls retriable."""
        from confluent_kafka import KafkaException

        until = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise

    def send(self, topic: str, partition: int, value: bytes) -> Offset:
        reports: list[Any] = []
        self._producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, message: reports.append((error, message))
        )

        def offset() -> int:
            until = time.monotonic() + WAIT_SECONDS
            while not reports and time.monotonic() < until:
                self._producer.poll(0.1)
            assert reports, "no delivery report"
            error, message = reports[0]
            assert error is None, error
            return int(message.offset())

        return offset

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send_offset(self, group: str, offset: int) -> None:
        from confluent_kafka import TopicPartition

        offsets = [TopicPartition(TOPIC, 0, offset)]
        self._retried(lambda: self._producer.send_offsets_to_transaction(offsets, self._metadata, WAIT_SECONDS))

    def commit(self) -> None:
        self._retried(lambda: self._producer.commit_transaction(WAIT_SECONDS))

    def abort(self) -> None:
        self._retried(lambda: self._producer.abort_transaction(WAIT_SECONDS))


CLIENTS: dict[str, Callable[[str, str, str], AnyProducer]] = {
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
    "librdkafka": Librdkafka,
}


def _print(rows: Sequence[Sequence[object]], outcome: str) -> None:
    print(json.dumps({"records": rows, "outcome": outcome}), flush=True)


def _failed(error: Exception) -> None:
    print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), flush=True)


def _unless_stuck(call: Callable[[], T]) -> T:
    """Return the result of a call. Raises `TimeoutError` if the client is stuck.

    kafka-python 3.0 loses a request if its coordinator refuses the connection, and librdkafka from version 2.10 on
    waits forever for a coordinator that was absent from a metadata response. Applications start another instance.
    """
    results: list[tuple[Any, Exception | None]] = []

    def run() -> None:
        try:
            results.append((call(), None))
        except Exception as error:  # noqa: BLE001 - raised below
            results.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(STUCK_SECONDS)
    if not results:
        raise TimeoutError("the client is stuck")
    result, error = results[0]
    if error is not None:
        raise error
    return cast("T", result)


def _send_records(producer: AnyProducer, name: str, stopped: threading.Event, *, may_fail: bool) -> None:
    """Send single records, and print them in order when they are acknowledged."""
    waiting: list[tuple[int, str, Offset]] = []

    def acknowledge(count: int) -> None:
        while len(waiting) > count:
            partition, value, offset = waiting.pop(0)
            try:
                _print([[TOPIC, partition, offset(), value]], "acknowledged")
            except Exception as error:
                if not may_fail:
                    raise
                _failed(error)

    number = 0
    while not stopped.is_set():
        value, partition = f"{name}-{number}", number % PARTITIONS
        waiting.append((partition, value, producer.send(TOPIC, partition, value.encode())))
        number += 1
        acknowledge(20)
        time.sleep(PAUSE_SECONDS)
    acknowledge(0)


def _send_transactions(new: Callable[[], AnyProducer], name: str, stopped: threading.Event, random: Random) -> None:
    """Send transactions. After an error, begin a new instance, which aborts an open transaction."""
    producer: AnyProducer | None = None
    number = 0
    while not stopped.is_set():
        number += 1
        rows: list[list[object]] = []
        outcome = "aborted"
        try:
            producer = producer or _unless_stuck(new)
            producer.begin()
            rows += _send_transaction(producer, f"{name}-{number}", random)
            group, _, instance = name.partition(".")
            _unless_stuck(partial(producer.send_offset, group, number + 1_000_000 * int(instance)))
            if random.random() < 0.2:
                _unless_stuck(producer.abort)
            else:
                outcome = "unknown"
                _unless_stuck(producer.commit)
                outcome = "committed"
        except Exception as error:  # noqa: BLE001 - each client has its own errors; the test looks at what was written
            _failed(error)
            producer = None
            while producer is None:
                try:
                    producer = _unless_stuck(new)
                except Exception as again:  # noqa: BLE001 - as above
                    _failed(again)
        _print(rows or [[topic, 0, -1, f"{name}-{number}"] for topic in TRANSACTIONAL_TOPICS], outcome)


def _send_transaction(producer: AnyProducer, value: str, random: Random) -> list[list[object]]:
    """Send records with the same value to several partitions of two topics. Return them with their offsets."""
    places = [(topic, partition) for topic in TRANSACTIONAL_TOPICS for partition in range(TRANSACTIONAL_PARTITIONS)]
    sent = []
    for topic, partition in places:
        sent.append((topic, partition, producer.send(topic, partition, value.encode())))
        time.sleep(random.random() * PAUSE_SECONDS)
    return [[topic, partition, offset(), value] for topic, partition, offset in sent]


def main(client: str, kind: str, addresses: str, name: str, seed: str) -> None:
    stopped = threading.Event()
    faulthandler.register(signal.SIGUSR1)

    def wait_for_end() -> None:
        sys.stdin.read()
        stopped.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    if kind == TRANSACTIONAL:
        id_ = name.partition(".")[0]
        _send_transactions(lambda: CLIENTS[client](addresses, kind, id_), name, stopped, Random(int(seed)))
    else:
        _send_records(CLIENTS[client](addresses, kind, name), name, stopped, may_fail=kind == PLAIN)


class ProducerProcess:
    """A running producer. `restart` kills it, and starts its next instance with the same transactional id."""

    def __init__(self, client: str, kind: str, addresses: str, name: str, output: Path, seed: int) -> None:
        self.client, self.kind, self.name, self._output = client, kind, name, output
        self._addresses, self._seed, self._instances = addresses, seed, 0
        self._start()

    def _start(self) -> None:
        name = f"{self.name}.{self._instances}"
        command = [sys.executable, "-m", "tests.serve.producer_process", self.client, self.kind, self._addresses]
        command += [name, str(self._seed + self._instances)]
        with self._output.open("ab") as file, self._output.with_suffix(".err").open("ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=errors, cwd=REPOSITORY)
        self._instances += 1

    def restart(self) -> None:
        self.kill()
        self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(2 * WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            # The process prints where its threads are.
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
        assert self.process.poll() == 0, self._output.with_suffix(".err").read_text()[-3000:]

    def lines(self) -> list[dict[str, Any]]:
        """Return what was printed. A line may be incomplete if its process was killed."""
        lines = self._output.read_text().splitlines(keepends=True)
        found = []
        for line in lines:
            if line.startswith("{") and line.endswith("}\n"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue
        return found


if __name__ == "__main__":
    main(*sys.argv[1:])
    # Threads of stuck clients must not delay the end.
    os._exit(0)
