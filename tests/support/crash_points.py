"""Where a process can die: after each request that changes what others see, and before the first of all.

Between two of these a process changes nothing, so to die at all of them is to die anywhere. The slow run dies at each
request, before and after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sparklog.testing.faulty_store import FaultKind

CHANGING = ("create", "overwrite", "close", "delete", "delete_many")
"""Requests that change something. An object that is not closed does not exist."""


def changes(label: str) -> bool:
    """True if a request with this label, such as `create:commit`, changes something."""
    return label.partition(":")[0] in CHANGING


def crash_points(labels: Sequence[str]) -> list[Any]:
    """Return parameters `point` and `kind` for a test that dies at one of these requests."""
    found = []
    for point, label in enumerate(labels):
        for kind in (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER):
            needed = changes(label) if kind is FaultKind.CRASH_AFTER else point == 0
            found.append(pytest.param(point, kind, marks=() if needed else pytest.mark.slow))
    return found
