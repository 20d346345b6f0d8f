"""Test an installed wheel in a separate environment, outside of the checkout: commands, jobs and files of conf/."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pyarrow as pa
import pytest

import sparklog
from scripts.run_notebook import NOTEBOOK
from sparklog.version import __version__
from tests.datasource.spark_session import LAUNCHING, has_java
from tests.test_architecture import REPOSITORY, modules
from tests.test_packaging import project

pytestmark = pytest.mark.sweep

KAFKA = REPOSITORY / "examples" / "data" / "kafka-log-dir"


PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source distribution, outside of the checkout."""
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder],
        cwd=REPOSITORY,
        env=building(folder),
        check=True,
    )
    [packed] = folder.glob("sparklog-*.tar.gz")
    assert packed.stat().st_size < 2_000_000
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return packed.with_suffix("").with_suffix("")


def building(folder: Path) -> dict[str, str]:
    """Return environment variables for the build.

    If hatchling is missing, it is installed from the registry for the build.
    """
    if find_spec("hatchling") is not None:
        return dict(os.environ)
    tools = folder / "tools"
    if not tools.exists():
        subprocess.run([*PIP, "install", "--target", tools, *project()["build-system"]["requires"]], check=True)
    return {**os.environ, "PYTHONPATH": str(tools)}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, unpacked: Path) -> Path:
    """Return the `bin` of an environment that contains only the wheel. Its dependencies are those of this environment.

    The wheel is built from the unpacked source distribution, and no registry is used.
    """
    folder = tmp_path_factory.mktemp("wheel")
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [*PIP, "wheel", *offline, "--wheel-dir", folder, unpacked], env=building(unpacked.parent), check=True
    )
    [wheel] = folder.glob("sparklog-*.whl")
    pip = PIP
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True)
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    # A path in a .pth file adds packages, but not the .pth files next to them, so the checkout is not visible.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env" / "bin"


def run(
    installed: Path, where: Path, program: str, *arguments: str | Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment without access to the checkout."""
    left_out = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run(
        [installed / program, *arguments],
        cwd=where,
        env=environment | LAUNCHING | {"SPARK_LOCAL_IP": "127.0.0.1"} | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_tests_run_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    assert os.access(installed / "sparklog-python", os.X_OK)
    code = "import sparklog, pyspark_sparklog; print(sparklog.__file__)"
    place = run(installed, tmp_path, "python", "-c", code).stdout.strip()
    assert Path(place).is_relative_to(installed.parent)


def test_source_distribution_contains_modules_but_no_tests(unpacked: Path) -> None:
    for package in ("sparklog", "pyspark_sparklog"):
        for _, file in modules(package):
            assert (unpacked / file.relative_to(REPOSITORY)).read_bytes() == file.read_bytes()
    assert not (unpacked / "tests").exists()
    assert not list(unpacked.rglob("__pycache__"))


def test_basic_calls(installed: Path, tmp_path: Path) -> None:
    """Create a root, append, scan and run the command, like a new user."""
    code = (
        "import pyarrow as pa, sparklog\n"
        "root = sparklog.open('root', create=True)\n"
        "topic = root.create_topic('t')\n"
        "topic.append(pa.table({'key': ['k'], 'value': ['v']}))\n"
        "print(topic.scan().to_table()['value'].to_pylist())"
    )
    done = run(installed, tmp_path, "python", "-c", code)
    assert done.stdout.splitlines() == ["[b'v']"], done.stderr
    version = run(installed, tmp_path, "sparklog", "--version").stdout
    assert version == f"sparklog {__version__}\n"
    assert run(installed, tmp_path, "sparklog", "topics", "list", "--root", "root").stdout == "t\n"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(not has_java(), reason="needs Java")
def test_demo_of_the_image(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    environ = {"PYSPARK_PYTHON": str(installed / "sparklog-python"), "PYSPARK_DRIVER_PYTHON": str(installed / "python")}
    done = run(installed, tmp_path, "python", "examples/demo.py", **environ)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "3. Follow the topic with a second query that counts" in done.stdout


def test_message_definitions(installed: Path, tmp_path: Path) -> None:
    code = (
        "from sparklog.kafka.messages.message_schema import message, record_types\n"
        "print([len(record_types(folder)) for folder in ('groups', 'shares', 'transactions')])\n"
        "print(message('control', 'VotersRecord').name)"
    )
    done = run(installed, tmp_path, "python", "-c", code)
    assert done.stdout.splitlines() == ["[22, 2, 1]", "VotersRecord"], done.stderr


def test_prices_of_buckets(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "sparklog", "doctor", "--cost")
    assert "S3 Express One Zone" in done.stdout, done.stderr


def test_job_files(installed: Path, tmp_path: Path) -> None:
    files = {path.name: path for path in (*(REPOSITORY / "conf").iterdir(), NOTEBOOK)}
    names = sorted([*files, "sparklog.1"])
    assert run(installed, tmp_path, "sparklog", "conf").stdout.split() == names
    for name in files:
        assert run(installed, tmp_path, "sparklog", "conf", name).stdout == files[name].read_text()
    wrong = run(installed, tmp_path, "sparklog", "conf", "../pyproject.toml")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == (
        f"sparklog: expected one of {', '.join(names)}; found '../pyproject.toml' [SPARKLOG_NOT_FOUND]\n"
    )


@pytest.mark.slow
def test_notebook_runs_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("orders").append(pa.table({"key": [b"anna"] * 3, "value": [b"x"] * 3}))
    (tmp_path / "log.ipynb").write_text(run(installed, tmp_path, "sparklog", "conf", "dump_segment.ipynb").stdout)
    notebook = nbformat.read(tmp_path / "log.ipynb", as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert cells[0].startswith("PATH = None")
    given = cells[0].replace("PATH = None", f"PATH = {str(tmp_path / 'root' / 'orders')!r}")
    shown = "print(overview.__file__, [ax.get_title(loc='left') for ax in overview.hottest_keys(found).axes])"
    program = "\n".join(line for first in (cells[0], given) for line in (first, cells[1], shown))
    done = run(installed, tmp_path, "python", "-c", program)
    example, given_root = done.stdout.splitlines()[-2:]
    assert Path(example.partition(" ")[0]).is_relative_to(installed.parent), done.stderr
    assert "10 of 83 keys" in example
    assert "1 of 1 keys" in given_root


def compacted(installed: Path, folder: Path, **environ: str) -> str:
    """Compact a topic with three records, none of which expires. Return the output of the compaction on stderr."""
    root = sparklog.open(folder / "root", create=True)
    topic = root.create_topic("t", configs={"segment.bytes": "1048576"})
    for number in range(3):
        topic.append(pa.table({"value": [b"%d" % number]}))
    properties = folder / "sparklog.properties"
    properties.write_text("spark.min.bytes=0\n")
    given = ("--root", root.location, "--roll", "--properties", str(properties))
    done = run(installed, folder, "sparklog", "compact", *given, **environ)
    assert done.returncode == 0, done.stderr
    assert len(list((folder / "root" / "t" / "sealed").rglob("*.log"))) == 1
    expired = run(installed, folder, "sparklog", "retain", "--root", root.location, **environ)
    assert expired.returncode == 0, expired.stderr
    return done.stderr


def test_maintenance(installed: Path, tmp_path: Path) -> None:
    assert "failed to start Spark" in compacted(installed, tmp_path, JAVA_HOME="/none")
    wrong = run(installed, tmp_path, "sparklog", "compact", "--rooot", "x")
    assert wrong.returncode == 2
    # Releases of click print different characters around the option.
    assert re.match("sparklog: No such option:? '?--rooot", wrong.stderr.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(not has_java(), reason="needs Java")
def test_maintenance_with_spark(installed: Path, tmp_path: Path) -> None:
    assert "failed to start Spark" not in compacted(installed, tmp_path)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(not has_java(), reason="needs Java")
def test_streams(installed: Path, tmp_path: Path) -> None:
    given = ["--root", tmp_path / "root", "--checkpoint", tmp_path / "checkpoint"]
    done = run(installed, tmp_path, "sparklog", "stream", "--source", KAFKA, *given)
    assert done.returncode == 0, done.stderr
    assert sparklog.open(tmp_path / "root").topics()
    to = ["--to", "kafka://127.0.0.1:9", "--checkpoint", tmp_path / "out"]
    refused = run(installed, tmp_path, "sparklog", "mirror", "--from", tmp_path / "root", *to, "--pattern", ".*")
    assert refused.returncode == 1
    assert "--packages org.apache.spark:spark-sql-kafka" in refused.stderr
