"""Invalid values and misspelled names of every option of the data source, generated from the table of options."""

from __future__ import annotations

from collections.abc import Callable

from sparklog.common.settings import Setting
from sparklog.datasource.option_table import LEVELS, OPTIONS
from sparklog.datasource.options import parse_options
from sparklog.errors import BadRequest
from sparklog.storage.cloud_settings import SETTINGS

LONG = "9" * 5000
NUMBERS = ("", "x", "1.5", "1e3", "1_000", "\u0663", "nan", "inf", "9" * 30, LONG, "-9" * 9, "\ud800")
JSON = (
    *("[", "[]", "5", "null", '{"t":1}', '{"t":{}}', '{"t":{"x":1}}', '{"t":{"-1":1}}', '{"t":{"0":-3}}'),
    *('{"t":{"0":1.5}}', '{"t":{"0":true}}', '{"t":{"0":null}}', '{"t":{"0":1,"0":2}}', '{"t":{"2147483648":1}}'),
    *('{"t":{"0":9223372036854775808}}', f'{{"t":{{"{LONG}":1}}}}', "[" * 10_000),
)
WRONG: dict[str, tuple[str, ...]] = {
    "boolean": ("", "yes", "1", "tru", "\ud800"),
    "long": NUMBERS,
    "int": NUMBERS,
    "time": ("", "5 parsecs", "-5m", "1.5h", "m", LONG, "\u0663m", "\ud800"),
    "timestamp": ("", "yesterday", "2026-13-01", "-5", "1e3", LONG, str(1 << 63), "\ud800"),
    "json": JSON,
}
"""Invalid values by the type of an option. The invalid values of a choice are derived from its choices."""
NEEDED = {
    "keyFormat": {"keys": "a"},
    "allPartitions": {"keys": "a"},
    "asOfTimestamp": {"view": "table"},
    "asOfOffsets": {"view": "table"},
}
"""Options without which another option has no effect."""
OF_STORES = {setting.name for setting in SETTINGS}
"""Options that become a part of a URL, which `tests/storage/test_cloud_settings.py` tests."""


def wrong_values(option: Setting) -> tuple[str, ...]:
    if option.name in OF_STORES:
        return ()
    choices = option.type.choices
    if choices:
        return ("", "x", choices[0] + "x", "\ud800")
    return WRONG.get(option.type.name, ())


def refusal(call: Callable[[], object]) -> str:
    """Return the line of the error, or an empty string if there is no one-line `BadRequest`."""
    try:
        call()
    except BadRequest as error:
        return str(error) if "\n" not in str(error) else ""
    return ""


def test_every_invalid_value_is_rejected_by_name() -> None:
    wrong, count = [], 0
    for option in OPTIONS:
        for value in wrong_values(option):
            count += 1
            given = {**NEEDED.get(option.name, {}), option.name.lower(): value}
            said = refusal(lambda: parse_options(given))  # noqa: B023
            if option.name not in said or not named(value, said):
                wrong.append((option.name, value[:40], said[:200]))
    assert wrong == []
    assert count > 250


def named(value: str, said: str) -> bool:
    """Return True if a line contains the value, or the invalid part of the value."""
    parts = [value, *value.replace("{", " ").replace("}", " ").replace(":", " ").replace('"', " ").split()]
    return any(repr(part[:40])[1:-1] in said for part in parts) or "nested too deeply" in said


def test_a_misspelled_name_suggests_the_correct_name() -> None:
    for option in OPTIONS:
        name = option.name.removesuffix("*")
        typo = name[:2] + name[3:]
        assert name in refusal(lambda: parse_options({typo.lower(): "1"})), typo  # noqa: B023


def test_an_option_of_the_other_side_is_refused_or_has_no_effect_with_a_warning() -> None:
    """A read rejects options for writes, and a write rejects options for reads, except client configs."""
    for option in OPTIONS:
        # A read accepts compression levels, like other producer configs.
        if option.name in (*NEEDED, *OF_STORES, *LEVELS.values()) or option.type.name == "json" or "*" in option.name:
            continue
        value = option.default_text or {"long": "1", "timestamp": "1", "boolean": "true"}.get(option.type.name, "t")
        value = option.type.choices[0] if option.type.choices else value
        given = {option.name.lower(): value}
        if said := refusal(lambda: parse_options(given)):  # noqa: B023
            # The option requires another option, or accepts more than one word.
            assert option.name in said or "kafka.group.id" in said, said
            continue
        parsed = parse_options(given)
        answers = {"batch": refusal(parsed.check_read), "write": refusal(parsed.check_write)}
        for use, said in answers.items():
            is_used = use in option.used_by or (use == "batch" and "stream" in option.used_by)
            warned = any(option.name in warning for warning in parsed.idle("write" if use == "write" else "batch"))
            assert is_used == (not said and not (use == "write" and warned)), (option.name, use, said)
            assert is_used or option.name in said or warned, (option.name, use)
