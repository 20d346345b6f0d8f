"""All that a reader finds in a root, as JSON: for the release that made it and for the code of today alike.

Imports nothing of sparklog, so that `make_root_0_1_0` can use it: every release has these methods.
"""

from __future__ import annotations

import base64
from typing import Any

ISOLATION = ("read_committed", "read_uncommitted")


def facts(root: Any, groups: Any) -> dict[str, Any]:
    """Topics with configs, bounds and records, and groups with their offsets."""
    names = groups.names()
    return {
        "topics": {name: topic_facts(root.topic(name)) for name in root.topics()},
        "groups": {name: group_facts(groups.group(name)) for name in names},
    }


def topic_facts(topic: Any) -> dict[str, Any]:
    # Up to 0.3.1 a topic had it itself.
    state = (topic if hasattr(topic, "read_snapshot") else topic.log).read_snapshot().state
    bounds = [state.log_start, state.log_end, state.last_stable()]
    return {
        "configs": dict(state.configs.explicit),
        "bounds": [[int(each[partition]) for each in bounds] for partition in range(state.partitions)],
        **{isolation: records(topic, isolation) for isolation in ISOLATION},
    }


def records(topic: Any, isolation: str) -> list[list[Any]]:
    """Partition, offset, timestamp (ms) and its type, key, value, headers: in the order of partitions and offsets."""
    try:
        table = topic.scan(isolation_level=isolation).to_table()
    except TypeError:  # up to 0.3.0
        table = topic.scan(isolation=isolation).to_table()
    timestamps = table["timestamp"].cast("int64").to_pylist()
    rows = [
        [
            *(row["partition"], row["offset"], timestamp, row["timestampType"], _text(row["key"]), _text(row["value"])),
            None if row["headers"] is None else [[each["key"], _text(each["value"])] for each in row["headers"]],
        ]
        for row, timestamp in zip(table.to_pylist(), timestamps, strict=True)
    ]
    return sorted(rows, key=lambda row: row[:2])


def group_facts(group: Any) -> list[list[Any]]:
    """Topic, partition, offset, leader epoch, metadata, time (ms) of each committed offset."""
    return sorted(
        [item.topic, item.partition, item.offset, item.leader_epoch, item.metadata, item.time_ms]
        for item in group.committed().values()
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
