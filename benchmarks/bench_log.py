"""The log without Spark: opening a topic with 100,000 commits, seeking, appending and scanning as plain Python.

Run: `python benchmarks/bench_log.py [--rows N] [--commits N] [--rounds N] [--quick] [--throughput]`. One thread, a
local disk (its page cache warm). Throughput is CPU seconds of the process, contenders taking turns in every round (A,
B, then B, A), the median counts, and what matters is the ratio within the run. The yardstick is Parquet through pyarrow
with the same columns: a format without offsets, headers and checksums of batches. What bounds a ratio takes turns too:
the codec, the checksum and the move of the same bytes alone, which is a write of new files, or a read and one copy.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparklog.format import compression
from sparklog.format.append_file import TRAILER_BYTES, footer_length
from sparklog.format.batch_scan import scan_headers
from sparklog.format.compression import LZ4_BLOCK
from sparklog.format.crc32c import crc32c
from sparklog.format.kernels.warm import warm_up
from sparklog.format.record_batch import HEADER_BYTES, Codec
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.journal.documents import INLINE_RECORDS
from sparklog.log.journal.names import append_path, checkpoint_key, commit_key
from sparklog.log.state.checkpoint import Checkpoint, encode_checkpoint, write_slice_table
from sparklog.log.state.commit import APPEND, CREATE, Commit, InlineRecords
from sparklog.log.state.commit_object import decode_commit, encode_commit
from sparklog.log.state.slice_table import SliceTable, Snapshot
from sparklog.log.state.slices import INLINE_PATH, FileSlices
from sparklog.log.state.topic_state import EMPTY
from sparklog.log.topic.root import open_root
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import WriteOptions
from sparklog.storage.local import LocalStore
from sparklog.testing.wrapper_stores import CountingStore

PARTITIONS = 16
TAIL_COMMITS = 120
START_MS = 1_700_000_000_000
OPEN = """
import resource, sys, time
from sparklog.log.topic.root import RootView, open_root
from sparklog.log.state.view import OffsetRange
import pyarrow, numpy, crc32c
from sparklog.log.read import topic_scan
began, cpu = time.perf_counter(), time.process_time()
snapshot = open_root(sys.argv[1]).topic("many").log.snapshot()
rows = len(snapshot.slices)
opened, cpu = time.perf_counter() - began, time.process_time() - cpu
view = RootView(open_root(sys.argv[1]))
ranges = [OffsetRange("many", number, 0, bounds.log_end) for number, bounds in view.bounds("many").items()]
began = time.perf_counter()
assert view.plan(ranges, "read_committed")
planned = time.perf_counter() - began
print(opened, cpu, planned, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, rows, snapshot.version)
"""


def table_of(rows: int, value_bytes: int) -> pa.Table:
    """16-byte keys and values that look like small JSON events, times that go up."""
    choose = random.Random(1)
    words = ["cart", "view", "order", "paid", "refund", "login", "search", "click", "ship", "return"]
    keys, values = [], []
    for index in range(rows):
        text = f'{{"id":{index},"type":"{choose.choice(words)}","user":{choose.randrange(10**6)},"note":"'
        while len(text) < value_bytes - 2:
            text += f"{choose.choice(words)}-{choose.randrange(10**5):x} "
        keys.append(b"user-%011d" % choose.randrange(10**6))
        values.append((text[: value_bytes - 2] + '"}').encode())
    times = pa.array(START_MS + np.arange(rows) // 50, pa.timestamp("ms", tz="UTC"))
    return pa.table({"key": pa.array(keys), "value": pa.array(values), "timestamp": times})


def contest(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each, taking turns."""
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name in list(contenders)[:: 1 if turn % 2 == 0 else -1]:
            before = time.process_time()
            contenders[name]()
            if turn:
                spent[name].append(time.process_time() - before)
    return {name: statistics.median(figures) for name, figures in spent.items()}


def bench_throughput(folder: Path, rows: int, value_bytes: int, codec: Codec, rounds: int) -> None:
    """Append a table to 16 partitions and scan it, against writing and reading Parquet."""
    place = folder / f"{codec}-{value_bytes}"
    table = table_of(rows, value_bytes)
    parquet: dict[str, float] = {}
    for what, contenders in throughput_contenders(place, table, codec).items():
        seconds = contest(contenders, rounds)
        parquet[what] = seconds["parquet"]
        mega = table.nbytes / 1e6
        for name, spent in seconds.items():
            ratio = f"   sparklog is {spent / seconds['sparklog']:.2f}x" if name != "sparklog" else ""
            print(
                f"{what:6}  {codec:6}  16 + {value_bytes} bytes  {name:8}  {spent:6.3f} CPU s  "
                f"{rows / spent / 1e6:6.2f} M records/s  {mega / spent:7.0f} MB/s{ratio}"
            )
    bench_codec_alone(place / "root" / "t0", codec, parquet, rounds)
    shutil.rmtree(place)


def throughput_contenders(
    folder: Path, table: pa.Table, codec: Codec, *, durable: bool = False
) -> dict[str, dict[str, Callable[[], object]]]:
    """Return what appends and scans: `sparklog`, a new topic of 16 partitions each time, and `parquet` by pyarrow."""
    rows = len(table)
    batches = table.to_batches(max_chunksize=10_000)
    root = open_root(LocalStore(str(folder / "root"), durable=durable), create=True)
    number = iter(range(10**6))
    topics: list[Topic] = []
    files: list[Path] = []

    def append() -> None:
        topics.append(root.create_topic(f"t{next(number)}", partitions=PARTITIONS, configs={"retention.ms": -1}))
        topics[-1].append(batches, options=WriteOptions(codec=codec))

    def write_parquet() -> None:
        files.append(folder / f"yardstick-{next(number)}.parquet")
        pq.write_table(table, files[-1], compression=codec, use_dictionary=False)

    def scan() -> None:
        columns = ["key", "value", "partition", "offset", "timestamp", "timestampType"]
        if sum(batch.num_rows for batch in topics[-1].scan(columns=columns)) != rows:
            raise SystemExit("a scan lost records: nothing was measured")

    def read_parquet() -> None:
        with pq.ParquetFile(files[-1]) as file:
            if sum(batch.num_rows for batch in file.iter_batches(use_threads=False)) != rows:
                raise SystemExit("Parquet lost records: nothing was measured")

    return {
        "append": {"sparklog": append, "parquet": write_parquet},
        "scan": {"sparklog": scan, "parquet": read_parquet},
    }


def bench_codec_alone(topic: Path, codec: Codec, seconds: Mapping[str, float], rounds: int) -> None:
    """Measure the bound of an append and a scan: codec, checksum and move of the same bytes, and nothing else.

    `seconds`: Parquet's for `append` and `scan`.
    """
    stored, plain = [], []
    written = {path: path.read_bytes() for path in sorted(topic.rglob("*.slices"))}
    for whole in written.values():
        data = memoryview(whole)
        data = data[: -footer_length(bytes(data[-TRAILER_BYTES:]))]
        headers = scan_headers(data)
        for position, size in zip(headers.position.tolist(), headers.size.tolist(), strict=True):
            stored.append(data[position + HEADER_BYTES : position + size])
            plain.append(compression.decompress(codec, stored[-1]))
    out = memoryview(bytearray(2 * max(map(len, plain))))
    blocks = [part[i : i + LZ4_BLOCK] for part in plain for i in range(0, len(part), LZ4_BLOCK)]
    raw = pa.Codec("lz4_raw") if codec == "lz4" else pa.Codec("zstd", compression_level=1)

    def spent_on(function: Callable[[Any], object], parts: Sequence[Any]) -> Callable[[], object]:
        return lambda: deque(map(function, parts), maxlen=0)

    def opened(part: memoryview) -> int:
        return compression.open_stream(codec, part)[1](out)

    def decompressed(packed: tuple[Any, int]) -> pa.Buffer:
        return raw.decompress(*packed)

    if codec == "none":
        packing = unpacking = {}
    elif codec == "lz4":
        packed = [(cramjam.lz4.compress_block(block, store_size=False), len(block)) for block in blocks]
        packing = {
            "sparklog": spent_on(partial(compression.compress, codec), plain),
            "cramjam": spent_on(partial(cramjam.lz4.compress_block, store_size=False), blocks),
            "pyarrow": spent_on(raw.compress, blocks),
        }
        unpacking = {
            "sparklog": spent_on(opened, stored),
            "cramjam, frames": spent_on(lambda part: cramjam.lz4.decompress_into(part, out), stored),
            "pyarrow": spent_on(decompressed, packed),
            "lz4, frames": spent_on(partial(compression.decompress, codec), stored),
        }
    else:
        packing = {
            "sparklog": spent_on(partial(compression.compress, codec), plain),
            "cramjam": spent_on(lambda part: cramjam.zstd.compress(part, 1), plain),
            "pyarrow": spent_on(raw.compress, plain),
        }
        unpacking = {
            "sparklog": spent_on(opened, stored),
            "cramjam": spent_on(lambda part: cramjam.zstd.decompress_into(part, out), stored),
            "pyarrow": spent_on(decompressed, [*zip(stored, map(len, plain), strict=True)]),
        }

    write_files, read_files = moves_alone(topic / "alone", written, plain, out)
    for what, contenders, move in (("append", packing, write_files), ("scan", unpacking, read_files)):
        alone = contest({**contenders, "crc32c": spent_on(crc32c, stored), "bytes": move}, rounds)
        least = alone.get("sparklog", 0.0) + alone["crc32c"] + alone["bytes"]
        figures = ", ".join(f"{name} {spent:.3f}" for name, spent in alone.items())
        print(f"{what:6}  {codec:6}  alone, CPU s: {figures}; at best {seconds[what] / least:.2f}x")


def moves_alone(
    place: Path, written: Mapping[Path, bytes], plain: Sequence[bytes], out: memoryview
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return what writes files, and what reads them and copies what they hold once.

    Both take memory that was used before: fresh pages can cost more than all else.
    """
    room = memoryview(bytearray(max(map(len, written.values()))))

    def write_files() -> None:
        for data in written.values():
            place.write_bytes(data)
        place.unlink()

    def read_files() -> None:
        for path, data in written.items():
            with path.open("rb") as file:
                file.readinto(room[: len(data)])
        for part in plain:
            out[: len(part)] = part

    return write_files, read_files


def bench_seeks(folder: Path, rows: int, seeks: int) -> None:
    """A record by offset, and an offset by time: ranged reads of data and milliseconds, snapshot included."""
    store = CountingStore(LocalStore(str(folder / "seeks"), durable=False))
    topic = open_root(store, create=True).create_topic("seeks")
    topic.append(table_of(rows, 1000), options=WriteOptions(codec="lz4"))
    choose = random.Random(3)
    last = START_MS + (rows - 1) // 50

    def by_offset() -> None:
        topic.record_at(0, choose.randrange(rows))

    def by_time() -> None:
        topic.offset_for_timestamp(choose.randrange(START_MS, last), 0)

    for name, seek in (("offset", by_offset), ("time", by_time)):
        seek()
        spent, reads, nbytes = [], [], []
        for _ in range(seeks):
            store.reset()
            before = time.perf_counter()
            seek()
            spent.append((time.perf_counter() - before) * 1000)
            reads.append(sum("/append/" in key for _, key in store.keys))
            nbytes.append(store.bytes_read)
        print(
            f"seek by {name:6}  {rows} records of 1 KB  {statistics.median(spent):6.2f} ms median, "
            f"{max(spent):6.2f} ms at most; {max(reads)} ranged reads at most, "
            f"{statistics.median(nbytes) / 1024:.0f} KiB median"
        )


def bench_commits(folder: Path, appends: int, rounds: int) -> None:
    """Append one record after the other, durably, as commits with records in them and as files, taking turns."""
    root = open_root(LocalStore(str(folder / "commits")), create=True)
    table = pa.table({"key": [b"user-00000000001"], "value": [b"v" * 100]})
    forms = {"records in commits": 16384, "files": 0}
    topics = {
        form: root.create_topic(f"t{size}", configs={"inline.records.bytes": size}) for form, size in forms.items()
    }
    spent: dict[str, list[float]] = {form: [] for form in topics}
    for turn in range(rounds + 1):
        for form, topic in list(topics.items())[:: 1 if turn % 2 == 0 else -1]:
            before = time.perf_counter()
            for _ in range(appends):
                topic.append(table)
            if turn:
                spent[form].append((time.perf_counter() - before) / appends)
    for form, seconds in spent.items():
        rates = [1 / second for second in seconds]
        print(f"commit  one record each ({form}): {statistics.median(rates):.0f} a second, {max(rates):.0f} at most")


def many_commits(folder: Path, commits: int, inline: bool) -> Path:
    """A topic of `commits` commits of one slice, as it lies on disk: its newest checkpoint and the commits since.

    `inline`: the slices are in the commits. Commits below the checkpoint are not written: opening neither lists nor
    reads them.
    """
    place = folder / f"many-{inline}"
    records = bytes(4096 + 84)
    root = open_root(LocalStore(str(place), durable=False), create=True)
    state, table = EMPTY, SliceTable()
    for version in range(commits + 1):
        path = INLINE_PATH if inline else append_path(max(version - 1, 0), f"A{version:021d}")
        file = FileSlices(
            path, 4096 + 84, 84, (version % PARTITIONS,), (4096,), (30,), (30,), (START_MS,), (START_MS + version,),
            (version,), (0,), (max(version - 1, 0) // PARTITIONS * 30,),
        )  # fmt: skip
        if version:
            end = int(state.log_end[version % PARTITIONS])
            file = file.with_base((end,))
        commit = Commit(
            version=version,
            topic_id="AAAAAAAAAAAAAAAAAAAAAA",
            commit_id=f"B{version:021d}",
            prev_crc=state.crc if version else None,
            time_ms=START_MS + version,
            leader_epoch=0,
            op=APPEND if version else CREATE,
            files=(file,) if version else (),
            inline=InlineRecords.of(records) if version and inline else None,
            read_features=(INLINE_RECORDS,) if inline else (),
            write_features=(INLINE_RECORDS,) if inline else (),
            partitions=None if version else PARTITIONS,
        )
        data = encode_commit(commit)
        commit = decode_commit(data, commit_key("many", version), version)
        state = state.apply(commit)
        table = table.apply(commit, state)
        if version == commits - TAIL_COMMITS:
            snapshot = Snapshot("many", root.store, state, table)
            checkpoint = Checkpoint(state, write_slice_table(root.store, snapshot, SYSTEM.new_id()))
            root.store.create(checkpoint_key("many", version), encode_checkpoint(checkpoint))
        if version > commits - TAIL_COMMITS:
            root.store.create(commit_key("many", version), data)
    return place


def bench_open(folder: Path, commits: int, rounds: int) -> None:
    """Open a topic in a fresh process, imports apart, until the slice table is there."""
    for inline in (False, True):
        _bench_open(many_commits(folder, commits, inline), commits, rounds, "records in commits" if inline else "files")


def _bench_open(place: Path, commits: int, rounds: int, form: str) -> None:
    wall, cpu, planning, memory = [], [], [], []
    for _ in range(rounds):
        answer = subprocess.run(
            [sys.executable, "-c", OPEN, str(place)], capture_output=True, text=True, check=True
        ).stdout.split()
        if answer[4:] != [str(commits), str(commits)]:
            raise SystemExit(f"expected {commits} slices, found {answer[4:]}: nothing was measured")
        wall.append(float(answer[0]) * 1000)
        cpu.append(float(answer[1]) * 1000)
        planning.append(float(answer[2]) * 1000)
        memory.append(float(answer[3]) / 1024)
    print(
        f"open  {commits} commits of one slice ({form}), {TAIL_COMMITS} since the checkpoint: "
        f"{statistics.median(wall):.0f} ms median, {max(wall):.0f} ms at most, {statistics.median(cpu):.0f} ms CPU "
        f"(fresh process, imports apart); plan of a scan {statistics.median(planning):.0f} ms, memory at most "
        f"{max(memory):.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The log without Spark: opening, seeking, appending, scanning")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--throughput", action="store_true", help="appends and scans of records of 120 bytes only")
    arguments = parser.parse_args()
    share = 10 if arguments.quick else 1
    warm_up()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not arguments.throughput:
            bench_open(folder, arguments.commits // share, arguments.rounds)
            bench_commits(folder, 200 // share, arguments.rounds)
            bench_seeks(folder, arguments.rows // share // 5, 100 // share)
        for value_bytes in (100,) if arguments.throughput else (100, 1000):
            codecs: tuple[Codec, ...] = ("none", "lz4", "zstd")
            for codec in codecs:
                rows = arguments.rows // share // (1 if value_bytes == 100 else 5)
                bench_throughput(folder, rows, value_bytes, codec, arguments.rounds)


if __name__ == "__main__":
    main()
