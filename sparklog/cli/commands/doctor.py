"""`sparklog doctor`: what is wrong here, and the command that puts it right."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.options import JsonOption, example
from sparklog.cli.terminal import print_json

HELP = """Check Python, Java, packages, Spark's settings and, with --root, the store and the state of a root.

Each line is ok, warn or fail, what was found and, below it, the command or setting that puts it right. Runs without
pyspark, without Java and without a root. Exit code 1 only if something fails. --root writes a few small objects below
_probe to see whether the store keeps its promises, and removes them.
"""
EXAMPLES = example("sparklog doctor --root /data/log")


def doctor(
    root: Annotated[
        str | None,
        typer.Option(
            "--root", "-r", envvar="SPARKLOG_ROOT", metavar="PATH", help="Also this root.", show_default=False
        ),
    ] = None,
    conf_file: Annotated[
        str | None,
        typer.Option("--conf-file", metavar="FILE", help="Read this instead of Spark's own spark-defaults.conf."),
    ] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Start a local Spark session and ask it.")] = False,
    as_json: JsonOption = False,
) -> None:
    from sparklog.tools.doctor.examine import examine, failed

    found = examine(root, conf_file=conf_file, start_spark=spark)
    if as_json:
        print_json(found)
    else:
        width = max(len(each.check) for each in found)
        for each in found:
            print(f"{each.status:4}  {each.check:{width}}  {each.found}")
            if each.fix:
                print(f"{'':{width + 6}}  fix: {each.fix}")
    if failed(found):
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command(name="doctor", help=HELP, epilog=EXAMPLES)(doctor)
