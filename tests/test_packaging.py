"""What `pip install sparklog` gives is whole: files that code loads, packages it imports, and no need for Spark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from typing import Any

import pytest

from tests.test_architecture import REPOSITORY, ROOMS, imports, layer, modules

# Spark, pandas and the clients of stores are extras; numba is made of llvmlite, pyspark of py4j; tests of stores bring
# pytest.
NOT_DECLARED = frozenset({"pyspark", "py4j", "pandas", "llvmlite", "pytest", "obstore", "hdfs_native"})


def project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib")
    found: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return found


def plain(name: str) -> str:
    """A distribution's name as packaging compares them."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[ ]", name)[0]).lower()


def test_dependencies_are_those_that_are_imported() -> None:
    declared = {plain(text) for text in project()["project"]["dependencies"]}
    homes = packages_distributions()
    found: set[str] = set()
    for package in ("sparklog", "pyspark_sparklog"):
        for _, file in modules(package):
            found |= {name.partition(".")[0] for _, name in imports(file.read_text())}
    outside = found - NOT_DECLARED - {"sparklog", "pyspark_sparklog"} - set(sys.stdlib_module_names)
    used = {plain(homes[name][0]) for name in outside}
    assert used == declared


def test_the_wheel_has_every_file() -> None:
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {
        "packages": ["sparklog", "pyspark_sparklog"],
        "force-include": {
            "conf": "sparklog/conf",
            "notebooks": "sparklog/tools/inspection/notebook",
            "examples/data/kafka-log-dir": "sparklog/tools/inspection/notebook/kafka-log-dir",
        },
    }, "files are left out or put in by hand"
    data = [file for file in (REPOSITORY / "sparklog" / "tools" / "report" / "templates").iterdir() if file.is_file()]
    assert {"report.html", "parts.html", "report.css", "report.js"} <= {file.name for file in data}
    # hatchling leaves out what git ignores.
    if shutil.which("git") and (REPOSITORY / ".git").exists():
        command = ["git", "check-ignore", *(str(file) for file in [*data, REPOSITORY / "sparklog" / "py.typed"])]
        assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout == ""


WITHOUT_EXTRAS = """
import importlib, json, sys
hidden, names = json.loads(sys.argv[1])


class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(name, name=name)


# Not None in sys.modules: pyarrow takes that for a pandas.
sys.meta_path.insert(0, Hidden)
for name in names:
    importlib.import_module(name)
"""


def test_all_but_the_adapter_imports_without_any_extra() -> None:
    with_spark = ("sparklog.datasource", "sparklog.cli.jobs.")
    names = [name for name, _ in modules("sparklog") if layer(name) in ROOMS and not name.startswith(with_spark)]
    hidden = ["pyspark", "py4j", "pandas", "matplotlib", "nbformat", "nbclient", "prometheus_client", "kafka", "xxhash"]
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, json.dumps([hidden, names])],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert len(names) > 150
