"""A store that fails while the server runs: a full disk, or a location that became read-only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparklog.common.warned import MAX_REPEATED, REPEAT_MS, is_due_warning
from sparklog.errors import Unavailable
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.topic.root import RootView, open_root
from sparklog.serve.codes import Code
from sparklog.serve.options import ServeOptions
from sparklog.serve.served_log import ServedLog
from sparklog.serve.server import serving
from sparklog.storage.memory import MemoryStore
from sparklog.testing import HookedStore
from tests.serve.conftest import FREE
from tests.serve.wire import Wire, batch_of
from tests.support.read_only import WRITING

FULL = "no space left on device"


class FailingStore(HookedStore):
    """A store in memory that rejects writes while `failure` is not empty. If it is read-only, `writable` is False."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(SYSTEM.wall_ms), self.fail)
        self.failure = ""
        self.is_read_only = False

    @property
    def writable(self) -> bool:
        return not self.is_read_only

    def become_read_only(self) -> None:
        self.failure, self.is_read_only = "the file system is read-only", True

    def fail(self, verb: str, key: str) -> None:
        if self.failure and verb in WRITING:
            raise Unavailable(f"cannot {verb} {key}: {self.failure}", is_denied=self.is_read_only)


@pytest.fixture
def store() -> FailingStore:
    store = FailingStore()
    root = open_root(store, create=True)
    for topic in ("t1", "t2"):
        root.create_topic(topic)
    return store


@contextmanager
def connected(store: FailingStore, *, writable: bool = True) -> Iterator[Wire]:
    root = open_root(store)
    options = ServeOptions(listen=FREE, writable=writable, session_timeouts_ms=(1, 1_800_000))
    with serving(ServedLog(RootView(root), root, None), options) as address:
        wire = Wire(address)
        yield wire
        wire.close()


def join(wire: Wire, group: str) -> Code:
    asked = {"groupId": group, "sessionTimeoutMs": 9_000, "protocolType": "consumer"}
    asked["protocols"] = [{"name": "range", "metadata": b""}]
    return Code(wire.ask("JoinGroup", 2, asked)["errorCode"])


def commit(wire: Wire, group: str) -> Code:
    asked = {"groupId": group, "generationIdOrMemberEpoch": -1, "memberId": ""}
    asked["topics"] = [{"name": "t1", "partitions": [{"partitionIndex": 0, "committedOffset": 0}]}]
    return Code(wire.ask("OffsetCommit", 8, asked)["topics"][0]["partitions"][0]["errorCode"])


def consumer_heartbeat(wire: Wire, group: str) -> Code:
    asked = {"groupId": group, "memberId": "one", "memberEpoch": 0, "rebalanceTimeoutMs": 9_000}
    asked |= {"subscribedTopicNames": ["t1"], "topicPartitions": []}
    return Code(wire.ask("ConsumerGroupHeartbeat", 1, asked)["errorCode"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    logged = [record for record in caplog.records if record.name == "sparklog.serve"]
    return [record.getMessage() for record in logged if record.levelno == logging.WARNING]


def test_a_batch_whose_commit_failed_is_not_a_duplicate_after_the_next_batch(store: FailingStore) -> None:
    first, second = [batch_of([b"%d" % n], producer=(1 << 40, 0, n)) for n in range(2)]
    with connected(store) as wire:
        store.failure = FULL
        assert wire.produce("t1", {0: first})[0]["errorCode"] == Code.KAFKA_STORAGE_ERROR
        store.failure = ""
        codes = [wire.produce("t1", {0: batch})[0]["errorCode"] for batch in (second, first, second)]
    assert codes == [Code.NONE, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.NONE]


def test_a_failed_commit_is_logged_once_per_topic(store: FailingStore, caplog: pytest.LogCaptureFixture) -> None:
    with connected(store) as wire:
        store.failure = FULL
        for topic in ("t1", "t1", "t2"):
            assert wire.produce(topic, {0: batch_of([b"a"])})[0]["errorCode"] == Code.KAFKA_STORAGE_ERROR
        first, second = warnings(caplog)
        assert first.startswith("cannot commit to topic 't1': ")
        assert second.startswith("cannot commit to topic 't2': ")
        assert FULL in first
        store.failure = ""
        assert wire.produce("t1", {0: batch_of([b"a"])})[0]["errorCode"] == Code.NONE
    assert len(warnings(caplog)) == 2


def test_batches_get_a_response_if_their_topic_id_cannot_be_looked_up(
    store: FailingStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(verb: str, key: str) -> None:
        if verb.startswith("list"):
            raise Unavailable(f"cannot list {key}: the store does not respond")

    partitions = [{"index": 0, "records": [batch_of([b"a"])]}]
    topics = [{"topicId": open_root(store).topic("t1").log.state().topic_id, "partitionData": partitions}]
    with connected(store) as wire:
        store.before = fail
        rows = wire.ask("Produce", 13, {"acks": -1, "timeoutMs": 1000, "topicData": topics})["responses"]
        assert rows[0]["partitionResponses"][0]["errorCode"] == Code.KAFKA_STORAGE_ERROR
        store.before = store.fail
        rows = wire.ask("Produce", 13, {"acks": -1, "timeoutMs": 1000, "topicData": topics})["responses"]
        assert rows[0]["partitionResponses"][0]["errorCode"] == Code.NONE
    assert "internal error" not in caplog.text


def test_a_failed_group_request_is_logged(store: FailingStore, caplog: pytest.LogCaptureFixture) -> None:
    with connected(store) as wire:
        store.failure = FULL
        assert [commit(wire, "g") for _ in range(2)] == [Code.COORDINATOR_NOT_AVAILABLE] * 2
    (warning,) = warnings(caplog)
    assert warning.startswith("cannot process a request: ")
    assert FULL in warning


def test_group_requests_are_retried_if_the_location_becomes_read_only(
    store: FailingStore, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(store) as wire:
        assert commit(wire, "g") == Code.NONE
        store.become_read_only()
        found = [join(wire, "new"), commit(wire, "g"), consumer_heartbeat(wire, "other")]
        assert found == [Code.COORDINATOR_NOT_AVAILABLE] * 3
    assert "the file system is read-only" in caplog.text


def test_group_requests_are_rejected_if_the_location_was_read_only_at_the_start(store: FailingStore) -> None:
    store.become_read_only()
    with connected(store, writable=False) as wire:
        found = [join(wire, "new"), commit(wire, "g"), consumer_heartbeat(wire, "other")]
        assert found == [Code.GROUP_AUTHORIZATION_FAILED] * 3


def test_repeated_warnings_are_limited() -> None:
    assert is_due_warning("a", now_ms=0)
    assert not is_due_warning("a", now_ms=REPEAT_MS - 1)
    assert is_due_warning("a", now_ms=REPEAT_MS)
    others = [is_due_warning(number, now_ms=REPEAT_MS) for number in range(MAX_REPEATED)]
    assert others == [True] * (MAX_REPEATED - 1) + [False]
    assert is_due_warning("b", now_ms=2 * REPEAT_MS)
