"""The commands that find and fix problems or print metrics: `verify`, `repair`, `doctor`, `jobs`, `report` and
`metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from click import BadParameter

from sparklog.common.times import iso_time
from sparklog.common.units import ago, duration, number_text, size_text
from sparklog.console import options as opt
from sparklog.console.locations import OpenLocation, open_source
from sparklog.console.parameters import Argument, Commands, Option
from sparklog.console.terminal import EXIT_ERROR, EXIT_OK, Output, print_json, print_lines, print_table, printable, warn
from sparklog.errors import BadRequest, NotFound
from sparklog.output import STANDARD_OUTPUT, StatusLine, write_output
from sparklog.version import __version__

if TYPE_CHECKING:
    from sparklog.maintenance.job_history import JobRun
    from sparklog.maintenance.overdue import JobState
    from sparklog.maintenance.table_runs import TableRun
    from sparklog.maintenance.work_items import Settings
    from sparklog.tools.report.job_states import Running

app = Commands()


@app.add("verify", "sparklog verify --root /data/log --topic orders")
def verify(
    root: opt.SourceOption,
    topic: opt.TopicsOption = None,
    quick: opt.QuickOption = False,
    quiet: opt.QuietOption = False,
) -> Output:
    """Verify every byte of a root or a Kafka log directory.

    Reads commits, checkpoints, the journals of transactions and groups, and all files that any retained version needs.
    The command does not write anything, and writers and maintenance can continue to run. Unreferenced files are listed
    separately, because they are not damage. The exit code is 0 if no byte is damaged, and 1 otherwise.
    """
    from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, NOTHING, exists, missing, resolve, topics_at
    from sparklog.storage import open_store
    from sparklog.tools.verification.findings import document, summary

    location = resolve(root)
    topics = opt.topic_names(topic)
    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        from sparklog.tools.verification.kafka_directory import verify_log_dir

        if quick:
            raise BadRequest(
                "--quick works only for sparklog roots, because Kafka directories have no commits: omit --quick"
            )
        with StatusLine("verify", quiet=quiet) as status:
            report = verify_log_dir(location.path, topics=topics, say=status)
    elif location.kind == NOTHING and not exists(location):
        raise NotFound(missing(location))
    else:
        from sparklog.tools.verification.run import verify_root

        topics = topics_at(location, topics)
        with StatusLine("verify", quiet=quiet) as status:
            report = verify_root(open_store(location.root), topics=topics, quick=quick, say=status)
    lines = map(printable, summary(report).split("\n"))
    return Output.from_lines(document(report), *lines, code=EXIT_OK if report.sound else EXIT_ERROR)


@app.add("repair", "sparklog repair /data/log", "sparklog repair /data/log --execute")
def repair_log(
    *,
    location: Annotated[
        str | None,
        Argument(metavar="[LOCATION]", excludes="--root", help="Location to repair. May be given instead of --root."),
    ] = None,
    root: Annotated[
        str | None,
        opt.root_option("Location to repair: a root, topic directory, Kafka log directory or partition directory."),
    ] = None,
    topic: opt.TopicsOption = None,
    execute: opt.ExecuteOption = False,
    dry_run: opt.DryRunOption = False,
    index_interval_bytes: Annotated[
        int | None,
        opt.integer_option(
            text="Value of index.interval.bytes of the Kafka topics. Required only if the value is not Kafka's default."
        ),
    ] = None,
    quiet: opt.QuietOption = False,
) -> Output:
    """Rebuild damaged files, and list files to restore.

    Index files, key filters, footers and checkpoints are rebuilt from the data that they describe. Entries of groups
    and transactions are restored from their copies. Single-bit errors are corrected. The old bytes, and
    unreferenced files, are moved to the directory _repair. In a Kafka directory, whose broker must be stopped, only
    index files are rebuilt. Nothing is changed unless --execute is given. The exit code is 0 if no damage remains (or
    would remain), and 1 otherwise. Remaining damage is listed in the output.
    """
    from sparklog.tools.repair.fixes import document, summary
    from sparklog.tools.repair.run import repair

    target = opt.required(root if location is None else location, None, "LOCATION --root")
    with StatusLine("repair", quiet=quiet) as status:
        report = repair(
            target,
            topics=opt.topic_names(topic),
            execute=execute,
            index_interval_bytes=index_interval_bytes,
            say=status,
        )
    lines = map(printable, summary(report).split("\n"))
    return Output.from_lines(document(report), *lines, code=EXIT_OK if report.sound else EXIT_ERROR)


@dataclass
class WorkloadOptions:
    """The workload whose cost is computed. The options are the fields of `Workload`."""

    rate: Annotated[float, Option(metavar="MB/S", needs="--cost", help="With --cost: MB stored per second.")] = 10.0
    interval: Annotated[
        float, Option(metavar="SECONDS", needs="--cost", help="With --cost: seconds between micro-batches.")
    ] = 10.0
    partitions: Annotated[int, Option(needs="--cost", help="With --cost: number of partitions of the topic.")] = 16
    tasks: Annotated[int, Option(needs="--cost", help="With --cost: number of tasks per micro-batch.")] = 2
    readers: Annotated[int, Option(needs="--cost", help="With --cost: number of readers that follow the topic.")] = 3
    poll: Annotated[
        float | None,
        Option(metavar="MS", needs="--cost", help="With --cost: poll interval of a reader in milliseconds."),
    ] = None
    retention: Annotated[
        float,
        Option(metavar="DAYS", needs="--cost", help="With --cost: number of days for which records are retained."),
    ] = 7.0
    jobs: Annotated[
        float,
        Option(metavar="HOURS", needs="--cost", help="With --cost: hours between runs of compact and retain."),
    ] = 1.0


@app.add("doctor", "sparklog doctor --root /data/log")
def doctor(
    *,
    root: Annotated[str | None, opt.root_option("Also check this root and the store of the root.")] = None,
    conf_file: Annotated[
        str | None,
        Option(metavar="FILE", help="Spark properties file to read. By default, spark-defaults.conf is read."),
    ] = None,
    spark: Annotated[bool, Option(help="Also start and check a local Spark session.")] = False,
    store: Annotated[
        str | None,
        Option(
            metavar="LOCATION",
            excludes="--root --conf-file --spark",
            why="--store tests only the store",
            help="Only check whether this path or bucket is suitable as the location of a root.",
        ),
    ] = None,
    max_age: Annotated[
        str | None,
        Option(
            metavar="AGE",
            needs="--root",
            excludes="--store",
            why="--max-age checks the jobs of a root",
            help="Fail if the last successful run of a job on a topic is older than this, for example 3h.",
        ),
    ] = None,
    cost: Annotated[
        bool,
        Option(
            excludes="--root --conf-file --spark --store --max-age",
            why="--cost only computes costs",
            help="Only print the monthly cost of a topic in a bucket. The other options describe the workload.",
        ),
    ] = False,
    workload: WorkloadOptions,
) -> Output:
    """Check Python, Java, Spark, a store and a root.

    If --root is given, the root and its store are also checked. Each line starts with ok, warn or fail, and is followed
    by the command or setting that fixes the problem. The command works without PySpark, Java and a root. The exit code
    is 1 only if a check fails. The options --root and --store write a few objects below _probe to test the guarantees
    of the store, and delete them. The option --store reports each guarantee for any path or URL. Use --max-age for
    monitoring. If --max-age is not given, an overdue job is only a warning.
    """
    if cost:
        from sparklog.doctor.costs import Workload, document, lines

        work = Workload(*vars(workload).values())
        return Output.from_lines(document(work), *lines(work))
    from sparklog.doctor.examine import examine, examine_store, failed

    max_age_ms = None if max_age is None else opt.parse_age(max_age, "--max-age")
    if store is not None:
        findings = examine_store(store)
    else:
        findings = examine(root, conf_file=conf_file, start_spark=spark, max_age_ms=max_age_ms)
    width = max(len(finding.check) for finding in findings)
    rows = []
    for finding in findings:
        rows.append(f"{finding.status:4}  {finding.check:{width}}  {finding.found}")
        if finding.fix:
            rows.append(f"{'':{width + 6}}  fix: {finding.fix}")
    return Output.from_lines(findings, *rows, code=EXIT_ERROR if failed(findings) else EXIT_OK)


JOB_STATES = ("TOPIC", "JOB", "STATE", "LAST-SUCCESS", "SECONDS", "EVERY", "OVERDUE", "WHY")
JOB_RUNS = (
    *("BEGAN", "JOB", "HOST", "TOPICS", "SECONDS", "RECORDS-IN", "RECORDS-OUT", "BYTES-IN", "BYTES-OUT", "DELETED"),
    "FAILED",
)


TABLE_STATES = ("TOPIC", "JOB", "TABLE", "STATE", "LAST-SUCCESS", "SECONDS", "RECORDS", "WHY")
TABLE_RUNS = ("BEGAN", "JOB", "HOST", "TOPIC", "TABLE", "SECONDS", "RECORDS", "BAD-RECORDS", "COMMITS", "STATE", "WHY")


@app.add("jobs", "sparklog jobs --root /data/log")
def jobs(
    root: opt.RootOption,
    topic: opt.TopicsOption = None,
    properties: opt.PropertiesOption = None,
    runs: Annotated[bool, Option(help="Show the latest runs of the jobs instead of the state of each topic.")] = False,
) -> Output:
    """Show the last runs of jobs, and overdue maintenance jobs.

    For each topic and maintenance job, shows when the job last succeeded and how long it took. Whether a job is overdue
    depends on the schedule of the job and the configs of the topic. See docs/guides/scheduled-jobs.md for the rules.
    Runs in progress are listed below the table. A second table shows the last run of `to-iceberg` and `to-delta` for
    each topic and table. For monitoring, use `sparklog doctor --max-age`, which sets an exit code.
    """
    from sparklog.maintenance.table_runs import read_table_runs
    from sparklog.tools.report.job_states import has_jobs, read_job_status

    source = open_source(root)
    settings = _report_settings(source, properties)
    if source.root is None or not has_jobs(source.root):
        raise BadRequest(
            f"{source.view.location} is a Kafka directory or a backup, which has no sparklog jobs: specify a root"
        )
    status = read_job_status(source.root, settings, source.narrowed(opt.topic_names(topic)))
    states, running, latest_first = status.states(), status.running(), status.history.runs[::-1]
    recorded = read_table_runs(source.root, sorted(status.backlogs), status.failures)

    def table_status(topic: str, run: TableRun) -> TableStatus:
        return TableStatus(topic, run.state_at(settings.now_ms), run)

    tables = [table_status(name, run) for name in recorded for run in recorded[name].latest()]
    table_runs = [table_status(name, run) for name in recorded for run in recorded[name].runs[::-1]]

    def show() -> None:
        if runs:
            print_table(JOB_RUNS, [_run_cells(run) for run in latest_first], right=JOB_RUNS[4:])
        else:
            print_table(JOB_STATES, [_state_cells(state, settings.now_ms) for state in states], right=JOB_STATES[3:7])
        print_lines(_running_line(run, settings.now_ms) for run in running)
        if recorded:
            print_lines([""])
        if recorded and runs:
            print_table(TABLE_RUNS, [_table_run_cells(run) for run in table_runs], right=TABLE_RUNS[5:9])
        elif recorded:
            print_table(
                TABLE_STATES, [_table_cells(table, settings.now_ms) for table in tables], right=TABLE_STATES[4:7]
            )

    document = {
        "topics": states,
        "running": running,
        "runs": latest_first,
        "tables": tables,
        "tableRuns": table_runs,
    }
    return Output(document, show, status.failures, rows=document["runs" if runs else "topics"])


def _state_cells(state: JobState, now_ms: int) -> tuple[str | None, ...]:
    return (
        state.topic,
        state.job,
        state.state,
        "never" if state.last_success_ms is None or state.state == "new" else ago(state.last_success_ms, now_ms),
        None if state.seconds is None else f"{state.seconds:.1f}",
        None if state.interval_ms is None else duration(state.interval_ms),
        duration(state.overdue_ms) if state.overdue_ms else None,
        state.failure or state.why or ("newer than the last run" if state.state == "new" else None),
    )


def _run_cells(run: JobRun) -> tuple[str | None, ...]:
    amounts = run.amounts
    return (
        iso_time(run.start_ms),
        run.job,
        run.host,
        ",".join(run.topics) or "all",
        f"{run.took_ms / 1000:.1f}",
        number_text(amounts.records_in),
        number_text(amounts.records_out),
        size_text(amounts.bytes_in),
        size_text(amounts.bytes_out),
        size_text(amounts.bytes_deleted),
        run.failure or (f"{run.failed_topics:,} topics" if run.failed_topics else None),
    )


@dataclass(frozen=True)
class TableStatus:
    """A recorded run of `to-iceberg` or `to-delta`, and its state at a time."""

    topic: str
    state: str
    run: TableRun

    def why(self) -> str | None:
        """Return the reason for the state."""
        if self.state == "killed":
            return f"process {self.run.process} on {self.run.host} ended without a run record"
        return self.run.failure or None


def _table_cells(table: TableStatus, now_ms: int) -> tuple[str | None, ...]:
    run = table.run
    return (
        table.topic,
        run.job,
        run.table,
        table.state,
        "never" if run.succeeded_ms < 0 else ago(run.succeeded_ms, now_ms),
        f"{run.took_ms / 1000:.1f}",
        number_text(run.copied.records),
        table.why(),
    )


def _table_run_cells(table: TableStatus) -> tuple[str | None, ...]:
    run, copied = table.run, table.run.copied
    return (
        iso_time(run.start_ms),
        run.job,
        run.host,
        table.topic,
        run.table,
        f"{run.took_ms / 1000:.1f}",
        *map(number_text, (copied.records, copied.bad_records, copied.commits)),
        table.state,
        table.why(),
    )


def _running_line(run: Running, now_ms: int) -> str:
    topics = ", ".join(run.topics) or "all topics"
    how = "is working on" if run.alive else "ended without a run record; it had claimed"
    return (
        f"{run.job}: the run on {run.host} (process {run.process}), started {ago(run.since_ms, now_ms)}, {how} {topics}"
    )


@app.add("report", "sparklog report --root /data/log --html report.html")
def report(
    root: opt.SourceOption,
    html: Annotated[
        str | None, Option(metavar="FILE", help="File to write the page to (- for standard output).")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the data of the report as JSON.")] = False,
    topic: opt.TopicsOption = None,
    properties: opt.PropertiesOption = None,
    now: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Time to use as the current time, in milliseconds or ISO 8601 (UTC if no time zone is given).",
            show_default="now",
        ),
    ] = None,
    quiet: opt.QuietOption = False,
) -> None:
    """Write an HTML report about a root.

    The page shows sizes, offsets, partition skew, commit rates, open transactions, consumer groups, the work of the
    next maintenance run, and problems. The page is a single file without external resources. The root is not changed.
    For a Kafka log directory, the report shows the information that the files of the directory contain.
    """
    from sparklog.tools.report.gather import gather

    if html is None and not as_json:
        raise BadParameter("expected an output: specify --html FILE or --json", param_hint="'--html'")
    if html == STANDARD_OUTPUT and as_json:
        raise BadParameter(
            "--html - and --json both print to standard output: specify a file, or only one of the options"
        )
    source = open_source(root)
    topics = source.narrowed(opt.topic_names(topic))
    settings = _report_settings(source, properties, now)
    with StatusLine("report", quiet=quiet) as status:
        status(f"reading the logs of {source.view.location}")
        facts = gather(source.view, settings, topics=topics, made_by=f"sparklog {__version__}")
    if html is not None:
        from sparklog.tools.report.page import as_html

        write_output(html, as_html(facts), "--html")
        if not as_json and html != STANDARD_OUTPUT:
            print(f"Wrote {html}.")
    if as_json:
        print_json(facts)


@app.add("metrics", "sparklog metrics --root /data/log --output-file /var/lib/node_exporter/sparklog.prom")
def metrics(
    root: opt.SourceOption,
    output_file: Annotated[
        str, Option("--output-file", "-o", metavar="FILE", help="File to write the metrics to (- for standard output).")
    ] = STANDARD_OUTPUT,
    output: Annotated[str | None, Option(excludes="--output-file", hidden=True)] = None,
    topic: opt.TopicsOption = None,
) -> None:
    """Print lag, offsets and sizes for Prometheus.

    Prints the lag of consumer groups, offsets, sizes and open transactions in the Prometheus text format. If
    --output-file is given, the file is replaced atomically. For example, write the file from a cron job to the
    directory of the node exporter's textfile collector. The command also accepts a Kafka log directory.
    """
    if output is not None:
        output_file = _file_of_output(output)
    from sparklog.tools.report.gather import gather
    from sparklog.tools.report.metrics import exposition

    source = open_source(root)
    topics = source.narrowed(opt.topic_names(topic))
    text = exposition(gather(source.view, _report_settings(source), topics=topics, maintenance=False))
    write_output(output_file, text, "--output-file")


def _file_of_output(output: str) -> str:
    """Return the file of `--output`, which is the old name of `--output-file`. Raises a usage error for a format such
    as `json`.
    """
    if output != STANDARD_OUTPUT and not any(mark in output for mark in "./\\"):
        raise BadParameter(
            f"metrics prints the Prometheus text format, found {output!r}: use --output-file FILE for a file, and"
            " `sparklog report --json` for JSON",
            param_hint="'--output'",
        )
    warn("--output FILE of metrics is deprecated: use --output-file")
    return output


def _report_settings(source: OpenLocation, properties: str | None = None, now: str | None = None) -> Settings:
    """Return the settings of a properties file for a report. The report is as of a given time, or as of the store's
    clock.
    """
    from sparklog.log.journal.clocks import SYSTEM
    from sparklog.maintenance.properties import settings_of_file
    from sparklog.maintenance.work_items import Settings, store_clock_ms

    settings = Settings(0) if properties is None else settings_of_file(properties)
    if now is not None:
        now_ms = opt.parse_time(now, "--now")
    elif source.root is None:
        now_ms = SYSTEM.wall_ms()
    else:
        now_ms = store_clock_ms(source.root.store, source.root.env, dry_run=True)
    return replace(settings, now_ms=now_ms)
