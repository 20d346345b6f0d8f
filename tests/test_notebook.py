"""The notebook runs from top to bottom, shows what it is stored with, and its plots take whatever a log holds."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import nbformat
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

import sparklog
from scripts.run_notebook import NOTEBOOK, executed
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.topic.root import RootView
from sparklog.tools.inspection.inspect import Inspected, inspect_file, inspect_topic
from tests.fixture_data import copied

pytestmark = pytest.mark.sweep

PLOTS = ("batches", "compression", "keys", "gaps", "times", "indexes", "transactions")
KAFKA_HALF = 12
"""Code cells about Kafka's directory, whose figures no library's version changes; the others make their own root."""


@pytest.fixture(scope="module")
def plots() -> Iterator[ModuleType]:
    matplotlib.use("Agg")
    found = importlib.util.spec_from_file_location("notebook_plots", NOTEBOOK.parent / "plots.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    module.set_up()
    yield module
    del sys.modules[found.name]


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: nbformat.NotebookNode) -> list[dict[str, Any]]:
    """What a cell shows: the text of its results, pictures by their kind alone."""
    return [
        {kind: None if kind.startswith("image/") or "image/png" in output.data else text
         for kind, text in output.data.items()}
        for output in cell.outputs
        if output.output_type in ("execute_result", "display_data")
    ]  # fmt: skip


def test_it_runs_and_shows_what_it_is_stored_with() -> None:
    stored = code_cells(nbformat.read(NOTEBOOK, as_version=4))
    found = code_cells(executed(NOTEBOOK))
    for number, (before, after) in enumerate(zip(stored, found, strict=True)):
        assert not [output for output in after.outputs if output.output_type == "error"]
        if number < KAFKA_HALF:
            assert shown(after) == shown(before), after.source
        assert [sorted(each) for each in shown(after)] == [sorted(each) for each in shown(before)], after.source
        assert [each.get("text/plain") for each in shown(after)] == [each.get("text/plain") for each in shown(before)]
    pictures = [cell.source for cell in found if any("image/png" in each for each in shown(cell))]
    for name in PLOTS:
        assert sum(source.startswith(f"plots.{name}(") for source in pictures) >= 1, name
    assert len(pictures) == 14


def test_what_is_stored_is_whole_and_knows_no_machine() -> None:
    text = NOTEBOOK.read_text()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code_cells(notebook)] == list(range(1, len(code_cells(notebook)) + 1))
    assert len(text) < 700_000
    assert "execution" not in {key for cell in notebook.cells for key in cell.metadata}
    assert dict(notebook.metadata.language_info) == {"name": "python"}
    assert not re.findall(r"/(?:tmp|home|root|Users|work|opt|usr|private)/", text)
    assert 'PATH = "../examples/data/kafka-log-dir"' in code_cells(notebook)[0].source
    assert code_cells(notebook)[0].metadata.tags == ["parameters"]


def drawn(plots: ModuleType, found: Inspected) -> dict[str, Figure | str]:
    """Every plot, drawn to the end."""
    figures = {name: getattr(plots, name)(found) for name in PLOTS}
    for name, figure in figures.items():
        if isinstance(figure, Figure):
            figure.canvas.draw()
            assert all(ax.get_title(loc="left") for ax in figure.axes), name
            assert all(ax.get_ylabel() or ax.get_xlabel() or ax.get_yticklabels() for ax in figure.axes), name
    assert plots.summary(found)._repr_html_().count("<tr>") == 1 + len(plots._partitions(found, most=None))
    return figures


@pytest.mark.parametrize(
    ("place", "topic"),
    [
        ("codecs/data", "codec-zstd"),
        ("timestamps/data", None),
        ("segments/data", "seg-small"),
        ("transactions/data", "txn-a"),
        ("compaction/tombstones-day/after", None),
        ("legacy/builder-mixed/data", None),
    ],
)
def test_plots_of_whatever_kafka_wrote(plots: ModuleType, fixtures: Path, place: str, topic: str | None) -> None:
    if not (fixtures / place).is_dir():
        place = str(next((fixtures / place).parent.glob("*/*-0")).parent.relative_to(fixtures))
    view = KafkaView(fixtures / place)
    names = [topic] if topic else [name for name in view.topics() if not name.startswith("__")]
    for name in names:
        figures = drawn(plots, inspect_topic(view, name))
        assert isinstance(figures["batches"], Figure)
        cleaned = "compaction" in place
        assert isinstance(figures["gaps"], Figure) == cleaned or not cleaned
        assert isinstance(figures["transactions"], Figure) == place.startswith("transactions")


def test_plots_of_nothing_are_sentences(plots: ModuleType, tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("empty", partitions=2)
    figures = drawn(plots, inspect_topic(RootView(root), "empty"))
    for name, figure in figures.items():
        assert isinstance(figure, str), name
        assert str(figure).endswith(".")
        assert repr(figure) == str(figure)


def test_plots_of_a_root_and_of_damage(plots: ModuleType, fixtures: Path, tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    topic = root.create_topic("orders", partitions=6)
    topic.append(pa.table({"key": [b"%d" % n for n in range(500)], "value": [b"x" * 100] * 500}))
    figures = drawn(plots, inspect_topic(RootView(root), "orders"))
    assert isinstance(figures["keys"], Figure)
    assert len(figures["keys"].axes) == plots.MOST_PARTITIONS
    folder = copied(fixtures / "codecs" / "data" / "codec-zstd-2", tmp_path / "codec-zstd-2")
    file = folder / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[inspect_file(file).batches["position"][3].as_py() + 70] ^= 1
    file.write_bytes(data)
    found = inspect_file(file)
    assert isinstance(drawn(plots, found)["compression"], Figure)
    assert ">1<" in plots.summary(found)._repr_html_()


def test_tables_escape_what_logs_hold_and_say_how_much_is_left(plots: ModuleType) -> None:
    table = pa.table({"a_b": ["<b>&</b>"] * 12, "n": [1234567, None] * 6})
    text = plots.show(table, most=10)._repr_html_()
    assert text.count("<tr>") == 11
    assert "<b>" not in text
    assert "<th>a b</th>" in text
    assert "1,234,567" in text
    assert "–" in text
    assert text.endswith("<p>and 2 more</p>")
