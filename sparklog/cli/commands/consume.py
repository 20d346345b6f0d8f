"""`sparklog consume`, `get` and `offsets`: records and offsets of topics, of a root or a Kafka directory."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Exit, Option, Typer

from sparklog.cli.locations import Source, open_source
from sparklog.cli.options import (
    CorruptOption,
    Isolation,
    IsolationOption,
    JsonOption,
    PrintHeaders,
    PrintKey,
    PrintOffset,
    PrintPartition,
    PrintTimestamp,
    SourceOption,
    TopicOfFolder,
    TopicOption,
    TopicsArgument,
    TopicsByOption,
    chosen,
    chosen_topics,
    example,
    parse_time,
    unescaped,
    whole_number,
)
from sparklog.cli.record_values import (
    Format,
    KeyFormat,
    KeySchemas,
    RecordValues,
    ValueFormatOption,
    ValueSchemas,
    one_format,
    record_values,
)
from sparklog.cli.terminal import print_json, printable, warn
from sparklog.errors import BadRequest, NotFound
from sparklog.output import write

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.cli.record_text import Layout
    from sparklog.format.values import ValueFormat
    from sparklog.groups.consumer import Consumer
    from sparklog.log.read.key_set import KeySet
    from sparklog.log.read.topic_scan import Tail
    from sparklog.log.state.view import LogView

app = Typer()
GROUP_POLL_S = 1.0
EXIT_DELETED = 3
Columns = tuple[str, ...]
Formatter = Callable[["pa.RecordBatch"], bytes]
TopicArguments = Annotated[
    list[str] | None, Argument(metavar="[TOPIC]...", help="Topics; may be left out where the folder holds only one.")
]
IncludeOption = Annotated[str | None, Option(metavar="PATTERN", help="Topics that the regular expression matches.")]
PartitionOption = Annotated[int | None, whole_number("--partition", "-p", text="Only this partition.")]
GroupOption = Annotated[
    str | None, Option("--group", "-g", metavar="NAME", help="Start at this group's offsets, commit what is printed.")
]
OFFSET_HELP = "Start here; N needs --partition, -N is so many before the end."
StartOption = Annotated[str | None, Option("--offset", "-o", metavar="N|-N|earliest|latest", help=OFFSET_HELP)]
SINCE_HELP = "Start at the first record not older: milliseconds, or 2026-01-31T12:00:00 (UTC unless it says)."
SinceOption = Annotated[str | None, Option("--from-timestamp", "--timestamp", metavar="TIME", help=SINCE_HELP)]
EndOption = Annotated[int | None, whole_number("--to-offset", text="End before this offset; needs --partition.")]
UntilOption = Annotated[str | None, Option(metavar="TIME", help="End before the first record not older.")]
TIMEOUT_HELP = "With --follow: end when nothing came for so long."
TimeoutOption = Annotated[int | None, whole_number("--timeout-ms", metavar="MS", text=TIMEOUT_HELP)]
LimitOption = Annotated[int | None, whole_number("--max-messages", "-n", text="End after so many.")]
SeparatorOption = Annotated[str, Option(help=r"Between columns; \0 and \x1f are escapes.", show_default="a tab")]
NullOption = Annotated[str | None, Option(help="Stands for a null key or value.", show_default="null")]
FORMAT_HELP = r"Instead of columns, as kcat's -f: %t %p %o %T %h %k %K %s %S, then \n if wanted; null is nothing."
FormatOption = Annotated[str | None, Option("--format", metavar="TEXT", help=FORMAT_HELP)]


def _batches(
    tails: Sequence[Tail], columns: Columns, follow: bool, timeout_s: float | None
) -> Iterator[pa.RecordBatch]:
    """Read up to the end, then, if asked, what comes, until nothing came for `timeout_s`."""
    for tail in tails:
        yield from tail.poll(columns)
    last_seen = time.monotonic()
    while follow and (timeout_s is None or time.monotonic() - last_seen < timeout_s):
        for tail in tails:
            tail.refresh()
        behind = [tail for tail in tails if not tail.at_end()]
        if not behind:
            time.sleep(tails[0].view.poll_interval_ms / 1000)
            continue
        for tail in behind:
            yield from tail.poll(columns)
        last_seen = time.monotonic()


class Printer:
    """Prints records, at most `limit`, and says at the end how many, also at an interrupt."""

    def __init__(self, formatter: Formatter, limit: int | None) -> None:
        self._formatter = formatter
        self._limit = limit
        self.count = 0

    def __enter__(self) -> Printer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            print(f"Processed a total of {self.count} messages", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt):
            error.args = (f"processed a total of {self.count} messages",)

    def left(self) -> int | None:
        """Return how many may still be printed; None: any number."""
        return None if self._limit is None else self._limit - self.count

    def print(self, batches: Iterator[pa.RecordBatch]) -> None:
        while self.left() != 0 and (batch := next(batches, None)) is not None:
            part = batch.slice(0, self.left())
            data = self._formatter(part)
            # Before they are written: an interrupt may come as soon as a reader sees them.
            self.count += part.num_rows
            write(data)


@dataclass(frozen=True)
class Places:
    """Start and end of what is read of each topic, as the options give them; None: not given."""

    from_beginning: bool
    offset: str | None
    since: int | None
    end: int | None
    until: int | None

    def check(self, partition: int | None, group: str | None, follow: bool) -> None:
        """Refuse what contradicts itself, before anything is opened."""
        starts = {"--from-beginning": self.from_beginning, "--offset": self.offset, "--from-timestamp": self.since}
        ends = {"--to-offset": self.end, "--to-timestamp": self.until}
        for options, what in ((starts, "start"), (ends, "end")):
            given = [name for name, value in options.items() if value is not None and value is not False]
            if len(given) > 1:
                raise BadParameter(f"one place to {what}, found {' and '.join(given)}")
            if given and follow and what == "end":
                raise BadParameter(f"{given[0]} is an end, --follow has none: leave one out")
            if group is not None and given not in ([], ["--from-beginning"]):
                raise BadParameter(f"its offsets say where: leave out {given[0]}", param_hint="'--group'")
        if group is not None and partition is not None:
            raise BadParameter("it reads all partitions: leave out --partition", param_hint="'--group'")
        text = self.offset or "earliest"
        if text not in ("earliest", "latest") and not re.fullmatch("-?[0-9]{1,18}", text):
            raise BadParameter(f"expected earliest, latest or a number, found {text!r}", param_hint="'--offset'")
        if partition is None and (text.isdecimal() or self.end is not None):
            option = "'--offset'" if text.isdecimal() else "'--to-offset'"
            raise BadParameter("a number needs --partition: each partition has its own", param_hint=option)

    def start(self, tail: Tail, follow: bool) -> None:
        """Open a tail, and put it at its start and its end."""
        tail.open()
        if self.until is not None or self.end is not None:
            tail.start_at_log_start()
            tail.ends = dict.fromkeys(tail.positions, self.end or 0)
        if self.until is not None:
            targets = dict.fromkeys(tail.ends, self.until)
            answers = tail.view.offsets_for_timestamps(tail.topic, targets, tail.isolation)
            tail.ends = {partition: answer.offset for partition, answer in answers.items() if answer is not None}
        if self.since is not None:
            tail.start_at_time(self.since)
        elif self.offset == "latest" or (follow and not self.from_beginning and self.offset is None):
            tail.start_at_end()
        elif self.offset in (None, "earliest"):
            tail.start_at_log_start()
        elif self.offset.startswith("-"):
            bounds, back = tail.view.bounds(tail.topic), int(self.offset)
            tail.start_at_end()
            tail.positions = {p: max(bounds[p].log_start, end + back) for p, end in tail.positions.items()}
        else:
            tail.start_at_offset(int(self.offset))


def _check_keys(keys: Sequence[str] | None, all_partitions: bool, partition: int | None, group: str | None) -> None:
    if group is not None and keys:
        raise BadParameter("a group reads all records: leave out --group", param_hint="'--key'")
    if all_partitions and (not keys or partition is not None):
        raise BadParameter("it goes with --key, without --partition", param_hint="'--all-partitions'")


def _key_set(keys: Sequence[str], key_format: str | None, schemas: list[str] | None, anywhere: bool) -> KeySet:
    """Return the keys of --key, which are given as `get` takes its key."""
    from sparklog.log.read.key_set import KeySet

    return KeySet.of([_key_and_values(key, key_format or "string", schemas, None)[0] for key in keys], anywhere)


def _topics(source: Source, names: Sequence[str] | None, include: str | None) -> list[str]:
    """Return the topics to read: those named, those that match, or the only one."""
    if include is None:
        for name in names or ():
            if "%" in name:
                raise BadParameter(f"expected a topic, found {name!r}: -f is --follow, a format goes to --format")
        return source.chosen(names) if names else [source.one_topic(None)]
    if names:
        raise BadParameter("give topics or --include, not both")
    try:
        pattern = re.compile(include.replace(",", "|"))
    except re.error as error:
        raise BadParameter(f"expected a regular expression, found {include!r}: {error}") from None
    matching = [name for name in source.topics() if pattern.fullmatch(name)]
    if not matching:
        raise NotFound(f"no topic of {source.view.location} matches {include!r}: see `sparklog topics list`")
    return matching


def record_formatter(
    layout: Layout, null_literal: str | None, text: str | None, as_json: bool, values: RecordValues
) -> tuple[Columns, Formatter]:
    """Return the columns to read, and the function that makes bytes of them."""
    from sparklog.cli.record_format import parse_format
    from sparklog.cli.record_text import format_json
    from sparklog.log.state.view import COLUMNS

    if as_json:
        if text is not None:
            raise BadParameter("give one of --format and --json")
        return COLUMNS, lambda batch: format_json(batch, values)
    null = None if null_literal is None else unescaped(null_literal)
    if text is not None:
        parsed = parse_format(text, null or b"")
        return values.columns(parsed.columns()), lambda batch: parsed.format(batch, values.show(batch))
    shown = layout if null is None else replace(layout, null_literal=null)
    return values.columns(shown.columns()), lambda batch: shown.format(values.show(batch))


def _member(source: Source, group: str, **options: Any) -> Consumer:
    from sparklog.groups.consumer import consumer

    if source.root is None:
        raise BadRequest(
            f"{source.view.location} is a Kafka directory, which is read-only: no group can commit offsets there; "
            "leave out --group, or import it"
        )
    return consumer(source.root, group, **options)


def _print_of_group(member: Consumer, printer: Printer, follow: bool, timeout_s: float | None) -> None:
    """Print what the group has not read, and commit what was printed, also at an interrupt."""
    batches = []
    wait_s = 0.0 if not follow else GROUP_POLL_S if timeout_s is None else min(GROUP_POLL_S, timeout_s)
    last_seen = time.monotonic()
    try:
        while printer.left() != 0:
            member.max_poll_records = printer.left()
            batches = member.poll(wait_s)
            if not batches and (not follow or (timeout_s is not None and time.monotonic() - last_seen >= timeout_s)):
                break
            if batches:
                printer.print(iter(batches))
                batches, last_seen = [], time.monotonic()
    finally:
        if not batches:
            # Else they were printed in part: they come again.
            member.commit()
        member.close(commit=False)


@app.command("consume", epilog=example("sparklog consume orders --root /data/log --print-key --max-messages 10"))
def consume(
    root: SourceOption,
    topics: TopicArguments = None,
    topic_option: TopicsByOption = None,
    include: IncludeOption = None,
    partition: PartitionOption = None,
    key: Annotated[list[str] | None, Option("--key", "-k", help="Only records with this key; may be repeated.")] = None,
    all_partitions: Annotated[bool, Option("--all-partitions", help="Look for --key in all of them.")] = False,
    group: GroupOption = None,
    from_beginning: Annotated[bool, Option("--from-beginning", help="Start at the log start.")] = False,
    offset: StartOption = None,
    timestamp: SinceOption = None,
    to_offset: EndOption = None,
    to_timestamp: UntilOption = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Wait for more at the end.")] = False,
    timeout_ms: TimeoutOption = None,
    max_messages: LimitOption = None,
    isolation: IsolationOption = "read_committed",
    corrupt_records: CorruptOption = "fail",
    print_timestamp: PrintTimestamp = False,
    print_partition: PrintPartition = False,
    print_offset: PrintOffset = False,
    print_headers: PrintHeaders = False,
    print_key: PrintKey = False,
    print_value: Annotated[bool, Option("--print-value/--no-print-value", help="The value.")] = True,
    key_separator: SeparatorOption = "\t",
    null_literal: NullOption = None,
    format_: FormatOption = None,
    key_format: KeyFormat = None,
    value_format: ValueFormatOption = None,
    key_schema: KeySchemas = None,
    value_schema: ValueSchemas = None,
    as_json: Annotated[
        bool, Option("--json", help="One JSON object per record, all columns; `produce --json` takes it.")
    ] = False,
) -> None:
    """Print the records of topics: all there are, then end; with --follow go on.

    Without a place to start it begins at the log start, or with --follow at the end. The columns are those of
    kafka-console-consumer, one partition after the other. Their number is printed on stderr. With --group it begins
    so only where the group has committed nothing; a consumer that the group has is fenced.

    With --key it reads the partitions where Kafka's default partitioner puts the keys, or --partition.
    """
    from sparklog.cli.record_text import Layout
    from sparklog.log.read.topic_scan import Tail

    since = None if timestamp is None else parse_time(timestamp)
    until = None if to_timestamp is None else parse_time(to_timestamp, "--to-timestamp")
    places = Places(from_beginning, offset, since, to_offset, until)
    places.check(partition, group, follow)
    _check_keys(key, all_partitions, partition, group)
    shown = (print_timestamp, print_partition, print_offset, print_headers, print_key, print_value)
    layout = Layout(*shown, key_separator=unescaped(key_separator))
    values = record_values(key_format, key_schema, value_format, value_schema)
    columns, formatter = record_formatter(layout, null_literal, format_, as_json, values)
    timeout_s = None if timeout_ms is None else timeout_ms / 1000
    source = open_source(root, follow=follow, corrupt_records=corrupt_records, on_skipped=warn)
    names = _topics(source, chosen_topics(topics, topic_option), include)
    with Printer(formatter, max_messages) as printer:
        if group is None:
            keys = _key_set(key, key_format, key_schema, all_partitions or partition is not None) if key else None
            tails = [Tail(source.view, name, isolation, partition, warn=warn, keys=keys) for name in names]
            for tail in tails:
                places.start(tail, follow)
            printer.print(_batches(tails, columns, follow, timeout_s))
        else:
            reset = "latest" if follow and not from_beginning else "earliest"
            options = {"topics": names, "auto_offset_reset": reset, "isolation_level": isolation, "columns": columns}
            _print_of_group(_member(source, group, **options), printer, follow, timeout_s)


@app.command("get", epilog=example("sparklog get orders --key customer-17 --root /data/log --print-offset"))
def get(
    root: SourceOption,
    key: Annotated[str, Option("--key", "-k", help="The key.")],
    topic: TopicOfFolder = None,
    topic_option: TopicOption = None,
    key_format: Annotated[
        Format, Option(help="How --key is given, and printed; numbers as Kafka's serializers write them.")
    ] = "string",
    value_format: ValueFormatOption = None,
    key_schema: KeySchemas = None,
    value_schema: ValueSchemas = None,
    partition: Annotated[int | None, whole_number("--partition", "-p", text="Look in this partition.")] = None,
    all_partitions: Annotated[bool, Option("--all-partitions", help="Look in all of them.")] = False,
    isolation: IsolationOption = "read_committed",
    corrupt_records: CorruptOption = "fail",
    print_timestamp: PrintTimestamp = False,
    print_partition: PrintPartition = False,
    print_offset: PrintOffset = False,
    print_headers: PrintHeaders = False,
    print_key: PrintKey = False,
    as_json: Annotated[bool, Option("--json", help="The record as a JSON object, all columns.")] = False,
) -> None:
    """Print the latest record of a key.

    It is looked for backwards from the log end, in the partition where Kafka's default partitioner puts the key,
    and where it put it before partitions were added to a topic of a root. Where another partitioner wrote it, or
    partitions were added in Kafka, give --partition or --all-partitions (of several records the one with the
    greatest timestamp). Exit code 3: the latest record is a tombstone, the key was deleted; 1: there is none.
    """
    from sparklog.cli.record_text import Layout, format_json
    from sparklog.log.read.key_lookup import latest_record

    if partition is not None and all_partitions:
        raise BadParameter("--partition and --all-partitions exclude each other")
    key_bytes, values = _key_and_values(key, key_format, key_schema, one_format(value_format, value_schema, "value"))
    source = open_source(root, corrupt_records=corrupt_records, on_skipped=warn)
    name = source.one_topic(chosen(topic, topic_option))
    source.view.refresh([name])
    partitions = sorted(source.view.bounds(name)) if all_partitions else None if partition is None else [partition]
    record = latest_record(source.view, name, key_bytes, partitions=partitions, isolation=isolation)
    if record is None:
        hint = "; another partitioner may have written it, or partitions were added in Kafka: try --all-partitions"
        raise NotFound(f"no record of topic {name} has the key {key!r}{'' if all_partitions else hint}")
    deleted = not record.column("value")[0].is_valid
    layout = Layout(print_timestamp, print_partition, print_offset, print_headers, print_key, not deleted)
    write(format_json(record, values) if as_json else layout.format(values.show(record)))
    if deleted:
        offset, number = (record.column(name)[0].as_py() for name in ("offset", "partition"))
        warn(f"key {key!r} of topic {name} was deleted: offset {offset} of partition {number} is a tombstone")
        raise Exit(EXIT_DELETED)


def _key_and_values(
    text: str, name: str, schemas: list[str] | None, value: ValueFormat | None
) -> tuple[bytes, RecordValues]:
    """Return the bytes of a key, and the formats to print its record in; text is printed as it is."""
    from sparklog.format.text import parse_key

    if name == "string" and not schemas:
        return parse_key(text), RecordValues(None, value)
    key = one_format(name, schemas, "key")
    return parse_key(text, key or name), RecordValues(key, value)


LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
TIMES = {"latest": LATEST, "earliest": EARLIEST, "max-timestamp": MAX_TIMESTAMP, "-1": -1, "-2": -2, "-3": -3}


def offsets_at(view: LogView, topic: str, time: int, isolation: str) -> dict[int, int]:
    """Return the offset per partition of a topic for a `--time`; partitions without an answer are missing."""
    from sparklog.log.read.time_lookup import offsets_of_max_timestamp

    bounds = view.bounds(topic)
    if time == LATEST:
        return {partition: bound.end(isolation) for partition, bound in bounds.items()}
    if time == EARLIEST:
        return {partition: bound.log_start for partition, bound in bounds.items()}
    if time == MAX_TIMESTAMP:
        answers = offsets_of_max_timestamp(view, topic, isolation)
    else:
        answers = view.offsets_for_timestamps(topic, dict.fromkeys(bounds, time), isolation)
    return {partition: answer.offset for partition, answer in answers.items() if answer is not None}


@app.command("offsets", epilog=example("sparklog offsets orders --root /data/log --time -2"))
def offsets(
    root: SourceOption,
    topics: TopicsArgument = None,
    topic_option: Annotated[list[str] | None, Option("--topic", metavar="NAME", help="The same.")] = None,
    time: Annotated[str, Option("--time", "-t", metavar="-1|-2|-3|MS", help="Which offset, see above.")] = "latest",
    isolation: Annotated[
        Isolation, Option("--isolation-level", help="read_committed: below the first open transaction.")
    ] = "read_uncommitted",
    as_json: JsonOption = False,
) -> None:
    """Print offsets of topics, one topic:partition:offset per line, as kafka-get-offsets does.

    --time is -1 or latest (the end, the default), -2 or earliest (the log start), -3 or max-timestamp (the record with
    the largest timestamp), or a time in milliseconds: the first record not older. Partitions without one are left out.
    """
    wanted = TIMES[time] if time in TIMES else parse_time(time, "--time")
    source = open_source(root)
    names = source.refreshed(chosen_topics(topics, topic_option))
    answers = {name: offsets_at(source.view, name, wanted, isolation) for name in names}
    rows = [(name, *answer) for name in names for answer in answers[name].items()]
    # By the text topic-partition, t-10 before t-2: as Kafka's tool does.
    rows.sort(key=lambda row: f"{row[0]}-{row[1]}")
    if as_json:
        print_json([{"topic": name, "partition": partition, "offset": offset} for name, partition, offset in rows])
    else:
        for name, partition, offset in rows:
            print(f"{printable(name)}:{partition}:{offset}")
    source.finish()
