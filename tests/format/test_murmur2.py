"""Test Kafka's partition hash against Kafka's values."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest
from sparklog.format.arrow_input import KernelColumns
from sparklog.format.kernels.hash_kernels import murmur2_cells
from sparklog.format.key_hash import partition_for_key

VECTORS = [
    (b"", 275646681), (b"a", -1563381124), (b"ab", 316155434), (b"abc", 479470107), (b"abcd", -1323649548),
    (b"21", -973932308), (b"foobar", -790332482), (b"key", -1079937367), (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"\xff\xfe\xfd", 998637092), ((42).to_bytes(8, "big"), 506863552),
]  # fmt: skip


def murmur2(keys: pa.Array) -> npt.NDArray[np.int32]:
    out = np.empty(len(keys), np.int32)
    columns = KernelColumns(keys)
    murmur2_cells.sized(len(keys))(columns.table[0], 0, out)
    return out


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_vectors(kind: pa.DataType) -> None:
    keys = pa.array([b"before", *(key for key, _ in VECTORS), None], kind)
    assert murmur2(keys.slice(1)).tolist() == [value for _, value in VECTORS] + [0]


def test_fixture_partitions(fixtures: Path) -> None:
    entries = json.loads((fixtures / "partitioner" / "murmur2.json").read_text())
    keys = pa.array([base64.b64decode(entry["key"]) for entry in entries])
    assert murmur2(keys).tolist() == [entry["murmur2"] for entry in entries]
    for count in (1, 2, 3, 7, 12, 100):
        found = partition_for_key(keys, count).tolist()
        assert found == [entry["partition"][str(count)] for entry in entries]


def test_null_keys_have_no_partition() -> None:
    assert partition_for_key(pa.chunked_array([["x", None], [""]]), 3).tolist()[1:] == [-1, 0]
    assert partition_for_key(pa.nulls(2), 3).tolist() == [-1, -1]
    assert murmur2(pa.array([], pa.string())).tolist() == []


def test_wrong_input() -> None:
    with pytest.raises(BadRequest, match="at least one"):
        partition_for_key(pa.array(["a"]), 0)
    with pytest.raises(BadRequest, match="binary or string"):
        murmur2(pa.array([1]))
