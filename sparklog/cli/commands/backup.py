"""The commands `sparklog backup`, `restore`, `clone` and `repartition`, which copy roots and topics as of any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from click import BadParameter

from sparklog.common.times import iso_time
from sparklog.common.units import count, size_text
from sparklog.console import options as opt
from sparklog.console.locations import open_directory_store, open_root, open_root_to_copy
from sparklog.console.options import QuietOption, RootOption, integer_option
from sparklog.console.parameters import Argument, Commands, Option
from sparklog.console.terminal import Output, print_table, printable
from sparklog.errors import Conflict
from sparklog.output import StatusLine, json_value

if TYPE_CHECKING:
    from sparklog.log.topic.backup_manifest import Manifest
    from sparklog.tools.backup.repository import Pruned
    from sparklog.tools.backup.restore_point import RestorePoint
    from sparklog.tools.backup.restoring import Restored
    from sparklog.tools.repartition import Repartitioned


app = Commands()

DAY_MS = 86_400_000


@dataclass
class Backups:
    """The options that list and delete existing backups."""

    list_: Annotated[
        bool,
        Option(
            "--list",
            excludes="--prune --keep --keep-days --topic --link --dry-run",
            help="List the existing backups. No backup is created.",
        ),
    ] = False
    prune: Annotated[
        bool,
        Option(
            needs="--keep --keep-days",
            excludes="--topic --link",
            help="Only delete the backups that --keep and --keep-days do not retain. No backup is created.",
        ),
    ] = False
    keep: Annotated[
        int | None, opt.integer_option(low=1, text="Number of latest backups to retain. Older backups are deleted.")
    ] = None
    keep_days: Annotated[
        int | None,
        opt.integer_option(
            metavar="DAYS", text="Number of days for which to retain backups. Older backups are deleted."
        ),
    ] = None

    def __post_init__(self) -> None:
        self.keep_ms = None if self.keep_days is None else self.keep_days * DAY_MS


@app.add("backup", "sparklog backup --root /data/log --to /backup/log --keep 14")
def backup(
    to: Annotated[
        str,
        Option(
            metavar="PATH",
            help="Directory or bucket prefix to write the backup to. It is created if it does not exist.",
            show_default=False,
        ),
    ],
    *,
    root: Annotated[str | None, opt.root_option("Directory or URL of the root to back up.")] = None,
    topic: opt.TopicsOption = None,
    backups: Backups,
    link: opt.LinkOption = False,
    dry_run: opt.DryRunOption = False,
    quiet: opt.QuietOption = False,
) -> Output:
    """Create an incremental backup of a root.

    Copies all topics, transactions and consumer groups, as of one point in time, to a backup directory. Only data that
    is new since the last backup is copied, and every byte is verified. Writers and maintenance can continue to run. If
    the command is killed, run it again. Use `sparklog restore` to create a root as of any backup, or as of a time
    between two backups.
    """
    from sparklog.opening import reject_inside
    from sparklog.tools.backup.backing_up import back_up, plan_backup
    from sparklog.tools.backup.damaged_logs import errors_of_skipped
    from sparklog.tools.backup.repository import Repository, prune

    reject_inside(to)
    target = open_directory_store(to)
    if backups.list_:
        manifests = Repository.open(target).manifests()
        totals = [{"fromMs": item.from_ms, "totalBytes": item.total_bytes} for item in manifests]
        documents = [json_value(item) | total for item, total in zip(manifests, totals, strict=True)]
        return Output(documents, lambda: _show_backups(manifests))
    if backups.prune:
        dropped = prune(target, keep=backups.keep, keep_ms=backups.keep_ms, dry_run=dry_run)
        return Output.from_lines(json_value(dropped) | {"dryRun": dry_run}, _shown_pruned(dropped, dry_run))
    if root is None:
        raise BadParameter("expected a root: specify --root or set SPARKLOG_ROOT", param_hint="'--root'")
    topics = opt.topic_names(topic) or None
    opened = open_root_to_copy(root)
    if dry_run:
        plan = plan_backup(opened, target, topics=topics)
        files = f"{count(plan.files, 'file')} ({size_text(plan.nbytes)})"
        text = f"Would copy {files} of {count(len(plan.topics), 'topic')}."
        return Output.from_lines(plan, text, failures=errors_of_skipped(plan.left_out))
    with StatusLine("backup", quiet=quiet) as status:
        manifest = back_up(opened, target, topics=topics, link=link, progress=status.files)
    deletes = backups.keep is not None or backups.keep_ms is not None
    pruned = prune(target, keep=backups.keep, keep_ms=backups.keep_ms) if deletes else None
    text = (
        f"Backup {manifest.number}: {count(sum(not item.deleted for item in manifest.topics), 'topic')}, "
        f"{count(len(manifest.groups), 'group')}, {count(manifest.objects, 'object')}"
        f" ({size_text(manifest.nbytes)}) copied."
    )
    more = () if pruned is None else (_shown_pruned(pruned, False),)
    document = json_value(manifest) | {"pruned": json_value(pruned)}
    return Output.from_lines(document, text, *more, failures=errors_of_skipped(manifest.left_out))


def _show_backups(backups: list[Manifest]) -> None:
    rows = []
    for item in backups:
        alive = sum(not topic.deleted for topic in item.topics)
        since = iso_time(item.from_ms) if item.from_ms else "the beginning"
        topics = f"only {alive}" if item.only is not None else alive
        numbers = (topics, len(item.groups), item.total_bytes, item.nbytes)
        rows.append((item.number, iso_time(item.started_ms), since, *numbers))
    headings = ("BACKUP", "TAKEN", "ALL-TIMES-SINCE", "TOPICS", "GROUPS", "BYTES", "COPIED")
    print_table(headings, rows, right=("BACKUP", "TOPICS", "GROUPS", "BYTES", "COPIED"))


def _shown_pruned(pruned: Pruned, dry_run: bool) -> str:
    numbers = ", ".join(map(str, pruned.dropped)) or "none"
    verb = "Would delete" if dry_run else "Deleted"
    deleted = f"{verb} backups: {numbers}; {count(pruned.objects, 'object')} ({size_text(pruned.nbytes)})"
    return f"{deleted}. Kept: {len(pruned.kept)}."


@dataclass
class RestoreSelection:
    """The topics to restore, the point in time, and the new names of topics."""

    as_of: Annotated[
        str,
        Option(
            metavar="latest|TIME|VERSION",
            help="Restore the state at this time (in milliseconds or ISO 8601, UTC if no time zone is given),"
            " or this version of a single topic.",
        ),
    ] = "latest"
    number: Annotated[
        int | None,
        opt.integer_option(
            "--backup", low=1, text="Number of the backup to restore, as printed by `sparklog backup --list`."
        ),
    ] = None
    topic: opt.TopicsOption = None
    rename: Annotated[
        list[str] | None, Option(metavar="OLD=NEW", help="Restore topic OLD under the name NEW. May be repeated.")
    ] = None

    def restore_point(self) -> RestorePoint:
        from sparklog.tools.backup.restore_point import RestorePoint

        version, time_ms = opt.parse_as_of(None if self.as_of == "latest" else self.as_of)
        return RestorePoint(opt.topic_names(self.topic) or None, self.number, version, time_ms)


@app.add("restore", "sparklog restore /backup/log --to /data/log-tuesday --as-of 2026-01-27T12:00:00 --topic orders")
def restore(
    to: Annotated[
        str,
        Option(
            "--to",
            "--root",
            "-r",
            metavar="PATH",
            help="Directory or URL of the root to create. The directory must be empty or must not exist.",
        ),
    ],
    source: Annotated[str | None, Argument(metavar="PATH", help="Backup directory or root to restore from.")] = None,
    from_: Annotated[
        str | None,
        Option(
            "--from",
            metavar="PATH",
            help="Backup directory or root to restore from. May be given instead of PATH.",
            show_default=False,
        ),
    ] = None,
    *,
    past: RestoreSelection,
    link: opt.LinkOption = False,
    dry_run: opt.DryRunOption = False,
    quiet: opt.QuietOption = False,
) -> Output:
    """Create a root from a backup or an earlier state of a root.

    The new root has the latest state, or the state as of an earlier time. Every byte is verified. Transactions are
    complete, consumer groups retain their offsets, and topics retain their ids. If the command is killed, run it again
    with the same options.
    """
    from sparklog.opening import reject_inside
    from sparklog.tools.backup.damaged_logs import errors_of_skipped
    from sparklog.tools.backup.restoring import plan_restore
    from sparklog.tools.backup.restoring import restore as restore_root

    point = past.restore_point()
    names = dict(opt.name_and_value(text, "--rename", "OLD=NEW") for text in past.rename or ())
    reject_inside(to)
    store = open_directory_store(opt.required(source, from_, "PATH --from"))
    if dry_run:
        restored = plan_restore(store, point, rename=names)
    else:
        with StatusLine("restore", quiet=quiet) as status:
            restored = restore_root(
                store, open_directory_store(to), point, rename=names, link=link, progress=status.files
            )
    document = json_value(restored) | {"dryRun": dry_run}
    return Output(document, lambda: _show_restored(restored, to, dry_run), errors_of_skipped(restored.left_out))


def _show_restored(restored: Restored, to: str, dry_run: bool) -> None:
    origin = "a root" if restored.backup is None else f"backup {restored.backup}"
    print(
        f"{'Would restore' if dry_run else 'Restored'} {count(len(restored.topics), 'topic')} and "
        f"{count(restored.groups, 'group')} from {origin} to {to}: {count(restored.files, 'file')} "
        f"({size_text(restored.nbytes)})."
    )
    rows = []
    for item in restored.topics:
        offsets = sum(end - start for start, end in zip(item.log_starts, item.log_ends, strict=True))
        rows.append((item.topic, item.source, item.version, iso_time(item.time_ms), item.partitions, offsets))
    headings = ("TOPIC", "WAS", "VERSION", "AS-OF", "PARTITIONS", "OFFSETS")
    print_table(headings, rows, right=("VERSION", "PARTITIONS", "OFFSETS"))
    for moved in restored.moved:
        print(
            f"Group {printable(moved.group)} {'would be' if dry_run else 'is'} set to {moved.now}, the end of "
            f"{moved.topic}-{moved.partition} in this version; its previous offset was {moved.was}."
        )


@app.add("clone", "sparklog clone orders orders-tuesday --as-of 2026-01-27T12:00:00 --root /data/log")
def clone(
    topic: Annotated[
        str, Argument(metavar="TOPIC", help="Topic to clone. If --as-of is given, the topic may have been deleted.")
    ],
    name: Annotated[str, Argument(metavar="NEW-NAME", help="Name of the topic to create.")],
    root: opt.RootOption,
    as_of: opt.AsOfOption = None,
    dry_run: opt.DryRunOption = False,
    quiet: opt.QuietOption = False,
) -> Output:
    """Clone a topic without copying data.

    The clone has the records, offsets and configs of the source topic, as of now, a version or a time, and a new topic
    id. Both topics share files until one of them rewrites its files. You can append to, alter and delete either topic
    without affecting the other topic. Versions are available for at least file.delete.delay.ms, which is one day by
    default.
    """
    from sparklog.log.topic.cloning import clone_topic

    version, time_ms = opt.parse_as_of(as_of)
    with StatusLine("clone", quiet=quiet) as status:
        status(f"reading the log of {topic}")
        cloned = clone_topic(open_root(root), topic, name, version=version, time_ms=time_ms, dry_run=dry_run)
    offsets = sum(end - start for start, end in zip(cloned.log_starts, cloned.log_ends, strict=True))
    text = (
        f"{'Would clone' if dry_run else 'Cloned'} topic {topic} at version {cloned.version} as {name}: "
        f"{count(cloned.partitions, 'partition')}, {count(offsets, 'offset')}, {count(cloned.files, 'file')} "
        f"({size_text(cloned.nbytes)}) shared."
    )
    return Output.from_lines(json_value(cloned) | {"dryRun": dry_run}, text)


PAUSE_SECONDS = 1.0
"""Seconds between two polls of --follow if the topic has no new records."""


@app.add("repartition", "sparklog repartition orders --to orders-12 --partitions 12 --root /data/log")
def repartition(
    topic: Annotated[str, Argument(metavar="TOPIC", help="Topic to copy. The topic is not changed.")],
    to: Annotated[
        str,
        Option(
            metavar="NEW-NAME",
            help="Name of the topic to create. To continue an interrupted copy, specify the same name again.",
            show_default=False,
        ),
    ],
    partitions: Annotated[
        int, integer_option("-p", low=1, text="Number of partitions of the new topic.", default=False)
    ],
    root: RootOption,
    follow: Annotated[bool, Option("-f", help="Keep copying new records until interrupted.")] = False,
    move_groups: Annotated[
        bool,
        Option(
            excludes="--follow",
            why="groups can move only after writers have stopped",
            help="After the copy, commit the consumer groups' offsets in the new topic.",
        ),
    ] = False,
    quiet: QuietOption = False,
) -> Output:
    """Copy a topic with a different number of partitions.

    Each record is copied exactly once to the partition of its key, even if the command is killed and run again. Keys,
    values, timestamps, headers and the order of the records of each key are preserved. A record without a key is copied
    to its old partition modulo the new number of partitions. To cut over, stop the writers of the old topic, run the
    command with --move-groups, and start all clients on the new topic.
    """
    from sparklog.tools.repartition import STEP_BYTES, copy_topic

    opened = open_root(root)
    total = 0
    with StatusLine("repartition", quiet=quiet) as status:

        def progress(records: int, nbytes: int, of_nbytes: int) -> None:
            size = f"{size_text(nbytes)} of {size_text(of_nbytes)}"
            status(f"{count(total + records, 'record')}, {size} copied")

        while True:
            result = copy_topic(opened, topic, to, partitions, move_groups, progress, STEP_BYTES)
            if not follow:
                break
            total += result.records
            if not result.records:
                opened.env.sleep(PAUSE_SECONDS)
    failures = [
        Conflict(f"group '{item.group}' was not moved: {item.problem}") for item in result.groups if item.problem
    ]
    return Output.from_lines(result, *_lines(result, move_groups), failures=failures)


def _lines(result: Repartitioned, move_groups: bool) -> list[str]:
    new = f"{result.topic} ({count(result.partitions, 'partition')})"
    lines = [f"Copied {count(result.records, 'record')} of {result.source} to {new}, which now has {result.total:,}."]
    if result.waiting:
        lines.append(
            f"{result.waiting:,} offsets are in or after open transactions: run the command again once they have ended."
        )
    for item in result.groups:
        if not item.problem:
            repeated = f"at most {count(item.again, 'record')}" if item.again else "no records"
            lines.append(f"Group {printable(item.group)} continues in {result.topic}, and reads {repeated} again.")
    if not move_groups:
        lines.append(
            f"To cut over: stop the writers of {result.source}, run the command again with --move-groups, and start "
            f"writers and groups on {result.topic}."
        )
    return lines
