"""Test that aiokafka and kafka-python can read our batches, and that their batches can be read, in every codec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aiokafka.record._crecords.default_records import DefaultRecordBatch as AioFastBatch
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from kafka.record.default_records import DefaultRecordBatch as PyBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

from sparklog.format.batch_scan import scan_headers
from sparklog.format.control import end_txn_marker
from sparklog.format.record_batch import CODECS
from tests.format.batch_samples import CODEC_NAMES, START_MS, decode_all, encode_sample, rows

READERS = {"aiokafka": AioBatch, "aiokafka compiled": AioFastBatch, "kafka-python": PyBatch}
BUILDERS = {"aiokafka": AioBuilder, "kafka-python": PyBuilder}


def records_of(peer: Any, data: bytes) -> list[tuple[Any, ...]]:
    """Return all records of all batches as the other client decodes them, including its CRC check."""
    found: list[tuple[Any, ...]] = []
    headers = scan_headers(data)
    for position, size in zip(headers.position.tolist(), headers.size.tolist(), strict=True):
        batch = peer(data[position : position + size])
        assert batch.validate_crc()
        for record in batch:
            pairs = list(record.headers) or None
            found.append((record.offset, record.timestamp, record.key, record.value, pairs))
    return found


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("peer", READERS)
def test_other_clients_decode_our_batches(peer: str, codec: str) -> None:
    data = encode_sample(600, codec, batch_bytes=150_000, value_bytes=500).data
    expected = rows(decode_all(data))
    assert len(expected) == 600
    assert records_of(READERS[peer], data) == expected


def messages() -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    noise = np.random.default_rng(1).bytes(50_000)
    return [
        (
            START_MS + (i * 37) % 500,
            None if i % 5 == 0 else b"key-%d" % i,
            None if i % 7 == 3 else noise[i * 20 : i * 20 + 900] if i % 2 else b"a text that repeats itself " * 30,
            [("h", b"v"), ("näme", None), ("h", b"")] if i % 4 == 1 else [],
        )
        for i in range(400)
    ]


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("peer", BUILDERS)
def test_batches_of_other_clients_are_decoded(peer: str, codec: str) -> None:
    builder = BUILDERS[peer](
        magic=2,
        compression_type=CODECS.index(codec),
        is_transactional=True,
        producer_id=1234,
        producer_epoch=7,
        base_sequence=99,
        batch_size=10_000_000,
    )
    for offset, (time, key, value, headers) in enumerate(messages()):
        builder.append(offset, time, key, value, headers)
    data = bytes(builder.build())
    found = scan_headers(data)
    assert (found.producer_id[0], found.producer_epoch[0], found.base_sequence[0]) == (1234, 7, 99)
    assert found.is_transactional.all()
    assert CODECS[int(found.codec[0])] == codec
    expected = [
        (offset, time, key, value, headers or None) for offset, (time, key, value, headers) in enumerate(messages())
    ]
    assert rows(decode_all(data)) == expected


def test_other_clients_decode_our_markers() -> None:
    data = end_txn_marker(
        commit=True, offset=5, timestamp=START_MS, producer_id=1, producer_epoch=2, coordinator_epoch=3
    )
    for peer in READERS.values():
        batch = peer(data)
        assert batch.validate_crc()
        assert batch.is_control_batch
        assert batch.is_transactional
        assert [record.key for record in batch] == [bytes.fromhex("00000001")]
