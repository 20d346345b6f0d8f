"""Components that all jobs share: options, exit codes, and one-line messages for errors and interrupts.

| exit code | meaning                                                                                                |
|-----------|--------------------------------------------------------------------------------------------------------|
| 0         | success, or nothing to do                                                                              |
| 1         | part of the work has failed; all other work is done                                                    |
| 2         | invalid usage, including an error in the properties file; no work was started                          |
| 130       | interrupted; committed work is kept                                                                    |

Progress is printed to stderr and the report to stdout. spark-submit merges both streams; with --json, the last line is
the JSON document.
"""

# Do not import annotations from __future__: `parse` evaluates the annotations of a base class in the module of the
# subclass.
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import wraps
from types import MappingProxyType
from typing import Annotated, Any, ParamSpec, TypeVar

from click import BadParameter, NoSuchOption, UsageError

import sparklog
from sparklog.common.times import warn_of_seconds
from sparklog.console.options import (
    DryRunOption,
    PropertiesOption,
    RootOption,
    TopicsOption,
    integer_option,
    topic_names,
)
from sparklog.console.parameters import FunctionCommand, JsonOption, Option
from sparklog.console.terminal import exit_with_usage_error, trace
from sparklog.errors import BadRequest, SparklogError, advice_for_shell
from sparklog.log.topic.root import Root
from sparklog.maintenance import spark_runner
from sparklog.maintenance.job_history import RunRecorder
from sparklog.maintenance.leases import JobLease, job_lease
from sparklog.maintenance.properties import settings_of_file
from sparklog.maintenance.report import document, print_failures
from sparklog.maintenance.spark_runner import SparkIfNeeded, SparkRunner, hide_interrupts
from sparklog.maintenance.work_items import InProcess, Settings, store_clock_ms
from sparklog.output import interrupted, on_terminal, say

DONE, FAILED, INTERRUPTED = 0, 1, 130
P = ParamSpec("P")
T = TypeVar("T")


def parse(
    name: str,
    options: Callable[..., T],
    about: str | None,
    words: Sequence[str],
    *,
    advice: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Parse the command line of a job. If it is invalid, print a one-line message and exit with code 2.

    Args:
        name: the name of the job.
        options: a dataclass that declares the options, like the commands of `sparklog.cli`.
        about: the docstring of the job. `--help` shows the first paragraph.
        words: the command line arguments.
        advice: error messages for options that the job does not have.
    """
    command = FunctionCommand(name, options, help=(about or "").partition("\n\n")[0])
    try:
        with advice_for_shell():
            parsed: T | int = command.main(list(words), prog_name=f"sparklog {name}", standalone_mode=False)
    except NoSuchOption as error:
        exit_with_usage_error(UsageError(advice[error.option_name]) if error.option_name in advice else error)
    except UsageError as error:
        exit_with_usage_error(error)
    except BadRequest as error:
        exit_with_usage_error(BadParameter(str(error)))
    if isinstance(parsed, int):
        # --help was printed.
        sys.exit(parsed)
    return parsed


def job(
    name: str, *, after_interrupt: str, foreign: tuple[type[Exception], ...] = (), reason: Callable[[str], str] = str
) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Return a decorator that turns errors and interrupts of a job into a one-line message on stderr and an exit code.

    Args:
        name: the name of the job.
        after_interrupt: a description of the state after an interrupt, which is part of the message.
        foreign: exceptions of other libraries that the job may raise.
        reason: a function that returns the error message for the text of a foreign exception.
    """

    def decorate(run: Callable[P, int]) -> Callable[P, int]:
        @wraps(run)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> int:
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

        return wrapper

    return decorate


def spark_if_needed(name: str, settings: Settings) -> SparkIfNeeded:
    """Return a runner that starts Spark only if there is enough work.

    The Spark application is named `sparklog <name>`.
    """
    # On a terminal, a status line shows the progress, and log lines would interfere with it.
    return SparkIfNeeded(f"sparklog {name}", lambda builder: sparklog.configure(builder), settings, quiet=on_terminal())


def tasks_if_submitted(name: str) -> AbstractContextManager[InProcess | SparkRunner]:
    """Return a context manager with a runner of Spark tasks, if spark-submit has started the job."""
    return spark_runner.tasks_if_submitted(
        f"sparklog {name}", lambda builder: sparklog.configure(builder), quiet=on_terminal()
    )


@dataclass
class Maintenance:
    """Options that are common to `compact` and `retain`.

    Attributes:
        topics: the requested topics without duplicates. If empty, all topics of the root are processed.
        settings: the settings in the properties file, without the time (see `settings_at`).
    """

    root: RootOption
    topic: TopicsOption = None
    properties: PropertiesOption = None
    now_ms: Annotated[
        int | None, integer_option(metavar="MS", text="Time in milliseconds to use as the current time.")
    ] = None
    dry_run: DryRunOption = False
    lease: Annotated[bool, Option(help="Skip topics that another run of this job is processing.")] = True
    as_json: JsonOption = False
    topics: tuple[str, ...] = field(init=False)
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = Settings(0) if self.properties is None else settings_of_file(self.properties)
        self.topics = topic_names(self.topic)
        warn_of_seconds(**{"--now-ms": self.now_ms})

    def settings_at(self, store_ms: int) -> Settings:
        """Return the settings with the time in `--now-ms`. If the option is not given, use this time of the store's
        clock.
        """
        return replace(self.settings, now_ms=store_ms if self.now_ms is None else self.now_ms)


def run_maintenance(
    name: str,
    options: Maintenance,
    work: Callable[[Root, Settings, JobLease], Sequence[Any]],
    summary: Callable[..., str],
    kind: str | None = None,
) -> int:
    """Run a job on a root, print failures to stderr and the report to stdout, and return the exit code.

    `work` processes the topics of the lease and checks the lease after each work item. The run is recorded in the root
    as a run of the job `kind`. The default is the name of the job.
    """
    root = sparklog.open(options.root)
    for topic in options.topics:
        # Check the names before a lease or a run record is written.
        root.topic(topic)
    settings = options.settings_at(store_clock_ms(root.store, root.env, dry_run=options.dry_run))
    with job_lease(root, name, options.topics, enabled=options.lease and not options.dry_run) as lease:
        recorder = RunRecorder[Any](root, kind or name, settings, options.topics, enabled=not options.dry_run)
        reports = [] if lease.is_blocked else recorder.run(lambda: work(root, settings, lease))
    failures = [failure for report in reports for failure in report.failures]
    failed = not lease.is_blocked and print_failures(f"sparklog {name}", failures, root.location, len(reports))
    if options.as_json:
        print(json.dumps(document(reports, root=root.location, now_ms=settings.now_ms, dry_run=options.dry_run)))
    elif reports and (text := summary(reports, dry_run=options.dry_run)):
        print(text)
    return FAILED if failed else DONE
