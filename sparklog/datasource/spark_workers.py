"""Functions for Spark's Python processes: one-line errors, warnings, and roots that stay open.

Spark prints an exception of a Python data source with its entire traceback, unless `SPARK_HIDE_TRACEBACK` is set in the
environment of the failing worker. In this case, Spark prints `<class name>: <message>`, in which the class name is
printed without a module only if the module is `builtins`. Therefore, a deliberate error (`SparklogError`) is raised as
an exception of a class that is created for the error, such as `[SPARKLOG_NOT_FOUND]: There is no topic 'ordres' ...`. A
worker process ends after an error, so the variable does not affect later errors, and unexpected errors retain their
tracebacks.

The processes that plan and commit writes continue to run between micro-batches, queries and sessions. A directory may
have been deleted and recreated in the meantime, so the root id is read before an open root is reused. The topic checks
for new commits.

Up to Spark 4.1, each call to a worker starts with `importlib.invalidate_caches()`. Up to Python 3.12, each zip on the
path is then read again for each of its imported packages, which takes 140 ms for the zips of Spark in each process of a
micro-batch. To avoid this, the import finders for zips are removed after each call. An import creates them again.
"""

from __future__ import annotations

import gc
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn
from zipimport import zipimporter

from sparklog.common.warned import is_first_warning
from sparklog.datasource.options import SinkOptions
from sparklog.errors import NotFound, SparklogError
from sparklog.opening import NOTHING, Location, open_log

if TYPE_CHECKING:
    from sparklog.log.topic.root import Root
    from sparklog.log.topic.topic import Topic

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


def warn(message: str) -> None:
    """Log a warning. In local mode, the standard error of workers is printed on the console of the driver."""
    logging.getLogger("sparklog").warning("sparklog: %s", message)


def warn_once(messages: Iterable[str]) -> None:
    """Log each warning once per process, because Spark creates readers and writers repeatedly."""
    for message in messages:
        if is_first_warning("data source", message):
            warn(message)


@contextmanager
def user_errors() -> Iterator[None]:
    """Raise each `SparklogError` of a block or a decorated function as an exception that Spark prints on one line.

    At the end, remove import finders that would slow down the next call.
    """
    try:
        yield
    except SparklogError as error:
        os.environ[HIDE_TRACEBACK] = "1"
        name = f"[{error.code}]"
        kind = type(name, (Exception,), {"__module__": "builtins", "__qualname__": name})
        raise kind(" ".join(str(error).split())) from None
    finally:
        remove_zip_finders()


def remove_zip_finders() -> None:
    """Remove the import finders for zips in PYTHONPATH, which do not change while a process runs."""
    zips = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive in zips:
            sys.path_importer_cache.pop(path, None)


def exit_on_sigterm() -> None:
    """Raise SystemExit on SIGTERM in this process, so that `stop` is called when Spark ends a query.

    Spark sends SIGTERM without calling a method first. The signal handler is installed only in processes that Spark
    started. `stop` must use `deferred_sigterm`.
    """
    started_by_spark = any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)
    if started_by_spark and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


_received_signals: list[int] = []


def _exit(number: int, _: object) -> NoReturn:
    _received_signals.append(number)
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit


def _record_signal(number: int, _: object) -> None:
    _received_signals.append(number)


@contextmanager
def deferred_sigterm() -> Iterator[None]:
    """Complete the block even if SIGTERM is received. If SIGTERM was received before or during the block, end the
    process after the block, even if the block raises an error.

    Spark closes the socket before it sends the signal. Therefore, `stop` may be called because the socket is closed,
    and then be interrupted by the signal. The process ends with the default action of the signal, because Spark's
    clean-up would print a traceback about the closed socket.
    """
    if signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, _record_signal)
    try:
        yield
    finally:
        for number in _received_signals:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection, because the garbage collector would repeatedly scan a large plan that is still in
    use.

    Spark's daemon collects garbage after each call.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


AUTO_CREATE_HINT = "let this write create it with auto.create.topics.enable=true, the default"

_roots: dict[str, Root] = {}


class _Created(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


@contextmanager
def log_created_objects() -> Iterator[None]:
    """Log the roots and topics that are created in this block as warnings."""
    created, handler = logging.getLogger("sparklog.created"), _Created()
    before = created.level
    created.setLevel(logging.INFO)
    created.propagate = False
    created.addHandler(handler)
    try:
        yield
    finally:
        created.removeHandler(handler)
        created.propagate = True
        created.setLevel(before)


def root_at(location: Location, *, create: bool = False) -> Root:
    """Return the root at a location, and cache the root. Raises NotFound if the root does not exist, unless `create` is
    set.
    """
    from sparklog.log.journal.names import read_root_id

    cached = _roots.get(location.root)
    if cached is not None:
        if location.last_read_of(cached.id) is not None:
            return cached
        with suppress(NotFound):
            if read_root_id(cached.store) == cached.id:
                return cached
        del _roots[location.root]
    if location.kind == NOTHING and not create:
        raise NotFound(
            f"There is no sparklog root at {location.root}: run `sparklog topics create TOPIC --root "
            f"{shlex.quote(location.root)}`, or {AUTO_CREATE_HINT}"
        )
    with log_created_objects():
        _roots[location.root] = open_log(location, create=create)
    return _roots[location.root]


def topic_at(root: Root, name: str, options: SinkOptions) -> Topic:
    """Return the topic of a write, and create the topic if this is allowed. Log a warning if options differ from the
    existing topic.
    """
    from sparklog.log.topic.root import topic_for_writer

    if options.auto_create:
        with log_created_objects():
            given = options.partitions if options.partitions_given else None
            topic = topic_for_writer(root, name, partitions=given, configs=options.configs)
    else:
        try:
            topic = root.topic(name)
        except NotFound as error:
            raise NotFound(f"{error}; or {AUTO_CREATE_HINT}") from None
    warn_once(_ignored_options(topic, options))
    return topic


def _ignored_options(topic: Topic, options: SinkOptions) -> Iterator[str]:
    state, name = topic.log.current().topic_state, topic.name
    if options.partitions_given and state.partitions != options.partitions:
        yield (
            f"Option 'num.partitions' ({options.partitions}) has no effect on the existing topic {name!r}, which has "
            f"{state.partitions}; use `sparklog topics alter {name}` to add partitions"
        )
    configs = topic.log.engine.defaults.of_topic(name, state.configs) if options.configs else state.configs
    for config, value in options.configs.items():
        current = configs.text(config)
        if current != value:
            yield (
                f"Option 'topic.{config}' ({value}) has no effect on the existing topic {name!r}, which has {current}; "
                f"use `sparklog configs alter {name} --add-config {config}={value}`"
            )
