"""Records sent one by one, as by `kafka-producer-perf-test`: how many a second, and how long until each is durable.

Latency is from `send` to the commit of the record. It is asked of as many records as change no figure: a future with a
callback costs a producer as much as the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice, repeat
from random import Random

from sparklog.errors import BadRequest, SparklogError
from sparklog.log.journal.clocks import Env
from sparklog.producers.futures import RecordFuture
from sparklog.producers.producer import Producer
from sparklog.storage.fork_safety import ForkLock
from sparklog.tools.perf import MIB

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
