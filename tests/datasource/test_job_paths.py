"""Jobs that start Spark check their paths first, and report a one-line error with exit code 1 without a session."""

from __future__ import annotations

import signal
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest

import sparklog

pytest.importorskip("pyspark", reason="these jobs need Spark: install sparklog[spark]")

from sparklog.doctor import checks

CHECKPOINT = ("--checkpoint", "c")
TABLE = ("--topic", "t", "--table", "table", *CHECKPOINT)
MIRROR = (*CHECKPOINT, "--topics", "t", "--from")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a directory with a root of one topic and a file. A session that starts fails the test."""
    sparklog.open(tmp_path / "root", create=True).create_topic("t")
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", None)
    for name in ("PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("stream", ("--source", "gone", "--root", "new", *CHECKPOINT), "There is no log at"),
        ("stream", ("--source", "file", "--root", "new", *CHECKPOINT), "is a file: use a root"),
        (
            "stream",
            ("--source", "root", "--root", "new", *CHECKPOINT),
            "is a root with the topic t: select topics with",
        ),
        ("stream", ("--source", "root/t", "--root", "file", *CHECKPOINT), "is a file: use a root"),
        ("stream", ("--source", "root/t", "--root", "root/t/new", *CHECKPOINT), "is inside the root"),
        (
            "stream",
            ("--source", "root", "--subscribe-pattern", "(", "--root", "new", *CHECKPOINT),
            "regular expression",
        ),
        ("mirror", (*MIRROR, "kafka://one:1", "--to", "file"), "is a file: use a root"),
        ("mirror", (*MIRROR, "gone", "--to", "kafka://one:1"), "expected a sparklog root at"),
        ("to_delta", ("--root", "gone", *TABLE), "There is no log at"),
        ("to_delta", ("--root", "root", *TABLE, "--starting-offsets", "erliest"), "found 'erliest'"),
        ("from_delta", ("--root", "file", *TABLE, "--key-columns", "id"), "is a file: use a root"),
        ("from_delta", ("--root", "new", *TABLE, "--key-columns", "id"), "there is no Delta table at table"),
    ],
)
def test_a_bad_path_is_one_line_before_spark_starts(
    directory: Path, name: str, given: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_module(f"sparklog.jobs.{name}").main(given) == 1
    said = capsys.readouterr().err
    assert (said.count("\n"), said.startswith(f"sparklog {name.replace('_', '-')}: ")) == (1, True)
    assert says in said
    assert not (directory / "new").exists()


def test_an_interrupt_during_startup_stops_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, nothing would stop the JVM of the session."""
    steps: list[str] = []

    class Session:
        def stop(self) -> None:
            steps.append("stopped")

    class Builder:
        _options: ClassVar[dict[str, object]] = {}

        def master(self, url: str) -> Builder:
            return self

        def appName(self, name: str) -> Builder:  # noqa: N802
            return self

        def config(self, **given: object) -> Builder:
            return self

        def getOrCreate(self) -> Session:  # noqa: N802
            signal.raise_signal(signal.SIGINT)
            steps.append("started")
            return Session()

    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", Builder())
    with pytest.raises(KeyboardInterrupt):
        checks._start_session()
    assert steps == ["started", "stopped"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
