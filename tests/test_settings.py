"""Test settings: their types parse strings and accept Python values, and their errors list the valid values."""

from __future__ import annotations

import pytest

from sparklog.common.parsing import INT32_MAX, INT64_MIN
from sparklog.common.settings import (
    BOOLEAN,
    POSITIVE,
    PROPER_FRACTION,
    SHARE,
    Setting,
    ValueType,
    int32,
    int64,
    integer_range,
    markdown_table,
    one_of,
    or_never,
    to_string,
)
from sparklog.errors import BadRequest


def test_range_omits_64_bit_limits() -> None:
    assert integer_range(INT64_MIN) == "an integer"
    assert integer_range(INT64_MIN, 9) == "an integer of at most 9"
    assert integer_range(0) == "an integer of at least 0"
    assert integer_range(1, 9) == "an integer from 1 to 9"


@pytest.mark.parametrize(
    ("kind", "values", "wrong"),
    [
        (BOOLEAN, {"true": True, "False": False}, ["yes", "1", ""]),
        (int32(1), {"1": 1, str(INT32_MAX): INT32_MAX}, ["0", str(INT32_MAX + 1), "1_0", "1.0", "x"]),
        (int64(-1, 5), {"-1": -1, "5": 5}, ["-2", "6"]),
        (or_never(int32(1)), {"1": 1, "-1": -1}, ["0", "-2"]),
        (or_never(int64(1), -9), {"-9": -9}, ["0", "-10", "-0"]),
        (one_of("a", "b"), {"a": "a", "b": "b"}, ["A", "", "c"]),
        (SHARE, {"0": 0.0, "1": 1.0}, ["1.1", "-0.1", "nan", "half"]),
        (PROPER_FRACTION, {"0.5": 0.5}, ["0", "1"]),
        (POSITIVE, {"0.5": 0.5}, ["0", "inf", "nan"]),
    ],
)
def test_types_accept_strings_and_values(kind: ValueType, values: dict[str, object], wrong: list[str]) -> None:
    for text, value in values.items():
        assert kind.parse(text) == value
        if value != -1 and value != -9:
            assert kind.accepts(value)
    for text in wrong:
        with pytest.raises(ValueError):
            kind.parse(text)
        assert not kind.accepts(text)
    assert kind.or_none().accepts(None)
    assert not kind.accepts(None)


def test_error_reports_name_valid_values_value_and_nearest_choice() -> None:
    row = Setting("color", one_of("red", "green"), "red", "Its color.", aliases=("colour",))
    with pytest.raises(BadRequest, match=r"^color must be red or green, found 'gren'; did you mean 'green'\?$"):
        row.parse(" gren ")
    assert row.parse("red") == row.default_text == "red"
    assert markdown_table([row], ["name", "default", "valid", "what it does"]) == (
        "| name | default | valid | what it does |\n|---|---|---|---|\n"
        "| `color` | `red` | red or green | Its color. Also accepted as `colour`. |\n"
    )


def test_to_string_returns_the_stored_form() -> None:
    assert [to_string(value) for value in (True, 7, ("a", "b"), None, 0.5)] == ["true", "7", "a,b", "", "0.5"]
