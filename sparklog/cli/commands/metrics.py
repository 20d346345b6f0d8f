"""`sparklog metrics`: lag and sizes as a text file for Prometheus."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.options import PlaceOption, example
from sparklog.cli.terminal import write

HELP = """Print lag of consumer groups, offsets, sizes and open transactions in Prometheus' text format.

With --output the file is replaced as a whole: point it into the folder of the node exporter's textfile collector and
run this from cron. A Kafka log directory is measured in place.
"""
EXAMPLES = example("sparklog metrics --root /data/log --output /var/lib/node_exporter/sparklog.prom")


def metrics(
    root: PlaceOption,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write here; otherwise it is printed.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
) -> None:
    from sparklog.cli.places import open_place, report_settings
    from sparklog.tools.report.gather import gather
    from sparklog.tools.report.metrics import exposition, write_whole

    place = open_place(root)
    chosen = place.narrowed(topics)
    text = exposition(gather(place.view, report_settings(place), topics=chosen, maintenance=False))
    if output is None:
        write(text.encode())
    else:
        write_whole(output, text, "--output")


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="metrics", help=HELP, epilog=EXAMPLES)(metrics)
