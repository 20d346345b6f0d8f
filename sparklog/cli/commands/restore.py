"""`sparklog restore`: a new root from a backup, or from a root as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import JsonOption, LinkOption, example
from sparklog.cli.terminal import complain, copy_progress, named, print_json, print_table, printable

if TYPE_CHECKING:
    from sparklog.tools.backup.restore_point import Wanted
    from sparklog.tools.backup.restoring import Restored

HELP = """Make a new root with what a backup holds, or what a root held: the newest state, or that of an earlier time.

Every byte is checked on the way. Transactions are whole, consumer groups go on where they were, topic ids stay. Killed
at any time, run it again with the same words.
"""
EXAMPLES = example("sparklog restore /backup/log --to /data/log-tuesday --as-of 2026-01-27T12:00:00 --topic orders")
LATEST = "latest"


def restore(
    source: Annotated[str, typer.Argument(metavar="PATH", help="Where the backups lie; or a root.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="PATH", help="Where the root is to be; empty or not there.", show_default=False),
    ],
    as_of: Annotated[
        str,
        typer.Option(
            "--as-of",
            metavar="latest|TIME|VERSION",
            help="Milliseconds or 2026-01-31T12:00:00 (UTC unless it says); a version, of one topic.",
        ),
    ] = LATEST,
    number: Annotated[
        int | None, typer.Option("--backup", min=1, metavar="N", help="Just as this backup has it (backup --list).")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only this one; may be repeated.", show_default="all")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Another name for a topic; may be repeated.")
    ] = None,
    link: LinkOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be restored.")] = False,
    as_json: JsonOption = False,
) -> None:
    from sparklog.cli.places import open_folder
    from sparklog.kafka.in_place.location import refuse_inside
    from sparklog.tools.backup.entries import shown_left_out
    from sparklog.tools.backup.restoring import plan_restore
    from sparklog.tools.backup.restoring import restore as make

    wanted = _wanted(as_of, number, topic)
    names = _renamed(rename)
    refuse_inside(to)
    store = open_folder(source)
    if dry_run:
        found = plan_restore(store, wanted, rename=names)
    else:
        found = make(store, open_folder(to), wanted, rename=names, link=link, progress=copy_progress("restored"))
    if as_json:
        print_json(named(found, dryRun=dry_run))
    else:
        _show(found, to, dry_run)
    complain(shown_left_out(found.left_out))


def _wanted(as_of: str, number: int | None, topics: list[str] | None) -> Wanted:
    from sparklog.cli.times import parse_as_of
    from sparklog.tools.backup.restore_point import Wanted

    version, time_ms = parse_as_of(None if as_of == LATEST else as_of)
    return Wanted(None if topics is None else tuple(dict.fromkeys(topics)), number, version, time_ms)


def _renamed(given: list[str] | None) -> dict[str, str]:
    names = {}
    for text in given or []:
        old, equals, new = text.partition("=")
        if not equals or not old or not new:
            raise typer.BadParameter(f"expected OLD=NEW, found {text!r}", param_hint="'--rename'")
        names[old] = new
    return names


def _show(found: Restored, to: str, dry_run: bool) -> None:
    from sparklog.log.journal.clock import iso_time

    origin = "a root" if found.backup is None else f"backup {found.backup}"
    print(
        f"{'Would restore' if dry_run else 'Restored'} {len(found.topics)} topics and {found.groups} groups from "
        f"{origin} to {to}: {found.files} files of {found.nbytes} bytes."
    )
    rows = []
    for item in found.topics:
        offsets = sum(end - start for start, end in zip(item.log_starts, item.log_ends, strict=True))
        rows.append((item.topic, item.source, item.version, iso_time(item.time_ms), item.partitions, offsets))
    headings = ("TOPIC", "WAS", "VERSION", "AS-OF", "PARTITIONS", "OFFSETS")
    print_table(headings, rows, right=("VERSION", "PARTITIONS", "OFFSETS"))
    for moved in found.moved:
        print(
            f"Group {printable(moved.group)} {'would be' if dry_run else 'is'} set to {moved.now}, the end of "
            f"{moved.topic}-{moved.partition} in this version; it was at {moved.was}."
        )


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="restore", help=HELP, epilog=EXAMPLES)(restore)
