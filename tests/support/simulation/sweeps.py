"""Ranges of seeds of a simulation, rules that are broken on purpose, and the command that repeats a failed seed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pytest

from sparklog.errors import SparklogError
from sparklog.storage.memory import MemoryStore
from tests.support.seeds import Seeds
from tests.support.simulation.runs import SimulatedRun

R = TypeVar("R", bound=SimulatedRun)
Patch = pytest.MonkeyPatch
VARIABLES = {"bucket": "SPARKLOG_BUCKET", "inline": "SPARKLOG_INLINE", "profile": "SPARKLOG_PROFILE"}
TRACE_LINES = 60


@dataclass(frozen=True)
class Sweep:
    """Seeds to run with similar settings, and counters that the seeds of every run must reach together.

    `settings` returns a seed's settings: `bucket` and `inline` of `SimulatedRun`. `at_least` has total counts,
    `per_seed` counts per seed.
    """

    name: str
    seeds: Seeds
    profile: str | None = None
    settings: Callable[[int], dict[str, Any]] = lambda seed: {}
    at_least: Mapping[str, int] = field(default_factory=dict)
    per_seed: Mapping[str, float] = field(default_factory=dict)


def sweeps(*all_sweeps: Sweep) -> pytest.MarkDecorator:
    """Parametrize a test by `sweep` and `seeds`: few seeds in every run (mark `sweep`), many in the slow one."""
    parameters: list[Any] = []
    for each in all_sweeps:
        for ranges, mark in ((each.seeds.few(), pytest.mark.sweep), (each.seeds.many(), pytest.mark.slow)):
            parameters += [pytest.param(each, *item.values, id=f"{each.name}-{item.id}", marks=mark) for item in ranges]
    return pytest.mark.parametrize(("sweep", "seeds"), parameters)


@dataclass(frozen=True)
class BrokenRule:
    """A rule of the code and how to break it; its docstring says what the broken code does.

    Args:
        mutate: patches the code.
        profile: of the runs.
        seeds: some of these must fail.
        first: the seed that failed when this rule was last changed, to find it sooner.
        settings: `bucket` and `inline` of `SimulatedRun`.
        slow: True: break it in the slow run only.
        message: what the failure must mention.
    """

    mutate: Callable[[Patch], None]
    profile: str | None
    seeds: range
    first: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    slow: bool = False
    message: str = ""


def broken_rules(*rules: BrokenRule) -> pytest.MarkDecorator:
    """Parametrize a test by `rule`, named by the function that breaks it and the profile."""
    parameters = []
    for rule in rules:
        marks = (pytest.mark.slow,) if rule.slow else ()
        name = "-".join(part for part in (rule.mutate.__name__, rule.profile) if part)
        parameters.append(pytest.param(rule, id=name, marks=marks))
    return pytest.mark.parametrize("rule", parameters)


@dataclass(frozen=True)
class Simulation(Generic[R]):
    """A model and the file whose `test_one_seed` repeats one seed of it."""

    model: Callable[..., R]
    test: str

    def run(self, seed: int, profile: str | None = None, **settings: Any) -> R:
        """Run a seed. The failure of a seed has the command that repeats it, and the end of its trace."""
        run: R | None = None
        try:
            run = self.model(seed, profile, **settings)
            run.play()
        except BaseException as error:
            chosen = {"profile": profile, **settings}
            texts = (f"{VARIABLES[name]}={1 if value is True else value} " for name, value in chosen.items() if value)
            command = f"{''.join(texts)}SPARKLOG_SEED={seed} python -m pytest {self.test} -k test_one_seed"
            trace = [] if run is None else run.world.trace[-TRACE_LINES:]
            lines = [f"seed {seed}: {type(error).__name__}: {error}", f"replay: {command}", *trace]
            raise AssertionError("\n".join(lines)) from error
        return run

    def sweep(self, sweep: Sweep, seeds: Iterable[int]) -> Counter[str]:
        """Run these seeds of a sweep; fail if together they reach too little."""
        reached: Counter[str] = Counter()
        tried = 0
        for seed in seeds:
            reached.update(self.run(seed, sweep.profile, **sweep.settings(seed)).counters)
            tried += 1
        required = {**sweep.at_least, **{name: count * tried for name, count in sweep.per_seed.items()}}
        if tried >= sweep.seeds.every_run:
            missing = {name: count for name, count in required.items() if reached[name] < count}
            assert not missing, f"the runs reached too little: at least {missing} of {dict(reached)}"
        return reached

    def run_one(self) -> int:
        """Run the seed in SPARKLOG_SEED and print its trace; without one, run any seed. Return its number of steps."""
        bucket, inline = os.environ.get(VARIABLES["bucket"]), os.environ.get(VARIABLES["inline"])
        settings = {"bucket": True} if bucket else {}
        settings |= {"inline": int(inline)} if inline else {}
        run = self.run(int(os.environ.get("SPARKLOG_SEED", "7")), os.environ.get(VARIABLES["profile"]), **settings)
        if "SPARKLOG_SEED" in os.environ:
            print("\n".join(run.world.trace))
            print(dict(run.counters))
        return run.world.steps

    def assert_repeats(self, seed: int, **settings: Any) -> None:
        """Check that a seed gives the same run twice: the same trace and the same objects."""
        first, second = (self.run(seed, **settings) for _ in range(2))
        assert first.world.trace == second.world.trace
        assert isinstance(first.world.store, MemoryStore)
        assert isinstance(second.world.store, MemoryStore)
        assert first.world.store.snapshot() == second.world.store.snapshot()

    def assert_fails(self, rule: BrokenRule, patch: Patch) -> None:
        """Break a rule and check that a seed fails: by `check_result`, an assertion or an error of the code.

        Any other exception comes from a broken variant that no longer fits the code.
        """
        rule.mutate(patch)
        for seed in sorted(rule.seeds, key=lambda seed: seed != rule.first):
            try:
                self.model(seed, rule.profile, **rule.settings).play()
            except (AssertionError, SparklogError) as error:
                assert rule.message in str(error)  # noqa: PT017
                return
        pytest.fail(f"{rule.seeds} passed without this rule: {rule.mutate.__doc__}")
