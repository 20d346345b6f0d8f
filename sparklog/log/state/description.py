"""The description of a topic for users. It contains partitions, sizes, and configs with their sources."""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.log.state.configs import CARRIED_CONFIG, CONFIGS, INLINE_CONFIG, TopicConfigs
from sparklog.log.state.kafka_source import KafkaOpen
from sparklog.log.state.root_defaults import ConfigSynonym, RootDefaults
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.topic_state import TopicState


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The description of a partition: its log start offset, log end offset and last stable offset, and the number and
    size of its slices.
    """

    partition: int
    log_start: int
    log_end: int
    last_stable: int
    slices: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """The description of a config: its value, the source of the value, and the default. The first of the `synonyms`
    applies.
    """

    name: str
    value: str
    source: str
    doc: str
    default: str
    synonyms: tuple[ConfigSynonym, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The description of a topic."""

    name: str
    topic_id: str
    version: int
    time_ms: int
    leader_epoch: int
    partitions: tuple[PartitionDescription, ...]
    configs: tuple[ConfigDescription, ...]
    slices: int
    bytes: int
    open_transactions: tuple[tuple[str, int], ...]
    kafka_open: tuple[KafkaOpen, ...] = ()
    kafka_topic_id: str = ""
    """The id of the Kafka topic from which this topic was imported. It is empty if the topic was not imported, or if
    the Kafka topic has no id.
    """


def describe_configs(topic: str, state: TopicState, defaults: RootDefaults) -> tuple[ConfigDescription, ...]:
    """Return the effective value of each config of a topic."""
    configs = TopicConfigs(state.configs.explicit, defaults.of_topic(topic))
    # A topic that an older release created may not use these features, regardless of the defaults.
    effective = {INLINE_CONFIG: state.inline_bytes(configs), CARRIED_CONFIG: state.carried_commits}
    return tuple(
        ConfigDescription(
            name,
            str(effective[name]) if name in effective else configs.text(name),
            configs.source(name),
            definition.doc,
            configs.default(name),
            tuple(defaults.synonyms(topic, configs, name)),
        )
        for name, definition in CONFIGS.items()
    )


def describe(snapshot: Snapshot, defaults: RootDefaults) -> TopicDescription:
    """Describe the topic in a snapshot, with the defaults of its root."""
    state, rows = snapshot.state, snapshot.slices.all()
    partitions = []
    for partition in range(state.partitions):
        span = rows.partition_rows(partition)
        start, end, stable = (
            int(offsets[partition]) for offsets in (state.log_start, state.log_end, state.last_stable())
        )
        size = int(rows.size[span].sum())
        partitions.append(PartitionDescription(partition, start, end, stable, span.stop - span.start, size))
    return TopicDescription(
        name=snapshot.topic,
        topic_id=state.topic_id,
        version=state.version,
        time_ms=state.created_ms,
        leader_epoch=state.leader_epoch,
        partitions=tuple(partitions),
        configs=describe_configs(snapshot.topic, state, defaults),
        slices=len(rows),
        bytes=int(rows.size.sum()),
        open_transactions=tuple(dict.fromkeys((item.txn.id, item.txn.n) for item in state.open)),
        kafka_open=state.kafka_open,
        kafka_topic_id=state.kafka_source.topic_id if state.kafka_source else "",
    )
