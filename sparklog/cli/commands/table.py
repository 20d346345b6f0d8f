"""`sparklog table`: the latest record of each key of a topic, of a root or a Kafka directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from click import BadParameter

from sparklog.cli.locations import open_source
from sparklog.cli.options import CorruptOption, SourceOption, TopicOfFolder, parse_time
from sparklog.cli.parameters import Commands, Option
from sparklog.cli.printing import LimitOption, Printer, Printing
from sparklog.cli.record_values import Formats
from sparklog.cli.terminal import warn

app = Commands()
TIME_HELP = "As of a time, by what is before the first record not older: milliseconds, or 2026-01-31T12:00:00 (UTC)."
OFFSETS_HELP = 'As of offsets, by what is before them: JSON like {"0":23}; other partitions as of now.'


@dataclass
class TablePrinting(Printing):
    """As of other records, but with the key."""

    print_key: Annotated[bool, Option(help="The key.")] = True


@app.add("table", "sparklog table orders --root /data/log --as-of 2026-01-31T12:00:00")
def table(
    root: SourceOption,
    *,
    topic: TopicOfFolder,
    as_of: Annotated[str | None, Option(metavar="TIME", help=TIME_HELP, show_default="now")] = None,
    as_of_offsets: Annotated[str | None, Option(metavar="JSON", help=OFFSETS_HELP)] = None,
    max_messages: LimitOption = None,
    corrupt_records: CorruptOption = "fail",
    printing: TablePrinting,
    formats: Formats,
    as_json: Annotated[bool, Option("--json", help="One JSON object per record, all columns.")] = False,
) -> None:
    """Print a topic as a table: the latest record of each key, without keys that were deleted.

    Only committed records count, and those without a key are left out. Rows come partition by partition, the newest
    first; their number is printed on stderr. A key that is in several partitions has a row for each.
    """
    from sparklog.log.read.topic_table import open_table

    if as_of is not None and as_of_offsets is not None:
        raise BadParameter("give one of --as-of and --as-of-offsets")
    columns, formatter = printing.formatter(formats.values(), as_json)
    moment = _offsets(as_of_offsets) if as_of is None else parse_time(as_of, "--as-of")
    source = open_source(root, corrupt_records=corrupt_records, on_skipped=warn)
    name = source.one_topic(topic.name_or_none)
    rows = open_table(source.view, name, lambda: source.view, moment, columns)
    with Printer(formatter, max_messages) as printer:
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
