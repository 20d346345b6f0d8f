"""`sparklog log-dirs`: bytes per partition, in the document of `kafka-log-dirs` or as a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import JsonOption, PlaceOption, example
from sparklog.cli.terminal import print_table

if TYPE_CHECKING:
    from sparklog.log.state.view import PartitionSize

HELP = """Show how many bytes each partition takes, from metadata alone: no folder is listed.

APPEND are bytes in append files (in a Kafka directory: of the active segment), SEALED those in sealed (closed)
segments, SLICES what they lie in. --json prints the document of kafka-log-dirs, with these beside its own names; there
is no broker, so its number is -1.
"""
EXAMPLES = example("sparklog log-dirs --topic-list orders,clicks --root /data/log")

HEADINGS = ("TOPIC", "PARTITION", "APPEND", "SEALED", "TOTAL", "RECORDS", "SLICES")
NO_BROKER = -1


def log_dirs(
    root: PlaceOption,
    topic_list: Annotated[
        list[str] | None, typer.Option("--topic-list", "-t", metavar="TOPIC,...", help="Only these topics.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    from sparklog.cli.places import open_place

    place = open_place(root)
    named = [name.strip() for text in topic_list or [] for name in text.split(",") if name.strip()]
    sizes = [size for name in place.refreshed(named) for size in place.view.partition_sizes(name)]
    if as_json:
        print(json.dumps(_document(place.view.location, sizes)))
    else:
        _show(sizes)
    place.complain()


def _document(location: str, sizes: list[PartitionSize]) -> dict[str, object]:
    partitions = [
        {
            "partition": f"{size.topic}-{size.partition}",
            "size": size.total_bytes,
            "offsetLag": 0,
            "isFuture": False,
            "appendBytes": size.append_bytes,
            "sealedBytes": size.sealed_bytes,
            "records": size.records,
            "slices": size.slices,
        }
        for size in sizes
    ]
    log_dir = {"logDir": location, "error": None, "partitions": partitions}
    return {"version": 1, "brokers": [{"broker": NO_BROKER, "logDirs": [log_dir]}]}


def _show(sizes: list[PartitionSize]) -> None:
    counts = [(size.append_bytes, size.sealed_bytes, size.total_bytes, size.records, size.slices) for size in sizes]
    rows: list[tuple[object, ...]] = [
        (size.topic, size.partition, *numbers) for size, numbers in zip(sizes, counts, strict=True)
    ]
    if len(sizes) > 1:
        rows.append(("all", "", *map(sum, zip(*counts, strict=True))))
    print_table(HEADINGS, rows, right=HEADINGS[1:])


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="log-dirs", help=HELP, epilog=EXAMPLES)(log_dirs)
