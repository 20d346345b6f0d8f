"""The command line that the maintenance jobs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.jobs.common import Maintenance, parse


def parsed(*given: str) -> Maintenance:
    return parse("retain", Maintenance, "Retain.", given)


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKLOG_ROOT", raising=False)


def test_root_is_set_by_option_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOG_ROOT", "/data/log")
    assert parsed().root == "/data/log"
    assert parsed("--root", "/else").root == "/else"


def test_defaults_are_all_topics_and_the_stores_clock() -> None:
    chosen = parsed("--root", "r")
    assert (chosen.topics, chosen.now_ms, chosen.dry_run, chosen.as_json) == ((), None, False, False)
    assert chosen.settings_at(77).now_ms == 77


def test_topics_may_be_repeated_or_separated_by_commas() -> None:
    assert parsed("--root", "r", "--topic", "b,a", "--topic", "c, a,").topics == ("b", "a", "c")


def test_now_ms_overrides_the_stores_clock() -> None:
    assert parsed("--root", "r", "--now-ms", "5").settings_at(77).now_ms == 5


def test_properties_file_sets_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "p.properties"
    file.write_text("log.retention.ms=5\nlog.cleaner.dedupe.buffer.size=2000000\n")
    settings = parsed("--root", "r", "--properties", str(file), "--dry-run", "--json").settings_at(1)
    assert settings.defaults == {"retention.ms": "5"}
    assert settings.dedupe_buffer_bytes == 2_000_000


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "p.properties"
    file.write_text("\ufefflog.retention.ms=5\n", encoding="utf-8")
    assert parsed("--root", "r", "--properties", str(file)).settings.defaults == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "--root"),
        (["--root", "r", "--topic", "a/b"], "'a/b'"),
        (["--root", "r", "--topic", ","], "expected a value, found ','"),
        (["--root", "r", "--topic", "a/b"], "a/b"),
        (["--root", "r", "--now-ms", "soon"], "--now-ms"),
        (["--root", "r", "--now-ms", "-1"], "--now-ms"),
        (["--root", "r", "--now-ms", "9" * 30], "--now-ms"),
        (
            ["--root", "r", "--properties", "/nowhere/x.properties"],
            "failed to read the properties file '/nowhere/x.properties'",
        ),
        (["--root", "r", "--wait"], "--wait"),
        (["--root"], "Option '--root' requires an argument. (see 'sparklog retain --help')"),
    ],
)
def test_invalid_usage_exits_with_2_and_a_message(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parsed(*given)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_invalid_property_is_invalid_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.properties"
    file.write_text("log.retention.minute=5\n")
    with pytest.raises(SystemExit) as stopped:
        parsed("--root", "r", "--properties", str(file))
    assert stopped.value.code == 2
    assert "did you mean 'log.retention.minutes'?" in capsys.readouterr().err
