"""`sparklog delete-records` and `log-dirs`: deleting the oldest records, and the bytes of partitions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from click import BadParameter

from sparklog.cli.locations import open_root, open_source
from sparklog.cli.options import DryRunOption, RootOption, SourceOption, TopicOption, Topics, one_of, whole_number
from sparklog.cli.parameters import Argument, Commands, Option
from sparklog.cli.terminal import Output, print_table, read_text
from sparklog.errors import BadRequest
from sparklog.units import count

if TYPE_CHECKING:
    from sparklog.log.state.view import PartitionSize
    from sparklog.log.topic.root import Root

app = Commands()


@app.add("delete-records", "sparklog delete-records --topic orders --partition 0 --offset 42 --root /data/log")
def delete_oldest(
    root: RootOption,
    topic_argument: Annotated[str | None, Argument(metavar="[TOPIC]", help="One topic instead of a file.")] = None,
    offset_json_file: Annotated[Path | None, Option(metavar="FILE", help="Offsets of partitions, see above.")] = None,
    topic_option: TopicOption = None,
    partition: Annotated[int | None, whole_number("-p", text="Its partition.")] = None,
    offset: Annotated[
        int | None, whole_number("-o", low=-1, text="The first offset that stays; -1: none does.")
    ] = None,
    dry_run: DryRunOption = False,
) -> Output:
    """Delete the records below an offset: the log starts there then.

    --offset-json-file takes Kafka's file, {"partitions": [{"topic": "t", "partition": 0, "offset": 42}], "version": 1}.
    Offset -1 stands for the log end: all records. All of it is checked before anything is changed. Readers see the new
    log start at once; files go with a later run of `sparklog retain`.
    """
    topic = one_of(topic_argument, topic_option)
    short = (topic, partition, offset)
    if offset_json_file is not None and short == (None, None, None):
        text = read_text(offset_json_file, "--offset-json-file")
        offsets = parse_offset_file(text, str(offset_json_file))
    elif offset_json_file is None and topic is not None and partition is not None and offset is not None:
        offsets = {(topic, partition): offset}
    else:
        raise BadParameter("give --offset-json-file, or all three of a topic, --partition and --offset")
    lows = delete_records(open_root(root), offsets, dry_run=dry_run)
    title = "Dry run, nothing is deleted:" if dry_run else "Records delete operation completed:"
    lines = [f"partition: {low.topic}-{low.partition}\tlow_watermark: {low.low_watermark}" for low in lows]
    return Output.of_lines({"dryRun": dry_run, "partitions": lows}, title, *lines)


@dataclass(frozen=True, slots=True)
class LowWatermark:
    topic: str
    partition: int
    low_watermark: int


def parse_offset_file(text: str, file: str) -> dict[tuple[str, int], int]:
    """Return `(topic, partition) -> offset` of Kafka's offset file; `BadRequest` for anything else.

    `offset` is the first one that stays, -1 the log end (Kafka's high watermark).
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"{file} must hold JSON, found an error: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("partitions"), list):
        raise BadRequest(f'{file} must hold {{"partitions": [...], "version": 1}}, found no list "partitions"')
    if document.get("version", 1) != 1:
        raise BadRequest(f"{file} must be of version 1, found {document['version']!r}")
    offsets: dict[tuple[str, int], int] = {}
    for item in document["partitions"]:
        names = ("topic", "partition", "offset")
        values: list[Any] = [item.get(name) for name in names] if isinstance(item, dict) else []
        if [type(value) for value in values] != [str, int, int]:
            raise BadRequest(
                f'{file} must have entries {{"topic": "t", "partition": 0, "offset": 42}}, found {json.dumps(item)}'
            )
        topic, partition, offset = values
        if (topic, partition) in offsets:
            raise BadRequest(f"{file} names {topic}-{partition} twice: give one offset for it")
        offsets[topic, partition] = offset
    if not offsets:
        raise BadRequest(f"{file} names no partition")
    return offsets


def delete_records(root: Root, offsets: Mapping[tuple[str, int], int], *, dry_run: bool = False) -> list[LowWatermark]:
    """Delete the records below an offset of each partition. All is checked before the first topic is changed.

    Raises as `Topic.delete_records`. `dry_run`: check, and tell where logs would start.
    """
    topics: dict[str, dict[int, int]] = {}
    for (name, partition), offset in sorted(offsets.items()):
        topics.setdefault(name, {})[partition] = offset
    opened = {name: root.topic(name) for name in topics}
    planned = {name: opened[name].plan_delete_records(before) for name, before in topics.items()}
    done = planned if dry_run else {name: opened[name].delete_records(before) for name, before in topics.items()}
    return [LowWatermark(name, partition, low) for name, lows in done.items() for partition, low in lows.items()]


HEADINGS = ("TOPIC", "PARTITION", "APPEND", "SEALED", "TOTAL", "RECORDS", "SLICES")
NO_BROKER = -1


@dataclass
class TopicList(Topics):
    """As for others; the option's name is Kafka's."""

    topic_option: Annotated[
        list[str] | None, Option("--topic-list", "--topic", "-t", metavar="TOPIC,...", help="Only these topics.")
    ] = None


@app.add("log-dirs", "sparklog log-dirs --topic-list orders,clicks --root /data/log")
def log_dirs(root: SourceOption, *, topics: TopicList) -> Output:
    """Show how many bytes each partition takes, and how many are in files that only wait for the vacuum.

    APPEND are bytes in append files (in a Kafka directory: of the active segment), SEALED those in sealed (closed)
    segments, SLICES their number. --json prints the document of kafka-log-dirs, with these beside its own
    names; there is no broker, so its number is -1.
    """
    from sparklog.retention.vacuum import unreferenced

    source = open_source(root)
    names = source.refreshed(topics.names)
    sizes = [size for name in names for size in source.view.partition_sizes(name)]
    waiting = None if source.root is None else [unreferenced(source.root.topic(name)) for name in names]
    files, nbytes = map(sum, zip((0, 0), *(waiting or ()), strict=True))

    def show() -> None:
        _show(sizes)
        if files:
            print(f"Besides, {nbytes} bytes in {count(files, 'file')} wait for the vacuum of `sparklog retain`.")

    more = {} if waiting is None else {"unreferencedFiles": files, "unreferencedBytes": nbytes}
    partitions = _partitions(sizes)
    log_dir = {"logDir": source.view.location, "error": None, "partitions": partitions, **more}
    document = {"version": 1, "brokers": [{"broker": NO_BROKER, "logDirs": [log_dir]}]}
    return Output(document, show, source.failures, rows=partitions)


def _partitions(sizes: list[PartitionSize]) -> list[dict[str, object]]:
    return [
        {
            "partition": f"{size.topic}-{size.partition}",
            "size": size.total_bytes,
            "offsetLag": 0,
            "isFuture": False,
            "appendBytes": size.append_bytes,
            "sealedBytes": size.sealed_bytes,
            "records": size.records,
            "slices": size.slices,
        }
        for size in sizes
    ]


def _show(sizes: list[PartitionSize]) -> None:
    counts = [(size.append_bytes, size.sealed_bytes, size.total_bytes, size.records, size.slices) for size in sizes]
    rows: list[tuple[object, ...]] = [
        (size.topic, size.partition, *numbers) for size, numbers in zip(sizes, counts, strict=True)
    ]
    if len(sizes) > 1:
        rows.append(("all", "", *map(sum, zip(*counts, strict=True))))
    print_table(HEADINGS, rows, right=HEADINGS[1:])
