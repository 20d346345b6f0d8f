"""The commands for stored data: `sparklog delete-records`, `log-dirs`, `history` and `dump-log`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from click import BadParameter

from sparklog.common.parsing import INT32_MAX
from sparklog.common.times import iso_time
from sparklog.common.units import count, size_text
from sparklog.console.locations import open_root, open_source
from sparklog.console.options import DryRunOption, RootOption, SourceOption, TopicOption, Topics, integer_option, one_of
from sparklog.console.parameters import Argument, Commands, JsonOption, Option
from sparklog.console.terminal import Output, print_table, printable, read_text
from sparklog.errors import BadRequest
from sparklog.output import write

if TYPE_CHECKING:
    from sparklog.log.state.commit import Commit
    from sparklog.log.state.view import PartitionSize
    from sparklog.log.topic.root import Root
    from sparklog.tools.inspection.dump import Line
    from sparklog.tools.inspection.dump_decoders import Decoders


app = Commands()


@app.add("delete-records", "sparklog delete-records --topic orders --partition 0 --offset 42 --root /data/log")
def delete_oldest(
    root: RootOption,
    topic_argument: Annotated[
        str | None,
        Argument(metavar="[TOPIC]", help="Topic whose records to delete, if no --offset-json-file is given."),
    ] = None,
    offset_json_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            excludes="TOPIC --topic --partition --offset",
            why="the file specifies the partitions",
            help="JSON file with an offset for each partition. Records before the offset are deleted.",
        ),
    ] = None,
    topic_option: TopicOption = None,
    partition: Annotated[int | None, integer_option("-p", text="Partition whose records to delete.")] = None,
    offset: Annotated[
        int | None, integer_option("-o", low=-1, text="Delete records below this offset (-1 for the log end).")
    ] = None,
    dry_run: DryRunOption = False,
) -> Output:
    """Delete the records before an offset.

    The offset becomes the new log start offset, which readers see immediately. A later run of `sparklog retain` deletes
    the files.

    The file of --offset-json-file has the same format as for Kafka, {"partitions": [{"topic": "t", "partition": 0,
    "offset": 42}], "version": 1}. The offset -1 is the log end, so all records are deleted. All offsets are validated
    before the first change.
    """
    topic = one_of(topic_argument, topic_option)
    if offset_json_file is not None:
        text = read_text(offset_json_file, "--offset-json-file")
        offsets = parse_offset_file(text, str(offset_json_file))
    elif topic is not None and partition is not None and offset is not None:
        offsets = {(topic, partition): offset}
    else:
        raise BadParameter("specify --offset-json-file, or a topic, --partition and --offset")
    lows = delete_records(open_root(root), offsets, dry_run=dry_run)
    title = "Dry run, nothing was deleted:" if dry_run else "Records delete operation completed:"
    lines = [f"partition: {low.topic}-{low.partition}\tlow_watermark: {low.low_watermark}" for low in lows]
    return Output.from_lines({"dryRun": dry_run, "partitions": lows}, title, *lines)


@dataclass(frozen=True, slots=True)
class LowWatermark:
    topic: str
    partition: int
    low_watermark: int


def parse_offset_file(text: str, file: str) -> dict[tuple[str, int], int]:
    """Parse the offset file of Kafka's tool to a map `(topic, partition) -> offset`. Raises `BadRequest` if the file is
    not valid.

    `offset` is the first offset to retain, or -1 for the log end (Kafka's high watermark).
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"{file} must contain JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("partitions"), list):
        raise BadRequest(f'{file} must contain {{"partitions": [...], "version": 1}}, found no list "partitions"')
    if document.get("version", 1) != 1:
        raise BadRequest(f"{file} must have version 1, found {document['version']!r}")
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
            raise BadRequest(f"{file} contains {topic}-{partition} twice: specify one offset for the partition")
        offsets[topic, partition] = offset
    if not offsets:
        raise BadRequest(f"{file} contains no partitions")
    return offsets


def delete_records(root: Root, offsets: Mapping[tuple[str, int], int], *, dry_run: bool = False) -> list[LowWatermark]:
    """Delete the records before an offset of each partition, after validating all offsets.

    Raises the errors of `Topic.delete_records`. If `dry_run` is True, only validates the offsets, and returns the new
    log start offsets.
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
    """The topics of a command, with the option name of Kafka's tool."""

    topic_option: Annotated[
        list[str] | None,
        Option(
            "--topic-list",
            "--topic",
            "-t",
            metavar="TOPIC,...",
            help="Topics to show partition sizes for. May be given instead of TOPIC.",
        ),
    ] = None


@app.add("log-dirs", "sparklog log-dirs --topic-list orders,clicks --root /data/log")
def log_dirs(root: SourceOption, *, topics: TopicList) -> Output:
    """Show the size of each partition.

    APPEND is the size of the append files (in a Kafka directory, of the active segment), SEALED is the size of the
    sealed (closed) segments, and SLICES is the number of slices. The size of unreferenced files is printed below the
    table. The output of --json is the document of kafka-log-dirs with additional fields. The broker id is -1, because
    there are no brokers.
    """
    from sparklog.retention.vacuum import unreferenced

    source = open_source(root)
    names = source.refreshed(topics.names)
    sizes = [size for name in names for size in source.view.partition_sizes(name)]
    unused = None if source.root is None else [unreferenced(source.root.topic(name)) for name in names]
    files, nbytes = map(sum, zip((0, 0), *(unused or ()), strict=True))

    def show() -> None:
        _show(sizes)
        if files:
            print(f"In addition, `sparklog retain` will delete {nbytes} bytes in {count(files, 'unreferenced file')}.")

    more = {} if unused is None else {"unreferencedFiles": files, "unreferencedBytes": nbytes}
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


@dataclass(frozen=True)
class Version:
    """A row for a commit. `records` and `nbytes` are the numbers of records and bytes that the commit added, or None if
    it only rewrote existing records.
    """

    version: int
    timestamp: str
    operation: str
    records: int | None
    nbytes: int | None
    writer: str | None
    changes: dict[str, str | None]

    @classmethod
    def of(cls, commit: Commit) -> Version:
        from sparklog.log.state.commit import COMPACT, MERGE, SEAL

        counts: tuple[int | None, int | None] = None, None
        if commit.op not in (MERGE, SEAL, COMPACT):
            counts = sum(sum(file.records) for file in commit.files), sum(sum(file.nbytes) for file in commit.files)
        return cls(
            commit.version, iso_time(commit.created_ms), commit.op, *counts, writer_of(commit), _changes_of(commit)
        )

    def cells(self) -> tuple[object, ...]:
        nbytes = None if self.nbytes is None else size_text(self.nbytes)
        texts = [f"{name} deleted" if value is None else f"{name}={value}" for name, value in self.changes.items()]
        return self.version, self.timestamp, self.operation, self.records, nbytes, self.writer, ", ".join(texts) or None


def _changes_of(commit: Commit) -> dict[str, str | None]:
    """Return the configs, partitions and log start offsets that a commit sets. A deleted config is None."""
    changes: dict[str, str | None] = dict(sorted(commit.configs.items()))
    if commit.partitions is not None:
        changes["partitions"] = str(commit.partitions)
    return changes | {f"log start of partition {part}": str(at) for part, at in sorted(commit.log_starts.items())}


def writer_of(commit: Commit) -> str | None:
    """Describe the writer of a commit: its query and batch, its txnAppId and txnVersion, or its transaction."""
    from sparklog.log.state.writer_runs import TXN

    if commit.writer is not None:
        batch = ("txnAppId", "txnVersion") if commit.writer.kind == TXN else ("query", "batch")
        return f"{batch[0]} {commit.writer.id}, {batch[1]} {commit.writer.batch}"
    return None if commit.txn is None else f"transaction {commit.txn.id} #{commit.txn.n}"


@app.add("history", "sparklog history orders --limit 10 --root /data/log")
def history(
    topic: Annotated[
        str, Argument(metavar="TOPIC", help="Topic whose commits to show. The topic may have been deleted.")
    ],
    root: RootOption,
    limit: Annotated[int, integer_option(low=1, text="Maximum number of commits to show.")] = 100,
) -> Output:
    """Show the commits of a topic, latest commit first.

    Shows the version, time, operation, added records and bytes, writer, and changed configs and partitions of each
    commit. You can use a version with the option `--as-of` of clone, export and restore, and with the versionAsOf of a
    scan. Commits are retained for at least seven days. The output of --json includes the oldest version.
    """
    from sparklog.log.journal.names import check_topic_name
    from sparklog.log.state.history import History

    opened = open_root(root)
    if opened.engine.log(check_topic_name(topic)).refresh().topic_state.version < 0:
        # The topic never existed. Raise an error that suggests similar names.
        opened.topic(topic)
    log = History(opened.store, topic)
    stored = log.commits.version.tolist()
    # A stalled writer may have left versions below a gap.
    pairs = zip(stored[-2::-1], stored[:0:-1], strict=True)
    oldest = next((after for before, after in pairs if after != before + 1), stored[0])
    latest = stored[-1]
    versions = range(latest, max(oldest, latest + 1 - limit) - 1, -1)
    rows = [Version.of(log.commit(version)) for version in versions]

    def show() -> None:
        headings = ("VERSION", "TIME", "OPERATION", "RECORDS", "BYTES", "WRITER", "CHANGES")
        print_table(headings, [row.cells() for row in rows], right=("VERSION", "RECORDS", "BYTES"))
        if versions[-1] > oldest:
            print(f"{versions[-1] - oldest:,} older commits are not shown; increase --limit to show more")
        if oldest > 0:
            print(f"commits before version {oldest} are no longer retained")

    return Output({"topic": topic, "oldestVersion": oldest, "commits": rows}, show)


CHUNK_LINES = 512


@dataclass
class Files:
    paths: Annotated[
        list[str] | None,
        Argument(metavar="[PATH]...", help="Files to dump, or directories that contain the files to dump."),
    ] = None
    files: Annotated[
        str | None, Option(metavar="A,B", help="Comma-separated list of files or directories to dump.")
    ] = None
    root: Annotated[
        str | None, Option("-r", metavar="PATH", help="Root that contains the topics or objects given by PATH.")
    ] = None

    def names(self) -> list[str]:
        names = [*(self.paths or []), *(part for part in (self.files or "").split(",") if part)]
        if not names:
            raise BadParameter("expected files: specify PATH or --files")
        return names


@dataclass
class DumpSelection:
    deep_iteration: Annotated[bool, Option(help="Also print a line for each record.")] = False
    print_data_log: Annotated[
        bool, Option(help="Print the records with their keys and values. The decoder options imply this option.")
    ] = False
    verify_index_only: Annotated[bool, Option(help="Print only index mismatches.")] = False
    index_sanity_check: Annotated[
        bool,
        Option(
            excludes="--verify-index-only",
            help="Only perform the index sanity check that a broker performs at startup.",
        ),
    ] = False
    max_message_size: Annotated[
        int, integer_option(text="Maximum number of bytes to read at the position of an index entry.")
    ] = 5 * 1024 * 1024
    max_bytes: Annotated[
        int, integer_option(text="Maximum number of bytes to read from each segment.", default="all")
    ] = INT32_MAX


PLAIN = "--key-decoder-class --value-decoder-class"


@dataclass
class DecoderOptions:
    key_decoder: Annotated[
        str | None,
        Option(
            "--key-decoder-class",
            "--key-decoder",
            metavar="NAME",
            help="Decoder for keys. One of string, int, long, bytes-hex, bytes-base64 and json, or a Kafka"
            " decoder class.",
        ),
    ] = None
    value_decoder: Annotated[
        str | None,
        Option(
            "--value-decoder-class",
            "--value-decoder",
            metavar="NAME",
            help="Decoder for values. Accepts the same names as --key-decoder-class.",
        ),
    ] = None
    offsets_decoder: Annotated[bool, Option(excludes=PLAIN, help="Decode the records of __consumer_offsets.")] = False
    transaction_log_decoder: Annotated[
        bool, Option(excludes=f"{PLAIN} --offsets-decoder", help="Decode the records of __transaction_state.")
    ] = False
    share_group_state_decoder: Annotated[
        bool,
        Option(
            excludes=f"{PLAIN} --offsets-decoder --transaction-log-decoder",
            help="Decode the records of __share_group_state.",
        ),
    ] = False
    metadata_decoder: Annotated[
        bool, Option("--cluster-metadata-decoder", "--remote-log-metadata-decoder", hidden=True)
    ] = False

    def __post_init__(self) -> None:
        if self.metadata_decoder:
            raise BadRequest("this tool does not decode cluster metadata or remote log metadata: use kafka-dump-log")
        logs = {
            "groups": self.offsets_decoder,
            "transactions": self.transaction_log_decoder,
            "shares": self.share_group_state_decoder,
        }
        self.log = next((log for log, is_chosen in logs.items() if is_chosen), None)
        self.any = bool(self.log or self.key_decoder or self.value_decoder)

    def decoders(self) -> Decoders:
        from sparklog.tools.inspection import dump_decoders

        if self.log is not None:
            return dump_decoders.coordinator(self.log)
        return dump_decoders.plain(self.key_decoder or "string", self.value_decoder or "string")


@app.add(
    "dump-log",
    "sparklog dump-log /data/kafka-logs/orders-0 --print-data-log",
    "sparklog dump-log --files 00000000000000000000.log --deep-iteration",
)
def dump_log(
    *,
    named: Files,
    selection: DumpSelection,
    decoding: DecoderOptions,
    skip_record_metadata: Annotated[bool, Option(help="Print only the keys and values of records.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the contents of files, as kafka-dump-log does.

    Reads segments (.log), indexes (.index, .timeindex, .txnindex), producer snapshots (.snapshot), and the commits,
    decisions and entries (.json), checkpoints (.arrow) and append files (.slices) of sparklog. If PATH is a directory,
    such as a partition, a topic or a Kafka log directory, all files of the directory are read. By default, one line per
    batch or entry is printed. Mismatches between an index and its segment are printed to stderr after all files.
    """
    from sparklog.tools.inspection.dump import DumpOptions, dump
    from sparklog.tools.inspection.dump_batches import LogOptions
    from sparklog.tools.inspection.dump_index import IndexOptions
    from sparklog.tools.inspection.dump_source import find

    paths = named.names()
    contents = selection.print_data_log or decoding.any
    deep = selection.deep_iteration or contents
    log = LogOptions(deep, contents, not skip_record_metadata, selection.max_bytes, decoding.decoders(), as_json)
    index = IndexOptions(selection.index_sanity_check, selection.verify_index_only, selection.max_message_size)
    _print(dump(find(paths, named.root), DumpOptions(log, index)))


def _print(lines: Iterable[Line]) -> None:
    """Write lines as UTF-8, regardless of the encoding of the terminal, and in order with lines on stderr."""
    chunk = list[str]()

    def flush() -> None:
        if chunk:
            write("".join(chunk).encode("utf-8", "replace"))
            chunk.clear()

    try:
        for line in lines:
            if line.error:
                flush()
                print(printable(line.text), file=sys.stderr)
                continue
            chunk.append(line.text + "\n")
            if len(chunk) >= CHUNK_LINES:
                flush()
    finally:
        flush()
