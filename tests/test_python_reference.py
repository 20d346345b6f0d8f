"""Test that the pages of the Python API list every public name, that docstrings are complete, and that examples run."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import sparklog
from scripts import settings_tables
from sparklog import formats, testing
from sparklog.log.read.record_batches import RecordBatches

REPOSITORY = Path(__file__).parents[1]
KAFKA = REPOSITORY / "examples" / "data" / "kafka-log-dir"
REFERENCE = REPOSITORY / "docs" / "reference"
PAGES = ("python.md", "python-values.md", "python-maintenance.md", "python-testing.md")
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"^::: sparklog\.(\S+)$", re.MULTILINE)
SECTION = re.compile(r"^(Args|Returns|Raises|Example):\n((?:[ ]+.*\n?|\n)+)", re.MULTILINE)
FUNCTIONS = [
    *(name for name in sparklog.__all__ if inspect.isfunction(getattr(sparklog, name))),
    *(f"formats.{name}" for name in formats.__all__ if name != "FORMATS"),
]


def sections(thing: object) -> dict[str, str]:
    """Return the sections of a docstring by name."""
    return {name: textwrap.dedent(text) for name, text in SECTION.findall(inspect.getdoc(thing) or "")}


def groups(page: str) -> dict[str, list[str]]:
    """Return the names on a page by heading."""
    parts = re.split(r"^## ", (REFERENCE / page).read_text(), flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: NAME.findall(part) for part in parts}


def test_every_public_name_is_documented() -> None:
    names = [name for page in PAGES for listed in groups(page).values() for name in listed]
    values = {f"formats.{name}" for name in formats.__all__} - {"formats.FORMATS"}
    doubles = set(groups("python-testing.md")["Testing"])
    public = set(sparklog.__all__) - {"__version__"} | {"limits.Limits"}
    assert sorted(names) == sorted(values | doubles | public)
    assert {name.removeprefix("testing.") for name in doubles} <= set(testing.__all__)
    assert [name for name in names if not inspect.getdoc(attrgetter(name)(sparklog))] == []


def test_error_page_lists_the_error_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|$", (REFERENCE / "python-maintenance.md").read_text(), re.MULTILINE)
    assert rows == [(name, getattr(sparklog, name).code) for name in groups("python-maintenance.md")["Errors"]]


def test_settings_tables_match_the_code() -> None:
    for page, text in settings_tables.pages():
        assert page.read_text() == text, f"{page}: python -m scripts.settings_tables"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_document_all_parameters(name: str) -> None:
    function = attrgetter(name)(sparklog)
    parts = sections(function)
    signature = inspect.signature(function)
    assert [name for name in signature.parameters if not re.search(rf"^{name}:|`{name}`", parts["Args"], re.M)] == []
    assert "Example" in parts
    assert signature.return_annotation == "None" or "Returns" in parts


def examples(thing: object) -> Iterator[str]:
    """Yield the example of a function or class, then the examples of its methods."""
    if "Example" in sections(thing):
        yield sections(thing)["Example"]
    if isinstance(thing, type):
        bases = [base for base in thing.__mro__ if base in (RecordBatches, thing)]
        for name, method in (pair for base in reversed(bases) for pair in vars(base).items()):
            if inspect.isfunction(method) and not name.startswith("_") and "Example" in sections(method):
                yield sections(method)["Example"]


def run(page: str, chosen: list[str] | None, folder: Path, names: dict[str, Any]) -> int:
    """Run the examples of these groups of a page, or of all groups, in order. Return the number of examples."""
    blocks = FENCE.findall((REFERENCE / page).read_text().partition("\n## ")[0])
    for group in chosen or groups(page):
        for name in groups(page)[group]:
            blocks += examples(attrgetter(name)(sparklog))
    for block in blocks:
        program = block.replace("/var/lib/kafka/data", str(folder / "kafka")).replace("/data/", f"{folder}/")
        exec(compile(program, page, "exec"), names)
    return len(blocks)


def test_examples_run(tmp_path: Path) -> None:
    shutil.copytree(KAFKA, tmp_path / "kafka")
    sparklog.open(tmp_path / "log", create=True).create_topic("payments")
    names: dict[str, Any] = {}
    ran = run("python.md", None, tmp_path, names)
    ran += run("python-values.md", ["Values", "Tables"], tmp_path, names)
    ran += run("python-maintenance.md", ["Maintenance", "Kafka directories"], tmp_path, names)
    assert run("python-testing.md", ["Testing"], tmp_path, names) >= 4
    assert ran >= 20
    values = sparklog.open(tmp_path / "log").topic("orders").scan(columns=["value"]).to_table()
    assert values["value"].to_pylist().count(b"once") == 1
    assert (tmp_path / "kafka-logs" / "orders-0").is_dir()
    for engine in ("duckdb", "polars", "datafusion"):
        pytest.importorskip(engine, reason=f"{engine} is not installed")
    assert run("python-values.md", ["Engines"], tmp_path, names) == 4
    for library in ("pyiceberg", "deltalake"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    assert run("python-values.md", ["Table formats"], tmp_path, names) == 3
