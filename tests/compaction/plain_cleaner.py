"""A plain model of Kafka's log cleaner: the rules of docs/reference/kafka-format.md, with lists and dictionaries.

It shares no code with sparklog.compaction (nor with the decoder: only codecs and the CRC-32C are not written out), is
slow, and is meant to be read beside the rules. Tests hold it against Kafka's own passes (test_plain_cleaner.py), and
sparklog's cleaner against it where Kafka made no fixture.

    log = PlainLog(segments=[...], log_start=0, log_end=..., first_dirty_offset=0)     # or histories.History(...).log
    told = clean(log, configs, now_ms=...)          # log is what Kafka would have left, told what its cleaner said

Differences that can be switched: `keep_empty_segments` False drops a group without survivors (Kafka: a 0-byte segment).
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import crc32c

from sparklog.format.compression import compress, decompress
from sparklog.format.record_batch import CODECS

HEADER = struct.Struct(">qiibIhiqqqhii")
ENTRY = struct.Struct(">hqqqq")
ABORT, COMMIT = 0, 1
ZSTD_LEVEL = 3


@dataclass(frozen=True)
class PlainRecord:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class PlainBatch:
    """A batch of magic 2. `raw` contains its bytes if another program wrote the batch, and is None if it was created
    here.
    """

    base: int
    last: int
    max_timestamp: int
    records: tuple[PlainRecord, ...]
    leader_epoch: int = 0
    codec: int = 0
    log_append_time: bool = False
    transactional: bool = False
    control: bool = False
    horizon: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    raw: bytes | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        return len(self.to_bytes())

    def to_bytes(self) -> bytes:
        return self.raw if self.raw is not None else encoded(self)

    @property
    def control_type(self) -> int | None:
        """Return ABORT, COMMIT or another type, or None for an empty control batch."""
        return struct.unpack(">hh", self.records[0].key[:4])[1] if self.records and self.records[0].key else None


@dataclass(frozen=True)
class Aborted:
    """An entry of a `.txnindex`: the offsets of the transaction's first batch and of its ABORT marker."""

    producer_id: int
    first: int
    last: int
    last_stable: int


@dataclass
class PlainSegment:
    """A segment. `index` and `time_index` are the bytes of the index files, and `modified_ms` is used if a timestamp is
    missing.
    """

    base: int
    batches: list[PlainBatch]
    modified_ms: int = 0
    index: int = 0
    time_index: int = 0
    aborted: list[Aborted] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(batch.size for batch in self.batches)

    @property
    def largest_ts(self) -> int:
        return max(
            (batch.max_timestamp for batch in self.batches if batch.max_timestamp >= 0), default=self.modified_ms
        )


@dataclass
class PlainLog:
    """Segments in offset order. The last segment is active."""

    segments: list[PlainSegment]
    log_start: int
    log_end: int
    first_dirty_offset: int = 0


@dataclass(frozen=True)
class PlainConfigs:
    """Topic configs with their Kafka names and defaults, and the configs of the cleaner."""

    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = 86_400_000
    producer_id_expiration_ms: int = 86_400_000
    offset_map_slots: int = (128 << 20) // 24
    load_factor: float = 0.9
    keep_empty_segments: bool = True


@dataclass
class Told:
    """The output of the cleaner for a round. Offsets are -1 if the cleaner selected no log."""

    chosen: bool
    first_dirty: int = -1
    first_uncleanable: int = -1
    clean_bytes: int = 0
    cleanable_bytes: int = 0
    ratio: float = 0.0
    end: int = -1
    messages_read: int = 0
    messages_written: int = 0
    keyless: int = 0


@dataclass
class PlainProducer:
    """Rule 8.1, as far as the cleaner needs it, without sequences."""

    epoch: int = -1
    last_data_offset: int = -1
    timestamp: int = -1
    open_since: int | None = None


# --- one round -------------------------------------------------------------------------------------------------------


def clean(log: PlainLog, configs: PlainConfigs, *, now_ms: int) -> Told:
    """Run one round of the cleaner on a log, which is changed in place."""
    told = choose(log, configs, now_ms)
    if not told.chosen:
        return told
    offsets, latest = build_map(log, configs, told.first_dirty, told.first_uncleanable)
    told.end = latest + 1
    state = Round(log, configs, now_ms, offsets, latest, told)
    groups = grouped([each for each in log.segments if each.base < told.end], configs, told.first_uncleanable)
    done = [state.group(group) for group in groups]
    if not configs.keep_empty_segments:
        done = [segment for segment in done if segment.batches]
    log.segments = done + [each for each in log.segments if each.base >= told.end]
    log.first_dirty_offset = told.end
    return told


def last_stable(log: PlainLog) -> int:
    """Rule 8.4 with full replication: return the first offset of the earliest open transaction, or the log end."""
    open_since = [each.open_since for each in replayed(log).values() if each.open_since is not None]
    return max(log.log_start, min(open_since, default=log.log_end))


def choose(log: PlainLog, configs: PlainConfigs, now_ms: int) -> Told:
    """Rules 7.1 and 7.2 for a single log."""
    active = log.segments[-1]
    first_dirty = log.first_dirty_offset if log.log_start <= log.first_dirty_offset <= log.log_end else log.log_start
    uncleanable = min(last_stable(log), active.base)
    dirty = _non_active_from(log, first_dirty)
    if configs.min_compaction_lag_ms > 0:
        young = [each.base for each in dirty if each.largest_ts > now_ms - configs.min_compaction_lag_ms]
        uncleanable = min([uncleanable, *young])
    uncleanable = max(first_dirty, uncleanable)
    following = _non_active_from(log, uncleanable)
    first_uncleanable = following[0].base if following else active.base

    clean_bytes = sum(each.size for each in log.segments if each.base < first_dirty)
    cleanable = [
        each for each in _non_active_from(log, min(first_dirty, first_uncleanable)) if each.base < first_uncleanable
    ]
    cleanable_bytes = sum(each.size for each in cleanable)
    if clean_bytes + cleanable_bytes == 0:
        return Told(False)
    ratio = cleanable_bytes / (clean_bytes + cleanable_bytes)
    stamps = [each.batches[0].max_timestamp for each in dirty if each.batches]
    overdue = min((t for t in stamps if t > 0), default=2**63) < now_ms - configs.max_compaction_lag_ms
    if ratio > configs.min_cleanable_dirty_ratio or (overdue and cleanable_bytes > 0):
        return Told(True, first_dirty, first_uncleanable, clean_bytes, cleanable_bytes, ratio)
    return Told(False)


def _non_active_from(log: PlainLog, offset: int) -> list[PlainSegment]:
    """Return the closed segments, starting with the segment that contains `offset`."""
    bases = [each.base for each in log.segments]
    return [each for i, each in enumerate(log.segments[:-1]) if bases[i + 1] > offset]


def build_map(
    log: PlainLog, configs: PlainConfigs, first_dirty: int, first_uncleanable: int
) -> tuple[dict[bytes, int], int]:
    """Rule 7.3: return the last offset of each key in the dirty section, and the last offset that the map covers."""
    limit = int(configs.offset_map_slots * configs.load_factor)
    offsets: dict[bytes, int] = {}
    latest = -1
    tracker = Tracker()
    segments = [each for each in _non_active_from(log, first_dirty) if each.base < first_uncleanable]
    tracker.add(_entries(log, segments[0], first_dirty, first_uncleanable) if segments else [])
    for i, segment in enumerate(segments):
        for batch in segment.batches:
            if batch.control:
                tracker.control(batch)
            elif not tracker.data(batch):
                for record in batch.records:
                    if record.key is None or record.offset < first_dirty:
                        continue
                    if len(offsets) >= limit:
                        # This also applies to an existing key, because Kafka checks the number of entries first.
                        return offsets, latest
                    offsets[record.key] = record.offset
                    latest = record.offset
            if batch.last >= first_dirty:
                latest = batch.last
        latest = (segments[i + 1].base if i + 1 < len(segments) else first_uncleanable) - 1
    return offsets, latest


def grouped(segments: list[PlainSegment], configs: PlainConfigs, first_uncleanable: int) -> list[list[PlainSegment]]:
    """Rule 7.4."""
    groups: list[list[PlainSegment]] = []
    for i, segment in enumerate(segments):
        following = segments[i + 1].base if i + 1 < len(segments) else first_uncleanable
        with_it = [*(groups[-1] if groups else []), segment]
        if (
            len(with_it) > 1
            and sum(each.size for each in with_it) <= configs.segment_bytes
            and sum(each.index for each in with_it) <= configs.segment_index_bytes
            and sum(each.time_index for each in with_it) <= configs.segment_index_bytes
            and (segment.size == 0 or following - 1 - with_it[0].base <= 2**31 - 1)
        ):
            groups[-1] = with_it
        else:
            groups.append([segment])
    return groups


class Round:
    """Rules 7.5 to 7.7 for all groups of a round. The transaction tracker continues from group to group."""

    def __init__(
        self, log: PlainLog, configs: PlainConfigs, now_ms: int, offsets: dict[bytes, int], latest: int, told: Told
    ) -> None:
        self.log, self.configs, self.now_ms = log, configs, now_ms
        self.offsets, self.latest, self.told = offsets, latest, told
        self.tracker = Tracker()
        self.live = {
            producer_id: producer
            for producer_id, producer in replayed(log).items()
            if producer.open_since is not None or now_ms - producer.timestamp < configs.producer_id_expiration_ms
        }

    def group(self, segments: list[PlainSegment]) -> PlainSegment:
        target = PlainSegment(segments[0].base, [], segments[-1].modified_ms)
        bases = [each.base for each in self.log.segments]
        for segment in segments:
            following = min((base for base in bases if base > segment.base), default=self.log.log_end)
            self.tracker.add(_entries(self.log, segment, self.log.log_start, following))
            for batch in segment.batches:
                kept = self.batch(batch)
                if kept is not None:
                    target.batches.append(kept)
                    self.told.messages_written += len(kept.records)
        target.aborted, self.tracker.staying = self.tracker.staying, []
        target.index, target.time_index = index_sizes(target, self.configs.index_interval_bytes)
        return target

    def batch(self, batch: PlainBatch) -> PlainBatch | None:
        """Rule 7.7: return the batch after cleaning."""
        if batch.control:
            discardable = self.tracker.control(batch)
            discard = discardable and batch.horizon is not None and batch.horizon <= self.now_ms
        else:
            discardable = discard = self.tracker.data(batch)
        retain_empty = self.is_last_of_producer(batch) or batch.last + 1 == self.told.first_uncleanable

        if not discard or retain_empty:
            # Kafka does not open a batch that is dropped completely, and does not count its records.
            self.told.messages_read += len(batch.records)
        if discard:
            survivors: tuple[PlainRecord, ...] = ()
        elif batch.control:
            survivors = batch.records
        else:
            survivors = tuple(record for record in batch.records if self.keeps(record, batch))
        if not survivors:
            return emptied(batch) if retain_empty else None
        stamp = batch.horizon is None and (
            any(record.value is None for record in survivors) or (batch.control and discardable)
        )
        if len(survivors) == len(batch.records) and not stamp:
            return batch
        horizon = self.now_ms + self.configs.delete_retention_ms if stamp else batch.horizon
        newest = batch.max_timestamp if batch.log_append_time else max(record.timestamp for record in survivors)
        return replace(batch, records=survivors, horizon=horizon, max_timestamp=newest, raw=None)

    def is_last_of_producer(self, batch: PlainBatch) -> bool:
        producer = self.live.get(batch.producer_id)
        if producer is None:
            return False
        if producer.last_data_offset >= 0:
            return batch.last == producer.last_data_offset
        return batch.control and batch.producer_epoch == producer.epoch

    def keeps(self, record: PlainRecord, batch: PlainBatch) -> bool:
        """Rule 7.5: return whether a data record is retained."""
        if record.offset > self.latest:
            return True
        if record.key is None:
            self.told.keyless += 1
            return False
        if record.offset < self.offsets.get(record.key, -1):
            return False
        if record.value is not None:
            return True
        return batch.horizon is None or self.now_ms < batch.horizon


# --- transactions ----------------------------------------------------------------------------------------------------


class Tracker:
    """Rule 7.6, as in CleanedTransactionMetadata: a heap of aborted transactions that start later."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Aborted]] = []
        self.aborted: dict[int, tuple[Aborted, bool]] = {}
        self.committed: set[int] = set()
        self.staying: list[Aborted] = []

    def add(self, entries: Iterable[Aborted]) -> None:
        for entry in entries:
            heapq.heappush(self.heap, (entry.first, entry.producer_id, entry))

    def _begin(self, offset: int) -> None:
        while self.heap and self.heap[0][0] <= offset:
            entry = heapq.heappop(self.heap)[2]
            self.aborted.setdefault(entry.producer_id, (entry, False))

    def data(self, batch: PlainBatch) -> bool:
        """Return whether a data batch can be discarded."""
        self._begin(batch.last)
        if not batch.transactional:
            return False
        if batch.producer_id in self.aborted:
            self.aborted[batch.producer_id] = (self.aborted[batch.producer_id][0], True)
            return True
        self.committed.add(batch.producer_id)
        return False

    def control(self, batch: PlainBatch) -> bool:
        """Return whether a control batch can be discarded."""
        self._begin(batch.last)
        if not batch.records:
            return True
        if batch.control_type == ABORT:
            entry, observed = self.aborted.pop(batch.producer_id, (None, False))
            if observed and entry is not None:
                self.staying.append(entry)
            return not observed
        if batch.control_type == COMMIT:
            if batch.producer_id in self.committed:
                self.committed.remove(batch.producer_id)
                return False
            return True
        return False


def _entries(log: PlainLog, segment: PlainSegment, start: int, upper: int) -> list[Aborted]:
    """Rule 8.5, step 2: return the entries of this and later segments that affect the offsets `[start, upper)`."""
    later = [each for each in log.segments if each.base >= segment.base]
    return [entry for each in later for entry in each.aborted if entry.last >= start and entry.first < upper]


def replayed(log: PlainLog) -> dict[int, PlainProducer]:
    """Rules 8.1 and 8.3 for the log alone. An empty marker still contains the epoch of its producer."""
    producers: dict[int, PlainProducer] = {}
    for batch in (batch for segment in log.segments for batch in segment.batches):
        if batch.producer_id < 0:
            continue
        producer = producers.setdefault(batch.producer_id, PlainProducer())
        if producer.epoch != batch.producer_epoch:
            producer.epoch, producer.last_data_offset = batch.producer_epoch, -1
        producer.timestamp = batch.max_timestamp
        if batch.control:
            producer.open_since = None
        else:
            producer.last_data_offset = batch.last
            if batch.transactional and producer.open_since is None:
                producer.open_since = batch.base
    return producers


# --- bytes -----------------------------------------------------------------------------------------------------------


def emptied(batch: PlainBatch) -> PlainBatch:
    """Rule 1.8."""
    return replace(batch, records=(), codec=0, horizon=None, raw=None)


def index_sizes(segment: PlainSegment, interval: int) -> tuple[int, int]:
    """Rule 3.5 with one batch per append: return the sizes of `.index` and `.timeindex`, including the entry at the
    end.
    """
    position = since = 0
    entries: list[int] = []
    times: list[tuple[int, int]] = []
    newest = (-1, -1)
    for batch in segment.batches:
        if batch.max_timestamp > newest[0]:
            newest = (batch.max_timestamp, batch.last)
        if since > interval:
            entries.append(position)
            if newest[0] > (times[-1][0] if times else -1):
                times.append(newest)
            since = 0
        since += batch.size
        position += batch.size
    if newest[0] > (times[-1][0] if times else -1):
        times.append(newest)
    return 8 * len(entries), 12 * len(times)


def encoded(batch: PlainBatch) -> bytes:
    """Rules 1.1 to 1.5 and 1.8: return the bytes of the batch. Compressed batches do not have the same bytes as
    Kafka's.
    """
    attributes = batch.codec | batch.log_append_time << 3 | batch.transactional << 4 | batch.control << 5
    if batch.horizon is not None:
        attributes |= 0x40
        base_timestamp = batch.horizon
    else:
        base_timestamp = batch.records[0].timestamp if batch.records else -1
    body = b"".join(_encoded_record(record, batch.base, base_timestamp) for record in batch.records)
    if batch.codec:
        body = compress(CODECS[batch.codec], body, ZSTD_LEVEL if CODECS[batch.codec] == "zstd" else None)
    crc_part = struct.pack(
        ">hiqqqhii",
        attributes,
        batch.last - batch.base,
        base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records),
    )
    crc = crc32c.crc32c(crc_part + body)
    return struct.pack(">qiibI", batch.base, 49 + len(body), batch.leader_epoch, 2, crc) + crc_part + body


def _encoded_record(record: PlainRecord, base: int, base_timestamp: int) -> bytes:
    parts = [b"\x00", _varint(record.timestamp - base_timestamp), _varint(record.offset - base)]
    parts += [_bytes(record.key), _bytes(record.value), _varint(len(record.headers))]
    parts += [_bytes(name) + _bytes(value) for name, value in record.headers]
    body = b"".join(parts)
    return _varint(len(body)) + body


def _bytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def decoded(data: bytes) -> Iterator[PlainBatch]:
    """Return the batches of a `.log` in order.

    Under LogAppendTime, all records have the largest timestamp of the batch, also when they are written again. The
    original deltas in the records are lost.
    """
    position = 0
    while position < len(data):
        base, length, leader_epoch, magic, _, attributes, delta, first, newest, producer, epoch, sequence, count = (
            HEADER.unpack_from(data, position)
        )
        assert magic == 2
        raw = data[position : position + 12 + length]
        position += 12 + length
        codec, append_time = attributes & 7, bool(attributes & 8)
        body = decompress(CODECS[codec], raw[61:]) if count else b""
        yield PlainBatch(
            base=base,
            last=base + delta,
            max_timestamp=newest,
            records=tuple(_decoded_records(body, count, base, first, newest if append_time else None)),
            leader_epoch=leader_epoch,
            codec=codec,
            log_append_time=append_time,
            transactional=bool(attributes & 16),
            control=bool(attributes & 32),
            horizon=first if attributes & 64 else None,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            raw=raw,
        )


def _decoded_records(
    body: bytes, count: int, base: int, base_timestamp: int, append_time: int | None
) -> Iterator[PlainRecord]:
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = body[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def text() -> bytes | None:
        nonlocal position
        length = number()
        if length < 0:
            return None
        position += length
        return body[position - length : position]

    for _ in range(count):
        number()
        position += 1
        timestamp, offset = base_timestamp + number(), base + number()
        key, value = text(), text()
        headers = tuple((text() or b"", text()) for _ in range(number()))
        yield PlainRecord(offset, timestamp if append_time is None else append_time, key, value, headers)


def aborted_entries(data: bytes) -> list[Aborted]:
    """Return the entries of a `.txnindex`."""
    return [Aborted(*entry[1:]) for entry in ENTRY.iter_unpack(data)]
