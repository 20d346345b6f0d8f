"""Test that written batches can be read back: random records, orders, sizes and codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.control import end_txn_marker, parse_control_record
from sparklog.format.decode import HEADERS_TYPE, RecordColumns, decode
from sparklog.format.encode import EncodeOptions, encode, encode_partitions
from sparklog.format.record_batch import BatchHeader
from tests.format.batch_samples import ALL, CODEC_NAMES, decode_all, rows
from tests.format.plain_encoder import encode_batch, with_create_time
from tests.support.seeds import examples

CELL = st.none() | st.binary(max_size=40) | st.integers(60, 70).map(lambda n: b"x" * n) | st.just(b"y" * 9000)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=4)
TIMES = st.integers(-1, 2**63 - 1) | st.integers(1_700_000_000_000, 1_700_000_001_000)
RECORDS = st.lists(st.tuples(TIMES, CELL, CELL, HEADERS), max_size=60)
OPTIONS = st.builds(
    EncodeOptions,
    codec=st.sampled_from(CODEC_NAMES),
    batch_bytes=st.sampled_from([1, 100, 1000, 20_000, 1 << 20]),
    max_message_bytes=st.sampled_from([20_000, 1 << 20]),
    log_append_time=st.just(False),
)


def columns_of(records: list[Any]) -> tuple[pa.Array, pa.Array, pa.Array, Any]:
    lists = [None if r[3] is None else [{"key": k, "value": v} for k, v in r[3]] for r in records]
    return (
        pa.array([r[1] for r in records], pa.binary()),
        pa.array([r[2] for r in records], pa.binary()),
        pa.array(lists, HEADERS_TYPE),
        np.array([r[0] for r in records], np.int64),
    )


def as_read(records: list[Any]) -> list[Any]:
    return [(i, r[0], r[1], r[2], r[3] or None) for i, r in enumerate(records)]


@examples(50, 150)
@given(records=RECORDS, options=OPTIONS)
def test_encode_then_decode(records: list[Any], options: EncodeOptions) -> None:
    encoded = encode(*columns_of(records), options=options)
    headers = scan_headers(encoded.data)
    assert crc_failures(encoded.data, headers).tolist() == []
    assert rows(decode_all(encoded.data)) == as_read(records)
    assert headers.next_offset[-1:].tolist() == ([len(records)] if records else [])
    assert encoded.records == len(records)


@examples(25, 75)
@given(data=st.data(), records=RECORDS, options=OPTIONS)
def test_partitions_and_orders(data: Any, records: list[Any], options: EncodeOptions) -> None:
    partition = np.array(data.draw(st.lists(st.integers(0, 5), min_size=len(records), max_size=len(records))), np.int32)
    columns = columns_of(records)
    slices = encode_partitions(*columns, partition, options=options)
    assert sum(found.records for found in slices.values()) == len(records)
    for number, found in slices.items():
        mine = [record for record, to in zip(records, partition, strict=True) if to == number]
        assert rows(decode_all(found.data)) == as_read(mine)
        assert encode(*columns, order=np.flatnonzero(partition == number), options=options).data == found.data


@examples(25, 75)
@given(
    records=RECORDS,
    base=st.integers(0, 2**62),
    base_time=st.integers(-1, 2**62),
    gaps=st.lists(st.integers(1, 1000), min_size=60, max_size=60),
    attributes=st.sampled_from([0, 0x08, 0x10, 0x40, 0x20]),
)
def test_single_batches_with_gaps(
    records: list[Any], base: int, base_time: int, gaps: list[int], attributes: int
) -> None:
    key, value, headers, times = columns_of(records)
    offsets = base - 1 + np.cumsum(np.array(gaps[: len(records)], np.int64))
    last = int(offsets[-1]) - base + 5 if records else 5
    header = BatchHeader(base, last, len(records), base_time, 77, attributes, 3, 1000, 2, 7)
    batch = encode_batch(RecordColumns(offsets, times, key, value, headers), header)
    found = scan_headers(batch)
    assert found.next_offset.tolist() == [base + last + 1]
    columns = decode(batch, with_create_time(found), columns=ALL)
    assert columns.offset.tolist() == offsets.tolist()
    assert [row[1:] for row in rows(columns)] == [row[1:] for row in as_read(records)]
    assert encode_batch(columns, found.row(0)) == batch


@given(
    commit=st.booleans(), offset=st.integers(0, 2**62), time=st.integers(-1, 2**62), producer=st.integers(0, 2**62),
    epoch=st.integers(0, 2**15 - 1), coordinator=st.integers(-1, 2**31 - 1),
)  # fmt: skip
def test_markers(commit: bool, offset: int, time: int, producer: int, epoch: int, coordinator: int) -> None:
    data = end_txn_marker(
        commit=commit, offset=offset, timestamp=time, producer_id=producer, producer_epoch=epoch,
        coordinator_epoch=coordinator,
    )  # fmt: skip
    found = scan_headers(data).row(0)
    assert (found.base_offset, found.max_timestamp, found.producer_id, found.producer_epoch) == (
        offset,
        time,
        producer,
        epoch,
    )
    _, _, key, value, _ = rows(decode_all(data))[0]
    record = parse_control_record(key, value)
    assert (record.type, record.coordinator_epoch) == (int(commit), coordinator)
