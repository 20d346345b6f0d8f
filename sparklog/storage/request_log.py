"""Requests to stores as lines of a log: verb, key, milliseconds, bytes and outcome. `open_store` turns it on.

    get orders/_log/00000000000000000007.json 0.3 ms 512 bytes ok

Methods of the store itself are replaced: a store around it would hide what a directory can do and a bucket cannot, such
as links. A pickled store, a task's, logs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from sparklog.storage.store import Store
from sparklog.storage.wrapper_store import WrapperWriter

REQUESTS = logging.getLogger("sparklog.requests")
VERBS = ("get", "create", "overwrite", "stat", "delete", "delete_many", "now_ms", "link")
LISTINGS = ("list", "list_folders", "temporary_files")
T = TypeVar("T")


def log_requests(store: Any) -> None:
    """Make a store log each request from now on."""
    for verb in (*VERBS, *LISTINGS):
        # What a store has from `Store` calls its other methods.
        if getattr(type(store), verb) is not getattr(Store, verb):
            setattr(store, verb, partial(_list if verb in LISTINGS else _send, verb, getattr(store, verb)))
    begin = store.writer
    store.writer = lambda key: _LoggedWriter(store, key, begin(key))


def _line(verb: str, key: object, seconds: float, nbytes: int | None, outcome: str) -> None:
    what = f"{verb} {key}" if isinstance(key, str) and key else verb
    REQUESTS.debug("%s %.1f ms %s bytes %s", what, 1000 * seconds, "-" if nbytes is None else nbytes, outcome)


def _send(verb: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    began, nbytes, outcome = perf_counter(), len(args[1]) if verb == "create" else None, "ok"
    try:
        answer = method(*args, **options)
        if isinstance(answer, bytes):
            nbytes = len(answer)
        elif verb == "create":
            outcome = "created" if answer else "exists"
        elif answer is None and verb == "stat":
            outcome = "absent"
        return answer
    except Exception as error:
        outcome = type(error).__name__
        raise
    finally:
        _line(verb, args[0] if args else "", perf_counter() - began, nbytes, outcome)


def _list(verb: str, method: Callable[..., Iterator[T]], prefix: str, *args: Any, **options: Any) -> Iterator[T]:
    """Yield the names; the time that their reader takes does not count."""
    names, seconds, count = method(prefix, *args, **options), 0.0, 0
    try:
        while True:
            began = perf_counter()
            name = next(names, None)
            seconds += perf_counter() - began
            if name is None:
                return
            count += 1
            yield name
    finally:
        _line(verb, prefix, seconds, None, f"{count} names")


class _LoggedWriter(WrapperWriter):
    """A data object that is being written: one line when it is closed, which makes it durable."""

    nbytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.nbytes += memoryview(data).nbytes
        super().write(data)

    def close(self) -> None:
        began = perf_counter()
        super().close()
        _line("close", self._key, perf_counter() - began, self.nbytes, "created")
