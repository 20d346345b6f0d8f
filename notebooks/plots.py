"""Plots of dump_segment.ipynb: one function per question, from the tables of `sparklog.tools.inspection.inspect`.

Colours are those of Okabe and Ito, which people tell apart whatever their eyes; no plot says anything by colour alone.
Each function takes an `Inspected` and returns the figure, or a sentence where there is nothing to draw.
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
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

from sparklog.tools.inspection.inspect import Inspected

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#9AA3AB"
CODEC_COLOURS = {"none": GREY, "gzip": ORANGE, "snappy": GREEN, "lz4": SKY, "zstd": BLUE}
CODEC_MARKS = {"none": "x", "gzip": "s", "snappy": "^", "lz4": "D", "zstd": "o"}
OUTCOMES = {"committed": (BLUE, ""), "aborted": (RED, "///"), "open": (YELLOW, "...")}
MOST_PARTITIONS = 4
MOST_ROWS = 24
WIDTH = 9.0


def set_up() -> None:
    """Small, plain figures on white, whatever the page around them is."""
    plt.rcParams.update(
        {
            "figure.dpi": 72,
            "savefig.dpi": 72,
            "figure.facecolor": "white",
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.labelsize": 10,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#E4E8EB",
            "legend.frameon": False,
            "legend.fontsize": 9,
            "hatch.linewidth": 0.6,
        }
    )


class Sentence(str):
    """Sentence of a cell without anything to draw."""

    def __repr__(self) -> str:
        return str(self)


# -- tables


@dataclass(frozen=True)
class Shown:
    """A table as a notebook shows it; needs no pandas."""

    table: pa.Table
    most: int

    def cells(self) -> list[list[str]]:
        head = self.table.slice(0, self.most)
        return [list(row) for row in zip(*[_texts(head[name]) for name in head.column_names], strict=True)]

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
    """The first rows of a table, of these columns."""
    return Shown(table.select(list(columns)) if columns else table, most)


def _texts(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_timestamp(column.type):
        return [_time(ms) for ms in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_floating(column.type):
        return ["–" if value is None else f"{value:,.2f}" for value in column.to_pylist()]
    if pa.types.is_integer(column.type):
        return ["–" if value is None else f"{value:,}" for value in column.to_pylist()]
    return ["–" if value is None else str(value) for value in column.to_pylist()]


def _time(ms: int | None) -> str:
    if ms is None:
        return "–"
    if not 0 <= ms < 253_402_300_800_000:
        return f"{ms:,} ms"
    moment = datetime.fromtimestamp(ms // 1000, timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}"


def summary(inspected: Inspected) -> Shown:
    """One row per partition."""
    rows = []
    for partition, batches in _partitions(inspected, most=None):
        bounds = inspected.bounds.filter(pc.equal(inspected.bounds["partition"], partition)).to_pylist()[0]
        stored, plain = _sum(batches, "size"), _sum(batches, "uncompressed_bytes")
        rows.append(
            {
                "partition": partition,
                "log start": bounds["log_start"],
                "last stable": bounds["last_stable"],
                "log end": bounds["log_end"],
                "batches": len(batches),
                "records": _sum(batches, "records"),
                "bytes": stored,
                "plain bytes": plain,
                "different keys": _sum(batches, "keys_new"),
                "without key": _sum(batches, "keys_null"),
                "tombstones": _sum(batches, "tombstones"),
                "missing offsets": _sum(batches, "gap_before") + _sum(batches, "missing"),
                "damaged": len(batches) - batches["damage"].null_count,
            }
        )
    return Shown(pa.Table.from_pylist(rows), 100)


# -- figures


def batches(inspected: Inspected) -> Figure | Sentence:
    """Plot sizes of batches along the log, and their compression."""
    parts = _partitions(inspected)
    if not parts:
        return Sentence("There are no batches.")
    figure, axes = _rows(len(parts), 1.9)
    for ax, (partition, table) in zip(axes, parts, strict=True):
        base, last, size = (_numbers(table, name) for name in ("base_offset", "last_offset", "size"))
        codecs = table["codec"].to_pylist()
        marker = pc.equal(table["outcome"], "marker").to_numpy()
        colours = [CODEC_COLOURS.get(codec, BLACK) for codec in codecs]
        ax.bar(base, size, last - base + 1, align="edge", color=colours, edgecolor="white", linewidth=0.4)
        ax.plot(base[marker] + 0.5, size[marker], "v", color=BLACK, markersize=4)
        ax.set_title(_title(inspected, partition))
        ax.set_ylabel("batch size")
        ax.yaxis.set_major_formatter(EngFormatter("B", sep=" "))
    _offset_axis(axes[-1])
    used = [codec for codec in CODEC_COLOURS if codec in set(inspected.batches["codec"].to_pylist())]
    handles: list[Artist] = [Patch(color=CODEC_COLOURS[codec], label=codec) for codec in used]
    if bool(pc.any(pc.equal(inspected.batches["outcome"], "marker")).as_py()):
        handles.append(Line2D([], [], color=BLACK, marker="v", linestyle="", markersize=4, label="marker"))
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return _done(figure)


def compression(inspected: Inspected) -> Figure | Sentence:
    """Plot savings of compression, by codec and by size of batch."""
    table = inspected.batches.filter(pc.is_valid(inspected.batches["uncompressed_bytes"]))
    table = table.filter(pc.not_equal(table["outcome"], "marker"))
    if not len(table):
        return Sentence("There are no batches of data.")
    used = [codec for codec in CODEC_COLOURS if codec in set(table["codec"].to_pylist())]
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 1.4 + 0.42 * max(len(used), 3)))
    for row, codec in enumerate(used):
        mine = table.filter(pc.equal(table["codec"], codec))
        ratio = np.array(mine["ratio"].to_pylist())
        plain = _sum(mine, "uncompressed_bytes")
        stored = float((_numbers(mine, "uncompressed_bytes") / ratio).sum())
        left.barh(row - 0.19, plain, 0.36, color="white", edgecolor=CODEC_COLOURS[codec], hatch="////")
        left.barh(row + 0.19, stored, 0.36, color=CODEC_COLOURS[codec])
        right.plot(_numbers(mine, "uncompressed_bytes"), ratio, CODEC_MARKS[codec], color=CODEC_COLOURS[codec],
                   markersize=4, alpha=0.7, label=codec)  # fmt: skip
        left.annotate(f" {plain / stored:.1f}×", (max(plain, stored), row), va="center", fontsize=9)
    left.set_yticks(range(len(used)), used)
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.xaxis.set_major_formatter(EngFormatter("B", sep=" "))
    left.xaxis.set_major_locator(MaxNLocator(4))
    left.margins(x=0.15)
    left.set_title("Records by codec: plain (hatched), stored")
    right.axhline(1, color=BLACK, linewidth=0.8)
    sizes = _numbers(table, "uncompressed_bytes")
    if sizes.max() > 20 * sizes.min():
        right.set_xscale("log")
    else:
        right.xaxis.set_major_locator(MaxNLocator(4))
    right.xaxis.set_major_formatter(EngFormatter("B", sep=" "))
    right.set_xlabel("uncompressed batch")
    right.set_ylabel("times smaller")
    right.set_ylim(bottom=0)
    right.set_title("Compression ratio of each batch")
    right.legend(loc="best")
    return _done(figure)


def keys(inspected: Inspected) -> Figure | Sentence:
    """Plot how keys repeat: records with a key, different keys so far, and those that compaction would keep."""
    parts = [(n, table) for n, table in _partitions(inspected) if _sum(table, "keys_new")]
    if not parts:
        return Sentence("No record has a key.")
    figure, axes = _rows(len(parts), 2.1)
    for ax, (partition, table) in zip(axes, parts, strict=True):
        data = pc.not_equal(table["outcome"], "marker").to_numpy()
        at = _numbers(table, "last_offset")
        keyed = np.where(data, _numbers(table, "records"), 0) - _numbers(table, "keys_null")
        lines = (
            ("records with a key", keyed, GREY, ":"),
            ("different keys so far", _numbers(table, "keys_new"), BLUE, "-"),
            ("latest of their key: compaction keeps these", _numbers(table, "keys_latest"), ORANGE, "--"),
        )
        for label, values, colour, style in lines:
            total = int(values.sum())
            ax.step(at, np.cumsum(values), where="post", color=colour, linestyle=style, label=f"{label} ({total:,})")
        tombstones = _numbers(table, "tombstones") > 0
        if tombstones.any():
            ax.plot(at[tombstones], np.zeros(int(tombstones.sum())), "|", color=BLACK, markersize=9,
                    label=f"batches with tombstones ({int(tombstones.sum()):,})")  # fmt: skip
        ax.set_title(_title(inspected, partition))
        ax.set_ylabel("records, summed up")
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.legend(loc="upper left")
    _offset_axis(axes[-1])
    return _done(figure)


def gaps(inspected: Inspected) -> Figure | Sentence:
    """Where offsets have no record any more: what cleaning has taken."""
    parts = [(n, table) for n, table in _partitions(inspected) if _sum(table, "gap_before") + _sum(table, "missing")]
    if not parts:
        return Sentence("There are no gaps: every offset from the log start on holds a record or a marker.")
    figure, axes = _rows(len(parts), 1.5)
    for ax, (partition, table) in zip(axes, parts, strict=True):
        start, end = _limits(inspected, partition)
        base, last = _numbers(table, "base_offset"), _numbers(table, "last_offset")
        share = _numbers(table, "records") / (last - base + 1)
        ax.axvspan(start, end, color="#F6E3D6", linewidth=0)
        ax.bar(base, np.ones(len(base)), last - base + 1, align="edge", color="white", linewidth=0)
        ax.bar(base, share, last - base + 1, align="edge", color=BLUE, linewidth=0)
        gone = _sum(table, "gap_before") + _sum(table, "missing")
        ax.set_title(f"{_title(inspected, partition)}: {gone:,} of {int(last.max()) + 1 - start:,} offsets are gone")
        ax.set_ylabel("share that\nis there")
        ax.set_ylim(0, 1)
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:.0%}"))
        ax.grid(visible=False)
    _offset_axis(axes[-1])
    handles = [Patch(color=BLUE, label="records"), Patch(facecolor="white", edgecolor=GREY, label="gone from a batch"),
               Patch(color="#F6E3D6", label="whole batches gone")]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper right", ncols=3)
    return _done(figure)


def times(inspected: Inspected) -> Figure | Sentence:
    """The records' times along the log, and how far some lie behind what came before them."""
    parts = [(n, table.filter(_timed(table))) for n, table in _partitions(inspected)]
    parts = [(n, table) for n, table in parts if len(table)]
    if not parts:
        return Sentence("No record has a time.")
    panels = [(n, table, kind) for n, table in parts for kind in (_clock, _lateness) if kind is _clock or _late(table)]
    figure, axes = _rows(len(panels), 1.45)
    for ax, (partition, table, draw) in zip(axes, panels, strict=True):
        draw(ax, _title(inspected, partition), table)
    _offset_axis(axes[-1])
    return _done(figure)


def _late(table: pa.Table) -> int:
    return _sum(table, "late_records")


def _middle(table: pa.Table) -> np.ndarray:
    middle: np.ndarray = (_numbers(table, "base_offset") + _numbers(table, "last_offset") + 1) / 2
    return middle


def _clock(ax: Axes, title: str, table: pa.Table) -> None:
    """Times of each batch's records, from the smallest to the greatest."""
    at, low, high = _middle(table), _numbers(table, "min_timestamp"), _numbers(table, "max_timestamp")
    origin = int(low.min())
    scale, unit = _unit(int(high.max()) - origin)
    late = _numbers(table, "late_records") > 0
    for chosen, colour, mark, label in ((~late, BLUE, "o", "in order"), (late, RED, "^", "holds late records")):
        if chosen.any():
            ax.vlines(at[chosen], (low[chosen] - origin) / scale, (high[chosen] - origin) / scale, colors=colour)
            ax.plot(at[chosen], (high[chosen] - origin) / scale, mark, color=colour, markersize=3.5, label=label)
    in_order = "" if late.any() else ", all in order"
    ax.set_title(f"{title}: time of the records since {_time(origin)} UTC{in_order}")
    ax.set_ylabel(unit)
    if late.any():
        ax.legend(loc="best")


def _lateness(ax: Axes, title: str, table: pa.Table) -> None:
    """Plot how far records lie behind the newest before them."""
    behind = _numbers(table, "latest_by_ms")
    scale, unit = _unit(int(behind.max()))
    first, last = _numbers(table, "base_offset"), _numbers(table, "last_offset")
    ax.bar(first, behind / scale, last - first + 1, align="edge", color=RED)
    ax.set_title(f"{title}: {_late(table):,} records older than one before them; by how much at most, per batch")
    ax.set_ylabel(unit)


def indexes(inspected: Inspected, interval: int = 4096) -> Figure | Sentence:
    """Plot how densely each file is indexed: bytes per entry of its offset index. `interval`: index.interval.bytes."""
    files = inspected.files.filter(pc.greater(pc.fill_null(inspected.files["index_entries"], 0), 0))
    bare = len(inspected.files) - len(files)
    left_out = f"{bare:,} of {len(inspected.files):,} files without entries: a reader starts at their beginning."
    if not len(files):
        return Sentence(left_out)
    shown = files.slice(0, MOST_ROWS)
    figure, ax = plt.subplots(figsize=(WIDTH, 1.5 + 0.26 * len(shown)))
    labels = [
        f"{partition}: {base:,} to {last:,}"
        for partition, base, last in zip(
            *(shown[name].to_pylist() for name in ("partition", "base_offset", "last_offset")), strict=True
        )
    ]
    density = np.array(shown["bytes_per_entry"].to_pylist())
    ax.barh(range(len(labels)), density, 0.6, color=BLUE)
    for row, (each, entries) in enumerate(zip(density, shown["index_entries"].to_pylist(), strict=True)):
        ax.annotate(f" {entries:,} {'entry' if entries == 1 else 'entries'}", (each, row), va="center", fontsize=9)
    ax.axvline(interval, color=RED, linestyle="--", linewidth=1, label=f"index.interval.bytes ({interval:,})")
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.14)
    ax.set_xlabel("bytes of log per index entry: what a seek may read in vain")
    ax.set_ylabel("partition: offsets")
    ax.xaxis.set_major_formatter(EngFormatter("B", sep=" "))
    more = f": the first {MOST_ROWS} of {len(files):,} files" if len(files) > MOST_ROWS else ""
    ax.set_title(f"Density of the offset index{more}")
    if bare:
        figure.supxlabel(left_out, fontsize=9, x=0.99, ha="right")
    figure.legend(loc="outside upper right")
    return _done(figure)


def transactions(inspected: Inspected) -> Figure | Sentence:
    """Which offsets each transaction spans and how it ended; where readers of committed records stop."""
    parts = [(n, t) for n, t in _split(inspected.transactions, inspected) if len(t)][:MOST_PARTITIONS]
    if not parts:
        return Sentence("There are no transactions.")
    heights = [0.9 + 0.2 * len(_owners(table)) for _, table in parts]
    figure, axes = plt.subplots(
        len(parts), 1, figsize=(WIDTH, 0.6 + sum(heights)), height_ratios=heights, squeeze=False
    )
    for ax, (partition, table) in zip(axes[:, 0], parts, strict=True):
        owners = _owners(table)
        for row in table.to_pylist():
            colour, hatch = OUTCOMES[row["outcome"]]
            # One row per producer, so that a transaction stands beside the others of its producer.
            ax.barh(owners.index(_owner(row["transaction"])), row["last_offset"] - row["first_offset"] + 1, 0.7,
                    row["first_offset"], color=colour, hatch=hatch, edgecolor="white", linewidth=0.8)  # fmt: skip
        start, end = _limits(inspected, partition)
        stable = inspected.bounds.filter(pc.equal(inspected.bounds["partition"], partition))["last_stable"][0].as_py()
        ax.axvline(stable, color=BLACK, linewidth=1.2)
        ax.annotate(f"last stable offset {stable:,} ", (stable, -0.45), ha="right", va="bottom", fontsize=9)
        ax.set_yticks(range(len(owners)), owners)
        ax.set_ylim(len(owners) - 0.4, -0.9)
        ax.set_xlim(start, end + max(1, (end - start) * 0.01))
        ax.grid(axis="y", visible=False)
        ax.set_title(_title(inspected, partition))
    _offset_axis(axes[-1, 0])
    seen = set(inspected.transactions["outcome"].to_pylist())
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=outcome)
        for outcome, (colour, hatch) in OUTCOMES.items()
        if outcome in seen
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return _done(figure)


# -- inside


def _done(figure: Figure) -> Figure:
    """The notebook shows a cell's last value; what is still open it would show once more."""
    plt.close(figure)
    return figure


def _partitions(inspected: Inspected, most: int | None = MOST_PARTITIONS) -> list[tuple[int, pa.Table]]:
    return _split(inspected.batches, inspected)[:most]


def _split(table: pa.Table, inspected: Inspected) -> list[tuple[int, pa.Table]]:
    numbers = inspected.bounds["partition"].to_pylist()
    parts = [(number, table.filter(pc.equal(table["partition"], number))) for number in numbers]
    return [(number, part) for number, part in parts if len(part)]


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    numbers: np.ndarray = pc.fill_null(table[name].cast(pa.int64()), 0).to_numpy()
    return numbers


def _sum(table: pa.Table, name: str) -> int:
    return int(_numbers(table, name).sum())


def _timed(table: pa.Table) -> pa.ChunkedArray:
    return pc.and_(pc.is_valid(table["min_timestamp"]), pc.not_equal(table["outcome"], "marker"))


def _limits(inspected: Inspected, partition: int) -> tuple[int, int]:
    row = inspected.bounds.filter(pc.equal(inspected.bounds["partition"], partition)).to_pylist()[0]
    return row["log_start"], row["log_end"]


def _title(inspected: Inspected, partition: int) -> str:
    return f"{inspected.bounds['topic'][0].as_py()}, partition {partition}"


def _rows(count: int, height: float) -> tuple[Figure, Sequence[Axes]]:
    figure, axes = plt.subplots(count, 1, figsize=(WIDTH, 0.5 + height * count), squeeze=False)
    for ax in axes[:, 0]:
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure, list(axes[:, 0])


def _offset_axis(ax: Axes) -> None:
    ax.set_xlabel("offset")
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _owner(transaction: str) -> str:
    return transaction.rpartition(" #")[0] or transaction


def _owners(table: pa.Table) -> list[str]:
    return list(dict.fromkeys(_owner(text) for text in table["transaction"].to_pylist()))


def _unit(ms: int) -> tuple[float, str]:
    for scale, unit in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1_000, "seconds")):
        if ms >= 2 * scale:
            return scale, unit
    return 1, "ms"
