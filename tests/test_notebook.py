"""Test that the notebook runs without errors and reproduces its stored outputs, and that its plots support any log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import pyarrow as pa
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import sparklog
from scripts.run_notebook import NOTEBOOK, executed
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.topic.root import RootView
from sparklog.log.write.append_target import WriteOptions
from sparklog.tools.inspection.inspect import Inspected, inspect_file, inspect_topic
from sparklog.tools.inspection.notebook import EXAMPLE, overview, parts, plots
from tests.fixture_data import copied
from tests.support.seeds import first_of

pytestmark = pytest.mark.sweep

PLOTS = {
    **dict.fromkeys(("sizes", "hottest_keys", "rates", "partitions"), overview),
    **dict.fromkeys(("batches", "compression", "keys", "gaps", "times", "indexes", "transactions"), plots),
}
KAFKA_HALF = 17
"""Number of code cells about the Kafka directory. Their output does not depend on library versions."""


@pytest.fixture(scope="module", autouse=True)
def set_up() -> None:
    matplotlib.use("Agg")
    parts.set_up()


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: nbformat.NotebookNode) -> list[dict[str, Any]]:
    """Return the outputs of a cell: text unchanged, and only the type of pictures."""
    return [
        {kind: None if kind.startswith("image/") or "image/png" in output.data else text
         for kind, text in output.data.items()}
        for output in cell.outputs
        if output.output_type in ("execute_result", "display_data")
    ]  # fmt: skip


@pytest.mark.slow
def test_notebook_output_is_reproducible() -> None:
    stored = code_cells(nbformat.read(NOTEBOOK, as_version=4))
    found = code_cells(executed(NOTEBOOK))
    for number, (before, after) in enumerate(zip(stored, found, strict=True)):
        assert not [output for output in after.outputs if output.output_type == "error"]
        if number < KAFKA_HALF:
            assert shown(after) == shown(before), after.source
        assert [sorted(each) for each in shown(after)] == [sorted(each) for each in shown(before)], after.source
        assert [each.get("text/plain") for each in shown(after)] == [each.get("text/plain") for each in shown(before)]
    pictures = [cell.source for cell in found if any("image/png" in each for each in shown(cell))]
    for name, module in PLOTS.items():
        call = f"{module.__name__.rpartition('.')[2]}.{name}("
        assert sum(source.startswith(call) for source in pictures) >= 1, name
    assert len(pictures) == 22


def test_stored_notebook_is_complete_and_has_no_local_paths() -> None:
    text = NOTEBOOK.read_text()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code_cells(notebook)] == list(range(1, len(code_cells(notebook)) + 1))
    assert len(text) < 700_000
    assert "execution" not in {key for cell in notebook.cells for key in cell.metadata}
    assert dict(notebook.metadata.language_info) == {"name": "python"}
    assert not re.findall(r"/(?:tmp|home|root|Users|work|opt|usr|private)/", text)
    assert code_cells(notebook)[0].source.startswith("PATH = None")
    assert code_cells(notebook)[0].metadata.tags == ["parameters"]


def drawn(found: Inspected) -> dict[str, Figure | str]:
    """Draw every plot completely."""
    figures = {name: getattr(module, name)(found) for name, module in PLOTS.items()}
    for name, figure in figures.items():
        if isinstance(figure, Figure):
            figure.canvas.draw()
            assert all(ax.get_title(loc="left") for ax in figure.axes), name
            assert all(ax.get_ylabel() for ax in figure.axes), name
            assert figure.axes[-1].get_xlabel(), name
    assert parts.summary(found)._repr_html_().count("<tr>") == 1 + len(parts.partitions_of(found, most=None))
    return figures


@pytest.mark.parametrize(
    ("place", "topic"),
    first_of(
        [
            ("codecs/data", "codec-zstd"),
            ("transactions/data", "txn-a"),
            ("compaction/tombstones-day/after", None),
            ("timestamps/data", None),
            ("segments/data", "seg-small"),
            ("legacy/builder-mixed/data", None),
        ],
        3,
    ),
)
def test_plots_of_kafka_fixtures(fixtures: Path, place: str, topic: str | None) -> None:
    if not (fixtures / place).is_dir():
        place = str(next((fixtures / place).parent.glob("*/*-0")).parent.relative_to(fixtures))
    view = KafkaView(fixtures / place)
    names = [topic] if topic else [name for name in view.topics() if not name.startswith("__")]
    for name in names:
        figures = drawn(inspect_topic(view, name))
        assert isinstance(figures["batches"], Figure)
        cleaned = "compaction" in place
        assert isinstance(figures["gaps"], Figure) == cleaned or not cleaned
        assert isinstance(figures["transactions"], Figure) == place.startswith("transactions")


def test_plots_without_data_show_a_sentence(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("empty", partitions=2)
    figures = drawn(inspect_topic(RootView(root), "empty"))
    for name, figure in figures.items():
        assert isinstance(figure, str), name
        assert str(figure).endswith(".")
        assert repr(figure) == str(figure)


def test_plots_of_a_root_and_of_damage(fixtures: Path, tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    topic = root.create_topic("orders", partitions=6)
    topic.append(pa.table({"key": [b"%d" % n for n in range(500)], "value": [b"x" * 100] * 500}))
    figures = drawn(inspect_topic(RootView(root), "orders"))
    assert isinstance(figures["keys"], Figure)
    assert len(figures["keys"].axes) == parts.MOST_PARTITIONS
    folder = copied(fixtures / "codecs" / "data" / "codec-zstd-2", tmp_path / "codec-zstd-2")
    file = folder / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[inspect_file(file).batches["position"][3].as_py() + 70] ^= 1
    file.write_bytes(data)
    found = inspect_file(file)
    assert isinstance(drawn(found)["compression"], Figure)
    assert ">1<" in parts.summary(found)._repr_html_()


def test_tables_escape_values_and_show_the_number_of_remaining_rows() -> None:
    table = pa.table({"a_b": ["<b>&</b>"] * 12, "n": [1234567, None] * 6})
    text = parts.show(table, most=10)._repr_html_()
    assert text.count("<tr>") == 11
    assert "<b>" not in text
    assert "<th>a b</th>" in text
    assert "1,234,567" in text
    assert "–" in text
    assert text.endswith("<p>and 2 more</p>")


def colours(ax: Axes) -> set[str]:
    return {to_hex(patch.get_facecolor()).upper() for patch in ax.patches}


def test_each_codec_has_a_unique_color(fixtures: Path, tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    topic = root.create_topic("orders", partitions=2)
    for codec in ("gzip", "zstd"):
        rows = pa.table({"key": [b"%d" % n for n in range(50)], "value": [b"x"] * 50})
        topic.append(rows, options=WriteOptions(codec=codec))
    of_codecs = {parts.CODEC_COLOURS[codec] for codec in ("gzip", "zstd")}
    inspected = inspect_topic(RootView(root), "orders")
    for name in ("sizes", "rates"):
        assert all(colours(ax) == of_codecs for ax in getattr(overview, name)(inspected).axes), name
    bytes_, records, keys = overview.partitions(inspected).axes
    assert colours(bytes_) == colours(records) == of_codecs
    others = [keys, *overview.hottest_keys(inspected).axes]
    for place in ("codecs/data", "transactions/data", "compaction/tombstones-day/after"):
        view = KafkaView(fixtures / place)
        for name in [name for name in view.topics() if not name.startswith("__")]:
            kafka = inspect_topic(view, name)
            figures = [plots.gaps(kafka), plots.transactions(kafka), plots.indexes(kafka)]
            others += [ax for figure in figures if isinstance(figure, Figure) for ax in figure.axes]
    assert not set.union(*map(colours, others)) & set(parts.CODEC_COLOURS.values())


def test_plot_titles_state_the_result() -> None:
    inspected = inspect_topic(KafkaView(EXAMPLE), "txn-b")
    titles = [
        ax.get_title(loc="left").replace("\n", " ")
        for name in ("sizes", "hottest_keys", "partitions", "transactions")
        for ax in getattr(PLOTS[name], name)(inspected).axes
    ]
    assert titles == [
        "Bytes per segment: median 5.5 kB",
        "Bytes per batch: median 315.5 B",
        "Records per segment: median 12",
        "Records per batch: median 2",
        "Hottest by records: 10 of 83 keys have 25% of all records with a key",
        "Hottest by bytes: 10 of 83 keys have 48% of all bytes with a key",
        "Bytes: partition 0 has 1.9 times the average",
        "Records: partition 0 has 1.7 times the average",
        "Keys: partition 0 has 1.6 times the average",
        "txn-b, partition 0: transactions, 4 committed, 7 aborted",
        "txn-b, partition 1: transactions, 4 committed, 3 aborted, 1 open",
    ]


@pytest.mark.parametrize(
    ("hours", "period", "title"),
    [
        ((0, 5), None, "Records per hour: 0.33 on average, 1 at most"),
        ((0, 0, 0, 9), None, "Records per hour: 0.4 on average, 3 at most"),
        ((0, 1), None, "Records per minute: 0.033 on average, 1 at most"),
        ((0, 24 * 20), None, "Records per day: 0.095 on average, 1 at most"),
        ((0, 0), None, "Records per second: 2 on average, 2 at most"),
        ((0, 1), "day", "Records per day: 2 on average, 2 at most"),
    ],
)
def test_records_per_hour(hours: tuple[int, ...], period: str | None, title: str, tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    topic = root.create_topic("orders", configs={"message.timestamp.after.max.ms": "9223372036854775807"})
    for hour in hours:
        topic.append(pa.table({"value": [b"x"], "timestamp": [1_767_225_600_000 + hour * 3_600_000]}))
    figure = overview.rates(inspect_topic(RootView(root), "orders"), period)
    assert figure.axes[1].get_title(loc="left") == title


KEYS = {
    b"anna": "anna",
    "käse $x$".encode(): "käse $x$",
    b"\x00\xff": "0x00ff",
    b"two\nlines": "0x74776f0a6c696e6573",
    b"a" * 30: "a" * 23 + "…",
    b"": "",
}


def test_keys_are_shown_as_text_or_digits(tmp_path: Path) -> None:
    keys = [*KEYS] * 2
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("orders").append(pa.table({"key": keys, "value": [b"x"] * len(keys)}))
    inspected = inspect_topic(RootView(root), "orders")
    figure = drawn(inspected)["hottest_keys"]
    assert {label.get_text() for label in figure.axes[0].get_yticklabels()} == {*KEYS.values()}
    assert sorted(parts.show(inspected.keys, ["key"]).cells()) == sorted([text] for text in KEYS.values())
