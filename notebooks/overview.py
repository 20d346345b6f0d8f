"""Plots of an entire topic for dump_segment.ipynb: sizes, hottest keys, records per hour, comparison of partitions.

Each function takes an `Inspected` and returns the figure, or a sentence if there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter, MaxNLocator, StrMethodFormatter

from sparklog.tools.inspection.inspect import Inspected
from sparklog.tools.inspection.notebook.parts import (
    CODEC_COLOURS,
    INK,
    RED,
    WIDTH,
    Sentence,
    about_bytes,
    codec_handles,
    done,
    key_text,
    numbers,
    timed,
    used_codecs,
)

BYTES = EngFormatter("B", sep=" ")
COUNT = StrMethodFormatter("{x:,.0f}")
HOUR_MS = 3_600_000
PERIODS = {"second": 1_000, "minute": 60_000, "hour": HOUR_MS, "day": 24 * HOUR_MS}
MOST_FILES = 200
BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
LATEST_MS = 250_000_000_000_000
"""Later timestamps (from the year 9892 on) are ignored, because calendars end with the year 9999."""


def sizes(inspected: Inspected) -> Figure | Sentence:
    """Plot the bytes and records of each file (segment or append file) and of each batch."""
    data = _data(inspected)
    if not len(data):
        return Sentence("There are no batches of data.")
    figure, axes = plt.subplots(2, 2, figsize=(WIDTH, 4.6))
    files = list(dict.fromkeys(zip(inspected.files["partition"].to_pylist(), inspected.files["file"].to_pylist(),
                                   strict=True)))  # fmt: skip
    rows = {place: row for row, place in enumerate(files)}
    at = np.array([rows[each] for each in zip(data["partition"].to_pylist(), data["file"].to_pylist(), strict=True)])
    more = f", the first {MOST_FILES} of {len(files):,}" if len(files) > MOST_FILES else ""
    for row, (name, what, form, axis) in enumerate(_measures()):
        segments, batches = axes[row]
        sums = np.bincount(at, numbers(data, name), len(files))
        _stacked(segments, data, at, name)
        segments.set_xlim(-0.6, min(len(files), MOST_FILES) - 0.4)
        segments.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        segments.set_title(f"{what} per segment: median {form(float(np.median(sums)))}{more}")
        segments.set_xlabel("segment or append file, by partition and offset")
        segments.set_ylabel(f"{what.lower()} per file")
        segments.yaxis.set_major_formatter(axis)
        _histogram(batches, data, name)
        batches.set_title(f"{what} per batch: median {form(float(np.median(numbers(data, name))))}")
        batches.set_xlabel(f"{what.lower()} per batch")
        batches.set_ylabel("batches")
        batches.xaxis.set_major_formatter(axis)
        batches.xaxis.set_minor_formatter("")
    return _with_codecs(figure, data)


def hottest_keys(inspected: Inspected, most: int = 10) -> Figure | Sentence:
    """Plot the keys with the most records and the most bytes across all partitions."""
    sums = inspected.keys.group_by("key", use_threads=False).aggregate([("records", "sum"), ("bytes", "sum")])
    if not len(sums):
        return Sentence("No record has a key.")
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 1.5 + 0.24 * min(most, len(sums))))
    for ax, (name, what, form, axis) in zip(axes, (("records", "records", COUNT, COUNT),
                                                   ("bytes", "bytes", about_bytes, BYTES)), strict=True):  # fmt: skip
        column = f"{name}_sum"
        top = sums.sort_by([(column, "descending"), ("key", "ascending")]).slice(0, most)
        values, whole = numbers(top, column), int(numbers(sums, column).sum())
        ax.barh(range(len(top)), values, 0.7, color=INK)
        for row, value in enumerate(values.tolist()):
            ax.annotate(f" {form(value)}", (value, row), va="center", fontsize=9)
        ax.set_yticks(range(len(top)), [key_text(key) for key in top["key"].to_pylist()], parse_math=False)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.margins(x=0.18)
        ax.xaxis.set_major_formatter(axis)
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        ax.set_xlabel(f"{what} of the key" + (" before compression" if name == "bytes" else ""))
        ax.set_ylabel("key")
        share = values.sum() / max(whole, 1)
        ax.set_title(f"Hottest by {what}: {len(top)} of {len(sums):,} keys\nhave {share:.0%} of all {what} with a key")
    return done(figure)


def rates(inspected: Inspected, period: str | None = None) -> Figure | Sentence:
    """Plot bytes and records per period, by the latest timestamp of each batch. `period`: second, minute, hour or day.

    The default is hours, or a shorter period if the log covers less than four hours, or days if more than two weeks.
    """
    data = _data(inspected)
    data = data.filter(timed(data))
    times = numbers(data, "max_timestamp")
    data = data.filter(pa.array((times >= 0) & (times < LATEST_MS)))
    if not len(data):
        return Sentence("No record has a time.")
    times = numbers(data, "max_timestamp")
    period = period or _period(int(times.max() - times.min()))
    step = PERIODS[period]
    bins = times // step
    figure, axes = plt.subplots(2, 1, figsize=(WIDTH, 4.0), sharex=True)
    for ax, (name, what, form, axis) in zip(axes, _measures(), strict=True):
        sums = np.bincount(np.unique(bins, return_inverse=True)[1], numbers(data, name))
        _stacked(ax, data, bins * (step / PERIODS["day"]), name, width=step / PERIODS["day"])
        spread = int(bins.max() - bins.min()) + 1
        average, highest = form(sums.sum() / spread), form(float(sums.max()))
        ax.set_title(f"{what} per {period}: {average} on average, {highest} at most")
        ax.set_ylabel(f"{what.lower()} per {period}")
        ax.yaxis.set_major_formatter(axis)
    # matplotlib represents dates as days since 1970.
    axes[1].xaxis_date()
    locator: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes[1].xaxis.set_major_locator(locator)
    axes[1].xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes[1].set_xlabel("time of the records (UTC)")
    return _with_codecs(figure, data)


def partitions(inspected: Inspected) -> Figure | Sentence:
    """Compare partitions: bytes, records and distinct keys."""
    places = {partition: row for row, partition in enumerate(inspected.bounds["partition"].to_pylist())}
    if len(places) < 2:
        return Sentence("There is one partition: nothing to compare it with.")
    data = _data(inspected)
    if not len(data):
        return Sentence("There are no batches of data.")
    figure, axes = plt.subplots(1, 3, figsize=(WIDTH, 3.4))
    at = np.array([places[partition] for partition in data["partition"].to_pylist()])
    for ax, (name, what, _, axis) in zip(axes, (*_measures(), ("keys_new", "Keys", COUNT, COUNT)), strict=True):
        sums = np.bincount(at, numbers(data, name), len(places))
        if name == "keys_new":
            ax.bar(range(len(places)), sums, 0.8, color=INK)
        else:
            _stacked(ax, data, at, name)
        ax.axhline(sums.mean(), color=RED, linestyle="--", linewidth=1)
        ax.annotate("average ", (1, sums.mean()), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                    color=RED, fontsize=9, bbox=BEHIND_TEXT)  # fmt: skip
        largest = int(sums.argmax())
        skew = sums[largest] / sums.mean() if sums.any() else 1.0
        ax.set_title(f"{what}: partition {list(places)[largest]} has\n{skew:.1f} times the average")
        ax.set_xlabel("partition")
        ax.set_ylabel("different keys" if name == "keys_new" else what.lower())
        ax.yaxis.set_major_formatter(axis)
        ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        if len(places) <= 10:
            ax.set_xticks(range(len(places)), [str(partition) for partition in places])
        ax.grid(axis="x", visible=False)
    return _with_codecs(figure, data)


# -- helpers


def _measures() -> tuple[tuple[str, str, Callable[[float], str], Formatter], ...]:
    """Return for each measure: the column, its name in titles, and the number formats of titles and axes."""
    return ("size", "Bytes", about_bytes, BYTES), ("records", "Records", _count, COUNT)


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _data(inspected: Inspected) -> pa.Table:
    return inspected.batches.filter(pc.not_equal(inspected.batches["outcome"], "marker"))


def _stacked(ax: Axes, data: pa.Table, at: np.ndarray, name: str, width: float | None = None) -> None:
    """Draw one bar per position in `at`, stacked by codec. With `width`, bars start at their positions."""
    places, row = np.unique(at, return_inverse=True)
    bottom = np.zeros(len(places))
    for codec in used_codecs(data):
        mine = _of_codec(data, codec)
        values = np.bincount(row[mine], numbers(data, name)[mine], len(places))
        ax.bar(places, values, width or 0.8, bottom, align="edge" if width else "center",
               color=CODEC_COLOURS[codec], edgecolor="white" if len(places) <= 60 else CODEC_COLOURS[codec],
               linewidth=0.4)  # fmt: skip
        bottom += values
    ax.margins(y=0.08)


def _histogram(ax: Axes, data: pa.Table, name: str) -> None:
    values = numbers(data, name).astype(float)
    low, high = max(values.min(), 1), max(values.max(), 1)
    if high > 20 * low:
        ax.set_xscale("log")
        edges: Any = np.geomspace(low, high * 1.001, 25)
    else:
        edges = np.linspace(values.min() - 0.5, high + 0.5, 25)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    used = used_codecs(data)
    ax.hist([np.maximum(values[_of_codec(data, codec)], edges[0]) for codec in used], edges, stacked=True,
            color=[CODEC_COLOURS[codec] for codec in used], edgecolor="white", linewidth=0.4)  # fmt: skip
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.yaxis.set_major_formatter(COUNT)


def _of_codec(data: pa.Table, codec: str) -> np.ndarray:
    mine: np.ndarray = pc.equal(pc.fill_null(data["codec"], "?"), codec).to_numpy()
    return mine


def _with_codecs(figure: Figure, data: pa.Table) -> Figure:
    handles = codec_handles(data)
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), title=None)
    return done(figure)


def _period(span_ms: int) -> str:
    if span_ms > 14 * PERIODS["day"]:
        return "day"
    return "hour" if span_ms >= 4 * HOUR_MS else "minute" if span_ms >= 240_000 else "second"
