"""Offsets as JSON, in options and in Spark's checkpoint.

Options and checkpoints use Kafka's format, `{"orders":{"0":123,"1":456}}`, in which a number is the next offset to
read. In a checkpoint, the additional keys of sparklog start with `$`, which topic names cannot contain:

| key        | meaning                                                                                           |
|------------|---------------------------------------------------------------------------------------------------|
| `$ids`     | topic -> topic id, which shows whether a topic was deleted and recreated                       |
| `$start`   | only in the first end offset of a query: the positions from which it starts (see below)            |
| `$added`   | where partitions with records begin in a micro-batch if its start does not contain them            |
| `$initial` | marks the result of `initialOffset`, so that the next end offset is known to be the first          |

Spark does not store the initial offset. If `$start` were not stored, a replay of the first micro-batch after a crash
would start at the initial offset at the time of the replay, and would skip records. If `$added` were not stored, a
replay would begin at the log start at the time of the replay, and would not report records that were deleted before
they were read. Spark compares offsets as strings, so each offset has exactly one sorted form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sparklog.common.parsing import is_digits
from sparklog.errors import BadRequest, shortened

Positions = Mapping[str, Mapping[int, int]]
"""An offset of each partition, by topic and partition."""
OffsetJson = dict[str, object]
"""An offset in the JSON form that Spark stores and compares (see the module docstring)."""

LATEST = -1
EARLIEST = -2
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class StreamOffset:
    """A position in several topics, with the additional values that Spark's checkpoint must contain."""

    positions: Positions
    ids: Mapping[str, str] = field(default_factory=dict)
    start: Positions | None = None
    added: Positions = field(default_factory=dict)
    initial: bool = False

    def to_json(self) -> OffsetJson:
        """Return the document that Spark stores and compares, in the form that `json.dumps` writes."""
        document: OffsetJson = dict(_positions_json(self.positions))
        document["$ids"] = {topic: self.ids[topic] for topic in sorted(self.ids)}
        if self.start is not None:
            document["$start"] = _positions_json(self.start)
        if self.added:
            document["$added"] = _positions_json(self.added)
        if self.initial:
            document["$initial"] = True
        return document

    @staticmethod
    def from_json(document: Mapping[str, object]) -> StreamOffset:
        """Parse a document that was created by `to_json`. Raises BadRequest if the document is not valid, because a
        user may have edited it.
        """
        keys = {key: value for key, value in document.items() if key.startswith("$")}
        unknown = sorted(set(keys) - {"$ids", "$start", "$added", "$initial"})
        if unknown:
            raise BadRequest(
                f"The offset in the checkpoint contains {unknown[0]!r}, which this version of sparklog does not "
                "support: "
                "use the sparklog version that wrote the checkpoint, or a later version"
            )
        ids = keys.get("$ids", {})
        if not isinstance(ids, dict) or not all(isinstance(value, str) for value in ids.values()):
            raise BadRequest(f"'$ids' in the offset of the checkpoint must be an object of topic ids, found {ids!r}")
        start = keys.get("$start")
        positions = {key: value for key, value in document.items() if key not in keys}
        try:
            return StreamOffset(
                parse_partition_numbers(positions, "offset", lowest=0),
                ids,
                None if start is None else parse_partition_numbers(start, "offset", lowest=0),
                parse_partition_numbers(keys.get("$added", {}), "offset", lowest=0),
                keys.get("$initial") is True,
            )
        except ValueError as error:
            raise BadRequest(f"The offset in the checkpoint is invalid: {error}") from None

    def get(self, topic: str, partition: int) -> int | None:
        return self.positions.get(topic, {}).get(partition)


def map_partitions(
    values: Mapping[str, Mapping[int, T]], function: Callable[[str, int, T], U]
) -> dict[str, dict[int, U]]:
    """Return `function(topic, partition, value)` for each partition."""
    return {
        topic: {partition: function(topic, partition, value) for partition, value in of_topic.items()}
        for topic, of_topic in values.items()
    }


def _positions_json(positions: Positions) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): positions[topic][partition] for partition in sorted(positions[topic])}
        for topic in sorted(positions)
    }


def parse_partition_numbers(document: object, what: str, *, lowest: int) -> dict[str, dict[int, int]]:
    """Return `{"topic": {"0": 1, ...}}` with integer keys. Raises ValueError with the reason on one line."""
    if not isinstance(document, dict):
        raise ValueError(f'expected an object such as {{"topic":{{"0":23}}}}, found {json.dumps(document)}')
    result: dict[str, dict[int, int]] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise ValueError(f'topic {topic!r} must map partitions to {what}s such as {{"0":23}}, found {partitions!r}')
        numbers: dict[int, int] = {}
        for partition, number in partitions.items():
            if isinstance(number, bool) or not isinstance(number, int) or not lowest <= number < 1 << 63:
                raise ValueError(f"{what} of {topic}-{partition} must be an integer >= {lowest}, found {number!r}")
            numbers[parse_partition(topic, partition)] = number
        result[topic] = numbers
    return result


def parse_partition(topic: str, partition: object) -> int:
    """Return a partition number from JSON, in which the number may be a string. Raises ValueError with the reason."""
    text = str(partition)
    if isinstance(partition, bool) or not is_digits(text) or int(text) >= 1 << 31:
        raise ValueError(f"invalid partition {partition!r} of topic {topic!r}: expected an integer >= 0")
    return int(text)


def parse_json(text: str) -> object:
    """Parse the JSON of an option. Raises ValueError with the reason on one line, for example for a repeated key."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        repeated = sorted({key for key in keys if keys.count(key) > 1}) if len(keys) < 10_000 else []
        if repeated:
            raise ValueError(f"{repeated[0]!r} is given twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"found {shortened(text)} ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def describe(positions: Positions) -> str:
    """Return at most eight partitions as text for messages, such as `orders-0, orders-1`."""
    names = [f"{topic}-{partition}" for topic in sorted(positions) for partition in sorted(positions[topic])]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
