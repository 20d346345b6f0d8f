"""Shared code of the plots in dump_segment.ipynb: colors, tables for notebooks, and selection of partitions.

The colors are those of Okabe and Ito, which color-blind people can distinguish; no plot relies on color alone. Each
codec has the same color in all plots, and nothing else uses that color.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from sparklog.tools.inspection.inspect import Inspected

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#9AA3AB"
INK = "#3B4A57"
"""Color of everything that does not represent a codec."""
CODEC_COLOURS = {"none": GREY, "gzip": ORANGE, "snappy": GREEN, "lz4": SKY, "zstd": BLUE, "?": BLACK}
CODEC_MARKS = {"none": "x", "gzip": "s", "snappy": "^", "lz4": "D", "zstd": "o", "?": "+"}
OUTCOMES = {"committed": (INK, ""), "aborted": (RED, "///"), "open": (YELLOW, "...")}
MOST_PARTITIONS = 4
MOST_ROWS = 24
WIDTH = 9.0


def set_up() -> None:
    """Configure small, plain figures with a white background, whatever the theme of the page."""
    plt.rcParams.update(
        {
            "figure.dpi": 72,
            "savefig.dpi": 72,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.labelsize": 10,
            "axes.facecolor": "white",
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#E4E8EB",
            "legend.frameon": False,
            "legend.fontsize": 9,
            "hatch.linewidth": 0.6,
        }
    )


class Sentence(str):
    """The result of a plot function if there is nothing to draw."""

    def __repr__(self) -> str:
        return str(self)


# -- tables


@dataclass(frozen=True)
class Shown:
    """A table that a notebook can display without pandas."""

    table: pa.Table
    most: int

    def cells(self) -> list[list[str]]:
        state = self.table.slice(0, self.most)
        return [list(row) for row in zip(*[_texts(state[name]) for name in state.column_names], strict=True)]

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in self.table.column_names)
        rows = "".join(
            "<tr>" + "".join(f'<td style="text-align: right">{html.escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self.cells()
        )
        left = len(self.table) - self.most
        more = f"<p>and {left:,} more</p>" if left > 0 else ""
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}"

    def __repr__(self) -> str:
        return f"{len(self.table):,} rows of {', '.join(self.table.column_names)}"


def show(table: pa.Table, columns: Sequence[str] = (), most: int = 10) -> Shown:
    """Return the first `most` rows and the given columns of a table for display."""
    return Shown(table.select(list(columns)) if columns else table, most)


def about_bytes(number: float) -> str:
    """Return a number of bytes as text for a title."""
    return str(EngFormatter("B", places=1, sep=" ")(number)).replace(".0 ", " ")


def used_codecs(table: pa.Table) -> list[str]:
    """Return the codecs of these batches, always in the same order; `?` for an unknown codec."""
    seen = {codec or "?" for codec in table["codec"].to_pylist()}
    return [codec for codec in CODEC_COLOURS if codec in seen]


def codec_handles(table: pa.Table) -> list[Patch]:
    """Return the legend handles of the codecs."""
    return [Patch(color=CODEC_COLOURS[codec], label=codec) for codec in used_codecs(table)]


def _texts(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_timestamp(column.type):
        return [moment(ms) for ms in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_floating(column.type):
        return ["–" if value is None else f"{value:,.2f}" for value in column.to_pylist()]
    if pa.types.is_binary(column.type):
        return ["–" if value is None else key_text(value) for value in column.to_pylist()]
    if pa.types.is_integer(column.type):
        return ["–" if value is None else f"{value:,}" for value in column.to_pylist()]
    return ["–" if value is None else str(value) for value in column.to_pylist()]


def key_text(key: bytes) -> str:
    """Return a key as UTF-8 if it is printable, otherwise in hexadecimal; truncated to 24 characters."""
    text = key.decode("utf-8", "replace")
    text = text if text.isprintable() and "\ufffd" not in text else f"0x{key[:24].hex()}"
    return text if len(text) <= 24 else f"{text[:23]}…"


def moment(ms: int | None) -> str:
    if ms is None:
        return "–"
    if not 0 <= ms < 253_402_300_800_000:
        return f"{ms:,} ms"
    second = datetime.fromtimestamp(ms // 1000, timezone.utc)
    return f"{second:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}"


def summary(inspected: Inspected) -> Shown:
    """Return a table with one row per partition."""
    rows = []
    for partition, batches in partitions_of(inspected, most=None):
        bounds = inspected.bounds.filter(pc.equal(inspected.bounds["partition"], partition)).to_pylist()[0]
        stored, plain = total(batches, "size"), total(batches, "uncompressed_bytes")
        rows.append(
            {
                "partition": partition,
                "log start": bounds["log_start"],
                "last stable": bounds["last_stable"],
                "log end": bounds["log_end"],
                "batches": len(batches),
                "records": total(batches, "records"),
                "bytes": stored,
                "plain bytes": plain,
                "different keys": total(batches, "keys_new"),
                "without key": total(batches, "keys_null"),
                "tombstones": total(batches, "tombstones"),
                "missing offsets": total(batches, "gap_before") + total(batches, "missing"),
                "damaged": len(batches) - batches["damage"].null_count,
            }
        )
    return Shown(pa.Table.from_pylist(rows), 100)


# -- partitions


def done(figure: Figure) -> Figure:
    """Close a figure, so that the notebook displays it only once: as the value of its cell."""
    plt.close(figure)
    return figure


def partitions_of(inspected: Inspected, most: int | None = MOST_PARTITIONS) -> list[tuple[int, pa.Table]]:
    return split(inspected.batches, inspected)[:most]


def split(table: pa.Table, inspected: Inspected) -> list[tuple[int, pa.Table]]:
    parts = [(n, table.filter(pc.equal(table["partition"], n))) for n in inspected.bounds["partition"].to_pylist()]
    return [(number, part) for number, part in parts if len(part)]


def numbers(table: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = pc.fill_null(table[name].cast(pa.int64()), 0).to_numpy()
    return values


def total(table: pa.Table, name: str) -> int:
    return int(numbers(table, name).sum())


def timed(table: pa.Table) -> pa.ChunkedArray:
    return pc.and_(pc.is_valid(table["min_timestamp"]), pc.not_equal(table["outcome"], "marker"))


def limits(inspected: Inspected, partition: int) -> tuple[int, int]:
    row = inspected.bounds.filter(pc.equal(inspected.bounds["partition"], partition)).to_pylist()[0]
    return row["log_start"], row["log_end"]


def place(inspected: Inspected, partition: int) -> str:
    return f"{inspected.bounds['topic'][0].as_py()}, partition {partition}"


def panels(count: int, height: float) -> tuple[Figure, Sequence[Axes]]:
    figure, axes = plt.subplots(count, 1, figsize=(WIDTH, 0.5 + height * count), squeeze=False)
    for ax in axes[:, 0]:
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure, list(axes[:, 0])


def offset_axis(ax: Axes) -> None:
    ax.set_xlabel("offset")
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def unit_of(ms: int) -> tuple[float, str]:
    for scale, unit in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1_000, "seconds")):
        if ms >= 2 * scale:
            return scale, unit
    return 1, "ms"
