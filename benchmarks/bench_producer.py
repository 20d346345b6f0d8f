"""A producer that takes 100-byte values, and a consumer that returns them one by one: rates, CPU time, and latency.

Run: `python -m benchmarks producer [rate] [many] [wait] [read] [--records N] [--linger-ms N] [--folder PATH]
[--broker HOST:PORT]`.

`rate`: one thread sends as fast as it can, futures are dropped; until the last commit. `cpu` is the processor time of
the whole process, its thread that commits included. `many`: the same with `send_many` and lists of 500 values. `wait`:
one thread sends a record and waits for its future, again and again, at random moments. `read`: one thread iterates
over the records that the other parts have sent, and takes the length of each value.

With `--broker` confluent-kafka and kafka-python, if they are installed, do the same with a Kafka broker and a topic
`bench` of four partitions, in turns with sparklog. The broker works in another process, whose time does not count, and
leaves its files to the page cache, as Kafka does; sparklog syncs each commit.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import sparklog

PARTITIONS = 4
VALUE = b"x" * 100
WARM_RECORDS = 60_000
"""More than the number of records after which a process uses compiled kernels."""
MANY = 500


class Sends(Protocol):
    def send(self, value: bytes) -> object: ...
    def send_and_wait(self, value: bytes) -> None: ...
    def flush(self) -> None: ...


class Appends:
    """`Topic.append` of one record: what of the wait is the disk's and the commit's."""

    def __init__(self, topic: sparklog.Topic) -> None:
        self.topic = topic

    def send(self, value: bytes) -> object: ...
    def flush(self) -> None: ...

    def send_and_wait(self, value: bytes) -> None:
        self.topic.append({"value": [value]})


class SparklogSends:
    def __init__(self, producer: sparklog.Producer) -> None:
        self.producer = producer
        self.flush = producer.flush

    def send(self, value: bytes) -> None:
        self.producer.send("bench", value)

    def send_and_wait(self, value: bytes) -> None:
        self.producer.send("bench", value).result()


class ConfluentSends:
    """confluent-kafka: a client in C, whose queue is polled for answers."""

    def __init__(self, broker: str, linger_ms: float) -> None:
        make = import_module("confluent_kafka").Producer
        options = {"bootstrap.servers": broker, "linger.ms": linger_ms, "acks": "all", "compression.type": "zstd"}
        # As with futures that are dropped: no call for a record that was taken.
        only_errors = {"delivery.report.only.error": True, "on_delivery": self._failed}
        self.producer: Any = make({**options, **only_errors})
        self.waiting: Any = make(options)

    def _failed(self, error: object, _: object) -> None:
        raise SystemExit(f"the broker did not take a record: {error}")

    def flush(self) -> None:
        if left := self.producer.flush(60):
            raise SystemExit(f"{left} records were not delivered within 60 s")

    def send(self, value: bytes) -> None:
        while True:
            try:
                self.producer.produce("bench", value)
            except BufferError:
                self.producer.poll(0.01)
            else:
                self.producer.poll(0)
                return

    def send_and_wait(self, value: bytes) -> None:
        errors: list[object] = []
        self.waiting.produce("bench", value, on_delivery=lambda error, _: errors.append(error))
        while not errors:
            self.waiting.poll(1)
        if errors[0] is not None:
            self._failed(errors[0], None)


class ManySends(SparklogSends):
    """Values that are sent as lists."""

    def __init__(self, producer: sparklog.Producer) -> None:
        super().__init__(producer)
        self.values: list[bytes] = []

    def send(self, value: bytes) -> None:
        self.values.append(value)
        if len(self.values) == MANY:
            self.producer.send_many("bench", {"value": self.values})
            self.values = []


def read_sparklog(root: sparklog.Root, records: int) -> float:
    """Iterate over this number of records, and return the seconds after the first record."""
    with sparklog.consumer(root, topics="bench", auto_offset_reset="earliest") as consumer:
        next(consumer)
        begun = time.perf_counter()
        for record in islice(consumer, records):
            len(record.value or b"")
        return time.perf_counter() - begun


def read_kafka_python(broker: str, records: int) -> float:
    kafka: Any = import_module("kafka")
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker, enable_auto_commit=False, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition("bench", partition) for partition in range(PARTITIONS)])
    consumer.seek_to_beginning()
    next(consumer)
    begun = time.perf_counter()
    for record in islice(consumer, records):
        len(record.value)
    seconds = time.perf_counter() - begun
    consumer.close()
    return seconds


def read_confluent(broker: str, records: int) -> float:
    kafka: Any = import_module("confluent_kafka")
    consumer = kafka.Consumer({"bootstrap.servers": broker, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([kafka.TopicPartition("bench", partition, 0) for partition in range(PARTITIONS)])
    while consumer.poll(1) is None:
        pass
    begun, count = time.perf_counter(), 0
    while count < records:
        record = consumer.poll(1)
        if record is not None:
            len(record.value())
            count += 1
    seconds = time.perf_counter() - begun
    consumer.close()
    return seconds


def readers(root: sparklog.Root, broker: str | None) -> dict[str, Callable[[int], float]]:
    """Return the consumers that can run, by name."""
    found: dict[str, Callable[[int], float]] = {"sparklog": partial(read_sparklog, root)}
    if broker is not None:
        for name, module, read in (
            ("confluent-kafka", "confluent_kafka", read_confluent), ("kafka-python", "kafka", read_kafka_python)
        ):  # fmt: skip
            if find_spec(module) is not None:
                found[name] = partial(read, broker)
    return found


def bench_read(root: sparklog.Root, broker: str | None, records: int) -> None:
    """Read the records three times, in turns; the median of the three."""
    rates: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    for _ in range(3):
        for name, read in readers(root, broker).items():
            used = time.process_time()
            rates[name].append(records / read(records))
            cpu[name].append((time.process_time() - used) / records * 1e6)
    show("read", rates, cpu)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def send_all(sends: Sends, records: int) -> None:
    """Send so many records and wait until they are acknowledged."""
    for _ in range(records):
        sends.send(VALUE)
    sends.flush()


def bench_rate(producers: Mapping[str, Sends], records: int) -> None:
    """Send all records three times, in turns; the median of the three."""
    rates: dict[str, list[float]] = {name: [] for name in producers}
    cpu: dict[str, list[float]] = {name: [] for name in producers}
    for _ in range(3):
        for name, sends in producers.items():
            begun, used = time.perf_counter(), time.process_time()
            send_all(sends, records)
            rates[name].append(records / (time.perf_counter() - begun))
            cpu[name].append((time.process_time() - used) / records * 1e6)
    show("rate", rates, cpu)


def show(part: str, rates: Mapping[str, list[float]], cpu: Mapping[str, list[float]]) -> None:
    for name in rates:
        rate, micros = statistics.median(rates[name]), statistics.median(cpu[name])
        print(
            f"{part:8} {name:13} {rate:9,.0f} records/s ({min(rates[name]):,.0f} to {max(rates[name]):,.0f}); "
            f"cpu {micros:5.2f} us a record: {1e6 / micros:9,.0f} on one core",
            flush=True,
        )


def bench_wait(name: str, sends: Sends, count: int, linger_ms: float) -> None:
    """Milliseconds from the call of `send` to the end of `result`."""
    source, spent = random.Random(1), []
    for number in range(count + 10):
        time.sleep(source.random() * 0.02)
        begun = time.perf_counter()
        sends.send_and_wait(VALUE)
        if number >= 10:  # imports, and code that is compiled
            spent.append((time.perf_counter() - begun) * 1000)
    p99 = percentile(spent, 0.99)
    print(
        f"wait     {name:10} linger {linger_ms:.0f} ms: p50 {statistics.median(spent):.1f}, p99 {p99:.1f}, max "
        f"{max(spent):.1f} ms; p99 is linger + {p99 - linger_ms:.1f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Records a second of a producer, and how long a send waits")
    parser.add_argument("parts", nargs="*", default=["rate", "many", "wait", "read"])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--sends", type=int, default=300)
    parser.add_argument("--linger-ms", type=float, default=50)
    parser.add_argument("--folder", type=Path, help="default: a new one for temporary files")
    parser.add_argument("--broker", help="compare with confluent-kafka there")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sparklog-bench-", dir=chosen.folder))
    try:
        root = sparklog.open(folder, create=True)
        root.create_topic("bench", partitions=PARTITIONS)
        producers: dict[str, Sends] = {"sparklog": SparklogSends(sparklog.producer(root, linger_ms=chosen.linger_ms))}
        if chosen.broker is not None:
            producers["confluent"] = ConfluentSends(chosen.broker, chosen.linger_ms)
        rated = dict(producers)
        if "many" in chosen.parts:
            rated["send_many"] = ManySends(sparklog.producer(root, linger_ms=chosen.linger_ms))
        for sends in rated.values():
            send_all(sends, WARM_RECORDS)
        if "rate" in chosen.parts:
            bench_rate(rated, chosen.records)
        if "wait" in chosen.parts:
            for name, sends in producers.items():
                bench_wait(name, sends, chosen.sends, chosen.linger_ms)
            bench_wait("append", Appends(root.topic("bench")), chosen.sends, 0)
        if "read" in chosen.parts:
            bench_read(root, chosen.broker, chosen.records)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
