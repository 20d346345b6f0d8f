r"""Copy topics between a running Kafka cluster and a sparklog root, in either direction, with Spark's Kafka connector.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 jobs/mirror.py \
        --from kafka://broker:9092 --to /data/log --topics orders,clicks --checkpoint /data/checkpoints/in
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 jobs/mirror.py \
        --from /data/log --to kafka://broker:9092 --pattern 'orders-.*' --checkpoint /data/checkpoints/out --follow

Records keep their partitions and their order, and missing topics are created in the target. In a root, records also
keep their timestamps, and a job that restarts from its checkpoint copies each record exactly once. When records are
copied to Kafka, the connector writes them at least once and cannot set timestamps. Without `--follow`, the job ends
when it has written the records that existed at its start. With `--follow`, the job also copies new topics that match
the pattern. See `sparklog.jobs.common` for exit codes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import sparklog
from sparklog.common.parsing import is_digits
from sparklog.common.units import count
from sparklog.console.options import IsolationOption, comma_separated, integer_option
from sparklog.console.parameters import Option
from sparklog.console.terminal import read_text
from sparklog.datasource.spark_versions import READ_LIMITS
from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable, did_you_mean, shortened
from sparklog.jobs.common import parse
from sparklog.jobs.stream import (
    QueryStatus,
    follow_to_end,
    known_timestamp,
    streaming_job,
    streaming_session,
    to_end,
)
from sparklog.kafka.in_place.directory import is_internal
from sparklog.log.journal.names import check_topic_name
from sparklog.maintenance.properties import parse_properties
from sparklog.opening import NOTHING, ROOT, open_log, resolve
from sparklog.output import log

if TYPE_CHECKING:
    from sparklog.log.topic.root import Root

SCHEME = "kafka://"
ENDPOINT = "kafka://host:port[,host:port], or a root"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
MAX_TASKS = 200
ADMIN_TIMEOUTS = {"request.timeout.ms": "15000", "default.api.timeout.ms": "30000"}
"""Default timeouts of the admin client. If the brokers are not available, the job fails within 30 s. Users can override
the timeouts.
"""
MAX_AGE = "metadata.max.age.ms"
"""Kafka's option for the interval at which topics are matched with a pattern. The default is 5 minutes."""
REPLACED_BY = {"bootstrap.servers": "the kafka:// address", "isolation.level": "--isolation-level"}

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,\[\]]+):(\d{1,5})")


@dataclass
class Mirror:
    """Options of the job. `topics` or `pattern` selects topics, and `options` are options of the Kafka clients."""

    source: Annotated[str, Option("--from", metavar="LOCATION", help=f"Location to copy from: {ENDPOINT}.")]
    target: Annotated[
        str,
        Option(
            "--to",
            metavar="LOCATION",
            help=f"Location to copy to: {ENDPOINT}. One of --from and --to must be a Kafka cluster, and the other must"
            " be a root.",
        ),
    ]
    checkpoint: Annotated[
        str, Option(help="Checkpoint location of the query. A restarted job resumes from the checkpoint.")
    ]
    topic_list: Annotated[str | None, Option("--topics", help="Topics to copy, separated by commas.")] = None
    pattern: Annotated[
        str | None,
        Option(excludes="--topics", help="Regular expression that matches the full names of the topics to copy."),
    ] = None
    follow: Annotated[bool, Option(help="Keep copying new records until stopped.")] = False
    kafka_option: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="Kafka client config to set. May be repeated.")
    ] = None
    kafka_config: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Properties file with Kafka client configs, such as client.properties.",
        ),
    ] = None
    isolation: IsolationOption = "read_committed"
    max_offsets_per_trigger: Annotated[
        int, integer_option(low=1, text="Approximate maximum number of records per micro-batch.")
    ] = 1_000_000
    no_fail_on_data_loss: Annotated[bool, Option(help="Continue if records were deleted before they were copied.")] = (
        False
    )
    topics: tuple[str, ...] = field(init=False)
    options: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        _check_endpoints(self.source, self.target)
        if self.topic_list is None and self.pattern is None:
            raise BadRequest("expected --topics or --pattern to select the topics to copy, found neither")
        self.topics = comma_separated([self.topic_list or ""])
        if self.topic_list is not None and not self.topics:
            raise BadRequest("--topics must not be empty")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise BadRequest(f"--pattern {self.pattern!r} is not a regular expression: {error}") from None
        self.options = _client_options(self.kafka_config, self.kafka_option or [])

    @property
    def into_kafka(self) -> bool:
        return self.target.startswith(SCHEME)

    @property
    def servers(self) -> str:
        return (self.target if self.into_kafka else self.source).removeprefix(SCHEME)


class RootEndpoint:
    """A sparklog root. If the target does not exist, it is created together with its first topic."""

    def __init__(self, path: str, *, target: bool) -> None:
        self._path = resolve(path)
        self.location = self._path.root
        if self._path.kind not in (ROOT, NOTHING) or (self._path.kind == NOTHING and not target):
            kind = "nothing yet" if self._path.kind == NOTHING else f"a {self._path.kind}"
            raise BadRequest(f"expected a sparklog root at {self._path.path}, found {kind}; set the path of a root")
        self._root: Root | None = open_log(self._path) if self._path.kind == ROOT else None

    def names(self) -> list[str]:
        return [] if self._root is None else self._root.topics()

    def partitions(self, names: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of each topic that exists."""
        if self._root is None:
            return {}
        heads = {name: self._root.engine.log(check_topic_name(name)).refresh().topic_state for name in names}
        return {name: state.partitions for name, state in heads.items() if state.exists}

    def create(self, name: str, partitions: int) -> None:
        if self._root is None:
            self._root = open_log(self._path, create=True)
        self._root.create_topic(name, partitions=partitions)

    def grow(self, name: str, partitions: int) -> str:
        """Return the command that increases the number of partitions of a topic."""
        return f"sparklog topics alter {name} --partitions {partitions} --root {shlex.quote(self.location)}"


class KafkaEndpoint:
    """A running cluster, which is accessed with the admin client in the Kafka jars of the driver."""

    def __init__(self, spark: SparkSession, servers: str, options: Mapping[str, str]) -> None:
        self.location = SCHEME + servers
        self._servers = servers
        self._jvm: Any = spark.sparkContext._jvm
        clients = self._jvm.org.apache.kafka.clients.admin
        if isinstance(clients.AdminClient, JavaPackage):
            # The .0 release of a Spark line is compatible with later releases, and all repositories have it.
            line = ".".join(spark.version.split(".")[:2])
            raise BadRequest(
                "Spark does not have the Kafka connector; start this job with spark-submit --packages "
                f"{CONNECTOR}:{line}.0, or add the connector's jars with --jars"
            )
        timeouts = {} if options.keys() & ADMIN_TIMEOUTS.keys() else ADMIN_TIMEOUTS
        properties = self._jvm.java.util.Properties()
        for name, value in {**timeouts, **options, "bootstrap.servers": servers}.items():
            properties.setProperty(name, value)
        with self._java_errors("cannot connect to"):
            self._admin = clients.AdminClient.create(properties)

    def close(self) -> None:
        self._admin.close()

    def names(self) -> list[str]:
        with self._java_errors("cannot list the topics of"):
            return sorted(self._jvm.java.util.ArrayList(self._admin.listTopics().names().get()))

    def partitions(self, names: Collection[str]) -> dict[str, int]:
        counts = {}
        with self._java_errors("cannot describe the topics of"):
            described = self._admin.describeTopics(self._java_list(names)).topicNameValues()
        for name in names:
            with self._java_errors(f"cannot describe topic '{name}' of", unless="UnknownTopicOrPartitionException"):
                counts[name] = int(described.get(name).get().partitions().size())
        return counts

    def create(self, name: str, partitions: int) -> None:
        optional = self._jvm.java.util.Optional
        topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(name, optional.of(partitions), optional.empty())
        hint = f"; create it with kafka-topics.sh --create --topic {name} --partitions {partitions} "
        with self._java_errors(f"cannot create topic '{name}' in", f"{hint}--bootstrap-server {self._servers}"):
            self._admin.createTopics(self._java_list([topic])).all().get()

    def grow(self, name: str, partitions: int) -> str:
        return f"kafka-topics.sh --bootstrap-server {self._servers} --alter --topic {name} --partitions {partitions}"

    def _java_list(self, items: Collection[object]) -> Any:
        result = self._jvm.java.util.ArrayList()
        for item in items:
            result.add(item)
        return result

    @contextmanager
    def _java_errors(self, what: str, hint: str = "", unless: str | None = None) -> Iterator[None]:
        """Raise a Java exception as a one-line `Unavailable` error. Exceptions of the class `unless` are ignored."""
        try:
            yield
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause.getCause() is not None:
                cause = cause.getCause()
            kind = cause.getClass().getSimpleName()
            if kind != unless:
                text = " ".join(str(cause.getMessage()).split())
                raise Unavailable(f"{what} {self.location}: {kind}: {text}{hint}") from None


Endpoint = RootEndpoint | KafkaEndpoint


def plan(mirror: Mirror, source: Endpoint, target: Endpoint) -> tuple[dict[str, int], list[str]]:
    """Return the partition counts of the topics to copy, and the topics that do not exist in the target."""
    if mirror.pattern is not None:
        names = [name for name in source.names() if re.fullmatch(mirror.pattern, name) and not is_internal(name)]
        if not names:
            raise NotFound(f"no topic in {source.location} matches '{mirror.pattern}'; check --pattern")
    else:
        names = list(mirror.topics)
    partitions = source.partitions(names)
    if mirror.pattern is not None:
        # Topics may have been deleted after they were listed.
        names = list(partitions)
    for name in names:
        if name not in partitions:
            raise NotFound(
                f"there is no topic '{name}' at {source.location}{did_you_mean(name, source.names())}; check --topics"
            )
        check_topic_name(name)
    existing = target.partitions(names)
    for name, number in existing.items():
        if number != partitions[name]:
            is_smaller = number < partitions[name]
            command = target.grow(name, partitions[name]) if is_smaller else source.grow(name, number)
            raise BadRequest(
                f"topic '{name}' has {count(partitions[name], 'partition')} at {source.location} and {number} at "
                f"{target.location}, but a mirror must have the same number of partitions; run {command}, or choose "
                "another target"
            )
    return partitions, [name for name in names if name not in existing]


def into_root(records: DataFrame) -> DataFrame:
    return records.select("topic", "partition", "key", "value", "headers", known_timestamp().alias("timestamp"))


def into_kafka(records: DataFrame, partitions: int) -> DataFrame:
    """Shuffle each partition, which several tasks may have read, to one task and sort it before it is sent to Kafka."""
    shuffled = records.repartition(max(1, min(partitions, MAX_TASKS)), "topic", "partition")
    ordered = shuffled.sortWithinPartitions("topic", "partition", "offset")
    return ordered.select("topic", "partition", "key", "value", "headers")


def start(spark: SparkSession, mirror: Mirror, partitions: Mapping[str, int]) -> StreamingQuery:
    clients = {f"kafka.{name}": value for name, value in mirror.options.items()}
    clients["kafka.bootstrap.servers"] = mirror.servers
    reader = spark.readStream.format("sparklog" if mirror.into_kafka else "kafka").options(
        subscribe=",".join(sorted(partitions)),
        startingOffsets="earliest",
        includeHeaders=True,
        failOnDataLoss=not mirror.no_fail_on_data_loss,
    )
    reader = reader.option("kafka.isolation.level", mirror.isolation)
    if READ_LIMITS or mirror.follow or not mirror.into_kafka:
        reader = reader.option("maxOffsetsPerTrigger", mirror.max_offsets_per_trigger)
    if mirror.into_kafka:

        def send(records: DataFrame, batch: int) -> None:
            ordered = into_kafka(records, sum(partitions.values()))
            ordered.write.format("kafka").options(**clients).mode("append").save()

        writer = reader.load(mirror.source).writeStream.foreachBatch(send)
    else:
        writer = into_root(reader.options(**clients).load()).writeStream.format("sparklog")
        writer = writer.option("auto.create.topics.enable", False).option("path", mirror.target)
    writer = writer.option("checkpointLocation", mirror.checkpoint)
    return (writer if mirror.follow else writer.trigger(availableNow=True)).start()


def create(target: Endpoint, partitions: Mapping[str, int], missing: Sequence[str]) -> None:
    for name in missing:
        target.create(name, partitions[name])
        log(f"created topic {name} with {count(partitions[name], 'partition')} at {target.location}")


def follow_pattern(
    spark: SparkSession,
    mirror: Mirror,
    source: Endpoint,
    target: Endpoint,
    partitions: dict[str, int],
    status: QueryStatus,
    query: StreamingQuery,
) -> None:
    """Wait for the query, and restart it when new topics match the pattern. New topics are added to `partitions`.

    Topics are matched at the same interval as in Kafka consumers. If a new topic cannot be copied, it is reported each
    time.
    """
    seconds = int(mirror.options.get(MAX_AGE, 300_000)) / 1000
    while not status.wait(query, seconds):
        try:
            planned, missing = plan(mirror, source, target)
            new = sorted(planned.keys() - partitions.keys())
            if not new:
                continue
            create(target, planned, missing)
        except SparklogError as error:
            log(f"sparklog mirror: {error} [{error.code}]; continuing with the previous topics")
            continue
        log(f"new topics: {', '.join(new)}")
        # If a Python process fails to start, the job starts the query again with the same topics.
        partitions.update(planned)
        stop_between_batches(query)
        status.update(query)
        query = start(spark, mirror, partitions)


def stop_between_batches(query: StreamingQuery) -> None:
    """Stop a query between two micro-batches. If the micro-batch does not end within a minute, stop the query, and the
    micro-batch is repeated after a restart.
    """
    for _ in range(120):
        if not query.status["isTriggerActive"] or query.awaitTermination(0.5):
            break
    query.stop()


def root_of(mirror: Mirror) -> RootEndpoint:
    return RootEndpoint(mirror.source if mirror.into_kafka else mirror.target, target=not mirror.into_kafka)


@streaming_job("mirror")
def run(spark: SparkSession, mirror: Mirror) -> int:
    sparklog.register(spark)
    root = root_of(mirror)
    kafka = KafkaEndpoint(spark, mirror.servers, mirror.options)
    try:
        source, target = (root, kafka) if mirror.into_kafka else (kafka, root)
        partitions, missing = plan(mirror, source, target)
        create(target, partitions, missing)
        begin = partial(start, spark, mirror, partitions)
        if mirror.follow and mirror.pattern is not None:
            follow = partial(follow_pattern, spark, mirror, source, target, partitions)
            return to_end("mirror", begin, mirror.target, follow)
        return follow_to_end("mirror", begin, mirror.target)
    finally:
        kafka.close()


arguments = partial(parse, "mirror", Mirror, __doc__)


def _check_endpoints(source: str, target: str) -> None:
    kafka = [endpoint for endpoint in (source, target) if endpoint.startswith(SCHEME)]
    if len(kafka) != 1:
        raise BadRequest(
            f"one of --from and --to must be {SCHEME}host:port and the other the path of a root, found "
            f"{shortened(source)} and {shortened(target)}; use `sparklog stream` to copy between paths"
        )
    for server in kafka[0].removeprefix(SCHEME).split(","):
        if _SERVER.fullmatch(server) is None:
            raise BadRequest(f"expected {SCHEME}host:port[,host:port], found {shortened(kafka[0])}")


def _client_options(file: str | None, pairs: Sequence[str]) -> dict[str, str]:
    """Return the options in the file, overridden by options in the command line. A prefix `kafka.` is removed."""
    options: dict[str, str] = {}
    if file is not None:
        text = read_text(Path(file), "--kafka-config")
        options = {entry.name: entry.value for entry in parse_properties(text, file)}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name.strip() or not equals:
            raise BadRequest(f"--kafka-option must be NAME=VALUE, found '{pair}'")
        options[name.strip()] = value.strip()
    options = {name.removeprefix("kafka."): value for name, value in options.items()}
    age = options.get(MAX_AGE, "1")
    if not is_digits(age) or int(age) < 1:
        raise BadRequest(f"{MAX_AGE} must be an integer of at least 1 (milliseconds), found '{age}'")
    for name, instead in REPLACED_BY.items():
        if name in options:
            raise BadRequest(f"{name} cannot be set as a Kafka option; use {instead} instead")
    return options


@streaming_job("mirror")
def main(words: Sequence[str]) -> int:
    mirror = arguments(words)
    # Check the root before Spark starts, because the start takes seconds.
    root_of(mirror)
    with streaming_session("sparklog mirror") as spark:
        return run(spark, mirror)
