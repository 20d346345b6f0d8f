"""Test that each page installs the packages that its program needs, and run each program with only these packages."""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import nbformat
import pytest

from scripts.run_notebook import NOTEBOOK
from tests.datasource.spark_session import has_java
from tests.test_architecture import REPOSITORY
from tests.test_packaging import plain, project

STREAMS = REPOSITORY / "examples" / "streams"
PROGRAMS = sorted(file.stem for file in STREAMS.glob("*.py") if file.stem != "running")
ENGINES = REPOSITORY / "docs" / "guides" / "arrow-engines.md"
PLOTS = REPOSITORY / "docs" / "guides" / "inspect.md"
GUIDES = [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/start/*.md")), *sorted(ENGINES.parent.glob("*.md"))]
SPARK = '".[spark]"'
"""Packages that pages about Spark assume, as docs/start/spark.md and the page of all examples state."""
INSTALL = re.compile(r'pip install ((?:"[^"\n]+"|[a-z]+\b)(?: (?:"[^"\n]+"|[a-z]+\b))*)')
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN_MODULES = {"running", "overview", "parts", "plots", "order_pb2"}
PYTEST = "pytest"
"""The guide to tests assumes that pytest is installed."""
BEHIND: dict[object, set[str]] = {
    "transformWithState": {"pandas", "protobuf"},
    "spark-pipelines": {"grpcio", "grpcio-status", "pandas", "pyyaml"},
    "avro": {"fastavro"},
    **{
        name: {"pandas"}
        for name in ("applyInPandas", "mapInArrow", "mapInPandas", "read_pandas", "toPandas", "to_pandas")
    },
}
"""Packages that a call, or its argument, requires although no line imports them."""


def installs(page: Path) -> list[str]:
    """Return the arguments of `pip install` on the page, such as `".[spark,avro]"`."""
    return INSTALL.findall(page.read_text())


def install_of(name: str) -> str:
    return (*installs(STREAMS / f"{name}.md"), SPARK)[0]


def brought(requirements: Iterable[str]) -> set[str]:
    """Return the distributions that pip installs for these requirements.

    An uninstalled distribution only includes itself.
    """
    seen: set[str] = set()
    left = list(requirements)
    while left:
        text = left.pop()
        name, _, extras = text.partition("[")
        chosen = set(extras.partition("]")[0].split(",")) if extras else set()
        if text not in seen:
            seen |= {text, plain(name)}
            left += _parts("sparklog" if name in (".", "sparklog") or ".whl" in name else plain(name), chosen)
    return seen


def _parts(name: str, extras: set[str]) -> Iterator[str]:
    """Yield the requirements of a distribution without version ranges.

    For sparklog, these are the requirements of the checkout.
    """
    if name == "sparklog":
        here = project()["project"]
        for text in (
            *here["dependencies"],
            *(each for extra in extras for each in here["optional-dependencies"][extra]),
        ):
            yield re.split(r"[<>=!~; ]", text)[0]
        return
    try:
        known = requires(name) or []
    except PackageNotFoundError:
        return
    for text in known:
        extra = re.search(r"""extra == ["']([\w-]+)["']""", text)
        if extra is None or extra[1] in extras:
            yield re.split(r"[<>=!~; (]", text)[0]


homes_of_modules = functools.cache(packages_distributions)


def needed(source: str) -> set[str]:
    """Return the distributions that a program imports, or that its calls require."""
    modules: set[str] = set()
    words: set[object] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.Call):
            words |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    outside = modules - OWN_MODULES - {"sparklog", PYTEST} - set(sys.stdlib_module_names)
    homes = homes_of_modules()
    found = {plain(homes[name][0]) if name in homes else name for name in outside}
    return found.union(*(BEHIND[word] for word in words & BEHIND.keys()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_page_installs_the_required_packages(name: str) -> None:
    install = install_of(name)
    if "[pipelines]" in install:
        pytest.importorskip("pyspark", "4.1")  # Older versions of PySpark do not have this extra.
    source = (STREAMS / f"{name}.py").read_text()
    assert needed(source) - brought(shlex.split(install)) == set()
    asked = re.findall(r"^require\('(.*?)', (.*)\)$", source, re.MULTILINE)
    more = needed(source) - brought(shlex.split(SPARK))
    assert [(words, {plain(each) for each in ast.literal_eval(f"[{names}]")}) for words, names in asked] == (
        [(install, more)] if more else []
    ), "a program says in its first lines what its page says"


def test_shared_example_code_needs_only_the_documented_packages() -> None:
    assert installs(STREAMS / "README.md")[0] == SPARK
    assert needed((STREAMS / "running.py").read_text()) - brought(shlex.split(SPARK)) == set()


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_guide_installs_the_packages_of_its_snippets(page: Path) -> None:
    told = brought(word for text in (SPARK, *installs(page)) for word in shlex.split(text))
    named = {re.split(r"[<>=]", each)[0] for each in told}
    for source in FENCED.findall(page.read_text()):
        assert needed(source) - named == set(), source


def test_plot_guide_installs_the_packages_of_the_notebook() -> None:
    cells = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    modules = [file.read_text() for file in sorted(NOTEBOOK.parent.glob("*.py"))]
    told = brought(word for text in installs(PLOTS) for word in shlex.split(text))
    assert needed("\n".join((*cells, *modules))) - told == set()


def environment(folder: Path, install: str) -> Path:
    """Create an environment with the packages that `pip install` installs for these arguments, in a clone.

    Return its `bin`.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *shlex.split(install)], cwd=REPOSITORY, check=True)
    return folder / "bin"


def run(programs: Path, *arguments: str | Path, where: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run a program in an environment, without access to the environment of the tests."""
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "JAVA_HOME", "TMPDIR")}
    path = os.pathsep.join((str(programs), "/usr/local/bin", "/usr/bin", "/bin"))
    environ = {**kept, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [programs / arguments[0], *arguments[1:]]
    return subprocess.run(command, cwd=where, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not has_java(), reason="needs Java")
@pytest.mark.parametrize("install", sorted({install_of(name) for name in PROGRAMS}))
def test_example_programs_run_with_only_the_documented_packages(install: str, tmp_path: Path) -> None:
    programs = environment(tmp_path / "env", install)
    for name in PROGRAMS:
        program = f"examples/streams/{name}.py"
        if install_of(name) == install:
            done = run(programs, "python", program)
            assert done.stdout == (STREAMS / f"{name}.txt").read_text(), done.stderr[-3000:]
        elif install == SPARK:
            done = run(programs, "python", program)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
            assert done.stderr.endswith(f": pip install {install_of(name)}\n")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_notebook_runs_with_only_the_documented_packages(tmp_path: Path) -> None:
    (install,) = (words for words in re.findall(r'or, from a clone: (".*?")', PLOTS.read_text()))
    programs = environment(tmp_path / "env", install)
    (tmp_path / "log.ipynb").write_text(run(programs, "sparklog", "conf", "dump_segment.ipynb").stdout)
    done = run(programs, "jupyter-execute", "log.ipynb", where=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


SNIPPETS = """
import runpy, sys
import pyarrow as pa, sparklog

topic = sparklog.open("log", create=True).create_topic("orders", partitions=2)
topic.append(pa.table({"key": ["a", "b", "c", "d"], "value": ["1", "2", "3", "4"]}))
for name in sys.argv[1:]:
    runpy.run_path(name)
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_engine_guide_runs_with_only_the_documented_packages(tmp_path: Path) -> None:
    programs = environment(tmp_path / "env", " ".join((".", *installs(ENGINES))))
    sources = [text for text in FENCED.findall(ENGINES.read_text()) if "/data/log" in text]
    for number, source in enumerate(sources):
        (tmp_path / f"{number}.py").write_text(source.replace("/data/log", "log"))
    names = [f"{number}.py" for number in range(len(sources))]
    done = run(programs, "python", "-c", SNIPPETS, *names, where=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(sources) >= 4
