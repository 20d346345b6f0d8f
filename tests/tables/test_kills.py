"""Test that copies that are killed at any point add each record exactly once, to real tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables.kills import TABLES, TableKind, run_series

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_upsert", [False, True], ids=["append", "upsert"])
@pytest.mark.parametrize("kind", TABLES)
def test_killed_copies_add_each_record_once(kind: TableKind, is_upsert: bool, tmp_path: Path) -> None:
    counts = run_series(kind, 20, 1, tmp_path, is_upsert=is_upsert)
    assert counts["kills"] >= 20
    assert {"before create", "after create"} <= set(counts)
    assert counts["aborted transactions"]
