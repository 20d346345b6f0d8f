"""`sparklog backup`: a root in another place, and what lies there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import JsonOption, LinkOption, example
from sparklog.cli.terminal import complain, copy_progress, named, print_json, print_table

if TYPE_CHECKING:
    from sparklog.tools.backup.manifest import Manifest
    from sparklog.tools.backup.pruning import Pruned

HELP = """Back a root up: all topics, transactions and consumer groups as of one moment, into a folder of their own.

Only what is new since the last backup is copied, and every byte is checked on the way. Writers and maintenance go on
meanwhile. Killed at any time, run it again. `sparklog restore` makes a root of it, as of a backup or a time between.
"""
EXAMPLES = example("sparklog backup --root /data/log --to /backup/log --keep 14")
DAY_MS = 86_400_000


def backup(
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="Where the backups lie; made if need be.", show_default=False)
    ],
    root: Annotated[
        str | None,
        typer.Option("--root", "-r", envvar="SPARKLOG_ROOT", metavar="PATH", help="The root to back up."),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only this one; may be repeated.", show_default="all")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the backups there are; make none.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Drop old backups by --keep or --keep-days; make none.")
    ] = False,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, metavar="N", help="Afterwards drop all but the newest N backups.")
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option("--keep-days", min=0, metavar="DAYS", help="Afterwards drop backups that are older than this."),
    ] = None,
    link: LinkOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be copied, or dropped.")] = False,
    as_json: JsonOption = False,
) -> None:
    from sparklog.cli.places import open_folder, root_to_copy
    from sparklog.kafka.in_place.location import refuse_inside
    from sparklog.tools.backup.backing_up import back_up, plan_backup
    from sparklog.tools.backup.entries import shown_left_out
    from sparklog.tools.backup.pruning import prune as drop
    from sparklog.tools.backup.repository import Repository

    refuse_inside(to)
    target = open_folder(to)
    if list_:
        _show(Repository.open(target).manifests(), as_json)
        return
    keep_ms = None if keep_days is None else keep_days * DAY_MS
    if prune:
        _show_pruned(drop(target, keep=keep, keep_ms=keep_ms, dry_run=dry_run), dry_run, as_json)
        return
    if root is None:
        raise typer.BadParameter("which root? give --root or set SPARKLOG_ROOT", param_hint="'--root'")
    opened = root_to_copy(root)
    if dry_run:
        plan = plan_backup(opened, target, topics=topic)
        if as_json:
            print_json(plan)
        else:
            print(f"Would copy {plan.files} files of {plan.nbytes} bytes of {len(plan.topics)} topics.")
        complain(shown_left_out(plan.left_out))
        return
    made = back_up(opened, target, topics=topic, link=link, progress=copy_progress("backed up"))
    pruned = drop(target, keep=keep, keep_ms=keep_ms) if keep is not None or keep_ms is not None else None
    if as_json:
        print_json(named(made, pruned=pruned))
    else:
        print(
            f"Backup {made.number}: {sum(not item.deleted for item in made.topics)} topics, {len(made.groups)} groups, "
            f"{made.objects} objects of {made.nbytes} bytes copied."
        )
        if pruned is not None:
            _show_pruned(pruned, False, False)
    complain(shown_left_out(made.left_out))


def _show(found: list[Manifest], as_json: bool) -> None:
    from sparklog.log.journal.clock import iso_time

    if as_json:
        print_json([named(item, fromMs=item.from_ms, totalBytes=item.total_bytes) for item in found])
        return
    rows = []
    for item in found:
        alive = sum(not each.deleted for each in item.topics)
        since = iso_time(item.from_ms) if item.from_ms else "the beginning"
        topics = f"only {alive}" if item.only is not None else alive
        numbers = (topics, len(item.groups), item.total_bytes, item.nbytes)
        rows.append((item.number, iso_time(item.started_ms), since, *numbers))
    headings = ("BACKUP", "TAKEN", "ALL-TIMES-SINCE", "TOPICS", "GROUPS", "BYTES", "COPIED")
    print_table(headings, rows, right=("BACKUP", "TOPICS", "GROUPS", "BYTES", "COPIED"))


def _show_pruned(found: Pruned, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(named(found, dryRun=dry_run))
        return
    numbers = ", ".join(map(str, found.dropped)) or "none"
    what = "Would drop" if dry_run else "Dropped"
    print(f"{what} backups: {numbers}; {found.objects} objects of {found.nbytes} bytes. Kept: {len(found.kept)}.")


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="backup", help=HELP, epilog=EXAMPLES)(backup)
