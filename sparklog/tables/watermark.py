"""The watermark of a table: the first offset of each partition that the table does not contain.

The watermark is stored in the table and changes in the same commit as the rows. It also contains the id of the commit
that wrote it, so that a process whose commit had an unknown outcome can look up the outcome.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sparklog.common.parsing import INT32_MAX, INT64_MAX, is_digits
from sparklog.errors import BadRequest, Corrupt, advice, shortened
from sparklog.log.state.view import Bounds
from sparklog.tables.option_names import option_value

Mode = Literal["append", "upsert", "quarantine"]
"""append: one row per record. upsert: one row per key. quarantine: one row per bad record."""
MODES: tuple[Mode, ...] = ("append", "upsert", "quarantine")
ROOT_ID, TOPIC, TOPIC_ID = "sparklog.root-id", "sparklog.topic", "sparklog.topic-id"
NEXT_OFFSETS, COMMIT_ID, MODE = "sparklog.next-offsets", "sparklog.commit-id", "sparklog.mode"
KEYS = (ROOT_ID, TOPIC, TOPIC_ID, NEXT_OFFSETS, COMMIT_ID, MODE)
NewTopic = Literal["fail", "continue", "replace"]


@dataclass(frozen=True)
class Watermark:
    """The watermark of a table.

    Attributes:
        root_id: The id of the root that contains the topic. Empty for a Kafka log directory.
        topic: The name of the topic.
        topic_id: The id of the topic, which changes if the topic is deleted and recreated.
        next_offsets: The first offset of each partition that the table does not contain.
        commit_id: The id of the commit that wrote this watermark.
        mode: The mode of the copy.
    """

    root_id: str
    topic: str
    topic_id: str
    next_offsets: Mapping[int, int]
    commit_id: str
    mode: Mode

    @property
    def source(self) -> tuple[str, str, str]:
        """The root id, the topic and the topic id."""
        return self.root_id, self.topic, self.topic_id

    def to_properties(self) -> dict[str, str]:
        """Return the watermark as string properties of a table."""
        offsets = {str(partition): self.next_offsets[partition] for partition in sorted(self.next_offsets)}
        return {
            ROOT_ID: self.root_id,
            TOPIC: self.topic,
            TOPIC_ID: self.topic_id,
            NEXT_OFFSETS: json.dumps(offsets, separators=(",", ":")),
            COMMIT_ID: self.commit_id,
            MODE: self.mode,
        }

    @staticmethod
    def from_properties(properties: Mapping[str, str], table: str) -> Watermark | None:
        """Return the watermark in the properties of a table, or None if the table has no watermark.

        Raises:
            Corrupt: If some of the properties are missing or invalid.
        """
        if not any(key in properties for key in KEYS):
            return None
        if missing := [key for key in KEYS if key not in properties]:
            raise Corrupt(f"the watermark of table {table} is incomplete: property {missing[0]} is missing")
        mode = next((mode for mode in MODES if mode == properties[MODE]), None)
        if mode is None:
            modes, found = ", ".join(MODES), shortened(properties[MODE])
            raise Corrupt(f"property {MODE} of table {table} must be one of {modes}, found {found}")
        return Watermark(
            properties[ROOT_ID],
            properties[TOPIC],
            properties[TOPIC_ID],
            _offsets(properties[NEXT_OFFSETS], table),
            properties[COMMIT_ID],
            mode,
        )

    def advanced(self, next_offsets: Mapping[int, int], commit_id: str) -> Watermark:
        """Return the watermark after a commit that contains the records before `next_offsets`."""
        return replace(self, next_offsets={**self.next_offsets, **next_offsets}, commit_id=commit_id)


def _offsets(text: str, table: str) -> dict[int, int]:
    try:
        offsets = json.loads(text)
    except (ValueError, RecursionError):
        offsets = None
    if not isinstance(offsets, dict) or not all(
        is_digits(partition) and int(partition) <= INT32_MAX and type(offset) is int and 0 <= offset <= INT64_MAX
        for partition, offset in offsets.items()
    ):
        raise Corrupt(
            f'property {NEXT_OFFSETS} of table {table} must be JSON such as {{"0":23}}, found {shortened(text)}'
        )
    return {int(partition): offset for partition, offset in offsets.items()}


@dataclass(frozen=True)
class TopicSnapshot:
    """The topic that a copy reads, in one snapshot."""

    root_id: str
    topic: str
    topic_id: str
    bounds: Mapping[int, Bounds]


def check_watermark(
    table: str,
    watermark: Watermark,
    source: TopicSnapshot,
    mode: Mode,
    *,
    new_topic: NewTopic = "fail",
    fail_on_data_loss: bool = True,
) -> Watermark:
    """Return the watermark from which a copy of `source` continues. It contains the offset of each partition.

    If the topic was created again and `new_topic` is not "fail", all partitions of the new topic start at their log
    start. If records were deleted before they were copied and `fail_on_data_loss` is False, the partition continues at
    its log start.

    Raises:
        BadRequest: If the table contains another topic or has another mode, or if records are missing.
    """
    if (watermark.root_id, watermark.topic) != (source.root_id, source.topic):
        raise BadRequest(
            f"table {table} contains topic '{watermark.topic}' of the root with id {watermark.root_id}, not topic "
            f"'{source.topic}' of the root with id {source.root_id}: copy each topic to a separate table"
        )
    if watermark.mode != mode:
        raise BadRequest(
            f"table {table} was written with mode {watermark.mode}, not {mode}: use the same mode or another table"
        )
    if watermark.topic_id != source.topic_id:
        if new_topic == "fail":
            raise BadRequest(
                f"topic '{source.topic}' was deleted and recreated since it was copied to table {table}: expected "
                f"topic id {watermark.topic_id}, found {source.topic_id}. To add the records of the new topic to the "
                f"table, use {option_value('new_topic', 'continue')}, or replace to delete the existing rows first"
            )
        watermark = replace(watermark, topic_id=source.topic_id, next_offsets={})
    return replace(watermark, next_offsets=_checked_offsets(table, watermark, source, fail_on_data_loss))


def _checked_offsets(
    table: str, watermark: Watermark, source: TopicSnapshot, fail_on_data_loss: bool
) -> dict[int, int]:
    if removed := sorted(watermark.next_offsets.keys() - source.bounds.keys()):
        raise BadRequest(
            f"table {table} contains records of {source.topic}-{removed[0]}, a partition that topic '{source.topic}' "
            "does not have: the root was replaced with an older copy; copy its topics to new tables"
        )
    offsets = {}
    for partition, limits in sorted(source.bounds.items()):
        offset = watermark.next_offsets.get(partition)
        if offset is None:
            offset = limits.log_start
        elif offset > limits.log_end:
            raise BadRequest(
                f"table {table} contains {source.topic}-{partition} up to offset {offset}, but the log ends at "
                f"{limits.log_end}: the root was replaced with an older copy; copy its topics to new tables"
            )
        elif offset < limits.log_start:
            if fail_on_data_loss:
                remedy = advice(python="fail_on_data_loss=False", shell="--no-fail-on-data-loss")
                raise BadRequest(
                    f"offsets {offset} to {limits.log_start - 1} of {source.topic}-{partition} were deleted before "
                    f"they were copied to table {table} (retention or delete-records). If this loss is acceptable, use "
                    f"{remedy} to continue at the log start"
                )
            offset = limits.log_start
        offsets[partition] = offset
    return offsets
