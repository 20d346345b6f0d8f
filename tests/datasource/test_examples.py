"""The programs in examples/streams print the output on their pages: in a session, standalone, with Spark Connect."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

import pytest

from tests.datasource import spark_session
from tests.datasource.spark_session import REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = REPOSITORY / "examples" / "streams"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "running")
OWN_SPARK = {"declarative_pipeline"}
"""Examples that start their own Spark process, a local Spark Connect server."""
SLOW = {
    "bad_records",
    "declarative_pipeline",
    "elasticsearch_out",
    "files_in",
    "jdbc_out",
    "read_process_write",
    "registry_values",
    "sessions",
    "snapshot_and_recovery",
    "stream_stream_join",
    "stream_table",
    "two_sinks",
    "windowed_counts",
}
"""Examples that take too long for a default test run."""
NEEDS: dict[str, tuple[str, ...]] = {
    "declarative_pipeline": ("grpc", "pandas", "yaml"),
    "registry_values": ("fastavro",),
    "sessions": ("google.protobuf", "pandas"),
}
"""Packages that an example needs in addition to pyspark."""
SPARK = {"declarative_pipeline": "4.1", "sessions": "4.2", "stream_stream_join": "4.2", "windowed_counts": "4.2"}
"""The first Spark release that prints the output on the page of an example."""
CHANGED = (
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.stateStore.providerClass",
)
"""Settings that the examples change."""

FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[SparkSession, str], str]:
    """Return the `main` of an example. The file is run, so that Spark pickles its functions by value."""
    monkeypatch.syspath_prepend(str(FOLDER))
    main: Callable[[SparkSession, str], str] = runpy.run_path(str(FOLDER / f"{name}.py"))["main"]
    return main


def require(name: str) -> None:
    pytest.importorskip("pyspark", SPARK.get(name))
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package, reason=f"the example {name} needs {package}")


def output(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in CHANGED}
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in NAMES]
)
def test_it_prints_its_output(
    name: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(name)
    if name in OWN_SPARK:
        request.getfixturevalue("connect_port")
    assert load(name, monkeypatch)(spark, str(tmp_path)) + "\n" == output(name)


@pytest.mark.parametrize("name", NAMES)
def test_its_page_shows_its_code_and_output(name: str) -> None:
    page, program = (FOLDER / f"{name}.md").read_text(), (FOLDER / f"{name}.py").read_text()
    fences = FENCED.findall(page)
    code = [text for kind, text in fences if kind == "python"]
    # The page shows parts of functions without their indentation.
    assert [text for text in code if text not in program and indent(text, "    ") not in program] == []
    assert [text for kind, text in fences if kind == "text"] == [output(name)]
    assert "## After a restart" in page
    assert "## For your data" in page
    assert program.count("\n") <= 90
    assert f"({name}.md)" in (FOLDER / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("spark_folder")
def test_one_runs_as_a_program(tmp_path: Path) -> None:
    done = run_program(["word_count.py", "--folder", str(tmp_path)], spark_session.environment())
    assert done.stdout == output("word_count"), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("connect_port")
def test_an_auto_cdc_flow_needs_a_connector_that_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("declarative_pipeline")
    monkeypatch.syspath_prepend(str(FOLDER))
    program = runpy.run_path(str(FOLDER / "declarative_pipeline.py"))
    program["append"](f"{tmp_path}/log", "customers", [("anna", "Bonn", "10:00")])
    with pytest.raises(RuntimeError, match="AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE"):
        program["run_pipeline"](
            str(tmp_path), "auto_cdc.py", {"example.format": "parquet"}, *program["LASTING_CATALOG"]
        )


CONNECT = """
import runpy, sys
from pathlib import Path
from running import session

spark = session()
for name in sys.argv[2:]:
    printed = runpy.run_path(f"{name}.py")["main"](spark, f"{sys.argv[1]}/{name}") + chr(10)
    assert printed == Path(f"{name}.txt").read_text(), (name, printed)
    print(name)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("connect_port")
@pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None or importlib.util.find_spec("pandas") is None,
    reason="Spark Connect needs grpcio and pandas: pip install 'sparklog[connect]'",
)
@pytest.mark.usefixtures("spark_folder")
def test_all_run_over_connect(tmp_path: Path) -> None:
    environment = {**spark_session.environment(), "SPARK_REMOTE": "local[2]"}
    names = [name for name in NAMES if name not in OWN_SPARK]
    done = run_program(["-c", CONNECT, str(tmp_path), *names], environment)
    assert done.stdout.split() == names, done.stderr[-3000:]


def run_program(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=FOLDER,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
