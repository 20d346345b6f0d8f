"""`sparklog delete-records`: what `kafka-delete-records` does, from its file or for one partition."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparklog.cli.options import JsonOption, RootOption, example
from sparklog.cli.terminal import print_json

HELP = """Delete the records below an offset: the log starts there then.

--offset-json-file takes Kafka's file, {"partitions": [{"topic": "t", "partition": 0, "offset": 42}], "version": 1}.
Offset -1 stands for the log end: all there are. All of it is checked before anything is changed. Readers see the new
log start at once; files go with a later run of jobs/retain.py.
"""
EXAMPLES = example("sparklog delete-records --topic orders --partition 0 --offset 42 --root /data/log")


def delete_records(
    root: RootOption,
    offset_json_file: Annotated[
        Path | None, typer.Option("--offset-json-file", metavar="FILE", help="Offsets of many partitions, see above.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="One topic instead of a file.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Its partition.")] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", min=-1, help="The first offset that stays; -1: none does.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, say where logs would start.")] = False,
    as_json: JsonOption = False,
) -> None:
    from sparklog.cli.places import open_root
    from sparklog.cli.terminal import read_text
    from sparklog.log.topic import delete_records as deleting

    short = (topic, partition, offset)
    if offset_json_file is not None and short == (None, None, None):
        text = read_text(offset_json_file, "--offset-json-file")
        offsets = deleting.parse_offset_file(text, str(offset_json_file))
    elif offset_json_file is None and topic is not None and partition is not None and offset is not None:
        offsets = {(topic, partition): offset}
    else:
        raise typer.BadParameter("give --offset-json-file, or all three of --topic, --partition and --offset")
    lows = deleting.delete_records(open_root(root), offsets, dry_run=dry_run)
    if as_json:
        print_json({"dryRun": dry_run, "partitions": lows})
        return
    print("Dry run, nothing is deleted:" if dry_run else "Records delete operation completed:")
    for low in lows:
        print(f"partition: {low.topic}-{low.partition}\tlow_watermark: {low.low_watermark}")


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="delete-records", help=HELP, epilog=EXAMPLES)(delete_records)
