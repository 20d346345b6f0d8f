"""The filter of a job for the standard error of its JVM."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the jobs of Delta need Spark: install sparklog[spark]")

from pyspark.errors import PySparkRuntimeError

from sparklog.errors import Unavailable
from sparklog.jobs import stream
from sparklog.jobs.stream import without_report

REPORT = b""":: loading settings :: url = jar:file:ivy-2.5.3.jar!/ivysettings.xml
Ivy Default Cache set to: .ivy2.5.2/cache
io.delta#delta-spark_4.2_2.13 added as a dependency
:: resolving dependencies :: org.apache.spark#spark-submit-parent-1;1.0
\tconfs: [default]
\tfound io.delta#delta-spark_4.2_2.13;4.4.0 in central
\t|      default     |   5   |   0   |   0   |   0   ||   5   |   0   |
:: retrieving :: org.apache.spark#spark-submit-parent-1
\t5 artifacts copied, 0 already retrieved (14099kB/20ms)
"""
REASON = b'Exception in thread "main" java.lang.RuntimeException:'
WHY = (
    b'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: io.delta#delta-spark: not found]\n'
)


def test_a_report_is_left_out_and_all_else_is_kept() -> None:
    lines = [b"WARN: before\n", *REPORT.splitlines(keepends=True), b"WARN: after\n", b"\tconfs: of others\n"]
    assert list(without_report(lines)) == [b"WARN: before\n", b"WARN: after\n", b"\tconfs: of others\n"]


def test_a_report_that_failed_leaves_its_reason() -> None:
    lines = REPORT.splitlines(keepends=True)[:6]
    assert list(without_report([*lines, b":::: ERRORS\n", WHY, b"\tat org.apache.spark.X\n"])) == [WHY]


@pytest.mark.parametrize("packages", [True, False])
def test_what_the_jvm_writes_passes_also_after_the_start(
    packages: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    running: list[subprocess.Popen[bytes]] = []

    class Session:
        def stop(self) -> None:
            running[0].communicate(b"done\n")

    def start(*_: Any) -> Session:
        """Report, and write a line when the session is stopped."""
        script = 'printf "%s" "$1" >&2; read line; echo "later $line" >&2'
        running.append(subprocess.Popen(["sh", "-c", script, "sh", REPORT], stdin=subprocess.PIPE))
        return Session()

    monkeypatch.setattr(stream, "quiet_session", start)
    settings = {"spark.jars.packages": "io.delta:delta"} if packages else {}
    with stream.streaming_session("name", settings=settings):
        print("of this process", file=sys.stderr)
    for thread in [each for each in threading.enumerate() if each.name == "sparklog-ivy"]:
        thread.join(10)
    said = capfd.readouterr().err
    assert ("later done" in said, "of this process" in said, "Ivy" in said) == (True, True, not packages)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "[download failed: org.slf4j#slf4j-api;2.0.13!slf4j-api.jar]",
            (
                "([download failed: org.slf4j#slf4j-api;2.0.13!slf4j-api.jar]); check network and proxy, "
                "remove ~/.m2/repository/org/slf4j/slf4j-api if it is incomplete, or"
            ),
        ),
        (
            "[unresolved dependency: io.delta#delta-spark_4.2_2.13;4.4.0: not found]",
            "remove ~/.m2/repository/io/delta/delta-spark_4.2_2.13 if it is incomplete, or",
        ),
        ("[something else]", "([something else]); check network and proxy, remove incomplete files below ~/.m2"),
        (None, "(unknown cause); check network and proxy"),
    ],
)
def test_packages_that_cannot_be_fetched_end_with_the_reason_and_a_remedy(
    line: str | None, says: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(*_: Any) -> None:
        if line is not None:
            reported = b":: loading settings ::\n" + REASON + f" {line}\n".encode()
            subprocess.run(["sh", "-c", 'printf "%s" "$1" >&2', "sh", reported], check=True)
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(stream, "quiet_session", start)
    with (
        pytest.raises(Unavailable) as raised,
        stream.streaming_session("name", settings={"spark.jars.packages": "io.delta:delta"}),
    ):
        pass
    assert str(raised.value).startswith("Spark failed to fetch its packages (")
    assert says in str(raised.value)
    assert "--jars or --packages" in str(raised.value)
    capfd.readouterr()
