"""Fixtures of the simulation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.small_limits import small_limits


@pytest.fixture(autouse=True)
def few_commits_per_checkpoint() -> Iterator[None]:
    """A checkpoint every four commits, so that short stories have some."""
    with small_limits(checkpoint_commits=4):
        yield
