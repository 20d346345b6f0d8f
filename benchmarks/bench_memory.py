"""Memory of a process that appends, and of one that scans, more than it could hold.

Run: `python benchmarks/bench_memory.py [--gigabytes N] [--codec C] [--limit MB] [--folder PLACE]`. One `append` of an
iterable with records of 16 + 100 bytes for 16 partitions, and one `scan` of all columns, each in a fresh process. Fails
if one of them ever had more than the limit in memory. The disk needs room for what is appended.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sparklog.log.topic.root import open_root
from sparklog.log.write.append_target import WriteOptions

RECORD_BYTES = 116
AT_ONCE = 100_000
COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType")


def batches(records: int) -> Iterator[pa.Table]:
    """Keys out of a million and values that do not compress well, made again for each table."""
    chosen = np.random.default_rng(7)
    for start in range(0, records, AT_ONCE):
        count = min(AT_ONCE, records - start)
        keys = np.char.zfill(chosen.integers(0, 10**6, count).astype("S16"), 16)
        values = chosen.integers(0, 64, (count, 100), dtype=np.uint8)
        yield pa.table({"key": cells(keys.view(np.uint8), 16), "value": cells(values.reshape(-1), 100)})


def cells(data: np.ndarray, width: int) -> pa.Array:
    """Bytes of equal lengths as a binary array."""
    offsets = pa.py_buffer(np.arange(0, len(data) + 1, width, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), len(data) // width, [None, offsets, pa.py_buffer(data)])


def append(place: str, records: int, codec: str) -> None:
    topic = open_root(place, create=True).create_topic("t", partitions=16)
    topic.append(batches(records), options=WriteOptions(codec=codec))  # type: ignore[arg-type]


def scan(place: str, records: int, codec: str) -> None:
    count = sum(batch.num_rows for batch in open_root(place).topic("t").scan(columns=COLUMNS))
    if count != records:
        raise SystemExit(f"expected {records} records, found {count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--limit", type=int, default=700, help="MB")
    parser.add_argument("--folder", help="where to append to; default: the temporary folder")
    parser.add_argument("--step", choices=("append", "scan"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    records = int(arguments.gigabytes * 1e9 / RECORD_BYTES)
    if arguments.step:
        {"append": append, "scan": scan}[arguments.step](arguments.folder, records, arguments.codec)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
        for step in ("append", "scan"):
            began = time.perf_counter()
            words = [sys.executable, __file__, *sys.argv[1:], "--step", step, "--folder", place]
            output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
            peak, spent = float(output.split()[-1]), time.perf_counter() - began
            print(
                f"{step:6}  {arguments.codec:5}  {arguments.gigabytes:g} GB, {records:,} records  {spent:.0f} s  "
                f"{peak:.0f} MB at most",
                flush=True,
            )
            if peak > arguments.limit:
                raise SystemExit(f"expected at most {arguments.limit} MB")


if __name__ == "__main__":
    main()
