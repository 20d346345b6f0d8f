"""Segments as files: Kafka's logs yield Kafka's bytes, and segments end where they must."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from sparklog.compaction import segment_writer
from sparklog.compaction.segment_writer import MAX_SEGMENT_BYTES, SegmentWriter
from sparklog.errors import BadRequest, Unavailable
from sparklog.format import transaction_index
from sparklog.format.batch_scan import scan_headers
from sparklog.format.record_batch import NO_TIMESTAMP, BatchHeader, BatchHeaders
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import ObjectWriter
from tests.support.seeds import examples

FOLDER = "t/sealed/3/00000000000000000007-run"
Written = dict[str, bytes]


def store() -> MemoryStore:
    return MemoryStore(lambda: 1)


def writer_of(place: MemoryStore, **configs: object) -> SegmentWriter:
    given_configs = {name.replace("_", "."): value for name, value in configs.items()}
    return SegmentWriter(place, "t", 3, 7, "run", TopicConfigs.of(given_configs))


def files(place: MemoryStore) -> Written:
    """Return the contents of all files of the run by file name."""
    return {item.key.removeprefix(FOLDER + "/"): place.get(item.key) for item in place.list("")}


def batch(base: int, offsets: int = 1, stamp: int = 1000, payload: int = 0) -> bytes:
    """Return a batch whose payload is not read."""
    return BatchHeader(base, offsets - 1, offsets, stamp, stamp).pack(bytes(payload))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def add(writer: SegmentWriter, data: bytes, headers: BatchHeaders | None = None, flags: int = 0) -> None:
    headers = scan_headers(data) if headers is None else headers
    stamp = int(headers.max_timestamp.min())
    writer.append(data, headers, records=int(headers.count.sum()), min_ts=stamp, flags=flags)


# Topics that a broker wrote without a restart in between, and their configs.
KAFKA_WROTE: list[tuple[str, dict[str, object]]] = [
    ("segments/data/seg-small-0", {"index_interval_bytes": 1024}),
    ("segments/data/seg-small-1", {"index_interval_bytes": 1024}),
    ("segments/data/seg-ms-0", {"index_interval_bytes": 100}),
    ("segments/data/seg-index-full-0", {"index_interval_bytes": 0, "segment_index_bytes": 120}),
    ("segments/data/seg-one-0", {}),
    ("transactions/data/txn-a-0", {}),
    ("transactions/data/txn-b-0", {"index_interval_bytes": 500}),
    ("transactions-tv0/data/txn-b-0", {"index_interval_bytes": 500}),
    ("retention/ms/before/expiring-0", {"index_interval_bytes": 512, "segment_index_bytes": 4096}),
    ("compaction/plain/before/compacted-0", {"index_interval_bytes": 512, "segment_index_bytes": 4096}),
]


@pytest.mark.parametrize("at_once", [1, 3, 10_000])
@pytest.mark.parametrize(("folder", "configs"), KAFKA_WROTE)
def test_kafkas_log_yields_kafkas_files(fixtures: Path, folder: str, configs: dict[str, object], at_once: int) -> None:
    place = store()
    writer = writer_of(place, **configs)
    expected: Written = {}
    for log in sorted((fixtures / folder).glob("*.log")):
        data = log.read_bytes()
        headers = scan_headers(data)
        writer.begin(int(log.stem))
        assert writer.fits(headers) == len(headers)
        for first in range(0, len(headers), at_once):
            add(writer, data, headers[first : first + at_once])
        aborted = log.with_suffix(".txnindex")
        if aborted.exists():
            writer.aborted(transaction_index.parse(aborted.read_bytes(), int(log.stem)))
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            if log.with_suffix(suffix).exists():
                expected[log.stem + suffix] = log.with_suffix(suffix).read_bytes()
    made = writer.close()
    assert files(place) == expected
    assert len(made) == len([name for name in expected if name.endswith(".log")]) > 0


def test_a_full_index_ends_a_segment_where_kafka_ended_it(fixtures: Path) -> None:
    logs = sorted((fixtures / "segments/data/seg-index-full-0").glob("*.log"))
    data = b"".join(log.read_bytes() for log in logs)
    headers = scan_headers(data)
    place = store()
    writer = writer_of(place, index_interval_bytes=0, segment_index_bytes=120)
    writer.begin(0)
    while len(headers):
        many = writer.fits(headers)
        if many < len(headers):
            add(writer, data, headers[:many])
            writer.begin(int(headers.base_offset[many]))
        else:
            add(writer, data, headers)
        headers = headers[many:]
    writer.close()
    assert files(place) == {
        log.stem + suffix: log.with_suffix(suffix).read_bytes()
        for log in logs
        for suffix in (".log", ".index", ".timeindex")
    }


@pytest.mark.parametrize(("step", "most"), [(1, 10), (-1, 16)])
def test_each_index_is_full_by_its_own_count(step: int, most: int) -> None:
    """120 bytes are 15 offset index entries, or 9 time index entries if the timestamps increase with every batch. The
    first batch has no entry.
    """
    for held in range(1, most + 2):
        writer = writer_of(store(), index_interval_bytes=0, segment_index_bytes=120)
        writer.begin(0)
        run = b"".join(batch(i, stamp=1000 + step * i) for i in range(20))
        headers = scan_headers(run)
        fitting_now = min(held, most)
        add(writer, run, headers[:fitting_now])
        for more in range(1, 20 - held):
            assert writer.fits(headers[fitting_now : fitting_now + more]) == min(more, most - fitting_now)


def test_the_metadata_of_a_segment_in_a_commit() -> None:
    place = store()
    writer = writer_of(place)
    writer.begin(100)
    data = batch(105, 2, 2000) + batch(110, 3, 1500)
    headers = scan_headers(data)
    flags = SliceFlag.HAS_NULL_KEYS | SliceFlag.KAFKA_PRODUCERS | 3 << 8
    writer.append(data, headers[:1], records=2, min_ts=1990, flags=int(flags))
    writer.append(data, headers[1:], records=1, min_ts=1400, flags=int(SliceFlag.LOG_APPEND_TIME))
    (made,) = writer.close()
    path = "sealed/3/00000000000000000007-run/00000000000000000100.log"
    kept = SliceFlag.HAS_NULL_KEYS | SliceFlag.KAFKA_PRODUCERS | SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES
    beside = [place.get(f"t/{path.removesuffix('log')}{suffix}") for suffix in ("index", "timeindex")]
    files = b"".join(len(each).to_bytes(8, "big") + each for each in (*beside, b""))
    assert made == FileSlices(
        path=path,
        size=len(data),
        footer_length=0,
        partition=(3,),
        nbytes=(len(data),),
        offsets=(13,),
        records=(3,),
        min_ts=(1400,),
        max_ts=(2000,),
        crc=(crc32c(data),),
        flags=(int(kept),),
        base=(100,),
        shift=(0,),
        append_time=(-1,),
        leader_epoch=(-1,),
        index_crc=(crc32c(files),),
    )
    assert place.get(f"t/{path}") == data


def test_batches_exactly_an_interval_apart_are_not_far_enough() -> None:
    place = store()
    writer = writer_of(place, index_interval_bytes=61)
    writer.begin(0)
    add(writer, b"".join(batch(i) for i in range(6)))
    writer.close()
    assert files(place)[f"{0:020}.index"] == struct.pack(">iiii", 2, 122, 4, 244)


def test_a_file_does_not_exceed_kafkas_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "MAX_SEGMENT_BYTES", 130)
    writer = writer_of(store())
    writer.begin(0)
    run = batch(0) + batch(1) + batch(2)
    with pytest.raises(BadRequest, match="start another"):
        add(writer, run)
    assert writer.fits(scan_headers(run)) == 2
    add(writer, run, scan_headers(run)[:2])
    assert writer.fits(scan_headers(batch(2))) == 0


def test_a_segment_without_timestamps_has_the_time_it_was_changed() -> None:
    place = store()
    writer = writer_of(place, index_interval_bytes=0)
    for base, stamps in ((0, [NO_TIMESTAMP]), (10, [7]), (12, [NO_TIMESTAMP, 9, NO_TIMESTAMP])):
        writer.begin(base)
        for i, stamp in enumerate(stamps):
            own = batch(base + i, 1, stamp)
            writer.append(own, scan_headers(own), records=1, min_ts=stamp, modified_ms=5000)
    writer.begin(20)
    shifted = batch(20, 1, NO_TIMESTAMP) + batch(21, 1, NO_TIMESTAMP)
    writer.append(shifted, scan_headers(shifted), records=2, min_ts=NO_TIMESTAMP)
    found = writer.close()
    assert [(file.min_ts[0], file.max_ts[0]) for file in found] == [(-1, 5000), (7, 7), (9, 9), (-1, -1)]
    assert files(place)["00000000000000000020.timeindex"] == b""
    assert len(files(place)["00000000000000000020.index"]) == 8


def test_segments_without_batches_are_not_written() -> None:
    place = store()
    writer = writer_of(place)
    assert writer.close() == ()
    writer.begin(5)
    writer.append(b"", scan_headers(b""), records=0, min_ts=-1)
    writer.aborted(AbortedTransactions(ints(1), ints(2), ints(6), ints(7)))
    writer.begin(9)
    assert writer.close() == ()
    assert files(place) == {}


def test_the_transaction_index_contains_the_given_entries() -> None:
    place = store()
    writer = writer_of(place)
    entries = AbortedTransactions(ints(7, 8, 7), ints(0, 1, 5), ints(4, 6, 9), ints(1, 5, 10))
    writer.begin(2)
    add(writer, batch(2, 6))
    writer.aborted(entries.select(ints(0)))
    writer.aborted(transaction_index.none())
    writer.aborted(entries.select(ints(1)))
    writer.begin(9)
    add(writer, batch(9))
    writer.aborted(entries.select(ints(2)))
    writer.begin(10)
    add(writer, batch(10))
    writer.close()
    found = files(place)
    assert found["00000000000000000002.txnindex"] == entries.to_bytes()[:68]
    assert found["00000000000000000009.txnindex"] == entries.to_bytes()[68:]
    assert "00000000000000000010.txnindex" not in found


def test_relative_offsets_reach_31_bits_and_no_further() -> None:
    writer = writer_of(store())
    last = 5 + 2**31 - 1
    writer.begin(5)
    near = scan_headers(batch(last) + batch(last + 1))
    assert writer.fits(near) == 1
    assert writer.fits(scan_headers(batch(last + 1))) == 0, "the base is too low for it, though the segment is empty"
    with pytest.raises(BadRequest, match="start another"):
        add(writer, batch(last + 1))
    add(writer, batch(last))
    assert writer.fits(scan_headers(batch(last + 1))) == 0
    writer.begin(last + 1)
    assert writer.fits(scan_headers(batch(last + 1))) == 1


def test_segment_bytes_counts_whole_batches() -> None:
    writer = writer_of(store())
    writer.begin(0)
    run = scan_headers(batch(0, payload=9) + batch(1, payload=9) + batch(2, payload=9))
    assert [writer.fits(run, limit) for limit in (1, 69, 70, 139, 140, 209, 210)] == [1, 1, 1, 1, 2, 2, 3]
    add(writer, batch(0, payload=9))
    more = scan_headers(batch(1, payload=9) + batch(2, payload=9))
    assert [writer.fits(more, limit) for limit in (1, 139, 140, 209, 210)] == [0, 0, 1, 1, 2]
    huge = BatchHeaders(**{name: getattr(more, name) for name in more.__slots__} | {"size": ints(2**31 - 70, 9)})
    assert writer.fits(huge) == 0
    assert MAX_SEGMENT_BYTES == 2**31 - 1


def test_batches_out_of_order_are_rejected() -> None:
    place = store()
    writer = writer_of(place)
    with pytest.raises(BadRequest, match="begin"):
        add(writer, batch(0))
    with pytest.raises(BadRequest, match="begin"):
        writer.fits(scan_headers(batch(0)))
    writer.begin(10)
    for wrong in (batch(9), batch(10, 3) + batch(12)):
        with pytest.raises(BadRequest, match="must follow offset 10"):
            add(writer, wrong)
    apart = batch(10) + batch(11) + batch(12)
    with pytest.raises(BadRequest, match="must be contiguous"):
        add(writer, apart, scan_headers(apart)[[0, 2]])
    add(writer, batch(10))
    with pytest.raises(BadRequest, match="must follow offset 11"):
        add(writer, batch(10))
    writer.discard()
    assert writer.close() == ()
    assert files(place) == {}


def test_discard_deletes_all_segments() -> None:
    """Otherwise, a pass that fails every hour at the same damaged segment would fill the disk with the segments before
    it.
    """
    place = store()
    place.create("t/append/other", b"of somebody else")
    writer = writer_of(place)
    writer.begin(0)
    add(writer, batch(0))
    writer.begin(1)
    add(writer, batch(1))
    assert f"{0:020}.log" in files(place)
    writer.discard()
    assert list(files(place)) == ["t/append/other"]
    assert writer.close() == ()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_discard_deletes_a_log_without_indexes(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = store()
    writer = writer_of(place)
    writer.begin(0)
    add(writer, batch(0))
    opened = place.writer

    def full(key: str) -> ObjectWriter:
        if key.endswith(suffix):
            raise Unavailable("the file system is full")
        return opened(key)

    monkeypatch.setattr(place, "writer", full)
    with pytest.raises(Unavailable):
        writer.close()
    assert f"{0:020}.log" in files(place)
    writer.discard()
    assert files(place) == {}


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_a_background_failure_is_reported_and_leaves_no_files(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "BACKGROUND_BYTES", 0)
    place = store()
    writer = writer_of(place)
    writer.begin(0)
    add(writer, batch(0))
    opened = place.writer

    class Full:
        def write(self, data: bytes) -> None:
            raise Unavailable("the file system is full")

        close = discard = lambda self: None

    if suffix == ".log":
        current = writer._current
        assert current is not None
        assert current.writer is not None
        close = current.writer.close
        monkeypatch.setattr(current.writer, "close", lambda: (close(), Full().write(b"")))
    else:
        monkeypatch.setattr(place, "writer", lambda key: Full() if key.endswith(f"{0:020}{suffix}") else opened(key))
    writer.begin(1)
    add(writer, batch(1))
    with pytest.raises(Unavailable, match="is full"):
        writer.close()
    writer.discard()
    assert files(place) == {}


def test_segments_synced_in_the_background_are_returned_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for least in (0, 1 << 30):
        monkeypatch.setattr(segment_writer, "BACKGROUND_BYTES", least)
        place = store()
        writer = writer_of(place)
        for base in range(5):
            writer.begin(base)
            add(writer, batch(base))
        made.append((writer.close(), files(place)))
    assert made[0] == made[1]
    assert [file.base for file in made[0][0]] == [(base,) for base in range(5)]


def test_a_failed_delete_does_not_hide_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    place = store()
    writer = writer_of(place)
    writer.begin(0)
    add(writer, batch(0))
    writer.finish()

    def refuse(key: str) -> None:
        raise Unavailable(f"cannot delete {key}")

    monkeypatch.setattr(place, "delete", refuse)
    writer.discard()
    assert len(files(place)) == 3


RUNS = st.lists(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-1, 30), st.integers(0, 120)), min_size=1, max_size=12),
    min_size=1,
    max_size=12,
)


@given(RUNS, st.sampled_from([0, 61, 100, 200, 500]), st.integers(0, 15), st.integers(0, 10), st.booleans())
@examples(50, 150)
def test_incremental_indexes_equal_complete_indexes(
    runs: list[list[tuple[int, int, int]]], interval: int, entries: int, base: int, limited: bool
) -> None:
    """The indexes equal the indexes built from all batches, and the roll rule is evaluated before every batch."""
    place = store()
    limit = max(4, entries * 12) if limited else 10 << 20
    writer = writer_of(place, index_interval_bytes=interval, segment_index_bytes=limit)
    writer.begin(base)
    offset, bounds = base, [base]
    sizes: list[list[bytes]] = [[]]
    for run in runs:
        parts = []
        for length, stamp, payload in run:
            parts.append(batch(offset, length, stamp, payload))
            offset += length
        data, waiting = b"".join(parts), parts
        headers = scan_headers(data)
        while len(headers):
            many = writer.fits(headers)
            assert many == fitting(sizes[-1], waiting, bounds[-1], interval, limit)
            if many == 0:
                bounds.append(int(headers.base_offset[0]))
                writer.begin(bounds[-1])
                sizes.append([])
                continue
            add(writer, data, headers[:many])
            sizes[-1] += waiting[:many]
            headers, waiting = headers[many:], waiting[many:]
    made = writer.close()
    assert [file.base[0] for file in made] == bounds
    found = files(place)
    for first, batches in zip(bounds, sizes, strict=True):
        whole = scan_headers(b"".join(batches))
        built = OffsetIndex.build(first, whole.position, whole.last_offset, interval)
        times = TimeIndex.build(first, whole.position, whole.last_offset, whole.max_timestamp, interval)
        assert found[f"{first:020}.log"] == b"".join(batches)
        assert found[f"{first:020}.index"] == built.to_bytes()
        assert found[f"{first:020}.timeindex"] == times.to_bytes()
        assert len(batches) == 1 or len(built) <= limit // 8
        assert len(batches) == 1 or len(times) <= max(limit // 12, 1)


def fitting(held: list[bytes], more: list[bytes], base: int, interval: int, limit: int) -> int:
    """Return how many of `more` Kafka would append to a segment with `held` before it rolls, evaluated before each
    batch.
    """
    count = 0
    while count < len(more):
        there = held + more[:count]
        headers = scan_headers(b"".join(there))
        shape = headers.position, headers.last_offset
        offsets = len(OffsetIndex.build(base, *shape, interval))
        times = len(TimeIndex.build(base, *shape, headers.max_timestamp, interval, closed=False))
        if there and (offsets >= limit // 8 or times >= limit // 12 - 1):
            break
        count += 1
    return count


def test_names_have_twenty_digits_and_positions_are_kafkas() -> None:
    place = store()
    writer = writer_of(place, index_interval_bytes=0)
    writer.begin(2**40)
    add(writer, batch(2**40, 2, 5) + batch(2**40 + 2, 2, 6))
    writer.close()
    assert files(place)[f"{2**40:020}.index"] == struct.pack(">ii", 3, 61)
    assert files(place)[f"{2**40:020}.timeindex"] == struct.pack(">qi", 6, 3)
