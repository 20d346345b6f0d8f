"""`sparklog topics`: create, list, describe, alter, delete."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import ConfigOption, JsonOption, PlaceOption, RootOption, example, parse_configs

if TYPE_CHECKING:
    from sparklog.cli.places import Place
    from sparklog.log.root import Root
    from sparklog.log.view import LogView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Create, list, describe, alter and delete topics.")

TopicArgument = Annotated[str, typer.Argument(help="Topic.")]


@dataclass(frozen=True)
class PartitionRow:
    """One line of `describe`: offsets as Kafka counts them, and stored bytes."""

    partition: int
    logStart: int  # noqa: N815 - names of the JSON
    lastStable: int  # noqa: N815
    logEnd: int  # noqa: N815
    bytes: int


@dataclass(frozen=True)
class TopicRow:
    """One topic as `describe` shows it. `configs` are those that were set, `openTransactions` the transactional ids
    that hold back the last stable offset; both None where the place does not say (Kafka's directories).
    `kafkaTopicId`: of the topic that it was imported from, None if it was not or that had none."""

    topic: str
    topicId: str  # noqa: N815
    partitionCount: int  # noqa: N815
    configs: dict[str, str] | None
    partitions: list[PartitionRow]
    openTransactions: list[str] | None  # noqa: N815
    kafkaTopicId: str | None = None  # noqa: N815


@app.command(epilog=example("sparklog topics create orders --root /data/log --partitions 16 -c retention.ms=86400000"))
def create(
    topic: TopicArgument,
    root: RootOption,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="How many.")] = 1,
    config: ConfigOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing and succeed if it is there already.")
    ] = False,
) -> None:
    """Create a topic. A folder that holds nothing yet becomes a new root."""
    from sparklog.cli.places import open_root

    configs = parse_configs(config)
    log = open_root(root, create=True)
    if if_not_exists:
        log.ensure_topic(topic, partitions=partitions, configs=configs)
    else:
        log.create_topic(topic, partitions=partitions, configs=configs)
    print(f"Created topic {topic}.")


@app.command("list", epilog=example("sparklog topics list --root /data/log"))
def list_(root: PlaceOption, as_json: JsonOption = False) -> None:
    """List the topics, one per line."""
    from sparklog.cli.places import open_place

    names = open_place(root).topics()
    if as_json:
        print(json.dumps(names))
        return
    for name in names:
        print(name)


@app.command(epilog=example("sparklog topics describe orders --root /data/log"))
def describe(
    root: PlaceOption,
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics; none means all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show id, configs and, for each partition, offsets and size."""
    from sparklog.cli.places import open_place

    place = open_place(root)
    names = [place.one_topic(name) for name in topics] if topics else place.topics()
    rows = [described(place, name) for name in names]
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    for row in rows:
        show(row)


def described(place: Place, name: str) -> TopicRow:
    """What there is to say of one topic, from one snapshot of it."""
    return _native(place.root, name) if place.root is not None else _kafka(place.view, name)


def _native(root: Root, name: str) -> TopicRow:
    topic = root.topic(name).describe()
    return TopicRow(
        topic=name,
        topicId=topic.topic_id,
        partitionCount=len(topic.partitions),
        configs={config.name: config.value for config in topic.configs if config.source != "default"},
        partitions=[
            PartitionRow(part.partition, part.log_start, part.last_stable, part.log_end, part.bytes)
            for part in topic.partitions
        ],
        openTransactions=[
            *dict.fromkeys(transaction for transaction, _ in topic.open_transactions),
            *(str(each) for each in topic.kafka_open),
        ],
        kafkaTopicId=topic.kafka_topic_id or None,
    )


def _kafka(view: LogView, name: str) -> TopicRow:
    from sparklog.log.view import OffsetRange

    topic_id = view.topic_id(name)
    view.refresh([name])
    bounds = sorted(view.bounds(name).items())
    sizes = view.nbytes([OffsetRange(name, partition, bound.log_start, bound.log_end) for partition, bound in bounds])
    return TopicRow(
        topic=name,
        topicId=topic_id,
        partitionCount=len(bounds),
        configs=None,
        partitions=[
            PartitionRow(partition, bound.log_start, bound.last_stable, bound.log_end, size)
            for (partition, bound), size in zip(bounds, sizes, strict=True)
        ],
        openTransactions=None,
    )


def show(row: TopicRow) -> None:
    """The first line as kafka-topics writes it, then a table."""
    from rich.console import Console
    from rich.table import Table

    configs = ",".join(f"{name}={value}" for name, value in sorted((row.configs or {}).items()))
    print(f"Topic: {row.topic}\tTopicId: {row.topicId}\tPartitionCount: {row.partitionCount}\tConfigs: {configs}")
    if row.kafkaTopicId:
        print(f"Imported from Kafka's topic with id {row.kafkaTopicId}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("PARTITION", "LOG-START", "LAST-STABLE", "LOG-END", "BYTES"):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in row.partitions:
        table.add_row(*map(str, (part.partition, part.logStart, part.lastStable, part.logEnd, part.bytes)))
    console = Console(highlight=False)
    # A pipe has no width: the table must not be cut to 80 columns there.
    console.print(table, width=None if console.is_terminal else 1000)
    if row.openTransactions:
        print(f"Held back by open transactions: {', '.join(row.openTransactions)}")


@app.command(epilog=example("sparklog topics alter orders --root /data/log --partitions 32"))
def alter(
    topic: TopicArgument,
    root: RootOption,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Raise to so many.")],
) -> None:
    """Add partitions. Configs are altered by `sparklog configs alter`, as in Kafka by kafka-configs."""
    from sparklog.cli.places import open_root

    open_root(root).topic(topic).alter(partitions=partitions)
    print(f"Altered topic {topic}.")


@app.command(epilog=example("sparklog topics delete orders --root /data/log"))
def delete(
    topic: TopicArgument,
    root: RootOption,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if there is no such topic.")] = False,
) -> None:
    """Delete a topic, without asking, as kafka-topics does. Its files go when a vacuum finds them."""
    from sparklog.cli.places import open_root

    log = open_root(root)
    if if_exists and topic not in log.topics():
        print(f"There is no topic {topic}.")
        return
    log.delete_topic(topic)
    print(f"Deleted topic {topic}.")
