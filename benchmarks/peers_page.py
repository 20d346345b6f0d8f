"""docs/design/peers.md and its plots, of the document that `bench_peers` writes."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
OURS, FLOORS = "sparklog", ("bare", "noop")
COLOURS = {"ours": "#c2410c", "floor": "#a8a29e", "peer": "#0369a1"}
NOISE = 1.05
"""A peer that is ahead by less has won nothing, nor have we."""


def write(results: Mapping[str, Any]) -> None:
    """Write the page, and a plot for each work."""
    for work in results["works"]:
        (DOCS / "images" / plot_name(work)).write_text(plot(work))
    (DOCS / "design" / "peers.md").write_text(page(results))


def page(results: Mapping[str, Any]) -> str:
    works = results["works"]
    return "\n".join([*state(results), *losses(works), *tables(works)]) + "\n"


def state(results: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    missing = [f"* {line}" for line in results["missing"]] or ["* Nothing."]
    return [
        "# Peers",
        "",
        "`python -m benchmarks peers` writes this page. Variants take turns on one machine. Figures are medians of all",
        "rounds, with the least and the most. CPU seconds are those of all processes: `driver` is the program, `jvm`",
        "is Spark, `python` are Spark's Python workers, `ended` are tools that have ended. `bare` and `noop` do no",
        "format work: they are what Spark alone costs, so no peers. sparklog writes durably (fsync); the others leave",
        "their files to the page cache. Both recommended settings of Spark are on. Peers run as they come, and tuned:",
        "batches of 1 MB and fetches of 16 MB for Kafka, two tasks for Delta's log, zstd for Delta. A broker has the",
        "JVM settings of Kafka's scripts. [Performance](performance.md) has what bounds our figures.",
        "",
        f"* **Machine**: {results['machine']}; load {results['load']:.1f} before the run",
        f"* **Date**: {results['date']}, {results.get('seconds', 0) / 60:.0f} minutes",
        f"* **Command**: `{results['command']}`",
        f"* **Versions**: {versions}",
        "",
        "What could not be measured:",
        "",
        *missing,
        "",
    ]


def losses(works: Iterable[Mapping[str, Any]]) -> list[str]:
    """Where the best peer is ahead of our best, by wall time, CPU or bytes."""
    lines = ["## What was not won", "", f"Peers that are ahead of the best sparklog by more than {NOISE - 1:.0%}:", ""]
    lost = []
    for work in works:
        for what, unit, digits in (("wall", "s", 3), ("cpu", "CPU s", 2), ("bytes", "MB", 1)):
            figures = {name: value for name, value in _figures(work, what).items() if value}
            ours = [value for name, value in figures.items() if name.startswith(OURS)]
            peers = {name: value for name, value in figures.items() if _kind(name) == "peer"}
            if ours and peers and min(ours) > NOISE * min(peers.values()):
                name = min(peers, key=lambda peer: peers[peer])
                ahead = min(ours) / peers[name]
                figure = f"{peers[name]:.{digits}f} {unit} against {min(ours):.{digits}f}"
                lost.append(f"| {work['name']} | {name} | {figure} | {ahead:.2f}x |")
    rows = ["| work | peer | figure | ahead |", "|---|---|---:|---:|", *lost] if lost else ["Nothing."]
    return [*lines, *rows, ""]


def tables(works: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = []
    for work in works:
        title = work["name"][0].upper() + work["name"][1:]
        picture = f"![wall seconds of each variant](../images/{plot_name(work)})"
        lines += [
            f"## {title}",
            "",
            f"{work['about'][0].upper()}{work['about'][1:]}; {work['records']:,} in a round.",
            "",
            picture,
            "",
            *table(work),
            "",
        ]
    return lines[:-1]


def table(work: Mapping[str, Any]) -> list[str]:
    """Rows of one work, in the order of wall time."""
    walls, cpus, sizes = (_figures(work, what) for what in ("wall", "cpu", "bytes"))
    late = _figures(work, "p95")
    column = "p95 s" if any(late.values()) else "M records/s"
    lines = [
        f"| variant | wall s | least, most | {column} | CPU s | of these | MB |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    for name in sorted(walls, key=lambda variant: walls[variant]):
        rounds = work["variants"][name]["rounds"]
        spread = [run["wall"] for run in rounds]
        rate = f"{late[name]:.3f}" if late[name] else f"{work['records'] / walls[name] / 1e6:.3f}"
        size = f"{sizes[name]:.1f}" if sizes[name] else ""
        wall = f"{walls[name]:.3f} | {min(spread):.3f}, {max(spread):.3f}"
        lines.append(f"| {name} | {wall} | {rate} | {cpus[name]:.2f} | {_shares(rounds)} | {size} |")
    return lines


def _shares(rounds: list[dict[str, Any]]) -> str:
    total: Counter[str] = Counter()
    for run in rounds:
        total.update(run["by_process"])
    shares = ((kind, seconds / len(rounds)) for kind, seconds in total.most_common())
    return ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in shares if seconds >= 0.005)


def _figures(work: Mapping[str, Any], what: str) -> dict[str, float]:
    """The median of each variant; bytes in MB; 0: none."""
    if what == "bytes":
        return {name: variant.get("bytes", 0) / 1e6 for name, variant in work["variants"].items()}
    rounds = {name: [run.get(what) or 0.0 for run in variant["rounds"]] for name, variant in work["variants"].items()}
    return {name: statistics.median(values) for name, values in rounds.items()}


def _kind(name: str) -> str:
    return "ours" if name.startswith(OURS) else "floor" if name.startswith(FLOORS) else "peer"


def plot_name(work: Mapping[str, Any]) -> str:
    return f"peers-{re.sub(r'[^a-z]+', '-', work['name'].lower())}.svg"


def plot(work: Mapping[str, Any]) -> str:
    """Bars of the medians of wall seconds, with lines from the least to the most."""
    walls = _figures(work, "wall")
    names = sorted(walls, key=lambda variant: walls[variant])
    most = max(run["wall"] for variant in work["variants"].values() for run in variant["rounds"])
    scale, left, step = 420 / most, 170, 22
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{len(names) * step + 12}">',
        "<style>text { font: 12px sans-serif } line { stroke: black }</style>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for row, name in enumerate(names):
        spread = [run["wall"] * scale for run in work["variants"][name]["rounds"]]
        top, wide = row * step + 8, walls[name] * scale
        middle = top + 7
        parts += [
            f'<text x="{left - 6}" y="{top + 11}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{top}" width="{wide:.1f}" height="14" fill="{COLOURS[_kind(name)]}"/>',
            f'<line x1="{left + min(spread):.1f}" x2="{left + max(spread):.1f}" y1="{middle}" y2="{middle}"/>',
            f'<text x="{left + max(wide, *spread) + 5:.1f}" y="{top + 11}">{walls[name]:.3g} s</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
