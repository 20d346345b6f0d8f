"""`sparklog table`: the latest record of each key of a topic, of a root or a Kafka directory."""

from __future__ import annotations

import json
from typing import Annotated

from typer import BadParameter, Option, Typer

from sparklog.cli.commands.consume import (
    FormatOption,
    LimitOption,
    NullOption,
    Printer,
    SeparatorOption,
    record_formatter,
)
from sparklog.cli.locations import open_source
from sparklog.cli.options import (
    CorruptOption,
    PrintHeaders,
    PrintOffset,
    PrintPartition,
    PrintTimestamp,
    SourceOption,
    TopicOfFolder,
    TopicOption,
    chosen,
    example,
    parse_time,
    unescaped,
)
from sparklog.cli.record_values import KeyFormat, KeySchemas, ValueFormatOption, ValueSchemas, record_values
from sparklog.cli.terminal import warn

app = Typer()
TIME_HELP = "As of a time, by what lies before the first record not older: milliseconds, or 2026-01-31T12:00:00 (UTC)."
OFFSETS_HELP = 'As of offsets, by what lies before them: JSON like {"0":23}; other partitions as of now.'


@app.command("table", epilog=example("sparklog table orders --root /data/log --as-of 2026-01-31T12:00:00"))
def table(
    root: SourceOption,
    topic: TopicOfFolder = None,
    topic_option: TopicOption = None,
    as_of: Annotated[str | None, Option(metavar="TIME", help=TIME_HELP, show_default="now")] = None,
    as_of_offsets: Annotated[str | None, Option(metavar="JSON", help=OFFSETS_HELP)] = None,
    max_messages: LimitOption = None,
    corrupt_records: CorruptOption = "fail",
    print_timestamp: PrintTimestamp = False,
    print_partition: PrintPartition = False,
    print_offset: PrintOffset = False,
    print_headers: PrintHeaders = False,
    print_key: Annotated[bool, Option("--print-key/--no-print-key", help="The key.")] = True,
    print_value: Annotated[bool, Option("--print-value/--no-print-value", help="The value.")] = True,
    key_separator: SeparatorOption = "\t",
    null_literal: NullOption = None,
    format_: FormatOption = None,
    key_format: KeyFormat = None,
    value_format: ValueFormatOption = None,
    key_schema: KeySchemas = None,
    value_schema: ValueSchemas = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object per record, all columns.")] = False,
) -> None:
    """Print a topic as a table: the latest record of each key, without keys that were deleted.

    Only committed records count, and those without a key are left out. Rows come partition by partition, the newest
    first; their number is printed on stderr. A key that lies in several partitions has a row for each.
    """
    from sparklog.cli.record_text import Layout
    from sparklog.log.read.topic_table import open_table

    if as_of is not None and as_of_offsets is not None:
        raise BadParameter("give one of --as-of and --as-of-offsets")
    shown = (print_timestamp, print_partition, print_offset, print_headers, print_key, print_value)
    layout = Layout(*shown, key_separator=unescaped(key_separator))
    values = record_values(key_format, key_schema, value_format, value_schema)
    columns, show = record_formatter(layout, null_literal, format_, as_json, values)
    place = _offsets(as_of_offsets) if as_of is None else parse_time(as_of, "--as-of")
    source = open_source(root, corrupt_records=corrupt_records, on_skipped=warn)
    name = source.one_topic(chosen(topic, topic_option))
    rows = open_table(source.view, name, lambda: source.view, place, columns)
    with Printer(show, max_messages) as printer:
        printer.print(iter(rows))


def _offsets(text: str | None) -> dict[int, int] | None:
    """Return the offsets of `--as-of-offsets` by partition."""
    if text is None:
        return None
    try:
        offsets = json.loads(text)
        if not isinstance(offsets, dict) or any(type(offset) is not int for offset in offsets.values()):
            raise ValueError
        return {int(partition): offset for partition, offset in offsets.items()}
    except ValueError:
        raise BadParameter(f'expected JSON like {{"0":23}}, found {text!r}', param_hint="'--as-of-offsets'") from None
