"""`sparklog consume`, `get`, `table` and `offsets`: records and offsets of topics, of a root or a Kafka directory."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from click import BadParameter
from click.exceptions import Exit

from sparklog.cli.printing import Columns, Format, Formats, LimitOption, Printer, Printing
from sparklog.common.parsing import is_digits
from sparklog.console import options as opt
from sparklog.console.locations import OpenFolder, open_source
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
"""Kafka's `max.poll.records`: after an interrupt no more come again than these."""
EXIT_DELETED = 3
KCAT_PLACES = {
    "beginning": ": that is earliest here",
    "end": ": that is latest here",
    "stored": ": --group NAME starts at the group's offsets",
}
ONE_START, ONE_END = "each sets the start", "each sets the end"
OFFSET_HELP = "Start here; N needs --partition, -N is so many before the end."
SINCE_HELP = "Start at the first record not older: milliseconds, or 2026-01-31T12:00:00 (UTC unless it says)."
TIMEOUT_HELP = "With --follow: end when nothing came for so long."
AS_OF_HELP = "As of a time, by what is before the first record not older: milliseconds, or 2026-01-31T12:00:00 (UTC)."
OFFSETS_HELP = 'As of offsets, by what is before them: JSON like {"0":23}; other partitions as of now.'


@dataclass
class ChosenRecords(opt.TopicChoice):
    """The topics to read, and which of their records."""

    topics: Annotated[
        list[str] | None,
        Argument(metavar="[TOPIC]...", help="Topics; may be left out where the folder holds only one."),
    ] = None
    partition: Annotated[int | None, opt.whole_number("-p", text="Only this partition.")] = None
    key: Annotated[
        list[str] | None, Option("-k", may_be_blank=True, help="Only records with this key; may be repeated.")
    ] = None
    header: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            excludes="--group",
            why="a group reads all records of its partitions",
            help="Only records with this header; NAME alone matches any value. Repeat it to require several headers.",
        ),
    ] = None
    all_partitions: Annotated[
        bool, Option(needs="--key", excludes="--partition", help="Search all partitions for --key.")
    ] = False

    def topics_of(self, source: OpenFolder) -> list[str]:
        """Return the topics to read: those named, those that match, or the only one."""
        names, folder = self.names, self.of(source)
        for name in names or ():
            if "%" in name:
                raise BadParameter(f"expected a topic, found {name!r}: -f is --follow, a format goes to --format")
        return folder.chosen(names) if names or self.pattern is not None else [folder.one_topic(None)]

    def keys(self, formats: Formats) -> KeySet | None:
        """Return the keys of --key, which are given as `get` takes its key."""
        from sparklog.log.read.key_lookup import KeySet

        if not self.key:
            return None
        keys = [formats.parse_key(key)[0] for key in self.key]
        return KeySet.of(keys, self.all_partitions or self.partition is not None)

    def headers(self) -> HeaderFilter | None:
        from sparklog.cli.header_filter import HeaderFilter

        return HeaderFilter.of(self.header) if self.header else None


@dataclass
class ReadExtent:
    """Start and end of what is read of each topic."""

    group: Annotated[
        str | None,
        Option(
            "-g",
            metavar="NAME",
            excludes="--key --partition --offset --from-timestamp --to-offset --to-timestamp",
            why="a group reads all records of its partitions, from its offsets on",
            help="Read as a member of this consumer group, and commit the printed records.",
        ),
    ] = None
    from_beginning: Annotated[
        bool, Option(excludes="--offset --from-timestamp", why=ONE_START, help="Start at the log start.")
    ] = False
    offset: Annotated[
        str | None,
        Option("-o", metavar="N|-N|earliest|latest", excludes="--from-timestamp", why=ONE_START, help=OFFSET_HELP),
    ] = None
    timestamp: Annotated[str | None, Option("--from-timestamp", "--timestamp", metavar="TIME", help=SINCE_HELP)] = None
    to_offset: Annotated[
        int | None,
        opt.whole_number(
            text="End before this offset; needs --partition.",
            needs="--partition",
            excludes="--to-timestamp --follow",
            why=ONE_END,
        ),
    ] = None
    to_timestamp: Annotated[
        str | None,
        Option(metavar="TIME", excludes="--follow", why=ONE_END, help="End before the first record at or after it."),
    ] = None
    follow: Annotated[bool, Option("-f", help="Wait for more at the end.")] = False
    timeout_ms: Annotated[
        int | None,
        opt.whole_number(
            metavar="MS", text=TIMEOUT_HELP, needs="--follow --group", why="without it the command ends at the log end"
        ),
    ] = None

    def __post_init__(self) -> None:
        self.since = None if self.timestamp is None else opt.parse_time(self.timestamp)
        self.until = None if self.to_timestamp is None else opt.parse_time(self.to_timestamp, "--to-timestamp")
        self.timeout_s = None if self.timeout_ms is None else self.timeout_ms / 1000

    def check(self, partition: int | None) -> None:
        """Refuse what contradicts itself, before anything is opened."""
        text = self.offset or "earliest"
        if text not in ("earliest", "latest") and not re.fullmatch("-?[0-9]{1,18}", text):
            hint = KCAT_PLACES.get(text, "")
            raise BadParameter(f"expected earliest, latest or a number, found {text!r}{hint}", param_hint="'--offset'")
        if partition is None and text.isdecimal():
            raise BadParameter("a number needs --partition: each partition has its own", param_hint="'--offset'")
        if self.since is not None and self.until is not None:
            starts, ends = f"--from-timestamp {self.timestamp}", f"--to-timestamp {self.to_timestamp}"
            opt.check_order(starts, self.since, ends, self.until)
        if text.isdecimal() and self.to_offset is not None:
            opt.check_order(f"--offset {text}", int(text), f"--to-offset {self.to_offset}", self.to_offset)

    def start(self, tail: Tail) -> None:
        """Open a tail, and put it at its start and its end."""
        tail.open()
        if self.until is not None or self.to_offset is not None:
            tail.start_at_log_start()
            tail.ends = dict.fromkeys(tail.positions, self.to_offset or 0)
        if self.until is not None:
            targets = dict.fromkeys(tail.ends, self.until)
            answers = tail.view.offsets_for_timestamps(tail.topic, targets, tail.isolation)
            tail.ends = {partition: answer.offset for partition, answer in answers.items() if answer is not None}
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
    """Read up to the end, then, if asked, what comes, until nothing came for `timeout_s`."""
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


def _member(source: OpenFolder, places: ReadExtent, **options: Any) -> Consumer:
    from sparklog.clients.consumer.consumer import consumer

    if source.root is None:
        raise BadRequest(
            f"{source.view.location} is a Kafka directory, which is read-only: no group can commit offsets there; "
            "leave out --group, or import it"
        )
    starts_at_end = places.follow and not places.from_beginning
    options["auto_offset_reset"] = "latest" if starts_at_end else "earliest"
    return consumer(source.root, str(places.group), **options)


def _is_unsettled(member: Consumer) -> bool:
    """True while partitions that the group gives to it are not given up by other members, or it is to join again."""
    try:
        return not member.membership.is_settled()
    except (BadRequest, Fenced):
        return True


def _print_of_group(member: Consumer, printer: Printer, follow: bool, timeout_s: float | None) -> None:
    """Print what the group has not read, and commit what was printed, also at an interrupt."""
    batches, before = [], member.positions()
    wait_s = GROUP_POLL_S if timeout_s is None else min(GROUP_POLL_S, timeout_s)
    last_seen = time.monotonic()
    try:
        while printer.left() != 0:
            member.max_poll_records = min(MAX_POLL_RECORDS, printer.left() or MAX_POLL_RECORDS)
            before = member.positions()
            waits = follow or _is_unsettled(member)
            batches = member.poll(wait_s if waits else 0.0)
            is_over = not waits or (timeout_s is not None and time.monotonic() - last_seen >= timeout_s)
            if not batches and is_over:
                break
            if batches:
                printer.print(iter(batches))
                batches, last_seen = [], time.monotonic()
    except BrokenPipeError:
        # How far its reader came is not known: all of it comes again.
        before = {}
        raise
    finally:
        # Batches that are left were printed in part: they come again.
        if before or not batches:
            member.commit(before if batches else None)
        member.close(commit=False)


@app.add("consume", "sparklog consume orders --root /data/log --print-key --max-messages 10")
def consume(
    root: opt.SourceOption,
    *,
    records: ChosenRecords,
    places: ReadExtent,
    max_messages: LimitOption = None,
    isolation: opt.IsolationOption = "read_committed",
    corrupt_records: opt.CorruptOption = "fail",
    printing: Printing,
    formats: Formats,
    as_json: Annotated[
        bool, Option("--json", help="One JSON object per record, all columns; `produce --json` takes it.")
    ] = False,
) -> None:
    """Print the records of topics.

    Prints all existing records and ends; with --follow it keeps printing new records. By default it begins at the log
    start, or with --follow at the end. The columns are those of kafka-console-consumer, and partitions are printed one
    after the other. The number of records is printed on stderr. With --group it begins at the group's committed
    offsets, and prints the partitions that the group assigns to it.

    With --key it reads the partitions where Kafka's default partitioner puts the keys, or --partition.
    """
    from sparklog.log.read.topic_scan import Tail

    places.check(records.partition)
    columns, formatter = printing.formatter(formats.values(), as_json)
    wanted = records.headers()
    if wanted is not None:
        columns = tuple(dict.fromkeys((*columns, "headers")))
    source = open_source(root, follow=places.follow, corrupt_records=corrupt_records, on_skipped=warn)
    names = records.topics_of(source)
    with Printer(formatter, max_messages) as printer:
        if places.group is not None:
            member = _member(source, places, topics=names, isolation_level=isolation, columns=columns)
            _print_of_group(member, printer, places.follow, places.timeout_s)
            return
        keys = records.keys(formats)
        tails = [Tail(source.view, name, isolation, records.partition, warn=warn, keys=keys) for name in names]
        for tail in tails:
            places.start(tail)
        batches = _batches(tails, columns, places.follow, places.timeout_s)
        printer.print(batches if wanted is None else wanted.filter(batches))


@dataclass
class KeyFormats(Formats):
    """The format of the key to look for, and those to print in."""

    key_format: Annotated[
        Format, Option(help="How --key is given, and printed; numbers as Kafka's serializers write them.")
    ] = "string"


@app.add("get", "sparklog get orders --key customer-17 --root /data/log --print-offset")
def get(
    root: opt.SourceOption,
    key: Annotated[str, Option("-k", may_be_blank=True, help="The key.")],
    *,
    topic: opt.TopicOfFolder,
    formats: KeyFormats,
    partition: Annotated[int | None, opt.whole_number("-p", text="Look in this partition.")] = None,
    all_partitions: Annotated[bool, Option(excludes="--partition", help="Search all partitions.")] = False,
    isolation: opt.IsolationOption = "read_committed",
    corrupt_records: opt.CorruptOption = "fail",
    columns: Columns,
    as_json: Annotated[bool, Option("--json", help="The record as a JSON object, all columns.")] = False,
) -> None:
    """Print the latest record of a key.

    It is looked for backwards from the log end, in the partition where Kafka's default partitioner puts the key,
    and where it put it before partitions were added to a topic of a root. Where another partitioner wrote it, or
    partitions were added in Kafka, give --partition or --all-partitions (of several records the one with the
    greatest timestamp). Exit code 3: the latest record is a tombstone, the key was deleted; 1: there is none.
    """
    from sparklog.cli.record_text import format_json
    from sparklog.log.read.key_lookup import latest_record

    key_bytes, values = formats.parse_key(key)
    source = open_source(root, corrupt_records=corrupt_records, on_skipped=warn)
    name = source.one_topic(topic.name_or_none)
    source.view.refresh([name])
    partitions = sorted(source.view.bounds(name)) if all_partitions else None if partition is None else [partition]
    record = latest_record(source.view, name, key_bytes, partitions=partitions, isolation=isolation)
    if record is None:
        hint = "; another partitioner may have written it, or partitions were added in Kafka: try --all-partitions"
        raise NotFound(f"no record of topic {name} has the key {key!r}{'' if all_partitions else hint}")
    deleted = not record.column("value")[0].is_valid
    write(format_json(record, values) if as_json else columns.layout(not deleted).format(values.show(record)))
    if deleted:
        offset, number = (record.column(name)[0].as_py() for name in ("offset", "partition"))
        warn(f"key {key!r} of topic {name} was deleted: offset {offset} of partition {number} is a tombstone")
        raise Exit(EXIT_DELETED)


@dataclass
class TablePrinting(Printing):
    """As of other records, but with the key."""

    print_key: Annotated[bool, Option(help="The key.")] = True


@app.add("table", "sparklog table orders --root /data/log --as-of 2026-01-31T12:00:00")
def table(
    root: opt.SourceOption,
    *,
    topic: opt.TopicOfFolder,
    as_of: Annotated[str | None, Option(metavar="TIME", help=AS_OF_HELP, show_default="now")] = None,
    as_of_offsets: Annotated[str | None, Option(metavar="JSON", excludes="--as-of", help=OFFSETS_HELP)] = None,
    max_messages: LimitOption = None,
    corrupt_records: opt.CorruptOption = "fail",
    printing: TablePrinting,
    formats: Formats,
    as_json: Annotated[bool, Option("--json", help="One JSON object per record, all columns.")] = False,
) -> None:
    """Print a topic as a table: the latest record of each key.

    Deleted keys, uncommitted records and records without a key are omitted. Rows are printed partition by partition,
    the latest first; their number is printed on stderr. A key that is in several partitions has a row for each.
    """
    from sparklog.log.read.topic_table import open_table

    columns, formatter = printing.formatter(formats.values(), as_json)
    moment = _offsets_of(as_of_offsets) if as_of is None else opt.parse_time(as_of, "--as-of")
    source = open_source(root, corrupt_records=corrupt_records, on_skipped=warn)
    name = source.one_topic(topic.name_or_none)
    rows = open_table(source.view, name, lambda: source.view, moment, columns)
    with Printer(formatter, max_messages) as printer:
        printer.print(iter(rows))


def _offsets_of(text: str | None) -> dict[int, int] | None:
    if text is None:
        return None
    try:
        offsets = json.loads(text)
        if not isinstance(offsets, dict) or any(type(offset) is not int for offset in offsets.values()):
            raise ValueError
        if not all(map(is_digits, offsets)):
            raise ValueError
        return {int(partition): offset for partition, offset in offsets.items()}
    except ValueError:
        raise BadParameter(f'expected JSON like {{"0":23}}, found {text!r}', param_hint="'--as-of-offsets'") from None


LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
TIMES = {"latest": LATEST, "earliest": EARLIEST, "max-timestamp": MAX_TIMESTAMP, "earliest-local": EARLIEST}
TIMES |= {"-1": LATEST, "-2": EARLIEST, "-3": MAX_TIMESTAMP, "-4": EARLIEST}


def offsets_at(view: LogView, topic: str, time: int, isolation: str) -> dict[int, int]:
    """Return the offset per partition of a topic for a `--time`; partitions without an answer are missing."""
    bounds = view.bounds(topic)
    if time == LATEST:
        return {partition: bound.end(isolation) for partition, bound in bounds.items()}
    if time == EARLIEST:
        return {partition: bound.log_start for partition, bound in bounds.items()}
    if time == MAX_TIMESTAMP:
        from sparklog.log.read.time_lookup import offsets_of_max_timestamp

        answers = offsets_of_max_timestamp(view, topic, isolation)
    else:
        answers = view.offsets_for_timestamps(topic, dict.fromkeys(bounds, time), isolation)
    return {partition: answer.offset for partition, answer in answers.items() if answer is not None}


@app.add("offsets", "sparklog offsets orders --root /data/log --time -2")
def offsets(
    root: opt.SourceOption,
    *,
    topics: opt.PartitionChoice,
    time: Annotated[str, Option("-t", metavar="-1|-2|-3|MS", help="Which offset, see above.")] = "latest",
    isolation: Annotated[
        opt.Isolation, Option("--isolation-level", help="read_committed: below the first open transaction.")
    ] = "read_uncommitted",
) -> Output:
    """Print offsets of topics, as kafka-get-offsets does.

    Each line is topic:partition:offset. --time is -1 or latest (the end, the default), -2 or earliest (the log start),
    -3 or max-timestamp (the record with the largest timestamp), or a time in milliseconds (the first record at or after
    it). Partitions without such a record are omitted.
    """
    target = TIMES[time] if time in TIMES else opt.parse_time(time, "--time")
    rules = topics.rules()
    source = topics.of(open_source(root))
    names = source.refreshed(topics.names)
    answers = {name: offsets_at(source.view, name, target, isolation) for name in names}
    rows = [(name, *answer) for name in names for answer in answers[name].items()]
    rows = [row for row in rows if not rules or any(rule.holds(*row[:2]) for rule in rules)]
    places = [(name, partition) for name in names for partition in source.view.bounds(name)]
    if rules and not any(rule.holds(*place) for rule in rules for place in places):
        given = topics.partitions or topics.topic_partitions
        raise NotFound(f"no partition of {', '.join(names)} matches {given!r}: `sparklog topics describe` lists them")
    # By the text topic-partition, t-10 before t-2: as Kafka's tool does.
    rows.sort(key=lambda row: f"{row[0]}-{row[1]}")
    document = [dict(zip(("topic", "partition", "offset"), row, strict=True)) for row in rows]
    return Output(document, lambda: print_lines(":".join(map(str, row)) for row in rows), source.failures)
