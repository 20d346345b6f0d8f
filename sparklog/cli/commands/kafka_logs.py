"""`sparklog import` and `export`: Kafka log directories to topics of a root, and topics to Kafka log directories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, BadParameter, Option, Typer

from sparklog.cli.locations import open_root
from sparklog.cli.options import (
    AsOfOption,
    ConfigOption,
    CorruptOption,
    DryRunOption,
    JsonOption,
    QuietOption,
    RootOption,
    TopicsOption,
    comma_separated,
    example,
    parse_as_of,
    parse_configs,
    parse_time,
)
from sparklog.cli.terminal import print_json, print_table, printable, warn
from sparklog.output import StatusLine, json_value
from sparklog.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparklog.kafka.exporting import ExportedTopic
    from sparklog.kafka.importing.run import ImportedTopic, ImportOptions, ImportReport

app = Typer()


@app.command(
    "import",
    epilog=example("sparklog import /var/lib/kafka/data --root /data/log --topic orders -c cleanup.policy=compact"),
)
def import_(
    log_dir: Annotated[str, Argument(metavar="PATH", help="The log directory: it holds topic-0, topic-1, ...")],
    root: RootOption,
    topic: TopicsOption = None,
    config: ConfigOption = None,
    corrupt_records: CorruptOption = "fail",
    open_transactions: Annotated[
        Literal["keep", "abort", "refuse"],
        Option(
            "--open-transactions",
            help="Those that Kafka has not ended: keep them until an import brings their end or the topic is written"
            " to, abort them (no import can go on then), or refuse.",
        ),
    ] = "keep",
    copy: Annotated[
        bool, Option("--copy", help="Copy closed segments also where a hard link to Kafka's file would do.")
    ] = False,
    groups: Annotated[
        bool, Option("--groups/--no-groups", help="Offsets of consumer groups, from __consumer_offsets.")
    ] = True,
    transactions: Annotated[
        bool, Option("--transactions/--no-transactions", help="Whose open transactions are, from __transaction_state.")
    ] = True,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
    force: Annotated[
        bool, Option("--force", help="Also a file.delete.delay.ms that takes files from running jobs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take topics of a Kafka log directory into a root: offsets, times, headers and segments as they are.

    Without --topic all topics but Kafka's own. The directory of a stopped broker, or a copy or backup of one; it is
    only read. Run it again to complete an import that was killed, or to take what is new since: a topic goes on where
    its last import ended. Its configs in Kafka come along where the directory holds __cluster_metadata-0, else give
    them with --config, which counts in any case. Consumer groups keep their offsets in these topics.
    """
    from sparklog.api import import_into
    from sparklog.kafka.importing.run import AUTO, NEVER, ImportOptions

    options = ImportOptions(
        topics=comma_separated(topic) or None,
        configs=parse_configs(config),
        force=force,
        corrupt_records=corrupt_records,
        open_transactions=open_transactions,
        link=NEVER if copy else AUTO,
        groups=groups,
        transactions=transactions,
    )
    with StatusLine("import", quiet=quiet) as status:
        copied = _watch(status)

        def watch(topic: str, partition: int, records: int, nbytes: int) -> None:
            copied(f"{topic}-{partition}", records, nbytes)

        report = import_into(root, log_dir, options, on_skipped=warn, dry_run=dry_run, on_progress=watch)
    if as_json:
        print_json(_document(report))
    else:
        _show_import(report, dry_run)
    _show_configs(report, options)


def _document(report: ImportReport) -> object:
    document = json_value(report)
    for topic in document["topics"]:
        for part in topic["partitions"]:
            part["bytesCopied"], part["bytesLinked"] = part.pop("copied"), part.pop("linked")
            part["openTransactions"] = part.pop("open")
    return document


def _show_import(report: ImportReport, dry_run: bool) -> None:
    headings = ("TOPIC", "PARTITIONS", "OFFSETS", "THERE-BEFORE", "RECORDS", "COPIED", "LINKED", "SKIPPED", "OPEN")
    print_table(headings, [_import_row(each, dry_run) for each in report.topics])
    if report.groups:
        notes = {True: "in use here, left alone", False: ""}
        rows = [(each.group, each.offsets, each.left_out, notes[each.in_use]) for each in report.groups]
        print_table(("GROUP", "OFFSETS", "OF-OTHER-TOPICS", ""), rows)


def _show_configs(report: ImportReport, options: ImportOptions) -> None:
    """Say which configs new topics got from Kafka, and which of them are assumed, where records may expire by it."""
    from sparklog.log.topic.expiring import default_expiry

    assumed = []
    for topic in report.topics:
        got = topic.kafka_configs
        for name, reason in ({} if got is None else got.left_out).items():
            warn(f"topic {topic.topic}: {name} is not taken from Kafka: {reason}")
        if got is not None and got.taken:
            configs = ", ".join(f"{name}={value}" for name, value in got.taken.items())
            warn(f"topic {topic.topic}: configs from Kafka's metadata log: {configs}")
        if topic.created and default_expiry(options.topic_configs().over({} if got is None else got.taken)) is not None:
            assumed.append(topic.topic)
    if assumed:
        names = ", ".join(assumed[:3]) + (f" and {len(assumed) - 3} more" if len(assumed) > 3 else "")
        warn(
            f"topic{'s' * (len(assumed) > 1)} {names}: Kafka's default is assumed, retention.ms=604800000: records"
            " expire seven days after their own time, at the next sparklog retain; another with --config retention.ms"
        )


def _import_row(imported: ImportedTopic, dry_run: bool) -> tuple[object, ...]:
    parts = imported.partitions
    # Offsets that the log start has passed since count neither as imported before nor as new.
    offsets = sum(max(part.log_end - max(part.since, part.log_start), 0) for part in parts)
    before = sum(max(part.since - part.log_start, 0) for part in parts)
    records, opened = sum(part.records for part in parts), sum(part.open for part in parts)
    copied, linked = size_text(sum(part.copied for part in parts)), size_text(sum(part.linked for part in parts))
    counts = (len(parts), offsets, before, None if dry_run else records, copied, linked)
    return imported.topic, *counts, sum(part.skipped for part in parts), None if dry_run else opened


def _watch(status: StatusLine) -> Callable[[str, int, int], None]:
    records = nbytes = 0

    def watch(to: str, more_records: int, more_bytes: int) -> None:
        nonlocal records, nbytes
        records, nbytes = records + more_records, nbytes + more_bytes
        status(f"{records:,} records, {size_text(nbytes)} copied, now to {to}")

    return watch


TopicIdOption = Annotated[
    list[str] | None,
    Option(
        metavar="[TOPIC=]ID",
        help="Its id in a Kafka cluster. May be repeated. Without: the one it was imported with, else its own.",
    ),
]
GroupsOption = Annotated[
    list[str] | None, Option(metavar="NAME,...|all", help="Offsets of these consumer groups go out, too.")
]
OffsetsPartitionsOption = Annotated[
    int, Option("--offsets-topic-num-partitions", metavar="N", help="Partitions of __consumer_offsets, for --groups.")
]
LinkSegmentsOption = Annotated[
    bool, Option("--link", help="Hard links to sealed segments instead of copies, on the same disk.")
]
KeepEpochsOption = Annotated[
    bool, Option("--keep-leader-epochs", help="For the cluster that gave them, and for links. Else they become 0.")
]
PartitionsOption = Annotated[
    str | None, Option("--partitions", "-p", metavar="0,2-4", help="Only these.", show_default="all")
]
StartOption = Annotated[
    str | None, Option(metavar="N|P:N,...", help="First offset, of all partitions or by partition.")
]
EndOption = Annotated[str | None, Option(metavar="N|P:N,...", help="Offset behind the last; its batch goes out whole.")]
FromOption = Annotated[
    str | None,
    Option(metavar="TIME", help="From the first record not older, in each partition: milliseconds, or as for --as-of."),
]
ToOption = Annotated[str | None, Option(metavar="TIME", help="Up to the first record that is not older.")]


@app.command("export", epilog=example("sparklog export orders --root /data/log --to /data/kafka-logs --groups all"))
def export(
    topics: Annotated[list[str], Argument(metavar="TOPIC...", help="Topics.")],
    root: RootOption,
    to: Annotated[str, Option(metavar="PATH", help="Directory to make.", show_default=False)],
    as_of: AsOfOption = None,
    partitions: PartitionsOption = None,
    start: StartOption = None,
    end: EndOption = None,
    from_timestamp: FromOption = None,
    to_timestamp: ToOption = None,
    topic_id: TopicIdOption = None,
    groups: GroupsOption = None,
    offsets_partitions: OffsetsPartitionsOption = 50,
    link: LinkSegmentsOption = False,
    keep_leader_epochs: KeepEpochsOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write topics as Kafka log directories: segments, indexes, checkpoints, topic ids, leader epochs, configs.

    The directory must be empty or not there; it is written whole or not at all. Only what lies below the last stable
    offset goes out, and no record of an aborted transaction. What is printed, and written beside the partitions as
    <topic>.properties, are the configs to create the topic with.

    With --groups also what consumer groups have committed for these topics: as the topic __consumer_offsets, and as
    consumer-groups.csv for kafka-consumer-groups --reset-offsets --from-file.
    """
    from sparklog.kafka.exporting import ExportOptions, export_topics

    version, time_ms = parse_as_of(as_of)
    names = comma_separated(groups)
    if groups and not names:
        raise BadParameter("expected names of groups, or all", param_hint="'--groups'")
    numbers = chosen = _partitions(partitions)
    log = open_root(root)
    if numbers is None and any(text is not None and text.isdecimal() for text in (start, end)):
        if len(topics) > 1:
            raise BadParameter("one offset for all partitions is of one topic: name the partitions")
        numbers = list(range(log.topic(topics[0]).log.head().partitions))
    options = ExportOptions(
        partitions=chosen,
        starts=_offsets(start, "--start", numbers or []),
        ends=_offsets(end, "--end", numbers or []),
        start_ms=None if from_timestamp is None else parse_time(from_timestamp),
        end_ms=None if to_timestamp is None else parse_time(to_timestamp, "--to-timestamp"),
        version=version,
        time_ms=time_ms,
        topic_id=_topic_ids(topic_id or [], topics),
        groups="all" if names == ("all",) else names or None,
        offsets_partitions=offsets_partitions,
        link=link,
        keep_leader_epochs=keep_leader_epochs,
    )
    with StatusLine("export", quiet=quiet) as status:
        watch = _watch(status)
        exported = export_topics(log, to, topics, options, lambda records, nbytes: watch(to, records, nbytes))
    if as_json:
        print_json(exported)
        return
    for topic in exported:
        _show_export(topic)


def _show_export(topic: ExportedTopic) -> None:
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
    # Nearly all partitions of the offsets topic are empty.
    parts = [part for part in topic.partitions if topic.version is not None or part.log_end]
    rows = [(p.partition, p.log_start, p.last_stable, p.log_end, p.segments, p.nbytes, p.linked) for p in parts]
    headings = ("PARTITION", "LOG-START", "LAST-STABLE", "LOG-END", "SEGMENTS", "BYTES", "LINKED")
    print_table(headings, rows, right=headings)


def _partitions(text: str | None) -> list[int] | None:
    """Turn `0,2-4` into [0, 2, 3, 4]."""
    if text is None:
        return None
    from sparklog.log.journal.names import MAX_PARTITIONS

    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        valid = first.isdecimal() and (not dash or last.isdecimal())
        if not valid or not int(first) <= int(last or first) < MAX_PARTITIONS:
            raise BadParameter(f"expected numbers such as 0,2-4, found {text!r}", param_hint="'--partitions'")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _offsets(text: str | None, option: str, partitions: list[int]) -> dict[int, int]:
    """Read `100`, for each of the partitions, or `0:100,3:50`, which names them."""
    if text is None:
        return {}
    if text.isdecimal():
        return dict.fromkeys(partitions, int(text))
    offsets: dict[int, int] = {}
    for part in text.split(","):
        partition, _, offset = part.strip().partition(":")
        if not partition.isdecimal() or not offset.isdecimal():
            raise BadParameter(f"expected an offset, or PARTITION:OFFSET,..., found {text!r}", param_hint=f"'{option}'")
        offsets[int(partition)] = int(offset)
    return offsets


def _topic_ids(given: list[str], topics: list[str]) -> dict[str, str]:
    """Read `ID`, of the only topic, or `TOPIC=ID`, which names it."""
    ids: dict[str, str] = {}
    for text in given:
        topic, equals, identity = text.rpartition("=")
        if not equals and len(topics) > 1:
            raise BadParameter(f"{text} is of one topic: name it, TOPIC={text}", param_hint="'--topic-id'")
        ids[topic if equals else topics[0]] = identity
    return ids
