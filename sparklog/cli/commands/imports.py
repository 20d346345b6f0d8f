"""`sparklog import`: a Kafka log directory becomes topics of a root."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import (
    ConfigOption,
    CorruptOption,
    CorruptRecords,
    JsonOption,
    OpenTransactions,
    RootOption,
    example,
    parse_configs,
)
from sparklog.cli.terminal import print_table, say

if TYPE_CHECKING:
    from sparklog.kafka.importing.importing import ImportedTopic, ImportReport, OnProgress

HELP = """Take topics of a Kafka log directory into a root: offsets, times, headers and segments as they are.

The directory of a stopped broker, or a copy or backup of one; it is only read. Run it again to complete an import that
was killed, or to take what is new since: a topic goes on where its last import ended. Kafka keeps topic configs
elsewhere: give them with --config. Consumer groups keep their offsets in these topics.
"""
EXAMPLES = example("sparklog import /var/lib/kafka/data --root /data/log --topic orders -c cleanup.policy=compact")


def import_(
    log_dir: Annotated[str, typer.Argument(metavar="PATH", help="The log directory: it holds topic-0, topic-1, ...")],
    root: RootOption,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Only this one; may be repeated.", show_default="all but Kafka's own"),
    ] = None,
    config: ConfigOption = None,
    corrupt_records: CorruptOption = CorruptRecords.fail,
    open_transactions: Annotated[
        OpenTransactions,
        typer.Option(
            "--open-transactions",
            help="Those that Kafka has not ended: keep them until an import brings their end or the topic is written"
            " to, abort them (no import can go on then), or refuse.",
        ),
    ] = OpenTransactions.keep,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy closed segments also where a hard link to Kafka's file would do.")
    ] = False,
    groups: Annotated[
        bool, typer.Option("--groups/--no-groups", help="Offsets of consumer groups, from __consumer_offsets.")
    ] = True,
    transactions: Annotated[
        bool,
        typer.Option("--transactions/--no-transactions", help="Whose open transactions are, from __transaction_state."),
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be taken, change nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also a file.delete.delay.ms that takes files from running jobs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from sparklog.cli.places import open_root, root_if_there
    from sparklog.kafka.importing.importing import AUTO, NEVER, ImportOptions, import_log_dir, unwatched

    log = root_if_there(root)
    if log is None and not dry_run:
        # Wrong input makes no new root.
        wanted = parse_configs(config)
        import_log_dir(
            None, log_dir, ImportOptions(topics=topic, configs=wanted, force=force, groups=False), dry_run=True
        )
        log = open_root(root, create=True)
    report = import_log_dir(
        log,
        log_dir,
        ImportOptions(
            topics=topic,
            configs=parse_configs(config),
            force=force,
            corrupt_records=corrupt_records.value,
            open_transactions=open_transactions.value,
            link=NEVER if copy else AUTO,
            groups=groups,
            transactions=transactions,
        ),
        on_skipped=say,
        dry_run=dry_run,
        on_progress=unwatched if quiet else _meters(),
    )
    if as_json:
        print(json.dumps(document(report)))
        return
    _show(report, dry_run)


def document(report: ImportReport) -> dict[str, object]:
    """The report as JSON."""
    return {
        "topics": [
            {
                "topic": each.topic,
                "kafkaTopicId": each.kafka_topic_id,
                "created": each.created,
                "partitions": [
                    {
                        "partition": part.partition,
                        "logStart": part.log_start,
                        "logEnd": part.log_end,
                        "since": part.since,
                        "records": part.records,
                        "bytesCopied": part.copied,
                        "bytesLinked": part.linked,
                        "skipped": part.skipped,
                        "openTransactions": part.open,
                    }
                    for part in each.partitions
                ],
            }
            for each in report.topics
        ],
        "groups": [
            {"group": each.group, "offsets": each.offsets, "leftOut": each.left_out, "inUse": each.in_use}
            for each in report.groups
        ],
    }


def _show(report: ImportReport, dry_run: bool) -> None:
    headings = ("TOPIC", "PARTITIONS", "OFFSETS", "THERE-BEFORE", "RECORDS", "COPIED", "LINKED", "SKIPPED", "OPEN")
    print_table(headings, [_row(each, dry_run) for each in report.topics])
    if report.groups:
        notes = {True: "in use here, left alone", False: ""}
        rows = [(each.group, each.offsets, each.left_out, notes[each.in_use]) for each in report.groups]
        print_table(("GROUP", "OFFSETS", "OF-OTHER-TOPICS", ""), rows)


def _row(found: ImportedTopic, dry_run: bool) -> tuple[object, ...]:
    from sparklog.maintenance.progress import megabytes

    parts = found.partitions
    # Offsets that the log start has passed since count neither as there nor as new.
    offsets = sum(max(part.log_end - max(part.since, part.log_start), 0) for part in parts)
    before = sum(max(part.since - part.log_start, 0) for part in parts)
    return (
        found.topic,
        len(parts),
        offsets,
        before,
        "-" if dry_run else sum(part.records for part in parts),
        megabytes(sum(part.copied for part in parts)),
        megabytes(sum(part.linked for part in parts)),
        sum(part.skipped for part in parts),
        "-" if dry_run else sum(part.open for part in parts),
    )


def _meters() -> OnProgress:
    """A line every few seconds, for each partition."""
    from sparklog.maintenance.progress import Meter

    meters: dict[tuple[str, int], Meter] = {}

    def watch(topic: str, partition: int, records: int, nbytes: int) -> None:
        meter = meters.get((topic, partition))
        if meter is None:
            meters.clear()
            meter = meters[topic, partition] = Meter(f"import {topic}-{partition}")
        meter(records, nbytes)

    return watch


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="import", help=HELP, epilog=EXAMPLES)(import_)
