"""The command `sparklog groups`, which has the commands of `kafka-consumer-groups` for the groups of a root."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click import BadParameter

from sparklog.common.parsing import INT64_MAX, is_digits
from sparklog.common.times import iso_time
from sparklog.console import options as opt
from sparklog.console.locations import open_root, open_source
from sparklog.console.parameters import Argument, Commands, Option
from sparklog.console.terminal import EXIT_ERROR, EXIT_OK, Output, print_lines, print_table, printable, read_text, warn
from sparklog.errors import BadRequest, NotFound
from sparklog.output import json_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparklog.errors import SparklogError
    from sparklog.format.checkpoint_files import TopicPartition
    from sparklog.groups.group import GroupDescription
    from sparklog.groups.group_members import GroupMember, Partitions
    from sparklog.groups.group_state import GroupState
    from sparklog.groups.lag import Groups, Lag
    from sparklog.groups.reset import NewOffset, Scenario
    from sparklog.kafka.importing.coordinators import KafkaGroups

app = Commands("groups", "List, describe, reset and delete consumer groups.")

OFFSETS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "SECONDS-BEHIND", "CONSUMER-ID")
STATES = ("GROUP", "STATE", "GENERATION", "CONSUMER-ID", "SESSION-TIMEOUT-MS", "PENDING", "#MEMBERS")
MEMBERS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS")
STATIC = ("GROUP-INSTANCE-ID",)
VERBOSE = ("CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT")

TopicOption = Annotated[
    list[str] | None,
    Option(
        "--topic",
        "-t",
        metavar="TOPIC[:P,...]",
        help="Topic whose offsets to reset or delete, optionally followed by its partitions. May be repeated.",
    ),
]


@dataclass
class OneGroup:
    """The group of a command, given as an argument or with --group."""

    group: Annotated[str | None, Argument(metavar="GROUP", help="The consumer group to act on.")] = None
    group_option: Annotated[
        list[str] | None,
        Option("--group", "-g", metavar="NAME", help="The consumer group to act on. May be given instead of GROUP."),
    ] = None

    @property
    def name(self) -> str:
        options = list(dict.fromkeys(self.group_option or ()))
        if len(options) > 1:
            raise BadParameter(f"expected one group, found {', '.join(options)}: run the command for each group")
        return opt.required(self.group, options[0] if options else None, "GROUP --group")


@dataclass
class GroupNames:
    """The groups of a command, given as arguments or with --group."""

    groups: Annotated[
        list[str] | None,
        Argument(metavar="[GROUP]...", help="Consumer groups to describe, unless --group or --all-groups is given."),
    ] = None
    group_option: Annotated[
        list[str] | None, Option("--group", "-g", metavar="NAME", help="Consumer group to describe. May be repeated.")
    ] = None
    all_groups: Annotated[bool, Option(excludes="GROUP --group", help="Describe all consumer groups of the root.")] = (
        False
    )

    def names(self) -> list[str] | None:
        """Return the names of the groups, or None for all groups."""
        names = list(dict.fromkeys([*(self.groups or ()), *(self.group_option or ())]))
        if not names and not self.all_groups:
            raise BadParameter("specify group names, or --all-groups")
        return names or None


@app.add("list", "sparklog groups list --root /data/log")
def list_(
    root: opt.SourceOption,
    state: Annotated[
        str | None,
        Option(
            metavar="[STATE,...]",
            is_flag=False,
            flag_value="",
            help="Also print the state of each group. If states are given, list only groups in these states.",
        ),
    ] = None,
) -> Output:
    """List consumer groups, one per line.

    Works for roots and Kafka log directories.
    """
    groups = _open_groups(root)
    names = groups.names()
    if state is not None:
        states = opt.group_states(state)
        described = groups.descriptions(names, groups.failures)
        return _states([item for item in described if item.state.lower() in states], groups.failures)
    return Output(names, lambda: print_lines(names), groups.failures)


@app.add("describe", "sparklog groups describe billing --root /data/log")
def describe(
    root: opt.SourceOption,
    *,
    groups: GroupNames,
    state: Annotated[bool, Option(help="Describe the state of each group.")] = False,
    members: Annotated[bool, Option(excludes="--state", help="Describe the members of each group.")] = False,
    verbose: Annotated[
        bool,
        Option(
            needs="--members", help="Also show the partitions that are assigned to each member. Requires --members."
        ),
    ] = False,
    max_lag: Annotated[
        int | None,
        opt.integer_option(
            text="Exit with code 1 if the lag of a partition exceeds this many records.",
            excludes="--state --members",
            why="lag is shown with the offsets",
        ),
    ] = None,
) -> Output:
    """Describe the offsets and lag of consumer groups.

    LAG is a number of offsets, and SECONDS-BEHIND is the age of the first unread record. As in Kafka, the lag extends
    to the log end, including transaction markers and records of open transactions. For a Kafka log directory, the
    command shows the groups and partitions that the directory contains, but no members.
    """
    opened = _open_groups(root)
    names = groups.names()
    described = opened.descriptions(names or opened.names(), opened.failures if names is None else None)
    missing = [item.id for item in described if item.state == "Dead"]
    if missing:
        raise NotFound(
            f"group '{missing[0]}' does not exist in {opened.location}; `sparklog groups list` lists all groups"
        )
    if state:
        return _states(described, opened.failures)
    if members:
        return _members(described, opened.failures, verbose)
    rows = opened.lag([item.id for item in described])

    def show() -> None:
        _note_empty_groups(described)
        print_table(OFFSETS, [_cells(row) for row in rows])

    late = [row for row in rows if max_lag is not None and (row.lag or 0) > max_lag]

    def warn_of_lag() -> None:
        for row in late:
            lag = f"group {row.group} lags by {row.lag:,} records in {row.topic}-{row.partition}"
            warn(f"{lag}; the maximum is {max_lag:,}")

    return Output(rows, show, opened.failures, EXIT_ERROR if late else EXIT_OK, warn_of_lag)


def _note_empty_groups(described: Sequence[GroupDescription]) -> None:
    for item in described:
        if item.state == "Empty":
            print(f"Consumer group '{printable(item.id)}' has no active members.", file=sys.stderr)


def _note_served_groups(described: Sequence[GroupDescription]) -> None:
    for item in described:
        if item.server is not None:
            print(
                f"The members of consumer group '{printable(item.id)}' are Kafka clients of server {item.server}. To "
                f"describe them, run kafka-consumer-groups --bootstrap-server {item.server} --describe --members "
                f"--group {shlex.quote(printable(item.id))}",
                file=sys.stderr,
            )


@dataclass
class ResetTo:
    """The new offsets of a group, given by exactly one of the options."""

    to_earliest: Annotated[bool, Option(help="Reset offsets to the log start.")] = False
    to_latest: Annotated[bool, Option(help="Reset offsets to the log end.")] = False
    to_current: Annotated[
        bool,
        Option(
            help="Reset offsets to the committed offsets. Partitions without a committed offset are"
            " reset to the log end."
        ),
    ] = False
    to_offset: Annotated[int | None, opt.integer_option(text="Reset offsets to a specific offset.")] = None
    shift_by: Annotated[
        int | None, opt.integer_option(low=-INT64_MAX, text="Move offsets forward by N, or backward if N is negative.")
    ] = None
    to_datetime: Annotated[
        str | None,
        Option(
            metavar="TIME", help="Reset offsets to the first record at or after this time, in milliseconds or ISO 8601."
        ),
    ] = None
    by_duration: Annotated[
        str | None,
        Option(
            metavar="PnDTnHnMnS",
            help="Reset offsets to the first record that is not older than this duration, such as PT2H.",
        ),
    ] = None
    from_file: Annotated[
        Path | None,
        Option(
            metavar="CSV",
            excludes="--topic --all-topics",
            why="the file specifies the partitions",
            help="Reset offsets to the values in this CSV file, which has one topic,partition,offset per line.",
        ),
    ] = None

    def scenario(self, group: str) -> Scenario:
        from sparklog.groups.reset import Scenario, To, parse_duration

        options = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}
        choices = [(name, value) for name, value in options.items() if value is not None and value is not False]
        if len(choices) != 1:
            raise BadParameter(f"specify exactly one of {', '.join(options)}; found {len(choices)}")
        ((name, value),) = choices
        if name == "--from-file":
            return Scenario(To.FILE, offsets=_offsets_of(group, value))
        if name == "--to-datetime":
            value = opt.parse_time(value, name)
        elif name == "--by-duration":
            value = parse_duration(value)
        return Scenario(To(name[2:]), 0 if value is True else value)


@app.add("reset", "sparklog groups reset billing --topic orders --to-datetime 2026-03-01T08:00 --root /data/log")
def reset(
    root: opt.RootOption,
    *,
    group: OneGroup,
    topic: TopicOption = None,
    all_topics: Annotated[
        bool, Option(excludes="--topic", help="Reset all partitions for which the group has committed offsets.")
    ] = False,
    to: ResetTo,
    execute: opt.ExecuteOption = False,
    dry_run: Annotated[bool, Option(help="Only print the new offsets. This is the default.")] = False,
    force: Annotated[
        bool, Option(help="Reset the offsets even if the group has active members. The members are fenced.")
    ] = False,
    export: Annotated[bool, Option(help="Print the new offsets in the CSV format of --from-file.")] = False,
) -> Output:
    """Reset the offsets of a group in some or all partitions.

    Specify exactly one of the options --to-earliest ... --from-file. If --execute is not given, the command only prints
    the new offsets. The command fails if the group has active members. Stop the members first, or use --force. The
    reset fences a consumer that was only suspended, so its next commit fails. Group members continue from the new
    offsets.

    A file for --from-file has lines of the form topic,partition,offset, as printed by --export. For example, `reset g
    --to-current --export` saves the offsets of group g. A restarted Spark query continues from its checkpoint instead
    of the offsets of the group. A new query with startingOffsets=group starts at the offsets of the group.
    """
    from sparklog.groups.reset import plan_reset, with_offsets

    name = group.name
    scenario = to.scenario(name)
    topics = _topics(topic)
    opened = _groups_of_root(root).group(name)
    plan = plan_reset(opened, scenario, topics, now_ms=opened.root.env.wall_ms())
    if execute and opened.description().state == "Dead":
        print(f"WARN Group '{printable(name)}' does not exist and will be created.", file=sys.stderr)
    active = opened.description() if force else None
    opened.alter(with_offsets(plan), dry_run=not execute, force=force)
    if active is not None and active.is_active:
        print(f"WARN Group '{printable(name)}' is active: {_fenced(active, execute)}", file=sys.stderr)
    for item in plan:
        if item.warning:
            print(f"WARN {printable(item.warning)}", file=sys.stderr)
    if not execute and not dry_run:
        print(
            "WARN Nothing was changed, because this was a dry run. Add --execute to make the changes.", file=sys.stderr
        )
    document = {"group": name, "executed": execute, "offsets": plan}
    return Output(document, lambda: _show_plan(name, plan, export))


def _fenced(active: GroupDescription, execute: bool) -> str:
    if active.instance is None:
        number = len(active.members)
        members = "its member" if number == 1 else f"its {number} members"
        verb = f"{'' if execute else 'would '}continue{'s' * (execute and number == 1)}"
        return f"{members} {verb} from these offsets; commits of earlier offsets {'fail' if execute else 'would fail'}."
    if active.server is not None:
        verb = "rejoin and continue" if execute else "would rejoin and continue"
        return f"the Kafka clients of server {active.server} {verb} from these offsets."
    verb = "stops" if execute else "would stop"
    return f"its consumer {printable(active.instance or '')} {verb} with SPARKLOG_FENCED at its next commit."


HISTORY = ("ENTRY", "TIME", "OPERATION", "GENERATION", "#MEMBERS", "OFFSETS")
SHOWN_OFFSETS = 3
LimitOption = Annotated[int, opt.integer_option("--limit", low=1, text="Maximum number of entries to print.")]


@dataclass(frozen=True)
class GroupEntry:
    """An entry in the journal of a group. `offsets` contains changed offsets as [topic, partition, before, after]."""

    entry: int
    timestamp: str
    operation: str
    generation: int
    members: int
    offsets: list[tuple[str, int, int | None, int | None]]

    def cells(self) -> tuple[object, ...]:
        texts = [
            f"{topic}-{partition}: {'-' if before is None else before} -> {'-' if after is None else after}"
            for topic, partition, before, after in self.offsets[:SHOWN_OFFSETS]
        ]
        more = len(self.offsets) - SHOWN_OFFSETS
        texts += [f"and {more} more"] if more > 0 else []
        return self.entry, self.timestamp, self.operation, self.generation, self.members, ", ".join(texts) or None


@app.add("history", "sparklog groups history billing --limit 10 --root /data/log")
def history(root: opt.RootOption, *, group: OneGroup, limit: LimitOption = 100) -> Output:
    """Show the history of a consumer group, latest entry first.

    Lists joins, commits, rebalances and resets, and the offsets that they changed. Entries are retained for at least
    seven days.
    """
    opened = _groups_of_root(root).group(group.name)
    # Read one more entry, which is needed to show the changes of the oldest displayed entry.
    entries = opened.log.latest_entries(limit + 1)
    if not entries:
        raise NotFound(f"group '{group.name}' does not exist in {root}; `sparklog groups list` lists all groups")
    before = [*entries[1:], None] if entries[-1].number == 0 else entries[1:]
    rows = [_group_entry(entry, base) for entry, base in zip(entries, before, strict=False)][:limit]
    return Output(rows, lambda: print_table(HISTORY, [row.cells() for row in rows], right=("ENTRY", "GENERATION")))


def _group_entry(entry: GroupState, base: GroupState | None) -> GroupEntry:
    after, before = ({} if state is None else _positions(state) for state in (entry, base))
    changes = [
        (*partition, before.get(partition), after.get(partition))
        for partition in sorted(after.keys() | before.keys())
        if before.get(partition) != after.get(partition)
    ]
    return GroupEntry(entry.number, iso_time(entry.created_ms), entry.op, entry.generation, len(entry.members), changes)


def _positions(state: GroupState) -> dict[tuple[str, int], int]:
    rows = [row for offsets in state.offsets for row in offsets.positions()]
    return {(topic, partition): offset for topic, partition, offset in rows}


@app.add("delete", "sparklog groups delete billing --root /data/log")
def delete(root: opt.RootOption, *, group: OneGroup, dry_run: opt.DryRunOption = False) -> Output:
    """Delete a consumer group and its offsets. The command fails if the group is active."""
    name = group.name
    _groups_of_root(root).group(name).delete(dry_run=dry_run)
    text = f"{'Would delete' if dry_run else 'Deleted'} group {printable(name)}."
    return Output.from_lines({"deleted": name, "dryRun": dry_run}, text)


@app.add("delete-offsets", "sparklog groups delete-offsets billing --topic old:0 --root /data/log")
def delete_offsets(
    root: opt.RootOption, *, group: OneGroup, topic: TopicOption = None, dry_run: opt.DryRunOption = False
) -> Output:
    """Delete the offsets of a group for topics or partitions. The command fails if the group is active."""
    topics = _topics(topic)
    if not topics:
        raise BadParameter("specify at least one --topic")
    group_name = group.name
    opened = _groups_of_root(root).group(group_name)
    all_committed = opened.committed()
    deleted: dict[str, list[int]] = {}
    for name, partitions in sorted(topics.items()):
        committed = sorted(partition for topic_name, partition in all_committed if topic_name == name)
        requested = committed if partitions is None else partitions
        missing = sorted(set(requested) - set(committed))
        if missing or not requested:
            which = f"partitions {', '.join(map(str, missing))} of topic" if missing else "topic"
            raise NotFound(f"group '{group_name}' has no committed offsets for {which} '{name}'")
        deleted[name] = sorted(requested)
    opened.delete_offsets(deleted, dry_run=dry_run)
    status = "Would be deleted" if dry_run else "Successful"
    rows = [(name, partition, status) for name, partitions in deleted.items() for partition in partitions]
    document = {"group": group_name, "deleted": deleted, "dryRun": dry_run}
    return Output(document, lambda: print_table(("TOPIC", "PARTITION", "STATUS"), rows))


def _groups_of_root(root: str) -> Groups:
    from sparklog.groups.lag import Groups
    from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, resolve

    location = resolve(root)
    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        raise BadRequest(
            f"{location.path} is a {location.kind}, which is read-only: use kafka-consumer-groups, or import the "
            "directory first"
        )
    return Groups(open_root(root))


class _RootGroups:
    """The groups of a root, with the interface of `KafkaGroups`."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.location = groups.root.location
        self.failures: list[SparklogError] = []

    def names(self) -> list[str]:
        return self._groups.names(self.failures)

    def descriptions(self, names: Sequence[str], failures: list[SparklogError] | None) -> list[GroupDescription]:
        return list(self._groups.descriptions(names, failures).values())

    def lag(self, names: Sequence[str]) -> list[Lag]:
        from sparklog.groups.lag import lag

        return lag(self._groups.root, names, failures=self.failures)


def _open_groups(root: str) -> _RootGroups | KafkaGroups:
    from sparklog.groups.lag import Groups

    source = open_source(root)
    if source.root is not None:
        return _RootGroups(Groups(source.root))
    from sparklog.kafka.importing.coordinators import KafkaGroups
    from sparklog.kafka.in_place.view import KafkaView

    assert isinstance(source.view, KafkaView)
    return KafkaGroups(source.view)


def _topics(texts: Sequence[str] | None) -> dict[str, set[int] | None] | None:
    """Convert `["a", "b:0,1"]` to `{"a": None, "b": {0, 1}}`, or return None for all topics of the group or of the
    file.
    """
    topics: dict[str, set[int] | None] = {}
    for text in texts or []:
        name, colon, numbers = text.partition(":")
        partitions = numbers.split(",")
        if colon and not all(is_digits(partition.strip()) for partition in partitions):
            raise BadParameter(f"expected TOPIC or TOPIC:0,1, found {text!r}", param_hint="'--topic'")
        earlier = topics.get(name, set())
        topics[name] = None if not colon or earlier is None else earlier | set(map(int, partitions))
    return topics or None


def _offsets_of(group: str, file: Path) -> dict[TopicPartition, int]:
    from sparklog.groups.reset import parse_offsets_file

    by_group = parse_offsets_file(read_text(file, "--from-file"), str(file))
    offsets = by_group.get(group, by_group.get(None))
    if offsets is None:
        raise BadRequest(
            f"{file} contains offsets for {', '.join(sorted(map(str, by_group)))}, but not for group '{group}'"
        )
    return offsets


def _cells(row: Lag) -> tuple[object, ...]:
    seconds = None if row.seconds is None else f"{row.seconds:.1f}"
    return row.group, row.topic, row.partition, row.current_offset, row.log_end, row.lag, seconds, row.member


def _states(described: Sequence[GroupDescription], failures: Sequence[SparklogError]) -> Output:
    rows = [
        (
            *(item.id, item.state, item.generation, item.instance or None, item.session_timeout_ms),
            *(len(item.pending), len(item.members)),
        )
        for item in described
    ]
    document = [
        {**json_value(replace(item, members=())), "members": [_member_document(member) for member in item.members]}
        for item in described
    ]
    return Output(document, lambda: print_table(STATES, rows), failures)


def _members(described: Sequence[GroupDescription], failures: Sequence[SparklogError], verbose: bool) -> Output:
    """Return the members of groups in the columns of Kafka's tool. Instance ids are included if there are static
    members.
    """
    members = [(item, member) for item in described for member in item.members]
    static = any(member.instance_id is not None for _, member in members)
    headings = (*MEMBERS[:2], *STATIC[: int(static)], *MEMBERS[2:], *(VERBOSE if verbose else ()))
    rows: list[list[object]] = []
    for group, member in members:
        instance = [member.instance_id or "-"] * static
        count = "-" if member.is_exclusive else len(member.owned)
        row: list[object] = [group.id, member.id, *instance, member.host or "-", member.client_id or "-", count]
        if verbose:
            target = (member.owned - member.revoked) | member.awaited
            row += [member.generation, _assignment(member.owned), group.generation, _assignment(target)]
        rows.append(row)

    def show() -> None:
        _note_empty_groups(described)
        _note_served_groups(described)
        print_table(headings, rows)

    document = [{"group": group.id, **_member_document(member)} for group, member in members]
    return Output(document, show, failures)


def _member_document(member: GroupMember) -> dict[str, object]:
    from sparklog.groups.group_members import by_topic

    return {
        "memberId": member.id,
        "groupInstanceId": member.instance_id,
        "host": member.host,
        "clientId": member.client_id,
        "epoch": member.generation,
        "assignment": by_topic(member.owned),
    }


def _assignment(partitions: Partitions) -> str:
    from sparklog.groups.group_members import by_topic

    return ";".join(f"{name}:{','.join(map(str, numbers))}" for name, numbers in by_topic(partitions).items()) or "-"


def _show_plan(group: str, plan: Sequence[NewOffset], export: bool) -> None:
    if export:
        for item in plan:
            print(f"{item.topic},{item.partition},{item.new}")
    else:
        rows = [(group, item.topic, item.partition, item.old, item.new) for item in plan]
        print_table(("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"), rows)
