"""Unreferenced files that may be set aside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.testing.world import HOUR_MS
from sparklog.tools.repair.run import unreferenced_file_fixes
from sparklog.tools.verification.findings import CheckCounts, Finding, Report, UnreferencedFile
from sparklog.tools.verification.topic_log import CheckedTopic, read_topic
from tests.tools.repair.small_root import small_root

YOUNG, OLD = HOUR_MS // 2, 2 * HOUR_MS
TABLE = "latest/_log/checkpoints/{:020d}-abc.arrow"
APPEND = "latest/append/{:020d}-abc.slices"


@pytest.fixture(scope="module")
def topic() -> CheckedTopic:
    world = small_root()
    log = read_topic(world.store, "latest", world.now_ms)
    assert log.state is not None
    log.state = replace(log.state, floor=3)
    log.first = 2
    return log


@pytest.mark.parametrize(
    ("file", "age_ms", "is_free"),
    [
        (APPEND.format(2), YOUNG, True),
        (APPEND.format(3), OLD, False),
        ("latest/sealed/0/" + f"{1:020d}-abc/{0:020d}.index", YOUNG, True),
        ("latest/sealed/0/" + f"{9:020d}-abc/{0:020d}.log", OLD, False),
        (TABLE.format(1), OLD, True),
        (TABLE.format(1), YOUNG, False),
        (TABLE.format(10**6), OLD, False),
        (f"latest/_log/{1:020d}.json", YOUNG, True),
        (f"latest/_log/{2:020d}.json", OLD, False),
        ("latest/notes.txt", OLD, False),
        ("other/append/" + f"{0:020d}-abc.slices", OLD, False),
        ("_groups/g/_log/" + f"{0:020d}.json", OLD, False),
    ],
)
def test_can_set_aside_agrees_with_the_vacuum(topic: CheckedTopic, file: str, age_ms: int, is_free: bool) -> None:
    report = Report("", (), (UnreferencedFile(file, 1, age_ms, ""),), (), CheckCounts())
    assert [fix.drops for fix in unreferenced_file_fixes(report, {"latest": topic})] == ([(file,)] if is_free else [])
    damaged = replace(report, findings=(Finding("commit", "other/_log/1.json", ""),))
    assert not list(unreferenced_file_fixes(damaged, {"latest": topic})), "the damaged log may reference it"
