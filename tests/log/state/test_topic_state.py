"""The topic state is a pure function of the commits."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.log.journal.documents import Fields
from sparklog.log.state.commit import (
    ALTER,
    COMPACT,
    CREATE,
    DELETE,
    DELETE_RECORDS,
    IMPORT,
    MAINTAIN,
    Edit,
    Txn,
    TxnDecision,
    VersionLease,
    WriterBatch,
)
from sparklog.log.state.invariants import check_commit
from sparklog.log.state.kafka_source import KafkaEnded, KafkaOpen
from sparklog.log.state.topic_state import EMPTY, TOPIC_STATE_JSON
from sparklog.log.state.writer_runs import WriterEntry
from sparklog.testing.world import START_MS
from tests.log.topics import Chain, output_of


def test_a_created_topic_is_empty() -> None:
    state = Chain(3, {"retention.ms": "5"}).state
    assert (state.version, state.exists, state.partitions, state.topic_id) == (0, True, 3, "topic-one")
    assert state.log_end.tolist() == state.log_start.tolist() == [0, 0, 0]
    assert state.configs.retention_ms == 5
    assert state.time_ms == START_MS


def test_appends_advance_log_ends() -> None:
    chain = Chain(2)
    chain.append((0, 5), (1, 2), (0, 1))
    chain.append((1, 10))
    assert chain.state.log_end.tolist() == [6, 12]
    assert chain.state.last_stable().tolist() == [6, 12]
    assert EMPTY.partitions == 0


def test_arrays_are_read_only() -> None:
    state = Chain(2).state
    with pytest.raises(ValueError, match="read-only"):
        state.log_end[0] = 9


def test_added_partitions_start_at_offset_0() -> None:
    chain = Chain(1)
    chain.append((0, 5))
    chain.add(op=ALTER, partitions=3)
    assert chain.state.log_end.tolist() == [5, 0, 0]


def test_log_starts_are_applied_as_a_maximum() -> None:
    chain = Chain(2)
    chain.append((0, 9), (1, 9))
    chain.add(op=DELETE_RECORDS, log_starts={0: 7})
    chain.add(op=DELETE_RECORDS, log_starts={0: 3, 1: 2})
    assert chain.state.log_start.tolist() == [7, 2]


def test_an_import_may_advance_the_log_end() -> None:
    chain = Chain(1)
    chain.add(op=IMPORT, log_starts={0: 500}, leader_epoch=4)
    assert chain.state.log_end.tolist() == [500]
    assert chain.state.leader_epoch == 4
    chain.append((0, 2))
    assert chain.state.log_end.tolist() == [502]


def with_kafkas() -> Chain:
    chain = Chain(2)
    chain.add(
        op=IMPORT,
        log_starts={0: 20, 1: 50},
        kafka_open=(KafkaOpen(0, 7, 1, 10, 20), KafkaOpen(0, 8, 2, 12, 25), KafkaOpen(1, 7, 1, 45, 60)),
        edits=(Edit(0, 0, 25), Edit(1, 0, 60)),
    )
    return chain


def test_open_kafka_transactions_limit_the_last_stable_offset() -> None:
    chain = with_kafkas()
    # A transaction that starts below the log start limits the last stable offset to the log start. All records of the
    # first transaction are removed.
    assert chain.state.last_stable().tolist() == [20, 50]
    assert [each.producer for each in chain.state.kafka_open] == [8, 7]
    chain.append((0, 3))
    assert chain.state.last_stable().tolist() == [20, 50]
    chain.append((1, 1), kafka_ended=(KafkaEnded(1, 7),))
    assert chain.state.last_stable().tolist() == [20, 61]
    document = json.loads(json.dumps(TOPIC_STATE_JSON.to_json(chain.state)))
    back = TOPIC_STATE_JSON.from_json(Fields(document, "k", "checkpoint"))
    assert back.kafka_open == chain.state.kafka_open == (KafkaOpen(0, 8, 2, 12, 25),)
    chain.add(op=DELETE_RECORDS, log_starts={0: 24})
    assert chain.state.last_stable().tolist() == [24, 61]
    chain.add(op=DELETE_RECORDS, log_starts={0: 25})
    assert chain.state.last_stable().tolist() == [28, 61]
    assert "kafkaOpen" not in TOPIC_STATE_JSON.to_json(chain.state)


def test_kafka_transactions_are_added_by_imports_and_end_once() -> None:
    chain = with_kafkas()
    with pytest.raises(Corrupt, match="ends a transaction of producer 9 in partition 0 that is not open"):
        chain.append((0, 1), kafka_ended=(KafkaEnded(0, 9),))
    for values, expected in (
        ({"kafka_open": (KafkaOpen(0, 9, 0, 1, 24),)}, "only an import or a clone can add"),
        ({"op": IMPORT, "kafka_open": (KafkaOpen(0, 8, 2, 13, 25),)}, "open twice"),
        ({"op": IMPORT, "kafka_open": (KafkaOpen(0, 9, 2, 13, 26),)}, "end after the log end"),
        ({"kafka_ended": (KafkaEnded(1, 7),)}, "partition 1 would end without a marker"),
    ):
        commit, _ = chain.commit(**values)
        with pytest.raises(BadRequest, match=expected):
            check_commit(chain.state, commit, chain.state.apply(commit))


def test_configs_are_set_and_reset() -> None:
    chain = Chain(1, {"retention.ms": "5"})
    chain.add(op=ALTER, configs={"cleanup.policy": "compact", "retention.ms": None})
    assert dict(chain.state.configs.explicit) == {"cleanup.policy": "compact"}


def test_the_first_dirty_offset_never_decreases() -> None:
    chain = Chain(2)
    chain.append((0, 20))
    chain.add(op=COMPACT, edits=(Edit(0, 0, 10, 10),))
    chain.add(op=COMPACT, edits=(Edit(0, 0, 5, 5), Edit(1, 0, 0, None)))
    assert chain.state.first_dirty_offset.tolist() == [10, 0]


def test_the_registry_has_the_latest_batch_of_each_writer() -> None:
    chain = Chain(1)
    chain.append((0, 5), writer=WriterBatch("stream", "q", 3, "run", 5))
    assert chain.state.registry == {"q": WriterEntry(3, 5, 1, START_MS + 1, "run")}
    chain.append((0, 5), writer=WriterBatch("txn", "job", 1, None, 5))
    chain.add(op=MAINTAIN, expired={"q": 1, "job": 1})
    # The second entry was written later than the version in the maintenance commit.
    assert set(chain.state.registry) == {"job"}


def test_a_commit_adds_a_writer_and_expires_others() -> None:
    chain = Chain(1)
    chain.append((0, 5), writer=WriterBatch("txn", "old", 1, None, 5))
    chain.append((0, 5), writer=WriterBatch("txn", "job", 1, None, 5))
    chain.add(op=MAINTAIN, writer=WriterBatch("txn", "job", 2, None, 0), expired={"old": 1, "job": 2})
    assert chain.state.registry == {"job": WriterEntry(2, 0, 3, START_MS + 3, None)}


def test_leases_and_retention_floor() -> None:
    chain = Chain(1)
    chain.append((0, 5))
    chain.add(op=MAINTAIN, floor=1, leases={"a": VersionLease(1), "b": VersionLease(1, 77)})
    chain.add(op=MAINTAIN, floor=0, leases={"a": None})
    assert chain.state.floor == 1
    assert chain.state.leases == {"b": VersionLease(1, 77)}


def test_a_delete_keeps_only_version_numbers_floor_and_leases() -> None:
    chain = Chain(2, {"retention.ms": "5"})
    chain.append((0, 5), writer=WriterBatch("stream", "q", 3, "run", 5))
    chain.add(op=MAINTAIN, floor=1, leases={"b": VersionLease(1, 77)})
    chain.add(op=DELETE)
    state = chain.state
    assert (state.exists, state.version, state.partitions, state.floor) == (False, 3, 0, 1)
    assert state.leases == {"b": VersionLease(1, 77)}
    assert not state.registry
    assert len(chain.table) == 0
    chain.add(op=MAINTAIN, floor=2, leases={"b": None})
    chain.add(op=CREATE, topic_id="topic-two", partitions=1, leader_epoch=0)
    state = chain.state
    assert (state.version, state.topic_id, state.partitions, state.floor) == (5, "topic-two", 1, 2)
    assert state.log_end.tolist() == [0]
    assert not state.configs.explicit


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"version": 7}, "expected commit 1 next, found commit 7"),
        ({"prev_crc": 1}, "the chain of commits is broken: commit 1"),
        ({"topic_id": "other"}, r"commit 1 \(append, topic id other\) does not match the topic"),
        ({"op": CREATE, "partitions": 1, "topic_id": "x"}, "does not match the topic"),
    ],
)
def test_commits_that_do_not_follow_are_corrupt(values: dict[str, object], expected: str) -> None:
    chain = Chain(1)
    commit, _ = chain.commit(**values)
    with pytest.raises(Corrupt, match=expected):
        chain.state.apply(commit)


def test_the_first_commit_must_be_a_create() -> None:
    chain = Chain(1)
    chain.state = EMPTY
    for op in (MAINTAIN, DELETE, ALTER):
        with pytest.raises(Corrupt, match="does not match the topic"):
            EMPTY.apply(chain.commit(op=op, topic_id="")[0])


def test_a_deleted_topic_does_not_accept_appends() -> None:
    chain = Chain(1)
    chain.add(op=DELETE)
    with pytest.raises(Corrupt, match="does not match the topic"):
        chain.append()
    with pytest.raises(Corrupt, match="does not match the topic"):
        # The old topic id cannot be used again.
        chain.add(op=CREATE, topic_id="topic-one", partitions=1)


@pytest.mark.parametrize(
    "values",
    [
        {"log_starts": {5: 1}},
        {"edits": (Edit(5, 0, 0),)},
        {"edits": (Edit(5, 0, 0, 3),)},
        {"files": (output_of(5, 0, 3),)},
    ],
)
def test_commits_to_missing_partitions_are_corrupt(values: dict[str, object]) -> None:
    chain = Chain(2)
    commit, _ = chain.commit(**values)
    with pytest.raises(Corrupt, match="partition 5"):
        chain.state.apply(commit)


# -- transactions


def test_open_slices_limit_the_last_stable_offset() -> None:
    chain = Chain(3)
    chain.append((0, 5), (1, 5))
    chain.append((0, 3), (0, 1), txn=Txn("t", 1))
    chain.append((0, 2), (1, 2))
    assert chain.state.log_end.tolist() == [11, 7, 0]
    assert chain.state.last_stable().tolist() == [5, 7, 0]
    assert [(p.txn.id, p.txn.n, p.version) for p in chain.state.open] == [("t", 1, 2)]


def test_a_decision_closes_all_prepares_of_the_transaction() -> None:
    chain = Chain(2)
    chain.append((0, 3), txn=Txn("t", 1, {"a": 9}))
    chain.append((0, 3), txn=Txn("t", 1, {"b": 3}))
    chain.append((1, 3), txn=Txn("u", 1, {"c": 1}))
    chain.append((0, 1), resolved=(TxnDecision("t", 1, (1,), {"a": 4, "d": 5}),))
    assert chain.state.last_stable().tolist() == [7, 0]
    # The prepare at version 2 was aborted, so its siblings are ignored.
    assert chain.state.siblings == {"a": 9, "d": 5}
    chain.add(op=MAINTAIN, resolved=(TxnDecision("u", 1),))
    assert chain.state.open == ()
    assert chain.state.siblings == {"a": 9, "d": 5}


def test_siblings_keep_the_highest_version() -> None:
    chain = Chain(1)
    for version in (9, 4, 12):
        chain.append((0, 1), txn=Txn("t", version))
        chain.add(op=MAINTAIN, resolved=(TxnDecision("t", version, (chain.state.version,), {"a": version}),))
    assert chain.state.siblings == {"a": 12}


def test_a_late_prepare_is_open_until_it_is_decided_again() -> None:
    chain = Chain(1)
    chain.append((0, 3), txn=Txn("t", 1))
    chain.add(op=MAINTAIN, resolved=(TxnDecision("t", 1, (1,)),))
    chain.append((0, 3), txn=Txn("t", 1))
    assert chain.state.last_stable().tolist() == [3]
    chain.add(op=MAINTAIN, resolved=(TxnDecision("t", 1, (1,)),))
    assert chain.state.last_stable().tolist() == [6]


def test_an_open_slice_below_the_log_start_is_dropped() -> None:
    chain = Chain(2)
    chain.append((0, 3), (1, 3), txn=Txn("t", 1))
    chain.append((0, 3))
    chain.add(op=DELETE_RECORDS, log_starts={0: 2})
    assert chain.state.last_stable().tolist() == [2, 0]
    chain.add(op=DELETE_RECORDS, log_starts={0: 3})
    assert chain.state.last_stable().tolist() == [6, 0]
    assert [dict(prepare.end) for prepare in chain.state.open] == [{1: 3}]
    chain.add(op=DELETE_RECORDS, log_starts={1: 3})
    assert chain.state.open == ()


def test_a_topic_state_is_decoded_as_encoded() -> None:
    chain = Chain(2, {"retention.ms": "5"})
    chain.append((0, 3), (1, 3), txn=Txn("t", 1, {"a": 2}, 60_000), writer=WriterBatch("stream", "q", 3, "run", 6))
    chain.add(op=MAINTAIN, floor=1, leases={"h": VersionLease(1, 5)})
    document = json.loads(json.dumps(TOPIC_STATE_JSON.to_json(chain.state)))
    back = TOPIC_STATE_JSON.from_json(Fields(document, "k", "checkpoint"))
    assert back == chain.state
    assert back.open == chain.state.open
    assert back.registry == chain.state.registry
    assert np.array_equal(back.last_stable(), chain.state.last_stable())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logStart", [0]),
        ("logEnd", [0, -1]),
        ("deleted", 0),
        ("registry", {"q": 5}),
        ("configs", {"a": 1}),
        ("floor", None),
        ("other", 1),
        ("topicId", None),
    ],
)
def test_a_damaged_topic_state_is_rejected(name: str, value: object) -> None:
    document = json.loads(json.dumps(TOPIC_STATE_JSON.to_json(Chain(2).state)))
    document[name] = value
    with pytest.raises(Corrupt, match="the-key"):
        TOPIC_STATE_JSON.from_json(Fields(document, "the-key", "checkpoint"))
