"""The first micro-batch of a fresh session: sparklog against the bare data source, each in sessions of its own.

    python benchmarks/bench_cold.py [--rounds 3]

The kernels must have been compiled by set-up before (`python -m sparklog.format.kernels.warm`): what is measured is
starting, not compiling. Seconds from `start()` until the first micro-batch is done, source and sink both of the kind
named.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = ("bare", "sparklog")


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
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(chosen.rounds):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                seconds[kind].append(measure(kind, folder, number))
        ratio = statistics.median(s / b for s, b in zip(seconds["sparklog"], seconds["bare"], strict=True))
        for kind in KINDS:
            print(f"{kind:<10} first micro-batch {statistics.median(seconds[kind]):.2f} s")
        print(f"sparklog takes {ratio:.2f} of bare's time (median of {chosen.rounds} rounds)")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(root: str) -> None:
    """A small topic to read."""
    import pyarrow as pa

    import sparklog

    topic = sparklog.open(root, create=True).create_topic("events", partitions=4)
    topic.append(pa.table({"key": [b"%04d" % i for i in range(400)], "value": [b"x" * 100] * 400}))


def measure(kind: str, folder: Path, number: int) -> float:
    """One session in a process of its own."""
    run = folder / f"{kind}-{number}"
    run.mkdir()
    (run / "source").symlink_to(folder / "source")
    command = [sys.executable, __file__, "--session", kind, "--folder", str(run)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def first_batch(kind: str, folder: str) -> None:
    """Print the seconds that the first micro-batch took from `start()`."""
    from spark_session import benchmark_session

    import sparklog

    spark = benchmark_session(**{"spark.driver.memory": "1g"})
    sparklog.register(spark)
    from bare_source import BareSource

    spark.dataSource.register(BareSource)
    options = {"topic": "copies", "num.partitions": "4", "path": f"{folder}/copies"} if kind == "sparklog" else {}
    begun = time.perf_counter()
    reader = spark.readStream.format(kind).option("tasks", "2").option("batchRows", "200")
    if kind == "sparklog":
        reader = spark.readStream.format(kind).option("subscribe", "events").option("startingOffsets", "earliest")
    frame = reader.load(f"{folder}/source").select("key", "value")
    writer = frame.writeStream.format(kind).options(**options).option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.start()
    while not any(progress["numInputRows"] for progress in query.recentProgress):
        if not query.isActive:
            raise SystemExit(f"the query ended: {query.exception()}")
        time.sleep(0.01)
    print(time.perf_counter() - begun)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
