"""Offsets as JSON: those that users give in options, and those that Spark keeps in its checkpoint.

Both look like Kafka's: `{"orders":{"0":123,"1":456}}`, the number being the next offset to read. In a checkpoint our
own keys begin with `$`, which no topic name can:

| key        | meaning                                                                                           |
|------------|---------------------------------------------------------------------------------------------------|
| `$ids`     | topic -> topic id, so that a topic deleted and created again is noticed                             |
| `$start`   | in the first end offset of a query only: the positions it starts from (see below)                  |
| `$initial` | marks the answer of `initialOffset`, so that the next end offset knows that it is the first         |

Spark does not persist the initial offset: without `$start`, a replay of the first batch after a crash would start
where that is by then, and skip records. Spark compares offsets as text, so there is one form, sorted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparklog.common.parsing import is_digits
from sparklog.errors import BadRequest, shortened

Positions = Mapping[str, Mapping[int, int]]

LATEST = -1
EARLIEST = -2


@dataclass(frozen=True)
class StreamOffset:
    """A position in several topics, and what Spark's checkpoint must remember beside it."""

    positions: Positions
    ids: Mapping[str, str] = field(default_factory=dict)
    start: Positions | None = None
    initial: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the one form, which Spark stores and compares as `json.dumps` writes it."""
        document: dict[str, object] = dict(_positions_json(self.positions))
        document["$ids"] = {topic: self.ids[topic] for topic in sorted(self.ids)}
        if self.start is not None:
            document["$start"] = _positions_json(self.start)
        if self.initial:
            document["$initial"] = True
        return document

    @staticmethod
    def from_json(document: Mapping[str, object]) -> StreamOffset:
        """Parse what `to_json` wrote, and people edit by hand at times. Raises BadRequest."""
        keys = {key: value for key, value in document.items() if key.startswith("$")}
        unknown = sorted(set(keys) - {"$ids", "$start", "$initial"})
        if unknown:
            raise BadRequest(
                f"The checkpoint's offset holds {unknown[0]!r}, which this version of sparklog does not know: "
                "read it with the version that wrote it or a newer one"
            )
        ids = keys.get("$ids", {})
        if not isinstance(ids, dict) or not all(isinstance(value, str) for value in ids.values()):
            raise BadRequest(f"The checkpoint's offset must have an object of topic ids under '$ids', found {ids!r}")
        start = keys.get("$start")
        positions = {key: value for key, value in document.items() if key not in keys}
        try:
            return StreamOffset(
                parse_partition_numbers(positions, "offset", lowest=0),
                ids,
                None if start is None else parse_partition_numbers(start, "offset", lowest=0),
                keys.get("$initial") is True,
            )
        except ValueError as error:
            raise BadRequest(f"The offset in the checkpoint is damaged: {error}") from None

    def get(self, topic: str, partition: int) -> int | None:
        return self.positions.get(topic, {}).get(partition)


def _positions_json(positions: Positions) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): positions[topic][partition] for partition in sorted(positions[topic])}
        for topic in sorted(positions)
    }


def parse_partition_numbers(document: object, what: str, *, lowest: int) -> dict[str, dict[int, int]]:
    """Return `{"topic": {"0": 1, ...}}` with integer keys. Raises ValueError with a one-line reason."""
    if not isinstance(document, dict):
        raise ValueError(f'expected an object like {{"topic":{{"0":23}}}}, found {json.dumps(document)}')
    result: dict[str, dict[int, int]] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise ValueError(f'topic {topic!r} must map partitions to {what}s like {{"0":23}}, found {partitions!r}')
        numbers: dict[int, int] = {}
        for partition, number in partitions.items():
            if isinstance(number, bool) or not isinstance(number, int) or not lowest <= number < 1 << 63:
                raise ValueError(f"{what} of {topic}-{partition} must be a whole number >= {lowest}, found {number!r}")
            numbers[parse_partition(topic, partition)] = number
        result[topic] = numbers
    return result


def parse_partition(topic: str, partition: object) -> int:
    """Return a partition's number from JSON: a whole number, or its text. Raises ValueError with a reason."""
    text = str(partition)
    if isinstance(partition, bool) or not is_digits(text) or int(text) >= 1 << 31:
        raise ValueError(f"partition {partition!r} of topic {topic!r} is not a number from 0")
    return int(text)


def parse_json(text: str) -> object:
    """Parse the JSON of an option. Raises ValueError with a one-line reason, also where a key is given twice."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1}) if len(keys) < 10_000 else []
        if twice:
            raise ValueError(f"{twice[0]!r} is given twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise ValueError(f"found {shortened(text)}, not JSON ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def describe(positions: Positions) -> str:
    """Return `orders-0, orders-1`, at most eight of them, for messages."""
    names = [f"{topic}-{partition}" for topic in sorted(positions) for partition in sorted(positions[topic])]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
