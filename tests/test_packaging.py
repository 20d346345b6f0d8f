"""What `pip install sparklog` gives is whole: files that code loads, packages it imports, and no need for Spark."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from sparklog.version import __version__
from tests.test_architecture import PACKAGES, REPOSITORY, imports, layer, modules

# Spark, pandas and the clients of stores and tables are extras; numba is made of llvmlite, pyspark of py4j; tests of
# stores bring pytest. Only type checkers, which bring it, import typing_extensions.
NOT_DECLARED = frozenset(
    {
        *("pyspark", "py4j", "pandas", "llvmlite", "pytest", "obstore", "hdfs_native", "typing_extensions"),
        *("pyiceberg", "deltalake"),
    }
)


def project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib")
    found: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return found


def plain(name: str) -> str:
    """A distribution's name as packaging compares them."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[ ]", name)[0]).lower()


def test_dependencies_match_the_imports() -> None:
    declared = {plain(text) for text in project()["project"]["dependencies"]}
    homes = packages_distributions()
    found: set[str] = set()
    for package in ("sparklog", "pyspark_sparklog"):
        for _, file in modules(package):
            found |= {name.partition(".")[0] for _, name in imports(file.read_text())}
    outside = found - NOT_DECLARED - {"sparklog", "pyspark_sparklog"} - set(sys.stdlib_module_names)
    # What only an older Python needs is not installed in a newer one.
    used = {plain(homes.get(name, [name])[0]) for name in outside}
    assert used == declared


def test_wheel_contains_every_file() -> None:
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {
        "packages": ["sparklog", "pyspark_sparklog"],
        "shared-scripts": {"conf/sparklog-python": "sparklog-python"},
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


def conda_recipe() -> dict[str, Any]:
    """The recipe as conda reads it: `{% set %}` and `{{ }}` filled in."""
    recipes = REPOSITORY / "packaging" / "conda"
    text = (recipes / "meta.yaml").read_text()
    read_file = (
        r"""^{% set (\w+) = load_file_regex\(load_file="(.+)", regex_pattern='(.+)', from_recipe_dir=True\) %}$"""
    )
    values = {"PYTHON": "python"}
    for variable, file, pattern in re.findall(read_file, text, re.MULTILINE):
        found = re.search(pattern, (recipes / file).read_text())
        assert found is not None
        values[f"{variable}.group(1)"] = found[1]
    lines = [line for line in text.splitlines() if not line.startswith("{%")]
    filled = re.sub(r"{{ ([\w.()]+) }}", lambda match: values[match[1]], "\n".join(lines))
    recipe: dict[str, Any] = yaml.safe_load(filled)
    return recipe


def requirements(texts: list[str]) -> dict[str, frozenset[str]]:
    """Limits of each distribution by its name; of a text like `numpy>=1.26,<3` or conda's `numpy >=1.26,<3`."""
    return {plain(text): frozenset(re.findall(r"[<>=!~]=?[\w.]+", text)) for text in texts}


def test_conda_recipe_matches_the_project() -> None:
    recipe, declared = conda_recipe(), project()
    described, built = declared["project"], declared["build-system"]["requires"]
    python = ["python" + described["requires-python"]]
    assert (recipe["package"]["name"], str(recipe["package"]["version"])) == (described["name"], __version__)
    needed = recipe["requirements"]
    assert requirements(needed["run"]) == requirements([*described["dependencies"], *python])
    assert requirements(needed["host"]) == requirements([*built, "pip", *python])
    extras = described["optional-dependencies"]
    assert requirements(needed["run_constrained"]) == requirements([*extras["spark"], *extras["gzip"]])
    scripts = [f"{name} = {function}" for name, function in described["scripts"].items()]
    assert recipe["build"]["entry_points"] == scripts
    assert recipe["about"]["license"] == described["license"]
    assert recipe["about"]["summary"] == described["description"]
    source = (REPOSITORY / "packaging" / "conda" / recipe["source"]["path"]).resolve()
    assert source == REPOSITORY
    assert (source / recipe["about"]["license_file"]).exists()


def test_only_the_module_has_the_version() -> None:
    pages = [
        REPOSITORY / "README.md",
        REPOSITORY / "packaging" / "conda" / "meta.yaml",
        *REPOSITORY.glob("docs/*/*.md"),
    ]
    assert [page.name for page in pages if f"sparklog-{__version__}" in page.read_text()] == []
    assert __version__ not in (REPOSITORY / "packaging" / "conda" / "meta.yaml").read_text()
    assert project()["project"]["dynamic"] == ["version"]
    assert str(conda_recipe()["package"]["version"]) == __version__


def test_tests_of_the_conda_recipe_pass(tmp_path: Path) -> None:
    wanted = conda_recipe()["test"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    code = "import " + ", ".join(wanted["imports"])
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    for command in wanted["commands"]:
        program, *arguments = command.split()
        assert program == "sparklog"
        done = subprocess.run(
            [sys.executable, "-m", program, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["orders"]


MOST_MEGABYTES = {"llvmlite": 200, "pyarrow": 195, "numpy": 85, "numba": 40, "zstandard": 30}
"""Of the large ones. All others together have `OTHERS_MEGABYTES` at most."""
OTHERS_MEGABYTES = 50


def installed_sizes(name: str, sizes: dict[str, float] | None = None) -> dict[str, float]:
    """Megabytes of what `pip install` brings, by distribution: of all files that pip has noted."""
    sizes = {} if sizes is None else sizes
    if plain(name) in sizes:
        return sizes
    found = metadata.distribution(name)
    files = (Path(str(file.locate())) for file in found.files or ())
    sizes[plain(name)] = sum(file.stat().st_size for file in files if file.is_file()) / 1e6
    for text in found.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            installed_sizes(requirement.name, sizes)
    return sizes


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="sizes of other wheels")
def test_installation_size_is_limited() -> None:
    """What it brings besides Spark. A dependency more, or one that has grown, is to be a decision."""
    sizes = installed_sizes("sparklog")
    too_large = {name: size for name, size in sizes.items() if size > MOST_MEGABYTES.get(name, OTHERS_MEGABYTES)}
    assert not too_large
    assert sum(size for name, size in sizes.items() if name not in MOST_MEGABYTES) < OTHERS_MEGABYTES
    assert sizes.keys() >= MOST_MEGABYTES.keys(), "an entry too much"
    assert {"pyspark", "pandas"}.isdisjoint(sizes)


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


def test_modules_can_be_imported_without_extras() -> None:
    with_spark = {"datasource", "jobs"}
    names = [name for name, _ in modules("sparklog") if layer(name) in PACKAGES - with_spark]
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
