"""One-line errors for users, out of Spark's Python workers.

Spark shows an exception of a Python data source with its whole traceback, unless the environment of the worker that
fails says `SPARK_HIDE_TRACEBACK`. It then prints `<class name>: <message>`, and the class name without its module only
if that module is `builtins`. So an error that was raised on purpose (`SparklogError`) leaves as an exception of a
class made to measure: `[SPARKLOG_NOT_FOUND]: There is no topic 'ordres' ...`. A worker process ends after an error, so
the setting does not outlive it, and an error nobody meant keeps its traceback.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from sparklog.errors import SparklogError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LOGGER = logging.getLogger("sparklog")
HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


def warn(message: str) -> None:
    """Say something to who runs the query: workers' standard error reaches the driver's console in local mode."""
    LOGGER.warning("sparklog: %s", message)


_warned: set[str] = set()


def warn_once(messages: Iterable[str]) -> None:
    """Warn of each once in this process: Spark makes readers and writers again and again."""
    for message in messages:
        if message not in _warned:
            _warned.add(message)
            warn(message)


def as_user_error(error: SparklogError) -> Exception:
    """The same error in the form that Spark prints as one line; sets the worker's environment accordingly."""
    os.environ[HIDE_TRACEBACK] = "1"
    name = f"[{error.code}]"
    kind = type(name, (Exception,), {"__module__": "builtins", "__qualname__": name})
    shown: Exception = kind(" ".join(str(error).split()))
    return shown


def user_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for everything Spark calls: errors raised on purpose leave as one line."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except SparklogError as error:
            raise as_user_error(error) from None

    return guarded


def guard_iterator(items: Iterable[T]) -> Iterator[T]:
    """The same items; an error raised on purpose while producing them leaves as one line."""
    try:
        yield from items
    except SparklogError as error:
        raise as_user_error(error) from None
