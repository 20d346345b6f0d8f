"""A table that gets one commit a minute for a day: its files, its metadata, and the requests of the copy.

    python benchmarks/bench_upkeep.py [iceberg|delta] [--commits 1440] [--records 10] [--mode append] [--max-files 64]
        [--snapshot-age 1d]

The job runs with `--follow --interval 1m` and a clock that skips the pauses. The topic is in memory. The Iceberg table
is in a directory, with a catalog in SQLite. Requests are counted for Iceberg: files that are opened, created or
deleted, and calls of the catalog.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from sparklog.jobs import to_delta_without_spark, to_iceberg
from sparklog.jobs.table_options import TableJob
from sparklog.log.topic.root import RootView
from sparklog.tables.maintenance import MaintainedTable
from sparklog.testing.world import World

REQUESTS: Counter[str] = Counter()
COUNTED = (
    *((PyArrowFile, name) for name in ("open", "create", "exists")),
    (PyArrowFileIO, "delete"),
    *((SqlCatalog, name) for name in ("load_table", "commit_table")),
)


@dataclass
class Day:
    """The commits of a day, and what they left."""

    world: World
    directory: Path
    table: MaintainedTable
    commits: int
    records: int
    appended: int = 0
    max_files: int = 0
    written_bytes: Counter[str] = field(default_factory=Counter)
    seen: set[Path] = field(default_factory=set)

    def minute(self, seconds: float) -> None:
        """Measure the table, and append the records of the next minute."""
        self.measure()
        self.world.now_ms += round(seconds * 1000)
        if self.appended == self.commits:
            raise KeyboardInterrupt
        self.append()

    def append(self) -> None:
        first = self.appended * self.records
        keys = [b"key-%d" % (number % 1000) for number in range(first, first + self.records)]
        times = pa.array([self.world.now_ms] * self.records, pa.timestamp("ms", "UTC"))
        self.world.root().topic("orders").append(
            pa.table({"key": keys, "value": [b"x" * 100] * self.records, "timestamp": times})
        )
        self.appended += 1

    def measure(self) -> None:
        """Count the files of each partition and the bytes of new files, every ten minutes."""
        if self.appended % 10:
            return
        for path in self.directory.rglob("*"):
            if path not in self.seen and path.is_file():
                self.seen.add(path)
                self.written_bytes[kind_of(path)] += path.stat().st_size
        before = REQUESTS.copy()
        self.max_files = max((self.max_files, *files_per_partition(self.table).values()))
        REQUESTS.clear()
        REQUESTS.update(before)


def kind_of(path: Path) -> str:
    return "data" if path.suffix == ".parquet" and "_delta_log" not in path.parts else "metadata"


def files_per_partition(table: MaintainedTable) -> Counter[Any]:
    state = table.load()
    assert state is not None
    return Counter(file.partition_values for file in table.existing_files(state))


def count_calls() -> None:
    """Count the calls of the methods in `COUNTED`."""
    for kind, name in COUNTED:
        setattr(kind, name, counted(f"{kind.__name__}.{name}", getattr(kind, name)))


def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        REQUESTS[name] += 1
        return call(*arguments, **keywords)

    return wrapper


def main() -> None:
    """Read the arguments, run the job for a day, and print a table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("format", nargs="?", choices=("iceberg", "delta"), default="iceberg")
    arguments.add_argument("--commits", type=int, default=1440)
    arguments.add_argument("--records", type=int, default=10)
    arguments.add_argument("--mode", choices=("append", "upsert"), default="append")
    arguments.add_argument("--max-files", type=int, default=64)
    arguments.add_argument("--snapshot-age", default="1d")
    chosen = arguments.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="sparklog-bench-"))
    try:
        run(chosen, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(chosen: argparse.Namespace, directory: Path) -> None:
    world = World()
    world.root().create_topic("orders")
    words = ["--root", "memory", "--topic", "orders", "--mode", chosen.mode, "--follow", "--interval", "1m"]
    words += ["--max-files-per-partition", str(chosen.max_files)]
    job: Any
    if chosen.format == "iceberg":
        job = to_iceberg
        uri, warehouse = f"sqlite:///{directory}/catalog.db", f"file://{directory}/table"
        words += ["--table", "shop.orders", "--catalog", "bench", "--snapshot-age", chosen.snapshot_age]
        for name, value in {"type": "sql", "uri": uri, "warehouse": warehouse}.items():
            words += ["--catalog-property", f"{name}={value}"]
    else:
        job = to_delta_without_spark
        words += ["--table", f"{directory}/table"]
    count_calls()
    # The library sets the times of snapshots.
    time.time = lambda: world.now_ms / 1000
    started = time.perf_counter()
    day = Day(world, directory / "table", table_of(chosen.format, directory, world), chosen.commits, chosen.records)
    view = RootView(world.root())
    view.env = replace(view.env, sleep=day.minute)
    TableJob.open = lambda self: view  # type: ignore[method-assign]
    day.append()
    job.main(words)
    show(day, time.perf_counter() - started)


def table_of(kind: str, directory: Path, world: World) -> MaintainedTable:
    env = world.root().env
    if kind == "delta":
        from sparklog.tables.delta import DeltaLakeTable

        return DeltaLakeTable(f"{directory}/table", {}, env)
    from sparklog.tables.iceberg import IcebergTable

    catalog = SqlCatalog("bench", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/table")
    return IcebergTable(catalog, ("shop", "orders"), env.new_id)


def show(day: Day, seconds: float) -> None:
    """Print the results."""
    remaining: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for path in day.directory.rglob("*"):
        if path.is_file():
            remaining[kind_of(path)] += path.stat().st_size
            number[kind_of(path)] += 1
    print(f"{day.commits:,} commits of {day.records:,} records in {seconds:.0f} s")
    print(f"files per partition: {sorted(files_per_partition(day.table).values())}, at most {day.max_files}")
    for kind in ("data", "metadata"):
        megabytes = remaining[kind] / 1e6, day.written_bytes[kind] / 1e6
        print(f"{kind:<10}{number[kind]:>7,} files{megabytes[0]:>9.1f} MB at the end{megabytes[1]:>9.1f} MB written")
    for name, calls in sorted(REQUESTS.items()):
        print(f"{name:<28}{calls / day.commits:>8.1f} per commit")


if __name__ == "__main__":
    main()
