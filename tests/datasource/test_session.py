"""The settings of a session, and the check of Spark's workers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparklog
from sparklog.datasource import session
from sparklog.datasource.session import set_workers_python, start_problem, worker_problem, workers_python
from tests.datasource.spark_session import LAUNCHING, REPOSITORY, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = REPOSITORY / "conf" / "sparklog-python"


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
        ({}, {}, "/here/python"),
        ({"spark.master": "local[2]"}, {}, "/here/python"),
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
    set_workers_python(options, environ, "/here/python")
    assert environ.get("PYSPARK_PYTHON") == python


def test_a_format_that_spark_finds_is_planned_by_the_same_python_as_its_tasks() -> None:
    """Spark's `PythonUtils.defaultPythonExec` is PYSPARK_DRIVER_PYTHON where that is set, and starts both."""
    environ = {"PYSPARK_DRIVER_PYTHON": "jupyter"}
    set_workers_python({}, environ, "/here/python")
    assert environ == {"PYSPARK_DRIVER_PYTHON": "/here/python", "PYSPARK_PYTHON": "/here/python"}
    kept = {"PYSPARK_DRIVER_PYTHON": "/users/python", "PYSPARK_PYTHON": "/users/workers"}
    environ = dict(kept)
    set_workers_python({}, environ, "/here/python")
    assert environ == kept


def test_workers_start_by_the_script_where_it_was_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    assert workers_python() == str(tmp_path / "python3")
    shutil.copy(SCRIPT, tmp_path)
    assert workers_python() == str(tmp_path / "sparklog-python")
    for fast_start, name in ((True, "sparklog-python"), (False, "python3")):
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        sparklog.configure(Builder(), fast_start=fast_start)
        assert os.environ["PYSPARK_PYTHON"] == str(tmp_path / name)


@pytest.mark.parametrize(
    ("installed", "of_spark", "is_dropped"),
    [
        (["4.1.0"], "4.1.0", True),
        (["4.1.0"], "4.1.1", False),
        ([None], "4.1.0", False),
        (["4.1.0", None], "4.1.0", False),
    ],
)
def test_the_script_leaves_out_the_zip_of_the_same_release_alone(
    tmp_path: Path, installed: Sequence[str | None], of_spark: str, is_dropped: bool
) -> None:
    """`installed`: the pyspark of each Python beside the script; with two it is not clear which is `python3`.

    They have py4j 0.10. Spark's jar has no Python.
    """
    home, scripts = tmp_path / "spark home", tmp_path / "bin"
    for number, release in enumerate(installed):
        package = tmp_path / "lib" / f"python3.{number}" / "site-packages" / "pyspark"
        package.mkdir(parents=True)
        (package.parent / "py4j-0.10.dist-info").mkdir()
        if release is not None:
            (package / "version.py").write_text(f"# License\n\n__version__: str = '{release}'\n")
    (home / "jars").mkdir(parents=True)
    (home / "jars" / f"spark-core_2.13-{of_spark}.jar").touch()
    scripts.mkdir()
    shutil.copy(SCRIPT, scripts)
    (scripts / "python3").write_text('#!/bin/sh\nprintf "%s\\n" "${PYTHONPATH-none}" "$@"\n')
    (scripts / "python3").chmod(0o755)

    def start(**environ: str) -> list[str]:
        command = [scripts / "sparklog-python", "-m", "a b"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()

    spark_zip = f"{home}/python/lib/pyspark.zip"
    rest = f"{home}/python/lib/py4j-0.9-src.zip:/elsewhere/python/lib/pyspark.zip:/a *"
    kept = rest if is_dropped else f"{spark_zip}:{rest}"
    assert start(PYTHONPATH=f"{spark_zip}:{rest}") == [kept, "-m", "a b"]
    py4j, jar = f"{home}/python/lib/py4j-0.10-src.zip", f"{home}/jars/spark-core_2.13-{of_spark}.jar"
    assert start(PYTHONPATH=f"{py4j}:{jar}:/a") == ["/a" if len(installed) == 1 else f"{py4j}:/a", "-m", "a b"]
    assert start() == ["none", "-m", "a b"]
    # A distribution of Spark has the folder that its zip was made of.
    (home / "python" / "pyspark").mkdir(parents=True)
    (home / "python" / "pyspark" / "__init__.py").touch()
    kept = rest if is_dropped else f"{home}/python:{rest}"
    assert start(PYTHONPATH=f"{spark_zip}:{rest}") == [kept, "-m", "a b"]
    # pip of Debian puts scripts where python3 is not.
    (scripts / "python3").rename(tmp_path / "python3")
    assert start(PATH=str(tmp_path)) == ["none", "-m", "a b"]


def test_another_sparklog_in_the_workers_is_a_problem() -> None:
    worker = {"host": "h2", "python": "/p"}
    assert worker_problem({**worker, "sparklog": "1"}, "1") == ""
    assert worker_problem({**worker, "sparklog": "0"}, "1") == (
        "Spark's workers on h2 are /p, which has sparklog 0, this program has 1"
    )


FAILURE = """An error occurred while calling o52.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most recent \
failure: Lost task 1.3 in stage 0.0 (TID 5) (10.0.0.7 executor 1): java.io.IOException: Cannot run program "/p": \
error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
"""


def test_workers_that_do_not_start_are_one_line_with_their_host() -> None:
    line = start_problem(FAILURE)
    reason = 'java.io.IOException: Cannot run program "/p": error=2, No such file or directory'
    assert line == f"Spark's Python workers do not start on 10.0.0.7 ({reason})"


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


@pytest.mark.slow
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


ON_TWO_EXECUTORS = """
import sys
import sparklog
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local-cluster[2,1,512]").config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "512m").config("spark.driver.memory", "512m")
builder = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
builder = builder.config("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s")
spark = builder.getOrCreate()
try:
    sparklog.register(spark)
except sparklog.BadRequest as error:
    print(f"refused: {error}")
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("exec PYTHON -S", "do not start on 127.0.0.1 (PYTHON: Error while finding module specification for 'pyspark."),
        ("PYTHONPATH=SITE exec PYTHON -S", "on HOST are PYTHON, which cannot import sparklog (ModuleNotFoundError"),
    ],
)
@pytest.mark.usefixtures("spark_folder")
def test_a_broken_python_of_one_executor_of_two_is_one_line_with_its_host(
    tmp_path: Path, number: int, broken: str, says: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name in ("pyspark", "py4j"):
        (site / name).symlink_to(Path(str(getattr(find_spec(name), "origin", ""))).parent)
    python = tmp_path / "python-of-some"
    bare = f'case "$PWD" in */app-*/{number}) {broken} "$@";; esac'.replace("SITE", str(site))
    python.write_text(f'#!/bin/sh\n{bare}\nexec PYTHON "$@"\n'.replace("PYTHON ", f"{sys.executable} "))
    python.chmod(0o755)
    given = {**os.environ, **environment(), "PYSPARK_PYTHON": str(python)}
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_EXECUTORS], cwd=tmp_path, env=given, capture_output=True, text=True, check=False
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("refused: ")]
    assert says.replace("PYTHON", sys.executable).replace("HOST", socket.gethostname()) in line
