"""Test Kafka directories in unusual states, in place and imported, against the results of a 4.1 broker on the
directory.

The tables contain timestamps that no current broker writes, transactions and their markers, gaps of a compacted log,
batches with distant offsets, valid batches whose checksum is 0, truncated files next to the segments, and directories
and files that do not belong to Kafka.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import NotFound
from sparklog.format.batch_scan import scan_headers
from sparklog.format.record_batch import HEADER_BYTES, BatchHeader
from sparklog.kafka.exporting import export_topics
from sparklog.kafka.exporting.run import ExportOptions
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import Root, RootView, open_root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.serve.served_log import FetchPosition, ServedLog
from sparklog.serve.stored_batches import StoredBatches
from sparklog.storage.local import LocalStore
from sparklog.testing.world import World
from sparklog.tools.verification.run import verify_root
from tests.fixture_data import ExpectedRecord
from tests.format.old_messages import message, wrapper
from tests.kafka.logs import HOUR_MS, batch, keyed_batch, marker, read, read_topic, varint, write_partition
from tests.support.compaction import compact_topic

T = HOUR_MS
Rows = list[tuple[int, bytes | None]]


def timed(
    base: int,
    times: Sequence[int],
    *,
    base_time: int | None = None,
    max_time: int | None = None,
    last_delta: int | None = None,
    attributes: int = 0,
) -> bytes:
    """Return a batch of records with these timestamps (ms), or a batch without records, as the cleaner leaves it."""
    start = (times[0] if times else -1) if base_time is None else base_time
    payload = b""
    for delta, time in enumerate(times):
        record = b"\0" + long_varint(time - start) + varint(delta) + b"\x02k\x02v\0"
        payload += varint(len(record)) + record
    last = len(times) - 1 if last_delta is None else last_delta
    greatest = max(times, default=-1) if max_time is None else max_time
    return BatchHeader(base, last, len(times), start, greatest, attributes, leader_epoch=0).pack(payload)


def long_varint(number: int) -> bytes:
    value, out = (number << 1) ^ (number >> 63), bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def views(folder: Path, **options: Any) -> tuple[ServedLog, ServedLog, Root]:
    """Yield the directory and a root that it was imported into, as they are served."""
    root = World(now_ms=2 * T).root()
    import_log_dir(root, folder, ImportOptions(**options))
    return ServedLog(KafkaView(folder), None, None), ServedLog(RootView(root), root, None), root


def rows(records: Sequence[ExpectedRecord]) -> Rows:
    return [(record.offset, record.value) for record in records]


# ---------------------------------------------------------------- times

TIE = [message(0, b"k", b"a", timestamp=T), *(message(i, b"k", b"b", timestamp=T + 9) for i in (1, 2))]
APPENDED = b"".join(message(i, b"k", b"a", timestamp=i) for i in (0, 1))
LATEST = None
TIMES: dict[str, tuple[bytes, dict[int | None, int | None]]] = {
    "greatest time -1 in a header": (
        timed(0, [T, T + 5], max_time=-1) + timed(2, [T + 9]), {T: 2, T + 5: 2, T + 6: 2, T + 10: None, LATEST: 2},
    ),
    "greatest time -1 in the only header": (
        timed(0, [T, T + 5], max_time=-1), {T: None, T + 5: None, T + 6: None, LATEST: None},
    ),
    "greatest time too small": (
        timed(0, [T, T + 5], max_time=T) + timed(2, [T + 2]), {T + 1: 2, T + 3: None, LATEST: 2},
    ),
    "append time, odd deltas": (
        timed(0, [5, 9 * T], attributes=8, max_time=T) + timed(2, [3], attributes=8, max_time=T + 9),
        {T: 0, T + 1: 2, T + 9: 2, T + 10: None, LATEST: 2},
    ),
    "append time, base -1": (
        timed(0, [5, 6], base_time=-1, attributes=8, max_time=T)
        + timed(2, [3], base_time=-1, attributes=8, max_time=T + 9),
        {T: 0, T + 1: 2, LATEST: 2},
    ),
    "an emptied batch alone": (timed(0, [], last_delta=4, max_time=T + 100), {T: None, LATEST: None}),
    "an emptied batch of -1": (timed(0, [], last_delta=4) + timed(5, [T, T + 5]), {T: 5, LATEST: 6}),
    "10^12, then 1": (timed(0, [10**12]) + timed(1, [1]) + timed(2, [2]), {0: 0, 1: 0, 10**12 + 1: None, LATEST: 0}),
    "ties in a v1 set": (wrapper(2, "gzip", b"".join(TIE), timestamp=T + 9), {T + 1: 1, T + 9: 1, LATEST: 1}),
    "v1 sets under append time": (
        wrapper(1, "gzip", APPENDED, timestamp=T, attributes=8)
        + wrapper(3, "gzip", APPENDED, timestamp=T + 5, attributes=8),
        {1: 0, T: 0, T + 1: 2, LATEST: 2},
    ),
    "no time in v0": (message(0, b"k", b"a", magic=0) + message(1, b"k", b"b", timestamp=T), {1: 1, LATEST: 1}),
    "time -1 among others": (timed(0, [T, -1, T + 1]), {0: 0, T + 1: 2, LATEST: 2}),
    "time -1 alone": (timed(0, [-1]), {0: None}),
    "a negative time": (timed(0, [-5, T]), {0: 1, T: 1, LATEST: 1}),
    "greatest time too great": (
        timed(0, [T, T + 5], max_time=T + 10**9) + timed(2, [T + 7]), {T + 6: 2, T + 8: None},
    ),
    "an emptied batch with the greatest time": (
        timed(0, [T, T + 5]) + timed(2, [], last_delta=2, max_time=T + 100) + timed(5, [T + 50]),
        {T + 6: 5, T + 60: None},
    ),
}  # fmt: skip


def test_lookups_by_timestamp_match_a_broker(tmp_path: Path) -> None:
    for number, (data, _) in enumerate(TIMES.values()):
        write_partition(tmp_path, f"t{number}-0", {0: data})
    directory, root, _ = views(tmp_path)
    for number, (name, (_, answers)) in enumerate(TIMES.items()):
        for log in (directory, root):
            found = {}
            for time in answers:
                record = log.record_at(f"t{number}", 0, time, READ_UNCOMMITTED)
                found[time] = None if record is None else record.offset
            assert found == answers, (name, log is root)


# ---------------------------------------------------------------- transactions


def transactions(*steps: tuple[int, str]) -> bytes:
    """Return batches of records of producers, with `commit` and `abort` markers. Producer 0 has no transactions."""
    out, sequences = b"", dict[int, int]()
    for offset, (producer, what) in enumerate(steps):
        if what in ("commit", "abort"):
            out += marker(offset, producer, commit=what == "commit")
            continue
        plain = batch(offset, [what.encode()], producer=producer or -1)
        if producer:
            header = scan_headers(plain).row(0)
            plain = replace(header, base_sequence=sequences.get(producer, 0)).pack(plain[HEADER_BYTES:])
            sequences[producer] = sequences.get(producer, 0) + 1
        out += plain
    return out


TRANSACTIONS: dict[str, tuple[bytes, str, str]] = {
    "commit, abort, commit": (
        transactions((1, "a"), (1, "commit"), (1, "b"), (1, "abort"), (1, "c"), (1, "commit")), "ac", "abc",
    ),
    "an empty abort between": (
        transactions((1, "a"), (1, "abort"), (1, "abort"), (1, "b"), (1, "abort"), (1, "c"), (1, "commit")), "c", "abc",
    ),
    "an empty commit between": (
        transactions((1, "a"), (1, "abort"), (1, "commit"), (1, "b"), (1, "abort"), (1, "c"), (1, "commit")),
        "c", "abc",
    ),
    "two producers": (
        transactions((1, "a"), (2, "b"), (1, "c"), (1, "abort"), (2, "d"), (2, "commit"), (0, "e")), "bde", "abcde",
    ),
    "open at the end": (transactions((0, "a"), (1, "b"), (0, "c"), (2, "d"), (2, "commit")), "a", "abcd"),
    "markers alone": (transactions((1, "abort"), (2, "commit"), (3, "abort")), "", ""),
    "a marker without data": (transactions((1, "a"), (2, "abort"), (0, "b"), (1, "commit")), "ab", "ab"),
}  # fmt: skip


def test_transactions_match_a_kafka_client(tmp_path: Path) -> None:
    for number, (data, _, _) in enumerate(TRANSACTIONS.values()):
        write_partition(tmp_path, f"t{number}-0", {0: data})
    _, _, root = views(tmp_path)
    view = KafkaView(tmp_path)
    for number, (name, (_, committed, everything)) in enumerate(TRANSACTIONS.items()):
        topic = f"t{number}"
        for isolation, expected in ((READ_COMMITTED, committed), (READ_UNCOMMITTED, everything)):
            for found in (read(view, topic, isolation=isolation), read_topic(root.topic(topic), isolation=isolation)):
                assert b"".join(record.value or b"" for record in found).decode() == expected, (name, isolation)


# ---------------------------------------------------------------- gaps

GAPS = (
    timed(0, [T], last_delta=99)
    + timed(100, [], last_delta=99, max_time=T)
    + BatchHeader(200, 99, 1, T, T, leader_epoch=0).pack(varint(8) + b"\0\0" + varint(50) + b"\x02k\x02v\0")
    + timed(5000, [T])
    + timed(5001, [], last_delta=98, max_time=T)
)


def test_fetch_in_a_gap_continues_after_it(tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: GAPS})
    for log in views(tmp_path, configs={"cleanup.policy": "compact"})[:2]:
        seen = log.poll(["t"])["t"]
        assert seen.ends[0].log_end == 5100
        for start in (0, 1, 50, 99, 150, 250, 251, 300, 4999, 5000, 5001, 5050):
            found, offset = [], start
            while offset < 5100:
                place = FetchPosition("t", seen.topic_id, 0, READ_UNCOMMITTED, offset)
                records = StoredBatches(log).read(place, 5100, 1 << 20, at_least_one=True)
                for part in records.buffers:
                    headers = scan_headers(part)
                    found += [base + 50 * (base == 200) for base in headers.base_offset[headers.count > 0].tolist()]
                assert records.next > offset
                offset = records.next
            assert [base for base in found if base >= start] == [base for base in (0, 250, 5000) if base >= start]


FAR = 2**31 + 5


def test_segment_with_batches_more_than_2_31_offsets_apart(tmp_path: Path) -> None:
    """Old brokers wrote such segments. An export splits them, because a current broker would not load the segment."""
    data = [
        keyed_batch(base, [(key, value)])
        for base, key, value in ((0, b"k", b"a"), (FAR, b"k", b"b"), (FAR + 1, b"l", b"c"))
    ]
    write_partition(tmp_path / "dir", "t-0", {0: b"".join(data)})
    expected: Rows = [(0, b"a"), (FAR, b"b"), (FAR + 1, b"c")]
    root = open_root(LocalStore(tmp_path / "root", durable=False), create=True)
    import_log_dir(root, tmp_path / "dir", ImportOptions(configs={"cleanup.policy": "compact", "retention.ms": "-1"}))
    assert rows(read(KafkaView(tmp_path / "dir"), "t")) == expected
    assert rows(read_topic(root.topic("t"))) == expected
    assert not verify_root(root.store).findings
    export_topics(root, tmp_path / "out", ["t"], ExportOptions())
    for file in (tmp_path / "out" / "t-0").glob("*.log"):
        offsets = scan_headers(file.read_bytes()).last_offset - int(file.stem)
        assert not len(offsets) or offsets.max() < 2**31
    assert rows(read(KafkaView(tmp_path / "out"), "t")) == expected
    for _ in range(2):
        compact_topic(root.topic("t"), Settings(now_ms=2 * T), InProcess(), CompactOptions(roll=True))
    assert rows(read_topic(root.topic("t"))) == expected[1:]


# ---------------------------------------------------------------- checksums and indexes


def with_crc(wanted: int, base: int) -> bytes:
    """Return a valid batch with this CRC-32C. Four bytes of its value are chosen to match (CRCs are linear)."""

    def made(value: int) -> bytes:
        return batch(base, [struct.pack(">I", value)])

    def crc_of(value: int) -> int:
        return int(struct.unpack_from(">I", made(value), 17)[0])

    zero = crc_of(0)
    left, chosen, basis = zero ^ wanted, 0, list[tuple[int, int]]()
    for bit in range(32):
        crc, value = crc_of(1 << bit) ^ zero, 1 << bit
        for other, its in basis:
            if crc ^ other < crc:
                crc, value = crc ^ other, value ^ its
        basis = sorted([*basis, (crc, value)], reverse=True) if crc else basis
    for crc, value in basis:
        if left ^ crc < left:
            left, chosen = left ^ crc, chosen ^ value
    assert left == 0
    return made(chosen)


@pytest.mark.parametrize("crc", [0, 0xFFFFFFFF])
def test_checksum_of_all_zeros_or_ones_is_valid(tmp_path: Path, crc: int) -> None:
    odd = with_crc(crc, 0)
    assert scan_headers(odd).crc.tolist() == [crc]
    for name, data in (("a", odd + batch(1, [b"x"])), ("b", batch(0, [b"x"]) + with_crc(crc, 1)),
                       ("c", batch(0, [b"x"]) + with_crc(crc, 1) + bytes(4096))):  # fmt: skip
        write_partition(tmp_path, f"{name}-0", {0: data})
    _, _, root = views(tmp_path)
    for name in "abc":
        assert [offset for offset, _ in rows(read(KafkaView(tmp_path), name))] == [0, 1]
        assert [offset for offset, _ in rows(read_topic(root.topic(name)))] == [0, 1]
    assert not verify_root(root.store).findings


@pytest.mark.parametrize(
    "content",
    [bytes(1 << 20), bytes(8), os.urandom(4096), b"\1\2\3\4\5", struct.pack(">ii", -7, 100)],
    ids=["preallocated", "an entry of zeros", "garbage", "half an entry", "below the base"],
)
def test_wrong_index_does_not_hide_records(tmp_path: Path, content: bytes) -> None:
    data = b"".join(batch(1000 + at, [b"v" * 200], timestamp=T + at) for at in range(200))
    folder = write_partition(tmp_path, "t-0", {1000: data})
    for suffix in ("index", "timeindex"):
        (folder / f"{1000:020}.{suffix}").write_bytes(content)
    directory, root, _ = views(tmp_path)
    for log in (directory, root):
        record = log.record_at("t", 0, T + 150, READ_UNCOMMITTED)
        assert record is not None
        assert record.offset == 1150
        part, _ = log.plan(OffsetRange("t", 0, 1150, 1152), READ_UNCOMMITTED, 1 << 20)
        assert part is not None
        assert [offset for piece in part.read(["offset"]) for offset in piece.column("offset").to_pylist()] == [
            1150,
            1151,
        ]


# ---------------------------------------------------------------- files beside the segments


def epoch(base: int, value: bytes, number: int) -> bytes:
    plain = batch(base, [value])
    return replace(scan_headers(plain).row(0), leader_epoch=number).pack(plain[HEADER_BYTES:])


FIRST = epoch(0, b"a", 0) + epoch(1, b"b", 3)
SECOND = epoch(2, b"c", 5) + epoch(3, b"d", 5)
ALL: Rows = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
EPOCH_FILES = {
    "missing": None,
    "empty": "",
    "cut off": "0\n3\n0 0\n3 1\n",
    "cut off in a number": "0\n3\n0 0\n3 1\n5 ",
    "a line too many": "0\n2\n0 0\n3 1\n5 2\n",
    "garbage": "\0\0\0\0\0\0\0\0",
    "epochs that fall": "0\n3\n0 0\n5 2\n3 1\n",
    "version 7": "7\n1\n0 0\n",
    "beyond the end": "0\n2\n0 0\n9 900\n",
    "of another log": "0\n1\n77 0\n",
    "without a last newline": "0\n3\n0 0\n3 1\n5 2",
    "with CRLF": "0\r\n3\r\n0 0\r\n3 1\r\n5 2\r\n",
}


def test_leader_epochs_come_from_the_batches(tmp_path: Path) -> None:
    for number, text in enumerate(EPOCH_FILES.values()):
        folder = write_partition(tmp_path / "dir", f"t{number}-0", {0: FIRST, 2: SECOND})
        if text is not None:
            (folder / "leader-epoch-checkpoint").write_text(text)
    root = open_root(LocalStore(tmp_path / "root", durable=False), create=True)
    import_log_dir(root, tmp_path / "dir", ImportOptions(configs={"retention.ms": "-1"}))
    names = [f"t{number}" for number in range(len(EPOCH_FILES))]
    export_topics(root, tmp_path / "out", names, ExportOptions(keep_leader_epochs=True))
    for topic, name in zip(names, EPOCH_FILES, strict=True):
        assert rows(read(KafkaView(tmp_path / "dir"), topic)) == ALL, name
        assert rows(read_topic(root.topic(topic))) == ALL, name
        exported = (tmp_path / "out" / f"{topic}-0" / "leader-epoch-checkpoint").read_text()
        assert exported.split() == ["0", "3", "0", "0", "3", "1", "5", "2"], name


FOLDERS = (
    "lost+found", "t-0.5a5cb1f3c0f94e1d9c3d3e0b1a2b3c4d-stray", "x-0.0123456789abcdef0123456789abcdef-delete",
    "y-1.0123456789abcdef0123456789abcdef-future", ".snapshot", "not a topic", "a.b-c", "noparts-", "-3", "w-1x",
    "remote-log-index-cache", ".Trash-1000", "t-0.backup", "K8s..data", "kafka-log1",
)  # fmt: skip
FILES = (
    "meta.properties", ".lock", "cleaner-offset-checkpoint.tmp", "bootstrap.checkpoint", "notes.txt",
    ".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint",
)  # fmt: skip
BESIDE_SEGMENTS = (
    ".nfs000000000123", "00000000000000000002.log.orig", "00000000000000000009.log~", "x.log", "0.log",
    "00000000000000000007.log.deleted", "00000000000000000007.index.deleted", "leader-epoch-checkpoint.tmp",
    "00000000000000000000.snapshot.deleted", "partition.metadata.tmp", "00000000000000000000.timeindex.swap",
    "00000000000000000001.kafka_cleanshutdown", "remote_log_snapshot", "00000000000000000002_3.txnindex.cleaned",
)  # fmt: skip


def test_other_files_are_ignored(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "t-0", {0: FIRST, 2: SECOND})
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    for name in ("t-0.5a5cb1f3c0f94e1d9c3d3e0b1a2b3c4d-stray", "x-0.0123456789abcdef0123456789abcdef-delete"):
        (tmp_path / name / f"{0:020}.log").write_bytes(FIRST)
    for name in FILES:
        (tmp_path / name).touch()
    for name in BESIDE_SEGMENTS:
        (folder / name).write_bytes(b"junk")
    (folder / "lost+found").mkdir()
    assert KafkaView(tmp_path).topics() == ["t"]
    root = World(now_ms=2 * T).root()
    import_log_dir(root, tmp_path)
    assert root.topics() == ["t"]
    assert rows(read(KafkaView(tmp_path), "t")) == rows(read_topic(root.topic("t"))) == ALL


@pytest.mark.parametrize("content", [None, b"", b"\1" * 40])
def test_transactions_are_read_despite_a_damaged_producer_snapshot(tmp_path: Path, content: bytes | None) -> None:
    folder = write_partition(tmp_path, "t-0", {0: transactions((9, "t"), (8, "u"), (9, "commit"))})
    if content is not None:
        (folder / f"{3:020}.snapshot").write_bytes(content)
    _, _, root = views(tmp_path)
    assert rows(read(KafkaView(tmp_path), "t", isolation=READ_COMMITTED)) == [(0, b"t")]
    assert rows(read_topic(root.topic("t"), isolation=READ_COMMITTED)) == [(0, b"t")]
    assert root.topic("t").log.state().kafka_open


# ---------------------------------------------------------------- logs that are difficult for the cleaner

CLEANED: dict[str, tuple[dict[int, bytes], int, Rows]] = {
    "log start above the active segment's base": (
        {0: keyed_batch(0, [(b"a", b"1"), (b"b", b"1")]),
         2: b"".join(keyed_batch(2 + at, [(key, b"2")]) for at, key in enumerate((b"a", b"b", b"c")))},
        4, [(4, b"2")],
    ),
    "log start at the end": ({0: keyed_batch(0, [(b"a", b"1")]), 2: keyed_batch(2, [(b"a", b"2")])}, 3, []),
    "holes": (
        {0: keyed_batch(0, [(b"a", b"1")]) + keyed_batch(500, [(b"b", b"1")]), 1000: keyed_batch(1000, [(b"a", b"2")]),
         9000: keyed_batch(9000, [(b"b", b"2")]), 10000: keyed_batch(10000, [(b"z", b"1")])},
        0, [(1000, b"2"), (9000, b"2"), (10000, b"1")],
    ),
    "empty segments far apart": (
        {0: b"", 10: b"", 20: keyed_batch(20, [(b"a", b"1")]), FAR: b"", 2 * FAR: b"",
         3 * FAR: keyed_batch(3 * FAR, [(b"a", b"2")]), 3 * FAR + 1: keyed_batch(3 * FAR + 1, [(b"z", b"1")])},
        0, [(3 * FAR, b"2"), (3 * FAR + 1, b"1")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLEANED)
def test_odd_logs_can_be_cleaned(tmp_path: Path, name: str) -> None:
    segments, start, expected = CLEANED[name]
    write_partition(tmp_path, "t-0", segments)
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {start}\n")
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "retention.ms": "-1"}
    _, _, root = views(tmp_path, configs=configs)
    for _ in range(3):
        compact_topic(root.topic("t"), Settings(now_ms=2 * T), InProcess(), CompactOptions(roll=True))
    assert rows(read_topic(root.topic("t"))) == expected
    assert not verify_root(root.store).findings
    with pytest.raises(NotFound):
        root.topic("t").record_at(0, 3 * FAR + 7)
