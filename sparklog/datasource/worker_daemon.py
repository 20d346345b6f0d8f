"""Spark's daemon of Python workers, which imports the packages of its workers before it forks them.

Spark starts a daemon for each kind of worker: planning, commits, tasks. The daemon forks the workers, and Spark ends
workers that have been idle for a minute. In Spark 4.3, `pyspark.daemon` imports almost nothing, so each worker
imports pyspark, numpy, pyarrow and sparklog again. This daemon imports them once. The script sparklog-python runs this
module instead of `pyspark.daemon`, and is the only way to replace the daemons of workers that plan and commit. The
first daemon for a data source also starts a server that forks the later daemons (`sparklog.datasource.fork_server`).

* **Other code of the user** runs in the same workers. The daemon imports only packages that support a fork. numpy and
  pyarrow stop and restore their threads in a fork. Each fork sets a new state of numpy.random if it has been imported,
  because otherwise all workers would have the same state.
* **Files of the session** (`--py-files`) come first in the path of a worker, but do not replace packages that the
  daemon has imported.
* **Output**: Spark reads the port of the daemon from the standard output of the daemon, so the output of imports is
  redirected to the standard error.
* **Memory**: Packages that a worker does not need still count towards a limit of its address space. If a limit is set,
  the daemon imports nothing.
* **Errors**: If an import fails, the worker imports the module again and reports the error to Spark.
* **Garbage collection**: `pyspark.daemon` collects garbage after each call of a worker. The collector skips objects
  that existed before the fork.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from runpy import run_module

from sparklog.datasource.fork_server import MEMORY_LIMITS, THREADS, start_server

_SOURCE = "sparklog.datasource.data_source"
_WRITING = ("pyarrow", "zstandard", _SOURCE, "sparklog.datasource.writer")
_READING = (
    "sparklog.datasource.read_task", "sparklog.log.read.auxiliary_files", "sparklog.log.read.decode_slices",
    "sparklog.log.read.read_ahead", "sparklog.log.state.embedded_commits",
)  # fmt: skip
_LOG = (
    "sparklog.log.journal.probe_results", "sparklog.log.topic.root", "sparklog.log.topic.topic",
    "sparklog.log.topic.commit_queue",
)  # fmt: skip
_COMMIT = (*_WRITING, *_LOG, "sparklog.log.decisions.expired_ids", "sparklog.transactions.replay_checks")
_PLANNING = (
    _SOURCE, "sparklog.datasource.reader", "sparklog.datasource.starting_offsets", "sparklog.log.read.skipped",
    "sparklog.datasource.hidden_offsets", "sparklog.log.state.range_slices", *_LOG,
)  # fmt: skip
TASKS = "pyspark.worker"
WRITES = "pyspark.sql.worker.write_into_data_source"
IMPORTS = {
    "pyspark.sql.worker.create_data_source": (_SOURCE,),
    "pyspark.sql.worker.plan_data_source_read": _PLANNING,
    TASKS: (*_WRITING, "sparklog.log.write.append_writer", "sparklog.format.key_hash", *_READING, "pyarrow.compute"),
    "pyspark.sql.streaming.python_streaming_source_runner": (
        *_PLANNING, "sparklog.datasource.planned_ranges", "sparklog.datasource.rate_limits",
        "sparklog.datasource.stream_plan", "sparklog.datasource.stream_topics",
    ),
    WRITES: (*_WRITING, *_LOG),
    "pyspark.sql.worker.commit_data_source_write": _COMMIT,
    "pyspark.sql.worker.python_streaming_sink_runner": _COMMIT,
}  # fmt: skip
"""The modules to import for each kind of process, in addition to its own module. The fork server imports them in this
order.
"""

_forked: set[str] = set()
"""The kinds of processes that the server has forked."""


def main() -> None:
    """Run the daemon. The first argument is the module of the workers, as for `pyspark.daemon`."""
    os.register_at_fork(after_in_child=_set_random_state)
    request = None
    if not any(name in os.environ for name in MEMORY_LIMITS):
        threads = os.environ.get(THREADS)
        os.environ.setdefault(THREADS, "1")
        with _output_to_stderr():
            preload(sys.argv[1])
        # UDFs run in tasks without any planning, and do not need the other packages.
        request = start_server(_import_steps(IMPORTS), _import_later) if sys.argv[1] != TASKS else None
        if request is None and threads is None:
            del os.environ[THREADS]
    if request is not None:
        module, *sys.argv[1:] = request.arguments
        for other in IMPORTS:  # `SparklogDataSource` recognizes the process by the module of its worker.
            sys.modules.pop(other, None)
        with _output_to_stderr():
            preload(request.arguments[-1])
        if module != "pyspark.daemon":
            sys.modules.pop(module, None)
            run_module(module, run_name="__main__", alter_sys=True)
            return
    # In Spark 4.0, this import also imports the module of the workers.
    with _output_to_stderr():
        from pyspark.daemon import manager
    manager()


def preload(module: str) -> None:
    """Import the modules of a kind of process, and exempt all existing objects from garbage collection."""
    for _ in _import_steps([module]):
        pass
    gc.freeze()
    gc.enable()


def _import_steps(modules: Iterable[str]) -> Iterator[None]:
    """Import the modules for these kinds of processes, one module per step. Garbage collection remains disabled."""
    gc.disable()
    for module in modules:
        for name in (module, *IMPORTS.get(module, ())):
            with suppress(Exception):
                import_module(name)
            yield
        if module == TASKS:
            with suppress(Exception):
                from sparklog.format.kernels.warm import load_cached_kernels

                load_cached_kernels()


def _import_later(module: str) -> Iterator[None]:
    """Import pandas when a write is planned before the daemon of tasks has started, if pandas is installed.

    Spark returns the result of each write task with `pyarrow.array`, which imports pandas in each new worker.
    """
    _forked.add(module)
    if module == WRITES and TASKS not in _forked and "pandas" not in sys.modules:
        with suppress(Exception):
            import_module("pandas")
    yield


def _set_random_state() -> None:
    """Set a new state of `numpy.random` in a forked process, as Python does for the module `random`.

    numpy 1 imports numpy.random, numpy 2 does not, and pandas does with both.
    """
    module = sys.modules.get("numpy.random")
    if module is not None:
        module.seed()


@contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Redirect the standard output of Python and of libraries to the standard error."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


if __name__ == "__main__":
    main()
