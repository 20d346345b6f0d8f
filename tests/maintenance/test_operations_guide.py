"""The jobs take the commands and options that conf/crontab and docs/guides show, and figures there are the code's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from sparklog.compaction.offset_map import slots_of
from sparklog.jobs import compact, mirror, retain, verify
from sparklog.log.topic.topic import MANY_UNSEALED
from sparklog.maintenance.work_items import Settings

REPOSITORY = Path(__file__).parents[2]
CRONTAB = REPOSITORY / "conf" / "crontab"
GUIDES = "\n".join(page.read_text() for page in sorted((REPOSITORY / "docs" / "guides").glob("*.md")))
JOBS: dict[str, Callable[[list[str]], object]] = {
    "jobs/compact.py": compact.arguments,
    "jobs/retain.py": retain.arguments,
    "jobs/mirror.py": mirror.arguments,
    "jobs/verify.py": verify.arguments,
}
MAINTENANCE = {"jobs/compact.py", "jobs/retain.py"}
FIELDS = re.compile(r"(\S+ +\S+ +\S+ +\S+ +\S+) +(.*)")


def commands(text: str) -> list[str]:
    return [line for line in text.splitlines() if "jobs/" in line and not line.startswith("#")]


def check(command: str) -> str:
    """Parse the command's options as its job does; the job."""
    words = shlex.split(command.split(" >> ")[0])
    at = next(index for index, word in enumerate(words) if word in JOBS)
    JOBS[words[at]](words[at + 1 :])
    for before, word in pairwise(words):
        if before == "--properties-file":
            assert (REPOSITORY / word).is_file()
    return words[at]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("SPARKLOG_ROOT", "/data/log")


def test_the_crontab_runs_both_jobs_with_options_they_take() -> None:
    ran = set()
    for line in commands(CRONTAB.read_text()):
        match = FIELDS.fullmatch(line)
        assert match is not None, line
        assert re.fullmatch(r"[\d*/, -]+", match.group(1)), line
        assert "%" not in match.group(2), "cron takes % for the end of the line"
        assert "flock -n -E 0 " in line, "a run that is still at work is no failure to be mailed"
        ran.add(check(match.group(2)))
    assert ran == MAINTENANCE


def test_the_commands_of_the_guide_are_taken_too() -> None:
    fences = re.findall(r"^```sh\n(.*?)^```$", GUIDES, re.MULTILINE | re.DOTALL)
    assert {check(line) for text in fences for line in commands(text)} == set(JOBS)


def test_every_option_of_the_jobs_is_in_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in JOBS.values():
        with pytest.raises(SystemExit):
            arguments(["--help"])
        options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
        assert options
        assert {option for option in options if option not in GUIDES} == set()


def test_the_sizes_of_the_buffer_hold_the_keys_they_are_said_to() -> None:
    rows = re.findall(r"^\| ([\d.]+) million \| ([\d,]+) ", GUIDES, re.MULTILINE)
    assert len(rows) == 4
    for millions, nbytes in rows:
        keys = int(slots_of(int(nbytes.replace(",", ""))) * Settings(0).dedupe_load_factor)
        assert float(millions) * 1e6 - 1 <= keys < float(millions) * 1.01e6
    assert Settings(0).dedupe_buffer_bytes == 134_217_728


def test_the_warning_is_where_the_guide_says() -> None:
    assert f"From {MANY_UNSEALED:,} unsealed slices" in GUIDES
