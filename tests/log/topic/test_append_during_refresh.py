"""Appends to a remote store: the rows are written while newer commits are requested."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Conflict, Fenced, NotFound
from sparklog.log.topic.defaults import METADATA_MAX_AGE_MS
from sparklog.log.topic.topic import Topic
from sparklog.testing.wrapper_stores import WrapperStore
from tests.support.counted_root import CountedRoot

KEYS = pa.table({"key": [b"%d" % number for number in range(40)], "value": [b"v"] * 40})


class Meeting(WrapperStore):
    """A store in which the file and the request for the next commit each wait until the other one has started."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.both = threading.Barrier(2, timeout=60)
        self.awaited = {"append/", "t/_log/"}

    def request(self, verb: str, key: str, send: Callable[[], Any]) -> Any:
        for part in tuple(self.awaited):
            if part in key:
                self.awaited.discard(part)
                self.both.wait()
        return send()


@pytest.fixture
def counted_root(tmp_path: Path) -> CountedRoot:
    return CountedRoot("bucket", tmp_path)


def values(topic: Topic) -> list[bytes]:
    return topic.scan().to_table()["value"].to_pylist()  # type: ignore[no-any-return]


def files_written(counted_root: CountedRoot) -> int:
    return counted_root.store.by_kind["writer", "append"]


@pytest.mark.usefixtures("records_in_files")
def test_rows_are_written_while_the_state_is_read(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(2)
    counted_root.store.inner = Meeting(counted_root.inner)
    assert topic.append(KEYS).records == 40
    assert counted_root.store.inner.awaited == set()


def test_iterables_are_consumed_in_the_callers_thread(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(2)
    threads = set()

    def batches() -> Any:
        threads.add(threading.current_thread())
        yield KEYS

    topic.append(batches())
    assert threads == {threading.current_thread()}


@pytest.mark.usefixtures("records_in_files")
def test_rows_use_partitions_that_were_added_concurrently(counted_root: CountedRoot) -> None:
    topic, other = counted_root.topic(1), counted_root.reopened()
    topic.append(KEYS)
    other.alter(partitions=8)
    counted_root.store.reset()
    outcome = topic.append(KEYS)
    assert len(outcome.base) > 1
    # The vacuum deletes the files that were written for one partition.
    assert files_written(counted_root) == 2
    counted_root.store.reset()
    topic.append(KEYS)
    assert files_written(counted_root) == 1


def test_rows_are_validated_with_the_latest_configs(counted_root: CountedRoot) -> None:
    topic, other = counted_root.topic(1), counted_root.reopened()
    large = pa.table({"value": [random.Random(1).randbytes(5000)]})
    topic.append(large)
    other.alter(configs={"max.message.bytes": 2000})
    with pytest.raises(BadRequest, match=r"max\.message\.bytes"):
        topic.append(large)
    other.alter(configs={"max.message.bytes": 100_000})
    # The cached state rejects the rows, but the latest state accepts them.
    topic.append(large)
    other.alter(configs={"cleanup.policy": "compact"}, force=True)
    with pytest.raises(BadRequest, match="without a key"):
        topic.append(large)
    assert len(values(topic)) == 2


def test_a_topic_that_was_deleted_or_created_again(counted_root: CountedRoot) -> None:
    topic, other = counted_root.topic(1), counted_root.reopened()
    topic.append(KEYS)
    other.delete()
    with pytest.raises(NotFound):
        topic.append(KEYS)
    counted_root.root.create_topic("t")
    assert counted_root.reopened().append(KEYS).records == 40
    made_again = counted_root.reopened()
    other.delete()
    counted_root.world.root(counted_root.store).create_topic("t", partitions=3)
    made_again.append(KEYS)
    assert len(values(counted_root.reopened())) == 40


def test_a_replaced_root_is_not_written_to(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    topic.append(KEYS)
    for item in list(counted_root.inner.list("")):
        counted_root.inner.delete(item.key)
    counted_root.world.root(counted_root.inner).create_topic("t")
    with pytest.raises((Fenced, Conflict, NotFound, BadRequest)):
        topic.append(KEYS)
    assert values(counted_root.reopened()) == []


@pytest.mark.usefixtures("records_in_files")
def test_an_old_cached_state_is_not_used(counted_root: CountedRoot) -> None:
    topic, other = counted_root.topic(1), counted_root.reopened()
    topic.append(KEYS)
    other.alter(partitions=4)
    counted_root.world.advance(METADATA_MAX_AGE_MS)
    counted_root.store.reset()
    topic.append(KEYS)
    assert files_written(counted_root) == 1


@pytest.mark.usefixtures("records_in_files")
def test_on_a_disk_the_state_is_read_first(tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path / "root")
    topic, other = counted_root.topic(1), counted_root.reopened()
    topic.append(KEYS)
    other.alter(partitions=4)
    counted_root.store.reset()
    topic.append(KEYS)
    assert files_written(counted_root) == 1


def test_a_single_writer_reads_the_state_once_per_second(counted_root: CountedRoot) -> None:
    """Inline records then take one PUT, and one read of the previous commit.

    If the writer has not read for a second, it also requests the commit after its own, which may follow a lost commit.
    """
    topic = counted_root.topic(2)
    topic.append(KEYS)
    for _ in range(3):
        counted_root.store.reset()
        assert topic.append(KEYS).records == 40
        counted_root.store.expect(create_commit=1, get_commit=1)
    counted_root.world.advance(1001)
    counted_root.store.reset()
    topic.append(KEYS)
    counted_root.store.expect(create_commit=1, get_commit=3, get_root=1)


@pytest.mark.parametrize(
    "change", [{"partitions": 8}, {"configs": {"compression.type": "gzip"}}, {"configs": {"retention.ms": 1}}]
)
def test_rejected_optimistic_rows_are_written_again(counted_root: CountedRoot, change: dict[str, Any]) -> None:
    topic, other = counted_root.topic(1), counted_root.reopened()
    topic.append(KEYS)
    other.alter(**change)
    outcome = topic.append(KEYS)
    assert (outcome.version, outcome.records) == (3, 40)
    assert (len(outcome.base) > 1) == ("partitions" in change)
    other.append(KEYS)
    assert topic.append(KEYS).version == 5
    assert len(values(topic)) == 160


def test_a_writer_that_lost_a_race_reads_the_state_first(counted_root: CountedRoot) -> None:
    topic, other = counted_root.topic(2), counted_root.reopened()
    topic.append(KEYS)
    other.append(KEYS)
    assert topic.append(KEYS).version == 3
    counted_root.store.reset()
    topic.append(KEYS)
    counted_root.store.expect(create_commit=1, get_commit=2, get_root=1)
    counted_root.store.reset()
    topic.append(KEYS)
    counted_root.store.expect(create_commit=1, get_commit=1)
