"""A hundred million records (12 GB) through a topic's whole life: seconds, CPU seconds and memory of every process.

Run: `python -m benchmarks hundred_million [--records 100000000] [--folder PATH]`.

Records of 116 bytes, ten of each key, zstd, 16 partitions, commits of half a million. One process writes while another
tails; then they are sealed, merged and compacted, retained (half of them have expired), verified and exported. Each
step is a process of its own: its peak of resident memory is the kernel's (`ru_maxrss`), none may be above 2 GB. Free
disk of 12 GB is needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

LIMIT_GB = 2.0
PARTITIONS = 16
COMMIT_RECORDS = 500_000


def main() -> None:
    """Run the steps; with `--step` one of them, in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, help="default: a new one for temporary files")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.step:
        STEPS[chosen.step](chosen.folder / "root", chosen.records)
        return
    folder = Path(tempfile.mkdtemp(prefix="sparklog-hundred-", dir=chosen.folder))
    try:
        print(f"{'step':<10}{'wall s':>9}{'CPU s':>9}{'peak GB':>9}{'M records/s':>13}", flush=True)
        begun, peak = time.perf_counter(), 0.0
        for steps in (("create",), ("write", "tail"), ("compact",), ("retain",), ("verify",), ("export",)):
            peak = max(peak, *(run_all(steps, folder, chosen.records)))
        print(f"all: {(time.perf_counter() - begun) / 60:.1f} minutes, no process above {peak:.2f} GB")
        if peak > LIMIT_GB:
            sys.exit(f"a process took more than {LIMIT_GB} GB")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_all(steps: tuple[str, ...], folder: Path, records: int) -> list[float]:
    """Run steps at once; the peak memory of each in GB."""
    peaks, names = [], {}
    begun = time.perf_counter()
    for step in steps:
        command = {
            "verify": ["-m", "sparklog", "verify", "--root", str(folder / "root"), "--quiet"],
            "export": [
                "-m",
                "sparklog",
                "export",
                "events",
                "--root",
                str(folder / "root"),
                "--to",
                str(folder / "out"),
            ],
        }.get(step, [__file__, "--step", step, "--folder", str(folder), "--records", str(records)])
        names[subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL).pid] = step
    for _ in steps:
        pid, status, usage = os.wait3(0)
        step, wall = names[pid], time.perf_counter() - begun
        if status:
            raise SystemExit(f"{step} ended with {os.waitstatus_to_exitcode(status)}")
        peaks.append(usage.ru_maxrss / 2**20)
        cpu = usage.ru_utime + usage.ru_stime
        print(f"{step:<10}{wall:9.1f}{cpu:9.1f}{peaks[-1]:9.2f}{records / wall / 1e6:13.2f}", flush=True)
    return peaks


def create(root: Path, records: int) -> None:
    """The records' times end with the clock of the jobs, and half of them are older than the retention time."""
    import sparklog

    of_partition = records * 116 // PARTITIONS
    configs = {
        "cleanup.policy": "compact,delete",
        "retention.ms": records // 100,
        "segment.bytes": min(256 << 20, max(1 << 20, of_partition // 8)),
        "message.timestamp.before.max.ms": 2**62,
    }
    sparklog.open(root, create=True).create_topic("events", partitions=PARTITIONS, configs=configs)


def write(root: Path, records: int) -> None:
    import numpy as np
    from bench_maintenance import rows

    import sparklog

    topic, source = sparklog.open(root).topic("events"), np.random.default_rng(7)
    for start in range(0, records, COMMIT_RECORDS):
        topic.append(rows(start, min(COMMIT_RECORDS, records - start), records // 10, source))


def tail(root: Path, records: int) -> None:
    import sparklog

    count = 0
    with closing(sparklog.consumer(root, topics="events", auto_offset_reset="earliest")) as consumer:
        while count < records:
            count += sum(batch.num_rows for batch in consumer.poll(timeout=1.0))


def compact(root: Path, records: int) -> None:
    import sparklog
    from sparklog.compaction.run import CompactOptions, compact_root
    from sparklog.maintenance.work_items import InProcess

    _expect(compact_root(sparklog.open(root), _settings(records), InProcess(), CompactOptions(roll=True)))


def retain(root: Path, records: int) -> None:
    import sparklog
    from sparklog.retention.retain import retain_root

    _expect(retain_root(sparklog.open(root), _settings(records)))


def _settings(records: int):  # type: ignore[no-untyped-def]
    from bench_maintenance import START_MS

    from sparklog.maintenance.work_items import Settings

    return Settings(START_MS + records // 50)


def _expect(reports) -> None:  # type: ignore[no-untyped-def]
    if failures := [failure for report in reports for failure in report.failures]:
        raise SystemExit(f"the job failed: {failures}")


STEPS: dict[str, Callable[[Path, int], None]] = {
    "create": create,
    "write": write,
    "tail": tail,
    "compact": compact,
    "retain": retain,
}


if __name__ == "__main__":
    main()
