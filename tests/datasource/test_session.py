"""The settings of a session, and the check of Spark's workers."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparklog
from sparklog.datasource import session
from sparklog.datasource.data_source import SparklogDataSource
from sparklog.datasource.session import choose_pythons, start_problem, worker_problem, workers_python
from tests.datasource.spark_session import LAUNCHING, REPOSITORY, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = REPOSITORY / "conf" / "sparklog-python"


class Builder:
    """The part of `SparkSession.builder` that `configure` needs."""

    def __init__(self, **options: str) -> None:
        self._options: dict[str, str] = dict(options)

    def config(self, name: str, value: str) -> None:
        self._options[name] = value


def test_configure_sets_missing_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "kept")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")
    given = {"spark.python.unix.domain.socket.enabled": "false"}
    builder = Builder(**given)
    assert sparklog.configure(builder) is builder
    assert builder._options == {**session.SETTINGS, **given, session.TASKS_PYTHON: "kept"}
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == workers_python()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sparklog.configure(None), "builder must be SparkSession.builder, found None"),
        (lambda: sparklog.register(Builder()), "spark must be a SparkSession, found <"),
        (lambda: sparklog.watch("x"), "spark must be a SparkSession, found 'x'"),
        (lambda: sparklog.run_query(None), "start must be a function that starts the query, found None"),
        (lambda: sparklog.partitioned(None, 2), "df must be a DataFrame, found None"),
    ],
)
def test_invalid_arguments_are_reported(call: Callable[[], object], says: str) -> None:
    with pytest.raises(sparklog.BadRequest, match=f"^{re.escape(says)}"):
        call()


THIS = {"PYSPARK_PYTHON": "/here/python", "PYSPARK_DRIVER_PYTHON": "/here/python"}
PLANNING = {"PYSPARK_DRIVER_PYTHON": "/here/python"}


@pytest.mark.parametrize(
    ("options", "environ", "chosen", "tasks"),
    [
        ({}, {}, THIS, None),
        ({"spark.master": "local[2]"}, {}, THIS, None),
        ({}, {"PYSPARK_DRIVER_PYTHON": "jupyter"}, THIS, None),
        ({}, {"SPARK_REMOTE": "local[2]"}, THIS, None),
        ({}, {"PYSPARK_PYTHON": "/opt/python"}, PLANNING, "/opt/python"),
        ({}, {"PYSPARK_PYTHON": "/opt/python", "PYSPARK_DRIVER_PYTHON": "jupyter"}, PLANNING, "/opt/python"),
        ({"spark.pyspark.python": "/opt/python"}, {}, PLANNING | {"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        ({"spark.master": "yarn"}, {}, PLANNING, "python3"),
        ({}, {"MASTER": "spark://host:7077", "PYSPARK_PYTHON": "./env/python"}, PLANNING, "./env/python"),
        ({}, {"PYSPARK_GATEWAY_PORT": "1"}, {}, "python3"),
        ({}, {"PYSPARK_GATEWAY_PORT": "1", "PYSPARK_PYTHON": "./env/python"}, {}, "./env/python"),
        ({"spark.remote": "sc://host"}, {}, {}, None),
        ({}, {"SPARK_REMOTE": "sc://host"}, {}, None),
    ],
)
def test_the_driver_runs_this_python_and_tasks_the_configured_one(
    options: dict[str, object], environ: dict[str, str], chosen: dict[str, str], tasks: str | None
) -> None:
    before = dict(environ)
    settings = choose_pythons(options, environ, "/here/python")
    assert environ == before | chosen
    assert settings == ({} if tasks is None else {session.TASKS_PYTHON: tasks})


def test_workers_start_by_the_script_where_it_was_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    assert workers_python() == str(tmp_path / "python3")
    shutil.copy(SCRIPT, tmp_path)
    assert workers_python() == str(tmp_path / "sparklog-python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "python3")
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
    """`installed` is the pyspark of each Python next to the script. If there are two, it is not known which one is
    `python3`.

    Both have py4j 0.10. Spark's jar contains no Python.
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
    # A distribution of Spark contains the directory from which its zip was created.
    (home / "python" / "pyspark").mkdir(parents=True)
    (home / "python" / "pyspark" / "__init__.py").touch()
    kept = rest if is_dropped else f"{home}/python:{rest}"
    assert start(PYTHONPATH=f"{spark_zip}:{rest}") == [kept, "-m", "a b"]
    # pip of Debian installs scripts in another directory than python3.
    (scripts / "python3").rename(tmp_path / "python3")
    assert start(PATH=str(tmp_path)) == ["none", "-m", "a b"]


def test_another_sparklog_in_the_workers_is_a_problem() -> None:
    worker = {"host": "h2", "python": "/p"}
    assert worker_problem({**worker, "sparklog": "1"}, "1") == ""
    assert worker_problem({**worker, "sparklog": "0"}, "1") == (
        "Spark's workers on h2 run /p, which has sparklog 0, but this program has sparklog 1"
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
def test_register_does_not_change_a_registered_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, Spark would warn that the source "replaced a statically registered data source"."""
    monkeypatch.setattr(session, "_checked", set())
    monkeypatch.setattr("pyspark.sql.datasource.DataSourceRegistration.register", None)
    sparklog.register(spark.newSession())
    assert session._checked


@pytest.mark.spark
def test_register_plans_with_the_python_of_the_program(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with spark-submit and `spark.pyspark.python`, if Spark would otherwise plan and read with `python3`."""
    pythons: list[str] = []
    context, tasks = spark.sparkContext, spark.sparkContext.pythonExec
    monkeypatch.setattr(
        "pyspark.sql.datasource.DataSourceRegistration.register",
        lambda registration, source: pythons.append(context.pythonExec),
    )
    monkeypatch.setattr(session, "_registered_python", lambda spark: "/usr/bin/another-python")
    fresh = spark.newSession()
    sparklog.register(fresh)
    assert (pythons, context.pythonExec) == ([workers_python()], tasks)
    assert fresh.conf.get(session.TASKS_PYTHON, tasks) == tasks
    # A Python in the same directory plans with the same sparklog.
    monkeypatch.setattr(session, "_registered_python", lambda spark: sys.executable)
    sparklog.register(spark.newSession())
    assert len(pythons) == 1


@pytest.mark.spark
def test_format_is_registered_again_only_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark logs each time that the format was replaced."""
    fresh, sources = spark.newSession(), []
    with session._registering_for(spark.sparkContext, "/usr/bin/another-python"):
        fresh.dataSource.register(SparklogDataSource)
    assert session._registered_python(fresh) == "/usr/bin/another-python"
    assert not session.is_planned_here(fresh)
    sparklog.register(fresh)
    assert session._registered_python(fresh) == workers_python()
    assert session.is_planned_here(fresh)
    monkeypatch.setattr("pyspark.sql.datasource.DataSourceRegistration.register", sources.append)
    sparklog.register(fresh)
    assert sources == []


@pytest.mark.spark
def test_workers_need_the_packages_of_sparklog(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a checkout, Python finds sparklog in the current directory even if the environment is not activated."""
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{REPOSITORY}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(session, "_checked", set())
    fresh = spark.newSession()
    fresh.conf.set(session.TASKS_PYTHON, str(python))
    with pytest.raises(sparklog.BadRequest, match=r"cannot import sparklog \(ModuleNotFoundError: No module named"):
        sparklog.register(fresh)
    assert not session._checked


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
        (
            "PYTHONPATH= exec PYTHON -S",
            "do not start on 127.0.0.1 (PYTHON: Error while finding module specification for 'pyspark.",
        ),
        ("PYTHONPATH=SITE exec PYTHON -S", "on HOST run PYTHON, which cannot import sparklog (ModuleNotFoundError"),
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
