"""Parts that all jobs share: options, errors and Ctrl-C as one line, exit codes.

0: done, also when there was nothing to do; 1: some of it failed, everything else is done; 2: wrong usage, a properties
file with an error included, and nothing was begun; 130: interrupted, what was committed stays. Progress goes to stderr,
the report to stdout; spark-submit joins the two, and with --json the document is the last line.
"""

# Without `annotations` of the future: `parse` could not read the options of a class in the module of its subclass.
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar

from click import BadParameter, UsageError

import sparklog
from sparklog.common.times import warn_of_seconds
from sparklog.console.options import DryRunOption, PropertiesOption, RootOption, TopicsOption, topic_names, whole_number
from sparklog.console.parameters import FunctionCommand, JsonOption, Option
from sparklog.console.terminal import leave_for_usage, trace
from sparklog.errors import BadRequest, SparklogError, advice_for_shell
from sparklog.log.topic.root import Root
from sparklog.maintenance.job_history import RunRecorder
from sparklog.maintenance.leases import JobLease, job_lease
from sparklog.maintenance.properties import settings_of_file
from sparklog.maintenance.report import document, say_failures
from sparklog.maintenance.spark_runner import SparkIfNeeded, hide_interrupts
from sparklog.maintenance.work_items import Settings, store_clock_ms
from sparklog.output import interrupted, on_terminal, say

DONE, FAILED, INTERRUPTED = 0, 1, 130
P = ParamSpec("P")
T = TypeVar("T")


def parse(name: str, options: Callable[..., T], about: str | None, words: Sequence[str]) -> T:
    """Make a job's options of its command line. Leaves with 2, and one line, where that is wrong.

    `options` declares them as the commands of `sparklog.cli` do; `about`: the job's docstring, for `--help`.
    """
    command = FunctionCommand(name, options, help=(about or "").partition("\n\n")[0])
    try:
        made: T | int = command.main(list(words), prog_name=f"sparklog {name}", standalone_mode=False)
    except UsageError as error:
        leave_for_usage(error)
    except BadRequest as error:
        leave_for_usage(BadParameter(str(error)))
    if isinstance(made, int):
        # --help was shown.
        sys.exit(made)
    return made


def job(
    name: str, *, after_interrupt: str, foreign: tuple[type[Exception], ...] = (), reason: Callable[[str], str] = str
) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Make a job answer with an exit code: errors and Ctrl-C become one line on stderr.

    `foreign`: errors of others that a job may end with; `reason` is the line of one.
    """

    def decorate(run: Callable[P, int]) -> Callable[P, int]:
        @wraps(run)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> int:
            hide_interrupts()
            try:
                with advice_for_shell():
                    return run(*args, **kwargs)
            except SparklogError as error:
                trace()
                say(f"sparklog {name}: {error} [{error.code}]")
                return FAILED
            except foreign as error:
                say(f"sparklog {name}: {reason(str(error))}")
                return FAILED
            except KeyboardInterrupt as error:
                say(f"sparklog {name}: {interrupted(error)}; {after_interrupt}")
                return INTERRUPTED

        return guarded

    return decorate


def spark_if_needed(name: str, settings: Settings) -> SparkIfNeeded:
    """Return a runner that starts Spark as application `sparklog <name>`, only then importing what that needs."""
    # On a terminal the status line has the progress: log lines would run into it.
    return SparkIfNeeded(f"sparklog {name}", lambda builder: sparklog.configure(builder), settings, quiet=on_terminal())


@dataclass
class Maintenance:
    """Options that `compact` and `retain` share.

    * `topics`: names as given, each once; empty: all topics of the root
    * `settings`: of the properties file over Kafka's defaults, without a clock (see `settings_at`)
    """

    root: RootOption
    topic: TopicsOption = None
    properties: PropertiesOption = None
    now_ms: Annotated[int | None, whole_number(metavar="MS", text="Milliseconds to use in place of the clock.")] = None
    dry_run: DryRunOption = False
    lease: Annotated[bool, Option(help="Leave topics alone that another run of this job works on.")] = True
    as_json: JsonOption = False
    topics: tuple[str, ...] = field(init=False)
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = Settings(0) if self.properties is None else settings_of_file(self.properties)
        self.topics = topic_names(self.topic)
        warn_of_seconds(**{"--now-ms": self.now_ms})

    def settings_at(self, store_ms: int) -> Settings:
        """Return the settings with their clock: the one that was given, else the store's."""
        return replace(self.settings, now_ms=store_ms if self.now_ms is None else self.now_ms)


def run_maintenance(
    name: str,
    options: Maintenance,
    work: Callable[[Root, Settings, JobLease], Sequence[Any]],
    summary: Callable[..., str],
    kind: str | None = None,
) -> int:
    """Do a job's work on a root, then print failures on stderr and the report on stdout. Returns the exit code.

    `work` takes its topics from the lease, and asks it after each piece whether to go on. Its outcome is recorded in
    the root, as that of a job `kind` (default: the job's name).
    """
    root = sparklog.open(options.root)
    for topic in options.topics:
        # A mistyped name is an error before a lease or an outcome is written.
        root.topic(topic)
    settings = options.settings_at(store_clock_ms(root.store, root.env, dry_run=options.dry_run))
    with job_lease(root, name, options.topics, enabled=options.lease and not options.dry_run) as lease:
        recording = RunRecorder[Any](root, kind or name, settings, options.topics, enabled=not options.dry_run)
        reports = [] if lease.is_blocked else recording.run(lambda: work(root, settings, lease))
    failures = [failure for report in reports for failure in report.failures]
    failed = not lease.is_blocked and say_failures(f"sparklog {name}", failures, root.location, len(reports))
    if options.as_json:
        print(json.dumps(document(reports, root=root.location, now_ms=settings.now_ms, dry_run=options.dry_run)))
    elif reports and (text := summary(reports, dry_run=options.dry_run)):
        print(text)
    return FAILED if failed else DONE
