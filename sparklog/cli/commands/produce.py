"""The command `sparklog produce`, which appends lines of text or JSON from standard input or a file."""

from __future__ import annotations

import json
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

from sparklog.cli.printing import PARTS, Formats
from sparklog.common.parsing import INT32_MAX
from sparklog.common.units import count
from sparklog.console.locations import open_root
from sparklog.console.options import OneTopic, RootOption, integer_option, unescaped
from sparklog.console.parameters import Commands, Option
from sparklog.console.terminal import printable
from sparklog.errors import BadRequest, NotFound, SparklogError, nearest, shortened

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.cli.record_text import RecordValues
    from sparklog.log.topic.root import Root
    from sparklog.log.topic.topic import Topic

app = Commands()

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CHUNK_BYTES = 16 << 20
READ_BYTES = 1 << 20


@dataclass
class ProducedFormats(Formats):
    """The formats of keys and values, and the location of their schemas."""

    auto_register: Annotated[
        bool,
        Option(
            help="Register the schemas of --key-schema and --value-schema in the schema registry, as auto.register of"
            " kafka-avro-console-producer. Otherwise, they must be registered already.",
        ),
    ] = True
    key_refs: Annotated[
        str | None,
        Option(
            metavar="JSON",
            needs="--key-schema",
            help="Schemas that --key-schema refers to, as the property key.refs of kafka-avro-console-producer.",
        ),
    ] = None
    value_refs: Annotated[
        str | None,
        Option(
            metavar="JSON",
            needs="--value-schema",
            help="Schemas that --value-schema refers to, as the property value.refs of kafka-avro-console-producer:"
            ' [{"name": "shop.Item", "subject": "item", "version": 1}].',
        ),
    ] = None

    def values_to_write(self, topic: str) -> RecordValues:
        """Return the formats for parsing records of a topic."""
        from sparklog.cli.record_text import RecordValues

        registry = self.registry()
        references = {part: schema_references(getattr(self, f"{part}_refs"), f"'--{part}-refs'") for part in PARTS}
        if registry is None:
            for part in PARTS:
                if references[part]:
                    raise BadParameter("references require --schema-registry", param_hint=f"'--{part}-refs'")
            return self.values()
        return RecordValues(
            *(
                self.format_to_write(
                    part, registry, topic, auto_register=self.auto_register, references=references[part]
                )
                for part in PARTS
            )
        )


def schema_references(text: str | None, option: str) -> list[tuple[str, str, int]]:
    """Parse references to schemas in a registry. Return the name, the subject and the version of each schema."""
    if text is None:
        return []
    try:
        documents = json.loads(text)
        references = [(each["name"], each["subject"], each["version"]) for each in documents]
        is_valid = isinstance(documents, list) and all(
            isinstance(name, str) and isinstance(subject, str) and type(version) is int and version > 0
            for name, subject, version in references
        )
    except (ValueError, TypeError, KeyError):
        is_valid = False
    if not is_valid:
        raise BadParameter(
            'expected JSON such as [{"name": "shop.Item", "subject": "item", "version": 1}],'
            f" found {shortened(text)}",
            param_hint=option,
        )
    return references


@dataclass
class Lines:
    """The format of the input lines."""

    as_json: Annotated[
        bool,
        Option(
            "--json",
            excludes="--key-separator --headers --null-marker --ignore-error",
            why="JSON objects contain all parts of a record",
            help="Parse each line as a JSON object with fields such as key, value and headers.",
        ),
    ] = False
    key_separator: Annotated[
        str | None,
        Option(
            may_be_blank=True,
            help="Separator between the key and the value in a line (\\t for a tab).",
            show_default="no keys",
        ),
    ] = None
    headers: Annotated[
        bool,
        Option(help="Parse headers at the start of each line, in the format name:value,name:value followed by a tab."),
    ] = False
    null_marker: Annotated[
        str | None, Option(may_be_blank=True, help="Text that represents a null key or a null value (tombstone).")
    ] = None
    headers_delimiter: Annotated[
        str,
        Option(
            needs="--headers",
            may_be_blank=True,
            help="Separator between the headers and the rest of a line.",
            show_default="a tab",
        ),
    ] = "\t"
    headers_separator: Annotated[
        str, Option(needs="--headers", may_be_blank=True, help="Separator between headers.")
    ] = ","
    headers_key_separator: Annotated[
        str, Option(needs="--headers", may_be_blank=True, help="Separator between the name and the value of a header.")
    ] = ":"
    ignore_error: Annotated[
        bool,
        Option(
            needs="--key-separator --headers",
            help="If a line does not contain a separator, use a null key or null headers instead of failing.",
        ),
    ] = False

    def parser(self, formats: ProducedFormats, topic: str) -> Callable[[bytes, int], pa.RecordBatch]:
        """Return a function that converts lines to records. Its second argument is the number of the first line."""
        from sparklog.cli.record_text import LineFormat, parse_json

        separators = ("key_separator", "headers_delimiter", "headers_separator", "headers_key_separator")
        texts = {name: getattr(self, name) for name in (*separators, "null_marker")}
        for name in separators:
            if texts[name] == "":
                raise BadParameter("expected at least one character", param_hint=f"'--{name.replace('_', '-')}'")
        if formats.key_format is not None and not self.as_json and self.key_separator is None:
            raise BadParameter(
                "the lines do not contain keys: specify --key-separator or --json", param_hint="'--key-format'"
            )
        values = formats.values_to_write(topic)
        if self.as_json:
            return lambda data, line: parse_json(data, line, values)
        parts = {name: unescaped(text) for name, text in texts.items() if text is not None}
        lines = LineFormat(headers=self.headers, ignore_error=self.ignore_error, **parts)

        def parse(data: bytes, line: int) -> pa.RecordBatch:
            records = lines.parse(data, line)
            return values.parse(records, range(line, line + records.num_rows))

        return parse


PartitionsOption = Annotated[
    int | None,
    integer_option(
        low=1,
        text="Number of partitions of the topic if the topic is created.",
        default="num.partitions of the root, or 1",
    ),
]


@app.add("produce", "echo 'k1:hello' | sparklog produce orders --root /data/log --key-separator :")
def produce(
    root: RootOption,
    *,
    topic: OneTopic,
    file: Annotated[
        Path | None,
        Option(exists=True, dir_okay=False, help="File to read the lines from (standard input if omitted)."),
    ] = None,
    lines: Lines,
    formats: ProducedFormats,
    partition: Annotated[
        int | None,
        integer_option("-p", high=INT32_MAX, text="Append all records to this partition, regardless of their keys."),
    ] = None,
    linger_ms: Annotated[
        int,
        integer_option(
            high=INT32_MAX,
            text="Maximum time in milliseconds to wait for more lines of a pipe before a batch is appended.",
        ),
    ] = 1000,
    num_partitions: PartitionsOption = None,
    compression: Annotated[
        Codec | None,
        Option(
            help="Compression codec. If the topic config compression.type is set to a codec, this option is ignored.",
            show_default="zstd",
        ),
    ] = None,
) -> None:
    """Append lines of standard input or a file to a topic.

    Each line is a value. With --key-separator, each line is a key and a value. With --json, each line is an object, as
    printed by `sparklog consume
    --json`. Lines are appended in batches, and each batch is atomic. Input may be endless, as in `tail -F file |`.
    """
    from sparklog.log.write.append_target import WriteOptions

    options = WriteOptions(codec=compression) if compression else WriteOptions()
    name = topic.name
    opened = open_root(root)
    target = _existing(opened, name, num_partitions)
    # Only now, because the formats register schemas.
    parse = lines.parser(formats, name)
    with ExitStack() as stack:
        fd = sys.stdin.fileno() if file is None else stack.enter_context(file.open("rb")).fileno()
        line, appended = 1, 0
        try:
            for data in line_chunks(fd, chunk_bytes=CHUNK_BYTES, linger_s=linger_ms / 1000, clock=time.monotonic):
                batch = _with_partition(parse(data, line), partition)
                lines_read = data.count(b"\n") + (not data.endswith(b"\n"))
                if batch.num_rows:
                    target = target or _created(opened, name, num_partitions)
                    _check_partitions(target, batch, partition, line, lines_read)
                    target.append(batch, options=options)
                    appended += batch.num_rows
                line += lines_read
        except KeyboardInterrupt as error:
            error.args = (f"appended {_records(appended)} to {name}",)
            raise
        except SparklogError as error:
            if appended:
                error.args = (
                    f"{error} ({_records(appended)} before the error {'was' if appended == 1 else 'were'} appended)",
                )
            raise
    missing = ", which does not exist; the first record creates it" if target is None else ""
    print(f"Appended {_records(appended)} to {name}{missing}", file=sys.stderr)


def _records(number: int) -> str:
    """Return `1 record` or `20000 records`. The number has no thousands separators, so that scripts can parse it."""
    return f"{number} record{'s' * (number != 1)}"


def _existing(root: Root, name: str, num_partitions: int | None) -> Topic | None:
    """Open a topic, or return None if the first record will create the topic.

    Raises `NotFound` if the name may be misspelled.
    """
    from sparklog.log.topic.root import topic_for_writer

    try:
        return root.topic(name)
    except NotFound:
        if num_partitions is None and nearest(name, root.topics()):
            raise
    return topic_for_writer(root, name) if root.defaults().auto_create(name) is False else None


def _created(root: Root, name: str, num_partitions: int | None) -> Topic:
    """Create a topic in the same way as Spark writes, and report it."""
    from sparklog.log.topic.root import topic_for_writer

    created = topic_for_writer(root, name, partitions=num_partitions)
    if num_partitions is None:
        how = f"created with {count(len(created.bounds()), 'partition')}, the root's default"
        print(
            f"Topic {printable(name)} did not exist: {how}; use --num-partitions to set another number", file=sys.stderr
        )
    return created


def _check_partitions(topic: Topic, batch: pa.RecordBatch, partition: int | None, line: int, lines: int) -> None:
    """Raise `BadRequest` with the line number if a record has a partition that the topic does not have."""
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
    found = f"--partition {partition}" if partition is not None else f"partition {column[row].as_py()}"
    raise BadRequest(
        f"{where}topic '{topic.name}' has partitions 0 to {last}, found {found}; `sparklog topics alter` adds "
        "partitions"
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


def line_chunks(fd: int, *, chunk_bytes: int, linger_s: float, clock: Callable[[], float]) -> Iterator[bytes]:
    """Read chunks of complete lines from a file descriptor. The last line does not have to end with a newline.

    A chunk ends when it contains `chunk_bytes`, or when `linger_s` have passed on `clock` since the first byte of the
    chunk arrived. After an interrupt, the function yields the complete lines that have arrived, and raises the
    interrupt again.
    """
    buffer = bytearray()
    deadline = 0.0
    try:
        while True:
            if buffer and (len(buffer) >= chunk_bytes or not _is_readable(fd, deadline - clock())):
                if lines := _remove_lines(buffer):
                    yield lines
                deadline = clock() + linger_s
                # The rest may be a line that is longer than a chunk, so wait for the end of the line.
                chunk_bytes = max(chunk_bytes, 2 * len(buffer))
            data = os.read(fd, READ_BYTES)
            if not data:
                break
            if not buffer:
                deadline = clock() + linger_s
            buffer += data
    except KeyboardInterrupt:
        if lines := _remove_lines(buffer):
            yield lines
        raise
    if buffer:
        yield bytes(buffer)


def _remove_lines(buffer: bytearray) -> bytes:
    """Remove the complete lines from a buffer, and return them."""
    end = buffer.rfind(b"\n") + 1
    lines = bytes(buffer[:end])
    del buffer[:end]
    return lines


def _is_readable(fd: int, wait_s: float) -> bool:
    """Wait at most `wait_s` until a read would not block. Return False if a read would still block. Reads of files
    never block.
    """
    if wait_s <= 0:
        return False
    try:
        return bool(select.select([fd], [], [], wait_s)[0])
    except (OSError, ValueError):
        # On Windows, `select` does not support pipes, so the read may block.
        return True
