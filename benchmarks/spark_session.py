"""One Spark session for the benchmarks, with the README's two settings, and a meter of CPU seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from sparklog.datasource.session import workers_python

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")


def benchmark_session(**settings: str) -> SparkSession:
    """`local[2]`, UI off, a heap of 5 GB; `settings` override."""
    os.environ.setdefault("PYSPARK_PYTHON", workers_python())
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(HERE))
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "5g",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        "spark.python.unix.domain.socket.enabled": "true",
        **settings,
    }
    builder = SparkSession.builder.master("local[2]").appName("sparklog-benchmarks")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@dataclass(frozen=True)
class Timing:
    """One run: wall and CPU seconds of this process and everything it started (JVM, Python workers)."""

    wall: float
    cpu: float


def timed(action: Callable[[], object]) -> Timing:
    """Run once."""
    cpu, wall = tree_cpu(), time.perf_counter()
    action()
    return Timing(time.perf_counter() - wall, tree_cpu() - cpu)


def tree_cpu() -> float:
    """CPU seconds of this process and all its descendants, ended children included (Linux)."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(int(ticks) for ticks in fields[11:15]) / TICKS
    mine, total = os.getpid(), 0.0
    for pid, seconds in used.items():
        at = pid
        while at not in (0, mine):
            at = parents.get(at, 0)
        total += seconds if at == mine else 0.0
    return total
