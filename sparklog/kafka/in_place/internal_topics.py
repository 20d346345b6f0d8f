"""The state that Kafka's coordinators keep in compacted topics of their own, as a coordinator loads it.

The newest record of a key counts, one without a value deletes it. Records of transactions (offsets that a producer
sends with what it writes) count from their COMMIT marker on, those of other writers at once, also behind a transaction
that is open: so this is no read with read_committed, which ends at the first open one. A record that was written
earlier never replaces one that was written later, whenever its marker comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sparklog.errors import Corrupt, Unavailable
from sparklog.format.control import ABORT, COMMIT, control_types
from sparklog.kafka.in_place import directory
from sparklog.kafka.in_place.directory import SegmentName, settled_segments
from sparklog.kafka.in_place.segment_file import SegmentFile, Window
from sparklog.kafka.in_place.segment_recovery import SKIP, TRUNCATE, Damage, OnSkipped, Skipped, sound_windows
from sparklog.log.journal.env import Env

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"


@dataclass(frozen=True, slots=True)
class Kept:
    """The value of a key and where its record lies."""

    value: bytes
    partition: int
    offset: int


def newest_values(path: str, topic: str, *, env: Env, policy: str, on_skipped: OnSkipped) -> dict[bytes, Kept]:
    """Key -> value in the partitions of `topic` that lie in the log dir at `path`; empty if none does.

    `policy`, `on_skipped`: what damage does, see `segment_recovery`; `Corrupt` with file, position and offset.
    """
    newest: dict[bytes, Kept] = {}
    for (name, number), folder in sorted(directory.partition_folders(path).items()):
        if name == topic:
            loading = _Loading(topic, number, policy, on_skipped)
            loading.load(settled_segments(folder, env=env))
            for key, (offset, value) in loading.values.items():
                if value is not None:
                    newest[key] = Kept(value, number, offset)
    return newest


@dataclass(slots=True)
class _Loading:
    """One partition while it is read."""

    topic: str
    partition: int
    policy: str
    on_skipped: OnSkipped
    values: dict[bytes, tuple[int, bytes | None]] = field(default_factory=dict)
    pending: dict[int, dict[bytes, tuple[int, bytes | None]]] = field(default_factory=dict)
    """By producer id: what its open transaction has written."""
    cut: bool = False

    def load(self, names: tuple[SegmentName, ...]) -> None:
        for name, after in zip(names, [*names[1:], None], strict=True):
            if self.cut:
                return
            try:
                with SegmentFile(name.path) as file:
                    for window in self._windows(file, name, after):
                        self._add(window, file)
            except FileNotFoundError:
                raise Unavailable(f"{name.path} is gone: Kafka's cleaner was at work; try again") from None

    def _add(self, window: Window, file: SegmentFile) -> None:
        headers = window.headers
        control = headers.is_control
        records = window.decode(("key", "value"), file.path, ~control & (headers.count > 0))
        if records.key is None or records.value is None:
            return
        keys, values, offsets = records.key.to_pylist(), records.value.to_pylist(), records.offset.tolist()
        ends = np.searchsorted(records.offset, headers.next_offset).tolist()
        at = 0
        for row, end in enumerate(ends):
            producer = int(headers.producer_id[row])
            if control[row]:
                # Of a marker that the cleaner has emptied, the records are gone as well.
                if headers.count[row]:
                    self._end(producer, int(control_types(window.data, headers[row : row + 1])[0]))
                continue
            target = self.pending.setdefault(producer, {}) if headers.is_transactional[row] else self.values
            for i in range(at, end):
                if keys[i] is not None:
                    target[keys[i]] = (offsets[i], values[i])
            at = end

    def _end(self, producer: int, kind: int) -> None:
        written = self.pending.pop(producer, {}) if kind in (COMMIT, ABORT) else {}
        for key, item in written.items() if kind == COMMIT else ():
            if key not in self.values or self.values[key][0] < item[0]:
                self.values[key] = item

    def _windows(self, file: SegmentFile, name: SegmentName, after: SegmentName | None) -> Iterator[Window]:
        last = after is None

        def decide(damage: Damage) -> bool:
            if self.policy == SKIP and not (last and damage.stop == "zeros"):
                return True
            if last and damage.unwritten:
                return False
            if self.policy != TRUNCATE:
                raise Corrupt(damage.reason, file=file.path, position=damage.position, offset=damage.offset)
            self.cut = True
            skipped(damage, file.size, None)
            return False

        def skipped(damage: Damage, until: int, end: int | None) -> None:
            size = until - damage.position
            place = self.topic, self.partition, file.path, damage.position, size, damage.offset
            self.on_skipped(Skipped(*place, end, damage.reason))

        limit = None if after is None else after.base
        return sound_windows(file, 0, name.base, decide=decide, resumed=skipped, limit=limit)
