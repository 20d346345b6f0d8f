"""One wrong byte in a slice: readers get all valid batches in order, and an error or a report for the corrupt batch.

The tests read a table of log layouts and of bytes of a batch from every offset.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.record_batch import HEADER_BYTES, BatchHeader
from sparklog.kafka.importing.run import import_log_dir
from sparklog.limits import Limits
from sparklog.log.journal.names import file_key
from sparklog.log.read.read_plan import TaskParts, read_parts
from sparklog.log.read.skipped import Skipped, SkippedLog
from sparklog.log.state.view import READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import Root, RootView
from sparklog.opening import open_view, resolve
from sparklog.serve.served_log import FetchPosition, ServedLog
from sparklog.serve.server import open_served
from sparklog.serve.services import ServerMetrics
from sparklog.serve.stored_batches import FetchedRecords, StoredBatches
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import World
from tests.kafka.logs import HOUR_MS, batch, write_partition
from tests.log.rewriting import appended_by_hand
from tests.support.counted_root import CountedRoot
from tests.support.records import small

DENSE = [0, 2, 4, 6, 8, 10]
SPARSE = [0, 2, 7, 9, 40, 50]
"""Base offsets of batches with two records."""
WINDOWS = Limits(span_bytes=300, index_min_bytes=100)
"""A window contains slightly more than two batches."""


@dataclass(frozen=True)
class Layout:
    """A topic in one slice. `end` is its log end offset, and `file` the key of the file that starts with the slice."""

    bases: list[int]
    limits: Limits
    imported: bool = True

    @property
    def offsets(self) -> list[int]:
        return [offset for base in self.bases for offset in (base, base + 1)]


LAYOUTS = {
    "small segment": Layout(DENSE, Limits()),
    "small segment with gaps": Layout(SPARSE, Limits()),
    "segment in windows, without an index": Layout(DENSE, WINDOWS),
    "segment in windows, with gaps, without an index": Layout(SPARSE, WINDOWS),
    "append file": Layout(DENSE, Limits(), imported=False),
    "append file in windows": Layout(DENSE, WINDOWS, imported=False),
}
BYTES = {"base offset": 5, "length": 11, "magic": 16, "checksum": 17, "count": 60, "record": 70}
EPOCH = 13


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(params=list(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


@pytest.fixture
def root(layout: Layout, folder: Path) -> Root:
    return made(layout, folder)


def made(layout: Layout, folder: Path) -> Root:
    root = World().root()
    if layout.imported:
        name = "-".join(map(str, layout.bases))
        data = b"".join(batch(base, [b"a", b"b"], timestamp=HOUR_MS + base) for base in layout.bases)
        write_partition(folder / name, "t-0", {0: data, 60: batch(60, [b"last"])})
        import_log_dir(root, folder / name)
    else:
        topic = root.create_topic("t", configs={"inline.records.bytes": "0"})
        table = pa.table({"value": [b"v" * 30] * 12, "timestamp": pa.array(range(HOUR_MS, HOUR_MS + 12), pa.int64())})
        topic.append(table, options=small(batch_bytes=150))
    root.store.limits = layout.limits
    return root


def slice_file(root: Root) -> str:
    """Return the key of the file that contains the slice from offset 0 on."""
    return file_key("t", root.topic("t").log.snapshot().slices.all().path(0))


def headers_of(root: Root) -> tuple[list[int], list[int], list[int]]:
    """Return the positions, base offsets and next offsets of the slice's batches."""
    rows = root.topic("t").log.snapshot().slices.all()
    data = root.store.get(slice_file(root))[: int(rows.size[0])]
    headers = scan_headers(data)
    return headers.position.tolist(), headers.base_offset.tolist(), headers.next_offset.tolist()


def flip(root: Root, position: int) -> None:
    assert isinstance(root.store, MemoryStore)
    data = bytearray(root.store.get(slice_file(root)))
    data[position] ^= 0x01
    root.store.replace(slice_file(root), bytes(data))


def read(
    root: Root, start: int, end: int | None = None, threads: int = 1, said: list[Skipped] | None = None
) -> tuple[list[int], Corrupt | None]:
    """Read offsets from `start` up to an error, and return them with the error. Skipped ranges are added to `said`."""
    view = RootView(root, None if said is None else said.append)
    end = view.bounds("t")[0].log_end if end is None else end
    found: list[int] = []
    try:
        parts = view.plan([OffsetRange("t", 0, start, end)], READ_UNCOMMITTED)
        for piece in read_parts(parts, ["offset", "value"], threads=threads):
            found += piece.column("offset").to_pylist()
    except Corrupt as error:
        return found, error
    return found, None


def all_offsets(root: Root) -> list[int]:
    found, error = read(root, 0)
    assert error is None
    return found


@pytest.mark.parametrize("byte", BYTES)
def test_valid_batches_are_read_and_the_corrupt_one_is_reported(layout: Layout, folder: Path, byte: str) -> None:
    for bad in range(6):
        root = made(layout, folder)
        good = all_offsets(root)
        positions, bases, ends = headers_of(root)
        flip(root, positions[bad] + BYTES[byte])
        lost = range(bases[bad], ends[bad])
        # In a gap, it is unknown whether the damaged batch extended into it.
        after = bases[bad + 1] if bad + 1 < len(bases) else 60 if layout.imported else 12
        for start in (offset for offset in good if offset not in lost):
            found, error = read(root, start)
            if start >= after:
                assert (found, error) == ([offset for offset in good if offset >= start], None)
                continue
            assert found == [offset for offset in good if start <= offset < bases[bad]]
            assert error is not None
            assert (error.file, error.position) == (slice_file(root), positions[bad])
            assert error.offset in (bases[bad], ends[bad - 1] if bad else 0)
            assert "corruptRecords=skip" in error.message
            assert read(root, start, threads=2)[0] == found
        assert read(root, bases[bad] + 1)[1] is not None
        assert read(root, 0, end=ends[bad - 1] if bad else 0)[1] is None
        said: list[Skipped] = []
        assert read(root, 0, said=said) == ([offset for offset in good if offset not in lost], None)
        (skipped,) = said
        assert (skipped.topic, skipped.partition, skipped.file) == ("t", 0, slice_file(root))
        assert skipped.position == positions[bad]
        assert skipped.start <= bases[bad]
        assert skipped.end is not None
        assert ends[bad] <= skipped.end <= after


def test_damage_outside_of_batch_checksums_is_reported(layout: Layout, root: Root) -> None:
    """If batches cover all offsets, their offsets are certain. If there are gaps, a batch may have moved."""
    good = all_offsets(root)
    positions, _, _ = headers_of(root)
    flip(root, positions[2] + EPOCH)
    found, error = read(root, 0)
    assert error is not None
    assert "although all of its batches are valid" in error.message
    assert error.file == slice_file(root)
    dense = not layout.imported or layout.bases == DENSE
    of_slice = [offset for offset in good if offset < 60]
    if dense and (not layout.imported or layout.limits is WINDOWS):
        assert found == of_slice
    assert read(root, 0, said=[])[1] is None


def test_a_slice_with_a_possibly_wrong_base_offset_is_rejected(folder: Path) -> None:
    root = made(LAYOUTS["small segment with gaps"], folder)
    positions, _, _ = headers_of(root)
    flip(root, positions[2] + 7)  # from 7 to 6, which is in a gap
    found, error = read(root, 0)
    assert found == []
    assert error is not None
    assert "although all of its batches are valid" in error.message
    said: list[Skipped] = []
    assert read(root, 0, said=said) == ([60], None)
    assert [(each.start, each.end) for each in said] == [(0, 52)]


def fetch(batches: StoredBatches, log: ServedLog, start: int, nbytes: int = 1 << 20) -> FetchedRecords:
    seen = log.poll(["t"])["t"]
    place = FetchPosition("t", seen.topic_id, 0, READ_UNCOMMITTED, start)
    return batches.read(place, seen.ends[0].log_end, nbytes, at_least_one=True)


def served(root: Root, skipped: SkippedLog | None = None) -> tuple[ServedLog, StoredBatches]:
    log = ServedLog(RootView(root, skipped), root, None, skipped)
    return log, StoredBatches(log)


def bases_of(records: FetchedRecords) -> list[int]:
    return [int(base) for base in scan_headers(b"".join(records.buffers)).base_offset.tolist()]


def fetched_all(log: ServedLog, batches: StoredBatches, start: int, end: int) -> Iterator[list[int]]:
    while start < end:
        records = fetch(batches, log, start)
        yield bases_of(records)
        start = records.next


@pytest.mark.parametrize("byte", ["base offset", "length", "record"])
def test_a_fetch_returns_the_batches_before_the_corrupt_one(layout: Layout, root: Root, byte: str) -> None:
    positions, bases, _ = headers_of(root)
    end = root.topic("t").bounds()[0].log_end
    flip(root, positions[3] + BYTES[byte])
    log, batches = served(root)
    for start in range(4):
        assert bases_of(fetch(batches, log, bases[start])) == bases[start:3] if start < 3 else True
    with pytest.raises(Corrupt) as caught:
        fetch(batches, log, bases[3])
    assert (caught.value.file, caught.value.position) == (slice_file(root), positions[3])
    got = [base for some in fetched_all(log, batches, bases[4], end) for base in some]
    assert got[: len(bases[4:])] == bases[4:]
    skipped = SkippedLog()
    log, batches = served(root, skipped)
    for _ in range(2):
        got = [base for some in fetched_all(log, batches, 0, end) for base in some]
        assert [base for base in got if base < 60][: len(bases)] == bases[:3] + bases[4:]
    assert len(skipped) == 1


def test_a_time_lookup_passes_corrupt_batches_only_if_they_are_skipped(root: Root) -> None:
    positions, bases, _ = headers_of(root)
    flip(root, positions[3] + BYTES["record"])

    def found(view: RootView, base: int) -> int | None:
        answer = view.offsets_for_timestamps("t", {0: HOUR_MS + base}, READ_UNCOMMITTED)[0]
        return None if answer is None else answer.offset

    assert found(RootView(root), bases[2]) == bases[2]
    with pytest.raises(Corrupt):
        found(RootView(root), bases[3])
    said: list[Skipped] = []
    assert found(RootView(root, said.append), bases[3]) == bases[4]
    assert len(said) == 1


def test_a_consumer_reads_the_records_before_and_after_a_corrupt_batch(layout: Layout, root: Root) -> None:
    good = all_offsets(root)
    positions, bases, _ = headers_of(root)
    flip(root, positions[3] + BYTES["record"])
    with sparklog.consumer(root, topics="t", auto_offset_reset="earliest") as consumer:
        got: list[int] = []

        def poll() -> list[int]:
            found = [offset for piece in consumer.poll(1) for offset in piece.column("offset").to_pylist()]
            got.extend(found)
            return found

        with pytest.raises(Corrupt):
            all(poll() for _ in range(100))
        assert got == [offset for offset in good if offset < bases[3]]
        assert consumer.position("t", 0) == bases[3]
        consumer.seek("t", 0, bases[4])
        got.clear()
        while len(got) < len(good) - 8:
            poll()
        assert got == good[8:]


def test_an_undecodable_record_affects_only_its_batch(tmp_path: Path) -> None:
    """Its checksums are valid, so the writer was defective."""
    memory = CountedRoot("memory", tmp_path)
    odd = BatchHeader(2, 1, 2, HOUR_MS, HOUR_MS, leader_epoch=0).pack(b"\xff" * 20)
    appended_by_hand(memory, memory.topic(1), [batch(0, [b"a", b"b"]), odd, batch(4, [b"c"])])
    found, error = read(memory.root, 0)
    assert found == [0, 1]
    assert error is not None
    assert (error.position, error.offset) == (len(batch(0, [b"a", b"b"])) + HEADER_BYTES, 2)
    assert read(memory.root, 4) == ([4], None)
    said: list[Skipped] = []
    assert read(memory.root, 0, said=said, threads=2) == ([0, 1, 4], None)
    assert [(each.start, each.end, each.nbytes) for each in said] == [(2, 4, len(odd))]


def test_intact_slices_next_to_a_damaged_one_are_read(tmp_path: Path) -> None:
    memory = CountedRoot("memory", tmp_path)
    topic = memory.topic(1, {"inline.records.bytes": "0"})
    for value in (b"first", b"second", b"third"):
        topic.append({"value": [value]})
    key = next(key for key in memory.append_files() if b"second" in memory.inner.get(key))
    assert isinstance(memory.inner, MemoryStore)
    memory.inner.replace(key, memory.inner.get(key).replace(b"second", b"Second"))
    for threads in (1, 2):
        found, error = read(memory.root, 0, threads=threads)
        assert (found, error is not None and error.offset) == ([0], 1)
        assert read(memory.root, 2, threads=threads) == ([2], None)
        assert read(memory.root, 0, threads=threads, said=[]) == ([0, 2], None)


def test_tasks_skip_corrupt_batches_and_log_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reads like Spark's data source: plans are pickled, and tasks log skipped ranges."""
    made_on_disk(tmp_path)
    view = open_view(resolve(str(tmp_path / "root")), tailing=False, corrupt_records="skip")
    parts = TaskParts(view.plan([OffsetRange("t", 0, 0, 3)], READ_UNCOMMITTED))
    tasks = pickle.loads(pickle.dumps(parts))
    found = [offset for piece in read_parts(tasks, ["offset"]) for offset in piece.column("offset").to_pylist()]
    assert found == [0, 2]
    (line,) = caplog.messages
    assert line.startswith("sparklog: skipped corrupt offsets 1 to 1 of t-0: the batch's CRC-32C does not match")
    with pytest.raises(Corrupt):
        list(read_parts(open_view(resolve(str(tmp_path / "root")), tailing=False).plan(
            [OffsetRange("t", 0, 0, 3)], READ_UNCOMMITTED), ["value"]))  # fmt: skip


def made_on_disk(folder: Path) -> None:
    """Return a root and a Kafka log directory in which the second of three batches is damaged."""
    topic = sparklog.open(folder / "root", create=True).create_topic("t", configs={"inline.records.bytes": "0"})
    for value in (b"first", b"second", b"third"):
        topic.append({"value": [value]}, options=small())
    file = next(path for path in (folder / "root/t/append").iterdir() if b"second" in path.read_bytes())
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b"second", b"Second"))
    data = b"".join(batch(base, [value]) for base, value in enumerate((b"first", b"second", b"third")))
    write_partition(folder / "dir", "t-0", {0: data.replace(b"second", b"Second")})


@pytest.mark.parametrize("name", ["root", "dir"])
def test_serve_skips_corrupt_batches_and_logs_them_once(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    made_on_disk(tmp_path)
    location = resolve(str(tmp_path / name))
    log = open_served(location)
    assert bases_of(fetch(StoredBatches(log), log, 0)) == [0]
    with pytest.raises(Corrupt):
        fetch(StoredBatches(log), log, 1)
    assert bases_of(fetch(StoredBatches(log), log, 2)) == [2]
    assert not caplog.messages
    log = open_served(location, corrupt_records="skip")
    for _ in range(3):
        assert [base for some in fetched_all(log, StoredBatches(log), 0, 3) for base in some] == [0, 2]
    assert len(log.skipped) == len(caplog.messages) == 1
    assert "sparklog_serve_skipped_total 1\n" in ServerMetrics().text(0, len(log.skipped))
    if name == "root":
        with pytest.raises(BadRequest, match="use fail or skip"):
            open_served(location, corrupt_records="truncate")
