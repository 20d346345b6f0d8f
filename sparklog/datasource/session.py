"""Settings of a Spark session for sparklog, and a check of Spark's workers.

Spark determines the Python to start in three ways:

* Tasks of UDFs and RDDs run `SparkContext.pythonExec`, which is PYSPARK_PYTHON in the environment of the Python program
  (spark-submit sets it to `spark.pyspark.python`), or `python3` if PYSPARK_PYTHON is not set.
* If a program does not register the data source, `PythonUtils.defaultPythonExec` runs the planning, reads and writes of
  the data source. Its value is PYSPARK_DRIVER_PYTHON in the environment of the JVM, or PYSPARK_PYTHON in the same
  environment, or `python3`. The value cannot be changed by a setting.
* The setting `spark.sql.execution.pyspark.python` overrides both for the tasks of SQL queries on executors.

If sparklog is not installed in one of these Python environments, Spark reports `[DATA_SOURCE_NOT_FOUND]`, which hides
the cause. `configure` and `register` ensure that the processes on the driver's host use the Python of the program, and
that all tasks use `pythonExec`. The script conf/sparklog-python starts a Python without Spark's pyspark.zip, whose
modules each worker would otherwise compile.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparklog.common.lazy import install_command
from sparklog.common.settings import ValueType
from sparklog.errors import BadRequest
from sparklog.log.journal.clocks import SYSTEM
from sparklog.version import __version__

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SETTINGS = {
    # Below this value, Spark computes the size of all columns after each row of a write.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # If TCP is used, which is the default, each Python task waits about 40 ms unnecessarily.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Settings that every session should have. conf/spark-defaults.conf contains the same settings."""

LAUNCHER = "sparklog-python"
TASKS_PYTHON = "spark.sql.execution.pyspark.python"
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""An environment variable that is set by spark-submit. If it is set, the JVM is already running, so its environment can
no longer be changed.
"""

OLDEST_TESTED, LATEST_TESTED = (4, 0), (4, 3)
"""The oldest and the latest tested release of Spark, as in the extra `spark` of pyproject.toml."""

BUILDER = ValueType("SparkSession.builder", lambda value: hasattr(value, "_options"))
SESSION = ValueType("a SparkSession", lambda value: hasattr(value, "streams"))
"""A session or a builder is recognized by an attribute, because Spark Connect has its own classes."""

_checked: set[str] = set()


def check_version(version: str) -> None:
    """Log a warning if the Spark release is later than the tested releases. Raises BadRequest if the release does not
    support Python data sources.
    """
    release = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if release < OLDEST_TESTED:
        raise BadRequest(
            f"Expected Spark 4.0 or later, which supports Python data sources, found pyspark {version}: upgrade "
            "PySpark, or use the command line or the Python API, which do not require Spark"
        )
    if release > LATEST_TESTED:
        tried = ".".join(map(str, LATEST_TESTED))
        _warn(f"pyspark {version} is later than the releases with which this sparklog was tested (up to {tried})")


def _warn(message: str) -> None:
    # Import PySpark late, because `retain` usually does not start Spark.
    from sparklog.datasource.spark_workers import warn_once

    warn_once([message])


def check_pyspark(name: str) -> None:
    """Raise BadRequest unless a supported version of PySpark is installed. `name` is the public function that requires
    PySpark.
    """
    try:
        import pyspark
    except ImportError:
        raise BadRequest(f"{name} requires PySpark: {install_command('spark')}") from None
    check_version(pyspark.__version__)


def configure(builder: SparkSession.Builder, *, fast_start: bool = True) -> SparkSession.Builder:
    """Configure the builder of a Spark session for sparklog. Call this function before `getOrCreate`.

    Two settings make writes and small tasks faster. Processes that Spark starts on the driver's host run this Python.
    Tasks run the Python of `spark.pyspark.python` (of the builder or of `spark-submit`). If it is not set, tasks run
    the Python of PYSPARK_PYTHON. If that is not set either, tasks run this Python in a local session, and `python3` on
    a cluster. If you use `spark-submit`, also call `register`.

    Args:
        builder: The `SparkSession.builder`, with or without settings.
        fast_start: True to start workers with `sparklog-python`, so that they import the installed and compiled pyspark
            instead of the same release in Spark's pyspark.zip.

    Returns:
        The same builder.

    Raises:
        BadRequest: If PySpark is not installed, or is older than 4.0.

    Example:
        spark = sparklog.configure(SparkSession.builder).getOrCreate()
    """
    check_pyspark("sparklog.configure")
    BUILDER.check("builder", builder)
    from pyspark.sql import SparkSession

    options: dict[str, object] = builder._options
    if SparkSession.getActiveSession() is not None:
        _warn("a Spark session is already running and keeps its settings: call sparklog.configure before it starts")
    for name, value in SETTINGS.items():
        if name not in options:
            builder.config(name, value)
    pythons = choose_pythons(options, os.environ, workers_python() if fast_start else sys.executable)
    for name, value in pythons.items():
        if name not in options:
            builder.config(name, value)
    return builder


def workers_python() -> str:
    """Return the program that starts this Python for Spark, which is `sparklog-python` if it is installed in the same
    directory as this Python.
    """
    launcher = os.path.join(os.path.dirname(sys.executable), LAUNCHER)
    return launcher if os.access(launcher, os.X_OK) else sys.executable


def choose_pythons(options: Mapping[str, object], environ: MutableMapping[str, str], python: str) -> dict[str, str]:
    """Set the Python executables for a new session in `environ`, which is inherited by the JVM of the session. Return
    settings for the session.

    Args:
        options: The options of the session's builder.
        environ: The environment of this process.
        python: This Python, for the driver's host and for the tasks of a local session.
    """
    remote = str(options.get("spark.remote", environ.get("SPARK_REMOTE", "")))
    if remote and not remote.startswith("local"):
        return {}  # The server of Spark Connect is already running.
    if SUBMITTED in environ:
        return {TASKS_PYTHON: environ.get("PYSPARK_PYTHON", "python3")}
    if "spark.pyspark.python" in options:
        # Only spark-submit reads this setting.
        environ["PYSPARK_PYTHON"] = str(options["spark.pyspark.python"])
    elif remote or str(options.get("spark.master", environ.get("MASTER", "local"))).startswith("local"):
        environ.setdefault("PYSPARK_PYTHON", python)
    # The driver is already running, so only the data source uses this value, which may have been `jupyter`.
    environ["PYSPARK_DRIVER_PYTHON"] = python
    tasks = environ.get("PYSPARK_PYTHON", "python3")
    return {} if tasks == python else {TASKS_PYTHON: tasks}


def register(spark: SparkSession) -> None:
    """Register the format `sparklog` in a session, and check that Spark's workers can import sparklog.

    Call this function if you use `spark-submit` with `--archives` or `--py-files`, if you run on a cluster, or if Spark
    reports `[DATA_SOURCE_NOT_FOUND]`. The error of this function explains the cause. If Spark has already found the
    format, but would plan it with another Python than the Python of this program, the format is registered again, and
    Spark logs that it was replaced. The check is a small Spark job with a task for each running executor. It runs once
    per application.

    Args:
        spark: The session.

    Raises:
        BadRequest: If PySpark is not installed or is older than 4.0, or if the Python of the workers does not start,
            has another version, or has no sparklog or another version of sparklog.

    Example:
        sparklog.register(spark)
        records = spark.read.format("sparklog").option("subscribe", "orders").load("/data/log")
    """
    check_pyspark("sparklog.register")
    SESSION.check("spark", spark)
    from sparklog.datasource.data_source import SparklogDataSource

    if is_connect(spark):  # The Spark Connect server chooses the Python executable, and logs that a format is replaced.
        check_workers(spark)
        spark.dataSource.register(SparklogDataSource)
        return
    context, registered = spark.sparkContext, _registered_python(spark)
    kept = registered if registered == context.pythonExec or _is_beside_this_python(registered) else None
    planning = kept or workers_python()
    if planning != context.pythonExec and spark.conf.get(TASKS_PYTHON, None) is None:
        spark.conf.set(TASKS_PYTHON, context.pythonExec)
    check_workers(spark)
    if kept is None:
        with _registering_for(context, planning):
            spark.dataSource.register(SparklogDataSource)


def is_connect(spark: SparkSession) -> bool:
    """Return True for a session of Spark Connect, whose server may run on another host."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_planned_here(spark: SparkSession) -> bool:
    """Return True if a session that is not of Spark Connect finds the format `sparklog`, and plans it with this Python
    or with a program in the directory of this Python.
    """
    return _is_beside_this_python(_registered_python(spark))


def _registered_python(spark: SparkSession) -> str | None:
    """Return the Python with which Spark plans the format `sparklog`, or None if Spark does not find the format."""
    sources: Any = spark._jsparkSession.sessionState().dataSourceManager()
    if not sources.dataSourceExists("sparklog"):
        return None
    return str(sources.lookupDataSource("sparklog").dataSourceCls().pythonExec())


def _is_beside_this_python(program: str | None) -> bool:
    """Return True for this Python, and for programs in the directory of this Python."""
    path = None if program is None else shutil.which(program)
    return path is not None and os.path.dirname(os.path.abspath(path)) == os.path.dirname(sys.executable)


@contextmanager
def _registering_for(context: SparkContext, python: str) -> Iterator[None]:
    """Plan the formats that are registered in this block with `python`. The tasks of the formats run the Python of
    TASKS_PYTHON.
    """
    before = context.pythonExec
    context.pythonExec = python
    try:
        yield
    finally:
        context.pythonExec = before


def check_workers(spark: SparkSession) -> None:
    """Import sparklog and its dependencies in a task on each executor. Raises BadRequest with the host, the problem and
    the solution.
    """
    from pyspark.sql import functions as F  # noqa: N812

    application = str(spark.conf.get("spark.app.id", ""))
    if application in _checked:
        return

    version = __version__

    # This function runs in a worker, so unpickling it must not require sparklog.
    def describe_worker(number: int) -> str:
        import json
        import socket
        import sys
        from importlib import import_module

        try:
            facts = {"sparklog": import_module("sparklog.version").__version__}
            # sparklog may be in the current directory or in --py-files, without its dependencies.
            if facts["sparklog"] == version:
                daemon = import_module("sparklog.datasource.worker_daemon")
                for name in daemon.IMPORTS[daemon.TASKS]:
                    import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken installation raises anything
            facts = {"error": f"{type(error).__name__}: {error}"}
        return json.dumps({"python": sys.executable, "host": socket.gethostname(), **facts})

    describe_worker.__annotations__.clear()  # Spark cannot evaluate the annotations, and would log a warning.
    remedy = (
        f"set PYSPARK_PYTHON to a Python with this sparklog (here {sys.executable}) before Spark starts, or call "
        "sparklog.configure(SparkSession.builder)"
    )
    try:
        described = F.udf(describe_worker, "string", useArrow=False)("id").alias("facts")
        count = _executors(spark)
        with _own_job_group(spark) as failed_tasks:
            rows = spark.range(0, count, 1, count).select(described).collect()
            # A task may have failed on one executor and succeeded on another executor.
            problems = [start_problem(failure, host) for host, failure in failed_tasks() if _reasons(failure)]
    except Exception as error:  # noqa: BLE001 - Spark wraps errors of workers in many classes
        raise BadRequest(f"{start_problem(str(error))}: {remedy}") from None
    problems += [worker_problem(json.loads(row["facts"]), version) for row in rows]
    for problem in filter(None, problems):
        raise BadRequest(f"{problem}: {remedy}")
    _checked.add(application)


def _executors(spark: SparkSession) -> int:
    """Return the number of executors, so that a job with that many tasks has a task for each executor. Return 1 if the
    number is unknown.
    """
    try:
        # The status includes the driver, which is the executor in a local session.
        return max(1, int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and raises an error of its own
        return 1


FailedTasks = Callable[[], list[tuple[str, str]]]
"""A function that returns the host and the message of each task that has failed so far."""
_GROUP = "spark.jobGroup.id"


@contextmanager
def _own_job_group(spark: SparkSession) -> Iterator[FailedTasks]:
    """Run jobs in a separate job group. Yield a function that returns the failed tasks. If the session does not have a
    context, the result of the function is empty.
    """
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 - as above
        yield list
        return
    group, before = f"sparklog-{SYSTEM.new_id()}", context.getLocalProperty(_GROUP)
    context.setLocalProperty(_GROUP, group)
    try:
        yield lambda: _failed_tasks(context, group)
    finally:
        context.setLocalProperty(_GROUP, before)


def _failed_tasks(context: SparkContext, group: str) -> list[tuple[str, str]]:
    inner: Any = context._jsc.sc()
    inner.listenerBus().waitUntilEmpty()
    tracker, failed = context.statusTracker(), []
    for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)):
        for stage in [] if job is None else job.stageIds:
            tasks = inner.statusStore().taskList(stage, 0, 10_000)
            listed = [tasks.apply(index) for index in range(tasks.size())]
            failed += [
                (str(task.host()), str(task.errorMessage().get())) for task in listed if task.status() == "FAILED"
            ]
    return failed


def worker_problem(worker: Mapping[str, str], version: str) -> str:
    """Return the problem of a worker's Python, or an empty string. `version` is the version of this sparklog."""
    python = f"Spark's workers on {worker['host']} run {worker['python']}, which"
    if "sparklog" not in worker:
        return f"{python} cannot import sparklog ({worker['error']})"
    if worker["sparklog"] != version:
        return f"{python} has sparklog {worker['sparklog']}, but this program has sparklog {version}"
    return ""


def start_problem(failure: str, host: str = "") -> str:
    """Parse the text of a Spark failure, and return the reason why workers do not start, and the host."""
    lost = re.search(r"Lost task .*\(TID \d+\) \((\S+) executor \S+\): ", failure)
    if lost is not None:
        host, failure = host or lost[1], failure[lost.end() :]
    reason = next(iter([*_reasons(failure), *failure.splitlines()]), "no reason given").strip()
    return f"Spark's Python workers do not start{host and f' on {host}'} ({reason[:300]})"


def _reasons(failure: str) -> list[str]:
    marks = ("PYTHON_VERSION_MISMATCH", "Cannot run program", "ModuleNotFoundError")
    return [line for line in failure.splitlines() if any(mark in line for mark in marks)]
