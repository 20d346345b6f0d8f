"""Settings: one row for each value that a user can set, and common code to parse, check and document these values.

Topic configs, root defaults, client options, Spark options, store settings and maintenance properties are tables of
`Setting`. The terms are those of Kafka's `ConfigDef`: name, type, default, valid values, documentation. A value is
either a string (in a config, a Spark option or a properties file) or a Python value (a keyword argument). A `ValueType`
handles both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from numbers import Real
from operator import index
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from sparklog.common import parsing
from sparklog.common.parsing import INT32_MAX, INT64_MAX, INT64_MIN, parse_integer
from sparklog.errors import BadRequest, did_you_mean, shortened

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of values, with its range.

    Attributes:
        valid: a description of the valid values that can follow "must be".
        accepts: a function that returns True for a valid Python value.
        parse: a function that converts a string to a value, and raises ValueError if the string is not valid.
        name: Kafka's name of the type.
        choices: all valid values, if they can be listed.
        hints: advice for frequent mistakes, by invalid value.
    """

    valid: str
    accepts: Callable[[Any], bool] = lambda value: isinstance(value, str)
    parse: Callable[[str], Any] = str
    name: str = "string"
    choices: tuple[str, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict, hash=False)

    def or_none(self) -> ValueType:
        """Return the type that also accepts None."""
        accepts = self.accepts
        return replace(self, valid=f"{self.valid} or None", accepts=lambda value: value is None or accepts(value))

    def check(self, name: str, value: object) -> None:
        """Raise `BadRequest` if a Python value is not valid."""
        if not self.accepts(value):
            raise self.invalid(name, value)

    def invalid(self, name: str, value: object) -> BadRequest:
        """Return the error for a value of the setting or argument `name`."""
        hint = ""
        if isinstance(value, (str, bytes)) and self.valid.startswith("a list"):
            hint = f"; use [{shortened(value)}]"
        elif isinstance(value, str):
            hint = did_you_mean(value, self.choices) if is_text(value) else "; UTF-8 cannot encode its characters"
            hint = f"; {self.hints[value]}" if value in self.hints else hint
        return BadRequest(f"{name} must be {self.valid}, found {shortened(value)}{hint}")


def is_text(value: object) -> bool:
    """Return True for a string without lone surrogates, which UTF-8 cannot encode."""
    return isinstance(value, str) and parsing.is_utf8(value)


def is_integer(value: object) -> bool:
    """Return True for an integer, including numpy integers."""
    return as_integer(value) is not None


def as_integer(value: object) -> int | None:
    """Convert an integer, including numpy integers, to an int. Return None for any other value."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def is_real(value: object) -> bool:
    """Return True for a real number, including numpy numbers."""
    return not isinstance(value, bool) and isinstance(value, Real)


def integer_range(low: int, high: int = INT64_MAX) -> str:
    """Describe a range of integers. Limits that are the limits of int64 are omitted."""
    if low == high:
        return str(low)
    if low == INT64_MIN:
        return "an integer" if high == INT64_MAX else f"an integer of at most {high}"
    return f"an integer of at least {low}" if high == INT64_MAX else f"an integer from {low} to {high}"


def int64(low: int, high: int = INT64_MAX, name: str = "long") -> ValueType:
    """Return the type of integers from `low` to `high`."""
    return ValueType(
        integer_range(low, high),
        lambda value: is_integer(value) and low <= index(value) <= high,
        partial(parse_integer, low=low, high=high),
        name,
    )


def or_never(kind: ValueType, low: int = -1) -> ValueType:
    """Return the type that also accepts negative integers down to `low`. A negative integer means never."""

    def parse(text: str) -> Any:
        return parse_integer(text, low, -1) if text.startswith("-") else kind.parse(text)

    return replace(kind, valid=f"{kind.valid}, or -1 (never)", parse=parse)


def int32(low: int, high: int = INT32_MAX) -> ValueType:
    """Return the type of 32-bit integers from `low` to `high`."""
    return int64(low, high, "int")


def one_of(*values: str, hints: Mapping[str, str] | None = None) -> ValueType:
    """Return the type with these values. `hints` contains advice for invalid values that users frequently try."""

    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    valid = f"{', '.join(values[:-1])} or {values[-1]}"
    return ValueType(
        valid, lambda value: isinstance(value, str) and value in values, parse, "string", values, hints or {}
    )


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def number(valid: str, accepts: Callable[[float], bool]) -> ValueType:
    """Return the type of numbers for which `accepts` returns True."""

    def parse(text: str) -> float:
        if not accepts(value := parsing.number(text)):
            raise ValueError(text)
        return value

    def is_valid(value: Any) -> bool:
        return is_real(value) and accepts(float(value))

    return ValueType(valid, is_valid, parse, "double")


BOOLEAN = ValueType("true or false", lambda value: isinstance(value, bool), _boolean, "boolean")
TEXT = ValueType("a string", is_text)
LIST = ValueType("any string", name="list")
ANY = ValueType("any value", lambda _: True)
SHARE = number("a number from 0 to 1", lambda value: 0.0 <= value <= 1.0)
PROPER_FRACTION = number("a number above 0 and below 1", lambda value: 0.0 < value < 1.0)
POSITIVE = number("a number above 0", lambda value: 0.0 < value < float("inf"))


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, which is a row of a table.

    Attributes:
        name: the name of the setting.
        type: the type of its values and their range.
        default: the value if the setting is not set, or None.
        doc: a description of the setting.
        unit: the unit of its values.
        used_by: the commands or schemes that use the setting. Empty if the setting has no effect.
        kafka: the difference from Kafka.
        aliases: other names of the same setting.
        field: the field of an options class that the setting sets, or the topic config whose default it is.
    """

    name: str
    type: ValueType
    default: Any
    doc: str
    unit: str = ""
    used_by: tuple[str, ...] = ()
    kafka: str = ""
    aliases: tuple[str, ...] = ()
    field: str = ""

    @property
    def default_text(self) -> str:
        """The default as a string, or an empty string if there is no default."""
        return to_string(self.default)

    def parse(self, value: object) -> Any:
        """Parse a string, or the string form of another value.

        Raises `BadRequest` if the string is not valid.
        """
        text = to_string(value) if isinstance(value, bool) else str(value).strip()
        try:
            return self.type.parse(text)
        except ValueError:
            raise self.type.invalid(self.name, text) from None


def to_string(value: object) -> str:
    """Return a value as a string, in the form that a topic stores: `true`, `delete,compact`, or an empty string for
    None.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def option(default: Any, doc: str, kind: ValueType | None = None, unit: str = "") -> Setting:
    """Return a setting without a name, for the annotation of a keyword argument (see `keyword_settings`)."""
    return Setting("", kind or TEXT, default, doc, unit)


@cache
def keyword_settings(keywords: type) -> Mapping[str, Setting]:
    """Return the settings of a `TypedDict` by name.

    The annotation of each key contains a setting: `Annotated[int, option(5_000, "How often.", int64(0))]`. The
    annotations `bool` and `Literal` determine the value type of a setting.
    """
    settings = {}
    for name, annotation in get_type_hints(keywords, include_extras=True).items():
        hint, setting = get_args(annotation)
        members = get_args(hint)
        kind = setting.type
        if hint is bool and kind is TEXT:
            kind = BOOLEAN
        elif get_origin(hint) is Literal:
            kind = one_of(*members)
        settings[name] = replace(setting, name=name, type=kind.or_none() if type(None) in members else kind)
    return settings


def with_defaults(keywords: type[K], values: K) -> K:
    """Return keyword arguments. Missing arguments get their default values."""
    defaults = {name: setting.default for name, setting in keyword_settings(cast("type", keywords)).items()}
    return cast("K", defaults | cast("dict[str, Any]", values))


def by_name(settings: Iterable[Setting]) -> dict[str, Setting]:
    """Return settings by name."""
    return {setting.name: setting for setting in settings}


_CELLS: Mapping[str, Callable[[Setting], str]] = {
    "name": lambda row: f"`{row.name}`",
    "type": lambda row: row.type.name,
    "default": lambda row: row.default_text and f"`{row.default_text}`",
    "valid": lambda row: row.type.valid,
    "unit": lambda row: row.unit,
    "used by": lambda row: ", ".join(f"`{user}`" if " " in user else user for user in row.used_by) or "no command",
    "what it does": lambda row: (
        row.doc + (f" Also accepted as {', '.join(f'`{n}`' for n in row.aliases)}." * bool(row.aliases))
    ),
    "Kafka 4.1": lambda row: row.kafka,
    "Kafka's connector": lambda row: row.kafka,
}


def markdown_table(settings: Iterable[Setting], columns: Sequence[str]) -> str:
    """Return a table of settings for the documentation. The table has the columns with these headings."""
    rows = ([_CELLS[column](row) for column in columns] for row in settings)
    header = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    return header + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
