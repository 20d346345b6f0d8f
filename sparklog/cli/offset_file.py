"""Kafka's offset file of `delete-records`, and the deletion of what it names: one offset for each partition.

{"partitions": [{"topic": "orders", "partition": 0, "offset": 42}], "version": 1}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparklog.errors import BadRequest

if TYPE_CHECKING:
    from sparklog.log.topic.root import Root


@dataclass(frozen=True, slots=True)
class LowWatermark:
    topic: str
    partition: int
    low_watermark: int


def parse_offset_file(text: str, file: str) -> dict[tuple[str, int], int]:
    """Return `(topic, partition) -> offset` of Kafka's offset file; `BadRequest` for anything else.

    `offset` is the first one that stays, -1 the log end (Kafka's high watermark).
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"{file} must hold JSON, found an error: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("partitions"), list):
        raise BadRequest(f'{file} must hold {{"partitions": [...], "version": 1}}, found no list "partitions"')
    if document.get("version", 1) != 1:
        raise BadRequest(f"{file} must be of version 1, found {document['version']!r}")
    offsets: dict[tuple[str, int], int] = {}
    for item in document["partitions"]:
        names = ("topic", "partition", "offset")
        values: list[Any] = [item.get(name) for name in names] if isinstance(item, dict) else []
        if [type(value) for value in values] != [str, int, int]:
            raise BadRequest(
                f'{file} must have entries {{"topic": "t", "partition": 0, "offset": 42}}, found {json.dumps(item)}'
            )
        topic, partition, offset = values
        if (topic, partition) in offsets:
            raise BadRequest(f"{file} names {topic}-{partition} twice: give one offset for it")
        offsets[topic, partition] = offset
    if not offsets:
        raise BadRequest(f"{file} names no partition")
    return offsets


def delete_records(root: Root, offsets: Mapping[tuple[str, int], int], *, dry_run: bool = False) -> list[LowWatermark]:
    """Delete the records below an offset of each partition. All is checked before the first topic is changed.

    Raises as `Topic.delete_records`. `dry_run`: check, and tell where logs would start.
    """
    topics: dict[str, dict[int, int]] = {}
    for (name, partition), offset in sorted(offsets.items()):
        topics.setdefault(name, {})[partition] = offset
    opened = {name: root.topic(name) for name in topics}
    planned = {name: opened[name].plan_delete_records(before) for name, before in topics.items()}
    done = planned if dry_run else {name: opened[name].delete_records(before) for name, before in topics.items()}
    return [LowWatermark(name, partition, low) for name, lows in done.items() for partition, low in lows.items()]
