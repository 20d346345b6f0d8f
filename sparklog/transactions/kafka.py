"""Kafka's transactions that an import found open (`sparklog.log.state.kafka_open`), under the ids of who began them.

They stand beside the root's own in every list: they hold back the same last stable offsets. Nothing ends them by
itself, since the next import may bring their markers; an operator may, and then no import can go on with their topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparklog.log.state.kafka_open import KafkaOpen
from sparklog.log.state.topic_state import Head
from sparklog.log.topic.root import Root


ONGOING = "Ongoing"
PREPARE = {"commit": "PrepareCommit", "abort": "PrepareAbort"}
"""Kafka's words."""


@dataclass(frozen=True, slots=True)
class KafkaHeld:
    """One that is open in one partition of a topic."""

    topic: str
    open: KafkaOpen


def owner_of(each: KafkaOpen) -> str:
    """Who began it: the transactional id, or `producer-7` where only the producer id is known."""
    return each.transactional_id or f"producer-{each.producer}"


def owners(heads: Mapping[str, Head]) -> set[str]:
    """Owners of everything of Kafka's that is open in these topics."""
    return {owner_of(each) for head in heads.values() for each in head.kafka_open}


def held_by(heads: Mapping[str, Head], owner: str) -> tuple[KafkaHeld, ...]:
    """What one owner has open, in the order of topics and partitions."""
    found = [KafkaHeld(topic, each) for topic, head in heads.items() for each in head.kafka_open]
    own = [each for each in found if owner_of(each.open) == owner]
    return tuple(sorted(own, key=lambda each: (each.topic, each.open.partition, each.open.producer)))


def state_of(held: tuple[KafkaHeld, ...]) -> str:
    """Kafka's word: `PrepareCommit` or `PrepareAbort` if all of it is known to be decided so, else `Ongoing`."""
    found = {each.open.decided for each in held}
    decided = found.pop() if len(found) == 1 else None
    return ONGOING if decided is None else PREPARE[decided]


def end_held(root: Root, held: tuple[KafkaHeld, ...]) -> tuple[KafkaHeld, ...]:
    """End these in their topics: as Kafka had decided, else by ABORT. Returns those that this call ended."""
    ended: list[KafkaHeld] = []
    for topic in sorted({each.topic for each in held}):
        producers = {each.open.producer for each in held if each.topic == topic}
        ended += [KafkaHeld(topic, each) for each in root.topic(topic).end_kafka_transactions(producers=producers)]
    return tuple(ended)
