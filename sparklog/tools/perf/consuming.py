"""Records read by a consumer, as by `kafka-consumer-perf-test`: how many a second, with and without joining."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.groups.consumer import Consumer
from sparklog.log.journal.clocks import Env
from sparklog.tools.perf import MIB

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
