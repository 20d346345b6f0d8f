"""A seed that fails names itself: how to run it again, and the end of its story."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


@contextmanager
def replayable(seed: int, test: str, story: Callable[[], Sequence[str]] = tuple, **settings: object) -> Iterator[None]:
    """Raise what a seed fails with as an AssertionError with the command that repeats it.

    `test` is the file whose `test_one_seed` does so, with SPARKLOG_SEED and the settings that are not None or False;
    `story` is asked once it is needed.
    """
    try:
        yield
    except BaseException as error:
        chosen = {name: value for name, value in settings.items() if value not in (None, False)}
        texts = (f"SPARKLOG_{name.upper()}={1 if value is True else value} " for name, value in chosen.items())
        variables = "".join([*texts, f"SPARKLOG_SEED={seed} "])
        replay = f"{variables}python -m pytest {test} -k test_one_seed"
        lines = [f"seed {seed}: {type(error).__name__}: {error}", f"replay: {replay}", *story()]
        raise AssertionError("\n".join(lines)) from error


class Simulated(Protocol):
    """The run of a seed."""

    @property
    def world(self) -> SimulatedSteps: ...
    @property
    def counters(self) -> dict[str, int]: ...


class SimulatedSteps(Protocol):
    """How many steps a simulated world took, and a line on each."""

    steps: int
    trace: list[str]


def repeat_one_seed(check: Callable[[int], Simulated]) -> int:
    """Run the seed in SPARKLOG_SEED and print its story; without one, any seed. Return how many steps it took."""
    run = check(int(os.environ.get("SPARKLOG_SEED", "7")))
    if "SPARKLOG_SEED" in os.environ:
        print("\n".join(run.world.trace))
        print(dict(run.counters))
    return run.world.steps
