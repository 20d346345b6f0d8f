"""Test the offset map against a dict, and the rule that determines when the map is full."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

from sparklog.errors import BadRequest
from sparklog.format.offset_map import SLOT_BYTES, OffsetMap, slot_count


def hashes_of(keys: list[int], crowded: bool = False) -> np.ndarray:
    """Return hashes of keys. Crowded hashes differ only in bits that do not affect the first slot."""
    source = [random.Random(key) for key in keys]
    words = [(1 << 63 if crowded else each.getrandbits(64), each.getrandbits(64)) for each in source]
    return np.array(words, np.uint64).reshape(-1, 2)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("crowded", [False, True])
def test_map_behaves_like_a_dict(seed: int, crowded: bool) -> None:
    rng = random.Random(seed)
    slots, load_factor = rng.randrange(8, 400), rng.choice([0.5, 0.9, 1.0])
    found, model = OffsetMap(slots, load_factor), dict[int, int]()
    offset, full = 0, False
    while not full:
        keys = [rng.randrange(600) for _ in range(rng.randrange(1, 90))]
        offsets = np.cumsum([rng.randrange(1, 4) for _ in keys]) + offset
        offset = int(offsets[-1])
        expected = 0
        for key, each in zip(keys, offsets.tolist(), strict=True):
            if len(model) >= int(slots * load_factor):
                full = True
                break
            model[key] = each
            expected += 1
        assert found.put(hashes_of(keys, crowded), offsets) == expected
        assert len(found) == len(model)
        assert found.latest_offset == max(model.values())
    everything = list(range(700))
    assert found.get(hashes_of(everything, crowded)).tolist() == [model.get(key, -1) for key in everything]
    assert found.utilization == len(model) / slots


def test_full_map_rejects_even_known_keys() -> None:
    full = OffsetMap(10, 0.2)
    assert full.put(hashes_of([1, 2, 1]), np.array([5, 6, 7])) == 2
    assert full.put(hashes_of([1]), np.array([7])) == 0
    assert full.latest_offset == 6
    assert full.get(hashes_of([1, 2, 3])).tolist() == [5, 6, -1]


def test_both_hash_words_are_compared() -> None:
    same_first = np.array([[7, 1], [7, 2], [8, 1]], np.uint64)
    found = OffsetMap(100)
    found.put(same_first, np.array([10, 20, 30]))
    assert found.get(same_first).tolist() == [10, 20, 30]


def test_offset_zero_and_hash_zero_are_valid() -> None:
    found = OffsetMap(100)
    zero = np.zeros((1, 2), np.uint64)
    assert found.get(zero).tolist() == [-1]
    found.put(zero, np.array([0]))
    assert found.get(zero).tolist() == [0]
    assert found.latest_offset == 0


def test_probe_wraps_around() -> None:
    last = np.full((5, 2), 2**64 - 1, np.uint64)
    last[:, 1] = np.arange(5)
    found = OffsetMap(6, 1.0)
    assert found.put(last, np.arange(5)) == 5
    assert found.get(last).tolist() == list(range(5))


def test_advance_without_keys() -> None:
    found = OffsetMap(100)
    assert found.latest_offset == -1
    found.advance(41)
    found.advance(7)
    assert found.latest_offset == 41
    assert found.put(np.zeros((0, 2), np.uint64), np.zeros(0, np.int64)) == 0
    assert found.latest_offset == 41


def test_offsets_are_ascending() -> None:
    found = OffsetMap(100)
    assert found.offsets().tolist() == []
    found.put(hashes_of([3, 1, 2, 1]), np.array([0, 5, 6, 9]))
    assert found.offsets().tolist() == [0, 6, 9]


def test_small_log_allocates_small_table() -> None:
    small = OffsetMap(slot_count(128 << 20), expected=10_000)
    assert small.nbytes <= 20_000 * SLOT_BYTES
    keys = hashes_of(list(range(10_000)))
    assert small.put(keys, np.arange(10_000)) == 10_000
    assert small.utilization == 10_000 / slot_count(128 << 20)


def test_more_keys_than_expected_fill_the_map() -> None:
    small = OffsetMap(1 << 20, expected=0)
    keys = hashes_of(list(range(5000)))
    taken = small.put(keys, np.arange(5000))
    assert 0 < taken < 5000
    assert small.get(keys).tolist() == [*range(taken), *[-1] * (5000 - taken)]


@pytest.mark.parametrize("slots", [1 << 17, (1 << 16) + 13])
@pytest.mark.parametrize("load_factor", [0.02, 0.9])
def test_growing_map_retains_its_keys(load_factor: float, slots: int) -> None:
    whole, growing = OffsetMap(slots, load_factor), OffsetMap(slots, load_factor, expected=60_000)
    words = np.random.default_rng(3).integers(0, 2**64, (60_000, 2), dtype=np.uint64)
    sizes = set()
    for first in range(0, len(words), 999):
        # Each key occurs twice. The later offset wins, in whichever table it was set.
        some = np.concatenate((words[first // 2 : first // 2 + 500], words[first : first + 999]))
        offsets = 3 * first + np.arange(len(some))
        assert growing.put(some, offsets) == whole.put(some, offsets)
        sizes.add(growing.nbytes)
    assert len(sizes) == (1 if load_factor < 0.1 else 3), "no last step for a few slots: two tables of that size"
    assert len(growing) == len(whole) == min(60_000, whole.limit)
    assert growing.get(words).tolist() == whole.get(words).tolist()
    assert growing.offsets().tolist() == whole.offsets().tolist()
    assert growing.latest_offset == whole.latest_offset


def test_slot_count_matches_kafka() -> None:
    assert slot_count(128 << 20) == 5_592_405
    assert OffsetMap(slot_count(128 << 20)).limit == 5_033_164
    assert OffsetMap(50).limit == 45
    assert OffsetMap(50).nbytes == 50 * 24


@pytest.mark.parametrize(("slots", "load_factor"), [(0, 0.9), (1, 0.9), (10, 0.0), (10, 1.1), (10, -1.0)])
def test_map_without_space_is_rejected(slots: int, load_factor: float) -> None:
    with pytest.raises(BadRequest, match=r"log\.cleaner\."):
        OffsetMap(slots, load_factor)


def test_hashes_and_offsets_must_have_equal_length() -> None:
    with pytest.raises(BadRequest, match="two words for each of 3 offsets, found 4"):
        OffsetMap(100).put(hashes_of([1, 2]), np.arange(3))


FIFTY_MILLION = """
import resource, sys
import numpy as np
from sparklog.format.offset_map import OffsetMap
keys = 50_000_000
found = OffsetMap(int(keys / 0.9) + 1)
words = np.empty((1 << 17, 2), np.uint64)
for start in range(0, keys, len(words)):
    n = min(len(words), keys - start)
    words[:n, 0] = np.arange(start, start + n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words[:n, 1] = np.arange(start, start + n)
    taken = found.put(words[:n], np.arange(start, start + n))
    assert taken == n
assert len(found) == keys
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_fifty_million_keys_need_less_than_1_5_gb() -> None:
    answer = subprocess.run([sys.executable, "-c", FIFTY_MILLION], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(answer.stdout) * unit < 1.5e9
