"""Throughput and latency benchmarks that correspond to Kafka's performance tools.

`produce` sends individual records, as `kafka-producer-perf-test` does. Latency is the time from `send` until the record
is committed. The latency is measured only for a sample of the records, because a callback takes as much time as sending
a record. `consume` reads records with a consumer, as `kafka-consumer-perf-test` does, and reports the time including
and excluding the time for joining the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice, repeat
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import BadRequest, SparklogError
from sparklog.log.journal.clocks import Env
from sparklog.storage.fork_safety import ForkLock

if TYPE_CHECKING:
    # `perf consume` does not load the producer, and `perf produce` does not load the consumer.
    from sparklog.clients.consumer.consumer import Consumer
    from sparklog.clients.producer.futures import RecordFuture
    from sparklog.clients.producer.producer import Producer

MIB = 1 << 20
"""The size of a megabyte (MB) in the output of Kafka's tools."""
SAMPLE_MS = 1
"""Minimum time between two records whose latency is measured."""
PAYLOADS = 1_024
"""Number of random values, which are created before the first record is sent."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """The number of records and bytes that were sent in `ms` milliseconds. `sampled` contains the measured latencies in
    ascending order.
    """

    records: int
    nbytes: int
    ms: float
    sampled: list[float]

    @property
    def records_per_second(self) -> float:
        return self.records / max(self.ms, 0.001) * 1000

    @property
    def mb_per_second(self) -> float:
        return self.nbytes / MIB / max(self.ms, 0.001) * 1000

    def percentile(self, share: float) -> float:
        """Return the latency at this quantile of the sample, or 0 if the sample is empty."""
        return self.sampled[min(int(share * len(self.sampled)), len(self.sampled) - 1)] if self.sampled else 0.0

    @property
    def average(self) -> float:
        return sum(self.sampled) / len(self.sampled) if self.sampled else 0.0

    @property
    def maximum(self) -> float:
        return self.sampled[-1] if self.sampled else 0.0


@dataclass(frozen=True, slots=True)
class ProduceRun:
    """Options that determine which records are sent.

    Attributes:
        throughput: the maximum number of records per second; -1 for no limit.
        transaction_ms: the duration of each transaction, or None to send without transactions.
    """

    topic: str
    records: int
    payloads: Iterator[bytes]
    throughput: float = -1.0
    transaction_ms: float | None = None


class _LatencySampler:
    """Collects latencies in callbacks on the producer's thread. Stores all latencies, and the latencies since the last
    call of `window`.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._lock = ForkLock()
        self._all: list[float] = []
        self._recent: list[float] = []
        self.error: SparklogError | None = None

    def follow(self, future: RecordFuture) -> None:
        sent = self._now_ms()

        def done(finished: RecordFuture) -> None:
            error = finished.exception()
            with self._lock:
                if error is None:
                    self._recent.append(self._now_ms() - sent)
                elif isinstance(error, SparklogError):
                    self.error = error

        future.add_done_callback(done)  # type: ignore[arg-type]

    def window(self) -> list[float]:
        with self._lock:
            recent, self._recent = self._recent, []
        self._all += recent
        return sorted(recent)

    def total(self) -> list[float]:
        self.window()
        return sorted(self._all)


def produce(
    producer: Producer, run: ProduceRun, env: Env, report: Callable[[Throughput], object], interval_ms: float
) -> Throughput:
    """Send the records and wait until they are committed. Call `report` with the throughput of each interval.

    Raises the errors of `Producer.send` and of commits. The run ends at the first record that fails.
    """
    now_ms = env.boot_ms
    sampler, started = _LatencySampler(now_ms), now_ms()
    reported = transaction = started
    sampled = started - SAMPLE_MS
    sent = nbytes = sent_before = nbytes_before = 0
    if run.transaction_ms is not None:
        producer.begin_transaction()
    for payload in islice(run.payloads, run.records):
        future = producer.send(run.topic, payload)
        sent, nbytes, now = sent + 1, nbytes + len(payload), now_ms()
        if now - sampled >= SAMPLE_MS:
            sampler.follow(future)
            sampled = now
        if now - reported >= interval_ms:
            report(Throughput(sent - sent_before, nbytes - nbytes_before, now - reported, sampler.window()))
            reported, sent_before, nbytes_before = now, sent, nbytes
        if sampler.error is not None:
            raise sampler.error
        if run.transaction_ms is not None and now - transaction >= run.transaction_ms:
            producer.commit_transaction()
            producer.begin_transaction()
            transaction = now
        ahead_ms = sent * 1000 / run.throughput - (now - started) if run.throughput > 0 else 0.0
        if ahead_ms > 0:
            env.sleep(ahead_ms / 1000)
    if run.transaction_ms is not None:
        producer.commit_transaction()
    producer.flush()
    if sampler.error is not None:
        raise sampler.error
    return Throughput(sent, nbytes, now_ms() - started, sampler.total())


def random_payloads(size: int, random: Random) -> Iterator[bytes]:
    """Yield strings of `size` random uppercase letters, as Kafka's tool does. The values are drawn from a fixed set."""
    values = [bytes(random.choices(range(65, 91), k=size)) for _ in range(PAYLOADS)]
    return (random.choice(values) for _ in repeat(None))


def payloads_of_file(text: str, delimiter: str, random: Random) -> Iterator[bytes]:
    """Yield the values in a string repeatedly in random order. Raises `BadRequest` if the string does not contain
    values.
    """
    values = [value.encode() for value in text.split(delimiter) if value]
    if not values:
        raise BadRequest(f"the payload file has no values separated by {delimiter!r}")
    return (random.choice(values) for _ in repeat(None))


def ascending_payloads() -> Iterator[bytes]:
    return (b"%d" % number for number in count())


POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ConsumeRun:
    """The number of records that were read in an interval, and the size of their keys and values in bytes.

    Attributes:
        begin_ms: the start of the interval in ms since the epoch.
        end_ms: the end of the interval in ms since the epoch.
        join_ms: the time until partitions were assigned to the group member.
    """

    begin_ms: int
    end_ms: int
    records: int
    nbytes: int
    ms: float
    join_ms: float

    @property
    def megabytes(self) -> float:
        return self.nbytes / MIB

    @property
    def fetch_ms(self) -> float:
        return max(self.ms - self.join_ms, 0.0)

    def per_second(self, amount: float, ms: float) -> float:
        return amount / ms * 1000 if ms > 0 else 0.0


def consume(
    consumer: Consumer,
    messages: int,
    timeout_ms: float,
    env: Env,
    report: Callable[[ConsumeRun], object],
    interval_ms: float,
) -> ConsumeRun:
    """Read `messages` records. Stop if no record is received for `timeout_ms`. Call `report` for each interval."""
    begin_ms, started = env.wall_ms(), env.boot_ms()
    last_received = reported = started
    reported_ms, joined_ms = begin_ms, None if not consumer.assignment() else 0.0
    joined_in_interval = 0.0
    records = nbytes = records_before = nbytes_before = 0
    while records < messages and env.boot_ms() - last_received < timeout_ms:
        batches = consumer.poll(POLL_S)
        now = env.boot_ms()
        if joined_ms is None and consumer.assignment():
            joined_ms = joined_in_interval = now - started
        if batches:
            last_received = now
            records += sum(batch.num_rows for batch in batches)
            nbytes += sum(map(_bytes, batches))
        if now - reported >= interval_ms:
            counts = records - records_before, nbytes - nbytes_before
            report(ConsumeRun(reported_ms, env.wall_ms(), *counts, now - reported, joined_in_interval))
            reported, reported_ms, records_before, nbytes_before = now, env.wall_ms(), records, nbytes
            joined_in_interval = 0.0
    # After a timeout, do not count the time since the last record.
    end = last_received if records < messages else env.boot_ms()
    return ConsumeRun(begin_ms, begin_ms + int(end - started), records, nbytes, end - started, joined_ms or 0.0)


def _bytes(batch: pa.RecordBatch) -> int:
    return sum(pc.sum(pc.binary_length(batch[name])).as_py() or 0 for name in ("key", "value"))
