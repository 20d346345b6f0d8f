"""The commands `sparklog import` and `export`, which copy between Kafka log directories and topics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from click import BadParameter

from sparklog.common.parsing import is_digits
from sparklog.common.units import count, size_text
from sparklog.console import options as opt
from sparklog.console.locations import open_root
from sparklog.console.parameters import Argument, Commands, Option
from sparklog.console.terminal import EXIT_ERROR, Output, print_table, printable, read_text, warn
from sparklog.output import StatusLine, json_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparklog.kafka.exporting import ExportedTopic, ExportOptions
    from sparklog.kafka.importing.run import ImportedTopic, ImportOptions, ImportReport
    from sparklog.log.topic.root import Root

app = Commands()


@dataclass
class ImportSelection:
    """The data of a log directory to import, and the import options."""

    topic: opt.TopicsOption = None
    config: opt.ConfigOption = None
    corrupt_records: opt.CorruptOption = "fail"
    open_transactions: Annotated[
        Literal["keep", "abort", "refuse"],
        Option(
            help="How to import transactions that are open in Kafka. keep: keep them open until an import"
            " contains their end or the topic is written to. abort: abort them, after which the topic"
            " accepts no further imports. refuse: reject the import."
        ),
    ] = "keep"
    copy: Annotated[bool, Option(help="Copy closed segments instead of creating hard links to Kafka's files.")] = False
    groups: Annotated[bool, Option(help="Import the offsets of consumer groups from __consumer_offsets.")] = True
    transactions: Annotated[bool, Option(help="Import the ids of open transactions from __transaction_state.")] = True

    def options(self, force: bool) -> ImportOptions:
        from sparklog.kafka.importing.run import AUTO, NEVER, ImportOptions

        return ImportOptions(
            topics=opt.topic_names(self.topic) or None,
            configs=opt.parse_configs(self.config),
            force=force,
            corrupt_records=self.corrupt_records,
            open_transactions=self.open_transactions,
            link=NEVER if self.copy else AUTO,
            groups=self.groups,
            transactions=self.transactions,
        )


@app.add(
    "import",
    "sparklog import /var/lib/kafka/data --root /data/log --topic orders -c cleanup.policy=compact",
    "sparklog import --from-server-properties /opt/kafka/config/server.properties --root /data/log --dry-run",
)
def import_(
    root: opt.RootOption,
    *,
    log_dir: Annotated[
        str | None,
        Argument(
            metavar="[PATH]",
            help="Kafka log directory to import. It must contain partition directories such as topic-0 and topic-1.",
        ),
    ] = None,
    from_server_properties: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            excludes="PATH --topic --config --corrupt-records --open-transactions --copy --no-groups --no-transactions",
            why="--from-server-properties imports the settings of a broker instead of topics",
            help="File with broker settings (server.properties) to import as root defaults. No topics are imported.",
        ),
    ] = None,
    selection: ImportSelection,
    dry_run: opt.DryRunOption = False,
    quiet: opt.QuietOption = False,
    force: Annotated[
        bool, Option(help="Import file.delete.delay.ms even if it is so short that files in use may be deleted.")
    ] = False,
) -> Output:
    """Import topics of a Kafka log directory into a root.

    Offsets, timestamps, headers and segments are preserved. If --topic is not given, all topics except Kafka's internal
    topics are imported. PATH is the directory of a stopped broker, or a copy or backup of such a directory, and is only
    read. Run the command again to complete an import that was killed, or to import new records. Each topic continues
    where its last import ended. Topic configs are imported if the directory contains __cluster_metadata-0. Use --config
    to set or override topic configs. Consumer groups retain their offsets in these topics.
    """
    from sparklog.api import import_into

    if from_server_properties is not None:
        return _import_settings(root, from_server_properties, force, dry_run)
    if log_dir is None:
        raise BadParameter("expected the PATH of a log directory or --from-server-properties FILE, found none")
    options = selection.options(force)
    with StatusLine("import", quiet=quiet) as status:
        copied = _Copied(status)

        def show_progress(topic: str, partition: int, records: int, nbytes: int) -> None:
            copied.add(f"{topic}-{partition}", records, nbytes)

        on_planned = copied.plan if status.is_shown else None
        report = import_into(
            root, log_dir, options, on_skipped=warn, dry_run=dry_run, on_planned=on_planned, on_progress=show_progress
        )
    partitions = [partition for topic in report.topics for partition in topic.partitions]
    records, nbytes = sum(item.records for item in partitions), size_text(sum(item.copied for item in partitions))
    verb = "Would import" if dry_run else f"Imported {count(records, 'record')} of"
    status.total(f"{verb} {count(len(report.topics), 'topic')}: {nbytes} copied.")
    return Output(
        _document(report), lambda: _show_import(report, dry_run), after=lambda: _show_configs(report, options)
    )


def _import_settings(root: str, file: Path, force: bool, dry_run: bool) -> Output:
    """Import the settings of a broker as root defaults, atomically."""
    from sparklog.log.state.root_defaults import ID, RootDefaults
    from sparklog.maintenance.properties import IMPORTED, WRONG, broker_settings

    rows = broker_settings(read_text(file, "--from-server-properties"), str(file), force=force)
    changes: dict[str, object | None] = {row.name: row.value for row in rows if row.verdict == IMPORTED}
    document = [row._asdict() for row in rows]
    lines = [f"line {row.line}: {row.name}={row.value}: {row.text}" for row in rows]
    if wrong := sum(row.verdict == WRONG for row in rows):
        invalid = f"{count(wrong, 'setting')} of {len(rows)} {'is' if wrong == 1 else 'are'} not valid"
        return Output.from_lines(document, *lines, f"Nothing was changed: {invalid}.", code=EXIT_ERROR)
    RootDefaults(ID).changed(changes, force=force)
    if not dry_run:
        open_root(root, create=True).alter_defaults(changes, force=force)
    verb = "would become" if dry_run else "are"
    return Output.from_lines(document, *lines, f"{len(changes)} of {len(rows)} settings {verb} defaults of the root.")


def _document(report: ImportReport) -> object:
    document = json_value(report)
    for topic in document["topics"]:
        for part in topic["partitions"]:
            part["bytesCopied"], part["bytesLinked"] = part.pop("copied"), part.pop("linked")
            part["openTransactions"] = part.pop("open")
    return document


def _show_import(report: ImportReport, dry_run: bool) -> None:
    headings = ("TOPIC", "PARTITIONS", "OFFSETS", "THERE-BEFORE", "RECORDS", "COPIED", "LINKED", "SKIPPED", "OPEN")
    print_table(headings, [_import_row(topic, dry_run) for topic in report.topics])
    if report.groups:
        notes = {True: "in use in this root, so its offsets were not changed", False: ""}
        rows = [(group.group, group.offsets, group.left_out, notes[group.in_use]) for group in report.groups]
        print_table(("GROUP", "OFFSETS", "OF-OTHER-TOPICS", ""), rows)


def _show_configs(report: ImportReport, options: ImportOptions) -> None:
    """Report the configs that topics got from Kafka, and topics whose records may expire because the default retention
    is assumed.
    """
    from sparklog.log.topic.expiring import default_expiry

    assumed = []
    for topic in report.topics:
        got = topic.kafka_configs
        for name, reason in ({} if got is None else got.left_out).items():
            warn(f"topic {topic.topic}: {name} was not imported from Kafka: {reason}")
        if got is not None and got.taken:
            configs = ", ".join(f"{name}={value}" for name, value in got.taken.items())
            warn(f"topic {topic.topic}: configs from Kafka's metadata log: {configs}")
        if topic.created and default_expiry(options.topic_configs().over({} if got is None else got.taken)) is not None:
            assumed.append(topic.topic)
    if assumed:
        names = ", ".join(assumed[:3]) + (f" and {len(assumed) - 3} more" if len(assumed) > 3 else "")
        warn(
            f"topic{'s' * (len(assumed) > 1)} {names}: assuming Kafka's default retention.ms=604800000, so sparklog"
            " retain deletes records seven days after their timestamp; use --config retention.ms to set another value"
        )


def _import_row(imported: ImportedTopic, dry_run: bool) -> tuple[object, ...]:
    parts = imported.partitions
    # Offsets below the log start are counted neither as imported before nor as new.
    offsets = sum(max(part.log_end - max(part.since, part.log_start), 0) for part in parts)
    before = sum(max(part.since - part.log_start, 0) for part in parts)
    records, opened = sum(part.records for part in parts), sum(part.open for part in parts)
    copied, linked = size_text(sum(part.copied for part in parts)), size_text(sum(part.linked for part in parts))
    counts = (len(parts), offsets, before, None if dry_run else records, copied, linked)
    return imported.topic, *counts, sum(part.skipped for part in parts), None if dry_run else opened


@dataclass
class _Copied:
    """The progress of a copy. `of_nbytes` is the number of bytes to copy, or None if it is unknown."""

    status: StatusLine
    of_nbytes: int | None = None
    records: int = 0
    nbytes: int = 0

    def plan(self, nbytes: int) -> None:
        self.of_nbytes = nbytes

    def add(self, to: str, records: int, nbytes: int) -> None:
        self.records, self.nbytes = self.records + records, self.nbytes + nbytes
        of_size = "" if self.of_nbytes is None else f" of {size_text(self.of_nbytes)}"
        self.status(f"{self.records:,} records, {size_text(self.nbytes)}{of_size} copied, now {to}")


@dataclass
class ExportRange:
    """The partitions and offsets to export, and the point in time of the export."""

    as_of: opt.AsOfOption = None
    partitions: Annotated[
        str | None,
        Option(
            "-p", metavar="0,2-4", help="Partitions to export, as a list of numbers and ranges.", show_default="all"
        ),
    ] = None
    start: Annotated[
        str | None,
        Option(
            metavar="N|P:N,...", help="First offset to export. N applies to all partitions, and P:N to partition P."
        ),
    ] = None
    end: Annotated[
        str | None,
        Option(
            metavar="N|P:N,...",
            help="Export records before this offset. A batch that contains the offset is exported completely.",
        ),
    ] = None
    from_timestamp: Annotated[
        str | None,
        Option(
            metavar="TIME",
            excludes="--start",
            help="Start at the first record at or after this time, in milliseconds or ISO 8601 (UTC if no time"
            " zone is given).",
        ),
    ] = None
    to_timestamp: Annotated[
        str | None, Option(metavar="TIME", excludes="--end", help="Stop before the first record at or after this time.")
    ] = None

    def __post_init__(self) -> None:
        self.version, self.time_ms = opt.parse_as_of(self.as_of)
        self.numbers = _partitions(self.partitions)

    def options(self, log: Root, topics: Sequence[str]) -> ExportOptions:
        from sparklog.kafka.exporting import ExportOptions

        numbers = self.numbers
        if numbers is None and any(text is not None and is_digits(text) for text in (self.start, self.end)):
            if len(topics) > 1:
                raise BadParameter(
                    "one offset for all partitions requires a single topic: specify partitions as P:N,..."
                )
            numbers = list(range(log.topic(topics[0]).log.state().partitions))
        return ExportOptions(
            partitions=self.numbers,
            starts=_offsets(self.start, "--start", numbers or []),
            ends=_offsets(self.end, "--end", numbers or []),
            start_ms=None if self.from_timestamp is None else opt.parse_time(self.from_timestamp),
            end_ms=None if self.to_timestamp is None else opt.parse_time(self.to_timestamp, "--to-timestamp"),
            version=self.version,
            time_ms=self.time_ms,
        )


@dataclass
class Cluster:
    """The settings of an export for a particular Kafka cluster."""

    topic_id: Annotated[
        list[str] | None,
        Option(
            metavar="[TOPIC=]ID",
            help="Topic id in the Kafka cluster. By default, imported topics keep their Kafka topic id, and"
            " other topics use their sparklog topic id. May be repeated.",
        ),
    ] = None
    groups: Annotated[
        list[str] | None, Option(metavar="NAME,...|all", help="Consumer groups to export the offsets of.")
    ] = None
    offsets_partitions: Annotated[
        int,
        opt.integer_option(
            "--offsets-topic-num-partitions",
            low=1,
            high=100_000,
            text="Number of partitions of __consumer_offsets. Requires --groups.",
            needs="--groups",
        ),
    ] = 50
    link: Annotated[
        bool,
        Option(
            help="Create hard links to sealed segments instead of copies if source and target are on the same disk."
        ),
    ] = False
    keep_leader_epochs: Annotated[
        bool,
        Option(
            help="Export the stored leader epochs. By default, leader epochs are reset to 0. Use this option if"
            " the target cluster assigned the epochs, or if you use --link, because a segment whose epochs are"
            " reset is copied instead of linked."
        ),
    ] = False


@app.add("export", "sparklog export orders --root /data/log --to /data/kafka-logs --groups all")
def export(
    topics: Annotated[
        list[str],
        Argument(
            metavar="TOPIC...", help="Topics to export. Each partition is exported as a Kafka partition directory."
        ),
    ],
    root: opt.RootOption,
    to: Annotated[
        str,
        Option(metavar="PATH", help="Directory to export to. It must be empty or must not exist.", show_default=False),
    ],
    *,
    extent: ExportRange,
    cluster: Cluster,
    quiet: opt.QuietOption = False,
) -> Output:
    """Export topics as Kafka log directories.

    Writes segments, indexes, checkpoints, topic ids, leader epochs and configs. The directory must be empty or must not
    exist, and is written atomically. Only records below the last stable offset are exported. Records of aborted
    transactions are omitted. The configs to use when you create the topic are printed, and are also written to
    <topic>.properties next to the partitions.

    If --groups is given, the offsets that consumer groups have committed for these topics are exported as the topic
    __consumer_offsets, and as consumer-groups.csv for kafka-consumer-groups --reset-offsets --from-file.
    """
    from sparklog.kafka.exporting import export_topics

    names = opt.comma_separated(cluster.groups)
    log = open_root(root)
    options = replace(
        extent.options(log, topics),
        topic_id=_topic_ids(cluster.topic_id or [], topics),
        groups="all" if names == ("all",) else names or None,
        offsets_partitions=cluster.offsets_partitions,
        link=cluster.link,
        keep_leader_epochs=cluster.keep_leader_epochs,
    )
    with StatusLine("export", quiet=quiet) as status:
        copied = _Copied(status)
        exported = export_topics(log, to, topics, options, partial(copied.add, to), copied.plan)
    parts = [part for topic in exported if topic.version is not None for part in topic.partitions]
    nbytes = size_text(sum(part.nbytes for part in parts))
    status.total(f"Exported {count(len(topics), 'topic')}, {count(len(parts), 'partition')} to {to}: {nbytes}.")
    return Output(exported, lambda: [*map(_show_export, exported)])


def _show_export(topic: ExportedTopic) -> None:
    from sparklog.kafka.exporting.plan import broker_configs
    from sparklog.log.state.configs import TopicConfigs

    accepted, rejected = broker_configs(TopicConfigs(topic.configs))
    configs = ",".join(f"{name}={value}" for name, value in accepted.items())
    print(
        f"Topic: {topic.topic}\tTopicId: {topic.topic_id}\tPartitionCount: {topic.partition_count}\tConfigs: {configs}"
    )
    if topic.version is None:
        print(f"Groups: {printable(', '.join(topic.groups)) or 'none'}")
    for name, reason in rejected.items():
        print(f"Not for a broker: {name}={topic.configs[name]} ({reason})")
    # Do not show the offsets topic, because most of its partitions are empty.
    parts = [part for part in topic.partitions if topic.version is not None or part.log_end]
    rows = [(p.partition, p.log_start, p.last_stable, p.log_end, p.segments, p.nbytes, p.linked) for p in parts]
    headings = ("PARTITION", "LOG-START", "LAST-STABLE", "LOG-END", "SEGMENTS", "BYTES", "LINKED")
    print_table(headings, rows, right=headings)


def _partitions(text: str | None) -> list[int] | None:
    """Convert `0,2-4` to [0, 2, 3, 4]."""
    if text is None:
        return None
    from sparklog.log.journal.names import MAX_PARTITIONS

    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        is_valid = is_digits(first) and (not dash or is_digits(last))
        if not is_valid or not int(first) <= int(last or first) < MAX_PARTITIONS:
            raise BadParameter(f"expected numbers such as 0,2-4, found {text!r}", param_hint="'--partitions'")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _offsets(text: str | None, option: str, partitions: list[int]) -> dict[int, int]:
    """Parse `100`, which applies to all given partitions, or `0:100,3:50`."""
    if text is None:
        return {}
    if is_digits(text):
        return dict.fromkeys(partitions, int(text))
    offsets: dict[int, int] = {}
    for part in text.split(","):
        partition, _, offset = part.strip().partition(":")
        if not is_digits(partition) or not is_digits(offset):
            raise BadParameter(f"expected an offset or PARTITION:OFFSET,..., found {text!r}", param_hint=f"'{option}'")
        offsets[int(partition)] = int(offset)
    return offsets


def _topic_ids(texts: list[str], topics: list[str]) -> dict[str, str]:
    """Parse `ID`, which requires a single topic, or `TOPIC=ID`."""
    ids: dict[str, str] = {}
    for text in texts:
        topic, equals, identity = text.rpartition("=")
        if not equals and len(topics) > 1:
            raise BadParameter(f"{text} requires a topic: specify TOPIC={text}", param_hint="'--topic-id'")
        ids[topic if equals else topics[0]] = identity
    return ids
