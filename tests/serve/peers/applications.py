"""Applications in the client matrix: kcat, Kafka Streams, Kafka Connect and Spark's connector.

Each check runs the application at one server, and returns what the application printed or wrote.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.datasource import spark_session
from tests.datasource.live_kafka import connector_jars
from tests.kafka_tools import KAFKA_VERSION, Missing, fetched_jars, find_java, kafka_jars
from tests.serve.peers.checks import CODECS, START_MS, Run, create_topic
from tests.serve.peers.peer import HERE, Failed, Place, Record

QUICK_JVM = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
QUIET_JVM = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
SECONDS = 120
WORDS = ("log", "offset", "batch", "segment", "epoch")
LINES = 60
KCAT_RELEASE = "1.7.1"
FLINK_RELEASE, FLINK_CONNECTOR_RELEASE = "2.0.0", "4.0.1-2.0"
_IVY = """<ivy-module version="2.0">
  <info organisation="sparklog" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""


ALONE, WITH_DEPENDENCIES = "default->master(*)", "default->runtime(*),master(*)"


def artifacts(*names: str, conf: str = WITH_DEPENDENCIES) -> Path:
    """Return the directory with artifacts `org:name:revision`, which are fetched at their first use."""
    parts = [name.split(":") for name in names]
    rows = [f'<dependency org="{org}" name="{name}" rev="{rev}" conf="{conf}"/>' for org, name, rev in parts]
    _, name, release = parts[0]
    ivy = _IVY.format(name=name, dependencies="".join(rows))
    return fetched_jars(f"{name}-{release}", ivy, f"{name}-{release}.jar")


def class_path(*folders: Path) -> str:
    return os.pathsep.join(f"{folder}{os.sep}*" for folder in folders)


@contextmanager
def application(command: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program during the block, with its output in a file."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"the application did not finish within {SECONDS} s")
        if process.poll() is not None:
            raise Failed(f"the application ended with {process.returncode}: {log.read_text(errors='replace')[-300:]}")
        time.sleep(0.5)


# kcat


@contextmanager
def kcat_start() -> Iterator[None]:
    if shutil.which("kcat") is None:
        raise Missing("kcat is not installed")
    printed = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
    if f"Version {KCAT_RELEASE} " not in printed:
        raise Missing(f"another release than {KCAT_RELEASE} is installed")
    yield


def kcat(run: Run, *arguments: str, stdin: bytes = b"") -> bytes:
    command = ["kcat", *arguments, "-q", "-b", run.address]
    answer = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
    if answer.returncode or answer.stderr:
        raise Failed(answer.stderr.decode(errors="replace")[-300:])
    return answer.stdout


def kcat_reads(run: Run) -> Any:
    found = {}
    for isolation in ("read_uncommitted", "read_committed"):
        places, _ = run.existing(isolation, "codec-", "txn-", "clean-", "expiring")
        options = ("-o", "beginning", "-e", "-X", f"isolation.level={isolation}", "-f", r"%o %T %K %S %k|%s|%h\n")
        for topic, partition in places:
            found[topic, partition, isolation] = kcat(run, "-C", "-t", topic, "-p", str(partition), *options)
    return found


def kcat_writes(run: Run) -> Any:
    lines = b"".join(b"k%d:v%d\n" % (number, number) for number in range(100))
    topic = run.topic("written")
    for codec in ("none", *CODECS):
        options = ("-p", "0", "-K", ":", "-H", "a=1", "-z", codec, "-X", "enable.idempotence=true")
        kcat(run, "-P", "-t", topic, *options, stdin=lines)
    rows = run.target.java.read(run.address, [(topic, 0)], "read_committed")[topic, 0]
    consumed = kcat(run, "-G", f"group-{topic}", topic, "-e", "-o", "beginning", "-f", "%k:%s\n")
    listed = json.loads(kcat(run, "-L", "-J", "-t", topic))
    partitions = [len(one["partitions"]) for one in listed["topics"] if one["topic"] == topic]
    written = [(row.offset, row.key, row.value, row.headers) for row in rows]
    return {"records": written, "consumed": consumed, "partitions": partitions}


KCAT: Mapping[str, Callable[[Run], Any]] = {
    "read existing topics with both isolation levels": kcat_reads,
    "write with all codecs and an idempotent producer, list, join a group": kcat_writes,
}


# Kafka Streams


def streams_jars() -> str:
    return class_path(kafka_jars(), artifacts(f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}", conf=ALONE))


@contextmanager
def streams_start() -> Iterator[None]:
    streams_jars()
    yield


def counts_words(run: Run, guarantee: str) -> Any:
    """Count words with Kafka Streams. Return the updates of each word."""
    name = guarantee.replace("_", "-")
    text, counts = run.topic(f"text-{name}", 2), run.topic(f"counts-{name}")
    suffix = text.removeprefix("text")
    rows: list[Record] = [
        (n % 2, START_MS + n, None, " ".join(WORDS[(n * m) % 5] for m in range(1, 6)).encode(), ())
        for n in range(LINES)
    ]
    state = run.target.folder / f"streams{suffix}-{run.address}"
    log = state.with_suffix(".log")
    command = [find_java(), *QUICK_JVM, QUIET_JVM, "-cp", streams_jars(), str(HERE / "WordCount.java")]
    found: dict[str, list[int]] = {}

    def is_complete() -> bool:
        found.clear()
        for row in run.target.java.read(run.address, [(counts, 0)], "read_committed")[counts, 0]:
            found.setdefault((row.key or b"").decode(), []).append(int(row.value or b""))
        return sum(map(len, found.values())) >= LINES * 5

    with application([*command, run.address, str(state), guarantee, suffix], log) as process:
        run.target.java.produce(run.address, text, rows[: LINES // 2])
        time.sleep(3)
        run.target.java.produce(run.address, text, rows[LINES // 2 :])
        wait_for(is_complete, process, log)
    return dict(found)


STREAMS: Mapping[str, Callable[[Run], Any]] = {
    "word count with `at_least_once`": partial(counts_words, guarantee="at_least_once"),
    "word count with `exactly_once_v2`": partial(counts_words, guarantee="exactly_once_v2"),
}


# Kafka Connect


def connect_jars() -> str:
    names = ("connect-runtime", "connect-file", "connect-json")
    return class_path(artifacts(*(f"org.apache.kafka:{name}:{KAFKA_VERSION}" for name in names)), kafka_jars())


@contextmanager
def connect_start() -> Iterator[None]:
    connect_jars()
    yield


def copies_files(run: Run) -> Any:
    """Copy a file to a topic and the topic to another file. Return the lines with their number."""
    topic = run.topic("connected")
    folder = run.target.folder / f"connect-{run.address}"
    folder.mkdir()
    (folder / "in.txt").write_text("".join(f"line {number}\n" for number in range(500)))
    converter = "org.apache.kafka.connect.storage.StringConverter"
    worker = {
        "bootstrap.servers": run.address,
        "key.converter": converter,
        "value.converter": converter,
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 1000,
        "listeners": "http://127.0.0.1:0",
        "plugin.discovery": "service_load",
        "consumer.auto.offset.reset": "earliest",
    }
    source = {
        "name": "source",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": folder / "in.txt",
        "topic": topic,
    }
    sink = {
        "name": f"sink-{topic}",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "file": folder / "out.txt",
        "topics": topic,
    }
    files = []
    for name, values in (("worker", worker), ("source", source), ("sink", sink)):
        files.append(folder / f"{name}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    log, out = folder / "log", folder / "out.txt"
    program = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = [find_java(), *QUICK_JVM, QUIET_JVM, "-cp", connect_jars(), program, *map(str, files)]
    with application(command, log) as process:
        wait_for(lambda: out.exists() and out.read_text().count("\n") >= 500, process, log)
    return Counter(out.read_text().splitlines() if out.exists() else ())


CONNECT: Mapping[str, Callable[[Run], Any]] = {"standalone worker with a file source and a file sink": copies_files}


# Flink's connector


def flink_jars() -> str:
    names = ("flink-clients", "flink-streaming-java", "flink-connector-base")
    flink = (f"org.apache.flink:{name}:{FLINK_RELEASE}" for name in names)
    connector = f"org.apache.flink:flink-connector-kafka:{FLINK_CONNECTOR_RELEASE}"
    return class_path(artifacts(connector, *flink, "org.slf4j:slf4j-simple:1.7.36"))


@contextmanager
def flink_start() -> Iterator[None]:
    flink_jars()
    yield


def flink_copies(run: Run, guarantee: str) -> Any:
    """Copy a topic with Flink. Return the values of the copy."""
    name = guarantee.lower().replace("_", "-")
    source, sink = run.topic(f"source-{name}", 2), run.topic(f"sink-{name}", 2)
    run.append(source, range(200), 2)
    log = run.target.folder / f"{sink}-{run.address}.log"
    opened = ("java.base/java.util=ALL-UNNAMED", "java.base/java.lang=ALL-UNNAMED")
    command = [find_java(), *QUICK_JVM, QUIET_JVM, *(f"--add-opens={one}" for one in opened)]
    command += ["-cp", flink_jars(), str(HERE / "FlinkCopy.java"), run.address, source, sink, guarantee]
    with application(command, log) as process:
        if process.wait(SECONDS):
            raise Failed(log.read_text(errors="replace")[-300:])
    places: list[Place] = [(sink, 0), (sink, 1)]
    rows = run.target.java.read(run.address, places, "read_committed")
    return sorted(int(row.value or b"") for found in rows.values() for row in found)


FLINK: Mapping[str, Callable[[Run], Any]] = {
    f"copy a topic with the delivery guarantee `{name}`": partial(flink_copies, guarantee=name)
    for name in ("AT_LEAST_ONCE", "EXACTLY_ONCE")
}


# Spark's connector


@contextmanager
def spark_start() -> Iterator[None]:
    connector_jars()
    yield


def by_topic(places: Sequence[Place], value: Any) -> dict[str, dict[str, Any]]:
    offsets: dict[str, dict[str, Any]] = {}
    for topic, partition in places:
        offsets.setdefault(topic, {})[str(partition)] = value
    return offsets


def run_spark(task: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run the requests of `spark_program.py` in a driver of their own."""
    jars = ",".join(map(str, connector_jars()))
    settings = {"spark.local.dir": str(folder / "scratch"), **spark_session.SETTINGS}
    options = " ".join(f"--conf '{name}={value}'" for name, value in settings.items() if name != "spark.driver.memory")
    submit = f"--master local[2] --driver-memory 1g --jars {jars} {options} pyspark-shell"
    environment = {**os.environ, **spark_session.environment(), "PYSPARK_SUBMIT_ARGS": submit}
    (folder / "task.json").write_text(json.dumps(task))
    command = [sys.executable, *map(str, (HERE / "spark_program.py", folder / "task.json", folder / "result.json"))]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if answer.returncode:
        raise Failed(answer.stderr[-5000:])
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def spark_copies(run: Run) -> Any:
    """Read existing topics, write a topic, and copy it with a stream that restarts."""
    folder = run.target.folder / f"spark-{run.address}"
    folder.mkdir()
    places, _ = run.existing("read_committed", "codec-", "txn-", "clean-", "expiring", "time-append")
    codecs, timed = ([place for place in places if place[0] == topic] for topic in ("codec-zstd", "time-append"))
    for topic in ("in", "out"):
        create_topic(run.address, topic, 3)
    assigned = by_topic(places, None)
    task = {
        "golden": run.address,
        "writable": run.address,
        "places": {topic: list(map(int, partitions)) for topic, partitions in assigned.items()},
        "some": {
            "subscribe": "codec-zstd",
            "startingOffsets": by_topic(codecs, 10),
            "endingOffsets": by_topic(codecs, 60),
        },
        "by_time": {
            "subscribe": "time-append",
            "startingOffsetsByTimestamp": by_topic(timed, 1),
            "endingOffsetsByTimestamp": by_topic(timed, 1_795_257_855_000),
        },
        "checkpoint": str(folder / "checkpoint"),
    }
    result = run_spark(task, folder)
    # Offsets and timestamps of written records depend on the order of Spark's tasks.
    written = {name: sorted(([row[1], *row[5:]] for row in result.pop(name)), key=str) for name in ("in", "out")}
    return {**result, **written}


SPARK: Mapping[str, Callable[[Run], Any]] = {
    "read existing topics; select by offset and by timestamp; write; copy with a stream that restarts": spark_copies
}
