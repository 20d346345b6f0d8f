"""Many partitions, topics and lags: what is paid once for each of them, without Spark and in a warm session.

    python benchmarks/bench_many.py [LINE] [--folder FOLDER]

Lines, all of them if none is named, in some four minutes. Each is the best of 3: wall time, and CPU seconds of this
process and of those that it has ended; for `spark`, of all processes of the session:

* `partitions`, `partitions10k`: 1,000 or 10,000 partitions of a record each: plan, pickle the tasks, the first task's
  first row, all tasks one after the other in this process
* `topics`: the same of 1,000 topics of one partition, named by a pattern in a root of 2,000
* `root`: list the topics of a root of 2,000
* `lag`: the lag of a group in 10,000 partitions, all of which lag, and the command `groups describe` that shows it
* `idle`: a stream of a pattern over 500 topics where nothing comes, for 30 s: share of a core
* `spark`: first row and all rows of the first three in a warm session

The topics are made first; with `--folder` they stay there, and are found again.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructType

import sparklog
from sparklog.datasource.data_source import SparklogDataSource
from sparklog.datasource.options import parse_options
from sparklog.datasource.stream_plan import StreamPlanner
from sparklog.datasource.subscription import Subscriber
from sparklog.groups.lag import lag
from sparklog.log.topic.root import Root, open_root
from sparklog.opening import open_view, resolve
from sparklog.storage.local import LocalStore

ROUNDS = 3
IDLE_SECONDS = 30
READS = {
    "partitions": ("p1000", {"subscribe": "events"}, 1_000),
    "partitions10k": ("p10000", {"subscribe": "events"}, 10_000),
    "topics": ("topics", {"subscribePattern": "topic-0.*"}, 1_000),
}
"""Folder, options and records of each line that reads."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("line", nargs="?", choices=LINES)
    arguments.add_argument("--folder", type=Path)
    chosen = arguments.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="sparklog-many-"))
    try:
        for line in LINES if chosen.line is None else [chosen.line]:
            LINES[line](folder, line)
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def root_of_partitions(path: Path, count: int) -> Root:
    """Return a root with one topic, a record in each of its partitions, and a group at its start."""
    if not path.exists():
        root = sparklog.open(LocalStore(path, durable=False), create=True)
        topic = root.create_topic("events", partitions=count)
        numbers = pa.array(range(count), pa.int32())
        topic.append(pa.table({"value": [b"x" * 100] * count, "partition": numbers}))
        sparklog.Groups(root).group("slow").alter({"events": dict.fromkeys(range(count), 0)})
    return open_root(path)


def root_of_topics(path: Path, count: int = 2_000) -> Root:
    """Return a root with so many topics of one partition with a record."""
    if not path.exists():
        root = sparklog.open(LocalStore(path, durable=False), create=True)
        for number in range(count):
            root.create_topic(f"topic-{number:04d}", partitions=1).append(pa.table({"value": [b"x" * 100]}))
    return open_root(path)


def source(folder: Path, line: str) -> tuple[str, dict[str, str], int]:
    name, options, records = READS[line]
    path = folder / name
    root_of_topics(path) if line == "topics" else root_of_partitions(path, records)
    return str(path), options, records


def best(action: Callable[[], object]) -> str:
    """Run it some times; the best CPU and wall seconds of a run."""
    runs = []
    for _ in range(ROUNDS):
        cpu, wall = cpu_seconds(), time.perf_counter()
        action()
        runs.append((cpu_seconds() - cpu, time.perf_counter() - wall))
    cpu, wall = map(min, zip(*runs, strict=True))
    return f"{cpu:6.2f} s CPU {wall:6.2f} s"


def cpu_seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def read(folder: Path, line: str) -> None:
    path, options, records = source(folder, line)
    schema = StructType().add("value", BinaryType())

    def read_up_to(step: int) -> None:
        given = {"path": path, **{name.lower(): text for name, text in options.items()}}
        reader = SparklogDataSource(given).reader(schema)
        partitions = reader.partitions()
        if step:
            tasks = [pickle.loads(data) for data in [dumps(partition) for partition in partitions]]
            rows = sum(batch.num_rows for task in tasks[: None if step > 1 else 1] for batch in reader.read(task))
            assert rows == records or step == 1

    for step, what in enumerate(("plan", "with tasks pickled and the first one read", "with all of them read")):
        print(f"{line:<14} {what:<42} {best(partial(read_up_to, step))}", flush=True)


def list_topics(folder: Path, line: str) -> None:
    root_of_topics(folder / "topics")
    print(f"{line:<14} {'2,000 topics listed':<42} {best(lambda: open_root(folder / 'topics').topics())}", flush=True)


def lags(folder: Path, line: str) -> None:
    root_of_partitions(folder / "p10000", 10_000)
    print(f"{line:<14} {'10,000 lags':<42} {best(lambda: lag(open_root(folder / 'p10000')))}", flush=True)
    command = [sys.executable, "-m", "sparklog", "groups", "describe", "slow", "--root", str(folder / "p10000")]
    shown = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    print(f"{line:<14} {'groups describe of them, a command':<42} {best(shown)}", flush=True)


def idle(folder: Path, line: str) -> None:
    root_of_topics(folder / "topics")
    options = parse_options({"path": str(folder / "topics"), "subscribepattern": "topic-0[0-4].*"}).read
    location = resolve(str(folder / "topics"))
    view = open_view(location, tailing=True)
    planner = StreamPlanner(view, Subscriber(view, location, options.subscription), options)
    offsets = planner.latest(json.loads(json.dumps(planner.initial())), limited=True)
    for period in ("first 30 s", "next 30 s"):
        cpu, wall, looks = time.process_time(), time.perf_counter(), 0
        while time.perf_counter() - wall < IDLE_SECONDS:
            # As Spark asks: with a copy of the last answer, and for a report of it.
            planner.latest(json.loads(json.dumps(offsets)), limited=True)
            planner.report()
            looks += 1
        share = (time.process_time() - cpu) / (time.perf_counter() - wall)
        print(f"{line:<14} {f'500 topics, {period}':<42} {share:7.1%} of a core, {looks} looks", flush=True)


def in_session(folder: Path, line: str) -> None:
    from spark_session import benchmark_session, timed

    spark = benchmark_session()
    sparklog.register(spark)
    for warm, name in enumerate(("partitions", *READS)):
        path, options, records = source(folder, name)
        values = partial(spark.read.format("sparklog").options(**options).load, path)
        steps: dict[str, Callable[[], object]] = {
            "first row": partial(_first, values),
            "all rows": partial(_all, values),
        }
        for what, action in steps.items():
            timings = [timed(action) for _ in range(ROUNDS)]
            cpu, wall = (min(getattr(timing, kind) for timing in timings) for kind in ("cpu", "wall"))
            if warm:
                print(f"{line:<14} {f'{name}: {what}':<42} {cpu:6.2f} s CPU {wall:6.2f} s", flush=True)
        assert values().count() == records
    spark.stop()


def _first(values: Callable[[], DataFrame]) -> object:
    return values().select("value").state()


def _all(values: Callable[[], DataFrame]) -> object:
    return values().select("value").rdd.count()


LINES: dict[str, Callable[[Path, str], None]] = {
    **dict.fromkeys(READS, read),
    "root": list_topics,
    "lag": lags,
    "idle": idle,
    "spark": in_session,
}

if __name__ == "__main__":
    main()
