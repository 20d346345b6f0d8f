"""The codec alone, per core: record batches to and from Arrow, against aiokafka's (Cython) and kafka-python's (Python).

Run: `python benchmarks/bench_codec.py [--records N] [--rounds N] [--quick]`. One thread. Each figure is CPU seconds of
the process; contenders take turns in every round (A, B, C, then C, B, A), the median counts, and what matters is the
ratio within the run. CRC-32C is computed and checked everywhere. Peers get their input as lists of Python bytes, made
beforehand, and give back bytes or record objects, which is the shape they are used in; sparklog gets and gives Arrow
arrays.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from kafka.record.default_records import DefaultRecordBatch as PyBatch

from sparklog.format.batch_scan import scan_headers
from sparklog.format.decode import decode
from sparklog.format.encode import EncodedSlice, EncodeOptions, encode, encode_partitions
from sparklog.format.kernels.warm import warm_up
from sparklog.format.record_batch import CODECS

BATCH_BYTES = 512 * 1024
START_MS = 1_700_000_000_000
PARTITIONS = 16


@dataclass
class Records:
    """Records as lists and as Arrow arrays."""

    keys: list[bytes]
    values: list[bytes]
    times: list[int]
    key: pa.Array
    value: pa.Array
    time: Any

    @classmethod
    def make(cls, count: int, value_bytes: int) -> Records:
        """16-byte keys and values of `value_bytes` that look like small JSON events (compressible, as those are)."""
        choose = random.Random(1)
        words = ["cart", "view", "order", "paid", "refund", "login", "search", "click", "ship", "return"]
        keys, values = [], []
        for index in range(count):
            text = f'{{"id":{index},"type":"{choose.choice(words)}","user":{choose.randrange(10**6)},"note":"'
            while len(text) < value_bytes - 2:
                text += f"{choose.choice(words)}-{choose.randrange(10**5):x} "
            keys.append(b"user-%011d" % choose.randrange(10**6))
            values.append((text[: value_bytes - 2] + '"}').encode())
        times = [START_MS + index // 50 for index in range(count)]
        return cls(keys, values, times, pa.array(keys), pa.array(values), np.array(times))


def encode_ours(records: Records, codec: str, level: int | None = None) -> list[EncodedSlice]:
    options = EncodeOptions(codec=codec, level=level, batch_bytes=BATCH_BYTES)
    return [encode(records.key, records.value, None, records.time, options=options)]


def encode_spread(records: Records, codec: str) -> list[EncodedSlice]:
    """As a sink does: rows spread over 16 partitions."""
    options = EncodeOptions(codec=codec, batch_bytes=BATCH_BYTES)
    partition = np.arange(len(records.keys)) * 7 % PARTITIONS
    slices = encode_partitions(records.key, records.value, None, records.time, partition, options=options)
    return list(slices.values())


def encode_aiokafka(records: Records, codec: str) -> list[bytes]:
    def builder() -> Any:
        return AioBuilder(
            magic=2, compression_type=CODECS.index(codec), is_transactional=0, producer_id=-1, producer_epoch=-1,
            base_sequence=-1, batch_size=BATCH_BYTES,
        )  # fmt: skip

    done, current, offset = [], builder(), 0
    for moment, key, value in zip(records.times, records.keys, records.values, strict=True):
        if current.append(offset, moment, key, value, []) is None:
            done.append(bytes(current.build()))
            current, offset = builder(), 0
            current.append(offset, moment, key, value, [])
        offset += 1
    done.append(bytes(current.build()))
    return done


def decode_ours(data: bytes) -> int:
    headers = scan_headers(data)
    return len(decode(data, headers, columns=("key", "value", "offset", "timestamp", "timestampType")))


def decode_peer(kind: Any, batches: list[bytes]) -> int:
    count = 0
    for data in batches:
        batch = kind(data)
        if not batch.validate_crc():
            raise ValueError("wrong CRC")
        for record in batch:
            record.key, record.value, record.offset, record.timestamp, record.timestamp_type  # noqa: B018
            count += 1
    return count


def contest(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each, taking turns."""
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for function in contenders.values():
        function()
    for turn in range(rounds):
        for name in list(contenders)[:: 1 if turn % 2 == 0 else -1]:
            before = time.process_time()
            contenders[name]()
            spent[name].append(time.process_time() - before)
    return {name: statistics.median(figures) for name, figures in spent.items()}


def measure(records: Records, codec: str, rounds: int) -> None:
    """Print one line per contender for encoding and decoding with `codec`."""
    count = len(records.keys)
    mega = (sum(map(len, records.keys)) + sum(map(len, records.values))) / 1e6
    ours = encode_ours(records, codec)[0].data
    theirs = encode_aiokafka(records, codec)
    if decode_ours(ours) != count or decode_peer(AioBatch, theirs) != count:
        raise SystemExit("a codec lost records: nothing was measured")
    tables: dict[str, dict[str, Callable[[], object]]] = {
        "encode": {
            "sparklog": lambda: encode_ours(records, codec),
            "sparklog, 16 partitions": lambda: encode_spread(records, codec),
            "aiokafka": lambda: encode_aiokafka(records, codec),
        },
        "decode": {
            "sparklog": lambda: decode_ours(ours),
            "aiokafka": lambda: decode_peer(AioBatch, theirs),
            "kafka-python": lambda: decode_peer(PyBatch, theirs),
        },
    }
    for what, contenders in tables.items():
        seconds = contest(contenders, rounds)
        for name, spent in seconds.items():
            ratio = f"sparklog is {spent / seconds['sparklog']:6.2f}x" if name != "sparklog" else f"{len(ours)} bytes"
            print(
                f"{what}  {codec:6}  {name:24}  {spent:7.3f} CPU s  {count / spent / 1e6:6.2f} M records/s  "
                f"{mega / spent:7.0f} MB/s  {ratio}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Codec per core: sparklog, aiokafka, kafka-python")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="codec none and 120-byte records only")
    arguments = parser.parse_args()
    warm_up()
    for value_bytes in (100,) if arguments.quick else (100, 1000):
        count = arguments.records if value_bytes == 100 else arguments.records // 5
        records = Records.make(count, value_bytes)
        print(f"\n{count} records of 16 + {value_bytes} bytes, batches of {BATCH_BYTES // 1024} KiB, one core")
        for codec in ("none",) if arguments.quick else CODECS:
            measure(records, codec, arguments.rounds)


if __name__ == "__main__":
    main()
