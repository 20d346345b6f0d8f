"""`sparklog produce`: append lines of text or of JSON, from standard input or a file."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from click import BadParameter

from sparklog.cli.printing import Formats
from sparklog.common.parsing import INT32_MAX
from sparklog.common.units import count
from sparklog.console.locations import open_root
from sparklog.console.options import OneTopic, RootOption, unescaped, whole_number
from sparklog.console.parameters import Commands, Option
from sparklog.console.terminal import printable
from sparklog.errors import BadRequest, SparklogError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.log.topic.root import Root
    from sparklog.log.topic.topic import Topic

app = Commands()

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
RUN_BYTES = 16 << 20
READ_BYTES = 1 << 20


@dataclass
class Lines:
    """The form of the lines."""

    as_json: Annotated[
        bool,
        Option(
            "--json",
            excludes="--key-separator --headers --null-marker --ignore-error",
            why="a line of JSON names its parts",
            help='Each line is {"key": ..., "value": ..., "headers": ..., ...}.',
        ),
    ] = False
    key_separator: Annotated[
        str | None,
        Option(may_be_blank=True, help=r"A line is key, this (\t: a tab), value; else keys are null."),
    ] = None
    headers: Annotated[bool, Option(help="A line begins with name:value,name:value and a tab.")] = False
    null_marker: Annotated[
        str | None, Option(may_be_blank=True, help="A key or value that is just this is null (a tombstone).")
    ] = None
    headers_delimiter: Annotated[
        str,
        Option(needs="--headers", may_be_blank=True, help="After the headers of a line.", show_default="a tab"),
    ] = "\t"
    headers_separator: Annotated[str, Option(needs="--headers", may_be_blank=True, help="Between two headers.")] = ","
    headers_key_separator: Annotated[
        str, Option(needs="--headers", may_be_blank=True, help="Between a header's name and its value.")
    ] = ":"
    ignore_error: Annotated[
        bool, Option(needs="--key-separator --headers", help="Of a line without a separator all is the value.")
    ] = False

    def parser(self, formats: Formats) -> Callable[[bytes, int], pa.RecordBatch]:
        """Return what makes records of a run of lines, of which the second argument is the number of the first."""
        from sparklog.cli.record_text import LineFormat, parse_json

        separators = ("key_separator", "headers_delimiter", "headers_separator", "headers_key_separator")
        texts = {name: getattr(self, name) for name in (*separators, "null_marker")}
        for name in separators:
            if texts[name] == "":
                raise BadParameter("expected at least one character", param_hint=f"'--{name.replace('_', '-')}'")
        if formats.key_format is not None and not self.as_json and self.key_separator is None:
            raise BadParameter("lines have no keys: give --key-separator, or --json", param_hint="'--key-format'")
        values = formats.values()
        if self.as_json:
            return lambda run, line: parse_json(run, line, values)
        parts = {name: unescaped(text) for name, text in texts.items() if text is not None}
        lines = LineFormat(headers=self.headers, ignore_error=self.ignore_error, **parts)

        def parse(run: bytes, line: int) -> pa.RecordBatch:
            records = lines.parse(run, line)
            return values.parse(records, range(line, line + records.num_rows))

        return parse


@app.add("produce", "echo 'k1:hello' | sparklog produce orders --root /data/log --key-separator :")
def produce(
    root: RootOption,
    *,
    topic: OneTopic,
    file: Annotated[Path | None, Option(exists=True, dir_okay=False, help="Read this, not standard input.")] = None,
    lines: Lines,
    formats: Formats,
    partition: Annotated[
        int | None, whole_number("-p", high=INT32_MAX, text="All to this partition, whatever the key.")
    ] = None,
    linger_ms: Annotated[
        int, whole_number(high=INT32_MAX, text="How long lines of a pipe wait for others, at most.")
    ] = 1000,
    num_partitions: Annotated[
        int | None,
        whole_number(
            low=1, text="Create the topic with so many, if there is none. Default: the root's num.partitions, or 1."
        ),
    ] = None,
    compression: Annotated[Codec | None, Option(help="Codec, where the topic leaves it to us. Default: zstd.")] = None,
) -> None:
    """Append lines of standard input or a file to a topic.

    A line is a value, or with --key-separator a key and a value, or with --json an object as `sparklog consume --json`
    prints it. Lines are appended in batches, each whole or not at all. So a pipe can be followed: `tail -F file |`.
    """
    from sparklog.log.write.append_target import WriteOptions

    parse = lines.parser(formats)
    options = WriteOptions(codec=compression) if compression else WriteOptions()
    name = topic.name
    opened = open_root(root)
    target = _existing(opened, name, num_partitions)
    with ExitStack() as stack:
        fd = sys.stdin.fileno() if file is None else stack.enter_context(file.open("rb")).fileno()
        line, appended = 1, 0
        try:
            for run in line_runs(fd, run_bytes=RUN_BYTES, linger_s=linger_ms / 1000, clock=time.monotonic):
                batch = _with_partition(parse(run, line), partition)
                lines_read = run.count(b"\n") + (not run.endswith(b"\n"))
                if batch.num_rows:
                    target = target or _created(opened, name, num_partitions)
                    _check_partitions(target, batch, partition, line, lines_read)
                    target.append(batch, options=options)
                    appended += batch.num_rows
                line += lines_read
        except KeyboardInterrupt as stopped:
            stopped.args = (f"appended {_records(appended)} to {name}",)
            raise
        except SparklogError as error:
            if appended:
                error.args = (
                    f"{error} ({_records(appended)} before it {'was' if appended == 1 else 'were'} appended)",
                )
            raise
    missing = ", which does not exist: its first record creates it" if target is None else ""
    print(f"Appended {_records(appended)} to {name}{missing}", file=sys.stderr)


def _records(number: int) -> str:
    """Return `1 record` or `20000 records`, without commas, for scripts."""
    return f"{number} record{'s' * (number != 1)}"


def _existing(root: Root, name: str, num_partitions: int | None) -> Topic | None:
    """Open a topic; None if the first record is to create it, unless the name may be a misspelt one."""
    from sparklog.errors import NotFound, nearest
    from sparklog.log.topic.root import written_topic

    try:
        return root.topic(name)
    except NotFound:
        if num_partitions is None and nearest(name, root.topics()):
            raise
    return written_topic(root, name) if root.defaults().auto_create(name) is False else None


def _created(root: Root, name: str, num_partitions: int | None) -> Topic:
    """Create a topic, as Spark's writes do, and say so."""
    from sparklog.log.topic.root import written_topic

    created = written_topic(root, name, partitions=num_partitions)
    if num_partitions is None:
        how = f"created with {count(len(created.bounds()), 'partition')}, the root's default"
        print(f"Topic {printable(name)} did not exist: {how}; --num-partitions N sets another", file=sys.stderr)
    return created


def _check_partitions(topic: Topic, batch: pa.RecordBatch, partition: int | None, line: int, lines: int) -> None:
    """Raise `BadRequest`, with the line of the input, if a record is for a partition that the topic does not have."""
    if "partition" not in batch.schema.names:
        return
    import numpy as np

    from sparklog.format.arrow_numpy import fixed_values, valid_rows

    column = batch.column("partition")
    last = topic.log.state(refresh=False).partitions - 1
    wrong = np.flatnonzero((fixed_values(column, str(column.type)) > last) & valid_rows(column))
    if not len(wrong) or topic.log.state().partitions - 1 != last:
        return
    row = int(wrong[0])
    where = f"line {line + row}: " if partition is None and batch.num_rows == lines else ""
    found = f"--partition {partition}" if partition is not None else column[row].as_py()
    raise BadRequest(
        f"{where}topic '{topic.name}' has partitions 0 to {last}, found {found}; `sparklog topics alter` adds some"
    )


def _with_partition(batch: pa.RecordBatch, partition: int | None) -> pa.RecordBatch:
    if partition is None:
        return batch
    import numpy as np
    import pyarrow as pa

    from sparklog.format.arrow_numpy import fixed_array

    column = fixed_array(np.full(batch.num_rows, partition, np.int32), pa.int32())
    names = [*(name for name in batch.schema.names if name != "partition"), "partition"]
    return pa.RecordBatch.from_arrays([*(batch.column(name) for name in names[:-1]), column], names=names)


def line_runs(fd: int, *, run_bytes: int, linger_s: float, clock: Callable[[], float]) -> Iterator[bytes]:
    """Read runs of whole lines from a file descriptor, each at least one line; the last may lack its newline.

    A run ends when it has `run_bytes` or when `linger_s` have passed on `clock` since its first byte came. An interrupt
    gives the whole lines that it has, then goes on to the caller.
    """
    buffer = bytearray()
    deadline = 0.0
    try:
        while True:
            if buffer and (len(buffer) >= run_bytes or not _ready(fd, deadline - clock())):
                if run := _take_lines(buffer):
                    yield run
                deadline = clock() + linger_s
                # One line longer than a run: wait for its end.
                run_bytes = max(run_bytes, 2 * len(buffer))
            data = os.read(fd, READ_BYTES)
            if not data:
                break
            if not buffer:
                deadline = clock() + linger_s
            buffer += data
    except KeyboardInterrupt:
        if run := _take_lines(buffer):
            yield run
        raise
    if buffer:
        yield bytes(buffer)


def _take_lines(buffer: bytearray) -> bytes:
    end = buffer.rfind(b"\n") + 1
    run = bytes(buffer[:end])
    del buffer[:end]
    return run


def _ready(fd: int, wait_s: float) -> bool:
    """True if a read would not block, waiting at most `wait_s` for that. Regular files are always ready."""
    if wait_s <= 0:
        return False
    try:
        return bool(select.select([fd], [], [], wait_s)[0])
    except (OSError, ValueError):
        # Windows pipes are not known to select: read, and block if it must.
        return True
