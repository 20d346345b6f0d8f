"""Partitions of rows: Kafka's hash, explicit columns, and the sticky partition."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest
from sparklog.log.write.rows import Partitioner, sticky_seed


def test_keys_are_assigned_like_kafkas_producer(fixtures: Path) -> None:
    vectors = json.loads((fixtures / "partitioner" / "murmur2.json").read_text())
    keys = pa.array([base64.b64decode(vector["key"]) for vector in vectors], pa.binary())
    for partitions in (1, 2, 3, 7, 12, 100):
        expected = [vector["partition"][str(partitions)] for vector in vectors]
        for array in (keys, keys.cast(pa.large_binary())):
            got = Partitioner(partitions, seed=5).assign(len(keys), key=array, value=None, partition=None)
            assert got.dtype == np.int32
            assert got.tolist() == expected


def test_an_explicit_partition_applies_and_null_uses_the_key() -> None:
    key = pa.array([b"a", b"ab", None, b"abc"])
    by_key = Partitioner(3, seed=0).assign(4, key=key, value=None, partition=None).tolist()
    for kind in (pa.int32(), pa.int64(), pa.int8(), pa.uint16()):
        explicit = pa.array([2, None, 1, None], kind)
        got = Partitioner(3, seed=0).assign(4, key=key, value=None, partition=explicit).tolist()
        assert got == [2, by_key[1], 1, by_key[3]]
    assert Partitioner(3, seed=0).assign(4, key=key, value=None, partition=pa.nulls(4)).tolist() == by_key


@pytest.mark.parametrize("wrong", [-1, 3, 2**40])
def test_a_missing_partition_is_rejected(wrong: int) -> None:
    explicit = pa.array([0, wrong, None], pa.int64())
    with pytest.raises(BadRequest, match=f"partitions 0 to 2, found partition {wrong}"):
        Partitioner(3, seed=0).assign(3, key=None, value=None, partition=explicit)


def test_a_partition_column_of_another_type_is_rejected() -> None:
    with pytest.raises(BadRequest, match="integer"):
        Partitioner(3, seed=0).assign(1, key=None, value=None, partition=pa.array(["1"]))


def test_rows_without_a_key_continue_the_chunk_of_the_previous_batch() -> None:
    value = pa.array([b"x" * 84] * 25)
    partitioner = Partitioner(4, seed=3, sticky_bytes=1000)
    first = partitioner.assign(25, key=None, value=value, partition=None)
    second = partitioner.assign(25, key=None, value=value, partition=None)
    assert first.tolist() == [3] * 10 + [0] * 10 + [1] * 5
    assert second.tolist() == [1] * 5 + [2] * 10 + [3] * 10


def test_only_rows_without_a_key_fill_the_chunk() -> None:
    key = pa.array([None, b"a", None, b"a", None])
    value = pa.array([b"y" * 50, b"z" * 5000, b"y" * 50, b"z" * 5000, b"y" * 50])
    got = Partitioner(5, seed=0, sticky_bytes=100).assign(5, key=key, value=value, partition=None).tolist()
    assert [got[0], got[2], got[4]] == [0, 0, 1]
    assert got[1] == got[3] == 584102524 % 5


def test_small_micro_batches_are_distributed_over_partitions() -> None:
    starts = {
        int(
            Partitioner(16, seed=sticky_seed(batch, task)).assign(1, key=None, value=pa.array([b"v"]), partition=None)[
                0
            ]
        )
        for batch in range(50)
        for task in range(2)
    }
    assert len(starts) >= 14
    assert sticky_seed(7, 1) == sticky_seed(7, 1) != sticky_seed(1, 7)


def test_a_topic_without_partitions_is_rejected() -> None:
    with pytest.raises(BadRequest, match="at least one partition"):
        Partitioner(0, seed=0)


def test_sliced_arrays_count_only_their_own_bytes() -> None:
    value = pa.array([b"q" * 1000, b"r", b"s" * 84, b"t" * 84]).slice(2)
    got = Partitioner(2, seed=0, sticky_bytes=100).assign(2, key=None, value=value, partition=None)
    assert got.tolist() == [0, 1]
