"""`sparklog consume`: print records, and with `--follow` go on printing as they come.

Reading knows nothing of brokers: the same command prints a sparklog topic and a directory that a Kafka broker wrote.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import (
    CorruptOption,
    CorruptRecords,
    HeadersShown,
    Isolation,
    IsolationOption,
    KeyShown,
    OffsetShown,
    PartitionShown,
    PlaceOption,
    TimestampShown,
    example,
)
from sparklog.cli.terminal import say, write

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from sparklog.log.read.tail import Tail

HELP = """Print the records of a topic: all there are, then end; with --follow go on.

Without a place to start it begins at the log start, or with --follow at the end. The columns are those of
kafka-console-consumer, one partition after the other. How many were printed is said on stderr.
"""
EXAMPLES = example("sparklog consume orders --root /data/log --print-key --max-messages 10")


def _batches(tail: Tail, columns: tuple[str, ...], follow: bool, timeout_s: float | None) -> Iterator[pa.RecordBatch]:
    """Everything there is, then, if asked, what comes, until nothing came for `timeout_s`."""
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
    if limit == 0:
        return 0
    for batch in batches:
        taken = batch if limit is None else batch.slice(0, limit - count)
        write(formatter(taken))
        count += taken.num_rows
        if limit is not None and count >= limit:
            break
    return count


def _start(tail: Tail, from_beginning: bool, offset: str | None, timestamp: str | None, follow: bool) -> None:
    from sparklog.cli.times import parse_time

    given = [
        name
        for name, wanted in (
            ("--from-beginning", from_beginning),
            ("--offset", offset is not None),
            ("--from-timestamp", timestamp is not None),
        )
        if wanted
    ]
    if len(given) > 1:
        raise typer.BadParameter(f"one place to start, found {' and '.join(given)}")
    number = _offset(offset, tail.partition)
    since = parse_time(timestamp) if timestamp is not None else None
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
    """The number in `--offset`, None for earliest, latest and no option."""
    if text is None or text in ("earliest", "latest"):
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"expected earliest, latest or a number, found {text!r}", param_hint="'--offset'")
    if partition is None:
        raise typer.BadParameter("a number needs --partition: each partition has its own", param_hint="'--offset'")
    return int(text)


def consume(
    root: PlaceOption,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Topic; may be left out where the folder holds only one.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start at the log start.")] = False,
    offset: Annotated[
        str | None,
        typer.Option("--offset", "-o", metavar="N|earliest|latest", help="Start here; a number needs --partition."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--from-timestamp",
            "--timestamp",
            metavar="TIME",
            help="Start at the first record not older: milliseconds, or 2026-01-31T12:00:00 (UTC unless it says).",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end.")] = False,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout-ms", min=0, help="With --follow: end when nothing came for so long.")
    ] = None,
    max_messages: Annotated[int | None, typer.Option("--max-messages", "-n", min=0, help="End after so many.")] = None,
    isolation: IsolationOption = Isolation.read_committed,
    corrupt_records: CorruptOption = CorruptRecords.fail,
    print_timestamp: TimestampShown = False,
    print_partition: PartitionShown = False,
    print_offset: OffsetShown = False,
    print_headers: HeadersShown = False,
    print_key: KeyShown = False,
    print_value: Annotated[bool, typer.Option("--print-value/--no-print-value", help="The value.")] = True,
    key_separator: Annotated[
        str, typer.Option("--key-separator", help="Between columns.", show_default="a tab")
    ] = "\t",
    null_literal: Annotated[str, typer.Option("--null-literal", help="Stands for a null key or value.")] = "null",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per record, all columns; `produce --json` takes it.")
    ] = False,
) -> None:
    from sparklog.cli.json_records import format_json
    from sparklog.cli.places import open_place
    from sparklog.cli.text import Layout
    from sparklog.log.read.tail import Tail
    from sparklog.log.state.view import COLUMNS

    place = open_place(root, follow=follow, corrupt_records=corrupt_records.value, on_skipped=say)
    tail = Tail(place.view, place.one_topic(topic), isolation.value, partition, warn=say)
    _start(tail, from_beginning, offset, timestamp, follow)
    layout = Layout(
        timestamp=print_timestamp,
        partition=print_partition,
        offset=print_offset,
        headers=print_headers,
        key=print_key,
        value=print_value,
        key_separator=key_separator.encode(),
        null_literal=null_literal.encode(),
    )
    columns = COLUMNS if as_json else layout.columns()
    batches = _batches(tail, columns, follow, None if timeout_ms is None else timeout_ms / 1000)
    count = _print(batches, format_json if as_json else layout.format, max_messages)
    print(f"Processed a total of {count} messages", file=sys.stderr)


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="consume", help=HELP, epilog=EXAMPLES)(consume)
