"""Deletable files by listings alone."""

from __future__ import annotations

import numpy as np
import pytest

from sparklog.log.state.history import CommitFiles
from sparklog.retention import vacuum_plan as plan
from sparklog.storage.store import ObjectInfo

DAY = 24 * plan.HOUR_MS
NOW = 1_700_000_000_000


def commits(*versions: tuple[int, int]) -> CommitFiles:
    """Return commits from (version, age in ms)."""
    columns = np.array([(version, 100, NOW - age) for version, age in versions], np.int64).reshape(-1, 3)
    return CommitFiles(columns[:, 0], columns[:, 1], columns[:, 2])


@pytest.mark.parametrize(
    ("found", "floor"),
    [
        ([(0, 5 * DAY), (1, DAY + 1), (2, DAY), (3, DAY - 1), (4, 0)], 2),
        ([(0, 5 * DAY), (1, 5 * DAY)], 1),
        ([(0, 0)], -1),
        ([], -1),
        # After a clock change, an old commit may follow a young one; commits after the young one are ignored.
        ([(0, 5 * DAY), (1, 0), (2, 5 * DAY), (3, 0)], 0),
        # A commit of a stalled writer with a number that was deleted long ago is not part of the log.
        ([(3, 0), (10, 5 * DAY), (11, 2 * DAY), (12, 0)], 11),
        ([(9, 0), (10, 5 * DAY), (11, 2 * DAY), (12, 0)], -1),
    ],
)
def test_floor_version(found: list[tuple[int, int]], floor: int) -> None:
    state = found[-1][0] if found else 0
    assert plan.floor_version(commits(*found), state, NOW, DAY) == floor


def test_floor_is_never_above_the_known_version() -> None:
    assert plan.floor_version(commits((0, 5 * DAY), (1, 5 * DAY), (2, 5 * DAY)), 1, NOW, DAY) == 1


def test_first_young_version() -> None:
    found = commits((0, 9 * DAY), (1, 8 * DAY), (2, 6 * DAY))
    assert plan.first_young_version(found, 2, NOW, 7 * DAY) == 2
    assert plan.first_young_version(found, 2, NOW, 5 * DAY) == 3
    assert plan.first_young_version(found, 2, NOW, 10 * DAY) == 0


def info(key: str, age: int = 0) -> ObjectInfo:
    return ObjectInfo(key, 10, NOW - age)


@pytest.mark.parametrize(
    ("key", "path", "kind"),
    [
        (f"t/append/{7:020d}-abc.slices", f"append/{7:020d}-abc.slices", plan.APPEND),
        (f"t/sealed/3/{7:020d}-abc/{5:020d}.log", f"sealed/3/{7:020d}-abc/{5:020d}.log", plan.SEGMENT),
        (f"t/sealed/3/{7:020d}-abc/{5:020d}.txnindex", f"sealed/3/{7:020d}-abc/{5:020d}.log", plan.INDEX),
        (f"t/sealed/3/{7:020d}-abc/{5:020d}.bloom", f"sealed/3/{7:020d}-abc/{5:020d}.log", plan.FILTER),
        (f"t/append/{7:020d}-abc.bloom", f"append/{7:020d}-abc.slices", plan.FILTER),
    ],
)
def test_data_file_parses_names(key: str, path: str, kind: str) -> None:
    found = plan.data_file(info(key))
    assert found is not None
    assert (found.path, found.kind, found.read_version) == (path, kind, 7)


@pytest.mark.parametrize(
    "below",
    [
        "append/x.slices",
        f"append/{7:020d}-a/b.slices",
        f"sealed/3/{7:020d}-a/{5:020d}.txt",
        "append/7-a.slices",
        "append/7-a.bloom",
    ],
)
def test_unrecognized_names(below: str) -> None:
    assert plan.data_file(info(f"t/{below}")) is None


def test_unreferenced_files_are_selected() -> None:
    files = [
        plan.ListedFile(f"t/f{version}", f"f{version}", version, plan.APPEND, 10) for version in (1, 4, 5, 8, 9, 10, 11)
    ]
    found = plan.unreferenced_files(files, {"f8"}, plan.Reasons(10, deleted=False, created=4, recent_paths={"f5"}))
    assert {victim.key: victim.reason for victim in found} == {
        "t/f1": "its topic was deleted",
        "t/f4": "unreferenced by the commits near version 10",
        "t/f5": "replaced or expired before version 10",
        "t/f9": "unreferenced by the commits near version 10",
    }


def test_own_paths_excludes_other_topics() -> None:
    assert plan.own_paths("t", {"append/a", "/t/append/b", "/other/append/c"}) == {"append/a", "append/b"}


def test_old_commits_are_selected() -> None:
    found = commits(*((version, (20 - version) * DAY) for version in range(12)))
    gone = plan.old_commits("t", found, 10, [(2, 4)], NOW - 13 * DAY)
    assert [victim.key[-7:-5] for victim in gone] == ["00", "01", "05", "06"]
    assert gone[0].reason == "superseded by the checkpoint at version 10"


def test_old_checkpoints_are_selected() -> None:
    half = plan.HOUR_MS // 2
    found = {version: info(f"c{version}", (20 - version) * half + DAY) for version in range(20)}
    gone = plan.old_checkpoints(found, {6, 18, 19}, 6, now_ms=NOW, limit_ms=found[3].modified_ms)
    below = {version for version, reason in gone.items() if "superseded" in reason}
    assert below == {0, 1, 2}
    left = set(found) - set(gone) - {3, 4, 5}
    hours = [found[version].modified_ms // plan.HOUR_MS for version in left - {18, 19}]
    assert len(hours) == len(set(hours))
    assert {6, 18, 19} <= left
    assert plan.commit_retention_ms(DAY) == 7 * DAY
    assert plan.commit_retention_ms(5 * DAY) == 10 * DAY
