"""Roots with one damaged object: no wrong records, hangs or tracebacks, and the damage is reported and repaired."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.tools.repair.damaged_roots import DAMAGES, Trial, rich_root, trials, type_of

CHUNK = 150


@pytest.fixture(scope="module")
def objects(fixtures: Path) -> dict[str, bytes]:
    return rich_root(fixtures)


def judged(tmp_path: Path, objects: dict[str, bytes], seeds: range) -> list[Trial]:
    done = list(trials(tmp_path / "root", objects, seeds))
    assert [str(trial) for trial in done if trial.wrong] == []
    return done


def test_rich_root_has_all_types_of_objects(objects: dict[str, bytes]) -> None:
    kinds = Counter(map(type_of, objects))
    expected = {"slices", "log", "index", "timeindex", "txnindex", "bloom", "root", "json checkpoint"}
    expected |= {"arrow checkpoint", "decisions entry", "decisions json checkpoint", "register entry", "_groups entry"}
    expected |= {"_groups json checkpoint", "_jobs entry", "_root entry", "commit of small", "commit of files"}
    assert expected <= kinds.keys()
    assert len(DAMAGES) >= 29


def test_root_with_one_damaged_object(tmp_path: Path, objects: dict[str, bytes]) -> None:
    done = judged(tmp_path, objects, range(12))
    assert any(trial.repaired for trial in done)
    assert any(trial.sound for trial in done)
    assert not all(trial.sound for trial in done)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2500, CHUNK))
def test_root_with_one_damaged_object_1500_times(tmp_path: Path, objects: dict[str, bytes], first: int) -> None:
    judged(tmp_path, objects, range(first, first + CHUNK))
