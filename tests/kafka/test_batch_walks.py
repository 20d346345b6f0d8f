"""Test damaged batches with every caller that reads the batches of a log: all callers report the same damage.

A table contains the cases and the callers. The result of a caller is one line: the offsets that it returned, and `!`
with the number of the batch for which it reported damage. Each caller has one usual result: it stops at damage, skips
the damage, ends the log before the damage, or reports the damage. Other results are in `OTHERS`, with the reason.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import CRC_START, HEADER_BYTES, MAGIC_POSITION
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP, TRUNCATE
from sparklog.limits import Limits
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.names import file_key
from sparklog.log.read.read_plan import read_parts
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.view import READ_UNCOMMITTED, LogView, OffsetRange
from sparklog.log.topic.root import Root, RootView
from sparklog.serve.served_log import FetchPosition, ServedLog
from sparklog.serve.stored_batches import StoredBatches
from sparklog.storage import open_store
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import World
from sparklog.tools.inspection.dump import DumpOptions, dump
from sparklog.tools.inspection.dump_batches import LogOptions
from sparklog.tools.inspection.dump_source import DumpFile
from sparklog.tools.inspection.inspect import inspect_topic
from sparklog.tools.verification.findings import CHECKSUM, CONTENT
from sparklog.tools.verification.kafka_directory import verify_log_dir
from sparklog.tools.verification.run import verify_root
from tests.kafka.logs import HOUR_MS, batch, write_partition

BASES = (0, 2, 4, 6, 8, 10)
END = 12
"""The base offset of the next segment, which contains one record."""
BATCHES = [batch(base, [b"%d" % base, b"%d" % (base + 1)], timestamp=HOUR_MS + base) for base in BASES]
ENV = Env(lambda: 2 * HOUR_MS, lambda: 0, lambda seconds: None, random.Random(1))
BAD = 2
"""The damaged batch, with offsets 4 and 5."""


def flipped(position: int, bit: int = 0) -> bytes:
    data = bytearray(BATCHES[BAD])
    data[position] ^= 1 << bit
    return bytes(data)


def patched(position: int, fmt: str, value: int) -> bytes:
    """Return the batch with a changed header field and a correct checksum."""
    data = bytearray(BATCHES[BAD])
    struct.pack_into(fmt, data, position, value)
    struct.pack_into(">I", data, MAGIC_POSITION + 1, crc32c(bytes(data[CRC_START:])))
    return bytes(data)


SIZE = len(BATCHES[BAD])
CASES: dict[str, bytes] = {
    "no damage": BATCHES[BAD],
    "base offset, a high bit": flipped(5),
    "base offset, a low bit": flipped(7, 1),
    "base offset of batch 0": patched(0, ">q", 0),
    "base offset of batch 3": patched(0, ">q", 6),
    "length, a low bit": flipped(11),
    "length, a high bit": flipped(8, 6),
    "negative length": flipped(8, 7),
    "leader epoch": flipped(13),
    "magic 3": patched(MAGIC_POSITION, ">b", 3),
    "magic 130": patched(MAGIC_POSITION, ">B", 130),
    "magic 1": patched(MAGIC_POSITION, ">b", 1),
    "checksum": flipped(17),
    "a record's byte": flipped(70),
    "codec 7": patched(21, ">h", 7),
    "last offset delta -1": patched(23, ">i", -1),
    "last offset delta 0": patched(23, ">i", 0),
    "last offset delta 3": patched(23, ">i", 3),
    "count -1": patched(57, ">i", -1),
    "count 1": patched(57, ">i", 1),
    "count 3": patched(57, ">i", 3),
    "count 2^31-1": patched(57, ">i", 2**31 - 1),
    "a record's length": patched(HEADER_BYTES, ">b", 126),
    "zeros": bytes(SIZE),
    "garbage": random.Random(3).randbytes(SIZE),
}


def segment_data(name: str) -> bytes:
    return b"".join((*BATCHES[:BAD], CASES[name], *BATCHES[BAD + 1 :]))


@dataclass
class Place:
    """A case in a Kafka directory, and in a slice of two roots. One root is read completely, the other in windows."""

    folder: Path
    root: Root
    windows: Root


POSITIONS = [sum(map(len, BATCHES[:row])) for row in range(len(BATCHES) + 1)]


def row_of(position: int | None) -> str:
    """Return the number of the batch at a position of the segment or of the slice."""
    if position is None:
        return "!?"
    return f"!{next(row for row in reversed(range(len(POSITIONS))) if POSITIONS[row] <= position)}"


def spans(offsets: Iterable[int]) -> list[str]:
    """Format ranges of offsets as `0-3`."""
    found: list[list[int]] = []
    for offset in offsets:
        if found and offset == found[-1][1] + 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return [f"{low}-{high}" if low < high else str(low) for low, high in found]


def answer(offsets: Iterable[int], damage: Iterable[int | None] = ()) -> str:
    return " ".join([*spans(offsets), *map(row_of, damage)])


def scanned(view: LogView, said: list[Skipped]) -> str:
    found: list[int] = []
    try:
        end = view.bounds("t")[0].log_end
        parts = view.plan([OffsetRange("t", 0, 0, end)], READ_UNCOMMITTED)
        for piece in read_parts(parts, ["offset", "value"]):
            found += piece.column("offset").to_pylist()
    except Corrupt as error:
        return answer(found, [error.position])
    return answer(found, [each.position for each in said])


def fetched(log: ServedLog, said: list[Skipped]) -> str:
    found: list[int] = []
    seen = log.poll(["t"])["t"]
    end, start = seen.ends[0].log_end, 0
    try:
        while start < end:
            place = FetchPosition("t", seen.topic_id, 0, READ_UNCOMMITTED, start)
            records = StoredBatches(log).read(place, end, 1 << 20, at_least_one=True)
            headers = scan_headers(b"".join(records.buffers))
            for base, count in zip(headers.base_offset.tolist(), headers.count.tolist(), strict=True):
                found += range(base, base + min(count, 9))
            start = records.next
    except Corrupt as error:
        return answer(found, [error.position])
    return answer(found, [each.position for each in said])


def looked_up(view: LogView) -> str:
    """Return the record that is found for the time of each batch, or the damage."""
    found: list[str] = []
    for base in (*BASES, END):
        try:
            record = view.offsets_for_timestamps("t", {0: HOUR_MS + base}, READ_UNCOMMITTED)[0]
            found.append("none" if record is None else str(record.offset))
        except Corrupt as error:
            found.append(row_of(error.position))
    return " ".join(found)


def inspected(view: LogView) -> str:
    tables = inspect_topic(view, "t")
    found: list[int] = []
    damage: list[int | None] = []
    for row in tables.batches.select(["base_offset", "last_offset", "position", "damage"]).to_pylist():
        if row["damage"] is None:
            found += range(row["base_offset"], row["last_offset"] + 1)
        else:
            damage.append(row["position"])
    stops = (re.fullmatch(r"no batch at byte (\d+): .*", text) for text in tables.files["damage"].to_pylist() if text)
    damage += [int(stop[1]) for stop in stops if stop]
    return answer(found, dict.fromkeys(damage))


def dumped(folder: Path, *, deep: bool) -> str:
    path = folder / "t-0" / f"{0:020}.log"
    file = DumpFile(open_store(path.parent), path.name, str(path), str(path))
    found: list[int] = []
    damage: list[int | None] = []
    try:
        for line in dump([file], DumpOptions(LogOptions(deep=deep))):
            words = line.text.split()
            if words and words[0] == "|":
                found.append(int(words[2]))
            elif words and words[0] in ("baseOffset:", "offset:"):
                position = int(words[words.index("position:") + 1])
                if not line.text.endswith("isvalid: true"):
                    damage.append(position)
                elif not deep:
                    low = int(words[1])
                    found += range(low, int(words[words.index("lastOffset:") + 1]) + 1)
    except Corrupt as error:
        damage.append(error.position)
    rows = dict.fromkeys(map(row_of, damage))
    return " ".join([*spans(found), *rows])


def in_place(policy: str) -> Callable[[Place], str]:
    def caller(place: Place) -> str:
        said: list[Skipped] = []
        return scanned(KafkaView(place.folder, corrupt_records=policy, on_skipped=said.append), said)

    return caller


def in_root(which: str, policy: str) -> Callable[[Place], str]:
    def caller(place: Place) -> str:
        said: list[Skipped] = []
        return scanned(RootView(getattr(place, which), None if policy == FAIL else said.append), said)

    return caller


def served(which: str, policy: str) -> Callable[[Place], str]:
    def caller(place: Place) -> str:
        said: list[Skipped] = []
        if which == "folder":
            view = KafkaView(place.folder, corrupt_records=policy, on_skipped=said.append)
            return fetched(ServedLog(view, None, None), said)
        root = getattr(place, which)
        return fetched(ServedLog(RootView(root, None if policy == FAIL else said.append), root, None), said)

    return caller


def times(which: str, policy: str) -> Callable[[Place], str]:
    def caller(place: Place) -> str:
        if which == "folder":
            return looked_up(KafkaView(place.folder, corrupt_records=policy, on_skipped=lambda skipped: None))
        return looked_up(RootView(getattr(place, which), None if policy == FAIL else lambda skipped: None))

    return caller


def imported(policy: str) -> Callable[[Place], str]:
    def caller(place: Place) -> str:
        root, said = World(now_ms=2 * HOUR_MS).root(), list[Skipped]()
        try:
            import_log_dir(root, place.folder, ImportOptions(corrupt_records=policy), on_skipped=said.append)
        except Corrupt as error:
            return answer([], [error.position])
        got = scanned(RootView(root), [])
        return " ".join([got, *(row_of(each.position) for each in said)])

    return caller


def verified_folder(place: Place) -> str:
    found = verify_log_dir(place.folder, env=ENV).findings
    return answer([], [each.position for each in found if each.kind in (CHECKSUM, CONTENT)])


def verified(which: str) -> Callable[[Place], str]:
    def caller(place: Place) -> str:
        found = verify_root(getattr(place, which).store).findings
        return answer([], dict.fromkeys([each.position for each in found if each.kind in (CHECKSUM, CONTENT)]))

    return caller


@dataclass(frozen=True)
class Caller:
    """A caller. `sound` is its result without damage, and `usual` its result for an invalid batch."""

    call: Callable[[Place], str]
    sound: str
    usual: str


ALL, STOP, PASS, CUT = "0-12", "0-3 !2", "0-3 6-12 !2", "0-3 !2 !0"
NAMED = "!2"
TIMES, NO_TIME, NEXT_TIME = "0 2 4 6 8 10 12", "0 2 !2 !2 !2 !2 12", "0 2 6 6 8 10 12"
CALLERS = {
    "scan of a directory": Caller(in_place(FAIL), ALL, STOP),
    "scan of a directory, skip": Caller(in_place(SKIP), ALL, PASS),
    "scan of a directory, truncate": Caller(in_place(TRUNCATE), ALL, CUT),
    "import": Caller(imported(FAIL), ALL, NAMED),
    "import, skip": Caller(imported(SKIP), ALL, PASS),
    "import, truncate": Caller(imported(TRUNCATE), ALL, CUT),
    "scan": Caller(in_root("root", FAIL), ALL, STOP),
    "scan, skip": Caller(in_root("root", SKIP), ALL, PASS),
    "scan in windows": Caller(in_root("windows", FAIL), ALL, STOP),
    "scan in windows, skip": Caller(in_root("windows", SKIP), ALL, PASS),
    "fetch from a directory": Caller(served("folder", FAIL), ALL, STOP),
    "fetch from a directory, skip": Caller(served("folder", SKIP), ALL, PASS),
    "fetch": Caller(served("root", FAIL), ALL, STOP),
    "fetch, skip": Caller(served("root", SKIP), ALL, PASS),
    "fetch in windows": Caller(served("windows", FAIL), ALL, STOP),
    "fetch in windows, skip": Caller(served("windows", SKIP), ALL, PASS),
    "times in a directory": Caller(times("folder", FAIL), TIMES, NO_TIME),
    "times in a directory, skip": Caller(times("folder", SKIP), TIMES, NEXT_TIME),
    "times": Caller(times("root", FAIL), TIMES, NO_TIME),
    "times, skip": Caller(times("root", SKIP), TIMES, NEXT_TIME),
    "times in windows": Caller(times("windows", FAIL), TIMES, NO_TIME),
    "times in windows, skip": Caller(times("windows", SKIP), TIMES, NEXT_TIME),
    "verify of a directory": Caller(verified_folder, "", NAMED),
    "verify": Caller(verified("root"), "", NAMED),
    "verify in windows": Caller(verified("windows"), "", NAMED),
    "inspection of a directory": Caller(lambda place: inspected(KafkaView(place.folder)), ALL, PASS),
    "inspection": Caller(lambda place: inspected(RootView(place.root)), ALL, PASS),
    "dump-log": Caller(lambda place: dumped(place.folder, deep=False), "0-11", "0-3 6-11 !2"),
    "dump-log of records": Caller(lambda place: dumped(place.folder, deep=True), "0-11", STOP),
}


def callers(*answers: str, of: str = "") -> tuple[str, ...]:
    """Return the callers with one of these usual results whose names begin with `of`."""
    return tuple(name for name, caller in CALLERS.items() if caller.usual in answers and name.startswith(of))


FETCHES = callers(STOP, PASS, of="fetch")
DUMPS = ("dump-log", "dump-log of records")
UNDECODABLE = ("count 1", "a record's length")
"""The header and the checksum of the batch are correct."""
OVERLAP = ("last offset delta 3",)
"""Both batches are complete. The first batch, which has the right offset, claims the offsets of the second."""
OTHERS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    # The checksum of a batch does not cover the leader epoch. A slice has its own checksum.
    ("0-11 !0", ("scan", "scan in windows"), ("leader epoch",)),
    ("!2", ("verify", "verify in windows"), ("leader epoch",)),
    # Batches after a hole in a closed segment are unknown, and so are their timestamps.
    (
        "0 2 !2 !2 !2 !2 !2",
        ("times in a directory",),
        ("length, a low bit", "length, a high bit", "negative length", "magic 130", "zeros", "garbage"),
    ),
    # Like a broker, a fetch returns a batch whose checksum is correct. Headers show which batches have late records.
    (ALL, FETCHES, ("a record's length",)),
    ("0-4 6-12", FETCHES, ("count 1",)),
    ("0 2 !2 6 8 10 12", callers(NO_TIME), UNDECODABLE),
    # As in Kafka's recovery, a batch that cannot be decoded does not end the log.
    (STOP, ("scan of a directory, truncate",), UNDECODABLE),
    ("!2", ("import, truncate",), UNDECODABLE),
    ("0-5 !3", callers(STOP, of="scan"), OVERLAP),
    ("0-5 8-12 !3", callers(PASS, of="scan") + callers(PASS, of="import") + callers(PASS, of="fetch"), OVERLAP),
    ("0-5 !3 !0", callers(CUT), OVERLAP),
    ("!3", callers(NAMED), OVERLAP),
    ("0 2 4 !3 !3 !3 12", callers(NO_TIME), OVERLAP),
    ("0 2 4 8 8 10 12", callers(NEXT_TIME), OVERLAP),
    ("0-12 !3", callers(PASS, of="inspection"), OVERLAP),
    # A consumer of a broker also continues after the last offset that the first batch claims.
    ("0-5 8-12", callers(STOP, of="fetch"), OVERLAP),
    # Kafka's tool prints complete batches regardless of offsets and checksums, and stops where there is no batch.
    ("0-3 65540-65541 6-11", DUMPS, ("base offset, a high bit",)),
    ("0-3 6-7 6-11", DUMPS, ("base offset, a low bit", "base offset of batch 3")),
    ("0-3 0-1 6-11", DUMPS, ("base offset of batch 0",)),
    ("0-7 6-11", ("dump-log",), OVERLAP),
    ("0-11", ("dump-log of records",), OVERLAP),
    (STOP, ("dump-log",), ("length, a low bit", "negative length", "magic 3", "magic 130", "codec 7", "zeros")),
    ("0-3", DUMPS, ("length, a high bit", "garbage")),
    ("0-3 6-11", ("dump-log",), ("last offset delta -1",)),
    ("0-4 6-11", ("dump-log",), ("last offset delta 0",)),
    ("0-11", ("dump-log",), ("count -1", "count 1", "count 3", "count 2^31-1", "a record's length")),
    ("0-11 !2", ("dump-log of records",), ("checksum", "a record's byte")),
)


def expected(caller: str, case: str) -> str:
    for answer, names, cases in OTHERS:
        if caller in names and case in cases:
            return answer
    return CALLERS[caller].sound if case in ("no damage", "leader epoch") else CALLERS[caller].usual


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    write_partition(folder, "t-0", {0: segment_data("no damage"), END: batch(END, [b"last"], timestamp=HOUR_MS + END)})
    return folder


def placed(folder: Path, sound: Path, name: str) -> Place:
    data = segment_data(name)
    write_partition(folder, "t-0", {0: data, END: batch(END, [b"last"], timestamp=HOUR_MS + END)})
    roots = []
    for limits in (Limits(), Limits(span_bytes=300, index_min_bytes=100)):
        root = World(now_ms=2 * HOUR_MS).root()
        import_log_dir(root, sound)
        assert isinstance(root.store, MemoryStore)
        key = file_key("t", root.topic("t").log.snapshot().slices.all().path(0))
        root.store.replace(key, data)
        root.store.limits = limits
        roots.append(root)
    return Place(folder, *roots)


@pytest.mark.parametrize("case", CASES)
def test_callers_agree(tmp_path: Path, sound: Path, case: str) -> None:
    place = placed(tmp_path, sound, case)
    answers = {name: caller.call(place) for name, caller in CALLERS.items()}
    assert answers == {name: expected(name, case) for name in CALLERS}
