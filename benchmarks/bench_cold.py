"""The first row and micro-batch of a fresh session: sparklog against the bare source, each in sessions of its own.

    python benchmarks/bench_cold.py [--rounds 3]

The kernels must have been compiled by set-up before (`python -m sparklog.format.kernels.warm`): what is measured is
starting, not compiling. Seconds from the session until the first row of a scan is there, then from `start()` until the
first micro-batch is done, source and sink both of the kind named. Each kind runs with workers as Spark starts them, and
as `sparklog-python` does ("fast").
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparklog.datasource.session import workers_python

KINDS = ("bare", "sparklog")
STARTS = {"": sys.executable, "fast": workers_python()}


def main() -> None:
    """With a kind: one measured session. Without: all of them, in turn, and the ratio."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--session", choices=KINDS, help=argparse.SUPPRESS)
    arguments.add_argument("--folder", default="", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.session:
        first_batch(chosen.session, chosen.folder)
        return
    folder = Path(tempfile.mkdtemp(prefix="sparklog-cold-"))
    try:
        fill(str(folder / "source"))
        variants = [(kind, start) for kind in KINDS for start in STARTS]
        figures: dict[tuple[str, str], list[list[float]]] = {variant: [] for variant in variants}
        for number in range(chosen.rounds):
            for kind, start in variants if number % 2 else variants[::-1]:
                figures[kind, start].append(measure(kind, start, folder, number))
        print(f"medians of {chosen.rounds} rounds, seconds")
        for (kind, start), rows in figures.items():
            row, batch = map(statistics.median, zip(*rows, strict=True))
            print(f"{kind:<10} {start:<5} first row {row:6.2f}  first micro-batch {batch:6.2f}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(root: str) -> None:
    """A small topic to read."""
    import pyarrow as pa

    import sparklog

    topic = sparklog.open(root, create=True).create_topic("events", partitions=4)
    topic.append(pa.table({"key": [b"%04d" % i for i in range(400)], "value": [b"x" * 100] * 400}))


def measure(kind: str, start: str, folder: Path, number: int) -> list[float]:
    """One session in a process of its own: seconds to the first row, and of the first micro-batch."""
    run = folder / f"{kind}-{start}-{number}"
    run.mkdir()
    (run / "source").symlink_to(folder / "source")
    command = [sys.executable, __file__, "--session", kind, "--folder", str(run)]
    environ = {**os.environ, "PYSPARK_PYTHON": STARTS[start]}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def first_batch(kind: str, folder: str) -> None:
    """Print the seconds until the first row of the session, and from `start()` until the first micro-batch."""
    from spark_session import benchmark_session

    opened = time.perf_counter()

    import sparklog

    spark = benchmark_session(**{"spark.driver.memory": "1g"})
    sparklog.register(spark)
    from bare_source import BareSource

    spark.dataSource.register(BareSource)
    sparklog_reads = {"subscribe": "events", "startingOffsets": "earliest"}
    reads = sparklog_reads if kind == "sparklog" else {"tasks": "2", "batchRows": "200"}
    options = {"topic": "copies", "num.partitions": "4", "path": f"{folder}/copies"} if kind == "sparklog" else {}
    source = f"{folder}/source"
    assert spark.read.format(kind).options(**reads).load(source).select("value").head() is not None
    row, begun = time.perf_counter() - opened, time.perf_counter()
    frame = spark.readStream.format(kind).options(**reads).load(source).select("key", "value")
    writer = frame.writeStream.format(kind).options(**options).option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.start()
    while not any(progress["numInputRows"] for progress in query.recentProgress):
        if not query.isActive:
            raise SystemExit(f"the query ended: {query.exception()}")
        time.sleep(0.01)
    print(json.dumps([row, time.perf_counter() - begun]))
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
