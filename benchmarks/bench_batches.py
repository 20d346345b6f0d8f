"""Micro-batches, first micro-batches and cold starts of sparklog beside Spark's Kafka connector, in one run.

    python -m benchmarks batches [cold] [archive] [rate] [topic] [--kinds sparklog,kafka] [--rounds 2] [--batches 10]

`cold`: each session is a process of its own. It reads the first row of a topic, and then runs one micro-batch from the
topic to another one. `archive`: the same with an archive of Java classes (the JVM option SharedArchiveFile).

`rate` and `topic`: one session runs one query after the other, A B B A, because the JVM compiles less Java code in each
query than in the one before. It starts with 10 micro-batches into Spark's noop sink, which are not measured. A
micro-batch has 2,000 records, once per second. It reads Spark's rate source, or a topic with 2,000 records per commit.
The first 20 micro-batches of each query have a row of their own.

Prints Markdown tables: wall-clock time, and CPU time by process. `jit` are the threads of the JVM that compile Java
code, and `commands` are the processes that Hadoop starts for the files of a checkpoint. The kind `bare` is a Python
data source that does not encode or decode records. The workers run `sparklog-python`. Kernels must have been compiled
before (`python -m sparklog.format.kernels.warm`).
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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparklog.datasource.session import workers_python

if TYPE_CHECKING:
    from spark_session import Process

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of the repository: `tests` runs the broker

from tests.datasource.live_kafka import connector_jars
from tests.kafka_broker import SERVER_JVM, Broker
from tests.kafka_tools import Missing

PARTITIONS = 4
ROWS = 2000
FIRST = 20
WARM_UP = 10
PROCESSES = ("python", "jvm", "jit", "commands", "driver", "broker")
LABELS = {"sparklog": "sparklog", "kafka": "Kafka's connector", "bare": "bare source"}
TITLES = {"rate": "From the rate source to a topic", "topic": "From topic to topic"}

Figures = dict[str, Any]
"""`wall`: the milliseconds of each micro-batch or start, `cpu`: the milliseconds of all of them by process."""


def main() -> None:
    """Run one measured session if `--session` is given, and otherwise all sessions, one after the other."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("parts", nargs="*", default=["cold", "rate", "topic"])
    arguments.add_argument("--kinds", default="sparklog,kafka")
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--batches", type=int, default=10, help="micro-batches of a query after the first 20")
    arguments.add_argument("--session", help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--broker", default="", help=argparse.SUPPRESS)
    arguments.add_argument("--broker-pid", type=int, default=0, help=argparse.SUPPRESS)
    arguments.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    arguments.add_argument("--java", default="", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.session == "batches":
        print(json.dumps(queries(chosen)))
    elif chosen.session:
        print(json.dumps(starts(chosen.session, chosen)))
    else:
        measure(chosen)


def measure(chosen: argparse.Namespace) -> None:
    """Fill the topics, run the sessions, and print the tables."""
    kinds, folder = chosen.kinds.split(","), Path(tempfile.mkdtemp(prefix="sparklog-batches-"))
    records = ROWS * (FIRST + chosen.batches + 5)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        fill(folder / "source", records)
        broker = None
        if "kafka" in kinds:
            try:
                broker = filled_broker(folder, stack, records)
            except Missing as reason:
                kinds.remove("kafka")
                print(f"no Kafka: {reason}")
        place = ["--folder", str(folder), "--broker", broker.address if broker else ""]
        place += ["--broker-pid", str(broker.pid if broker else 0)]
        variants = {LABELS[kind]: (kind, "") for kind in kinds if "cold" in chosen.parts}
        if "archive" in chosen.parts:
            for kind in kinds:
                archive = folder / f"{kind}.jsa"
                session("--session", kind, *place, f"--java=-XX:ArchiveClassesAtExit={archive}")
                variants[f"{LABELS[kind]}, with an archive"] = (kind, f"-XX:SharedArchiveFile={archive}")
        sessions: dict[str, list[list[Figures]]] = {label: [] for label in variants}
        for number in range(chosen.rounds):
            for label in list(variants)[:: -1 if number % 2 else 1]:
                kind, java = variants[label]
                sessions[label].append(session("--session", kind, *place, f"--java={java}"))
        if sessions:
            show_starts(sessions)
        parts = [part for part in chosen.parts if part in TITLES]
        if parts:
            sizes = ["--kinds", ",".join(kinds), "--rounds", str(chosen.rounds), "--batches", str(chosen.batches)]
            for part, runs in zip(parts, session(*parts, "--session", "batches", *place, *sizes), strict=True):
                show_batches(part, runs)


def session(*arguments: str) -> Any:
    """Run a session in a process of its own, and return what it prints."""
    environ = {**os.environ, "PYSPARK_PYTHON": workers_python()}
    command = [sys.executable, __file__, *arguments, "--begun", str(time.time())]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ)
    # The JVM also prints a message if it has archived its classes.
    return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith(("[{", "[["))))


def fill(root: Path, records: int) -> None:
    """Create a topic for streams with a commit for each second, and a topic with one commit for the first row."""
    import pyarrow as pa

    import sparklog

    opened = sparklog.open(root, create=True)
    for name, count in (("events", 400), ("stream", records)):
        topic = opened.create_topic(name, partitions=PARTITIONS)
        for first in range(0, count, ROWS):
            keys = [b"%08d" % number for number in range(first, min(count, first + ROWS))]
            topic.append(pa.table({"key": keys, "value": [b"x" * 100] * len(keys)}))


def filled_broker(folder: Path, stack: ExitStack, records: int) -> Broker:
    """Start a broker with the same numbers of records. Raises Missing if Kafka or its connector is not installed."""
    connector_jars()
    broker = stack.enter_context(Broker(folder / "broker", jvm=SERVER_JVM))
    for name in ("events", "stream", "copies"):
        broker.create(name, PARTITIONS)
    for name, count in (("events", 400), ("stream", records)):
        size = ("--num-records", str(count), "--record-size", "100", "--throughput", "-1")
        properties = ("--producer-props", f"bootstrap.servers={broker.address}", "compression.type=lz4")
        broker.run_tool("org.apache.kafka.tools.ProducerPerformance", "--topic", name, *size, *properties)
    return broker


def open_session(kinds: Iterable[str], java: str = "") -> Any:
    """Start a session. `java`: an option of the JVM. An archive contains only classes of the driver's class path."""
    from spark_session import benchmark_session

    settings = {"spark.driver.memory": "1g"} | ({"spark.driver.extraJavaOptions": java} if java else {})
    if "kafka" in kinds:
        name, separator = ("spark.driver.extraClassPath", os.pathsep) if java else ("spark.jars", ",")
        settings[name] = separator.join(map(str, connector_jars()))
    spark = benchmark_session(**settings)
    if "bare" in kinds:
        from bare_source import BareSource

        spark.dataSource.register(BareSource)
    return spark


def source_options(kind: str, topic: str, folder: Path, broker: str) -> dict[str, str]:
    read = {"subscribe": topic, "startingOffsets": "earliest"}
    # Otherwise, the consumer's fetch at the log end waits 500 ms, and delays its next request.
    kafka = {"kafka.bootstrap.servers": broker, "kafka.fetch.max.wait.ms": "10"}
    places = {"sparklog": {"path": f"{folder}/source"}, "kafka": kafka}
    return {**read, **places[kind]} if kind in places else {"tasks": "4", "batchRows": str(ROWS // PARTITIONS)}


def sink_options(kind: str, folder: Path, broker: str) -> dict[str, str]:
    if kind == "sparklog":
        return {"topic": "copies", "num.partitions": str(PARTITIONS), "path": f"{folder}/copies"}
    if kind == "kafka":
        return {"topic": "copies", "kafka.bootstrap.servers": broker, "kafka.compression.type": "lz4"}
    return {}


class Meter:
    """CPU milliseconds by process since the start of this process, or since the previous reading.

    The broker is only read for Kafka's connector, because it is idle otherwise.
    """

    def __init__(self, broker_pid: int) -> None:
        from spark_session import compiler_cpu, spent_by_process, tree

        self._tree, self._spent, self._compiler = tree, spent_by_process, compiler_cpu
        self._broker_pid = broker_pid
        self._before: dict[int, Process] = {}
        self._jit, self._broker = 0.0, self._broker_cpu()

    def read(self, kind: str) -> dict[str, float]:
        now, jit, broker = self._tree(), self._compiler(), self._broker_cpu()
        spent = {**self._spent(self._before, now), "jit": jit - self._jit}
        spent["jvm"] -= spent["jit"]
        if kind == "kafka":
            spent["broker"] = broker - self._broker
        self._before, self._jit, self._broker = now, jit, broker
        return {kind: round(seconds * 1000, 1) for kind, seconds in spent.items()}

    def _broker_cpu(self) -> float:
        from spark_session import own_cpu

        return own_cpu(self._broker_pid) if self._broker_pid else 0.0


def starts(kind: str, chosen: argparse.Namespace) -> list[Figures]:
    """Return the figures until the first row of this session, and those of its first micro-batch."""
    folder = Path(tempfile.mkdtemp(dir=chosen.folder))
    meter = Meter(chosen.broker_pid)
    spark = open_session([kind], chosen.java)
    options = source_options(kind, "events", chosen.folder, chosen.broker)
    assert spark.read.format(kind).options(**options).load().select("value").first() is not None
    row = {"wall": [(time.time() - chosen.begun) * 1000], "cpu": meter.read(kind)}
    begun = time.perf_counter()
    frame = spark.readStream.format(kind).options(**options).load().select("key", "value")
    query = start(frame, kind, folder, chosen.broker)
    while not any(progress["numInputRows"] for progress in query.recentProgress):
        check(query)
        time.sleep(0.01)
    batch = {"wall": [(time.perf_counter() - begun) * 1000], "cpu": meter.read(kind)}
    query.stop()
    spark.stop()
    return [row, batch]


def start(frame: Any, kind: str, folder: Path, broker: str, trigger: str = "0 seconds") -> Any:
    """Start a query into a topic of its kind, with a checkpoint of its own."""
    writer = frame.writeStream.format(kind).options(**sink_options(kind, folder, broker))
    checkpoint = tempfile.mkdtemp(dir=folder, prefix="checkpoint-")
    return writer.option("checkpointLocation", checkpoint).trigger(processingTime=trigger).start()


def check(query: Any) -> None:
    if not query.isActive:
        raise SystemExit(f"the query ended: {query.exception()}")


def queries(chosen: argparse.Namespace) -> list[list[tuple[str, list[Figures]]]]:
    """Return, for each part, the kind of each query with the figures of its first micro-batches and of the others."""
    from bench_spark import ticks

    kinds = chosen.kinds.split(",")
    spark, results = open_session(kinds), []
    meter = Meter(chosen.broker_pid)
    # The first query of a session compiles the code of all queries.
    warm_up = start(ticks(spark), "noop", chosen.folder, "", "1 second")
    list(read_progress(warm_up, dict, (WARM_UP,)))
    warm_up.stop()
    for part in chosen.parts:
        runs = []
        for kind in [kind for number in range(chosen.rounds) for kind in (kinds[::-1] if number % 2 else kinds)]:
            if part == "rate":
                frame = ticks(spark)
            else:
                options = source_options(kind, "stream", chosen.folder, chosen.broker)
                reader = spark.readStream.format(kind).options(maxOffsetsPerTrigger=str(ROWS), **options)
                frame = reader.load().select("key", "value")
            meter.read(kind)
            query = start(frame, kind, chosen.folder, chosen.broker, "1 second")
            runs.append((kind, list(read_progress(query, partial(meter.read, kind), (FIRST, chosen.batches)))))
            query.stop()
        results.append(runs)
    spark.stop()
    return results


def read_progress(query: Any, spent: Callable[[], dict[str, float]], counts: Iterable[int]) -> Iterator[Figures]:
    """For each of `counts`, yield the figures of the next micro-batches with records."""
    done: dict[int, float] = {}
    for count in counts:
        skipped = len(done)
        while len(done) < skipped + count:
            check(query)
            time.sleep(0.1)
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    done[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        walls = [done[number] for number in sorted(done)[skipped:]]
        yield {"wall": walls, "cpu": spent()}


def show_starts(sessions: Mapping[str, list[list[Figures]]]) -> None:
    rounds = len(next(iter(sessions.values())))
    title = f"medians of {rounds} sessions"
    for number, what in enumerate(("first row of a new session", "first micro-batch, after the first row")):
        show(f"{what}, {title}", {kind: [run[number] for run in runs] for kind, runs in sessions.items()}, "s")


def show_batches(part: str, runs: list[tuple[str, list[Figures]]]) -> None:
    for number, what in enumerate((f"first {FIRST} micro-batches of a query", "micro-batches after them")):
        by_kind: dict[str, list[Figures]] = {}
        for kind, figures in runs:
            by_kind.setdefault(LABELS[kind], []).append(figures[number])
        show(f"{TITLES[part]}, {what}", by_kind, "ms")


def show(title: str, by_kind: Mapping[str, list[Figures]], unit: str) -> None:
    """Print one table: p50 and p95 of all times, and the mean CPU time of one of them by process."""
    scale, digits = (1000, 2) if unit == "s" else (1, 0)
    print(f"\n{title} (load {os.getloadavg()[0]:.1f}):\n")
    print(f"| | wall p50, p95 {unit} | CPU {unit} | by process: {', '.join(PROCESSES)} | total without jit |")
    print("|---|---:|---:|---:|---:|")
    for kind, runs in by_kind.items():
        walls = sorted(wall / scale for run in runs for wall in run["wall"])
        late = walls[max(0, int(len(walls) * 0.95) - 1)] if len(walls) > 2 else walls[-1]
        spent: Counter[str] = Counter()
        for run in runs:
            spent.update(run["cpu"])
        each = {name: spent[name] / scale / len(walls) for name in PROCESSES}
        total, jit = sum(each.values()), each["jit"]
        shares = ", ".join(f"{each[name]:.{digits}f}" for name in PROCESSES)
        wall = f"{statistics.median(walls):.{digits}f}, {late:.{digits}f}"
        print(f"| {kind} | {wall} | {total:.{digits}f} | {shares} | {total - jit:.{digits}f} |", flush=True)


if __name__ == "__main__":
    main()
