"""What `bench_peers` measures: the variants of the other benchmarks, and Spark with Kafka and Delta beside them.

A variant is an action to be timed. Names that begin with `sparklog` are ours; `bare` and `noop` are what Spark itself
costs, so no peers; all others are. Peers are tried as they come and with the best settings that we know.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import bench_log
import bench_maintenance
import bench_producer
import bench_serve
import bench_spark
from bare_source import BareSource
from bench_delta import create_topic
from pyspark.sql import DataFrame, SparkSession
from spark_session import TICKS, Timing, benchmark_session

import sparklog
from sparklog.compaction.clean_plan import plan_cleaning
from sparklog.format.checkpoint_files import CLEANER_OFFSETS_FILE
from sparklog.jobs import delta
from sparklog.kafka.exporting.run import ExportOptions, export_topics
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import InProcess
from tests.datasource.live_delta import delta_jars
from tests.datasource.live_kafka import connector_jars
from tests.kafka_broker import SERVER_JVM, Broker
from tests.kafka_tools import Missing

Variants = dict[str, Callable[[], object]]
SINK_TUNED = {"kafka.linger.ms": "100", "kafka.batch.size": str(1 << 20), "kafka.buffer.memory": str(128 << 20)}
FETCH = str(16 << 20)
SOURCE_TUNED = {
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.bytes": FETCH,
    "kafka.max.partition.fetch.bytes": FETCH,
    "kafka.receive.buffer.bytes": str(1 << 20),
    # After the last record, the consumer's next fetch waits 500 ms, and delays the request for the log end offset.
    "kafka.fetch.max.wait.ms": "10",
}
# Hadoop starts fewer commands such as `chmod` for the files of a checkpoint.
CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager"
}
DELTA_TUNED = {
    **delta.SETTINGS,
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "100",
    "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "0",
}
STREAM_BATCHES, STREAM_WARM_UP = 20, 3
COPIES = ("first", "second")
CLEANED = re.compile(r"cleaned log (?:first|second)-0 .*?of log processed in ([\d.]+) seconds", re.DOTALL)
CLEANER_PROPERTIES = "log.cleaner.enable=true\nlog.cleaner.threads=1\nlog.segment.delete.delay.ms=1000\n"


@dataclass(frozen=True)
class Work:
    """A work that variants do in turns. `places`: the files that a variant leaves, for their bytes."""

    name: str
    about: str
    records: int
    variants: Variants
    places: Mapping[str, Callable[[], list[Path]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """Surroundings of all works. `missing` takes what could not be measured, and why."""

    folder: Path
    records: int
    missing: list[str]


def spark_works(setting: Setting) -> Iterator[Work]:
    """Append, scan and micro-batches through Spark."""
    jars: dict[str, list[Path]] = {}
    for name, fetch in (("delta", delta_jars), ("kafka", connector_jars)):
        try:
            jars[name] = fetch()
        except Missing as reason:
            setting.missing.append(f"{name}: {reason}")
    named = {jar.name: str(jar) for paths in jars.values() for jar in paths}
    best = {**CHECKPOINTS, **(DELTA_TUNED if "delta" in jars else {})}
    with ExitStack() as stack:
        broker = _broker(setting, stack, "broker") if "kafka" in jars else None
        spark = benchmark_session(**({"spark.jars": ",".join(named.values())} if named else {}), **best)
        stack.callback(spark.stop)
        sparklog.register(spark)
        spark.dataSource.register(BareSource)
        spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
        yield from _SparkWorks(spark, setting, broker, "delta" in jars).works()


@dataclass
class _SparkWorks:
    spark: SparkSession
    setting: Setting
    broker: Broker | None
    has_delta: bool

    def __post_init__(self) -> None:
        self.folder, self.numbers = self.setting.folder / "spark", count()

    def works(self) -> Iterator[Work]:
        records, shared = self.setting.records, argparse.Namespace(records=self.setting.records, value_bytes=104)
        source = bench_spark.events(self.spark, self.folder, records, shared.value_bytes)
        variants = bench_spark.append_variants(source, self.folder)
        places = {
            **{f"parquet-{codec}": self._below(f"parquet-{codec}") for codec in bench_spark.CODECS},
            **{f"sparklog-{codec}": self._below(f"root-{codec}") for codec in bench_spark.CODECS},
        }
        if self.has_delta:
            variants["delta-zstd"], places["delta-zstd"] = self._delta_append(source), self._below("delta-append")
        for name, tuned in self._kafka_ways().items():
            variants[name], places[name] = self._kafka_append(source, tuned)
        about = "One Spark job writes keys and values from Parquet files in the page cache to 16 partitions or files"
        yield Work("append", about, records, variants, places)
        scans = bench_spark.scan_variants(self.spark, self.folder, shared) | self._peer_scans(source)
        values = {name: scan for name, scan in scans.items() if name.endswith(" value")}
        yield Work(
            "scan",
            "A Spark job reads six columns into Spark's noop sink",
            records,
            {n: v for n, v in scans.items() if n not in values},
        )
        whole = {name.removesuffix(" value"): scan for name, scan in values.items()}
        yield Work("scan of the value", "A Spark job reads only the value into Spark's noop sink", records, whole)
        about = "A new streaming query with the trigger availableNow reads six columns into Spark's noop sink"
        drains = bench_spark.drain_variants(self.spark, self.folder, shared) | self._kafka_drains()
        yield Work("drain", about, records, drains)
        about = (
            "A streaming query reads 2,000 records per second from Spark's rate source. *Wall s* and *p95 s* are the "
            f"duration of a micro-batch. *CPU s* is the CPU time of the whole query, with {STREAM_WARM_UP} more "
            "micro-batches at its beginning, and of the broker, which also runs while other variants are measured"
        )
        yield Work("micro-batch", about, STREAM_BATCHES, self._streams())

    def _below(self, name: str) -> Callable[[], list[Path]]:
        return lambda: [path for path in (self.folder / name).rglob("*") if path.is_file()]

    def _kafka_ways(self) -> dict[str, bool]:
        return {"kafka-lz4": False, "kafka-lz4 tuned": True} if self.broker is not None else {}

    def _delta_append(self, source: DataFrame) -> Callable[[], object]:
        path = self.folder / "delta-append"

        def append() -> None:
            shutil.rmtree(path, ignore_errors=True)
            source.write.format("delta").mode("append").save(str(path))

        return append

    def _sink(self, topic: str, tuned: bool) -> dict[str, str]:
        assert self.broker is not None
        create_topic(self.spark, self.broker.address, topic, bench_spark.PARTITIONS)
        servers = {"kafka.bootstrap.servers": self.broker.address, "topic": topic, "kafka.compression.type": "lz4"}
        return servers | (SINK_TUNED if tuned else {})

    def _kafka_append(self, source: DataFrame, tuned: bool) -> tuple[Callable[[], object], Callable[[], list[Path]]]:
        topics: list[str] = []

        def append() -> None:
            topics.append(f"append-{next(self.numbers)}")
            source.write.format("kafka").options(**self._sink(topics[-1], tuned)).save()

        def logs() -> list[Path]:
            assert self.broker is not None
            return [*self.broker.data.glob(f"{topics[-1]}-*/*.log")]

        return append, logs

    def _peer_scans(self, source: DataFrame) -> Variants:
        columns, scans, spark = bench_spark.COLUMNS, Variants(), self.spark

        def drain(read: Callable[[], DataFrame], *names: str) -> Callable[[], object]:
            return lambda: read().select(*names).write.format("noop").mode("overwrite").save()

        def parquet() -> DataFrame:
            return spark.read.parquet(str(self.folder / "scan-zstd"))

        scans["parquet-zstd value"] = drain(parquet, "value")
        if self.has_delta:
            path = str(self.folder / "delta-scan")
            parquet().write.format("delta").mode("append").save(path)
            scans["delta-zstd"] = drain(lambda: spark.read.format("delta").load(path), *columns)
            scans["delta-zstd value"] = drain(lambda: spark.read.format("delta").load(path), "value")
        if self.broker is not None:
            source.write.format("kafka").options(**self._sink("scan", tuned=True)).save()
            place = {"kafka.bootstrap.servers": self.broker.address, "subscribe": "scan"}
            for name, tuned in self._kafka_ways().items():
                options = place | (SOURCE_TUNED if tuned else {})
                read = spark.read.format("kafka").options(**options).load
                scans[name], scans[f"{name} value"] = drain(read, *columns), drain(read, "value")
        return scans

    def _kafka_drains(self) -> Variants:
        """Make the drains of the topic that the scans read."""
        drains, checkpoint = Variants(), self.folder / "kafka-drained"
        for name, tuned in self._kafka_ways().items():
            assert self.broker is not None
            place = {"kafka.bootstrap.servers": self.broker.address, "subscribe": "scan", "startingOffsets": "earliest"}
            frame = self.spark.readStream.format("kafka").options(**place, **(SOURCE_TUNED if tuned else {})).load()
            drain = frame.select(*bench_spark.COLUMNS)
            drains[name] = partial(bench_spark.drain_stream, drain, checkpoint, self.setting.records)
        return drains

    def _streams(self) -> Variants:
        rows = bench_spark.ticks(self.spark)
        into = {"topic": "ticks", "num.partitions": "4", "path": str(self.folder / "streams")}
        writers: dict[str, Any] = {
            "bare": rows.writeStream.format("bare"),
            "sparklog": rows.writeStream.format("sparklog").options(**into),
        }
        if self.has_delta:
            table = str(self.folder / "delta-stream")
            writers["delta"] = rows.writeStream.format("delta").option("path", table)
        if self.broker is not None:
            # A linger would make each micro-batch wait.
            writers["kafka"] = rows.writeStream.format("kafka").options(**self._sink("ticks", tuned=False))

        def stream(writer: Any) -> Callable[[], Timing]:
            return lambda: self._stream(writer)

        return {name: stream(writer) for name, writer in writers.items()}

    def _stream(self, writer: Any) -> Timing:
        checkpoint = str(self.folder / "checkpoints" / str(next(self.numbers)))
        progress = bench_spark.run_query(writer, checkpoint, STREAM_BATCHES, STREAM_WARM_UP)
        seconds = sorted(batch["durationMs"]["triggerExecution"] / 1000 for batch in progress)
        return Timing(statistics.median(seconds), p95=seconds[int(len(seconds) * 0.95) - 1])


def server_works(setting: Setting) -> Iterator[Work]:
    """A producer of single records, and Java's performance tools at both servers."""
    with ExitStack() as stack:
        broker = _broker(setting, stack, "serving")
        records = setting.records // 10
        root = sparklog.open(setting.folder / "producer", create=True)
        root.create_topic("bench", partitions=bench_producer.PARTITIONS)
        sends: dict[str, Any] = {"sparklog": bench_producer.SparklogSends(sparklog.producer(root, linger_ms=50))}
        if broker is not None and bench_serve.has_librdkafka():
            broker.create("bench", bench_producer.PARTITIONS)
            sends["confluent-kafka"] = bench_producer.ConfluentSends(broker.address, 50)
        elif broker is not None:
            setting.missing.append("confluent-kafka: it is not installed")

        def send(producer: Any) -> Callable[[], object]:
            return lambda: bench_producer.send_all(producer, records)

        about = "A Python producer sends single values of 100 bytes with zstd and a linger of 50 ms"
        yield Work("producer", about, records, {name: send(producer) for name, producer in sends.items()})
        address = broker.address if broker is not None and "confluent-kafka" in sends else None
        # librdkafka looks for its broker for as long as a producer is there.
        sends.pop("sparklog").producer.close()
        sends.clear()
        # The producers have sent the records at least twice.
        reads: Variants = {name: _read(read, records) for name, read in bench_producer.readers(root, address).items()}
        yield Work("consumer", "A Python program iterates over single records of 100 bytes", records, reads)
        if broker is None:
            return
        server = stack.enter_context(bench_serve.sparklog_server(setting.folder / "served"))
        yield from _tool_works(broker, [server, bench_serve.Served("kafka", broker.address, broker.pid)], records)


def _read(read: Callable[[int], float], records: int) -> Callable[[], Timing]:
    return lambda: Timing(read(records))


def _tool_works(broker: Broker, servers: list[bench_serve.Served], records: int) -> Iterator[Work]:
    numbers = count()
    for server in servers:
        bench_serve.create(server, "read")
        bench_serve.produce(broker, server, "read", records)

    def produce(server: bench_serve.Served) -> Timing:
        topic = f"written-{next(numbers)}"
        bench_serve.create(server, topic)
        return Timing(records / bench_serve.produce(broker, server, topic, records))

    def consume(way: Callable[..., float], server: bench_serve.Served) -> Timing:
        megabytes = records * bench_serve.RECORD_BYTES / 2**20
        return Timing(megabytes / way(broker, server, "read", records))

    def variants(action: Callable[..., Timing], *arguments: Any) -> Variants:
        names = ["sparklog serve", "kafka"]
        return {name: _call(action, *arguments, server) for name, server in zip(names, servers, strict=True)}

    yield Work(
        "produce by Java's tool", "kafka-producer-perf-test writes with acks=all and lz4", records, variants(produce)
    )
    java = variants(consume, bench_serve.consume_java)
    yield Work("consume by Java's tool", "kafka-consumer-perf-test reads one topic", records, java)
    if bench_serve.has_librdkafka():
        librdkafka = variants(consume, bench_serve.consume_librdkafka)
        yield Work(
            "consume by librdkafka",
            "A confluent-kafka consumer reads up to 10,000 records with each call",
            records,
            librdkafka,
        )


def _call(action: Callable[..., Timing], *arguments: Any) -> Callable[[], object]:
    return lambda: action(*arguments)


def local_works(setting: Setting) -> Iterator[Work]:
    """Without Spark: pyarrow's Parquet, and Kafka's cleaner."""
    rows = min(setting.records, 500_000)
    table = bench_log.table_of(rows, 100)
    variants: dict[str, Variants] = {"append": {}, "scan": {}}
    for codec in ("none", "lz4", "zstd"):
        contenders = bench_log.throughput_contenders(setting.folder / f"plain-{codec}", table, codec, durable=True)
        for work, actions in contenders.items():
            variants[work] |= {f"{name}-{codec}": action for name, action in actions.items()}
    yield Work(
        "append in one process",
        "One Python process appends to 16 partitions. pyarrow writes one file",
        rows,
        variants["append"],
    )
    yield Work("scan in one process", "One Python process reads all columns", rows, variants["scan"])
    yield from _cleaning(setting)


def _cleaning(setting: Setting) -> Iterator[Work]:
    """Keep the latest record of each key of a partition: all of it dirty, a tenth as many keys as records."""
    variants: Variants = {}
    with ExitStack() as stack:
        for codec in ("none", "lz4"):
            topic = _keyed(setting, codec)
            variants[f"sparklog-{codec}"] = _call(_clean, setting, codec)
            broker = _broker(setting, stack, f"cleaner-{codec}", CLEANER_PROPERTIES, stop=True)
            if broker is not None:
                variants[f"kafka's cleaner-{codec}"] = _call(
                    _kafka_clean, broker, topic, setting.folder / f"out-{codec}"
                )
        about = "One thread compacts one completely dirty partition with ten records per key"
        yield Work("compaction", about, setting.records, variants)


def _keyed(setting: Setting, codec: Any) -> Topic:
    """A sealed topic in a folder of its own, and a record after it: Kafka leaves the active segment alone."""
    place = Path(tempfile.mkdtemp(dir=setting.folder))
    configs: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 256 << 20}
    topic = bench_maintenance.filled(place, "t", setting.records, setting.records // 10, codec=codec, **configs)
    bench_maintenance.sealed(topic, InProcess())
    topic.append({"key": [b"last"], "value": [b"x"]})
    return topic


def _clean(setting: Setting, codec: str) -> Timing:
    topic = _keyed(setting, codec)
    works = plan_cleaning(topic.store, topic.log.snapshot(), bench_maintenance.settings())
    cpu = time.process_time()
    seconds, _ = bench_maintenance.run(topic, works, InProcess())
    cpu = time.process_time() - cpu
    shutil.rmtree(topic.root.location)
    return Timing(seconds, cpu, {"driver": round(cpu, 3)})


def _kafka_clean(broker: Broker, topic: Topic, out: Path) -> Timing:
    """Start a broker on two copies of the topic's files: the second that is cleaned finds the code compiled.

    Wall seconds that the cleaner says, and CPU seconds of its thread.
    """
    if not out.exists():
        broker.start()
        configs = {"cleanup.policy": "compact", "segment.bytes": str(256 << 20), "min.cleanable.dirty.ratio": "0.01"}
        ids = {copy: broker.create(copy, 1, configs) for copy in COPIES}
        broker.stop()
        for copy, topic_id in ids.items():
            options = ExportOptions(topic_id=topic_id, durable=False)
            export_topics(sparklog.open(topic.root.location), out / copy, [topic.name], options)
    # Else they are as clean as after the run before.
    (broker.data / CLEANER_OFFSETS_FILE).unlink(missing_ok=True)
    for copy in COPIES:
        broker.replace(out / copy, topic.name, copy)
    before = len(broker.said())
    broker.start()
    try:
        begun = _thread_cpu(broker, before, 1)
        cpu = _thread_cpu(broker, before, 2) - begun
        seconds = CLEANED.findall(broker.said()[before:])[1]
    finally:
        broker.stop()
    return Timing(float(seconds), cpu, {"cleaner's thread": round(cpu, 3)})


def _thread_cpu(broker: Broker, before: int, copies: int) -> float:
    """CPU seconds of the cleaner's thread when so many logs are clean."""
    deadline = time.monotonic() + 300
    while len(CLEANED.findall(broker.said()[before:])) < copies:
        if time.monotonic() > deadline:
            raise SystemExit(f"Kafka's cleaner did nothing in 300 s: {broker.said()[-500:]}")
        time.sleep(0.1)
    for task in Path(f"/proc/{broker.pid}/task").iterdir():
        state, _, rest = (task / "stat").read_text().rpartition(")")
        if "kafka-log-clean" in state:
            fields = rest.split()
            return (int(fields[11]) + int(fields[12])) / TICKS
    raise SystemExit("the broker has no thread of a cleaner")


def _broker(setting: Setting, stack: ExitStack, name: str, more: str = "", *, stop: bool = False) -> Broker | None:
    """A broker as Kafka's scripts start it, or None if there cannot be one. `stop`: it is started by who uses it."""
    try:
        broker = Broker(setting.folder / name, more, SERVER_JVM)
    except Missing as reason:
        setting.missing.append(f"a broker ({name}): {reason}")
        return None
    stack.callback(broker.stop)
    if not stop:
        broker.start()
    return broker


SECTIONS: Mapping[str, Callable[[Setting], Iterator[Work]]] = {
    # Spark last: its JVM stays.
    "local": local_works,
    "servers": server_works,
    "spark": spark_works,
}


def keep(timing: Timing) -> dict[str, Any]:
    """A timing for the document of results."""
    rounded = replace(timing, wall=round(timing.wall, 4), cpu=round(timing.cpu, 3))
    return {name: value for name, value in vars(rounded).items() if value is not None}
