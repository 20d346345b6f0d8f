"""An endless stream of generated records, and the expected results."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass, field

import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.testing.world import START_MS

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("ms", tz="UTC"))])


@dataclass
class RecordStream:
    """An endless stream of records for `Topic.append`. The records are the same for the same seed and any batch size.

    Keys are `k0`, `k1` and so on. A value consists of the number of the record, such as `00000000-`, and random
    letters, so that all values are different.

    Args:
        seed: The seed of the random numbers.
        keys: The number of different keys. If 0, records do not have a key.
        value_bytes: The number of random letters in a value.
        tombstones: The fraction of records that delete their key, from 0.0 to 1.0.
        start_ms: The timestamp of the first record.
        step_ms: The time between two records.
        late_ms: The maximum time by which a record is late, for tests of watermarks.

    Example:
        root = testing.World().root()
        records = testing.RecordStream(seed=7, keys=3, tombstones=0.2)
        root.create_topic("t").append(records.take(100))
        assert root.topic("t").scan().to_table().num_rows == records.taken().num_rows == 100
        print(records.latest())
    """

    seed: int = 0
    keys: int = 10
    value_bytes: int = 20
    tombstones: float = 0.0
    start_ms: int = START_MS
    step_ms: int = 1
    late_ms: int = 0
    _taken: list[pa.Table] = field(default_factory=list, init=False, repr=False)
    _latest: dict[bytes, bytes] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("keys", "value_bytes", "late_ms"):
            if getattr(self, name) < 0:
                raise BadRequest(f"{name} of a RecordStream must not be negative, found {getattr(self, name)!r}")
        if not 0 <= self.tombstones <= 1 or (self.tombstones and not self.keys):
            raise BadRequest(
                f"tombstones of a RecordStream must be 0.0 to 1.0, and require keys, found {self.tombstones!r}"
            )
        self._random = random.Random(self.seed)
        self._number = 0

    def take(self, records: int) -> pa.Table:
        """Return the next records, with the columns key, value and timestamp."""
        if records < 0:
            raise BadRequest(f"the number of records must not be negative, found {records!r}")
        rows = [self._next() for _ in range(records)]
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        table = pa.table([pa.array(column, item.type) for column, item in zip(columns, SCHEMA, strict=True)], SCHEMA)
        self._taken.append(table)
        return table

    def taken(self) -> pa.Table:
        """Return all records that `take` has returned so far."""
        return pa.concat_tables([SCHEMA.empty_table(), *self._taken])

    def latest(self) -> dict[bytes, bytes]:
        """Return the latest value of each key in the records that `take` has returned. Deleted keys are omitted.
        Compaction retains the same records.
        """
        return dict(self._latest)

    def _next(self) -> tuple[bytes | None, bytes | None, int]:
        draw = self._random
        key = b"k%d" % draw.randrange(self.keys) if self.keys else None
        time_ms = self.start_ms + self._number * self.step_ms - (draw.randint(0, self.late_ms) if self.late_ms else 0)
        letters = base64.urlsafe_b64encode(draw.randbytes(-(-self.value_bytes * 3 // 4)))[: self.value_bytes]
        value = None if self.tombstones and draw.random() < self.tombstones else b"%08d-%s" % (self._number, letters)
        self._number += 1
        if key is not None:
            self._latest.pop(key, None)
            if value is not None:
                self._latest[key] = value
        return key, value, time_ms
