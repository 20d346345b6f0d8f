"""`sparklog dump-log`: files line by line, as `kafka-dump-log` prints them, and sparklog's files likewise."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option, Typer

from sparklog.cli.options import JsonOption, example, whole_number
from sparklog.cli.terminal import printable
from sparklog.errors import BadRequest
from sparklog.output import write

if TYPE_CHECKING:
    from sparklog.tools.inspection.dump import Line
    from sparklog.tools.inspection.dump_decoders import Decoders

app = Typer()
CHUNK_LINES = 512


@app.command(
    "dump-log",
    epilog=example(
        "sparklog dump-log /data/kafka-logs/orders-0 --print-data-log",
        "sparklog dump-log --files 00000000000000000000.log --deep-iteration",
    ),
)
def dump_log(
    paths: Annotated[list[str] | None, Argument(metavar="[PATH]...", help="Files or folders.")] = None,
    files: Annotated[str | None, Option(metavar="A,B", help="The same, separated by commas.")] = None,
    root: Annotated[
        str | None, Option("--root", "-r", metavar="PATH", help="Paths are topics or objects of this root.")
    ] = None,
    deep_iteration: Annotated[bool, Option("--deep-iteration", help="One line for each record, too.")] = False,
    print_data_log: Annotated[
        bool, Option("--print-data-log", help="And the records' keys and values; so does every decoder.")
    ] = False,
    verify_index_only: Annotated[bool, Option("--verify-index-only", help="Of indexes only what disagrees.")] = False,
    index_sanity_check: Annotated[
        bool, Option("--index-sanity-check", help="Of indexes only the check of a broker that starts.")
    ] = False,
    max_message_size: Annotated[
        int, whole_number("--max-message-size", text="Bytes read where an index points to.")
    ] = 5 * 1024 * 1024,
    max_bytes: Annotated[int, whole_number("--max-bytes", text="Bytes read of each segment.", default="all")] = 2**31
    - 1,
    key_decoder: Annotated[
        str | None,
        Option(
            "--key-decoder-class",
            "--key-decoder",
            metavar="NAME",
            help="string, int, long, bytes-hex, bytes-base64, json, or one of Kafka's decoder classes.",
        ),
    ] = None,
    value_decoder: Annotated[
        str | None, Option("--value-decoder-class", "--value-decoder", metavar="NAME", help="The same for values.")
    ] = None,
    offsets_decoder: Annotated[bool, Option("--offsets-decoder", help="Records of __consumer_offsets.")] = False,
    transaction_log_decoder: Annotated[
        bool, Option("--transaction-log-decoder", help="Records of __transaction_state.")
    ] = False,
    share_group_state_decoder: Annotated[
        bool, Option("--share-group-state-decoder", help="Records of __share_group_state.")
    ] = False,
    metadata_decoder: Annotated[
        bool, Option("--cluster-metadata-decoder", "--remote-log-metadata-decoder", hidden=True)
    ] = False,
    skip_record_metadata: Annotated[bool, Option("--skip-record-metadata", help="Only keys and values.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the contents of files, as kafka-dump-log does.

    Segments (.log), indexes (.index, .timeindex, .txnindex), producer snapshots (.snapshot), and sparklog's commits,
    decisions and entries (.json), checkpoints (.arrow) and append files (.slices). A folder stands for all its files: a
    partition, a topic, a Kafka log directory. Without options one line per batch or entry. Differences between an index
    and its segment are printed on stderr behind all files.
    """
    from sparklog.tools.inspection.dump import DumpOptions, dump
    from sparklog.tools.inspection.dump_batches import LogOptions
    from sparklog.tools.inspection.dump_index import IndexOptions
    from sparklog.tools.inspection.dump_source import find

    if metadata_decoder:
        raise BadRequest(
            "records of cluster and remote log metadata are not decoded here: see them with kafka-dump-log"
        )
    named = [*(paths or []), *(part for part in (files or "").split(",") if part)]
    if not named:
        raise BadParameter("which file? Name files or folders, or give --files")
    given = (offsets_decoder, transaction_log_decoder, share_group_state_decoder, key_decoder, value_decoder)
    contents = print_data_log or any(given)
    log = LogOptions(
        deep_iteration or contents, contents, not skip_record_metadata, max_bytes, _decoders(*given), as_json
    )
    index = IndexOptions(index_sanity_check, verify_index_only, max_message_size)
    _print(dump(find(named, root), DumpOptions(log, index)))


def _decoders(offsets: bool, transactions: bool, shares: bool, key: str | None, value: str | None) -> Decoders:
    from sparklog.tools.inspection import dump_decoders as decoders

    if offsets:
        return decoders.coordinator("groups")
    if transactions:
        return decoders.coordinator("transactions")
    if shares:
        return decoders.coordinator("shares")
    return decoders.plain(key or "string", value or "string")


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
