"""Options that several commands share: one name, one meaning, one help text."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

SHORT_HELP = {"help_option_names": ["-h", "--help"]}


class Isolation(str, Enum):
    """Kafka's isolation levels."""

    read_committed = "read_committed"
    read_uncommitted = "read_uncommitted"


class CorruptRecords(str, Enum):
    """What damage in a Kafka directory does."""

    fail = "fail"
    skip = "skip"
    truncate = "truncate"


class OpenTransactions(str, Enum):
    """What becomes of transactions that Kafka has left open."""

    keep = "keep"
    abort = "abort"
    refuse = "refuse"


RootOption = Annotated[
    str,
    typer.Option(
        "--root",
        "-r",
        envvar="SPARKLOG_ROOT",
        metavar="PATH",
        help="Folder of the topics.",
        show_default=False,
    ),
]

PlaceOption = Annotated[
    str,
    typer.Option(
        "--root",
        "-r",
        envvar="SPARKLOG_ROOT",
        metavar="PATH",
        help="A root, one topic's folder, a Kafka log directory or one Kafka partition folder.",
        show_default=False,
    ),
]

CorruptOption = Annotated[
    CorruptRecords,
    typer.Option(
        "--corrupt-records",
        help="Damage in a Kafka directory: fail, skip it and say so, or end the log there as Kafka's recovery does.",
    ),
]

IsolationOption = Annotated[
    Isolation, typer.Option("--isolation-level", help="Whether to see records of open and aborted transactions.")
]

# What is printed of a record, under the names of Kafka's console consumer.
TimestampShown = Annotated[bool, typer.Option("--print-timestamp", help="CreateTime:<ms>")]
PartitionShown = Annotated[bool, typer.Option("--print-partition", help="Partition:<n>")]
OffsetShown = Annotated[bool, typer.Option("--print-offset", help="Offset:<n>")]
HeadersShown = Annotated[bool, typer.Option("--print-headers", help="name:value,... or NO_HEADERS")]
KeyShown = Annotated[bool, typer.Option("--print-key", help="The key.")]

AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="VERSION|TIME",
        help="As the topic was: a version, or milliseconds or 2026-01-31T12:00:00 (UTC unless it says).",
        show_default="now",
    ),
]

LinkOption = Annotated[
    bool, typer.Option("--link", help="Hard links instead of copies, on the same disk: no protection from damage.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic config under Kafka's name; may be repeated."),
]


def example(command: str) -> str:
    """The example below a command's help, on a line of its own however wide the terminal is."""
    return f"\b\nExample:\n  {command}"


def parse_configs(given: list[str] | None) -> dict[str, str]:
    """`["retention.ms=1000"]` -> `{"retention.ms": "1000"}`; the names are checked by the topic, not here."""
    configs: dict[str, str] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"expected NAME=VALUE, found {text!r}", param_hint="'--config'")
        configs[name.strip()] = value.strip()
    return configs
