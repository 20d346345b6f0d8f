"""Test that the page that compares peers matches the stored results, and lists the workloads in which
peers are faster.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

REPOSITORY = Path(__file__).parents[1]


def peers_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers_page", REPOSITORY / "benchmarks" / "peers_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def work(**variants: dict[str, Any]) -> dict[str, Any]:
    rounds = {
        name.replace("_", "-"): {
            "rounds": [{"wall": wall, "cpu": 1.0, "by_process": {"jvm": 1.0}} for wall in walls["wall"]]
        }
        | ({"bytes": walls["bytes"]} if "bytes" in walls else {})
        for name, walls in variants.items()
    }
    return {"name": "append", "about": "rows into files", "records": 10, "variants": rounds}


def test_page_and_plots_match_the_results() -> None:
    page, results = peers_page(), json.loads((REPOSITORY / "benchmarks" / "peers.json").read_text())
    assert (REPOSITORY / "docs/design/peers.md").read_text() == page.page(results)
    for entry in results["works"]:
        assert (REPOSITORY / "docs/images" / page.plot_name(entry)).read_text() == page.plot(entry)


def test_only_faster_peers_are_listed() -> None:
    page = peers_page()
    ours = {"wall": [2.0, 2.0, 9.0], "bytes": 1_000_000}
    lost = page.losses(
        [work(sparklog_lz4=ours, kafka={"wall": [1.0, 1.0, 8.0], "bytes": 2_000_000}, bare={"wall": [0.1]})]
    )
    assert "| append | kafka | sparklog-lz4 | 1.000 s vs. 2.000 | 2.00x |" in lost
    assert sum("| append |" in line for line in lost) == 1
    assert "None." in page.losses([work(sparklog_lz4=ours, kafka={"wall": [1.95]})])
    assert "None." in page.losses([work(sparklog_lz4=ours, bare={"wall": [0.1]})])
