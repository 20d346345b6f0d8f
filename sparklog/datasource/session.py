"""Settings of a Spark session for sparklog, and a check of Spark's workers.

Spark starts its Python workers as `python3` from the PATH unless PYSPARK_PYTHON names another one. Where that Python
has no sparklog, Spark reports `[DATA_SOURCE_NOT_FOUND]`, a name that hides the reason. `configure` sets the Python
before the session starts, `register` tries it afterwards. A script that comes with sparklog (conf/sparklog-python)
starts this Python without Spark's pyspark.zip, whose modules each worker would compile.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparklog.errors import BadRequest
from sparklog.lazy import install_command
from sparklog.log.journal.clocks import SYSTEM
from sparklog.version import __version__

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SETTINGS = {
    # Below this value Spark computes the size of all columns again after each row of a write.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # Over TCP, the default, each Python task waits some 40 ms for nothing.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Settings that every session should have; conf/spark-defaults.conf has the same."""

LAUNCHER = "sparklog-python"

OLDEST, NEWEST = (4, 0), (4, 3)
"""Releases of Spark that the format is tried with: those of the extra `spark` in pyproject.toml."""

_checked: set[str] = set()


def check_version(version: str) -> None:
    """Warn of a Spark that is newer than those tried. Raises BadRequest for one without Python data sources."""
    release = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if release < OLDEST:
        raise BadRequest(
            f"Expected Spark 4.0 or newer, which has Python data sources, found pyspark {version}: install one that "
            "is, or use the command line and the Python API of topics, which need no Spark"
        )
    if release > NEWEST:
        tried = ".".join(map(str, NEWEST))
        _warn(f"pyspark {version} is newer than what this sparklog was tried with (up to {tried}): try it first")


def _warn(message: str) -> None:
    # What workers need is imported late: `retain` starts no Spark.
    from sparklog.datasource.spark_workers import warn_once

    warn_once([message])


def check_pyspark(name: str) -> None:
    """Check that PySpark is installed in a supported version, for the public function `name`. Raises BadRequest."""
    try:
        import pyspark
    except ImportError:
        raise BadRequest(f"{name} needs PySpark: {install_command('spark')}") from None
    check_version(pyspark.__version__)


def configure(builder: SparkSession.Builder, *, fast_start: bool = True) -> SparkSession.Builder:
    """Set what a Spark session needs for sparklog; call it before `getOrCreate`.

    Two settings make writes and small tasks faster. In a local session that a Python program starts, Spark's workers
    become this Python. PYSPARK_PYTHON, a setting of the builder, `spark-submit` and a cluster's master keep theirs.

    Args:
        builder: `SparkSession.builder`, with or without settings.
        fast_start: start workers by `sparklog-python`: they import the installed pyspark, which is compiled, in place
            of the same release in Spark's pyspark.zip.

    Returns:
        The same builder.

    Raises:
        BadRequest: PySpark is not installed, or older than 4.0.

    Example:
        spark = sparklog.configure(SparkSession.builder).getOrCreate()
    """
    check_pyspark("sparklog.configure")
    from pyspark.sql import SparkSession

    options: dict[str, object] = builder._options
    if SparkSession.getActiveSession() is not None:
        _warn("a Spark session runs already and keeps its settings: call sparklog.configure before the first one")
    for name, value in SETTINGS.items():
        if name not in options:
            builder.config(name, value)
    set_workers_python(options, os.environ, workers_python() if fast_start else sys.executable)
    return builder


def workers_python() -> str:
    """Return the program that starts this Python for Spark: `sparklog-python` beside it, if it was installed there."""
    launcher = os.path.join(os.path.dirname(sys.executable), LAUNCHER)
    return launcher if os.access(launcher, os.X_OK) else sys.executable


def set_workers_python(options: dict[str, object], environ: MutableMapping[str, str], python: str) -> None:
    """Set PYSPARK_PYTHON to `python`, unless something else decides which Python workers are."""
    local = str(options.get("spark.master", environ.get("MASTER", "local"))).startswith("local")
    elsewhere = "spark.remote" in options or "SPARK_REMOTE" in environ
    submitted = "PYSPARK_GATEWAY_PORT" in environ  # spark-submit has started the JVM, its configuration holds
    if local and not elsewhere and not submitted and "spark.pyspark.python" not in options:
        if "PYSPARK_PYTHON" not in environ and "PYSPARK_DRIVER_PYTHON" in environ:
            # The driver runs already. Spark starts this one, be it `jupyter`, for formats that it finds by itself.
            environ["PYSPARK_DRIVER_PYTHON"] = python
        environ.setdefault("PYSPARK_PYTHON", python)


def register(spark: SparkSession) -> None:
    """Make the format `sparklog` known to a session, and check that Spark's workers can import it.

    Spark knows the format by itself where its Python has sparklog installed. Call this with `--py-files`, and where
    Spark answers `[DATA_SOURCE_NOT_FOUND]`: the error then names the reason. The check is one small Spark job, with a
    task for each executor that runs by then, once for each application.

    Args:
        spark: the session.

    Raises:
        BadRequest: PySpark is not installed or older than 4.0, or the workers' Python does not start, has another
            version, or has no sparklog or another one.

    Example:
        sparklog.register(spark)
        records = spark.read.format("sparklog").option("subscribe", "orders").load("/data/log")
    """
    check_pyspark("sparklog.register")
    from sparklog.datasource.data_source import SparklogDataSource

    check_workers(spark)
    if not _is_known(spark):
        spark.dataSource.register(SparklogDataSource)


def _is_known(spark: SparkSession) -> bool:
    """True if the session has the format already: Spark would warn that it replaces it."""
    session = getattr(spark, "_jsparkSession", None)  # Spark Connect has none, and logs on its server
    return session is not None and bool(session.sessionState().dataSourceManager().dataSourceExists("sparklog"))


def check_workers(spark: SparkSession) -> None:
    """Run a task for each executor that imports sparklog. Raises BadRequest: the host, what is wrong, what to set."""
    from pyspark.sql import functions as F  # noqa: N812

    application = str(spark.conf.get("spark.app.id", ""))
    if application in _checked:
        return

    def describe_worker(number: int) -> str:  # in a worker: nothing of sparklog may be needed to unpickle it
        import json
        import socket
        import sys
        from importlib import import_module

        try:
            facts = {"sparklog": import_module("sparklog.version").__version__}
        except Exception as error:  # noqa: BLE001 - a broken installation raises anything
            facts = {"error": f"{type(error).__name__}: {error}"}
        return json.dumps({"python": sys.executable, "host": socket.gethostname(), **facts})

    describe_worker.__annotations__.clear()  # Spark would try to read them, and warn
    remedy = (
        f"set PYSPARK_PYTHON to a Python with this sparklog (here {sys.executable}) before Spark starts, or call "
        "sparklog.configure(SparkSession.builder)"
    )
    try:
        described = F.udf(describe_worker, "string", useArrow=False)("id").alias("facts")
        count = _executors(spark)
        with _own_job_group(spark) as failed_tasks:
            rows = spark.range(0, count, 1, count).select(described).collect()
            # A task that fails on one executor may have been done by another one.
            problems = [start_problem(failure, host) for host, failure in failed_tasks() if _reasons(failure)]
    except Exception as error:  # noqa: BLE001 - Spark wraps what a worker raises in many kinds
        raise BadRequest(f"{start_problem(str(error))}: {remedy}") from None
    problems += [worker_problem(json.loads(row["facts"]), __version__) for row in rows]
    for problem in filter(None, problems):
        raise BadRequest(f"{problem}: {remedy}")
    _checked.add(application)


def _executors(spark: SparkSession) -> int:
    """Return how many executors run: idle ones get a task each of a job of so many. One where that is not known."""
    try:
        # With the driver, which in a local session is the executor.
        return max(1, int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and refuses in a way of its own
        return 1


FailedTasks = Callable[[], list[tuple[str, str]]]
"""Hosts and messages of the tasks that failed so far."""
_GROUP = "spark.jobGroup.id"


@contextmanager
def _own_job_group(spark: SparkSession) -> Iterator[FailedTasks]:
    """Make the jobs within a group of their own, to ask for their failed tasks; without a context there are none."""
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
    """Return what is wrong with a worker's Python, or an empty text; `version`: of this program's sparklog."""
    python = f"Spark's workers on {worker['host']} are {worker['python']}, which"
    if "sparklog" not in worker:
        return f"{python} cannot import sparklog ({worker['error']})"
    if worker["sparklog"] != version:
        return f"{python} has sparklog {worker['sparklog']}, this program has {version}"
    return ""


def start_problem(failure: str, host: str = "") -> str:
    """Return why workers do not start, and on which host, by the text of Spark's failure."""
    lost = re.search(r"Lost task .*\(TID \d+\) \((\S+) executor \S+\): ", failure)
    if lost is not None:
        host, failure = host or lost[1], failure[lost.end() :]
    reason = next(iter([*_reasons(failure), *failure.splitlines()]), "no reason given").strip()
    return f"Spark's Python workers do not start{host and f' on {host}'} ({reason[:300]})"


def _reasons(failure: str) -> list[str]:
    marks = ("PYTHON_VERSION_MISMATCH", "Cannot run program", "ModuleNotFoundError")
    return [line for line in failure.splitlines() if any(mark in line for mark in marks)]
