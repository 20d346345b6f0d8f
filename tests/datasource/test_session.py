"""The settings of a session, and the check of Spark's workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparklog
from sparklog.datasource import session
from sparklog.datasource.session import set_workers_python, worker_problem
from tests.datasource.spark_session import LAUNCHING, REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Builder:
    """What `configure` needs of `SparkSession.builder`."""

    def __init__(self, **options: str) -> None:
        self._options: dict[str, str] = dict(options)

    def config(self, name: str, value: str) -> None:
        self._options[name] = value


def test_configure_sets_what_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "kept")
    builder = Builder(**{"spark.python.unix.domain.socket.enabled": "false"})
    assert sparklog.configure(builder) is builder
    assert builder._options == {**session.SETTINGS, "spark.python.unix.domain.socket.enabled": "false"}


@pytest.mark.parametrize(
    ("options", "environ", "python"),
    [
        ({}, {}, sys.executable),
        ({"spark.master": "local[2]"}, {}, sys.executable),
        ({"spark.master": "yarn"}, {}, None),
        ({"spark.remote": "sc://host"}, {}, None),
        ({"spark.pyspark.python": "/opt/python"}, {}, None),
        ({}, {"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        ({}, {"PYSPARK_GATEWAY_PORT": "1"}, None),
        ({}, {"SPARK_REMOTE": "sc://host"}, None),
        ({}, {"MASTER": "spark://host:7077"}, None),
    ],
)
def test_workers_become_this_python_in_a_local_session_alone(
    options: dict[str, object], environ: dict[str, str], python: str | None
) -> None:
    set_workers_python(options, environ)
    assert environ.get("PYSPARK_PYTHON") == python


def test_another_sparklog_in_the_workers_is_a_problem() -> None:
    assert worker_problem({"python": "/p", "sparklog": "1"}, "1") == ""
    assert worker_problem({"python": "/p", "sparklog": "0"}, "1") == (
        "Spark's workers (/p) have sparklog 0, this program has 1"
    )


@pytest.mark.spark
def test_register_leaves_a_session_that_knows_the_format_alone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would warn that the source "replaced a statically registered data source"."""
    monkeypatch.setattr(session, "_checked", set())
    monkeypatch.setattr("pyspark.sql.datasource.DataSourceRegistration.register", None)
    sparklog.register(spark.newSession())
    assert session._checked


WITHOUT = """
import sys
sys.path.insert(0, {repository!r})
import sparklog
from pyspark.sql import SparkSession
spark = sparklog.configure(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")).getOrCreate()
try:
    sparklog.register(spark)
except sparklog.BadRequest as error:
    print(f"refused: {{error}}")
spark.stop()
"""


@pytest.mark.spark
def test_workers_without_sparklog_are_one_line_that_names_the_remedy(tmp_path: Path) -> None:
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    code = WITHOUT.format(repository=str(REPOSITORY))
    environment = LAUNCHING | {"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("refused: ")]
    assert "cannot import sparklog (ModuleNotFoundError: No module named 'sparklog'): set PYSPARK_PYTHON" in line
    assert "sparklog.configure(SparkSession.builder)" in line
