"""The commands `sparklog consume`, `get`, `table` and `offsets`, which read records and offsets of topics."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from click import BadParameter
from click.exceptions import Exit

from sparklog.cli.printing import FORMAT_LIST, Columns, Format, Formats, LimitOption, Printer, Printing
from sparklog.common.parsing import is_digits
from sparklog.console import options as opt
from sparklog.console.locations import OpenLocation, open_source
from sparklog.console.parameters import Argument, Commands, Option
from sparklog.console.terminal import Output, print_lines, warn
from sparklog.errors import BadRequest, Fenced, NotFound
from sparklog.output import write

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.cli.header_filter import HeaderFilter
    from sparklog.clients.consumer.consumer import Consumer
    from sparklog.log.read.key_lookup import KeySet
    from sparklog.log.read.topic_scan import Tail
    from sparklog.log.state.view import LogView

app = Commands()
GROUP_POLL_S = 1.0
MAX_POLL_RECORDS = 500
"""Kafka's default of `max.poll.records`. After an interrupt, at most this many records are printed again."""
EXIT_DELETED = 3
KCAT_OFFSETS = {
    "beginning": "; use earliest",
    "end": "; use latest",
    "stored": "; --group NAME starts at the group's offsets",
}
ONE_START, ONE_END = "both options set the start", "both options set the end"
OFFSET_HELP = "Offset to start at. N requires --partition. -N starts N records before the log end."
SINCE_HELP = (
    "Start at the first record at or after this time, in milliseconds or ISO 8601 (UTC if no time zone is given)."
)
TIMEOUT_HELP = "Stop if no record arrives for this many milliseconds. Requires --follow or --group."
AS_OF_HELP = "Print the table as of this time (exclusive), in milliseconds or ISO 8601 (UTC if no time zone is given)."
OFFSETS_HELP = (
    'Print the table as of these offsets (exclusive), given as JSON such as {"0":23}. Other partitions are read'
    " to the log end."
)


@dataclass
class SelectedRecords(opt.TopicChoice):
    """The topics to read, and the filters for their records."""

    topics: Annotated[
        list[str] | None,
        Argument(
            metavar="[TOPIC]...", help="Topics to consume. May be omitted if the directory contains only one topic."
        ),
    ] = None
    partition: Annotated[int | None, opt.integer_option("-p", text="Partition to consume from.", default="all")] = None
    key: Annotated[
        list[str] | None, Option("-k", may_be_blank=True, help="Print only records with this key. May be repeated.")
    ] = None
    header: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            excludes="--group",
            why="a group reads all records of its partitions",
            help="Print only records with this header. If only NAME is given, the header may have any value. If"
            " the option is repeated, a record must have all of the headers.",
        ),
    ] = None
    all_partitions: Annotated[
        bool, Option(needs="--key", excludes="--partition", help="Search all partitions for the keys.")
    ] = False

    def topics_of(self, source: OpenLocation) -> list[str]:
        """Return the topics to read: the given topics, the topics that match the pattern, or the only topic."""
        names, selection = self.names, self.of(source)
        for name in names or ():
            if "%" in name:
                raise BadParameter(
                    f"expected a topic, found {name!r}: use --format to specify a format, because -f means --follow"
                )
        return selection.selected(names) if names or self.pattern is not None else [selection.one_topic(None)]

    def keys(self, formats: Formats, topics: Sequence[str]) -> KeySet | None:
        """Return the keys of --key, which have the same format as for `sparklog get`."""
        from sparklog.log.read.key_lookup import KeySet

        if not self.key:
            return None
        topic = topics[0] if len(topics) == 1 else None
        keys = [formats.parse_key(key, topic)[0] for key in self.key]
        return KeySet.of(keys, self.all_partitions or self.partition is not None)

    def headers(self) -> HeaderFilter | None:
        from sparklog.cli.header_filter import HeaderFilter

        return HeaderFilter.of(self.header) if self.header else None


@dataclass
class ReadRange:
    """The start and the end of the records to read from each topic."""

    group: Annotated[
        str | None,
        Option(
            "-g",
            metavar="NAME",
            excludes="--key --partition --offset --from-timestamp --to-offset --to-timestamp --corrupt-records",
            why="a group reads all records of its partitions from its committed offsets",
            help="Consumer group to join. The offsets of the printed records are committed to the group.",
        ),
    ] = None
    from_beginning: Annotated[
        bool,
        Option(
            excludes="--offset --from-timestamp",
            why=ONE_START,
            help="Start with the earliest record in the log, even if --follow is given.",
        ),
    ] = False
    offset: Annotated[
        str | None,
        Option("-o", metavar="N|-N|earliest|latest", excludes="--from-timestamp", why=ONE_START, help=OFFSET_HELP),
    ] = None
    timestamp: Annotated[str | None, Option("--from-timestamp", "--timestamp", metavar="TIME", help=SINCE_HELP)] = None
    to_offset: Annotated[
        int | None,
        opt.integer_option(
            text="Stop before this offset. Requires --partition.",
            needs="--partition",
            excludes="--to-timestamp --follow",
            why=ONE_END,
        ),
    ] = None
    to_timestamp: Annotated[
        str | None,
        Option(
            metavar="TIME",
            excludes="--follow",
            why=ONE_END,
            help="Stop before the first record at or after this time.",
        ),
    ] = None
    follow: Annotated[bool, Option("-f", help="Wait for new records at the log end, and print them.")] = False
    timeout_ms: Annotated[
        int | None,
        opt.integer_option(
            metavar="MS", text=TIMEOUT_HELP, needs="--follow --group", why="otherwise the command stops at the log end"
        ),
    ] = None

    def __post_init__(self) -> None:
        self.since = None if self.timestamp is None else opt.parse_time(self.timestamp)
        self.until = None if self.to_timestamp is None else opt.parse_time(self.to_timestamp, "--to-timestamp")
        self.timeout_s = None if self.timeout_ms is None else self.timeout_ms / 1000

    def check(self, partition: int | None) -> None:
        """Raise a usage error if options contradict each other. This check is done before the root is opened."""
        text = self.offset or "earliest"
        if text not in ("earliest", "latest") and not re.fullmatch("-?[0-9]{1,18}", text):
            hint = KCAT_OFFSETS.get(text, "")
            raise BadParameter(f"expected earliest, latest or a number, found {text!r}{hint}", param_hint="'--offset'")
        if partition is None and text.isdecimal():
            raise BadParameter(
                "an offset requires --partition, because each partition has its own offsets", param_hint="'--offset'"
            )
        if self.since is not None and self.until is not None:
            starts, ends = f"--from-timestamp {self.timestamp}", f"--to-timestamp {self.to_timestamp}"
            opt.check_order(starts, self.since, ends, self.until)
        if text.isdecimal() and self.to_offset is not None:
            opt.check_order(f"--offset {text}", int(text), f"--to-offset {self.to_offset}", self.to_offset)

    def start(self, tail: Tail) -> None:
        """Open a tail of a topic, and set its start and end positions."""
        tail.open()
        if self.until is not None or self.to_offset is not None:
            tail.start_at_log_start()
            tail.ends = dict.fromkeys(tail.positions, self.to_offset or 0)
        if self.until is not None:
            targets = dict.fromkeys(tail.ends, self.until)
            found = tail.view.offsets_for_timestamps(tail.topic, targets, tail.isolation)
            tail.ends = {partition: record.offset for partition, record in found.items() if record is not None}
        if self.since is not None:
            tail.start_at_time(self.since)
        elif self.offset == "latest" or (self.follow and not self.from_beginning and self.offset is None):
            tail.start_at_end()
        elif self.offset in (None, "earliest"):
            tail.start_at_log_start()
        elif self.offset.startswith("-"):
            bounds, back = tail.view.bounds(tail.topic), int(self.offset)
            tail.start_at_end()
            tail.positions = {p: max(bounds[p].log_start, end + back) for p, end in tail.positions.items()}
        else:
            tail.start_at_offset(int(self.offset))


def _batches(
    tails: Sequence[Tail], columns: tuple[str, ...], follow: bool, timeout_s: float | None
) -> Iterator[pa.RecordBatch]:
    """Read up to the end. If `follow` is True, continue with new records until no record arrives for `timeout_s`."""
    for tail in tails:
        yield from tail.poll(columns)
    last_seen = time.monotonic()
    while follow and (timeout_s is None or time.monotonic() - last_seen < timeout_s):
        for tail in tails:
            tail.refresh()
        unread = [tail for tail in tails if not tail.at_end()]
        if not unread:
            time.sleep(tails[0].view.poll_interval_ms / 1000)
            continue
        for tail in unread:
            yield from tail.poll(columns)
        last_seen = time.monotonic()


def _member(source: OpenLocation, extent: ReadRange, **options: Any) -> Consumer:
    from sparklog.clients.consumer.consumer import consumer

    if source.root is None:
        raise BadRequest(
            f"{source.view.location} is a Kafka directory, which is read-only, so groups cannot commit offsets there: "
            "omit --group, or import the directory"
        )
    starts_at_end = extent.follow and not extent.from_beginning
    options["auto_offset_reset"] = "latest" if starts_at_end else "earliest"
    return consumer(source.root, str(extent.group), **options)


def _is_rebalancing(member: Consumer) -> bool:
    """Return True if other members must still revoke partitions that are assigned to this member, or if this member
    must rejoin.
    """
    try:
        return not member.membership.is_stable()
    except (BadRequest, Fenced):
        return True


def _print_of_group(member: Consumer, printer: Printer, follow: bool, timeout_s: float | None) -> None:
    """Print the records that the group has not read yet, and commit the offsets of printed records, even after an
    interrupt.
    """
    batches, before = [], member.positions()
    wait_s = GROUP_POLL_S if timeout_s is None else min(GROUP_POLL_S, timeout_s)
    last_seen = time.monotonic()
    try:
        while printer.remaining() != 0:
            member.max_poll_records = min(MAX_POLL_RECORDS, printer.remaining() or MAX_POLL_RECORDS)
            before = member.positions()
            waits = follow or _is_rebalancing(member)
            batches = member.poll(wait_s if waits else 0.0)
            is_over = not waits or (timeout_s is not None and time.monotonic() - last_seen >= timeout_s)
            if not batches and is_over:
                break
            if batches:
                printer.print(iter(batches))
                batches, last_seen = [], time.monotonic()
    except BrokenPipeError:
        # The number of records that the reader of the pipe has read is unknown, so the entire last batch is read again.
        before = {}
        raise
    finally:
        # The remaining batches were only partly printed, so they are read again.
        if before or not batches:
            member.commit(before if batches else None)
        member.close(commit=False)


@app.add("consume", "sparklog consume orders --root /data/log --print-key --max-messages 10")
def consume(
    root: opt.SourceOption,
    *,
    records: SelectedRecords,
    extent: ReadRange,
    max_messages: LimitOption = None,
    isolation: opt.IsolationOption = "read_committed",
    corrupt_records: opt.CorruptOption = "fail",
    printing: Printing,
    formats: Formats,
    as_json: Annotated[
        bool,
        Option(
            "--json",
            help="Print each record as a JSON object with all columns. `sparklog produce --json` reads this format.",
        ),
    ] = False,
) -> None:
    """Print the records of topics.

    Prints all existing records and exits. If --follow is given, the command keeps printing new records. By default, the
    command starts at the log start, or at the log end if --follow is given. The columns are those of
    kafka-console-consumer. Partitions are printed one after the other. The number of records is printed to stderr. If
    --group is given, the command starts at the committed offsets of the group, and prints the partitions that are
    assigned to this member.

    If --key is given, only the partitions that Kafka's default partitioner selects for the keys, or the partition given
    with --partition, are read.
    """
    from sparklog.log.read.topic_scan import Tail

    extent.check(records.partition)
    columns, formatter = printing.formatter(formats.values(), as_json)
    headers = records.headers()
    if headers is not None:
        columns = tuple(dict.fromkeys((*columns, "headers")))
    source = open_source(root, follow=extent.follow, corrupt_records=corrupt_records, on_skipped=warn)
    names = records.topics_of(source)
    with Printer(formatter, max_messages) as printer:
        if extent.group is not None:
            member = _member(source, extent, topics=names, isolation_level=isolation, columns=columns)
            _print_of_group(member, printer, extent.follow, extent.timeout_s)
            return
        keys = records.keys(formats, names)
        tails = [Tail(source.view, name, isolation, records.partition, warn=warn, keys=keys) for name in names]
        for tail in tails:
            extent.start(tail)
        batches = _batches(tails, columns, extent.follow, extent.timeout_s)
        printer.print(batches if headers is None else headers.filter(batches))


@dataclass
class KeyFormats(Formats):
    """The format of --key, and the output formats."""

    key_format: Annotated[
        Format,
        Option(
            metavar="FORMAT",
            help=f"Format of --key and of printed keys: {FORMAT_LIST}. Numbers use the encoding of Kafka's"
            " serializers.",
        ),
    ] = "string"


@app.add("get", "sparklog get orders --key customer-17 --root /data/log --print-offset")
def get(
    root: opt.SourceOption,
    key: Annotated[str, Option("-k", may_be_blank=True, help="Key to look up.")],
    *,
    topic: opt.SourceTopic,
    formats: KeyFormats,
    partition: Annotated[
        int | None, opt.integer_option("-p", text="Partition to search for the key.", default="by key")
    ] = None,
    all_partitions: Annotated[bool, Option(excludes="--partition", help="Search all partitions for the key.")] = False,
    isolation: opt.IsolationOption = "read_committed",
    corrupt_records: opt.CorruptOption = "fail",
    columns: Columns,
    as_json: Annotated[bool, Option("--json", help="Print the record as a JSON object with all columns.")] = False,
) -> None:
    """Print the latest record of a key.

    The command searches backwards from the log end. It searches the partition that Kafka's default partitioner selects
    for the key now, and the partitions that it selected before partitions were added to the topic. If another
    partitioner wrote the record, or if partitions were added in Kafka, use --partition or --all-partitions. With
    --all-partitions, the record with the greatest timestamp is printed. Exit code 3 means that the key was deleted (the
    latest record is a tombstone), and exit code 1 that the key was not found.
    """
    from sparklog.cli.record_text import format_json
    from sparklog.log.read.key_lookup import latest_record

    source = open_source(root, corrupt_records=corrupt_records, on_skipped=warn)
    name = source.one_topic(topic.name_or_none)
    key_bytes, values = formats.parse_key(key, name)
    source.view.refresh([name])
    partitions = sorted(source.view.bounds(name)) if all_partitions else None if partition is None else [partition]
    record = latest_record(source.view, name, key_bytes, partitions=partitions, isolation=isolation)
    if record is None:
        hint = "; if another partitioner wrote the record, or partitions were added in Kafka, try --all-partitions"
        raise NotFound(f"no record in topic {name} has the key {key!r}{'' if all_partitions else hint}")
    is_deleted = not record.column("value")[0].is_valid
    write(format_json(record, values) if as_json else columns.layout(not is_deleted).format(values.show(record)))
    if is_deleted:
        offset, number = (record.column(name)[0].as_py() for name in ("offset", "partition"))
        warn(f"key {key!r} of topic {name} was deleted: offset {offset} of partition {number} is a tombstone")
        raise Exit(EXIT_DELETED)


@dataclass
class TablePrinting(Printing):
    """The output options of rows. The key is printed by default."""

    print_key: Annotated[bool, Option(help="Print the record key.")] = True


@app.add("table", "sparklog table orders --root /data/log --as-of 2026-01-31T12:00:00")
def table(
    root: opt.SourceOption,
    *,
    topic: opt.SourceTopic,
    as_of: Annotated[str | None, Option(metavar="TIME", help=AS_OF_HELP, show_default="now")] = None,
    as_of_offsets: Annotated[str | None, Option(metavar="JSON", excludes="--as-of", help=OFFSETS_HELP)] = None,
    max_messages: LimitOption = None,
    corrupt_records: opt.CorruptOption = "fail",
    printing: TablePrinting,
    formats: Formats,
    as_json: Annotated[bool, Option("--json", help="Print each record as a JSON object with all columns.")] = False,
) -> None:
    """Print the latest record of each key of a topic.

    Deleted keys, uncommitted records and records without a key are omitted. Rows are printed partition by partition,
    the latest row first. The number of rows is printed to stderr. A key that occurs in several partitions has a row for
    each partition.
    """
    from sparklog.log.read.topic_table import open_table

    columns, formatter = printing.formatter(formats.values(), as_json)
    as_of_point = _offsets_of(as_of_offsets) if as_of is None else opt.parse_time(as_of, "--as-of")
    source = open_source(root, corrupt_records=corrupt_records, on_skipped=warn)
    name = source.one_topic(topic.name_or_none)
    rows = open_table(source.view, name, lambda: source.view, as_of_point, columns)
    with Printer(formatter, max_messages) as printer:
        printer.print(iter(rows))


def _offsets_of(text: str | None) -> dict[int, int] | None:
    if text is None:
        return None
    try:
        offsets = json.loads(text)
        is_valid = isinstance(offsets, dict) and all(map(is_digits, offsets))
        if not is_valid or any(type(offset) is not int for offset in offsets.values()):
            raise ValueError
        return {int(partition): offset for partition, offset in offsets.items()}
    except ValueError:
        raise BadParameter(
            f'expected JSON such as {{"0":23}}, found {text!r}', param_hint="'--as-of-offsets'"
        ) from None


LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
TIMES = {"latest": LATEST, "earliest": EARLIEST, "max-timestamp": MAX_TIMESTAMP, "earliest-local": EARLIEST}
TIMES |= {"-1": LATEST, "-2": EARLIEST, "-3": MAX_TIMESTAMP, "-4": EARLIEST}


def offsets_at(view: LogView, topic: str, time: int, isolation: str) -> dict[int, int]:
    """Return the offset of each partition of a topic for a `--time`. Partitions without such a record are omitted."""
    bounds = view.bounds(topic)
    if time == LATEST:
        return {partition: bound.end(isolation) for partition, bound in bounds.items()}
    if time == EARLIEST:
        return {partition: bound.log_start for partition, bound in bounds.items()}
    if time == MAX_TIMESTAMP:
        from sparklog.log.read.time_lookup import offsets_of_max_timestamp

        found = offsets_of_max_timestamp(view, topic, isolation)
    else:
        found = view.offsets_for_timestamps(topic, dict.fromkeys(bounds, time), isolation)
    return {partition: record.offset for partition, record in found.items() if record is not None}


@app.add("offsets", "sparklog offsets orders --root /data/log --time -2")
def offsets(
    root: opt.SourceOption,
    *,
    topics: opt.PartitionChoice,
    time: Annotated[
        str,
        Option(
            "-t",
            metavar="-1|-2|-3|MS",
            help="Print the offset at this position (-1 latest, -2 earliest, -3 maximum timestamp) or time"
            " in milliseconds.",
        ),
    ] = "latest",
    isolation: Annotated[
        opt.Isolation,
        Option(
            "--isolation-level",
            help="Whether the latest offset is the last stable offset (read_committed)"
            " or the log end offset (read_uncommitted).",
        ),
    ] = "read_uncommitted",
) -> Output:
    """Print offsets of topics, as kafka-get-offsets does.

    Each line has the form topic:partition:offset. The value of --time is -1 or latest (the log end, the default), -2 or
    earliest (the log start), -3 or max-timestamp (the record with the largest timestamp), or a time in milliseconds
    (the first record at or after the time). Partitions without such a record are omitted.
    """
    target = TIMES[time] if time in TIMES else opt.parse_time(time, "--time")
    rules = topics.rules()
    source = topics.of(open_source(root))
    names = source.refreshed(topics.names)
    rows = [(name, *row) for name in names for row in offsets_at(source.view, name, target, isolation).items()]
    if rules:
        rows = [row for row in rows if any(rule.matches(*row[:2]) for rule in rules)]
        partitions = [(name, partition) for name in names for partition in source.view.bounds(name)]
        if not any(rule.matches(*partition) for rule in rules for partition in partitions):
            given = topics.partitions or topics.topic_partitions
            problem = f"no partition of {', '.join(names)} matches {given!r}"
            raise NotFound(f"{problem}: `sparklog topics describe` lists the partitions")
    # Sort by the string topic-partition, as Kafka's tool does, so that t-10 precedes t-2.
    rows.sort(key=lambda row: f"{row[0]}-{row[1]}")
    document = [dict(zip(("topic", "partition", "offset"), row, strict=True)) for row in rows]
    return Output(document, lambda: print_lines(":".join(map(str, row)) for row in rows), source.failures)
