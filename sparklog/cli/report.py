"""`sparklog report`: one page about a whole root, or the same facts as JSON."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog import __version__
from sparklog.cli.options import PlaceOption, example

if TYPE_CHECKING:
    from sparklog.cli.places import Place
    from sparklog.maintenance.work import Settings

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
    from sparklog.cli.places import open_place
    from sparklog.report.facts import document
    from sparklog.report.gather import gather

    if html is None and not as_json:
        raise typer.BadParameter("say what to make: --html FILE, or --json", param_hint="'--html'")
    place = open_place(root)
    chosen = [place.one_topic(name) for name in topics] if topics else []
    if not chosen and place.topic is not None:
        chosen = [place.topic]
    found = gather(place.view, _settings(place, properties, now), topics=chosen, made_by=f"sparklog {__version__}")
    if html is not None:
        from sparklog.report.page import as_html

        _write(html, as_html(found))
        if not as_json:
            print(f"Wrote {html}.")
    if as_json:
        print(json.dumps(document(found)))


def _settings(place: Place, properties: str | None, now: str | None) -> Settings:
    from dataclasses import replace

    from sparklog.cli.times import parse_time
    from sparklog.log.env import SYSTEM
    from sparklog.maintenance.arguments import settings_file
    from sparklog.maintenance.clock import store_clock_ms
    from sparklog.maintenance.work import Settings

    given = Settings(0) if properties is None else settings_file(properties)
    if now is not None:
        return replace(given, now_ms=parse_time(now, "--now"))
    if place.root is None:
        return replace(given, now_ms=SYSTEM.wall_ms())
    return replace(given, now_ms=store_clock_ms(place.root.store, place.root.env, dry_run=True))


def _write(path: str, text: str) -> None:
    """The whole page or, if something fails, what was there before."""
    from pathlib import Path

    from sparklog.errors import BadRequest

    unfinished = Path(f"{path}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise BadRequest(f"the page cannot be written to {path}: {error.strerror}; choose another --html") from None


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="report", help=HELP, epilog=EXAMPLES)(report)
