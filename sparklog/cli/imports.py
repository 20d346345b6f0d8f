"""`sparklog import`: a Kafka log directory becomes topics of a root."""

from __future__ import annotations

import json
import sys
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

if TYPE_CHECKING:
    from sparklog.kafka.damage import Skipped

HELP = """Take topics of a Kafka log directory into a root: offsets, times, headers and segments as they are.

The directory of a stopped broker, or a copy or backup of one; it is only read. Topics must not exist in the root. Kafka
keeps topic configs elsewhere: give them with --config. A topic is there whole or not at all.
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
            help="Those that Kafka has not ended: keep them until the topic is appended to, abort them, or refuse.",
        ),
    ] = OpenTransactions.keep,
    force: Annotated[
        bool, typer.Option("--force", help="Also a file.delete.delay.ms that takes files from running jobs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from sparklog.cli.places import open_root
    from sparklog.kafka.importing import import_log_dir

    log = open_root(root, create=True)
    names = import_log_dir(
        log,
        log_dir,
        topics=topic,
        configs=parse_configs(config),
        force=force,
        corrupt_records=corrupt_records.value,
        on_skipped=_warn,
        open_transactions=open_transactions.value,
    )
    rows = []
    for name in names:
        found = log.topic(name).describe()
        records = sum(part.log_end - part.log_start for part in found.partitions)
        rows.append({"topic": name, "partitions": len(found.partitions), "offsets": records})
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"Imported topic {row['topic']}: {row['partitions']} partitions, {row['offsets']} offsets.")


def _warn(skipped: Skipped) -> None:
    print(skipped, file=sys.stderr)


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="import", help=HELP, epilog=EXAMPLES)(import_)
