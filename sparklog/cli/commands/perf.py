"""The command `sparklog perf`, which runs Kafka's performance tools on a root, with the same options and output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

from click import BadParameter, get_current_context

from sparklog.common import parsing
from sparklog.common.settings import keyword_settings
from sparklog.console.locations import open_root
from sparklog.console.options import RootOption, comma_separated, integer_option
from sparklog.console.parameters import Argument, Commands, Option
from sparklog.console.terminal import NO_BROKER, Output, print_table, read_text, warn
from sparklog.errors import BadRequest

if TYPE_CHECKING:
    from sparklog.log.topic.root import Root
    from sparklog.tools.perf import ConsumeRun, ProduceRun, Throughput

app = Commands("perf", "Measure throughput, as Kafka's performance tools do.")

TopicOption = Annotated[
    str, Option("--topic", "-t", metavar="NAME", help="Topic to produce to or consume from.", show_default=False)
]
IntervalOption = Annotated[
    int,
    integer_option(
        "--reporting-interval", low=1, metavar="MS", text="Interval in milliseconds at which to print progress."
    ),
]
HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)
DETAILED_HEADER = HEADER.replace("start.time, end.time", "time, threadId")
INTERVALS = ("INTERVAL-MS", "RECORDS/S", "MB/S", "P50-MS", "P99-MS", "COMMITS", "RECORDS/COMMIT")


@dataclass
class PayloadOptions:
    """The record values to send, given by exactly one of the first three options."""

    record_size: Annotated[
        int | None,
        integer_option(low=1, text="Size of each record value in bytes. The values consist of random letters."),
    ] = None
    payload_file: Annotated[
        Path | None, Option(exists=True, dir_okay=False, help="File to read the record values from.")
    ] = None
    payload_monotonic: Annotated[bool, Option(help="Use monotonically increasing integers as record values.")] = False
    payload_delimiter: Annotated[
        str,
        Option(
            needs="--payload-file",
            may_be_blank=True,
            help="Delimiter of the values in --payload-file.",
            show_default="a new line",
        ),
    ] = "\n"

    def values(self) -> Callable[[], Iterator[bytes]]:
        from sparklog.tools.perf import ascending_payloads, payloads_of_file, random_payloads

        if (self.record_size is not None) + (self.payload_file is not None) + self.payload_monotonic != 1:
            raise BadParameter("specify one of --record-size, --payload-file and --payload-monotonic")
        if self.record_size is not None:
            size = self.record_size
            return lambda: random_payloads(size, Random())
        if self.payload_file is None:
            return ascending_payloads
        if not self.payload_delimiter:
            raise BadParameter("expected at least one character", param_hint="'--payload-delimiter'")
        text = read_text(self.payload_file, "--payload-file").removesuffix("\n")
        return lambda: payloads_of_file(text, self.payload_delimiter, Random())


@dataclass
class ProducerSettings:
    """The options of the producer, including transactions."""

    producer_props: Annotated[
        list[str] | None,
        Option(
            "--producer-props",
            "--producer-property",
            metavar="NAME=VALUE",
            help="Producer option to set. May be repeated.",
        ),
    ] = None
    more_props: Annotated[
        list[str] | None, Argument(metavar="[NAME=VALUE]...", help="Additional producer options to set.")
    ] = None
    transactional_id: Annotated[
        str | None, Option(help="Transactional id to use. If it is set, records are sent in transactions.")
    ] = None
    transaction_duration_ms: Annotated[
        int | None, integer_option(low=1, text="Duration of each transaction in milliseconds.", default="3000")
    ] = None

    def options(self, topic: str) -> dict[str, Any]:
        options = _properties([*(self.producer_props or ()), *(self.more_props or ())])
        if self.transaction_duration_ms is not None or self.transactional_id is not None:
            options.setdefault("transactional_id", self.transactional_id or f"performance-producer-{topic}")
        return options


@app.add("produce", "sparklog perf produce --topic bench --num-records 10000 --record-size 100 --root /data/log")
def produce(
    root: RootOption,
    *,
    topic: TopicOption,
    num_records: Annotated[int, integer_option(low=1, text="Number of records to send.")],
    payload: PayloadOptions,
    throughput: Annotated[float, Option(help="Maximum number of records to send per second (-1 for no limit).")] = -1.0,
    settings: ProducerSettings,
    commit_intervals: Annotated[
        str | None,
        Option(
            metavar="MS,MS,...",
            help="Comma-separated values of linger.ms. The command runs once for each value, and prints a table"
            " of the results.",
        ),
    ] = None,
    reporting_interval: IntervalOption = 1000,
) -> Output:
    """Send records, and print the throughput and latency.

    The latency is the time until a record is durable. If the topic does not exist, it is created with one partition.
    The records are not deleted, so use a separate topic.
    """
    from sparklog.tools.perf import ProduceRun

    options = settings.options(topic)
    values = payload.values()
    transaction_ms = (settings.transaction_duration_ms or 3_000) if "transactional_id" in options else None
    runs = [dict(options, linger_ms=_milliseconds(text)) for text in comma_separated([commit_intervals or ""])]
    opened = open_root(root)
    opened.ensure_topic(topic)
    rows: list[Interval] = []
    for chosen in runs or [options]:
        run = ProduceRun(topic, num_records, values(), throughput, transaction_ms)
        before = opened.topic(topic).log.state().version
        total = _run_produce(opened, run, chosen, reporting_interval)
        commits = opened.topic(topic).log.state().version - before
        speed, nbytes = total.records_per_second, total.mb_per_second
        times = total.percentile(0.5), total.percentile(0.99)
        rows.append(
            Interval(chosen.get("linger_ms", 0), speed, nbytes, *times, commits, total.records / max(commits, 1))
        )

    def show() -> None:
        if runs:
            print_table(INTERVALS, [row.cells() for row in rows], right=INTERVALS)

    return Output(rows, show)


@dataclass(frozen=True)
class Interval:
    """The results of a run with one commit interval. A MB is 2^20 bytes."""

    interval_ms: float
    records_per_second: float
    mb_per_second: float
    p50_ms: float
    p99_ms: float
    commits: int
    records_per_commit: float

    def cells(self) -> list[str]:
        forms = ("{:g}", "{:,.0f}", "{:.2f}", "{:.0f}", "{:.0f}", "{:,}", "{:,.0f}")
        return [form.format(value) for form, value in zip(forms, vars(self).values(), strict=True)]


def _print_line(line: str) -> None:
    """Print a line of Kafka's tool. The line goes to stderr if the output is JSON or CSV."""
    chosen = get_current_context().params
    is_text = chosen["output"] == "table" and not chosen["as_json"]
    print(line, file=sys.stdout if is_text else sys.stderr, flush=True)


def _run_produce(root: Root, run: ProduceRun, options: dict[str, Any], interval_ms: int) -> Throughput:
    import sparklog
    from sparklog.log.journal.clocks import SYSTEM
    from sparklog.tools.perf import produce

    with sparklog.producer(root, **options) as producer:
        total = produce(producer, run, SYSTEM, lambda window: _print_line(_window(window)), interval_ms)
    shares = {"50th": 0.5, "95th": 0.95, "99th": 0.99, "99.9th": 0.999}
    percentiles = ", ".join(f"{total.percentile(share):.0f} ms {name}" for name, share in shares.items())
    _print_line(
        f"{total.records} records sent, {total.records_per_second:.1f} records/sec ({total.mb_per_second:.2f} MB/sec), "
        f"{total.average:.2f} ms avg latency, {total.maximum:.2f} ms max latency, {percentiles}."
    )
    return total


def _window(window: Throughput) -> str:
    return (
        f"{window.records} records sent, {window.records_per_second:.1f} records/sec "
        f"({window.mb_per_second:.2f} MB/sec), {window.average:.1f} ms avg latency, "
        f"{window.maximum:.1f} ms max latency."
    )


def _properties(texts: Sequence[str]) -> dict[str, Any]:
    """Parse producer options. Raises a usage error for an invalid name or value."""
    from sparklog.clients.producer.options import ProducerOptions

    settings, options = keyword_settings(ProducerOptions), {}
    for text in texts:
        name, equals, value = text.partition("=")
        field = name.replace(".", "_").replace("-", "_")
        if field == "bootstrap_servers":
            raise BadParameter(f"{name}: {NO_BROKER}")
        if not equals or field not in settings:
            raise BadParameter(
                f"expected NAME=VALUE with one of the names {', '.join(sorted(settings))}, found {text!r}"
            )
        try:
            options[field] = settings[field].parse(value)
        except BadRequest as error:
            raise BadParameter(str(error)) from None
    return options


def _milliseconds(text: str) -> float:
    try:
        value = parsing.number(text)
        if value < 0:
            raise ValueError(text)
        return value
    except ValueError:
        raise BadParameter(
            f"expected milliseconds separated by commas, found {text!r}", param_hint="--commit-intervals"
        ) from None


@app.add("consume", "sparklog perf consume --topic bench --messages 10000 --root /data/log")
def consume(
    root: RootOption,
    *,
    topic: TopicOption,
    messages: Annotated[int, integer_option(low=1, text="Number of records to read.")],
    group: Annotated[str | None, Option("-g", help="Consumer group to join.", show_default="none")] = None,
    from_latest: Annotated[
        bool, Option(help="If the group has no committed offsets, start at the log end instead of the log start.")
    ] = False,
    show_detailed_stats: Annotated[bool, Option(help="Print statistics for each reporting interval.")] = False,
    hide_header: Annotated[bool, Option(help="Do not print the header line.")] = False,
    timeout: Annotated[
        int, integer_option(metavar="MS", text="Stop if no record arrives for this many milliseconds.")
    ] = 10_000,
    reporting_interval: IntervalOption = 5000,
) -> None:
    """Read records, and print the throughput. A MB is 2^20 bytes of keys and values."""
    import sparklog
    from sparklog.log.journal.clocks import SYSTEM
    from sparklog.tools.perf import consume

    opened = open_root(root)
    opened.topic(topic)
    total, window = [0, 0], reporting_interval if show_detailed_stats else float("inf")

    def report(interval: ConsumeRun) -> None:
        total[0], total[1] = total[0] + interval.records, total[1] + interval.nbytes
        print(f"{_time(interval.end_ms)}, 0, {_figures(interval, *total)}", flush=True)

    with sparklog.consumer(
        opened, group=group, auto_offset_reset="latest" if from_latest else "earliest", columns=("key", "value")
    ) as consumer:
        consumer.subscribe(topic)
        if not hide_header:
            print(DETAILED_HEADER if show_detailed_stats else HEADER)
        run = consume(consumer, messages, timeout, SYSTEM, report, window)
    if run.records < messages:
        warn(
            f"read {run.records} of {messages} records, and then no record arrived for {timeout} ms; increase "
            "--timeout to wait longer"
        )
    if not show_detailed_stats:
        print(f"{_time(run.begin_ms)}, {_time(run.end_ms)}, {_figures(run, run.records, run.nbytes)}")
    sys.stdout.flush()


def _figures(run: ConsumeRun, records: int, nbytes: int) -> str:
    """Return the numbers of a line: totals since the start, and rates of the interval."""
    fetch_ms = run.fetch_ms
    return (
        f"{nbytes / (1 << 20):.4f}, {run.per_second(run.megabytes, run.ms):.4f}, {records}, "
        f"{run.per_second(run.records, run.ms):.4f}, {run.join_ms:.0f}, {fetch_ms:.0f}, "
        f"{run.per_second(run.megabytes, fetch_ms):.4f}, {run.per_second(run.records, fetch_ms):.4f}"
    )


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S}:{ms % 1000:03d}"
