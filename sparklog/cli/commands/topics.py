"""The command `sparklog topics`, which creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from sparklog.console import options as opt
from sparklog.console.locations import open_root, open_source
from sparklog.console.parameters import Commands, Option
from sparklog.console.terminal import Output, print_lines, print_table, printable, warn
from sparklog.errors import NotFound, SparklogError

if TYPE_CHECKING:
    from sparklog.log.state.view import LogView
    from sparklog.log.topic.root import Root

app = Commands("topics", "Create, list, describe, alter and delete topics.")

ReplicationOption = Annotated[
    int | None,
    opt.integer_option(
        "--replication-factor", low=-1, text="Has no effect, because the disk or bucket replicates the data."
    ),
]


@dataclass(frozen=True)
class PartitionRow:
    partition: int
    log_start: int
    last_stable: int
    log_end: int
    bytes: int


@dataclass(frozen=True)
class TopicRow:
    """A topic as printed by `describe`.

    `configs` contains the configs that were set on the topic, and `open_transactions` the transactional ids whose open
    transactions block readers. Both are None for Kafka directories. `kafka_topic_id` is the id of the Kafka topic from
    which the topic was imported.
    """

    topic: str
    topic_id: str
    partition_count: int
    configs: dict[str, str] | None
    partitions: list[PartitionRow]
    open_transactions: list[str] | None
    kafka_topic_id: str | None = None


@app.add("create", "sparklog topics create orders --root /data/log --partitions 16 -c retention.ms=86400000")
def create(
    root: opt.RootOption,
    *,
    topic: opt.OneTopic,
    partitions: Annotated[
        int | None,
        opt.integer_option(
            "-p", low=1, text="Number of partitions of the topic.", default="num.partitions of the root, or 1"
        ),
    ] = None,
    replication_factor: ReplicationOption = None,
    config: opt.ConfigOption = None,
    if_not_exists: Annotated[bool, Option(help="Succeed if the topic already exists.")] = False,
) -> Output:
    """Create a topic. If the root does not exist, the root is also created."""
    from sparklog.log.topic.expiring import default_expiry

    _warn_of_replicas(replication_factor, root)
    configs = opt.parse_configs(config)
    name = topic.name
    log = open_root(root, create=True)
    existed = if_not_exists and _exists(log, name)
    make = log.ensure_topic if if_not_exists else log.create_topic
    created = make(name, partitions=partitions, configs=configs).log
    state = created.state(refresh=False)
    text = f"Created topic {name} with {state.partitions} partition{'s' * (state.partitions > 1)} in {log.location}."
    expiry = None if existed else default_expiry(created.read_configs())
    return Output(
        {"topic": name, "created": not existed},
        lambda: print(f"Topic {name} already exists." if existed else text),
        after=None if expiry is None else lambda: warn(f"topic {name}: {expiry}"),
    )


def _warn_of_replicas(replication_factor: int | None, root: str) -> None:
    if replication_factor not in (None, 1):
        warn(f"--replication-factor {replication_factor} has no effect, because the storage of {root} replicates data")


@app.add("list", "sparklog topics list --root /data/log")
def list_(root: opt.SourceOption, *, topics: opt.TopicChoice) -> Output:
    """List topics, one per line."""
    source = topics.of(open_source(root), may_be_none=True)
    requested = topics.names
    names = [name for name in source.topics() if requested is None or name in requested]
    return Output(names, lambda: print_lines(names), source.failures)


@app.add("describe", "sparklog topics describe orders --root /data/log")
def describe(
    root: opt.SourceOption,
    *,
    topics: opt.TopicChoice,
    topics_with_overrides: Annotated[
        bool, Option(help="Show only topics with overridden configs, and only their overridden configs.")
    ] = False,
    if_exists: Annotated[bool, Option(help="Skip topics that do not exist.")] = False,
) -> Output:
    """Describe the ids, configs, offsets and sizes of topics."""
    source = topics.of(open_source(root), may_be_none=if_exists)
    opened, names = source.root, topics.names
    if if_exists and names is not None:
        source, names = replace(source, accepts=names.__contains__), None
    rows = source.each(names, lambda name: _kafka(source.view, name) if opened is None else _of_root(opened, name))
    if topics_with_overrides:
        rows = [replace(row, partitions=[]) for row in rows if row.configs]
    return Output(rows, lambda: _show(rows), source.failures)


def _of_root(root: Root, name: str) -> TopicRow:
    from sparklog.log.state.configs import TOPIC_CONFIG
    from sparklog.log.state.description import describe

    # Use one snapshot of the root defaults for all topics of the command.
    topic = describe(root.topic(name).log.read_snapshot(), root.engine.defaults.read())
    return TopicRow(
        name,
        topic.topic_id,
        len(topic.partitions),
        configs={config.name: config.value for config in topic.configs if config.source == TOPIC_CONFIG},
        partitions=[
            PartitionRow(part.partition, part.log_start, part.last_stable, part.log_end, part.bytes)
            for part in topic.partitions
        ],
        open_transactions=[
            *dict.fromkeys(transaction for transaction, _ in topic.open_transactions),
            *map(str, topic.kafka_open),
        ],
        kafka_topic_id=topic.kafka_topic_id or None,
    )


def _kafka(view: LogView, name: str) -> TopicRow:
    from sparklog.log.state.view import OffsetRange

    topic_id = view.topic_id(name)
    view.refresh([name])
    bounds = sorted(view.bounds(name).items())
    stored = view.stored([OffsetRange(name, partition, bound.log_start, bound.log_end) for partition, bound in bounds])
    rows = [
        PartitionRow(partition, bound.log_start, bound.last_stable, bound.log_end, size.nbytes)
        for (partition, bound), size in zip(bounds, stored, strict=True)
    ]
    return TopicRow(name, topic_id, len(bounds), configs=None, partitions=rows, open_transactions=None)


def _show(rows: list[TopicRow]) -> None:
    """Print each topic as a line in the format of kafka-topics, followed by a table of its partitions."""
    for row in rows:
        configs = ",".join(f"{name}={value}" for name, value in sorted((row.configs or {}).items()))
        name, count = printable(row.topic), row.partition_count
        print(f"Topic: {name}\tTopicId: {row.topic_id}\tPartitionCount: {count}\tConfigs: {configs}")
        if row.kafka_topic_id:
            print(f"Imported from the Kafka topic with id {row.kafka_topic_id}")
        if not row.partitions:
            continue
        headings = ("PARTITION", "LOG-START", "LAST-STABLE", "LOG-END", "BYTES")
        print_table(headings, [tuple(vars(part).values()) for part in row.partitions], right=headings)
        if row.open_transactions:
            print(f"Held back by open transactions: {printable(', '.join(row.open_transactions))}")


@app.add("alter", "sparklog topics alter orders --root /data/log --partitions 32")
def alter(
    root: opt.RootOption,
    partitions: Annotated[int, opt.integer_option("-p", low=1, text="New number of partitions of the topic.")],
    *,
    topic: opt.OneTopic,
    replication_factor: ReplicationOption = None,
    if_exists: Annotated[bool, Option(help="Succeed if the topic does not exist.")] = False,
) -> Output:
    """Add partitions to a topic. To alter configs, use `sparklog configs alter`."""
    _warn_of_replicas(replication_factor, root)
    log, name = open_root(root), topic.name
    shown = printable(name)
    if if_exists and not _exists(log, name):
        return Output.from_lines({"topic": name, "partitions": None}, f"Topic {shown} does not exist.")
    log.topic(name).alter(partitions=partitions)
    warn(f"topic {shown}: keys now map to other partitions, so old and new records of a key are not ordered")
    return Output.from_lines({"topic": name, "partitions": partitions}, f"Altered topic {name}.")


@app.add("delete", "sparklog topics delete orders --root /data/log")
def delete(
    root: opt.RootOption,
    *,
    topic: opt.TopicOrPattern,
    if_exists: Annotated[bool, Option(help="Succeed if the topic does not exist.")] = False,
) -> Output:
    """Delete a topic without confirmation, as kafka-topics does.

    The vacuum of `sparklog retain` deletes the files of the topic later. If --pattern is given, the command only lists
    the matching topics. Add --execute to delete the topics.
    """
    log, executes = open_root(root), topic.executes
    failures: list[SparklogError] = []
    try:
        names = topic.matching(log.topics, log.location)
    except NotFound:
        if not if_exists:
            raise
        names = []
    deleted = {name: _deleted(log, name, executes, if_exists, failures if topic.pattern else None) for name in names}
    verb = "Deleted" if executes else "Would delete"
    lines = [
        f"{verb} topic {name}." if exists else f"Topic {printable(name)} does not exist."
        for name, exists in deleted.items()
    ]
    if topic.pattern is None:
        document: dict[str, object] = {"topic": topic.name, "deleted": executes and deleted[topic.name]}
    else:
        existing = [name for name in deleted if deleted[name]]
        document = {"pattern": topic.pattern, "executed": executes, "topics": existing}
        lines += [] if executes else ["Nothing was changed; add --execute to make the changes."]
    return Output.from_lines(document, *lines, failures=failures)


def _deleted(log: Root, name: str, executes: bool, if_exists: bool, failures: list[SparklogError] | None) -> bool:
    """Delete a topic, or check that it exists. Append errors to `failures`, or raise them if `failures` is None."""
    try:
        if if_exists and not _exists(log, name):
            return False
        if executes:
            log.delete_topic(name)
        else:
            log.topic(name)
    except SparklogError as error:
        if failures is None:
            raise
        failures.append(error)
        return False
    return True


def _exists(log: Root, topic: str) -> bool:
    try:
        log.topic(topic)
    except NotFound:
        return False
    return True
