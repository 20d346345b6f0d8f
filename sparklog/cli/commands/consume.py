"""`sparklog consume`, `get` and `offsets`: records and offsets of topics, of a root or a Kafka directory."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from typer import BadParameter, Exit, Option, Typer

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
    TopicsArgument,
    example,
    parse_time,
)
from sparklog.cli.source import open_source
from sparklog.cli.terminal import print_json, printable, warn, write
from sparklog.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from sparklog.log.read.topic_scan import Tail
    from sparklog.log.state.view import LogView

app = Typer()
EXIT_DELETED = 3


def _batches(tail: Tail, columns: tuple[str, ...], follow: bool, timeout_s: float | None) -> Iterator[pa.RecordBatch]:
    """Read up to the end, then, if asked, what comes, until nothing came for `timeout_s`."""
    yield from tail.poll(columns)
    last_seen = time.monotonic()
    while follow and (timeout_s is None or time.monotonic() - last_seen < timeout_s):
        tail.refresh()
        if tail.at_end():
            time.sleep(max(tail.view.poll_interval_ms, 10) / 1000)
            continue
        yield from tail.poll(columns)
        last_seen = time.monotonic()


def _print(batches: Iterator[pa.RecordBatch], formatter: Callable[[pa.RecordBatch], bytes], limit: int | None) -> int:
    count = 0
    while (limit is None or count < limit) and (batch := next(batches, None)) is not None:
        part = batch if limit is None else batch.slice(0, limit - count)
        write(formatter(part))
        count += part.num_rows
    return count


def _start(tail: Tail, from_beginning: bool, offset: str | None, timestamp: str | None, follow: bool) -> None:
    options = {"--from-beginning": from_beginning or None, "--offset": offset, "--from-timestamp": timestamp}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise BadParameter(f"one place to start, found {' and '.join(given)}")
    number = _offset(offset, tail.partition)
    since = None if timestamp is None else parse_time(timestamp)
    tail.open()
    if number is not None:
        tail.start_at_offset(number)
    elif since is not None:
        tail.start_at_time(since)
    elif offset == "latest" or (follow and not from_beginning and offset is None):
        tail.start_at_end()
    else:
        tail.start_at_log_start()


def _offset(text: str | None, partition: int | None) -> int | None:
    """Return the number in `--offset`, None for earliest, latest and no option."""
    if text is None or text in ("earliest", "latest"):
        return None
    if not text.isdecimal():
        raise BadParameter(f"expected earliest, latest or a number, found {text!r}", param_hint="'--offset'")
    if partition is None:
        raise BadParameter("a number needs --partition: each partition has its own", param_hint="'--offset'")
    return int(text)


@app.command("consume", epilog=example("sparklog consume orders --root /data/log --print-key --max-messages 10"))
def consume(
    root: SourceOption,
    topic: TopicOfFolder = None,
    partition: Annotated[int | None, Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    from_beginning: Annotated[bool, Option("--from-beginning", help="Start at the log start.")] = False,
    offset: Annotated[
        str | None,
        Option("--offset", "-o", metavar="N|earliest|latest", help="Start here; a number needs --partition."),
    ] = None,
    timestamp: Annotated[
        str | None,
        Option(
            "--from-timestamp",
            "--timestamp",
            metavar="TIME",
            help="Start at the first record not older: milliseconds, or 2026-01-31T12:00:00 (UTC unless it says).",
        ),
    ] = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Wait for more at the end.")] = False,
    timeout_ms: Annotated[int | None, Option(min=0, help="With --follow: end when nothing came for so long.")] = None,
    max_messages: Annotated[int | None, Option("--max-messages", "-n", min=0, help="End after so many.")] = None,
    isolation: IsolationOption = "read_committed",
    corrupt_records: CorruptOption = "fail",
    print_timestamp: PrintTimestamp = False,
    print_partition: PrintPartition = False,
    print_offset: PrintOffset = False,
    print_headers: PrintHeaders = False,
    print_key: PrintKey = False,
    print_value: Annotated[bool, Option("--print-value/--no-print-value", help="The value.")] = True,
    key_separator: Annotated[str, Option(help="Between columns.", show_default="a tab")] = "\t",
    null_literal: Annotated[str, Option(help="Stands for a null key or value.")] = "null",
    as_json: Annotated[
        bool, Option("--json", help="One JSON object per record, all columns; `produce --json` takes it.")
    ] = False,
) -> None:
    """Print the records of a topic: all there are, then end; with --follow go on.

    Without a place to start it begins at the log start, or with --follow at the end. The columns are those of
    kafka-console-consumer, one partition after the other. Their number is printed on stderr.
    """
    from sparklog.cli.record_text import Layout, format_json
    from sparklog.log.read.topic_scan import Tail
    from sparklog.log.state.view import COLUMNS

    source = open_source(root, follow=follow, corrupt_records=corrupt_records, on_skipped=warn)
    tail = Tail(source.view, source.one_topic(topic), isolation, partition, warn=warn)
    _start(tail, from_beginning, offset, timestamp, follow)
    shown = (print_timestamp, print_partition, print_offset, print_headers, print_key, print_value)
    layout = Layout(*shown, key_separator=key_separator.encode(), null_literal=null_literal.encode())
    columns = COLUMNS if as_json else layout.columns()
    batches = _batches(tail, columns, follow, None if timeout_ms is None else timeout_ms / 1000)
    count = _print(batches, format_json if as_json else layout.format, max_messages)
    print(f"Processed a total of {count} messages", file=sys.stderr)


KeyFormat = Literal["string", "hex", "base64", "short", "integer", "long", "float", "double"]


@app.command("get", epilog=example("sparklog get orders --key customer-17 --root /data/log --print-offset"))
def get(
    root: SourceOption,
    key: Annotated[str, Option("--key", "-k", help="The key.")],
    topic: TopicOfFolder = None,
    key_format: Annotated[
        KeyFormat, Option(help="How --key is given; numbers as Kafka's serializers write them.")
    ] = "string",
    partition: Annotated[int | None, Option("--partition", "-p", min=0, help="Look in this partition.")] = None,
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
    from sparklog.format.text import parse_key
    from sparklog.log.read.key_lookup import latest_record

    if partition is not None and all_partitions:
        raise BadParameter("--partition and --all-partitions exclude each other")
    key_bytes = parse_key(key, key_format)
    source = open_source(root, corrupt_records=corrupt_records, on_skipped=warn)
    name = source.one_topic(topic)
    source.view.refresh([name])
    chosen = sorted(source.view.bounds(name)) if all_partitions else None if partition is None else [partition]
    record = latest_record(source.view, name, key_bytes, partitions=chosen, isolation=isolation)
    if record is None:
        hint = "; another partitioner may have written it, or partitions were added in Kafka: try --all-partitions"
        raise NotFound(f"no record of topic {name} has the key {key!r}{'' if all_partitions else hint}")
    deleted = not record.column("value")[0].is_valid
    layout = Layout(print_timestamp, print_partition, print_offset, print_headers, print_key, not deleted)
    write(format_json(record) if as_json else layout.format(record))
    if deleted:
        offset, number = (record.column(name)[0].as_py() for name in ("offset", "partition"))
        warn(f"key {key!r} of topic {name} was deleted: offset {offset} of partition {number} is a tombstone")
        raise Exit(EXIT_DELETED)


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
    names = source.refreshed(topics)
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
