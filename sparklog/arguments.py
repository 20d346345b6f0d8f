"""Checks of what users hand to public calls: what does not fit is a `BadRequest`, before anything is done.

    @checked(topic=NAME, partitions=NUMBERS.or_none())
    def read(topic: str, partitions: Sequence[int] | None = None): ...

What a value means is checked where it is used: whether there is such a topic, whether an offset is in range.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from operator import index
from typing import Any, ParamSpec, SupportsIndex, TypeVar

from sparklog.errors import BadRequest, did_you_mean
from sparklog.storage.store import Store

P = ParamSpec("P")
T = TypeVar("T")
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ArgumentKind:
    """A kind of argument: `expected` in words, and whether a value is one."""

    expected: str
    accepts: Callable[[Any], bool]

    def or_none(self) -> ArgumentKind:
        return ArgumentKind(f"{self.expected} or None", lambda value: value is None or self.accepts(value))

    def check(self, name: str, value: object) -> None:
        """`BadRequest` if the value is none of this kind."""
        if not self.accepts(value):
            listed = isinstance(value, (str, bytes)) and self.expected.startswith("a list")
            hint = f"; give [{value!r:.40}]" if listed else ""
            if isinstance(value, str) and not _is_text(value):
                hint = "; it has characters that UTF-8 cannot encode"
            raise BadRequest(f"{name} must be {self.expected}, found {value!r:.80}{hint}")


def one_of(*values: str) -> ArgumentKind:
    return ArgumentKind(
        f"{', '.join(values[:-1])} or {values[-1]}", lambda value: isinstance(value, str) and value in values
    )


def instance(expected: str, *types: type) -> ArgumentKind:
    return ArgumentKind(expected, lambda value: isinstance(value, types))


def whole(low: int, high: int = INT64_MAX) -> ArgumentKind:
    """Return the kind of whole numbers, also numpy's, from `low` to `high`."""
    span = f"of at least {low}" if high == INT64_MAX else f"from {low} to {high}"
    return ArgumentKind(f"a whole number {span}", lambda value: _is_whole(value) and low <= index(value) <= high)


def _is_whole(value: object) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


def as_whole(value: object) -> int | None:
    """Return a whole number, also numpy's, as Python's; None for anything else."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _is_list(value: object, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes)) and all(map(accepts, value))


def _is_text(value: object) -> bool:
    """Return True for a string without lone surrogates, which UTF-8 cannot encode."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_path(value: object) -> bool:
    # The system refuses NUL with an error of Python's.
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    try:
        return isinstance(text, str) and text != "" and "\0" not in text and os.fsencode(text) is not None
    except UnicodeEncodeError:
        return False


def _is_map(value: object, key: Callable[[Any], bool], item: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(map(key, value)) and all(map(item, value.values()))


NAME = ArgumentKind("a string", _is_text)
NAMES = ArgumentKind("a list of strings", lambda value: _is_list(value, _is_text))
PATH = ArgumentKind("a path or a URL", _is_path)
PLACE = ArgumentKind("a path, a URL or a store", lambda value: _is_path(value) or isinstance(value, Store))
WHOLE = ArgumentKind("a whole number", _is_whole)
NUMBER = whole(0)
NUMBERS = ArgumentKind("a list of numbers", lambda value: _is_list(value, _is_whole))
TIME = ArgumentKind(
    "a time in milliseconds", lambda value: _is_whole(value) and -INT64_MAX <= index(value) <= INT64_MAX
)
SECONDS = ArgumentKind(
    "a number of seconds from 0", lambda value: isinstance(value, (int, float)) and value is not True and value >= 0
)
KEYS = ArgumentKind(
    "a list of bytes or texts", lambda value: isinstance(value, Iterable) and not isinstance(value, (str, bytes))
)
KEY = ArgumentKind("bytes or a text", lambda value: isinstance(value, bytes) or _is_text(value))
CONFIGS = ArgumentKind("a mapping of names to values", lambda value: _is_map(value, _is_text, lambda _: True))
OFFSETS = ArgumentKind("a mapping of partitions to offsets", lambda value: _is_map(value, _is_whole, _is_whole))
POSITIONS = instance("a mapping of topics to mappings of partitions to offsets", Mapping)
PARTITIONS = ArgumentKind(
    "a mapping of topics to lists of partitions",
    lambda value: _is_map(value, _is_text, lambda item: _is_list(item, _is_whole)),
)
RENAMED = ArgumentKind("a mapping of names to names", lambda value: _is_map(value, _is_text, _is_text))


def checked(options: type | None = None, /, **kinds: ArgumentKind) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check the arguments of a call: those named here, and that it has all that are given.

    `options`: the data class that the call makes of its `**options`; its fields are then arguments of the call.
    """

    def decorate(call: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(call)
        if options is not None:
            named = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
            fields = inspect.signature(options).parameters.values()
            keywords = [field.replace(kind=field.KEYWORD_ONLY) for field in fields]
            signature = signature.replace(parameters=[*named, *keywords])
        missing = kinds.keys() - signature.parameters.keys()
        assert not missing, missing

        @wraps(call)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                arguments = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise BadRequest(f"{call.__name__}: {error}{_hint(signature, args, kwargs)}") from None
            for name, kind in kinds.items():
                if name in arguments:
                    kind.check(name, arguments[name])
            return call(*args, **kwargs)

        guarded.__signature__ = signature  # type: ignore[attr-defined]
        return guarded

    return decorate


def _hint(signature: inspect.Signature, args: tuple[object, ...], names: Mapping[str, object]) -> str:
    """Return a hint about the correct call for arguments that do not match the signature."""
    arguments = [item for item in signature.parameters.values() if item.name != "self"]
    unknown = next((name for name in names if name not in signature.parameters), None)
    if unknown is not None:
        return did_you_mean(unknown, signature.parameters) or f"; it takes {', '.join(item.name for item in arguments)}"
    positional = [item for item in signature.parameters.values() if item.kind is not item.KEYWORD_ONLY]
    if len(args) > len(positional):
        named = [f"{item.name}=..." for item in arguments if item.kind is item.KEYWORD_ONLY]
        return f"; give by name: {', '.join(named)}" if named else ""
    return ""
