"""Test `scripts/mutants.py`: which expressions it changes, and when it reports a mutant as killed or survived."""

from __future__ import annotations

import random

import pytest

from scripts.mutants import (
    EXCLUDED,
    KILLED,
    REPOSITORY,
    SURVIVED,
    UNTESTED,
    MutantResult,
    mutants_of,
    report_of,
    try_module,
)

SOURCE = '''
LIMIT = 5

def first(values: list[int] | None, low: int) -> int | None:
    """Return the first value of at least `low`."""
    for value in values or ():
        if value >= low and not value == 7:
            return value + 1
    raise ValueError(f"no value from {low + 1} on")
'''


def changes(source: str) -> dict[str, str]:
    """Return the changed line by the name of the change."""
    before = source.splitlines()
    mutants = mutants_of("sparklog/format/text.py", source, 100, random.Random(0))
    assert all(mutant.source.splitlines()[mutant.line - 1] != before[mutant.line - 1] for mutant in mutants)
    return {mutant.change: mutant.source.splitlines()[mutant.line - 1].strip() for mutant in mutants}


def test_mutants_change_operators_conditions_and_results() -> None:
    assert changes(SOURCE) == {
        "Or -> And": "for value in (values and ()):",
        "And -> Or": "if (value >= low or not value == 7):",
        "condition negated": "if (not (value >= low and (not value == 7))):",
        "GtE -> Gt": "if (value > low) and not value == 7:",
        "Eq -> NotEq": "if value >= low and not (value != 7):",
        "7 -> 8": "if value >= low and not value == (8):",
        "returns None": "return (None)",
        "Add -> Sub": "return (value - 1)",
        "1 -> 2": "return value + (2)",
    }


def test_mutants_do_not_change_annotations_module_constants_or_messages() -> None:
    assert all("LIMIT" not in line and "raise" not in line and "def" not in line for line in changes(SOURCE).values())


def test_the_seed_selects_the_mutants() -> None:
    def drawn(seed: int) -> list[str]:
        return [mutant.title for mutant in mutants_of("m.py", SOURCE, 3, random.Random(seed))]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(20)}) > 5


def test_report_lists_packages_below_their_bound() -> None:
    module = "sparklog/log/read/fetch.py"
    killed = [MutantResult(module, f"{module}:{line} 1 -> 2", KILLED) for line in range(9)]
    text, good = report_of([*killed, MutantResult(module, f"{module}:80 Lt -> LtE", SURVIVED)])
    assert good
    assert "log/read: 9 of 10 killed (90%" in text
    assert f"survived: {module}:80 Lt -> LtE" in text
    text, good = report_of([*killed[:3], *[MutantResult(module, f"{module}:{line} x", SURVIVED) for line in range(7)]])
    assert not good
    assert "BELOW ITS BOUND" in text
    assert not report_of([MutantResult(module, module, UNTESTED)])[1]


def test_excluded_modules_exist() -> None:
    assert [path for path in EXCLUDED if not (REPOSITORY / path).exists()] == []


@pytest.mark.slow
def test_the_tests_of_leases_kill_most_mutants() -> None:
    results = try_module("sparklog/maintenance/leases.py", 6, "a seed")
    assert {result.result for result in results} <= {KILLED, SURVIVED}
    assert sum(result.result == KILLED for result in results) >= len(results) / 2
