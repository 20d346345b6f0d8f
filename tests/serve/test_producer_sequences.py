"""Kafka producers in a topic's registry: the entries that a commit may contain, and when they expire."""

from __future__ import annotations

import pytest

from sparklog.log.state.commit_json import COMMIT_JSON
from sparklog.log.state.writer_runs import KAFKA_WRITER, KafkaWriterKey, SequenceConflict
from sparklog.log.topic.appending import write_rows
from sparklog.log.topic.topic import Topic
from sparklog.retention.vacuum import IDLE_KAFKA_MS, idle_writers
from sparklog.serve.batch_checks import writer_id
from sparklog.testing.world import World


def append(topic: Topic, *keys: KafkaWriterKey) -> None:
    append = write_rows(topic.log, {"value": ["a"]})
    files, target = append.files, append.target
    topic.log.commit_append(files, target, kafka_writers=keys)


def test_a_commit_must_follow_the_registry_entry_that_was_read() -> None:
    world = World()
    topic = world.root().create_topic("t")
    one, two = writer_id(7, 0), writer_id(8, 3)
    append(topic, KafkaWriterKey(one, 4, None, 5), KafkaWriterKey(two, 0, None, 1))
    other = world.topic("t")
    append(other, KafkaWriterKey(one, 9, 4, 5))
    for follows in (None, 4, 10):
        with pytest.raises(SequenceConflict):
            append(topic, KafkaWriterKey(two, 1, 0, 1), KafkaWriterKey(one, 12, follows, 3))
    assert topic.count().records == 2, "all of a commit, or nothing"
    registry = topic.log.state().registry
    numbers = [registry[writer].batch if writer in registry else None for writer in (one, two, writer_id(7, 1))]
    assert numbers == [9, 0, None]
    # Open the topic from a checkpoint, and from the commits alone.
    assert world.topic("t").log.state().registry == registry


def test_a_topic_with_producers_requires_a_feature() -> None:
    topic = World().root().create_topic("t", configs={"inline.records.bytes": 0, "carried.commits": 0})
    append(topic, KafkaWriterKey(writer_id(7, 0), 4, None, 5))
    state = topic.log.state()
    assert (state.read_features, state.write_features) == (("kafkaWriters",),) * 2
    plain = topic.root.create_topic("plain", configs={"inline.records.bytes": 0, "carried.commits": 0})
    plain.append({"value": ["a"]})
    assert (plain.log.state().read_features, plain.log.state().write_features) == ((), ())
    data = plain.store.get("plain/_log/00000000000000000001.json")
    assert b"writers" not in data
    assert COMMIT_JSON.fields(data, "commit")


def test_an_idle_producer_expires_after_a_day_and_other_writers_do_not() -> None:
    world = World()
    topic = world.root().create_topic("t")
    append(topic, KafkaWriterKey(writer_id(7, 0), 4, None, 5))
    state = topic.log.state()
    assert idle_writers(state, world.now_ms + IDLE_KAFKA_MS) == {}
    assert idle_writers(state, world.now_ms + IDLE_KAFKA_MS + 1) == {f"{KAFKA_WRITER}7-0": state.version}
