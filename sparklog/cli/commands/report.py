"""`sparklog report`: one page about a whole root, or the same facts as JSON."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sparklog import __version__
from sparklog.cli.options import PlaceOption, example

HELP = """Write one page about all topics: sizes, offsets, partition skew, commit rates, open transactions, consumer
groups, what the next maintenance run would do, and what needs attention.

The page is one HTML file that needs no network. Nothing is changed. A Kafka log directory is reported on in place, with
what its files tell.
"""
EXAMPLES = example("sparklog report --root /data/log --html report.html")


def report(
    root: PlaceOption,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write the page here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON, for scripts.")] = False,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    properties: Annotated[
        str | None,
        typer.Option(
            "--properties", metavar="FILE", help="What the maintenance jobs are given, as conf/sparklog.properties."
        ),
    ] = None,
    now: Annotated[
        str | None,
        typer.Option(
            "--now", metavar="TIME", help="As of this time instead of now: milliseconds or 2026-01-31T12:00:00 (UTC)."
        ),
    ] = None,
) -> None:
    from sparklog.cli.places import open_place, report_settings
    from sparklog.tools.report.facts import document
    from sparklog.tools.report.gather import gather

    if html is None and not as_json:
        raise typer.BadParameter("say what to make: --html FILE, or --json", param_hint="'--html'")
    place = open_place(root)
    chosen = place.narrowed(topics)
    found = gather(
        place.view, report_settings(place, properties, now), topics=chosen, made_by=f"sparklog {__version__}"
    )
    if html is not None:
        from sparklog.tools.report.metrics import write_whole
        from sparklog.tools.report.page import as_html

        write_whole(html, as_html(found), "--html")
        if not as_json:
            print(f"Wrote {html}.")
    if as_json:
        print(json.dumps(document(found)))


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="report", help=HELP, epilog=EXAMPLES)(report)
