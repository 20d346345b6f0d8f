"""Test changing offsets, epochs and append times of complete batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import BadRequest
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.decode import decode
from sparklog.format.filter_batches import rewrite_headers
from sparklog.format.record_batch import BatchHeader, BatchHeaders
from tests.format.batch_samples import (
    ALL,
    CODEC_NAMES,
    GOLDEN_BATCH,
    GOLDEN_HEADER,
    GOLDEN_RECORDS,
    START_MS,
    encode_sample,
    rows,
)

LOG_APPEND_TIME = replace(GOLDEN_HEADER, attributes=8).pack(GOLDEN_RECORDS)


def header_rows(headers: BatchHeaders) -> list[BatchHeader]:
    return [headers.row(index) for index in range(len(headers))]


def rewritten(data: bytes, **changes: Any) -> bytes:
    """Return the data after the change. The returned headers must equal those of a scan."""
    found = bytearray(data)
    after = rewrite_headers(found, scan_headers(found), **changes)
    assert header_rows(after) == header_rows(scan_headers(found))
    return bytes(found)


def test_log_append_time_equals_kafkas_bytes() -> None:
    """Kafka sets 1700000009999 in the golden batch: the CRC is 66227081, and the records are unchanged."""
    batch = rewritten(LOG_APPEND_TIME, append_time=1700000009999)
    assert batch[17:21].hex() == "66227081"
    assert batch[35:43].hex() == "0000018bcfe58f0f"
    assert (
        batch[:17] + batch[21:35] + batch[43:] == LOG_APPEND_TIME[:17] + LOG_APPEND_TIME[21:35] + LOG_APPEND_TIME[43:]
    )


def test_offsets_and_epochs_do_not_change_the_crc() -> None:
    data = encode_sample(300).data + GOLDEN_BATCH
    found = rewritten(data, offset_shift=5_000_000_000, leader_epoch=7)
    before, after = scan_headers(data), scan_headers(found)
    assert len(after) >= 3
    assert after.base_offset.tolist() == (before.base_offset + 5_000_000_000).tolist()
    assert set(after.leader_epoch.tolist()) == {7}
    assert not len(crc_failures(found, after))
    for position, size in zip(before.position.tolist(), before.size.tolist(), strict=True):
        for low, high in ((8, 12), (16, size)):
            assert found[position + low : position + high] == data[position + low : position + high]


def test_no_changes_leave_the_data_unchanged() -> None:
    data = encode_sample(100).data + LOG_APPEND_TIME
    assert rewritten(data) == data
    assert rewritten(data, offset_shift=0, append_time=START_MS + 5) == data
    assert rewritten(b"", offset_shift=9, leader_epoch=1, append_time=5) == b""


def test_offsets_can_be_shifted_back() -> None:
    assert rewritten(rewritten(GOLDEN_BATCH, offset_shift=77), offset_shift=-77) == GOLDEN_BATCH
    assert rewritten(GOLDEN_BATCH, leader_epoch=-1)[12:16] == b"\xff" * 4


def test_append_time_changes_only_log_append_time_batches() -> None:
    data = GOLDEN_BATCH + LOG_APPEND_TIME + GOLDEN_BATCH
    headers = scan_headers(rewritten(data, append_time=5))
    assert headers.max_timestamp.tolist() == [START_MS + 5, 5, START_MS + 5]


def test_arrays_set_a_value_per_batch() -> None:
    """Arrays have the same effect as one call per batch. -1 leaves an epoch and a time unchanged, and 0 sets it."""
    batches = [LOG_APPEND_TIME, GOLDEN_BATCH, LOG_APPEND_TIME, LOG_APPEND_TIME, LOG_APPEND_TIME]
    shifts, epochs, times = [0, 900, -100, 2**40, 1], [5, -1, 0, -1, 2**31 - 1], [7, 8, -1, 0, 1700000009999]
    found = rewritten(
        b"".join(batches),
        offset_shift=np.array(shifts),
        leader_epoch=np.array(epochs),
        append_time=np.array(times),
    )
    alone = [
        rewritten(
            batch,
            offset_shift=shift,
            leader_epoch=epoch if epoch >= 0 else None,
            append_time=time if time >= 0 else None,
        )
        for batch, shift, epoch, time in zip(batches, shifts, epochs, times, strict=True)
    ]
    assert found == b"".join(alone)
    headers = scan_headers(found)
    assert headers.base_offset.tolist() == [100, 1000, 0, 2**40 + 100, 101]
    assert headers.leader_epoch.tolist() == [5, GOLDEN_HEADER.leader_epoch, 0, GOLDEN_HEADER.leader_epoch, 2**31 - 1]
    assert headers.max_timestamp.tolist() == [7, START_MS + 5, START_MS + 5, 0, 1700000009999]
    assert found[-len(LOG_APPEND_TIME) :][17:21].hex() == "66227081"


def test_arrays_match_the_selected_rows() -> None:
    data = bytearray(LOG_APPEND_TIME * 4)
    rows = [3, 1]
    given = {"offset_shift": [10, 20], "leader_epoch": [4, -1], "append_time": [-1, 9]}
    after = rewrite_headers(data, scan_headers(data)[rows], **{name: np.array(each) for name, each in given.items()})
    assert header_rows(after) == header_rows(scan_headers(data)[rows])
    assert scan_headers(data).base_offset.tolist() == [100, 120, 100, 110]
    assert scan_headers(data).max_timestamp.tolist() == [START_MS + 5, 9, START_MS + 5, START_MS + 5]


def test_argument_headers_are_not_changed() -> None:
    data = bytearray(LOG_APPEND_TIME * 2)
    headers = scan_headers(data)
    before = header_rows(headers)
    ones = np.ones(2, np.int64)
    rewrite_headers(data, headers, offset_shift=ones, leader_epoch=ones, append_time=ones)
    assert header_rows(headers) == before
    assert ones.tolist() == [1, 1]


def test_only_selected_rows_are_changed() -> None:
    data = bytearray(GOLDEN_BATCH * 3)
    headers = scan_headers(data)
    after = rewrite_headers(data, headers[1:2], offset_shift=10, leader_epoch=3)
    assert after.base_offset.tolist() == [110]
    assert data == GOLDEN_BATCH + rewritten(GOLDEN_BATCH, offset_shift=10, leader_epoch=3) + GOLDEN_BATCH


@pytest.mark.parametrize("kind", ["bytearray", "memoryview", "array"])
def test_any_writable_buffer_is_accepted(kind: str) -> None:
    memory = bytearray(GOLDEN_BATCH)
    data: Any = {"bytearray": memory, "memoryview": memoryview(memory), "array": np.frombuffer(memory, np.uint8)}[kind]
    rewrite_headers(data, scan_headers(data), offset_shift=1)
    assert memory[:8] == (101).to_bytes(8, "big")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(-1, 2**63 - 1), st.booleans()), min_size=1, max_size=8),
    st.integers(-1, 2**63 - 1),
)
def test_crc_is_corrected_for_batches_of_any_size(batches: list[tuple[int, int, bool]], append_time: int) -> None:
    data = b"".join(
        replace(GOLDEN_HEADER, count=0, max_timestamp=time, attributes=8 if lasting else 0).pack(bytes(size))
        for size, time, lasting in batches
    )
    found = rewritten(data, append_time=append_time)
    assert not len(crc_failures(found, scan_headers(found)))


def test_crc_is_corrected_for_large_batches() -> None:
    batch = replace(GOLDEN_HEADER, count=0, attributes=8).pack(b"x" * 3_000_000)
    found = rewritten(batch, append_time=1)
    assert not len(crc_failures(found, scan_headers(found)))


def test_damaged_batch_remains_invalid() -> None:
    damaged = bytearray(LOG_APPEND_TIME)
    damaged[80] ^= 4
    found = rewritten(bytes(damaged), offset_shift=1, leader_epoch=1, append_time=12345)
    assert crc_failures(found, scan_headers(found)).tolist() == [0]


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_records_have_final_offsets_and_timestamps(codec: str) -> None:
    data = encode_sample(50, codec).data
    stamped = bytearray()
    for header in header_rows(headers := scan_headers(data)):
        payload = data[len(stamped) + 61 : len(stamped) + header.size]
        stamped += replace(header, attributes=header.attributes | 8).pack(payload)
    found = rewritten(bytes(stamped), offset_shift=1000, append_time=99)
    plain = decode(data, headers, columns=ALL, offset_shift=1000)
    expected = [(row[0], 99, *row[2:]) for row in rows(plain)]
    assert rows(decode(found, scan_headers(found), columns=ALL)) == expected


def test_fixture_segments_remain_valid(fixtures: Path) -> None:
    changed = 0
    for path in sorted((fixtures / "timestamps").rglob("*.log")):
        data = path.read_bytes()
        headers = scan_headers(data, whole=False)
        if headers.stop == "end" and len(headers) and not len(crc_failures(data, headers)):
            found = rewritten(data, append_time=1234567890123, offset_shift=3)
            assert not len(crc_failures(found, scan_headers(found)))
            changed += int(headers.is_log_append_time.sum())
    assert changed > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"offset_shift": -101}, "offsets must be 0 to .*, found -1 to 2"),
        ({"offset_shift": 2**63 - 100}, "offsets must be 0 to"),
        ({"offset_shift": 2**63}, "an offset shift must be"),
        ({"offset_shift": np.array([-101])}, "offsets must be 0 to .*, found -1 to 2"),
        (
            {"offset_shift": np.array([2**63 - 102])},
            "offsets must be 0 to .*, found 9223372036854775806 to 922337203685477580",
        ),
        ({"leader_epoch": -2}, "leader epoch"),
        ({"leader_epoch": 2**31}, "leader epoch"),
        ({"append_time": -2}, "append time"),
        ({"append_time": 2**63}, "append time"),
        ({"leader_epoch": np.array([-2])}, "leader epoch must be -1 to 2147483647, found -2 to -2"),
        ({"leader_epoch": np.array([2**31])}, "leader epoch"),
        ({"append_time": np.array([-2])}, "append time"),
        (
            {"append_time": np.array([1, 2])},
            r"expected int64\[1\] with an append time for each batch, found int64\[2\]",
        ),
        ({"offset_shift": np.array([1.0])}, "expected int64"),
    ],
)
def test_values_out_of_range_change_nothing(changes: dict[str, Any], words: str) -> None:
    data = bytearray(GOLDEN_BATCH)
    with pytest.raises(BadRequest, match=words):
        rewrite_headers(data, scan_headers(data), **{"leader_epoch": 3, **changes})
    assert data == GOLDEN_BATCH


def test_negative_base_offset_is_not_shifted() -> None:
    data = bytearray(replace(GOLDEN_HEADER, base_offset=-(2**63)).pack(GOLDEN_RECORDS))
    for shift in (-1, 0, 5, np.array([-1]), np.array([-(2**63) + 1])):
        with pytest.raises(BadRequest, match="offsets must be 0 to"):
            rewrite_headers(data, scan_headers(data), offset_shift=shift)


def test_data_must_be_writable_and_contain_the_batches() -> None:
    with pytest.raises(BadRequest, match="read-only"):
        rewrite_headers(GOLDEN_BATCH, scan_headers(GOLDEN_BATCH), offset_shift=1)
    with pytest.raises(BadRequest, match="outside the 96 bytes"):
        rewrite_headers(bytearray(GOLDEN_BATCH[:-1]), scan_headers(GOLDEN_BATCH), offset_shift=1)
