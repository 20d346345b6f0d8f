"""Test the transactional ids and producers of a log directory against Kafka's admin client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparklog.errors import BadRequest, NotFound, SparklogError
from sparklog.kafka.importing.kafka_transactions import (
    find_transactional_id,
    kafka_transactional_ids,
    producer_states,
)
from sparklog.kafka.in_place.view import KafkaView
from tests.fixture_data import copied

FIXTURES = ("transactions", "transactions-tv0")


@pytest.mark.parametrize("fixture", FIXTURES)
def test_transactional_ids_match_kafka_transactions(fixtures: Path, fixture: str) -> None:
    expected = json.loads((fixtures / fixture / "expected/transactions.json").read_text())["transactions"]
    assert expected
    assert [
        {
            "transactionalId": item.transactional_id,
            "state": item.transaction_state,
            "producerId": item.producer_id,
            "producerEpoch": item.producer_epoch,
            "timeoutMs": item.transaction_timeout_ms,
            "partitions": list(item.partitions),
        }
        for item in kafka_transactional_ids(KafkaView(fixtures / fixture / "data"))
    ] == expected


@pytest.mark.parametrize("fixture", FIXTURES)
def test_producers_match_describe_producers(fixtures: Path, fixture: str) -> None:
    expected = json.loads((fixtures / fixture / "expected/transactions.json").read_text())["activeProducers"]
    failures: list[SparklogError] = []
    producers: dict[str, list[dict[str, object]]] = {name: [] for name in expected}
    for state in producer_states(KafkaView(fixtures / fixture / "data"), failures):
        if state.partition in producers:
            producers[state.partition].append(
                {
                    "producerId": state.producer_id,
                    "producerEpoch": state.producer_epoch,
                    "lastSequence": state.last_sequence,
                    "lastTimestamp": state.last_timestamp_ms,
                    "coordinatorEpoch": state.coordinator_epoch,
                    "currentTransactionStartOffset": state.current_transaction_start_offset,
                }
            )
    assert not failures
    assert producers == expected


def test_damaged_snapshot_is_reported_and_others_are_read(fixtures: Path, tmp_path: Path) -> None:
    folder = copied(fixtures / "transactions/data", tmp_path / "log")
    newest = max((folder / "txn-a-0").glob("*.snapshot"))
    newest.write_bytes(newest.read_bytes()[:-1])
    failures: list[SparklogError] = []
    states = list(producer_states(KafkaView(folder), failures))
    assert {state.partition for state in states} >= {"txn-a-1", "txn-b-0"}
    assert "txn-a-0" not in {state.partition for state in states}
    (failure,) = failures
    assert newest.name in str(failure)


def test_directory_without_transactions(fixtures: Path) -> None:
    data = fixtures / "transactions/data"
    assert find_transactional_id(KafkaView(data), "tx-open").is_open
    with pytest.raises(NotFound, match="did you mean 'tx-open'"):
        find_transactional_id(KafkaView(data), "tx-opn")
    with pytest.raises(BadRequest, match="open its log directory"):
        kafka_transactional_ids(KafkaView(data / "txn-a-0"))
    with pytest.raises(NotFound, match="no partition of __transaction_state"):
        kafka_transactional_ids(KafkaView(fixtures / "codecs/data"))
