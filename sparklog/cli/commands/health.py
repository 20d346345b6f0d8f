"""`sparklog verify` and `doctor`: damage of data, and troubles of a machine, a Spark or a root."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Exit, Option, Typer

from sparklog.cli.options import (
    JsonOption,
    QuickOption,
    SourceOption,
    TopicsOption,
    comma_separated,
    example,
    root_option,
)
from sparklog.cli.terminal import print_json, printable
from sparklog.errors import BadRequest, NotFound

app = Typer()


@app.command("verify", epilog=example("sparklog verify --root /data/log --topic orders"))
def verify(
    root: SourceOption, topic: TopicsOption = None, quick: QuickOption = False, as_json: JsonOption = False
) -> None:
    """Read everything of a root, or of a Kafka log directory, and name every byte that is not what was written.

    Commits, checkpoints, the logs of transactions and groups, every file that a version may still need; nothing is
    written, and writers and maintenance may go on meanwhile. Unreferenced files are listed apart: they are no
    damage. Exit code 0: every byte accounted for; 1: something is damaged.
    """
    from sparklog.kafka.in_place.location import (
        KAFKA_DIRECTORY,
        KAFKA_PARTITION,
        NOTHING,
        TOPIC,
        exists,
        missing,
        resolve,
    )
    from sparklog.storage import open_store
    from sparklog.tools.verification.findings import document, summary

    location = resolve(root)
    topics = comma_separated(topic)
    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        from sparklog.tools.verification.kafka_directory import verify_log_dir

        if quick:
            raise BadRequest("--quick is for sparklog roots: a Kafka directory has no log of its files; leave it out")
        report = verify_log_dir(location.path, topics=topics, say=_say)
    elif location.kind == NOTHING and not exists(location):
        raise NotFound(missing(location))
    else:
        from sparklog.tools.verification.run import verify_root

        if location.kind == TOPIC and location.topic is not None:
            if any(name != location.topic for name in topics):
                raise BadRequest(f"the folder is topic {location.topic}'s: give its root to verify others")
            topics = (location.topic,)
        report = verify_root(open_store(location.root), topics=topics, quick=quick, say=_say)
    if as_json:
        print_json(document(report))
    else:
        print(*map(printable, summary(report).split("\n")), sep="\n")
    if not report.sound:
        raise Exit(1)


def _say(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line[:100]:<100}\r", end="", file=sys.stderr, flush=True)


@app.command("doctor", epilog=example("sparklog doctor --root /data/log"))
def doctor(
    root: Annotated[str | None, root_option("Also this root.")] = None,
    conf_file: Annotated[
        str | None, Option(metavar="FILE", help="Read this instead of Spark's own spark-defaults.conf.")
    ] = None,
    spark: Annotated[bool, Option("--spark", help="Start a local Spark session and ask it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check Python, Java, packages, Spark's settings and, with --root, the store and the state of a root.

    Each line is ok, warn or fail, what was found and, below it, the command or setting that puts it right. Runs
    without pyspark, without Java and without a root. Exit code 1 only if something fails. --root writes a few small
    objects below _probe to see whether the store keeps its promises, and removes them.
    """
    from sparklog.tools.doctor.examine import examine, failed

    findings = examine(root, conf_file=conf_file, start_spark=spark)
    if as_json:
        print_json(findings)
    else:
        width = max(len(each.check) for each in findings)
        for each in findings:
            print(f"{each.status:4}  {each.check:{width}}  {each.found}")
            if each.fix:
                print(f"{'':{width + 6}}  fix: {each.fix}")
    if failed(findings):
        raise Exit(1)
