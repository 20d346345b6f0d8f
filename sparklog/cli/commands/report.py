"""`sparklog report` and `metrics`: figures of a whole root as a page, as JSON and for Prometheus."""

from __future__ import annotations

from typing import Annotated

from typer import BadParameter, Option, Typer

from sparklog import __version__
from sparklog.cli.options import PropertiesOption, SourceOption, TopicsOption, comma_separated, example
from sparklog.cli.source import open_source, report_settings
from sparklog.cli.terminal import print_json, write

app = Typer()


@app.command("report", epilog=example("sparklog report --root /data/log --html report.html"))
def report(
    root: SourceOption,
    html: Annotated[str | None, Option(metavar="FILE", help="Write the page here.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the facts as JSON, for scripts.")] = False,
    topic: TopicsOption = None,
    properties: PropertiesOption = None,
    now: Annotated[
        str | None,
        Option(metavar="TIME", help="As of this time instead of now: milliseconds or 2026-01-31T12:00:00 (UTC)."),
    ] = None,
) -> None:
    """Write one page about all topics: sizes, offsets, partition skew, commit rates, open transactions, consumer
    groups, what the next maintenance run would do, and what needs attention.

    The page is one HTML file that needs no network. Nothing is changed. A Kafka log directory is reported on in
    place, with what its files tell.
    """
    from sparklog.tools.report.gather import gather

    if html is None and not as_json:
        raise BadParameter("say what to make: --html FILE, or --json", param_hint="'--html'")
    source = open_source(root)
    chosen = source.narrowed(comma_separated(topic))
    settings = report_settings(source, properties, now)
    facts = gather(source.view, settings, topics=chosen, made_by=f"sparklog {__version__}")
    if html is not None:
        from sparklog.tools.report.metrics import write_whole
        from sparklog.tools.report.page import as_html

        write_whole(html, as_html(facts), "--html")
        if not as_json:
            print(f"Wrote {html}.")
    if as_json:
        print_json(facts)


@app.command(
    "metrics", epilog=example("sparklog metrics --root /data/log --output /var/lib/node_exporter/sparklog.prom")
)
def metrics(
    root: SourceOption,
    output: Annotated[
        str | None, Option("--output", "-o", metavar="FILE", help="Write here; otherwise it is printed.")
    ] = None,
    topic: TopicsOption = None,
) -> None:
    """Print lag of consumer groups, offsets, sizes and open transactions in Prometheus' text format.

    With --output the file is replaced as a whole: point it into the folder of the node exporter's textfile
    collector and run this from cron. A Kafka log directory is measured in place.
    """
    from sparklog.tools.report.gather import gather
    from sparklog.tools.report.metrics import exposition, write_whole

    source = open_source(root)
    chosen = source.narrowed(comma_separated(topic))
    text = exposition(gather(source.view, report_settings(source), topics=chosen, maintenance=False))
    if output is None:
        write(text.encode())
    else:
        write_whole(output, text, "--output")
