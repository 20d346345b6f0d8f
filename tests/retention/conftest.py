"""Fixtures of the tests of retention."""

from __future__ import annotations

import pytest

from sparklog.log.state import commit_log


@pytest.fixture(autouse=True)
def few_commits_per_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint every four commits, so that short stories have some."""
    monkeypatch.setattr(commit_log, "CHECKPOINT_COMMITS", 4)
