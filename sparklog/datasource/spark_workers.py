"""Spark's Python processes: errors as one line, warnings, open roots.

Spark shows an exception of a Python data source with its whole traceback, unless the environment of the worker that
fails says `SPARK_HIDE_TRACEBACK`. It then prints `<class name>: <message>`, and the class name without its module only
if that module is `builtins`. So an error that was raised on purpose (`SparklogError`) leaves as an exception of a
class made to measure: `[SPARKLOG_NOT_FOUND]: There is no topic 'ordres' ...`. A worker process ends after an error, so
the setting does not outlive it, and an unexpected error keeps its traceback.

Processes that plan and commit writes live between micro-batches, over queries and sessions. So a handle is never
trusted: the root's id is read again each time (a folder may have been deleted and made again), and the topic itself
probes for the next commit.

Up to Spark 4.1 each call into a worker begins with `importlib.invalidate_caches()`. Up to Python 3.12 a zip on the path
is then read again for each of its packages that was imported from: 140 ms for those of Spark, in each process that
a micro-batch meets. Finders that are forgotten after each call cost nothing: an import makes them again.
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

from sparklog.datasource.options import SinkOptions
from sparklog.errors import NotFound, SparklogError
from sparklog.opening import NOTHING, Location, open_log

if TYPE_CHECKING:
    from sparklog.log.topic.root import Root
    from sparklog.log.topic.topic import Topic

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


def warn(message: str) -> None:
    """Log a warning: workers' standard error reaches the driver's console in local mode."""
    logging.getLogger("sparklog").warning("sparklog: %s", message)


_warned: set[str] = set()


def warn_once(messages: Iterable[str]) -> None:
    """Warn of each once in this process: Spark makes readers and writers again and again."""
    for message in messages:
        if message not in _warned:
            _warned.add(message)
            warn(message)


@contextmanager
def user_errors() -> Iterator[None]:
    """Decorator of what Spark calls, or a block of it: errors raised on purpose leave as one line.

    At its end what makes the next call slow is forgotten.
    """
    try:
        yield
    except SparklogError as error:
        os.environ[HIDE_TRACEBACK] = "1"
        name = f"[{error.code}]"
        kind = type(name, (Exception,), {"__module__": "builtins", "__qualname__": name})
        raise kind(" ".join(str(error).split())) from None
    finally:
        forget_zips()


def forget_zips() -> None:
    """Forget Python's finders of modules in the zips of PYTHONPATH, which do not change while a process runs."""
    zips = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive in zips:
            sys.path_importer_cache.pop(path, None)


def exit_on_sigterm() -> None:
    """Unwind this process, so that `stop` is called, where Spark ends a query: it sends SIGTERM and no word before.

    Only in a process that Spark started for its questions. `stop` does its work inside of `deferred_sigterm`.
    """
    started_by_spark = any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)
    if started_by_spark and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _unwind)


_terminated: list[int] = []


def _unwind(number: int, _: object) -> NoReturn:
    _terminated.append(number)
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit


def _note(number: int, _: object) -> None:
    _terminated.append(number)


@contextmanager
def deferred_sigterm() -> Iterator[None]:
    """Do this whole, and end the process then if Spark's signal has come, before or meanwhile.

    Spark closes the socket before it sends the signal: `stop` may be called for the one, and be met by the other. The
    process ends as the signal would have ended it: Spark's own clean-up shows a traceback of the closed socket.
    """
    if signal.getsignal(signal.SIGTERM) is _unwind:
        signal.signal(signal.SIGTERM, _note)
    yield
    for number in _terminated:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collect no garbage meanwhile: what the plan of a thousand topics makes is in use, and is walked again and again.

    Spark's daemon collects after each call.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


LET_IT = "let this write create it: auto.create.topics.enable=true, the default"

_roots: dict[str, Root] = {}


class _Created(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


@contextmanager
def shown_created() -> Iterator[None]:
    """Show roots and topics that are made inside of this, as warnings are."""
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
    """Return the root at a location, kept open. Raises NotFound where there is none, unless `create`."""
    from sparklog.log.journal.names import read_root_id

    kept = _roots.get(location.root)
    if kept is not None:
        if location.looked_at(kept.id) is not None:
            return kept
        with suppress(NotFound):
            if read_root_id(kept.store) == kept.id:
                return kept
        del _roots[location.root]
    if location.kind == NOTHING and not create:
        raise NotFound(
            f"There is no sparklog root at {location.root}: run `sparklog topics create TOPIC --root "
            f"{shlex.quote(location.root)}`, or {LET_IT}"
        )
    with shown_created():
        _roots[location.root] = open_log(location, create=create)
    return _roots[location.root]


def topic_at(root: Root, name: str, options: SinkOptions) -> Topic:
    """Return the topic of a write, created where it is missing; warn of options that differ from one that exists."""
    from sparklog.log.topic.root import written_topic

    if options.auto_create:
        with shown_created():
            given = options.partitions if options.partitions_given else None
            topic = written_topic(root, name, partitions=given, configs=options.configs)
    else:
        try:
            topic = root.topic(name)
        except NotFound as error:
            raise NotFound(f"{error}; or {LET_IT}") from None
    warn_once(_not_as_asked(topic, options))
    return topic


def _not_as_asked(topic: Topic, options: SinkOptions) -> Iterator[str]:
    state, name = topic.log.current().topic_state, topic.name
    if options.partitions_given and state.partitions != options.partitions:
        yield (
            f"Option 'num.partitions' is {options.partitions}, and the topic {name!r} keeps its {state.partitions}: it "
            f"counts where a write creates the topic; `sparklog topics alter {name}` adds partitions"
        )
    configs = topic.log.engine.defaults.of_topic(name, state.configs) if options.configs else state.configs
    for config, value in options.configs.items():
        has = configs.text(config)
        if has != value:
            yield (
                f"Option 'topic.{config}' is {value}, and the topic {name!r} keeps {has}: it counts where a write "
                f"creates the topic; use `sparklog configs alter {name} --add-config {config}={value}`"
            )
