"""`sparklog offsets`: what `kafka-get-offsets` prints, one `topic:partition:offset` per line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import Isolation, JsonOption, PlaceOption, example
from sparklog.cli.terminal import printable

if TYPE_CHECKING:
    from sparklog.log.state.view import LogView

HELP = """Print offsets of topics, one topic:partition:offset per line, as kafka-get-offsets does.

--time is -1 or latest (the end, the default), -2 or earliest (the log start), -3 or max-timestamp (the record with
the largest timestamp), or a time in milliseconds: the first record not older. Partitions without one are left out.
"""
EXAMPLES = example("sparklog offsets orders --root /data/log --time -2")

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NAMES = {"latest": LATEST, "earliest": EARLIEST, "max-timestamp": MAX_TIMESTAMP}


def offsets_at(view: LogView, topic: str, time: int, isolation: str) -> dict[int, int]:
    """Offset per partition of a topic for a `--time`; partitions without an answer are missing."""
    from sparklog.log.read.time_lookup import offsets_of_max_timestamp

    bounds = view.bounds(topic)
    if time == LATEST:
        return {partition: bound.end(isolation) for partition, bound in bounds.items()}
    if time == EARLIEST:
        return {partition: bound.log_start for partition, bound in bounds.items()}
    if time == MAX_TIMESTAMP:
        found = offsets_of_max_timestamp(view, topic, isolation)
    else:
        found = view.offsets_for_timestamps(topic, dict.fromkeys(bounds, time), isolation)
    return {partition: answer.offset for partition, answer in found.items() if answer is not None}


def _time(text: str) -> int:
    from sparklog.cli.times import parse_time

    if text in NAMES:
        return NAMES[text]
    if text in ("-1", "-2", "-3"):
        return int(text)
    return parse_time(text, "--time")


def offsets(
    root: PlaceOption,
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics; none means all.")] = None,
    time: Annotated[
        str, typer.Option("--time", "-t", metavar="-1|-2|-3|MS", help="Which offset, see above.")
    ] = "latest",
    isolation: Annotated[
        Isolation, typer.Option("--isolation-level", help="read_committed: below the first open transaction.")
    ] = Isolation.read_uncommitted,
    as_json: JsonOption = False,
) -> None:
    from sparklog.cli.places import open_place

    wanted = _time(time)
    place = open_place(root)
    names = place.refreshed(topics)
    rows = [
        (name, partition, offset)
        for name in names
        for partition, offset in offsets_at(place.view, name, wanted, isolation.value).items()
    ]
    # Sorted by the text topic-partition, t-10 before t-2: as Kafka's tool does.
    rows.sort(key=lambda row: f"{row[0]}-{row[1]}")
    if as_json:
        print(
            json.dumps([{"topic": name, "partition": partition, "offset": offset} for name, partition, offset in rows])
        )
    else:
        for name, partition, offset in rows:
            print(f"{printable(name)}:{partition}:{offset}")
    place.complain()


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="offsets", help=HELP, epilog=EXAMPLES)(offsets)
