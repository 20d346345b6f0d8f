"""Seeks in sealed segments with Kafka's index files: their requests, and wrong indexes, which only change the cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import Corrupt, Unavailable
from sparklog.format.append_file import INDEX_MIN_BYTES
from sparklog.format.batch_scan import scan_headers
from sparklog.format.record_batch import BatchHeaders
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.limits import Limits
from sparklog.log.state.view import TimestampOffset
from sparklog.log.topic.topic import Topic
from sparklog.testing.world import START_MS
from tests.log.rewriting import sealed
from tests.support.counted_root import CountedRoot
from tests.support.records import random_rows, small

RECORDS = 3000
BATCH_BYTES = 20_000
WINDOW = 256 << 10


class Segment:
    """A topic with one partition: a sealed segment of about 3 MiB, with Kafka's index files."""

    def __init__(self, folder: Path, *, times: list[int] | None = None) -> None:
        self.counted_root = CountedRoot("memory", folder)
        self.topic: Topic = self.counted_root.topic(1)
        table = random_rows(RECORDS, value_bytes=1000)
        if times is not None:
            table = table.set_column(2, "timestamp", pa.array(times, pa.int64()))
        self.topic.append(table, options=small(batch_bytes=BATCH_BYTES))
        self.expected = self.topic.scan().to_table()
        self.times = self.expected["timestamp"].cast(pa.int64()).to_pylist()
        self.key = sealed(self.counted_root, self.topic)
        for old in self.counted_root.append_files():
            self.counted_root.inner.delete(old)
        self.headers: BatchHeaders = scan_headers(self.counted_root.inner.get(self.key))
        self.write_indexes()

    def write_indexes(self, interval: int = 4096) -> None:
        h = self.headers
        self.put(".index", OffsetIndex.build(0, h.position, h.last_offset, interval).to_bytes())
        times = TimeIndex.build(0, h.position, h.last_offset, h.max_timestamp, interval)
        self.put(".timeindex", times.to_bytes())

    def put(self, suffix: str, data: bytes) -> None:
        key = self.key.removesuffix(".log") + suffix
        self.counted_root.inner.delete(key)
        assert self.counted_root.inner.create(key, data)

    def remove(self, suffix: str) -> None:
        self.counted_root.inner.delete(self.key.removesuffix(".log") + suffix)

    def reads(self) -> list[str]:
        """Return the suffixes of the files read since the last reset."""
        return [
            key.rpartition(".")[2] for verb, key in self.counted_root.store.keys if verb == "get" and "/sealed/" in key
        ]

    def wrong_offsets(self, starts: list[int]) -> list[int]:
        """Return the offsets from which 40 records are not read as they were written."""
        return [
            start
            for start in starts
            if self.topic.scan(start=start, end=min(start + 40, RECORDS)).to_table() != self.expected.slice(start, 40)
        ]

    def model(self, target: int, start: int = 0) -> dict[int, TimestampOffset | None]:
        found = next((offset for offset in range(start, RECORDS) if self.times[offset] >= target), None)
        return {0: None if found is None else TimestampOffset(found, self.times[found])}

    def wrong_times(self, start: int = 0) -> list[int]:
        """Return the timestamps, of a sample, whose first record is not found. The log starts at `start`."""
        newest = max(self.times)
        targets = [0, self.times[7], self.times[1500], self.times[1500] + 1, self.times[2990], newest, newest + 1]
        return [each for each in targets if self.topic.offset_for_timestamp(each) != self.model(each, start)]


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    # Timestamps that mostly increase, and sometimes decrease.
    made = Segment(tmp_path, times=[START_MS + i * 10 - (i % 13) * 40 for i in range(RECORDS)])
    made.counted_root.store.limits = Limits(span_bytes=WINDOW)
    return made


def test_an_offset_lookup_makes_two_range_requests(segment: Segment) -> None:
    assert segment.headers.size.sum() > 2 * INDEX_MIN_BYTES
    assert len(segment.headers) > 100
    for offset in (0, 1, 17, 1234, 2222, RECORDS - 1):
        segment.counted_root.store.reset()
        record = segment.topic.record_at(0, offset)
        assert pa.Table.from_batches([record]) == segment.expected.slice(offset, 1)
        assert segment.reads() == ["index", "log"]
        assert segment.counted_root.store.bytes_read < 4 * BATCH_BYTES + 10_000


def test_a_range_reads_only_the_batches_it_needs(segment: Segment) -> None:
    segment.counted_root.store.reset()
    read = segment.topic.scan(start=1000, end=1800).to_table()
    assert read == segment.expected.slice(1000, 800)
    wanted = 800 * 1050
    assert segment.counted_root.store.bytes_read < wanted + 4 * BATCH_BYTES
    assert segment.reads() == ["index", *["log"] * (1 + wanted // WINDOW)]
    segment.counted_root.store.reset()
    assert segment.topic.scan().to_table() == segment.expected
    assert "index" not in segment.reads()


def test_a_time_lookup_makes_three_range_requests(segment: Segment) -> None:
    for target in (START_MS + 7, segment.times[1500], segment.times[2800] + 3, max(segment.times)):
        segment.counted_root.store.reset()
        assert segment.topic.offset_for_timestamp(target) == segment.model(target)
        assert segment.reads() == ["index", "timeindex", "log"]
        assert segment.counted_root.store.bytes_read < 6 * BATCH_BYTES + 20_000
    segment.counted_root.store.reset()
    assert segment.topic.offset_for_timestamp(max(segment.times) + 1) == {0: None}
    assert segment.reads() == []


def test_every_offset_and_time_is_found(segment: Segment) -> None:
    source = random.Random(3)
    for interval in (0, 4096, 60_000, 1 << 30):
        segment.write_indexes(interval)
        assert not segment.wrong_offsets([source.randrange(RECORDS) for _ in range(12)] + [0, RECORDS - 1])
        for _ in range(12):
            target = segment.times[source.randrange(RECORDS)] + source.randrange(-30, 30)
            assert segment.topic.offset_for_timestamp(target) == segment.model(target)


def test_a_log_start_inside_the_segment(segment: Segment) -> None:
    for start in (1, 700, 1501, 2900):
        segment.topic.delete_records({0: start})
        assert not segment.wrong_offsets([start, min(start + 300, RECORDS - 10)])
        assert not segment.wrong_times(start)


@pytest.mark.parametrize("missing", [(".index",), (".timeindex",), (".index", ".timeindex")])
def test_without_index_files_a_segment_is_read_from_its_start(segment: Segment, missing: tuple[str, ...]) -> None:
    for suffix in missing:
        segment.remove(suffix)
    assert not segment.wrong_offsets([0, 999, 2950])
    assert not segment.wrong_times()


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_reads_work_with_unreadable_index_files(
    segment: Segment, suffix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = segment.counted_root.store.get

    def get(key: str, start: int = 0, length: int | None = None) -> bytes:
        if key.endswith(f".{suffix}"):
            raise Unavailable("the device reports an I/O error")
        return real(key, start, length)

    monkeypatch.setattr(segment.counted_root.store, "get", get)
    assert not segment.wrong_offsets([0, 999, 2950])
    assert not segment.wrong_times()
    assert len(caplog.records) == 1


def shifted(segment: Segment) -> OffsetIndex:
    index = OffsetIndex.build(0, segment.headers.position, segment.headers.last_offset, 4096)
    return OffsetIndex(0, index.offsets, index.positions + 13)


def of_another(segment: Segment) -> OffsetIndex:
    """The positions contain batches with other offsets."""
    index = OffsetIndex.build(0, segment.headers.position, segment.headers.last_offset, 4096)
    return OffsetIndex(0, index.offsets[:-5], index.positions[5:])


def beyond(segment: Segment) -> OffsetIndex:
    size = int(segment.headers.size.sum())
    return OffsetIndex(0, np.array([3, 500, 2000]), np.array([size - 5, size, size + 100]))


def early(segment: Segment) -> OffsetIndex:
    """Return valid positions with later offsets. A reader that trusts such an entry would miss records."""
    h = segment.headers
    return OffsetIndex(0, h.last_offset[10:-10] - 200, h.position[10:-10])


@pytest.mark.parametrize("lie", [shifted, of_another, beyond, early])
def test_a_wrong_offset_index_costs_reads_but_does_not_hide_records(
    segment: Segment, lie: Callable[[Segment], OffsetIndex]
) -> None:
    segment.put(".index", lie(segment).to_bytes())
    assert not segment.wrong_offsets([0, 250, 999, 2000, 2950])
    assert not segment.wrong_times()


def test_a_batch_header_inside_a_value_is_not_a_batch(segment: Segment) -> None:
    """Bytes of a record may look like a batch that ends at the offset of the entry, but with an invalid CRC."""
    first = segment.counted_root.inner.get(
        segment.key, int(segment.headers.position[40]), int(segment.headers.size[40])
    )
    fake = bytearray(first[:200])
    fake[8:12] = (188).to_bytes(4, "big")
    data = bytearray(segment.counted_root.inner.get(segment.key))
    at = int(segment.headers.position[60]) + 5000
    data[at : at + 200] = fake
    segment.counted_root.inner.replace(segment.key, bytes(data))  # type: ignore[attr-defined]
    segment.put(".index", OffsetIndex(0, segment.headers.last_offset[40:41], np.array([at])).to_bytes())
    wanted = int(segment.headers.last_offset[40])
    assert segment.topic.scan(start=wanted, end=wanted + 1).to_table() == segment.expected.slice(wanted, 1)


def test_a_wrong_time_index_is_ignored(segment: Segment) -> None:
    h = segment.headers
    # Timestamps that no batch has, and offsets at which no batch ends.
    lies = [
        TimeIndex(0, np.array([START_MS + 1, START_MS + 2]), h.last_offset[[50, 120]]),
        TimeIndex(0, np.array([START_MS + 1, START_MS + 2]), h.last_offset[[50, 120]] - 1),
        TimeIndex(0, np.array([START_MS + 1]), np.array([RECORDS + 500])),
    ]
    for lie in lies:
        segment.put(".timeindex", lie.to_bytes())
        assert not segment.wrong_times()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", [b"", b"\0" * 24, b"\xff" * 24, b"abc"])
def test_damaged_index_files_are_ignored(segment: Segment, suffix: str, damage: bytes) -> None:
    segment.put(suffix, damage)
    assert not segment.wrong_offsets([5, 2950])
    assert not segment.wrong_times()


def test_damage_in_the_log_is_detected_with_valid_indexes(segment: Segment) -> None:
    data = bytearray(segment.counted_root.inner.get(segment.key))
    bad = 77
    data[int(segment.headers.position[bad]) + 300] ^= 1
    segment.counted_root.inner.replace(segment.key, bytes(data))  # type: ignore[attr-defined]
    inside = int(segment.headers.base_offset[bad]) + 1
    with pytest.raises(Corrupt) as caught:
        segment.topic.record_at(0, inside)
    assert (caught.value.file, caught.value.position) == (segment.key, int(segment.headers.position[bad]))
    target = max(segment.times[:inside]) + 1
    found = segment.model(target)[0]
    assert found is not None
    assert inside <= found.offset <= int(segment.headers.last_offset[bad])
    with pytest.raises(Corrupt) as caught:
        segment.topic.offset_for_timestamp(target)
    assert caught.value.file == segment.key
    after = int(segment.headers.base_offset[bad + 3])
    assert segment.topic.record_at(0, after)["offset"].to_pylist() == [after]
