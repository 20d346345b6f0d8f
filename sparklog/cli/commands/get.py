"""`sparklog get`: the latest record of a key."""

from __future__ import annotations

from enum import Enum
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
    import pyarrow as pa

EXIT_DELETED = 3

HELP = """Print the latest record of a key.

It is looked for backwards from the log end, in the partition where Kafka's default partitioner puts the key, and where
it put it before partitions were added to a topic of a root. Where another partitioner wrote it, or partitions were
added in Kafka, give --partition or --all-partitions (of several records the one with the greatest timestamp). Exit code
3: the latest record is a tombstone, the key was deleted; 1: there is none.
"""
EXAMPLES = example("sparklog get orders --key customer-17 --root /data/log --print-offset")


class KeyFormat(str, Enum):
    """Of `sparklog.format.text`."""

    string = "string"
    hex = "hex"
    base64 = "base64"
    short = "short"
    integer = "integer"
    long = "long"
    float = "float"
    double = "double"


def get(
    root: PlaceOption,
    key: Annotated[str, typer.Option("--key", "-k", help="The key.")],
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Topic; may be left out where the folder holds only one.")
    ] = None,
    key_format: Annotated[
        KeyFormat, typer.Option("--key-format", help="How --key is given; numbers as Kafka's serializers write them.")
    ] = KeyFormat.string,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Look in this partition.")] = None,
    all_partitions: Annotated[bool, typer.Option("--all-partitions", help="Look in all of them.")] = False,
    isolation: IsolationOption = Isolation.read_committed,
    corrupt_records: CorruptOption = CorruptRecords.fail,
    print_timestamp: TimestampShown = False,
    print_partition: PartitionShown = False,
    print_offset: OffsetShown = False,
    print_headers: HeadersShown = False,
    print_key: KeyShown = False,
    as_json: Annotated[bool, typer.Option("--json", help="The record as a JSON object, all columns.")] = False,
) -> None:
    from sparklog.cli.json_records import format_json
    from sparklog.cli.places import open_place
    from sparklog.cli.text import Layout
    from sparklog.errors import NotFound
    from sparklog.format.text import parse_key
    from sparklog.log.read.key_lookup import latest_record

    if partition is not None and all_partitions:
        raise typer.BadParameter("--partition and --all-partitions exclude each other")
    sought = parse_key(key, key_format.value)
    place = open_place(root, corrupt_records=corrupt_records.value, on_skipped=say)
    name = place.one_topic(topic)
    place.view.refresh([name])
    chosen = sorted(place.view.bounds(name)) if all_partitions else None if partition is None else [partition]
    record = latest_record(place.view, name, sought, partitions=chosen, isolation=isolation.value)
    if record is None:
        elsewhere = "another partitioner may have written it, or partitions were added in Kafka: try --all-partitions"
        where = "" if all_partitions else f"; {elsewhere}"
        raise NotFound(f"no record of topic {name} has the key {key!r}{where}")
    deleted = not record.column("value")[0].is_valid
    layout = Layout(print_timestamp, print_partition, print_offset, print_headers, print_key, not deleted)
    write(format_json(record) if as_json else layout.format(record))
    if deleted:
        say(f"key {key!r} of topic {name} was deleted: {_place(record)} is a tombstone")
        raise typer.Exit(EXIT_DELETED)


def _place(record: pa.RecordBatch) -> str:
    offset, partition = (record.column(name)[0].as_py() for name in ("offset", "partition"))
    return f"offset {offset} of partition {partition}"


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="get", help=HELP, epilog=EXAMPLES)(get)
