"""Test that the page that compares formats matches the stored results, and that system calls are counted."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

REPOSITORY = Path(__file__).parents[1]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def window(p95_ms: int, error: str = "") -> dict[str, Any]:
    made = {
        "batches": 10,
        "p50_ms": 50,
        "p95_ms": p95_ms,
        "max_ms": 300,
        "cpu_s": {"jvm": 2.0, "python": 1.0},
        "memory_mib": {"jvm": 600, "python": 100},
        "files": 20,
        "metadata_bytes": 2_000_000,
        "data_bytes": 40_000_000,
        "maintenance": [{"seconds": 1.5, "error": error}],
    }
    return {"seconds": 60.0, "load": 1.0, "formats": {"delta": made}}


def results(*windows: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": "2 cores",
        "load": 0.5,
        "date": "2026-11-29",
        "command": "python -m benchmarks day --real",
        "window_minutes": 1.0,
        "planned_windows": 2,
        "missing": ["iceberg: no jars"],
        "formats": {"delta": {"format": "delta 4.4.0", "spark": "4.2.1"}},
        "windows": list(windows),
        "operations": [{"delta": {"batches": 4, "write": 2.5, "read": 8.0, "list": 3.0, "stat": 7.0, "delete": 0.0}}],
    }


def test_page_and_picture_match_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    page, stored = load("day_page", monkeypatch), json.loads((REPOSITORY / "benchmarks" / "day.json").read_text())
    assert (REPOSITORY / "docs/design/day.md").read_text() == page.page(stored)
    assert (REPOSITORY / "docs/images/day.svg").read_text() == page.plot(stored)


def test_page_compares_the_last_window_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    page = load("day_page", monkeypatch)
    text = page.page(results(window(100), window(400), window(150, "VACUUM failed")))
    assert "| Delta Lake | p95 of a micro-batch | 100 ms | 150 ms | **1.50** |" in text
    assert "| Delta Lake | CPU time per micro-batch | 300 ms | 300 ms | 1.00 |" in text
    assert "* Window 3, Delta Lake: VACUUM failed" in text
    assert "* iceberg: no jars" in text
    assert "| Delta Lake | first | 4 | 2.5 | 8.0 | 3.0 | 7.0 | 0.0 |" in text


def test_busy_host_is_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    page, note = load("day_page", monkeypatch), "* **Note**: The host was busy"
    assert note not in page.page(results(window(100), window(400)))
    assert note in page.page(results(window(100), window(400) | {"load": 20.0}))


def test_stopped_run_is_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    page = load("day_page", monkeypatch)
    assert "The run was stopped after 1 of 2 windows" in page.page(results(window(100)))
    assert "stopped" not in page.page(results(window(100), window(400)))


def test_picture_has_a_curve_for_each_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    page = load("day_page", monkeypatch)
    picture = ElementTree.fromstring(page.plot(results(window(100), window(400))))
    curves = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(curves) == len(page.MEASURES)
    # A higher value is further up.
    first, last = (float(point.split(",")[1]) for point in curves[0].attrib["points"].split())
    assert last < first


def test_windows_without_a_format_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    page = load("day_page", monkeypatch)
    ended = {"seconds": 60.0, "load": 1.0, "formats": {}}
    assert "| Delta Lake | p95 of a micro-batch | 100 ms | 100 ms | 1.00 |" in page.page(results(window(100), ended))


def test_system_calls_on_the_table_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    trace = """
1 openat(AT_FDCWD</w>, "/day/table/_log/1.json", O_RDONLY|O_CLOEXEC) = 6</day/table/_log/1.json>
1 openat(AT_FDCWD</w>, "/day/table/_log/2.json", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory)
1 openat(AT_FDCWD</w>, "/day/table/_log", O_WRONLY|O_CLOEXEC|O_TMPFILE, 0666) = 6</day/table/_log/#7>
1 openat(AT_FDCWD</w>, "/day/table/a.parquet", O_WRONLY|O_CREAT|O_EXCL, 0666 <unfinished ...>
1 openat(AT_FDCWD</w>, "/day/table/.a.parquet.crc", O_WRONLY|O_CREAT|O_EXCL, 0666) = 6
1 openat(AT_FDCWD</w>, "/day/table/_log", O_RDONLY|O_CLOEXEC|O_DIRECTORY) = 7</day/table/_log>
1 getdents64(7</day/table/_log>, 0x1 /* 3 entries */, 32768) = 80
1 getdents64(7</day/table/_log>, 0x1 /* 0 entries */, 32768) = 0
2 newfstatat(AT_FDCWD</w>, "/day/table/_log", {st_mode=S_IFDIR|0755, ...}, 0) = 0
2 stat("/day/checkpoint/offsets/1", {st_mode=S_IFREG|0644, ...}) = 0
2 unlink("/day/table/a.parquet") = 0
2 +++ exited with 0 +++
"""
    counted = load("real_day", monkeypatch).count_operations(trace.splitlines(), "/day/table")
    assert dict(counted) == {"read": 2, "write": 2, "list": 1, "stat": 1, "delete": 1}
