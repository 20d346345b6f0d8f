"""Settings: one row for each value that a user can set, and one way to read, check and document it.

Topic configs, defaults of a root, options of clients, of Spark and of stores, and properties of maintenance are tables
of `Setting`. The terms are those of Kafka's `ConfigDef`: name, type, default, valid values, documentation. A value is
given as a text (a config, an option of Spark, a line of a properties file), or as a Python value (a keyword argument).
A `ValueType` knows both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from numbers import Real
from operator import index
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from sparklog.common import parsing
from sparklog.common.parsing import INT32_MAX, INT64_MAX, INT64_MIN, whole_number
from sparklog.errors import BadRequest, did_you_mean, shortened

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of values and its range.

    Attributes:
        valid: the valid values in words, as they follow "must be".
        accepts: return True for a valid Python value.
        parse: convert a text to a value; raises ValueError for a text that is not valid.
        name: Kafka's name of the type.
        choices: all valid values, if they can be listed.
    """

    valid: str
    accepts: Callable[[Any], bool] = lambda value: isinstance(value, str)
    parse: Callable[[str], Any] = str
    name: str = "string"
    choices: tuple[str, ...] = ()

    def or_none(self) -> ValueType:
        """Return the type that also accepts None."""
        return ValueType(
            f"{self.valid} or None",
            lambda value: value is None or self.accepts(value),
            self.parse,
            self.name,
            self.choices,
        )

    def check(self, name: str, value: object) -> None:
        """Raise `BadRequest` if a Python value is not valid."""
        if not self.accepts(value):
            raise self.invalid(name, value)

    def invalid(self, name: str, value: object) -> BadRequest:
        """Return the error for a value of the setting or argument `name`."""
        hint = ""
        if isinstance(value, (str, bytes)) and self.valid.startswith("a list"):
            hint = f"; give [{shortened(value)}]"
        elif isinstance(value, str):
            is_encodable = is_text(value)
            hint = did_you_mean(value, self.choices) if is_encodable else "; it has characters that UTF-8 cannot encode"
        return BadRequest(f"{name} must be {self.valid}, found {shortened(value)}{hint}")


def is_text(value: object) -> bool:
    """Return True for a string without lone surrogates, which UTF-8 cannot encode."""
    return isinstance(value, str) and parsing.is_utf8(value)


def is_whole(value: object) -> bool:
    """Return True for a whole number, also one of numpy."""
    return as_whole(value) is not None


def as_whole(value: object) -> int | None:
    """Return a whole number, also numpy's, as Python's; None for anything else."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def is_real(value: object) -> bool:
    """Return True for a whole number or a fraction, also one of numpy."""
    return not isinstance(value, bool) and isinstance(value, Real)


def whole_range(low: int, high: int = INT64_MAX) -> str:
    """Return the words for the whole numbers of a range; the limits of 64 bits are not named."""
    if low == high:
        return str(low)
    if low == INT64_MIN:
        return "a whole number" if high == INT64_MAX else f"a whole number of at most {high}"
    return f"a whole number of at least {low}" if high == INT64_MAX else f"a whole number from {low} to {high}"


def whole(low: int, high: int = INT64_MAX, name: str = "long") -> ValueType:
    """Return the type of whole numbers from `low` to `high`."""
    return ValueType(
        whole_range(low, high),
        lambda value: is_whole(value) and low <= index(value) <= high,
        partial(whole_number, low=low, high=high),
        name,
    )


def or_never(kind: ValueType, low: int = -1) -> ValueType:
    """Return the type that also accepts the negative numbers from `low`, which mean never."""

    def parse(text: str) -> Any:
        return whole_number(text, low, -1) if text.startswith("-") else kind.parse(text)

    return ValueType(f"{kind.valid}, or -1: never", kind.accepts, parse, kind.name)


def integer(low: int, high: int = INT32_MAX) -> ValueType:
    """Return the type of whole numbers of 32 bits from `low` to `high`."""
    return whole(low, high, "int")


def one_of(*values: str) -> ValueType:
    """Return the type of these values."""

    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    words = f"{', '.join(values[:-1])} or {values[-1]}"
    return ValueType(words, lambda value: isinstance(value, str) and value in values, parse, "string", values)


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def number(valid: str, accepts: Callable[[float], bool]) -> ValueType:
    """Return the type of the numbers that a function accepts."""

    def parse(text: str) -> float:
        if not accepts(value := parsing.number(text)):
            raise ValueError(text)
        return value

    def is_valid(value: Any) -> bool:
        return is_real(value) and accepts(float(value))

    return ValueType(valid, is_valid, parse, "double")


BOOLEAN = ValueType("true or false", lambda value: isinstance(value, bool), _boolean, "boolean")
TEXT = ValueType("a string", is_text)
LIST = ValueType("any text", name="list")
ANY = ValueType("any value", lambda _: True)
SHARE = number("a number from 0 to 1", lambda value: 0.0 <= value <= 1.0)
PROPER_FRACTION = number("a number above 0 and below 1", lambda value: 0.0 < value < 1.0)
POSITIVE = number("a number above 0", lambda value: 0.0 < value < float("inf"))


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of a table of settings.

    Attributes:
        name: the name that users give.
        type: the type of its values and their range.
        default: the value if it is not set; None if there is none.
        doc: what the setting does.
        unit: the unit of its values.
        used_by: what reads it; empty if it has no effect.
        kafka: how Kafka differs.
        aliases: other names of the same setting.
        field: what it sets: the field of a class of options, or the topic config of which it is a default.
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
        """The default as text; empty if there is none."""
        return text_of(self.default)

    def parse(self, value: object) -> Any:
        """Return the value of a text, or of what is one as text. Raises `BadRequest` if it is not valid."""
        text = text_of(value) if isinstance(value, bool) else str(value).strip()
        try:
            return self.type.parse(text)
        except ValueError:
            raise self.type.invalid(self.name, text) from None


def text_of(value: object) -> str:
    """Return the text of a value, as a topic stores it: `true`, `delete,compact`, empty for None."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def option(default: Any, doc: str, kind: ValueType | None = None, unit: str = "") -> Setting:
    """Return a setting without a name, for the annotation of a keyword argument: see `keyword_settings`."""
    return Setting("", kind or TEXT, default, doc, unit)


@cache
def keyword_settings(keywords: type) -> Mapping[str, Setting]:
    """Return the settings of a `TypedDict` by name.

    The annotation of each key has a setting, `Annotated[int, option(5_000, "How often.", whole(0))]`. The type of its
    values is that of the annotation, if that says all, as `bool` and `Literal` do.
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


def with_defaults(keywords: type[K], given: K) -> K:
    """Return the keyword arguments with the defaults of those that are not given."""
    defaults = {name: setting.default for name, setting in keyword_settings(cast("type", keywords)).items()}
    return cast("K", defaults | cast("dict[str, Any]", given))


def by_name(settings: Iterable[Setting]) -> dict[str, Setting]:
    """Return a table of settings by their names."""
    return {setting.name: setting for setting in settings}


_CELLS: Mapping[str, Callable[[Setting], str]] = {
    "name": lambda row: f"`{row.name}`",
    "type": lambda row: row.type.name,
    "default": lambda row: row.default_text and f"`{row.default_text}`",
    "valid": lambda row: row.type.valid,
    "unit": lambda row: row.unit,
    "used by": lambda row: ", ".join(f"`{user}`" if " " in user else user for user in row.used_by) or "no command",
    "what it does": lambda row: row.doc + (f" Also as {', '.join(f'`{n}`' for n in row.aliases)}." * bool(row.aliases)),
    "Kafka 4.1": lambda row: row.kafka,
    "Kafka's connector": lambda row: row.kafka,
}


def markdown_table(settings: Iterable[Setting], columns: Sequence[str]) -> str:
    """Return a table of settings for the documentation; `columns`: their headings."""
    rows = ([_CELLS[column](row) for column in columns] for row in settings)
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    return head + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
