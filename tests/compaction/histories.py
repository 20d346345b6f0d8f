"""Random logs for the cleaner, in the classes of the plain model, as Kafka's producers could have written them.

    history = History(random.Random(seed))
    history.write(40); history.roll()
    clean(history.log, configs, now_ms=history.now_ms)
    history.write(10) ...

The writers are a producer without an id, idempotent producers, and transactional producers of transaction.version 0 (a
marker has the epoch of its transaction) and 2 (a marker has the next epoch). Keys repeat, some values are null,
transactions overlap, and some transactions stay open. A segment is closed if the next batch would make it larger than
`segment_bytes`.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace

from sparklog.testing.world import START_MS
from tests.compaction.plain_cleaner import (
    ABORT,
    COMMIT,
    Aborted,
    PlainBatch,
    PlainLog,
    PlainRecord,
    PlainSegment,
    index_sizes,
)


@dataclass
class Writer:
    """A writer. A producer id of -1 means no id. If `version` is None, the writer writes no transactions."""

    producer_id: int
    version: int | None = None
    epoch: int = -1
    sequence: int = 0
    open_since: int | None = None


def _writers() -> list[Writer]:
    return [
        Writer(-1),
        *(Writer(producer_id, None, 0) for producer_id in (100, 101)),
        *(Writer(producer_id, 0, 3) for producer_id in (200, 201)),
        *(Writer(producer_id, 2, 5) for producer_id in (300, 301, 302)),
    ]


@dataclass
class History:
    """A random log. `write` appends to `log`, which may be cleaned in between. `now_ms` advances with every batch."""

    rng: random.Random
    segment_bytes: int = 600
    keys: int = 8
    keyless: float = 0.0
    tombstones: float = 0.2
    codecs: tuple[int, ...] = (0,)
    append_time: float = 0.0
    index_interval_bytes: int = 200
    now_ms: int = START_MS
    writers: list[Writer] = field(default_factory=_writers)
    log: PlainLog = field(default_factory=lambda: PlainLog([PlainSegment(0, [])], 0, 0))

    def write(self, batches: int) -> None:
        """Append this number of batches, including markers."""
        for _ in range(batches):
            self.now_ms += self.rng.choice((0, 1, 7, 50))
            writer = self.rng.choice(self.writers)
            if writer.open_since is not None and self.rng.random() < 0.35:
                self.end_transaction(writer, self.rng.choice((ABORT, COMMIT)))
            elif writer.version is not None and writer.open_since is None and self.rng.random() < 0.05:
                # A transaction that wrote nothing to this partition also gets a marker.
                self.end_transaction(writer, self.rng.choice((ABORT, COMMIT)))
            else:
                self.data(writer)

    def roll(self) -> None:
        """Close the active segment. An empty segment stays active."""
        active = self.log.segments[-1]
        if active.batches:
            active.index, active.time_index = index_sizes(active, self.index_interval_bytes)
            active.modified_ms = self.now_ms
            self.log.segments.append(PlainSegment(self.log.log_end, [], self.now_ms))

    def delete_records(self) -> None:
        """Move the log start to any offset, possibly inside the dirty range, a batch or a transaction. Delete the
        segments below it.
        """
        log = self.log
        lowest = self.rng.choice((log.log_start, max(log.log_start, log.first_dirty_offset)))
        log.log_start = self.rng.randrange(lowest, log.log_end + 1)
        self.drop_segments()

    def drop_segments(self) -> None:
        """Drop closed segments without a batch at or after the log start. (Kafka keeps a segment that ends with a gap
        at the log start.)
        """
        *closed, active = self.log.segments
        start = self.log.log_start
        self.log.segments = [each for each in closed if not each.batches or each.batches[-1].last >= start] + [active]

    def end_transactions(self) -> None:
        """End all open transactions."""
        for writer in self.writers:
            if writer.open_since is not None:
                self.end_transaction(writer, self.rng.choice((ABORT, COMMIT)))

    def data(self, writer: Writer) -> None:
        """Return a batch of one to five records."""
        base, rng = self.log.log_end, self.rng
        append_time = self.now_ms if rng.random() < self.append_time else None
        records = tuple(self._record(base + i, append_time) for i in range(rng.choice((1, 1, 2, 3, 5))))
        newest = max(record.timestamp for record in records)
        batch = PlainBatch(
            base=base,
            last=base + len(records) - 1,
            max_timestamp=newest,
            records=records,
            codec=rng.choice(self.codecs),
            log_append_time=append_time is not None,
            transactional=writer.version is not None,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=writer.sequence if writer.producer_id >= 0 else -1,
        )
        writer.sequence += len(records)
        if writer.version is not None and writer.open_since is None:
            writer.open_since = base
        self._append(batch)

    def end_transaction(self, writer: Writer, kind: int) -> None:
        """Append a COMMIT or ABORT marker, and the `.txnindex` entry of an ABORT marker that aborts records."""
        if writer.version == 2:
            writer.epoch, writer.sequence = writer.epoch + 1, 0
        offset = self.log.log_end
        record = PlainRecord(offset, self.now_ms, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 1))
        first, writer.open_since = writer.open_since, None
        batch = PlainBatch(
            base=offset,
            last=offset,
            max_timestamp=self.now_ms,
            records=(record,),
            transactional=True,
            control=True,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
        )
        self._append(batch)
        if kind == ABORT and first is not None:
            others = [other.open_since for other in self.writers if other.open_since is not None]
            entry = Aborted(writer.producer_id, first, offset, min(others, default=offset + 1))
            self.log.segments[-1].aborted.append(entry)

    def _record(self, offset: int, append_time: int | None) -> PlainRecord:
        rng = self.rng
        key = None if rng.random() < self.keyless else b"k%d" % rng.randrange(self.keys)
        tombstone = key is not None and rng.random() < self.tombstones
        value = None if tombstone else b"v%d" % offset * rng.choice((0, 1, 5))
        headers = ((b"h", None), (b"", b"x" * 3)) if rng.random() < 0.1 else ()
        stamp = self.now_ms + rng.choice((0, 0, -3, 2)) if append_time is None else append_time
        return PlainRecord(offset, stamp, key, value, headers)

    def _append(self, batch: PlainBatch) -> None:
        batch = replace(batch, raw=batch.to_bytes())
        if self.log.segments[-1].size + batch.size > self.segment_bytes:
            self.roll()
        self.log.segments[-1].batches.append(batch)
        self.log.log_end = batch.last + 1
