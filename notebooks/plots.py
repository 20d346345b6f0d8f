"""Plots along the log for dump_segment.ipynb, with data of `sparklog.tools.inspection.inspect`.

Each function takes an `Inspected` and returns the figure, or a sentence if there is nothing to draw.
"""

from __future__ import annotations

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
from sparklog.tools.inspection.notebook.parts import (
    BLACK,
    CODEC_COLOURS,
    CODEC_MARKS,
    GREY,
    INK,
    MOST_PARTITIONS,
    MOST_ROWS,
    OUTCOMES,
    PINK,
    RED,
    WIDTH,
    Sentence,
    about_bytes,
    codec_handles,
    done,
    limits,
    moment,
    numbers,
    offset_axis,
    panels,
    partitions_of,
    place,
    split,
    timed,
    total,
    unit_of,
)


def batches(inspected: Inspected) -> Figure | Sentence:
    """Plot the sizes of batches along the log, and their compression."""
    parts = partitions_of(inspected)
    if not parts:
        return Sentence("There are no batches.")
    figure, axes = panels(len(parts), 1.9)
    for ax, (partition, table) in zip(axes, parts, strict=True):
        base, last, size = (numbers(table, name) for name in ("base_offset", "last_offset", "size"))
        codecs = table["codec"].to_pylist()
        marker = pc.equal(table["outcome"], "marker").to_numpy()
        colours = [CODEC_COLOURS.get(codec, BLACK) for codec in codecs]
        ax.bar(base, size, last - base + 1, align="edge", color=colours, edgecolor="white", linewidth=0.4)
        ax.plot(base[marker] + 0.5, size[marker], "v", color=BLACK, markersize=4)
        middle = about_bytes(float(np.median(size[~marker]))) if (~marker).any() else "none"
        ax.set_title(f"{place(inspected, partition)}: size of its {int((~marker).sum()):,} batches, median {middle}")
        ax.set_ylabel("bytes per batch")
        ax.yaxis.set_major_formatter(EngFormatter("B", sep=" "))
    offset_axis(axes[-1])
    handles: list[Artist] = [*codec_handles(inspected.batches)]
    if bool(pc.any(pc.equal(inspected.batches["outcome"], "marker")).as_py()):
        handles.append(Line2D([], [], color=BLACK, marker="v", linestyle="", markersize=4, label="marker"))
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return done(figure)


def compression(inspected: Inspected) -> Figure | Sentence:
    """Plot the savings of compression by codec and by batch size."""
    table = inspected.batches.filter(pc.is_valid(inspected.batches["uncompressed_bytes"]))
    table = table.filter(pc.not_equal(table["outcome"], "marker"))
    if not len(table):
        return Sentence("There are no batches of data.")
    used = [codec for codec in CODEC_COLOURS if codec in set(table["codec"].to_pylist())]
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 1.4 + 0.42 * max(len(used), 3)))
    for row, codec in enumerate(used):
        mine = table.filter(pc.equal(table["codec"], codec))
        ratio = np.array(mine["ratio"].to_pylist())
        plain = total(mine, "uncompressed_bytes")
        stored = float((numbers(mine, "uncompressed_bytes") / ratio).sum())
        left.barh(row - 0.19, plain, 0.36, color="white", edgecolor=CODEC_COLOURS[codec], hatch="////")
        left.barh(row + 0.19, stored, 0.36, color=CODEC_COLOURS[codec])
        right.plot(numbers(mine, "uncompressed_bytes"), ratio, CODEC_MARKS[codec], color=CODEC_COLOURS[codec],
                   markersize=4, alpha=0.7, label=codec)  # fmt: skip
        left.annotate(f" {plain / stored:.1f}×", (max(plain, stored), row), va="center", fontsize=9)
    left.set_yticks(range(len(used)), used)
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.xaxis.set_major_formatter(EngFormatter("B", sep=" "))
    left.xaxis.set_major_locator(MaxNLocator(4))
    left.margins(x=0.15)
    left.set_title("Bytes of records by codec: plain (hatched), stored")
    left.set_xlabel("bytes of all batches")
    left.set_ylabel("codec")
    right.axhline(1, color=BLACK, linewidth=0.8)
    sizes = numbers(table, "uncompressed_bytes")
    if sizes.max() > 20 * sizes.min():
        right.set_xscale("log")
    else:
        right.xaxis.set_major_locator(MaxNLocator(4))
    right.xaxis.set_major_formatter(EngFormatter("B", sep=" "))
    right.set_xlabel("bytes of an uncompressed batch")
    right.set_ylabel("compression ratio (times)")
    right.set_ylim(bottom=0)
    right.set_title("Ratio by the size of a batch")
    right.legend(loc="best")
    return done(figure)


def keys(inspected: Inspected) -> Figure | Sentence:
    """Plot how keys repeat: records with a key, distinct keys so far, and records that compaction would keep."""
    parts = [(n, table) for n, table in partitions_of(inspected) if total(table, "keys_new")]
    if not parts:
        return Sentence("No record has a key.")
    figure, axes = panels(len(parts), 2.1)
    for ax, (partition, table) in zip(axes, parts, strict=True):
        data = pc.not_equal(table["outcome"], "marker").to_numpy()
        at = numbers(table, "last_offset")
        keyed = np.where(data, numbers(table, "records"), 0) - numbers(table, "keys_null")
        lines = (
            ("records with a key", keyed, BLACK, ":"),
            ("different keys so far", numbers(table, "keys_new"), INK, "-"),
            ("latest of their key: compaction keeps these", numbers(table, "keys_latest"), PINK, "--"),
        )
        for label, values, colour, style in lines:
            text = f"{label} ({int(values.sum()):,})"
            ax.step(at, np.cumsum(values), where="post", color=colour, linestyle=style, label=text)
        tombstones = numbers(table, "tombstones") > 0
        if tombstones.any():
            ax.plot(at[tombstones], np.zeros(int(tombstones.sum())), "|", color=RED, markersize=9,
                    label=f"batches with tombstones ({int(tombstones.sum()):,})")  # fmt: skip
        kept = _share(total(table, "keys_latest"), int(keyed.sum()))
        ax.set_title(f"{place(inspected, partition)}: compaction keeps {kept}")
        ax.set_ylabel("records, summed up")
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.legend(loc="upper left")
    offset_axis(axes[-1])
    return done(figure)


def gaps(inspected: Inspected) -> Figure | Sentence:
    """Plot gaps: offsets whose records compaction has removed."""
    parts = [(n, table) for n, table in partitions_of(inspected) if _gone(table)]
    if not parts:
        return Sentence("There are no gaps: every offset from the log start on holds a record or a marker.")
    figure, axes = panels(len(parts), 1.5)
    for ax, (partition, table) in zip(axes, parts, strict=True):
        start, end = limits(inspected, partition)
        base, last = numbers(table, "base_offset"), numbers(table, "last_offset")
        share = numbers(table, "records") / (last - base + 1)
        ax.axvspan(start, end, color="#F6E3D6", linewidth=0)
        ax.bar(base, np.ones(len(base)), last - base + 1, align="edge", color="white", linewidth=0)
        ax.bar(base, share, last - base + 1, align="edge", color=INK, linewidth=0)
        ax.set_title(
            f"{place(inspected, partition)}: {_gone(table):,} of {int(last.max()) + 1 - start:,} offsets are gone"
        )
        ax.set_ylabel("share of\noffsets kept")
        ax.set_ylim(0, 1)
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:.0%}"))
        ax.grid(visible=False)
    offset_axis(axes[-1])
    handles = [Patch(color=INK, label="records"), Patch(facecolor="white", edgecolor=GREY, label="gone from a batch"),
               Patch(color="#F6E3D6", label="whole batches gone")]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper right", ncols=3)
    return done(figure)


def times(inspected: Inspected) -> Figure | Sentence:
    """Plot record timestamps along the log, and how late records are."""
    parts = [(n, table.filter(timed(table))) for n, table in partitions_of(inspected)]
    parts = [(n, table) for n, table in parts if len(table)]
    if not parts:
        return Sentence("No record has a time.")
    drawn = [(n, table, kind) for n, table in parts for kind in (_clock, _lateness) if kind is _clock or _late(table)]
    figure, axes = panels(len(drawn), 1.45)
    for ax, (partition, table, draw) in zip(axes, drawn, strict=True):
        draw(ax, place(inspected, partition), table)
    offset_axis(axes[-1])
    return done(figure)


def _late(table: pa.Table) -> int:
    return total(table, "late_records")


def _middle(table: pa.Table) -> np.ndarray:
    middle: np.ndarray = (numbers(table, "base_offset") + numbers(table, "last_offset") + 1) / 2
    return middle


def _clock(ax: Axes, title: str, table: pa.Table) -> None:
    """Plot the range of timestamps of each batch."""
    at, low, high = _middle(table), numbers(table, "min_timestamp"), numbers(table, "max_timestamp")
    origin = int(low.min())
    scale, unit = unit_of(int(high.max()) - origin)
    late = numbers(table, "late_records") > 0
    for chosen, colour, mark, label in ((~late, INK, "o", "in order"), (late, RED, "^", "holds late records")):
        if chosen.any():
            ax.vlines(at[chosen], (low[chosen] - origin) / scale, (high[chosen] - origin) / scale, colors=colour)
            ax.plot(at[chosen], (high[chosen] - origin) / scale, mark, color=colour, markersize=3.5, label=label)
    in_order = "" if late.any() else ", all in order"
    ax.set_title(f"{title}: time of the records since {moment(origin)} UTC{in_order}")
    ax.set_ylabel(f"time ({unit})")
    if late.any():
        ax.legend(loc="best")


def _lateness(ax: Axes, title: str, table: pa.Table) -> None:
    """Plot how much older records are than the latest timestamp before them."""
    behind = numbers(table, "latest_by_ms")
    scale, unit = unit_of(int(behind.max()))
    first, last = numbers(table, "base_offset"), numbers(table, "last_offset")
    ax.bar(first, behind / scale, last - first + 1, align="edge", color=RED)
    ax.set_title(f"{title}: {_late(table):,} records older than one before them; by how much at most, per batch")
    ax.set_ylabel(f"late ({unit})")


def indexes(inspected: Inspected, interval: int = 4096) -> Figure | Sentence:
    """Plot the index density of each file: bytes per entry of its offset index. `interval`: index.interval.bytes."""
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
    ax.barh(range(len(labels)), density, 0.6, color=INK)
    for row, (each, entries) in enumerate(zip(density, shown["index_entries"].to_pylist(), strict=True)):
        ax.annotate(f" {entries:,} {'entry' if entries == 1 else 'entries'}", (each, row), va="center", fontsize=9)
    ax.axvline(interval, color=RED, linestyle="--", linewidth=1, label=f"index.interval.bytes ({interval:,})")
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.14)
    ax.set_xlabel("bytes of log per index entry")
    ax.set_ylabel("partition: offsets")
    ax.xaxis.set_major_formatter(EngFormatter("B", sep=" "))
    more = f", the first {MOST_ROWS} of {len(files):,} files" if len(files) > MOST_ROWS else ""
    ax.set_title(f"What a seek may read in vain: density of the offset index{more}")
    if bare:
        figure.supxlabel(left_out, fontsize=9, x=0.99, ha="right")
    figure.legend(loc="outside upper right")
    return done(figure)


def transactions(inspected: Inspected) -> Figure | Sentence:
    """Plot the offsets and outcome of each transaction, and the last stable offset."""
    parts = [(n, t) for n, t in split(inspected.transactions, inspected) if len(t)][:MOST_PARTITIONS]
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
            # One row per producer, so that the transactions of a producer are next to each other.
            ax.barh(owners.index(_owner(row["transaction"])), row["last_offset"] - row["first_offset"] + 1, 0.7,
                    row["first_offset"], color=colour, hatch=hatch, edgecolor="white", linewidth=0.8)  # fmt: skip
        start, end = limits(inspected, partition)
        stable = inspected.bounds.filter(pc.equal(inspected.bounds["partition"], partition))["last_stable"][0].as_py()
        ax.axvline(stable, color=BLACK, linewidth=1.2)
        ax.annotate(f"last stable offset {stable:,} ", (stable, -0.45), ha="right", va="bottom", fontsize=9)
        ax.set_yticks(range(len(owners)), owners)
        ax.set_ylim(len(owners) - 0.4, -0.9)
        ax.set_xlim(start, end + max(1, (end - start) * 0.01))
        ax.grid(axis="y", visible=False)
        ended = table["outcome"].to_pylist()
        counts = ", ".join(f"{ended.count(outcome):,} {outcome}" for outcome in OUTCOMES if outcome in ended)
        ax.set_title(f"{place(inspected, partition)}: transactions, {counts}")
        ax.set_ylabel("producer")
    offset_axis(axes[-1, 0])
    seen = set(inspected.transactions["outcome"].to_pylist())
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=outcome)
        for outcome, (colour, hatch) in OUTCOMES.items()
        if outcome in seen
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return done(figure)


def _owner(transaction: str) -> str:
    return transaction.rpartition(" #")[0] or transaction


def _owners(table: pa.Table) -> list[str]:
    return list(dict.fromkeys(_owner(text) for text in table["transaction"].to_pylist()))


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} records ({part / max(whole, 1):.0%})"


def _gone(table: pa.Table) -> int:
    return total(table, "gap_before") + total(table, "missing")
