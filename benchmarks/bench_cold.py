"""The first row and micro-batch of a fresh session of sparklog, of the bare source, and of Kafka's connector.

    python benchmarks/bench_cold.py [--rounds 3]

The kernels must have been compiled by set-up before (`python -m sparklog.format.kernels.warm`): what is measured is
starting, not compiling. Seconds from the session until the first row of a scan is there, then from `start()` until the
first micro-batch is done, source and sink both of the kind named. Kinds in Python run with workers as Spark starts
them, and as `sparklog-python` does ("fast"). `kafka` needs no Python; its broker on this machine runs before.
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
from contextlib import ExitStack
from pathlib import Path

from sparklog.datasource.session import workers_python

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of the repository: `tests` runs the broker

from tests.datasource.live_kafka import connector_jars
from tests.kafka_broker import SERVER_JVM, Broker
from tests.kafka_tools import Missing

STARTS = {"": sys.executable, "fast": workers_python()}
VARIANTS = (("bare", ""), ("bare", "fast"), ("sparklog", ""), ("sparklog", "fast"), ("kafka", ""))
PARTITIONS = 4


def main() -> None:
    """With a kind: one measured session. Without: all of them, in turn."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--session", choices={kind for kind, _ in VARIANTS}, help=argparse.SUPPRESS)
    arguments.add_argument("--folder", default="", help=argparse.SUPPRESS)
    arguments.add_argument("--broker", default="", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.session:
        first_batch(chosen.session, chosen.folder, chosen.broker)
        return
    folder = Path(tempfile.mkdtemp(prefix="sparklog-cold-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        fill(str(folder / "source"))
        try:
            broker = filled_broker(folder, stack)
        except Missing as reason:
            broker = ""
            print(f"no Kafka: {reason}")
        variants = [variant for variant in VARIANTS if broker or variant[0] != "kafka"]
        figures: dict[tuple[str, str], list[list[float]]] = {variant: [] for variant in variants}
        for number in range(chosen.rounds):
            for kind, start in variants if number % 2 else variants[::-1]:
                figures[kind, start].append(measure(kind, start, folder / f"{kind}-{start}-{number}", broker))
        print(f"medians of {chosen.rounds} rounds: seconds to the first row, and CPU seconds; of the first micro-batch")
        for (kind, start), rows in figures.items():
            row, cpu, batch, batch_cpu = map(statistics.median, zip(*rows, strict=True))
            print(f"{kind:<10} {start:<5} {row:6.2f} {cpu:6.2f}  {batch:6.2f} {batch_cpu:6.2f}")


def fill(root: str) -> None:
    """A small topic to read."""
    import pyarrow as pa

    import sparklog

    topic = sparklog.open(root, create=True).create_topic("events", partitions=PARTITIONS)
    topic.append(pa.table({"key": [b"%04d" % i for i in range(400)], "value": [b"x" * 100] * 400}))


def filled_broker(folder: Path, stack: ExitStack) -> str:
    """Start a broker with as many records, and return its address. Raises Missing where there cannot be one."""
    connector_jars()
    broker = stack.enter_context(Broker(folder / "broker", jvm=SERVER_JVM))
    for name in ("events", "copies"):
        broker.create(name, PARTITIONS)
    size = ("--num-records", "400", "--record-size", "100", "--throughput", "-1")
    properties = ("--producer-props", f"bootstrap.servers={broker.address}")
    broker.run_tool("org.apache.kafka.tools.ProducerPerformance", "--topic", "events", *size, *properties)
    return broker.address


def measure(kind: str, start: str, run: Path, broker: str) -> list[float]:
    """One session in a process of its own: seconds and CPU seconds to the first row, and of the first micro-batch."""
    run.mkdir()
    (run / "source").symlink_to(run.parent / "source")
    command = [sys.executable, __file__, "--session", kind, "--folder", str(run), "--broker", broker]
    environ = {**os.environ, "PYSPARK_PYTHON": STARTS[start]}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def first_batch(kind: str, folder: str, broker: str) -> None:
    """Print seconds and CPU seconds until the first row of the session, and those of the first micro-batch."""
    from spark_session import benchmark_session, tree_cpu

    opened = time.perf_counter()
    jars = {"spark.jars": ",".join(map(str, connector_jars()))} if kind == "kafka" else {}
    spark = benchmark_session(**{"spark.driver.memory": "1g"}, **jars)
    if kind == "bare":
        from bare_source import BareSource

        spark.dataSource.register(BareSource)
    servers = {"kafka.bootstrap.servers": broker}
    read = {"subscribe": "events", "startingOffsets": "earliest"}
    reads = {"sparklog": {**read, "path": f"{folder}/source"}, "kafka": {**read, **servers}}
    writes = {
        "sparklog": {"topic": "copies", "num.partitions": str(PARTITIONS), "path": f"{folder}/copies"},
        "kafka": {"topic": "copies", **servers},
    }
    options = reads.get(kind, {"tasks": "2", "batchRows": "200"})
    assert spark.read.format(kind).options(**options).load().select("value").first() is not None
    row, cpu, begun = time.perf_counter() - opened, tree_cpu(), time.perf_counter()
    frame = spark.readStream.format(kind).options(**options).load().select("key", "value")
    writer = frame.writeStream.format(kind).options(**writes.get(kind, {}))
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    while not any(progress["numInputRows"] for progress in query.recentProgress):
        if not query.isActive:
            raise SystemExit(f"the query ended: {query.exception()}")
        time.sleep(0.01)
    print(json.dumps([row, cpu, time.perf_counter() - begun, tree_cpu() - cpu]))
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
