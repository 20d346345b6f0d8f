"""`bench_day --real`: sparklog, Delta and Iceberg in real time, side by side, each with one micro-batch per second.

Each format is a process of its own (`day_query.py`) with the Spark release that it supports. Once per window, each
format runs its maintenance, at a different time. Figures are taken at the end of each window and stored immediately.
Before the first window and after the last window, strace counts the file system operations on the table of each format.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_peers import surroundings
from spark_session import Process, spent_by_process, tree

from tests.support.inline_bytes import inline_records_of

REPOSITORY = Path(__file__).resolve().parents[1]
SPARK = {"sparklog": "", "delta": "4.2", "iceberg": "4.1"}
"""The Spark release of each format. Empty: the release of this Python."""
WARM_UP = 60
"""Micro-batches before the first window, in which processes start and code is compiled."""
SAMPLE_S = 20
"""Duration of a sample of file system operations."""
START_S = 600
OPERATIONS = ("write", "read", "list", "stat", "delete")
_CALL = re.compile(r'^\d+\s+(\w+)\((?:[^"]*"([^"]*)"|\d+<([^>]*)>)?(.*)$')
"""A line of strace: the name of the call, the path as an argument or of the file descriptor, and the rest."""


@dataclass
class Query:
    """A running query, and the events that its process has reported."""

    name: str
    folder: Path
    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"event"'):
                self.events.append(json.loads(line))

    def of(self, event: str, since: int = 0) -> list[dict[str, Any]]:
        return [found for found in self.events[since:] if found["event"] == event]

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None and not self.of("end")

    @property
    def failure(self) -> str:
        """Return why the query has ended, or an empty string if it is running."""
        if self.is_running:
            return ""
        ends = self.of("end")
        return ends[0]["error"] if ends and ends[0]["error"] else f"exit code {self.process.wait()}"

    def maintain(self) -> None:
        if self.is_running and self.process.stdin is not None:
            self.process.stdin.write("maintain\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def run(hours: float, window_minutes: float, formats: Sequence[str], results_file: Path) -> None:
    """Measure all windows, and write the results after each of them."""
    queries: dict[str, Query] = {}
    with tempfile.TemporaryDirectory(prefix="sparklog-day-", ignore_cleanup_errors=True) as folder:
        results = surroundings("day")
        results["command"] = f"python -m benchmarks day --real --hours {hours:g} --window-minutes {window_minutes:g}"
        planned = round(hours * 60 / window_minutes)
        results |= {"window_minutes": window_minutes, "planned_windows": planned}
        results |= {"windows": [], "missing": [], "operations": []}
        try:
            for name in formats:
                queries[name] = start(name, Path(folder) / name)
            warm_up(queries, results)
            results["formats"] = {name: query.of("start")[0] for name, query in queries.items()}
            results["operations"].append(operations(queries, results))
            # strace slows a query down, so the last sampled query has a backlog.
            time.sleep(SAMPLE_S)
            for _ in range(planned):
                results["windows"].append(window(queries, window_minutes * 60))
                drop_ended(queries, results)
                write(results, results_file)
                print(*lines(results["windows"][-1], len(results["windows"])), sep="\n", flush=True)
            results["operations"].append(operations(queries, results))
        finally:
            write(results, results_file)
            for query in queries.values():
                query.stop()
    print(*(f"could not be measured: {line}" for line in results["missing"]), sep="\n")


def write(results: Mapping[str, Any], file: Path) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.replace(file)


def start(name: str, folder: Path) -> Query:
    folder.mkdir()
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "benchmarks")])
    python = sys.executable
    if SPARK[name]:
        installation = ["sh", str(REPOSITORY / "scripts" / "spark_version.sh"), ".venv", SPARK[name], "--version"]
        subprocess.run(installation, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
        python = str(REPOSITORY / f".venv-spark-{SPARK[name]}" / "bin" / "python")
    errors = (folder / "stderr").open("w")
    words = [python, str(REPOSITORY / "benchmarks" / "day_query.py"), name, str(folder)]
    pipe = subprocess.PIPE
    return Query(
        name,
        folder,
        subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe, stderr=errors, text=True, cwd=folder),
    )


def warm_up(queries: dict[str, Query], results: dict[str, Any]) -> None:
    """Wait for `WARM_UP` batches of each query, at most `START_S`. Queries without a batch are recorded and removed."""
    until = time.monotonic() + START_S
    while any(query.is_running and len(query.of("batch")) < WARM_UP for query in queries.values()):
        if time.monotonic() > until:
            break
        time.sleep(1)
    for name, query in list(queries.items()):
        if query.is_running and not query.of("batch"):
            query.stop()
            results["missing"].append(f"{name}: no micro-batch in {START_S} s")
            del queries[name]
    drop_ended(queries, results)


def drop_ended(queries: dict[str, Query], results: dict[str, Any]) -> None:
    """Record and remove queries that have ended. The other queries continue."""
    for name, query in list(queries.items()):
        if query.failure:
            tail = (query.folder / "stderr").read_text().splitlines()[-3:]
            results["missing"].append(f"{name}: {query.failure} {' '.join(tail)[:300]}".strip())
            query.stop()
            del queries[name]


def window(queries: Mapping[str, Query], seconds: float) -> dict[str, Any]:
    """Measure one window, in which each format runs its maintenance once."""
    begun = time.monotonic()
    since = {name: len(query.events) for name, query in queries.items()}
    before = {name: tree(query.process.pid) for name, query in queries.items()}
    for number, query in enumerate(queries.values(), start=1):
        sleep_until(begun + seconds * number / (len(queries) + 1))
        query.maintain()
    sleep_until(begun + seconds)
    after = {name: tree(query.process.pid) for name, query in queries.items()}
    figures = {
        name: {
            **batches(query.of("batch", since[name])),
            "cpu_s": spent_by_process(before[name], after[name]),
            "memory_mib": memory(after[name]),
            **sizes(query.folder),
            "maintenance": query.of("maintenance", since[name]),
        }
        for name, query in queries.items()
    }
    return {"seconds": round(time.monotonic() - begun, 1), "load": os.getloadavg()[0], "formats": figures}


def sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0))


def batches(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of micro-batches and records, and the milliseconds of a micro-batch."""
    spent = [event["ms"] for event in events]
    if len(spent) < 2:
        return {"batches": len(spent), "records": sum(event["rows"] for event in events)}
    return {
        "batches": len(spent),
        "records": sum(event["rows"] for event in events),
        "p50_ms": round(statistics.median(spent)),
        "p95_ms": round(statistics.quantiles(spent, n=20, method="inclusive")[-1]),
        "max_ms": max(spent),
    }


def memory(processes: Mapping[int, Process]) -> dict[str, int]:
    """Return the MiB by kind of process. Pages that forked processes share are counted once."""
    total = Counter[str]()
    for pid, process in processes.items():
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total[process.kind] += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    return {kind: round(kib / 1024) for kind, kib in total.items()}


def sizes(folder: Path) -> dict[str, int]:
    """Return the number of files of a table, and their bytes. Hadoop's checksum files on a local disk are excluded."""
    total = Counter[str]()
    for place, _, names in os.walk(folder / "table"):
        for name in names:
            path = Path(place) / name
            if is_checksum(str(path)):
                continue
            try:
                nbytes, metadata = path.stat().st_size, metadata_bytes(path)
            except FileNotFoundError:
                continue
            total.update(files=1, metadata_bytes=metadata, data_bytes=nbytes - metadata)
    return dict(total)


def is_checksum(path: str) -> bool:
    """Hadoop writes a checksum file `.NAME.crc` for each file on a local disk, but not in an object store."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".crc")


def metadata_bytes(path: Path) -> int:
    """Return the bytes of a file that are metadata. In a commit of sparklog, only the inline records are data."""
    folders = {*path.parts}
    if folders & {"_delta_log", "metadata"}:
        return path.stat().st_size
    if path.suffix == ".parquet" or folders & {"append", "sealed"}:
        return 0
    if path.parent.name != "_log" or path.suffix != ".json":
        return path.stat().st_size
    data = path.read_bytes()
    return len(data) - len(inline_records_of(data))


def operations(queries: Mapping[str, Query], results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the file system operations per micro-batch on the table of each format, sampled one after the other."""
    samples = {}
    for name, query in queries.items():
        try:
            samples[name] = sample(query)
        except OSError as error:
            results["missing"].append(f"{name}: file system operations: {error}")
    return samples


def sample(query: Query) -> dict[str, float]:
    since, trace = len(query.events), query.folder / "trace"
    pids = [word for pid in tree(query.process.pid) for word in ("-p", str(pid))]
    strace = ["strace", "-f", "-q", "-y", "-s", "400", "-e", "trace=%file,getdents64", "-o", str(trace), *pids]
    subprocess.run(["timeout", "-k", "5", str(SAMPLE_S), *strace], stderr=subprocess.DEVNULL, check=False)
    found = count_operations(trace.read_text(errors="replace").splitlines(), str(query.folder / "table"))
    count = max(len(query.of("batch", since)), 1)
    return {"batches": count, **{name: round(found[name] / count, 2) for name in OPERATIONS}}


def count_operations(trace: Iterable[str], table: str) -> Counter[str]:
    """Count the lines of `strace -y` by operation. Only paths in the folder `table` count."""
    found = Counter[str]()
    for line in trace:
        call = _CALL.match(line)
        path = (call[2] or call[3] or "") if call else ""
        if call is None or not path.startswith(table) or is_checksum(path):
            continue
        name, rest = call[1], call[4]
        if name in ("open", "openat", "creat"):
            if "O_CREAT" in rest or "O_TMPFILE" in rest:
                found["write"] += 1
            elif "O_DIRECTORY" not in rest:
                found["read"] += 1
        elif name == "getdents64":
            # The last call of a listing returns 0.
            found["list"] += rest.rstrip().endswith("= 0")
        elif name in ("unlink", "unlinkat"):
            found["delete"] += 1
        elif "stat" in name or "access" in name:
            found["stat"] += 1
    return found


def lines(figures: Mapping[str, Any], number: int) -> list[str]:
    """Return a line for each format of a window."""
    text = [f"window {number}, load {figures['load']:.1f}"]
    for name, made in figures["formats"].items():
        cpu = sum(made["cpu_s"].values()) / max(made["batches"], 1)
        errors = [event["error"] for event in made["maintenance"] if event["error"]]
        times = f"p50 {made.get('p50_ms', 0):5}, p95 {made.get('p95_ms', 0):5} ms"
        text.append(
            f"  {name:<9} {made['batches']:4} batches  {times}  "
            f"CPU {cpu * 1000:5.0f} ms  {sum(made['memory_mib'].values()):6,} MiB  {made.get('files', 0):6,} files  "
            f"metadata {made.get('metadata_bytes', 0) / 1e6:7.2f} of data {made.get('data_bytes', 0) / 1e6:8.2f} MB"
        )
        text += [f"    maintenance failed: {error}" for error in errors]
    return text
