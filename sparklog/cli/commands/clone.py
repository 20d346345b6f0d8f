"""`sparklog clone`: a new topic that shares another one's files."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.options import AsOfOption, JsonOption, RootOption, example
from sparklog.cli.terminal import named, print_json

HELP = """Create a topic that shows another one as it is, or was at a version or time; nothing is copied.

Both share files until one of them rewrites its own; either can be appended to, altered and deleted without the other
noticing. Offsets and configs are the same, the topic id is new. How far back a version can lie is what the vacuum has
kept: file.delete.delay.ms, a day.
"""
EXAMPLES = example("sparklog clone orders orders-tuesday --as-of 2026-01-27T12:00:00 --root /data/log")


def clone(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to clone; a deleted one with --as-of.")],
    name: Annotated[str, typer.Argument(metavar="NEW-NAME", help="The topic to create.")],
    root: RootOption,
    as_of: AsOfOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what the clone would hold.")] = False,
    as_json: JsonOption = False,
) -> None:
    from sparklog.cli.places import open_root
    from sparklog.cli.times import parse_as_of
    from sparklog.log.topic.cloning import clone_topic

    version, time_ms = parse_as_of(as_of)
    found = clone_topic(open_root(root), topic, name, version=version, time_ms=time_ms, dry_run=dry_run)
    if as_json:
        print_json(named(found, dryRun=dry_run))
        return
    offsets = sum(end - start for start, end in zip(found.log_starts, found.log_ends, strict=True))
    print(
        f"{'Would clone' if dry_run else 'Cloned'} topic {topic} at version {found.version} as {name}: "
        f"{found.partitions} partitions, {offsets} offsets, {found.files} files of {found.nbytes} bytes shared."
    )


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="clone", help=HELP, epilog=EXAMPLES)(clone)
