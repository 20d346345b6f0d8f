"""The torture test for a few seconds, as a test of its roles. `python -m tests.torture` runs it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.supervisor import ROLES, run

QUICK = ("plain", "sequenced", "transactor", "keyed", "copier", "compactor", "repartitioner", "transaction-reader")


def test_selected_roles_for_a_few_seconds(tmp_path: Path) -> None:
    roles = [role for role in ROLES if role.name in QUICK]
    assert run(tmp_path / "run", minutes=0.02, seed=1, pace=8, roles=roles)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_all_roles_for_a_few_seconds(tmp_path: Path) -> None:
    assert run(tmp_path / "run", minutes=3, seed=1)
