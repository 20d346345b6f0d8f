"""The state that Kafka's coordinators keep in compacted topics of their own, as a coordinator loads it.

The newest record of a key counts, one without a value deletes it. Records of transactions (offsets that a producer
sends with what it writes) count from their COMMIT marker on, those of other writers at once, also behind a transaction
that is open: so this is no read with read_committed, which ends at the first open one. A record that was written
earlier never replaces one that was written later, whenever its marker comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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

    `policy`, `on_skipped`: what damage does, see `damage_policy`; `Corrupt` with file, position and
    offset.
    """
    newest: dict[bytes, Kept] = {}
    folders = directory.partition_folders(path)
    for (name, number), folder in sorted(folders.items()):
        if name == topic:
            loading = _Loading(topic, number, policy, on_skipped)
            loading.load(settled_segments(folder, env=env))
            newest |= loading.values()
    return newest


class _Loading:
    """One partition while it is read."""

    def __init__(self, topic: str, partition: int, policy: str, on_skipped: OnSkipped) -> None:
        self._topic = topic
        self._partition = partition
        self._policy = policy
        self._on_skipped = on_skipped
        self._values: dict[bytes, tuple[int, bytes | None]] = {}
        self._pending: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}
        """By producer id: what its open transaction has written."""
        self._cut = False

    def values(self) -> dict[bytes, Kept]:
        items = self._values.items()
        return {key: Kept(value, self._partition, offset) for key, (offset, value) in items if value is not None}

    def load(self, names: tuple[SegmentName, ...]) -> None:
        for name, after in zip(names, [*names[1:], None], strict=True):
            if self._cut:
                return
            try:
                with SegmentFile(name.path) as file:
                    for window in self._windows(file, name, after):
                        self._add(window, file)
            except FileNotFoundError:
                raise Unavailable(f"{name.path} is gone: Kafka's cleaner was at work; try again") from None

    def _add(self, window: Window, file: SegmentFile) -> None:
        from sparklog.format.decode import decode

        headers = window.headers
        if not len(headers):
            return
        control = headers.is_control
        records = decode(
            window.data,
            headers,
            columns=("key", "value"),
            select=~control & (headers.count > 0),
            check_crc=False,
            file=file.path,
            file_position=window.start,
        )
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
            target = self._pending.setdefault(producer, {}) if headers.is_transactional[row] else self._values
            for i in range(at, end):
                if keys[i] is not None:
                    target[keys[i]] = (offsets[i], values[i])
            at = end

    def _end(self, producer: int, kind: int) -> None:
        if kind not in (COMMIT, ABORT):
            return
        written = self._pending.pop(producer, {})
        for key, item in written.items() if kind == COMMIT else ():
            if key not in self._values or self._values[key][0] < item[0]:
                self._values[key] = item

    def _windows(self, file: SegmentFile, name: SegmentName, after: SegmentName | None) -> Iterator[Window]:
        last = after is None
        limit = None if after is None else after.base

        def decide(damage: Damage) -> bool:
            if self._policy == SKIP and not (last and damage.stop == "zeros"):
                return True
            if last and damage.unwritten:
                return False
            if self._policy != TRUNCATE:
                raise Corrupt(damage.reason, file=file.path, position=damage.position, offset=damage.offset)
            self._cut = True
            self._say(file, damage, file.size, None)
            return False

        def resumed(damage: Damage, until: int, end: int | None) -> None:
            self._say(file, damage, until, end)

        return sound_windows(file, 0, name.base, decide=decide, resumed=resumed, limit=limit)

    def _say(self, file: SegmentFile, damage: Damage, until: int, end: int | None) -> None:
        size = until - damage.position
        self._on_skipped(
            Skipped(self._topic, self._partition, file.path, damage.position, size, damage.offset, end, damage.reason)
        )
