"""Five ratios for every night: what sparklog costs against something else that runs in turns with it.

Run: `python -m benchmarks ratios [--good FILE] [--bisect] [--only NAME]`.

| ratio      | sparklog                                   | yardstick                                               |
|------------|--------------------------------------------|---------------------------------------------------------|
| append     | append to 16 partitions, zstd              | pyarrow writes the table as Parquet, zstd               |
| scan       | scan it                                    | pyarrow reads it                                        |
| compaction | keep the latest record of each key, lz4    | pyarrow does: reads Parquet, groups, takes, writes      |
| start      | `import sparklog`, open a root and a topic | `import numpy, pyarrow`                                 |
| commit     | append one record, durably                 | create two files: write, fsync, also of their folder    |

All are CPU seconds, but `commit` is wall time. The least of `ROUNDS` rounds counts for each side: a round that touches
fresh memory can take four times as long on a virtual machine. A bound is about 1.5 times what was measured when it was
set: noise does not cross it, a lost optimisation does.

The commit of a run within all bounds is kept in `--good`. A run beyond one ends with 1 and names the commits since
then; with `--bisect` it measures that ratio at commits between, in a worktree of its own, and names the first bad one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_log import table_of, throughput_contenders
from bench_maintenance import filled, rows, sealed, settings
from bench_maintenance import run as run_works

from sparklog.compaction.clean_plan import plan_cleaning
from sparklog.format.kernels.warm import warm_up
from sparklog.log.topic.root import open_root
from sparklog.maintenance.work_items import InProcess
from sparklog.storage.local import LocalStore

REPOSITORY = Path(__file__).resolve().parents[1]
GOOD = REPOSITORY / "build" / "ratios.json"
ROUNDS = 7
BOUNDS = {"append": 2.1, "scan": 2.1, "compaction": 1.4, "start": 2.1, "commit": 2.5}
BAD, CANNOT = 1, 125
"""Exit codes as `git bisect run` takes them."""
Pair = tuple[Callable[[], float], Callable[[], float]]


def main() -> None:
    """Measure, compare, and name commits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=BOUNDS)
    parser.add_argument("--good", type=Path, default=GOOD)
    parser.add_argument("--bisect", action="store_true")
    chosen = parser.parse_args()
    warm_up()
    with tempfile.TemporaryDirectory(prefix="sparklog-ratios-") as name:
        ratios = {ratio: measured(Path(name), ratio) for ratio in ([chosen.only] if chosen.only else BOUNDS)}
    bad = [ratio for ratio, value in ratios.items() if value > BOUNDS[ratio]]
    for ratio, value in ratios.items():
        print(f"{ratio:<11}{value:6.2f}  bound {BOUNDS[ratio]:.1f}{'  REGRESSION' if ratio in bad else ''}", flush=True)
    if not bad:
        if not chosen.only:
            chosen.good.parent.mkdir(exist_ok=True)
            chosen.good.write_text(json.dumps({"commit": git("rev-parse", "HEAD"), "ratios": ratios}) + "\n")
        return
    if not chosen.only:
        name_commits(chosen.good, bad, bisect=chosen.bisect)
    sys.exit(BAD)


def measured(folder: Path, ratio: str) -> float:
    """The least of ours by the least of the yardstick's; the first round warms up."""
    ours, yardstick = PAIRS[ratio](folder / ratio)
    pairs = [(ours(), yardstick()) if number % 2 else (yardstick(), ours())[::-1] for number in range(ROUNDS + 1)]
    return round(min(pair[0] for pair in pairs[1:]) / min(pair[1] for pair in pairs[1:]), 3)


def cpu(action: Callable[[], object]) -> Callable[[], float]:
    """CPU seconds of this process for five turns: its clock has steps."""

    def spent() -> float:
        begun = time.process_time()
        for _ in range(5):
            action()
        return time.process_time() - begun

    return spent


def throughput(work: str) -> Callable[[Path], Pair]:
    def pair(folder: Path) -> Pair:
        contenders = throughput_contenders(folder, table_of(100_000, 100), "zstd")
        contenders["append"]["sparklog"](), contenders["append"]["parquet"]()
        return cpu(contenders[work]["sparklog"]), cpu(contenders[work]["parquet"])

    return pair


def compaction(folder: Path) -> Pair:
    records, unique, numbers = 500_000, 50_000, iter(range(1_000))
    folder.mkdir()
    file, offsets = folder / "yardstick.parquet", pa.array(range(records))
    pq.write_table(rows(0, records, unique, np.random.default_rng(7)), file, compression="lz4")

    def ours() -> float:
        place = folder / str(next(numbers))
        topic = filled(place, "t", records, unique, codec="lz4", cleanup_policy="compact")
        sealed(topic, InProcess())
        works = plan_cleaning(topic.store, topic.log.snapshot(), settings())
        begun = time.process_time()
        run_works(topic, works, InProcess())
        return time.process_time() - begun

    def yardstick() -> float:
        begun = time.process_time()
        table = pq.read_table(file, use_threads=False).append_column("offset", offsets)
        latest = table.group_by("key", use_threads=False).aggregate([("offset", "max")])
        pq.write_table(table.take(latest["offset_max"]), folder / "latest.parquet", compression="lz4")
        return time.process_time() - begun

    return ours, yardstick


def start(folder: Path) -> Pair:
    open_root(LocalStore(str(folder)), create=True).create_topic("t")

    def child(code: str) -> Callable[[], float]:
        def spent() -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        return spent

    return child(f"import sparklog; sparklog.open({str(folder)!r}).topic('t').describe()"), child(
        "import numpy, pyarrow"
    )


def commit(folder: Path) -> Pair:
    topic = open_root(LocalStore(str(folder)), create=True).create_topic("t")
    table, numbers = pa.table({"value": [b"v" * 100]}), iter(range(100_000))

    def wall(action: Callable[[], object]) -> Callable[[], float]:
        def spent() -> float:
            begun = time.perf_counter()
            for _ in range(100):
                action()
            return time.perf_counter() - begun

        return spent

    def create() -> None:
        for _ in range(2):
            with (folder / f"yardstick-{next(numbers)}").open("xb") as file:
                file.write(b"v" * 500)
                file.flush()
                os.fsync(file.fileno())
            handle = os.open(folder, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)

    return wall(lambda: topic.append(table)), wall(create)


PAIRS: dict[str, Callable[[Path], Pair]] = {
    "append": throughput("append"),
    "scan": throughput("scan"),
    "compaction": compaction,
    "start": start,
    "commit": commit,
}


def name_commits(good: Path, bad: list[str], *, bisect: bool) -> None:
    """Print the commits since the newest run within the bounds; `bisect`: the first bad one for each ratio."""
    if not good.exists():
        print(f"there is no {good}: no commit can be named")
        return
    commit_id = json.loads(good.read_text())["commit"]
    print(f"commits since {commit_id[:12]}, when all ratios were within their bounds:")
    print(git("log", "--oneline", f"{commit_id}..HEAD", "--", "sparklog", "pyproject.toml"))
    for ratio in bad if bisect else []:
        print(f"{ratio}: {first_bad(commit_id, ratio)}")


def first_bad(good: str, ratio: str) -> str:
    """Let `git bisect` measure commits in a worktree, each with its own benchmarks."""
    with tempfile.TemporaryDirectory(prefix="sparklog-bisect-") as name:
        tree = Path(name) / "tree"
        git("worktree", "add", "--detach", str(tree), "HEAD")
        try:
            git("-C", str(tree), "bisect", "start", "HEAD", good)
            script = f'PYTHONPATH="{tree}" "{sys.executable}" "{Path(__file__)}" --only {ratio}'
            # An older commit may lack what is imported here: such a one is left out.
            shell = f"{script}; code=$?; [ $code -le {BAD} ] && exit $code; exit {CANNOT}"
            git("-C", str(tree), "bisect", "run", "sh", "-c", shell)
            return git("-C", str(tree), "log", "-1", "--oneline", "refs/bisect/bad")
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(REPOSITORY), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
