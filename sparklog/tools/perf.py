"""Records a second of a store and a machine, and their waits, as Kafka's performance tools measure them.

Records are sent one by one, as by `kafka-producer-perf-test`. Latency is from `send` to the commit of the record. It is
asked of as many records as change no figure: a future with a callback costs a producer as much as the record. They are
read by a consumer, as by `kafka-consumer-perf-test`: with and without joining.
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
    # `perf consume` loads no producer, nor `perf produce` a consumer.
    from sparklog.clients.consumer.consumer import Consumer
    from sparklog.clients.producer.futures import RecordFuture
    from sparklog.clients.producer.producer import Producer

MIB = 1 << 20
"""What Kafka's tools call MB."""
SAMPLE_MS = 1
"""Between two records whose latency is asked for, at least."""
PAYLOADS = 1_024
"""Random values that are made before the first is sent."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Records and bytes that were sent in `ms` milliseconds, and latencies (ms) of some of them, in ascending order."""

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
        """Return the latency that this share of records stays below; 0 where none was sampled."""
        return self.sampled[min(int(share * len(self.sampled)), len(self.sampled) - 1)] if self.sampled else 0.0

    @property
    def average(self) -> float:
        return sum(self.sampled) / len(self.sampled) if self.sampled else 0.0

    @property
    def greatest(self) -> float:
        return self.sampled[-1] if self.sampled else 0.0


@dataclass(frozen=True, slots=True)
class ProduceRun:
    """The records to send: how many, their values, how many a second at most (-1: as fast as it goes).

    `transaction_ms`: a transaction is committed after so long; None: no transactions.
    """

    topic: str
    records: int
    payloads: Iterator[bytes]
    throughput: float = -1.0
    transaction_ms: float | None = None


class _Watch:
    """Throughput as callbacks bring them, from the producer's thread; those since the last `window` apart."""

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
    """Send the records and wait until they are durable; `report` is given what was sent in each interval.

    Raises what `Producer.send` and the commits raise: the first record that fails ends the run.
    """
    now_ms = env.boot_ms
    watch, begun = _Watch(now_ms), now_ms()
    reported = transaction = begun
    sampled = begun - SAMPLE_MS
    sent = nbytes = sent_before = nbytes_before = 0
    if run.transaction_ms is not None:
        producer.begin_transaction()
    for payload in islice(run.payloads, run.records):
        future = producer.send(run.topic, payload)
        sent, nbytes, now = sent + 1, nbytes + len(payload), now_ms()
        if now - sampled >= SAMPLE_MS:
            watch.follow(future)
            sampled = now
        if now - reported >= interval_ms:
            report(Throughput(sent - sent_before, nbytes - nbytes_before, now - reported, watch.window()))
            reported, sent_before, nbytes_before = now, sent, nbytes
        if watch.error is not None:
            raise watch.error
        if run.transaction_ms is not None and now - transaction >= run.transaction_ms:
            producer.commit_transaction()
            producer.begin_transaction()
            transaction = now
        ahead_ms = sent * 1000 / run.throughput - (now - begun) if run.throughput > 0 else 0.0
        if ahead_ms > 0:
            env.sleep(ahead_ms / 1000)
    if run.transaction_ms is not None:
        producer.commit_transaction()
    producer.flush()
    if watch.error is not None:
        raise watch.error
    return Throughput(sent, nbytes, now_ms() - begun, watch.total())


def random_payloads(size: int, random: Random) -> Iterator[bytes]:
    """Return values of so many random capital letters, as Kafka's tool makes them; the first ones again and again."""
    made = [bytes(random.choices(range(65, 91), k=size)) for _ in range(PAYLOADS)]
    return (random.choice(made) for _ in repeat(None))


def payloads_of_file(text: str, delimiter: str, random: Random) -> Iterator[bytes]:
    """Return parts of a text in random order, again and again. `BadRequest` if it has none."""
    parts = [part.encode() for part in text.split(delimiter) if part]
    if not parts:
        raise BadRequest("the payload file has no records")
    return (random.choice(parts) for _ in repeat(None))


def ascending_payloads() -> Iterator[bytes]:
    return (b"%d" % number for number in count())


POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ConsumeRun:
    """Records and bytes of keys and values that were read between two times (`begin_ms`, `end_ms`: since the epoch).

    `join_ms`: the part of the time before a member of a group had its partitions.
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
    """Read until there were so many records, or none for `timeout_ms`; `report` is given each interval by itself."""
    begin_ms, begun = env.wall_ms(), env.boot_ms()
    heard = reported = begun
    reported_ms, joined_ms = begin_ms, None if not consumer.assignment() else 0.0
    joined_here = 0.0
    records = nbytes = records_before = nbytes_before = 0
    while records < messages and env.boot_ms() - heard < timeout_ms:
        batches = consumer.poll(POLL_S)
        now = env.boot_ms()
        if joined_ms is None and consumer.assignment():
            joined_ms = joined_here = now - begun
        if batches:
            heard = now
            records += sum(batch.num_rows for batch in batches)
            nbytes += sum(map(_bytes, batches))
        if now - reported >= interval_ms:
            counts = records - records_before, nbytes - nbytes_before
            report(ConsumeRun(reported_ms, env.wall_ms(), *counts, now - reported, joined_here))
            reported, reported_ms, records_before, nbytes_before = now, env.wall_ms(), records, nbytes
            joined_here = 0.0
    # The wait for more that never came is no part of the work.
    end = heard if records < messages else env.boot_ms()
    return ConsumeRun(begin_ms, begin_ms + int(end - begun), records, nbytes, end - begun, joined_ms or 0.0)


def _bytes(batch: pa.RecordBatch) -> int:
    return sum(pc.sum(pc.binary_length(batch[name])).as_py() or 0 for name in ("key", "value"))
