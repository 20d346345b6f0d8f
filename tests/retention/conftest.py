"""Fixtures of the tests of retention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.small_limits import small_limits


@pytest.fixture(autouse=True)
def few_commits_per_checkpoint() -> Iterator[None]:
    """Write a checkpoint every four commits, so that short tests have checkpoints."""
    with small_limits(checkpoint_commits=4):
        yield
