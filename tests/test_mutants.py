"""Mutants of a module: what is changed, and that a change counts as killed or alive by what the tests say."""

from __future__ import annotations

import random

import pytest

from scripts.mutants import ALIVE, KILLED, LEFT_OUT, REPOSITORY, UNTESTED, Outcome, mutants_of, report_of, try_module

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
    """Name of each change -> the line that it changed."""
    before = source.splitlines()
    mutants = mutants_of("sparklog/format/text.py", source, 100, random.Random(0))
    assert all(mutant.source.splitlines()[mutant.line - 1] != before[mutant.line - 1] for mutant in mutants)
    return {mutant.change: mutant.source.splitlines()[mutant.line - 1].strip() for mutant in mutants}


def test_operators_conditions_and_results_are_changed() -> None:
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


def test_types_constants_of_a_module_and_messages_stay() -> None:
    assert all("LIMIT" not in line and "raise" not in line and "def" not in line for line in changes(SOURCE).values())


def test_the_seed_draws_them() -> None:
    def drawn(seed: int) -> list[str]:
        return [mutant.title for mutant in mutants_of("m.py", SOURCE, 3, random.Random(seed))]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(20)}) > 5


def test_a_room_below_its_bound_is_named() -> None:
    module = "sparklog/log/read/fetch.py"
    killed = [Outcome(module, f"{module}:{line} 1 -> 2", KILLED) for line in range(9)]
    text, good = report_of([*killed, Outcome(module, f"{module}:80 Lt -> LtE", ALIVE)])
    assert good
    assert "log/read: 9 of 10 killed (90%" in text
    assert f"alive: {module}:80 Lt -> LtE" in text
    text, good = report_of([*killed[:3], *[Outcome(module, f"{module}:{line} x", ALIVE) for line in range(7)]])
    assert not good
    assert "BELOW ITS BOUND" in text
    assert not report_of([Outcome(module, module, UNTESTED)])[1]


def test_modules_that_are_left_out_exist() -> None:
    assert [path for path in LEFT_OUT if not (REPOSITORY / path).exists()] == []


@pytest.mark.slow
def test_tests_of_a_module_kill_most_of_its_mutants() -> None:
    outcomes = try_module("sparklog/maintenance/leases.py", 6, "a seed")
    assert {outcome.result for outcome in outcomes} <= {KILLED, ALIVE}
    assert sum(outcome.result == KILLED for outcome in outcomes) >= len(outcomes) / 2
