"""One Spark session for the benchmarks, with the README's two settings, and a meter of CPU seconds by process."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import SparkSession

from sparklog.datasource.session import workers_python

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")


def benchmark_session(**settings: str) -> SparkSession:
    """`local[2]`, UI off, a heap of 5 GB; `settings` override."""
    os.environ.setdefault("PYSPARK_PYTHON", workers_python())
    # Otherwise, Spark would run data sources with this Python instead of PYSPARK_PYTHON.
    os.environ.pop("PYSPARK_DRIVER_PYTHON", None)
    # Else each of Spark's Pythons compiles the modules that have changed, which an installation has done.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
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
    """One run: wall and CPU seconds of this process and everything it started, in all and by kind of process.

    `p95`: of what the run repeats, where `wall` is its median.
    """

    wall: float
    cpu: float = 0.0
    by_process: dict[str, float] = field(default_factory=dict)
    p95: float | None = None


def timed(action: Callable[[], object]) -> Timing:
    """Run once. An action that returns a `Timing` has taken the time itself, and the CPU seconds if it has any."""
    before, wall = tree(), time.perf_counter()
    result = action()
    wall = time.perf_counter() - wall
    if isinstance(result, Timing) and result.by_process:
        return result
    spent = spent_by_process(before, tree())
    timing = result if isinstance(result, Timing) else Timing(wall)
    return replace(timing, cpu=sum(spent.values()), by_process=spent)


def spent_by_process(before: Mapping[int, Process], after: Mapping[int, Process]) -> dict[str, float]:
    """Return the CPU seconds between two calls of `tree` by kind of process.

    Processes are compared one by one, because Spark ends Python workers that have been idle for a minute: their CPU
    seconds are missing in the second tree. `ended` are tools and other children of the driver that have ended.
    `commands` are ended children of the JVM: Hadoop starts commands such as `chmod` for each file of a checkpoint, and
    Spark starts a Python process for each streaming source.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    for pid, process in after.items():
        earlier = before.get(pid, Process(process.kind, 0.0, 0.0))
        spent[process.kind] += process.cpu - earlier.cpu
        ended = {"driver": "ended", "jvm": "commands"}.get(process.kind, process.kind)
        spent[ended] += process.ended - earlier.ended
    return {kind: round(seconds, 3) for kind, seconds in spent.items() if seconds > 0}


def compiler_cpu() -> float:
    """Return the CPU seconds of the threads of the JVM that compile Java code."""
    seconds = 0.0
    for pid, process in tree().items():
        if process.kind == "jvm":
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):  # Other threads end at any time.
                    if "CompilerThre" in (thread / "comm").read_text():
                        seconds += own_cpu(f"{pid}/task/{thread.name}")
    return seconds


def own_cpu(process: int | str) -> float:
    """Return the CPU seconds of a process, or of a thread, by its path below /proc."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass(frozen=True)
class Process:
    """A process of the tree: its kind, and the CPU seconds of its own and of its children that have ended."""

    kind: str
    cpu: float
    ended: float


def tree(root: int | None = None) -> dict[int, Process]:
    """The process `root` (by default this one) and all its descendants by process id (Linux).

    Kinds: `driver` (the root), `jvm` (Spark), `python` (its workers), `broker`, `server` (`sparklog serve`), `ended`
    (tools).
    """
    root = os.getpid() if root is None else root
    parents: dict[int, int] = {}
    processes: dict[int, Process] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            pid, ticks = int(entry.name), [int(word) for word in fields[11:15]]
            cpu, ended = (ticks[0] + ticks[1]) / TICKS, (ticks[2] + ticks[3]) / TICKS
            parents[pid] = int(fields[1])
            processes[pid] = Process(_kind(pid == root, command), cpu, ended)
    members = {}
    for pid, process in processes.items():
        ancestor = pid
        while ancestor not in (0, root):
            ancestor = parents.get(ancestor, 0)
        if ancestor:
            members[pid] = process
    return members


def _kind(is_root: bool, command: bytes) -> str:
    if is_root:
        return "driver"
    if b"kafka.Kafka" in command:
        return "broker"
    if b"java" in command.partition(b"\0")[0]:
        return "jvm" if b"org.apache.spark" in command else "ended"
    return "server" if b"\0serve\0" in command else "python"
