"""Every error sparklog raises on purpose, by what the caller should do about it.

| class       | what the caller does                                                        |
|-------------|-----------------------------------------------------------------------------|
| BadRequest  | fix the request: an option, a schema, a config, a name                      |
| NotFound    | name something that exists: a root, topic, partition, an offset in range    |
| Conflict    | look again and retry: somebody else changed what the request was based on   |
| Fenced      | stop: a newer instance of this writer took over, or the root was replaced   |
| Corrupt     | repair or restore: bytes are not what their checksum or format says         |
| Unavailable | retry later: the store failed, or the outcome of a write is unknown         |

Each message is one line that says what was expected, what was found and what to do. Kinds stay few; detail goes into
the message. A class inherits the built-in error that plain Python callers already catch for the same situation.
"""

from __future__ import annotations

from collections.abc import Iterable


class SparklogError(Exception):
    """Base of all errors raised on purpose; `code` is the stable name shown to users and scripts."""

    code = "SPARKLOG_ERROR"


class BadRequest(SparklogError, ValueError):
    """The request itself is wrong: fix it."""

    code = "SPARKLOG_BAD_REQUEST"


class NotFound(SparklogError, LookupError):
    """The thing named does not exist: a root, a topic, a partition, an object, an offset out of range."""

    code = "SPARKLOG_NOT_FOUND"


class Conflict(SparklogError):
    """Somebody else changed what this request was based on: look again and retry."""

    code = "SPARKLOG_CONFLICT"


class Fenced(SparklogError):
    """A newer instance of this writer took over, or another root lies where this one was: stop."""

    code = "SPARKLOG_FENCED"


class Corrupt(SparklogError):
    """Bytes are not what their format or checksum says.

    `file`, `position` (bytes from its start) and `offset` (log offset) name the place as far as it is known.
    """

    code = "SPARKLOG_CORRUPT"

    def __init__(
        self, message: str, *, file: str | None = None, position: int | None = None, offset: int | None = None
    ) -> None:
        place = [
            text
            for text in (
                f"file {file}" if file is not None else "",
                f"position {position}" if position is not None else "",
                f"offset {offset}" if offset is not None else "",
            )
            if text
        ]
        super().__init__(f"{message} ({', '.join(place)})" if place else message)
        self.message = message
        self.file = file
        self.position = position
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return _corrupt, (self.message, self.file, self.position, self.offset)


class Unavailable(SparklogError, OSError):
    """The store failed or an outcome is unknown: retry later."""

    code = "SPARKLOG_UNAVAILABLE"


def _corrupt(message: str, file: str | None, position: int | None, offset: int | None) -> Corrupt:
    return Corrupt(message, file=file, position=position, offset=offset)


def nearest(word: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """Return the candidates most like `word`, best first, for "did you mean"."""
    import difflib

    return difflib.get_close_matches(word, list(candidates), n=limit, cutoff=0.6)


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or an empty text where nothing is near."""
    near = nearest(word, candidates, limit=1)
    return f"; did you mean '{near[0]}'?" if near else ""
