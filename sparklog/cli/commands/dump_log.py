"""`sparklog dump-log`: files line by line, as `kafka-dump-log` prints them, and sparklog's files likewise."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from click import BadParameter

from sparklog.cli.options import whole_number
from sparklog.cli.parameters import Argument, Commands, JsonOption, Option
from sparklog.cli.terminal import printable
from sparklog.errors import BadRequest
from sparklog.output import write
from sparklog.parsing import INT32_MAX

if TYPE_CHECKING:
    from sparklog.tools.inspection.dump import Line
    from sparklog.tools.inspection.dump_decoders import Decoders

app = Commands()
CHUNK_LINES = 512


@dataclass
class Files:
    """The files to print."""

    paths: Annotated[list[str] | None, Argument(metavar="[PATH]...", help="Files or folders.")] = None
    files: Annotated[str | None, Option(metavar="A,B", help="The same, separated by commas.")] = None
    root: Annotated[str | None, Option("-r", metavar="PATH", help="Paths are topics or objects of this root.")] = None

    def names(self) -> list[str]:
        names = [*(self.paths or []), *(part for part in (self.files or "").split(",") if part)]
        if not names:
            raise BadParameter("which file? Name files or folders, or give --files")
        return names


@dataclass
class DumpExtent:
    """Parts of each file to print."""

    deep_iteration: Annotated[bool, Option(help="One line for each record, too.")] = False
    print_data_log: Annotated[bool, Option(help="And the records' keys and values; so does every decoder.")] = False
    verify_index_only: Annotated[bool, Option(help="Of indexes only what disagrees.")] = False
    index_sanity_check: Annotated[bool, Option(help="Of indexes only the check of a broker that starts.")] = False
    max_message_size: Annotated[int, whole_number(text="Bytes read where an index points to.")] = 5 * 1024 * 1024
    max_bytes: Annotated[int, whole_number(text="Bytes read of each segment.", default="all")] = INT32_MAX


@dataclass
class DecoderOptions:
    """The decoders of keys and values."""

    key_decoder: Annotated[
        str | None,
        Option(
            "--key-decoder-class",
            "--key-decoder",
            metavar="NAME",
            help="string, int, long, bytes-hex, bytes-base64, json, or one of Kafka's decoder classes.",
        ),
    ] = None
    value_decoder: Annotated[
        str | None, Option("--value-decoder-class", "--value-decoder", metavar="NAME", help="The same for values.")
    ] = None
    offsets_decoder: Annotated[bool, Option(help="Records of __consumer_offsets.")] = False
    transaction_log_decoder: Annotated[bool, Option(help="Records of __transaction_state.")] = False
    share_group_state_decoder: Annotated[bool, Option(help="Records of __share_group_state.")] = False
    metadata_decoder: Annotated[
        bool, Option("--cluster-metadata-decoder", "--remote-log-metadata-decoder", hidden=True)
    ] = False

    def __post_init__(self) -> None:
        if self.metadata_decoder:
            raise BadRequest(
                "records of cluster and remote log metadata are not decoded here: see them with kafka-dump-log"
            )
        logs = {
            "groups": self.offsets_decoder,
            "transactions": self.transaction_log_decoder,
            "shares": self.share_group_state_decoder,
        }
        self.log = next((log for log, wanted in logs.items() if wanted), None)
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
    extent: DumpExtent,
    decoding: DecoderOptions,
    skip_record_metadata: Annotated[bool, Option(help="Only keys and values.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the contents of files, as kafka-dump-log does.

    Segments (.log), indexes (.index, .timeindex, .txnindex), producer snapshots (.snapshot), and sparklog's commits,
    decisions and entries (.json), checkpoints (.arrow) and append files (.slices). A folder stands for all its files: a
    partition, a topic, a Kafka log directory. Without options one line per batch or entry. Differences between an index
    and its segment are printed on stderr after all files.
    """
    from sparklog.tools.inspection.dump import DumpOptions, dump
    from sparklog.tools.inspection.dump_batches import LogOptions
    from sparklog.tools.inspection.dump_index import IndexOptions
    from sparklog.tools.inspection.dump_source import find

    paths = named.names()
    contents = extent.print_data_log or decoding.any
    deep = extent.deep_iteration or contents
    log = LogOptions(deep, contents, not skip_record_metadata, extent.max_bytes, decoding.decoders(), as_json)
    index = IndexOptions(extent.index_sanity_check, extent.verify_index_only, extent.max_message_size)
    _print(dump(find(paths, named.root), DumpOptions(log, index)))


def _print(lines: Iterable[Line]) -> None:
    """Write lines as UTF-8, whatever the terminal's encoding; those for stderr in their place."""
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
