"""Shell completion of topic, group and config names. There are none if the names are not available in time."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog as library
from sparklog.console import parameters
from sparklog.groups.lag import Groups
from tests.support.command_line import invoke

Complete = Callable[[str], list[str]]


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Request the completions of the last word of a line, as bash does."""
    monkeypatch.setenv("SPARKLOG_CONFIG", str(tmp_path / "settings.toml"))
    (tmp_path / "settings.toml").write_text(f'[roots]\nprod = "{tmp_path / "root"}"\n')
    log = library.open(tmp_path / "root", create=True)
    for name in ("orders", "old", "clicks"):
        log.create_topic(name)
    Groups(log).group("billing").alter({"orders": {0: 0}})

    def ask(line: str) -> list[str]:
        words = shlex.split(line.replace("ROOT", str(tmp_path / "root")))
        words += [""] if line.endswith(" ") else []
        env = {
            "_SPARKLOG_COMPLETE": "bash_complete",
            "COMP_WORDS": shlex.join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        result = invoke([], {**env, "SPARKLOG_ROOT": None})
        assert (result.exit_code, result.stderr) == (0, "")
        return [line.removeprefix("plain,") for line in result.stdout.split()]

    return ask


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("sparklog consume --root ROOT o", ["old", "orders"]),
        ("sparklog topics describe --root ROOT ", ["clicks", "old", "orders"]),
        ("sparklog consume --root prod --topic c", ["clicks"]),
        ("sparklog verify --root ROOT --topic clicks,or", ["clicks,orders"]),
        ("sparklog groups describe --root ROOT b", ["billing"]),
        ("sparklog consume --root ROOT --group ", ["billing"]),
        ("sparklog configs docs retention.b", ["retention.bytes"]),
        ("sparklog consume --root ROOT --iso", ["--isolation-level"]),
        ("sparklog consume --root /not/there o", []),
        ("sparklog consume o", []),
    ],
)
def test_completion_lists_names_of_the_given_root(complete: Complete, line: str, names: list[str]) -> None:
    assert complete(line) == names


def test_completion_uses_the_default_root(complete: Complete, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f'root = "prod"\n{settings.read_text()}')
    assert complete("sparklog consume c") == ["clicks"]


def test_completion_is_empty_on_errors_and_timeouts(
    complete: Complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "SECONDS", 0.01)
    monkeypatch.setattr("sparklog.log.topic.root.RootView.topics", lambda self: time.sleep(0.5) or ["late"])
    assert complete("sparklog consume --root ROOT ") == []
    (tmp_path / "settings.toml").write_text("nonsense")
    assert complete("sparklog consume --root ROOT ") == []
