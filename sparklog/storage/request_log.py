"""Log store requests: verb, key, milliseconds, bytes and result. `open_store` enables the log.

    get orders/_log/00000000000000000007.json 0.3 ms 512 bytes ok

The methods of the store are replaced, because a wrapper would hide capabilities of a directory, such as links. A
pickled store, for example in a task, does not log.
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
        # Skip methods that a store inherits from `Store`, because they call other methods, which are logged.
        if getattr(type(store), verb) is not getattr(Store, verb):
            setattr(store, verb, partial(_list if verb in LISTINGS else _send, verb, getattr(store, verb)))
    begin = store.writer
    store.writer = lambda key: _LoggedWriter(store, key, begin(key))


def _line(verb: str, key: object, seconds: float, nbytes: int | None, result: str) -> None:
    what = f"{verb} {key}" if isinstance(key, str) and key else verb
    REQUESTS.debug("%s %.1f ms %s bytes %s", what, 1000 * seconds, "-" if nbytes is None else nbytes, result)


def _send(verb: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    start, nbytes, result = perf_counter(), len(args[1]) if verb == "create" else None, "ok"
    try:
        value = method(*args, **options)
        if isinstance(value, bytes):
            nbytes = len(value)
        elif verb == "create":
            result = "created" if value else "exists"
        elif value is None and verb == "stat":
            result = "absent"
        return value
    except Exception as error:
        result = type(error).__name__
        raise
    finally:
        _line(verb, args[0] if args else "", perf_counter() - start, nbytes, result)


def _list(verb: str, method: Callable[..., Iterator[T]], prefix: str, *args: Any, **options: Any) -> Iterator[T]:
    """Yield the listed objects. The measured time does not include the time that the consumer needs."""
    names, seconds, count = method(prefix, *args, **options), 0.0, 0
    try:
        while True:
            start = perf_counter()
            name = next(names, None)
            seconds += perf_counter() - start
            if name is None:
                return
            count += 1
            yield name
    finally:
        _line(verb, prefix, seconds, None, f"{count} names")


class _LoggedWriter(WrapperWriter):
    """A writer of a data object, which logs one line for `close`."""

    nbytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.nbytes += memoryview(data).nbytes
        super().write(data)

    def close(self) -> None:
        start = perf_counter()
        super().close()
        _line("close", self._key, perf_counter() - start, self.nbytes, "created")
