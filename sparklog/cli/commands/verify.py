"""`sparklog verify`: is everything still there, and is it what was written?"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sparklog.cli.options import JsonOption, PlaceOption, example
from sparklog.cli.terminal import printable

HELP = """Read everything of a root, or of a Kafka log directory, and name every byte that is not what was written.

Commits, checkpoints, the logs of transactions and groups, every file that a version may still need; nothing is written,
and writers and maintenance may go on meanwhile. Files that nobody names are listed apart: they are no damage.
Exit code 0: every byte accounted for; 1: something is damaged.
"""
EXAMPLES = example("sparklog verify --root /data/log --topic orders")


def verify(
    root: PlaceOption,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Only this one; may be repeated.", show_default="everything"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Read only the logs; of files look whether they are there and how long.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from sparklog.errors import BadRequest, NotFound
    from sparklog.kafka.in_place.location import (
        KAFKA_DIRECTORY,
        KAFKA_PARTITION,
        NOTHING,
        TOPIC,
        exists,
        missing,
        resolve,
    )
    from sparklog.storage import open_store
    from sparklog.tools.verification.findings import document, summary

    location = resolve(root)
    topics = list(topic or ())
    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        from sparklog.tools.verification.kafka_directory import verify_log_dir

        if quick:
            raise BadRequest("--quick is for sparklog roots: a Kafka directory has no log of its files; leave it out")
        report = verify_log_dir(location.path, topics=topics, say=_say)
    elif location.kind == NOTHING and not exists(location):
        raise NotFound(missing(location))
    else:
        from sparklog.tools.verification.run import verify_root

        if location.kind == TOPIC and location.topic is not None:
            if any(name != location.topic for name in topics):
                raise BadRequest(f"the folder is topic {location.topic}'s: give its root to verify others")
            topics = [location.topic]
        report = verify_root(open_store(location.root), topics=topics, quick=quick, say=_say)
    if as_json:
        print(json.dumps(document(report)))
    else:
        for line in summary(report).split("\n"):
            print(printable(line))
    if not report.sound:
        raise typer.Exit(1)


def _say(line: str) -> None:
    """Progress, where somebody is watching."""
    if sys.stderr.isatty():
        print(f"\r{line[:100]:<100}\r", end="", file=sys.stderr, flush=True)


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="verify", help=HELP, epilog=EXAMPLES)(verify)
