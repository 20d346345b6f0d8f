"""The sizes of append files and of Parquet files with the same records, by codec, level and batch size.

Run: `python benchmarks/bench_sizes.py [--records N] [--slow]`. One thread, in memory. The records are those of the
append in `bench_peers`: sequential keys of 16 bytes, and JSON-like values of 104 bytes. Two tasks append them with
flushes of 64 MB, as in Spark. Parquet is written by pyarrow without dictionaries, which makes these records smaller.
CPU seconds are those of one pass, so compare only large differences.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparklog.format.encode import EncodeOptions, EncoderRows, encode_rows
from sparklog.format.kernels.warm import warm_up
from sparklog.format.key_hash import partition_for_key

PARTITIONS, TASKS = 16, 2
TASK_ROWS, FLUSH_ROWS = 10_000, 500_000
START_MS = 1_700_000_000_000
KIB = 1 << 10
FAST = ((1, 16), (1, 128), (1, 512), (1, 4096), (3, 512), (3, 4096), (6, 512), (9, 512))
"""zstd levels and batch sizes in KiB."""
SLOW = ((12, 512), (19, 512))


def events(records: int) -> pa.Table:
    """Return the records of `bench_spark.events`, with other random numbers."""
    draw = np.random.default_rng(1).integers
    texts = {
        '{"user":"u': pc.utf8_lpad(_texts(draw(0, 50_000, records)), 6, "0"),
        '","event":"': pa.array(["view", "click", "order", "leave"]).take(pa.array(draw(0, 4, records))),
        '","page":"/item/': _texts(draw(0, 9_999, records)),
        '","ms":': pc.utf8_lpad(_texts(draw(0, 99_999, records)), 5, "0"),
        ',"n":': _texts(np.arange(records)),
    }
    event = pc.binary_join_element_wise(*(part for item in texts.items() for part in item), "}", "")
    values = pc.utf8_slice_codeunits(pc.binary_join_element_wise(event, event, ""), 0, 104)
    keys = pc.utf8_lpad(_texts(np.arange(records)), 16, "k")
    return pa.table({"key": keys.cast(pa.binary()), "value": values.cast(pa.binary())}).combine_chunks()


def _texts(numbers: np.ndarray[Any, Any]) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string())


def parquet_bytes(table: pa.Table, level: int) -> int:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=level, use_dictionary=False)
    return sink.tell()


def slice_bytes(rows: list[EncoderRows], options: EncodeOptions) -> int:
    return sum(encoded.nbytes for _, encoded in encode_rows(rows, options=options))


def flushes(
    table: pa.Table, partition: np.ndarray[Any, Any], *, keys: bool, values: bool
) -> Iterator[list[EncoderRows]]:
    """Yield the rows of each flush of each task. All records of a flush have the same timestamp."""
    rows = len(table)
    for task in range(TASKS):
        end = (task + 1) * rows // TASKS
        for first in range(task * rows // TASKS, end, FLUSH_ROWS):
            chunks = []
            for start in range(first, min(first + FLUSH_ROWS, end), TASK_ROWS):
                some = table.slice(start, min(TASK_ROWS, end - start))
                key, value = (some.column(name).combine_chunks() for name in ("key", "value"))
                times = np.full(len(some), START_MS + first)
                part = partition[start : start + len(some)]
                chunks.append(EncoderRows(key if keys else None, value if values else None, None, times, part))
            yield chunks


def show(name: str, action: Callable[[], int]) -> None:
    before = time.thread_time()
    nbytes = action()
    print(f"{name:50}  {nbytes / 1e6:6.1f} MB  {time.thread_time() - before:6.2f} CPU s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sizes of append files and of Parquet files")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--slow", action="store_true", help="also measure zstd levels 12 and 19, which take minutes")
    arguments = parser.parse_args()
    warm_up()
    table = events(arguments.records)
    partition = partition_for_key(table.column("key"), PARTITIONS)
    one = np.zeros(len(table), np.int32)

    def append(
        options: EncodeOptions, to: np.ndarray[Any, Any] = partition, keys: bool = True, values: bool = True
    ) -> int:
        return sum(slice_bytes(rows, options) for rows in flushes(table, to, keys=keys, values=values))

    files = [table.filter(pa.array(partition == number)) for number in range(PARTITIONS)]
    for level in (1, 3):
        show(f"parquet zstd {level}, one file", lambda level=level: parquet_bytes(table, level))  # type: ignore[misc]
    show(f"parquet zstd 1, {PARTITIONS} files by key", lambda: sum(parquet_bytes(file, 1) for file in files))
    for level, kib in FAST + (SLOW if arguments.slow else ()):
        options = EncodeOptions("zstd", level=level, batch_bytes=kib * KIB, max_message_bytes=1 << 30)
        show(f"sparklog zstd {level}, batches of {kib} KiB", lambda options=options: append(options))  # type: ignore[misc]
    usual, none = EncodeOptions(), EncodeOptions("none")
    show("sparklog zstd 1, one partition", lambda: append(usual, one))
    show("sparklog zstd 1, without values", lambda: append(usual, values=False))
    show("sparklog zstd 1, without keys", lambda: append(usual, keys=False))
    show("sparklog zstd 1, without keys and values", lambda: append(usual, keys=False, values=False))
    show("sparklog none", lambda: append(none))


if __name__ == "__main__":
    main()
