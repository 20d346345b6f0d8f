"""What many cases of a test begin with, built once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sparklog.log.state.configs import TopicConfigs
from sparklog.storage.store import Store

P = ParamSpec("P")
T = TypeVar("T")


def built_once(make: Callable[P, T]) -> Callable[P, T]:
    """Give each call a copy of what `make` returned at first: a world, its stores and its clock.

    A test that dies at each request in turn spends most of its time on building what dies. What is built must hold no
    root or process, which would go on using the first world. Other limits, and records in files, have it built again.
    """
    made: dict[object, T] = {}

    @wraps(make)
    def copied(*arguments: P.args, **named: P.kwargs) -> T:
        patched: tuple[Any, ...] = (Store.limits, vars(TopicConfigs)["inline_records_bytes"])
        key = arguments, tuple(sorted(named.items())), patched
        if key not in made:
            made[key] = make(*arguments, **named)
        return copy.deepcopy(made[key])

    return copied
