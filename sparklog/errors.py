"""The errors that sparklog raises. There is one class for each action that the caller should take.

Each message is one line that contains the expected value, the actual value and the action to take. A class also derives
from the built-in error that Python programs already catch in the same situation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    r"""Return a string in which line breaks, other control characters and lone surrogates are escaped.

    Messages contain the names of writers and groups, which may contain such characters.

    >>> one_line("writer 'a\nb'")
    "writer 'a\\nb'"
    """
    return _BREAKS.sub(lambda match: repr(match[0])[1:-1], text)


def shortened(value: object, characters: int = 60) -> str:
    """Return the `repr` of a value. If the `repr` is too long, return its start and an ellipsis.

    >>> shortened("y" * 5000, 4)
    "'yyyy…'"
    >>> shortened([5] * 5000, 4)
    '[5, …'
    """
    if isinstance(value, str):
        return repr(value if len(value) <= characters else f"{value[:characters]}…")
    text = repr(value)
    return text if len(text) <= characters else f"{text[:characters]}…"


_running_commands = 0
"""The number of `sparklog` commands that run in this process. While a command runs, error messages recommend commands
instead of function calls. Commands may overlap, because a program can run them in several threads.
"""


@contextmanager
def advice_for_shell() -> Iterator[None]:
    """Make errors that are raised in this block recommend commands instead of Python calls."""
    global _running_commands
    _running_commands += 1
    try:
        yield
    finally:
        _running_commands -= 1


def advice(*, python: str, shell: str) -> str:
    """Return the advice for a Python program.

    While a command runs, return the advice for a user of the command line.
    """
    return shell if _running_commands else python


class SparklogError(Exception):
    """Base class of sparklog's errors. `code` is the stable name that users and scripts see."""

    code = "SPARKLOG_ERROR"

    def __init__(self, *values: object) -> None:
        super().__init__(*(one_line(value) if isinstance(value, str) else value for value in values))


class BadRequest(SparklogError, ValueError):
    """The request is not valid. Correct the request."""

    code = "SPARKLOG_BAD_REQUEST"


class NotFound(SparklogError, LookupError):
    """A root, a topic, a partition or an object does not exist, or an offset is out of range."""

    code = "SPARKLOG_NOT_FOUND"


class Conflict(SparklogError):
    """The state that this request is based on has changed. Read the state again, and retry."""

    code = "SPARKLOG_CONFLICT"


class Fenced(SparklogError):
    """A newer instance of this writer has been started, the root was replaced, or the store lost commits.

    Stop the writer.
    """

    code = "SPARKLOG_FENCED"


class Corrupt(SparklogError):
    """Data does not match its format or checksum.

    `file`, `position` (in bytes) and `offset` (in the log) specify the location of the damage, if the location is
    known.
    """

    code = "SPARKLOG_CORRUPT"

    def __init__(
        self, message: str, *, file: str | None = None, position: int | None = None, offset: int | None = None
    ) -> None:
        values = {"file": file, "position": position, "offset": offset}
        location = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
        super().__init__(f"{message} ({location})" if location else message)
        self.message = one_line(message)
        self.file = file
        self.position = position
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Corrupt, self.message, file=self.file, position=self.position, offset=self.offset), ()


class Unavailable(SparklogError, OSError):
    """The store failed, or the result of a write is unknown. Retry later.

    * `is_denied`: True if the store rejected the request because a permission or free space is missing, so a retry
      would also be rejected; a rejected write has no effect
    * `is_unknown`: True if the write may have succeeded; False if nothing was written
    """

    code = "SPARKLOG_UNAVAILABLE"

    def __init__(self, message: str, *, is_denied: bool = False, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_denied = is_denied
        self.is_unknown = is_unknown


class Wakeup(SparklogError):
    """Another thread called `wakeup` of a waiting consumer. Exit the poll loop, and close the consumer."""

    code = "SPARKLOG_WAKEUP"


def nearest(word: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """Return the candidates that are most similar to `word`, best first, for "did you mean"."""
    import difflib

    return difflib.get_close_matches(word, list(candidates), n=limit, cutoff=0.6)


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or an empty string if no candidate is similar."""
    near = nearest(word, candidates, limit=1)
    return f"; did you mean '{near[0]}'?" if near else ""
