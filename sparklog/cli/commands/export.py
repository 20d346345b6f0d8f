"""`sparklog export`: topics as a directory that a Kafka broker opens as its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import AsOfOption, JsonOption, RootOption, example
from sparklog.cli.terminal import print_json, print_table, printable

if TYPE_CHECKING:
    from sparklog.kafka.exporting import ExportedTopic

HELP = """Write topics as Kafka log directories: segments, indexes, checkpoints, topic ids, leader epochs, configs.

The directory must be empty or not there; it is there whole or not at all. Only what lies below the last stable offset
goes out, and no record of an aborted transaction. What is printed, and written beside the partitions as
<topic>.properties, are the configs to create the topic with.

With --groups also what consumer groups have committed for these topics: as the topic __consumer_offsets, and as
consumer-groups.csv for kafka-consumer-groups --reset-offsets --from-file.
"""
EXAMPLES = example("sparklog export orders --root /data/log --to /data/kafka-logs --groups all")

TopicIdOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic-id",
        metavar="[TOPIC=]ID",
        help="The id it has in a Kafka cluster. May be repeated. Without: the one it was imported with, else its own.",
    ),
]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option("--groups", metavar="NAME,...|all", help="Offsets of these consumer groups go out, too."),
]
OffsetsPartitionsOption = Annotated[
    int,
    typer.Option("--offsets-topic-num-partitions", metavar="N", help="Partitions of __consumer_offsets, for --groups."),
]

LinkOption = Annotated[
    bool, typer.Option("--link", help="Hard links to sealed segments instead of copies, on the same disk.")
]
KeepEpochsOption = Annotated[
    bool,
    typer.Option("--keep-leader-epochs", help="For the cluster that gave them, and for links. Else they become 0."),
]


def _partitions(text: str | None) -> list[int] | None:
    """`0,2-4` -> [0, 2, 3, 4]."""
    if text is None:
        return None
    from sparklog.log.journal.names import MAX_PARTITIONS

    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = first.isdecimal() and (not dash or last.isdecimal())
        if not numbers or not int(first) <= int(last or first) < MAX_PARTITIONS:
            raise typer.BadParameter(f"expected numbers such as 0,2-4, found {text!r}", param_hint="'--partitions'")
        found += range(int(first), int(last or first) + 1)
    return found


def _offsets(text: str | None, option: str, partitions: list[int]) -> dict[int, int]:
    """`100` is for each of the partitions, `0:100,3:50` names them."""
    if text is None:
        return {}
    if text.isdecimal():
        return dict.fromkeys(partitions, int(text))
    found: dict[int, int] = {}
    for part in text.split(","):
        partition, _, offset = part.strip().partition(":")
        if not partition.isdecimal() or not offset.isdecimal():
            raise typer.BadParameter(
                f"expected an offset, or PARTITION:OFFSET,..., found {text!r}", param_hint=f"'{option}'"
            )
        found[int(partition)] = int(offset)
    return found


def _topic_ids(given: list[str], topics: list[str]) -> dict[str, str]:
    """`ID` is that of the only topic, `TOPIC=ID` names it."""
    found: dict[str, str] = {}
    for text in given:
        topic, equals, identity = text.rpartition("=")
        if not equals and len(topics) > 1:
            raise typer.BadParameter(f"{text} is of one topic: name it, TOPIC={text}", param_hint="'--topic-id'")
        found[topic if equals else topics[0]] = identity
    return found


def _groups(given: list[str]) -> list[str] | str | None:
    """`all`, or names with commas between them; None without the option."""
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    if given and not names:
        raise typer.BadParameter("expected names of groups, or all", param_hint="'--groups'")
    return "all" if names == ["all"] else names or None


def export(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics.")],
    root: RootOption,
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="Directory to make.", show_default=False)],
    as_of: AsOfOption = None,
    partitions: Annotated[
        str | None, typer.Option("--partitions", "-p", metavar="0,2-4", help="Only these.", show_default="all")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="N|P:N,...", help="First offset, of all partitions or by partition."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--end", metavar="N|P:N,...", help="Offset behind the last; its batch goes out whole."),
    ] = None,
    from_timestamp: Annotated[
        str | None,
        typer.Option(
            "--from-timestamp",
            metavar="TIME",
            help="From the first record not older, in each partition: milliseconds, or as for --as-of.",
        ),
    ] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option("--to-timestamp", metavar="TIME", help="Up to the first record that is not older."),
    ] = None,
    topic_id: TopicIdOption = None,
    groups: GroupsOption = None,
    offsets_partitions: OffsetsPartitionsOption = 50,
    link: LinkOption = False,
    keep_leader_epochs: KeepEpochsOption = False,
    as_json: JsonOption = False,
) -> None:
    from sparklog.cli.places import open_root
    from sparklog.cli.times import parse_as_of, parse_time
    from sparklog.kafka.exporting import ExportOptions, export_topics

    version, time_ms = parse_as_of(as_of)
    chosen = _partitions(partitions)
    log = open_root(root)
    named = chosen
    if named is None and any(text is not None and text.isdecimal() for text in (start, end)):
        if len(topics) > 1:
            raise typer.BadParameter("one offset for all partitions is of one topic: name the partitions")
        named = list(range(log.topic(topics[0]).log.head().partitions))
    options = ExportOptions(
        partitions=chosen,
        starts=_offsets(start, "--start", named or []),
        ends=_offsets(end, "--end", named or []),
        start_ms=None if from_timestamp is None else parse_time(from_timestamp),
        end_ms=None if to_timestamp is None else parse_time(to_timestamp, "--to-timestamp"),
        version=version,
        time_ms=time_ms,
        topic_id=_topic_ids(topic_id or [], topics),
        groups=_groups(groups or []),
        offsets_partitions=offsets_partitions,
        link=link,
        keep_leader_epochs=keep_leader_epochs,
    )
    exported = export_topics(log, to, topics, options)
    if as_json:
        print_json(exported)
        return
    for topic in exported:
        _show(topic)


def _show(topic: ExportedTopic) -> None:
    """The first line as `topics describe` has it, then a table."""
    from sparklog.kafka.exporting.plan import broker_configs
    from sparklog.log.state.configs import TopicConfigs

    taken, refused = broker_configs(TopicConfigs(topic.configs))
    configs = ",".join(f"{name}={value}" for name, value in taken.items())
    print(
        f"Topic: {topic.topic}\tTopicId: {topic.topic_id}\tPartitionCount: {topic.partition_count}\tConfigs: {configs}"
    )
    if topic.version is None:
        print(f"Groups: {printable(', '.join(topic.groups)) or 'none'}")
    for name, reason in refused.items():
        print(f"Not for a broker: {name}={topic.configs[name]} ({reason})")
    rows = [
        (part.partition, part.log_start, part.last_stable, part.log_end, part.segments, part.nbytes, part.linked)
        for part in topic.partitions
        # Nearly all partitions of the offsets topic are empty.
        if topic.version is not None or part.log_end
    ]
    headings = ("PARTITION", "LOG-START", "LAST-STABLE", "LOG-END", "SEGMENTS", "BYTES", "LINKED")
    print_table(headings, rows, right=headings)


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="export", help=HELP, epilog=EXAMPLES)(export)
