"""Argument validation of public calls. An invalid value raises `BadRequest` before the call has any effect.

    @checked(topic=NAME, partitions=NUMBERS.or_none())
    def read(topic: str, partitions: Sequence[int] | None = None): ...

The calls check further conditions, for example whether a topic exists or an offset is in range.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import Parameter
from operator import index
from typing import Any, ParamSpec, TypeVar, get_type_hints

from sparklog.common.settings import (
    BOOLEAN,
    TEXT,
    Setting,
    ValueType,
    as_integer,
    int64,
    is_integer,
    is_real,
    is_text,
    keyword_settings,
    one_of,
)
from sparklog.errors import BadRequest, did_you_mean
from sparklog.storage.store import Store

P = ParamSpec("P")
T = TypeVar("T")
INT64_MAX = 2**63 - 1


def instance(expected: str, *types: type) -> ValueType:
    return ValueType(expected, lambda value: isinstance(value, types))


def _is_list(value: object, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes)) and all(map(accepts, value))


def _is_path(value: object) -> bool:
    # Reject NUL, because system calls raise a Python error for paths that contain NUL.
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    try:
        return isinstance(text, str) and text != "" and "\0" not in text and os.fsencode(text) is not None
    except UnicodeEncodeError:
        return False


def _is_map(value: object, key: Callable[[Any], bool], item: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(map(key, value)) and all(map(item, value.values()))


def _is_position(value: object) -> bool:
    return is_integer(getattr(value, "offset", value))


NAME = TEXT
NAMES = ValueType("a list of strings", lambda value: _is_list(value, is_text))
PATH = ValueType("a path or a URL", _is_path)
LOCATION = ValueType("a path, a URL or a store", lambda value: _is_path(value) or isinstance(value, Store))
INTEGER = ValueType("an integer", is_integer)
NUMBER = int64(0)
NUMBERS = ValueType("a list of integers", lambda value: _is_list(value, is_integer))
TIME = ValueType("a time in milliseconds", lambda value: is_integer(value) and -INT64_MAX <= index(value) <= INT64_MAX)
SECONDS = ValueType("a non-negative number of seconds", lambda value: is_real(value) and value >= 0)
KEYS = ValueType(
    "a list of bytes or strings", lambda value: isinstance(value, Iterable) and not isinstance(value, (str, bytes))
)
KEY = ValueType("bytes or a string", lambda value: isinstance(value, bytes) or is_text(value))
CONFIGS = ValueType("a mapping of names to values", lambda value: _is_map(value, is_text, lambda _: True))
OFFSETS = ValueType("a mapping of partitions to offsets", lambda value: _is_map(value, is_integer, is_integer))
POSITIONS = ValueType(
    "a mapping of topics to mappings of partitions to offsets",
    lambda value: _is_map(value, is_text, lambda rows: isinstance(rows, Mapping)),
)
"""Positions by topic. They are checked together with the topic, so that an error can report the partition."""
LATER_POSITIONS = ValueType(
    POSITIONS.valid, lambda value: _is_map(value, is_text, lambda rows: _is_map(rows, is_integer, _is_position))
)
"""Positions of topics that a later call opens. They are validated completely, so that the later call does not fail."""
PARTITIONS = ValueType(
    "a mapping of topics to lists of partitions",
    lambda value: _is_map(value, is_text, lambda item: _is_list(item, is_integer)),
)
FUNCTION = ValueType("a function", callable)
LIST = instance("a list", list)
THREADS = int64(1)
RENAMED = ValueType("a mapping of names to names", lambda value: _is_map(value, is_text, is_text))

_BY_ANNOTATION: Mapping[str, ValueType] = {
    "bool": BOOLEAN,
    "IsolationLevel": one_of("read_committed", "read_uncommitted"),
    "list[SparklogError] | None": LIST.or_none(),
}
"""Types of arguments by annotation. Annotations are strings, because modules have `from __future__ import annotations`.
"""

_PLAIN = (int, str, bytes, type(None), Mapping)


def checked(options: type | None = None, /, **kinds: ValueType) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that checks the arguments of a call: their names, flags, isolation levels, and the types in
    `kinds`.

    Args:
        options: the `TypedDict` that describes the `**options` of the call (see `keyword_settings`). The keys become
            arguments of the call, and the types, defaults and descriptions of the keys are added to the docstring.
        kinds: value types of other arguments.
    """

    def decorate(call: Callable[P, T]) -> Callable[P, T]:
        signature, doc = inspect.signature(call), call.__doc__
        types = {
            name: _BY_ANNOTATION[item.annotation]
            for name, item in signature.parameters.items()
            if item.annotation in _BY_ANNOTATION
        } | kinds
        if options is not None:
            settings = keyword_settings(options)
            named = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
            hints = get_type_hints(options)
            keywords = [
                Parameter(name, Parameter.KEYWORD_ONLY, default=setting.default, annotation=hints[name])
                for name, setting in settings.items()
            ]
            signature = signature.replace(parameters=[*named, *keywords])
            types |= {name: setting.type for name, setting in settings.items()}
            doc = _with_options(doc or "", settings)
        missing = types.keys() - signature.parameters.keys()
        assert not missing, missing

        @wraps(call)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise BadRequest(f"{call.__name__}: {error}{_hint(signature, args, kwargs)}") from None
            arguments, has_other_numbers = bound.arguments, False
            for name, kind in types.items():
                if name in arguments:
                    kind.check(name, arguments[name])
            for name, value in arguments.items():
                # JSON documents cannot contain numpy numbers.
                if not isinstance(value, _PLAIN) and (number := as_integer(value)) is not None:
                    arguments[name], has_other_numbers = number, True
            return call(*bound.args, **bound.kwargs) if has_other_numbers else call(*args, **kwargs)

        guarded.__signature__ = signature  # type: ignore[attr-defined]
        guarded.__doc__ = doc
        return guarded

    return decorate


def _with_options(doc: str, settings: Mapping[str, Setting]) -> str:
    """Add the options to the end of the section `Args:` of a docstring."""
    lines = "".join(f"        {setting.name}: {setting.doc}\n" for setting in settings.values())
    return doc.replace("\n\n    Returns:\n", f"\n{lines}\n    Returns:\n", 1)


def _hint(signature: inspect.Signature, args: tuple[object, ...], names: Mapping[str, object]) -> str:
    """Return a hint about the correct arguments if the arguments do not match the signature."""
    arguments = [item for item in signature.parameters.values() if item.name != "self"]
    unknown = next((name for name in names if name not in signature.parameters), None)
    if unknown is not None:
        return (
            did_you_mean(unknown, signature.parameters)
            or f"; its arguments are {', '.join(item.name for item in arguments)}"
        )
    positional = [item for item in signature.parameters.values() if item.kind is not item.KEYWORD_ONLY]
    if len(args) > len(positional):
        named = [f"{item.name}=..." for item in arguments if item.kind is item.KEYWORD_ONLY]
        return f"; pass these arguments by name: {', '.join(named)}" if named else ""
    return ""
