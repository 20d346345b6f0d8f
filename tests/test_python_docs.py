"""The pages of the Python API are those of the docstrings, say all there is to say, and their examples run."""

from __future__ import annotations

import inspect
import re
import shutil
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import sparklog
from scripts import python_docs
from sparklog import formats, testing

REPOSITORY = Path(__file__).parents[1]
KAFKA = REPOSITORY / "examples" / "data" / "kafka-log-dir"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FUNCTIONS = [
    *(name for name in sparklog.__all__ if inspect.isfunction(getattr(sparklog, name))),
    *(f"formats.{name}" for name in formats.__all__ if name != "FORMATS"),
]


def test_pages_are_those_of_the_docstrings() -> None:
    for name, made in python_docs.pages().items():
        assert (REPOSITORY / python_docs.FOLDER / name).read_text() == made, "python scripts/python_docs.py"
        assert made.count("\n") <= 500


def test_every_public_name_is_on_a_page() -> None:
    listed = [name for names in python_docs.GROUPS.values() for name in names]
    values = {f"formats.{name}" for name in formats.__all__} - {"formats.FORMATS"}
    doubles = set(python_docs.GROUPS["Testing"])
    assert sorted(listed) == sorted(values | doubles | set(sparklog.__all__) - {"__version__"})
    assert {name.removeprefix("testing.") for name in doubles} <= set(testing.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_say_all(name: str) -> None:
    function = attrgetter(name)(sparklog)
    doc = python_docs.parse(function.__doc__)
    explained = " ".join(f"`{argument}` {text}" for argument, text in python_docs.entries(doc.sections["Args"]))
    signature = inspect.signature(function)
    assert [each for each in signature.parameters if f"`{each}`" not in explained] == []
    assert "Example" in doc.sections
    assert signature.return_annotation == "None" or "Returns" in doc.sections


def run(name: str, groups: list[str], folder: Path, names: dict[str, Any]) -> int:
    """Run the examples of these groups of a page in order; how many there are."""
    text = python_docs.page(name)
    blocks = FENCE.findall(text.partition("\n## ")[0])
    for group in groups:
        blocks += FENCE.findall(text.partition(f"\n## {group}\n")[2].partition("\n## ")[0])
    for block in blocks:
        program = block.replace("/var/lib/kafka/data", str(folder / "kafka")).replace("/data/", f"{folder}/")
        exec(compile(program, name, "exec"), names)
    return len(blocks)


def test_examples_run(tmp_path: Path) -> None:
    shutil.copytree(KAFKA, tmp_path / "kafka")
    sparklog.open(tmp_path / "log", create=True).create_topic("payments")
    names: dict[str, Any] = {}
    ran = run("python.md", list(python_docs.GROUPS), tmp_path, names)
    ran += run("python-values.md", ["Values", "Tables"], tmp_path, names)
    ran += run("python-maintenance.md", ["Maintenance", "Kafka's directories"], tmp_path, names)
    assert run("python-testing.md", ["Testing"], tmp_path, names) >= 4
    assert ran >= 20
    values = sparklog.open(tmp_path / "log").topic("orders").scan(columns=["value"]).to_table()
    assert values["value"].to_pylist().count(b"once") == 1
    assert (tmp_path / "kafka-logs" / "orders-0").is_dir()
    for engine in ("duckdb", "polars", "datafusion"):
        pytest.importorskip(engine, reason=f"{engine} is not installed")
    assert run("python-values.md", ["Engines"], tmp_path, names) == 4
