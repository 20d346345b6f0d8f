"""Other limits for all stores that are made by code which takes none: whole folders of tests, and simulations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from sparklog.storage.store import Store


@contextmanager
def small_limits(**sizes: float) -> Iterator[None]:
    """Change the limits of all stores that have none of their own; `sizes` by names of `sparklog.limits.Limits`."""
    with mock.patch.object(Store, "limits", replace(Store.limits, **sizes)):  # type: ignore[arg-type]
        yield
