"""Copies of a topic to Iceberg and Delta tables, in turns with pyiceberg and deltalake; each run in a fresh process.

    python -m benchmarks copies [append] [upsert] [small] [follow] [--records 4000000] [--rows 10000000]
        [--changes 1000000] [--rounds 3] [--seconds 60] [--folder PLACE]

Records have 16-byte keys and 100-byte values of decimal words, in lz4 batches. `append` copies all records to a new
table; pyiceberg and deltalake append a table that is read from the topic. `upsert` replaces `--changes` random rows of
a table with `--rows` rows, and `small` does the same for 20,000 of 200,000 rows. pyiceberg's own `upsert` only takes
part in `small`. Each library has a table of its own, and the same changes in each round. `follow` measures the time
from an append to the topic until another process sees the row in the table, with `--follow --interval 2s`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

import sparklog
from sparklog.format.kernels.warm import warm_up

STEP_RECORDS = 500_000
PARTITIONS = 4
SMALL = (200_000, 20_000)
APPENDS = ("sparklog to Iceberg", "pyiceberg append", "sparklog to Delta", "deltalake write")
UPSERTS = ("sparklog to Iceberg", "sparklog to Delta", "deltalake merge")
WORDS = np.array([b"%05d " % (number * 97 % 100_000) for number in range(4000)])
Numbers = npt.NDArray[np.int64]


def records(numbers: Numbers, seed: int) -> pa.Table:
    """Return one record for each number, with the number in the key."""
    count = len(numbers)
    digits = (numbers[:, None] // 10 ** np.arange(6, -1, -1)) % 10 + ord("0")
    key = np.empty((count, 16), np.uint8)
    key[:, :9] = np.frombuffer(b"customer-", np.uint8)
    key[:, 9:] = digits
    value = np.full((count, 100), ord("."), np.uint8)
    value[:, :96] = WORDS[np.random.default_rng(seed).integers(0, len(WORDS), (count, 16))].view(np.uint8)
    return pa.table({"key": cells(key), "value": cells(value)})


def cells(data: npt.NDArray[np.uint8]) -> pa.Array:
    count, width = data.shape
    offsets = pa.py_buffer(np.arange(0, count * width + 1, width, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])


def fill(folder: Path, topic: str, numbers: Numbers, seed: int) -> None:
    """Append a record for each number to a topic."""
    root = sparklog.open(folder / "log", create=True)
    if topic not in root.topics():
        root.create_topic(topic, partitions=PARTITIONS, configs={"compression.type": "lz4"})
    for start in range(0, len(numbers), STEP_RECORDS):
        root.topic(topic).append(records(numbers[start : start + STEP_RECORDS], seed + start))


def catalog(folder: Path) -> SqlCatalog:
    return SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/iceberg")


def read(folder: Path, topic: str) -> pa.Table:
    columns = ["key", "value", "partition", "offset", "timestamp"]
    return sparklog.datasets(str(folder / "log"))[topic].to_table(columns=columns)


def append(folder: Path, variant: str, topic: str, table: str) -> Callable[[], Any]:
    """Return a function that copies a topic to a new table."""
    if variant == "sparklog to Iceberg":
        return lambda: sparklog.to_iceberg(
            str(folder / "log"), topic, f"bench.{table}", catalog=catalog(folder), headers=False
        )
    if variant == "sparklog to Delta":
        return lambda: sparklog.to_delta(str(folder / "log"), topic, str(folder / "delta" / table), headers=False)
    if variant == "pyiceberg append":
        return lambda: append_with_pyiceberg(folder, read(folder, topic), table)
    return lambda: write_with_deltalake(folder, read(folder, topic), table)


def append_with_pyiceberg(folder: Path, rows: pa.Table, table: str) -> None:
    opened = catalog(folder)
    opened.create_namespace_if_not_exists("bench")
    opened.create_table(f"bench.{table}", rows.schema).append(rows)


def write_with_deltalake(folder: Path, rows: pa.Table, table: str) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(folder / "delta" / table), rows)


def load(folder: Path, variant: str, topic: str, table: str) -> Callable[[], Any]:
    """Return a function that creates the table of upserts."""
    if variant.startswith("sparklog"):
        return upsert(folder, variant, topic, table)
    if variant == "pyiceberg upsert":
        return lambda: append_with_pyiceberg(folder, read(folder, topic), table)
    return lambda: write_with_deltalake(folder, read(folder, topic), table)


def upsert(folder: Path, variant: str, topic: str, table: str, changes: str = "") -> Callable[[], Any]:
    """Return a function that merges the changes of a topic with a table."""
    options: Any = {"mode": "upsert", "headers": False, "max_offsets": 5_000_000}
    if variant == "sparklog to Iceberg":
        return lambda: sparklog.to_iceberg(
            str(folder / "log"), topic, f"bench.{table}", catalog=catalog(folder), **options
        )
    if variant == "sparklog to Delta":
        return lambda: sparklog.to_delta(str(folder / "log"), topic, str(folder / "delta" / table), **options)
    if variant == "pyiceberg upsert":
        return lambda: catalog(folder).load_table(f"bench.{table}").upsert(read(folder, changes), join_cols=["key"])
    return lambda: merge_with_deltalake(folder, read(folder, changes), table)


def merge_with_deltalake(folder: Path, rows: pa.Table, table: str) -> None:
    from deltalake import DeltaTable

    merger = DeltaTable(str(folder / "delta" / table)).merge(rows, "t.key = s.key", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def run(action: Callable[[], Any]) -> None:
    """Print the wall and CPU seconds of an action and the peak memory of this process."""
    warm_up()
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps([wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6]))


def step(folder: Path, *words: str) -> list[float]:
    """Run a step in a new process, and return what it printed."""
    command = [sys.executable, __file__, "--folder", str(folder), "--step", *words]
    result: list[float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout or "[]")
    return result


def do_step(folder: Path, name: str, *words: str) -> None:
    if name == "fill":
        topic, first, count, of, seed = words
        chosen = np.arange(int(first), int(first) + int(count))
        if int(of):
            chosen = np.random.default_rng(int(seed)).choice(int(of), int(count), replace=False)
        fill(folder, topic, chosen, int(seed))
    else:
        run({"append": append, "load": load, "upsert": upsert}[name](folder, *words))


def in_turns(variants: Sequence[str], rounds: int, measure: Callable[[str, int], list[float]]) -> None:
    """Measure each variant in each round, in alternating order, and print the medians."""
    results: dict[str, list[list[float]]] = {variant: [] for variant in variants}
    for number in range(rounds):
        for variant in variants if number % 2 else reversed(variants):
            results[variant].append(measure(variant, number))
    print("| | wall s | CPU s | peak memory, MB |\n|---|--:|--:|--:|")
    for variant, runs in results.items():
        wall, cpu, peak = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"| {variant} | {wall:.1f} | {cpu:.1f} | {peak:.0f} |", flush=True)


def appends(folder: Path, count: int, rounds: int) -> None:
    print(f"\nappend of {count:,} records", flush=True)
    step(folder, "fill", "events", "0", str(count), "0", "1")

    def measure(variant: str, number: int) -> list[float]:
        result = step(folder, "append", variant, "events", f"events{number}{APPENDS.index(variant)}")
        for kind in ("iceberg", "delta"):
            shutil.rmtree(folder / kind, ignore_errors=True)
        return result

    in_turns(APPENDS, rounds, measure)
    shutil.rmtree(folder / "log")


def upserts(folder: Path, variants: Sequence[str], rows: int, changes: int, rounds: int) -> None:
    print(f"\nupsert of {changes:,} changed keys into {rows:,} rows", flush=True)
    step(folder, "fill", "customers", "0", str(rows), "0", "1")
    tables = {variant: f"customers{index}" for index, variant in enumerate(variants)}
    for variant, table in tables.items():
        step(folder, "load", variant, "customers", table)
    filled = set()

    def measure(variant: str, number: int) -> list[float]:
        if number not in filled:
            filled.add(number)
            for topic in ("customers", f"changes{number}"):
                step(folder, "fill", topic, "0", str(changes), str(rows), str(number + 2))
        return step(folder, "upsert", variant, "customers", tables[variant], f"changes{number}")

    in_turns(variants, rounds, measure)
    for kind in ("iceberg", "delta", "log"):
        shutil.rmtree(folder / kind, ignore_errors=True)
    (folder / "catalog.db").unlink()


def follow(folder: Path, seconds: int) -> None:
    topic = sparklog.open(folder / "log", create=True).create_topic("followed", partitions=PARTITIONS)
    topic.append(pa.table({"value": [b"first"]}))
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/iceberg"}
    words = [word for item in properties.items() for word in ("--catalog-property", "=".join(item))]
    command = [sys.executable, "-m", "sparklog", "to-iceberg", "--root", str(folder / "log"), "--topic", "followed"]
    command += ["--table", "bench.followed", "--catalog", "bench", "--follow", "--interval", "2s", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    pending: list[float] = []
    seen, latencies, began = -1, list[float](), 0.0
    while not began or time.monotonic() - began < seconds:
        try:
            snapshot = catalog(folder).load_table("bench.followed").current_snapshot()
        except Exception:  # noqa: BLE001 - the table does not exist yet
            snapshot = None
        total = 0 if snapshot is None or snapshot.summary is None else int(snapshot.summary["total-records"] or 0)
        now = time.monotonic()
        if total and not began:
            began, seen = now, total
        while began and seen < total:
            latencies.append(now - pending.pop(0))
            seen += 1
        if began and random.random() < 0.3:
            topic.append(pa.table({"value": [b"%d" % len(latencies)]}))
            pending.append(time.monotonic())
        time.sleep(0.05)
    process.terminate()
    process.wait()
    latencies.sort()
    p50, p95 = (latencies[int(len(latencies) * share)] for share in (0.5, 0.95))
    print(f"\nfollow --interval 2s, {len(latencies)} appends in {seconds} s: p50 {p50:.2f} s, p95 {p95:.2f} s")


def main() -> None:
    """Read the arguments, and run the chosen parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="append, upsert, small or follow; default: all")
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--folder", help="directory for topics and tables; default: the temporary directory")
    parser.add_argument("--step", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.step:
        do_step(Path(chosen.folder), *chosen.step)
        return
    load_average = os.getloadavg()[0]
    print(
        f"{date.today()}, pyarrow {pa.__version__}, {os.cpu_count()} cores, load {load_average:.1f}, medians of rounds"
    )
    with tempfile.TemporaryDirectory(prefix="sparklog-bench-", dir=chosen.folder) as place:
        folder = Path(place)
        parts = chosen.parts or ["append", "upsert", "small", "follow"]
        for part in parts:
            began = time.monotonic()
            if part == "append":
                appends(folder, chosen.records, chosen.rounds)
            elif part == "follow":
                follow(folder, chosen.seconds)
            elif part == "small":
                upserts(folder, (*UPSERTS, "pyiceberg upsert"), *SMALL, chosen.rounds)
            else:
                upserts(folder, UPSERTS, chosen.rows, chosen.changes, chosen.rounds)
            print(f"({part}: {time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
