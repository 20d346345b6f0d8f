"""Sound batches of a segment, the next sound batch after damage, and the policies for damage.

| policy     | effect of a damaged batch in front of the log's end                                               |
|------------|---------------------------------------------------------------------------------------------------|
| `fail`     | reading its offsets is `Corrupt`, naming file, position and offset; all other offsets can be read |
| `skip`     | it is left out and reported; reading goes on with the next whole batch                            |
| `truncate` | the log ends in front of it, as after Kafka's recovery from an unclean shutdown (recovery point 0) |

The log's end is the same for `fail` and for Kafka's recovery of the last segment: after the last whole batch. Bytes
after it (half a batch, zeros, garbage) are not written yet or never will be, and are no damage. `skip` goes on after
them if whole batches follow.

A batch is sound if its checksum is right, its header is one that a writer writes, and its offsets are above those of
the batch before it and below the next segment. The last matters because base offset and length are outside of the
checksum: a flipped bit there would move records to other offsets, or hide all that follow.

Two batches are out of order if the second begins below the end of the first. Either the offset of one was damaged, or
one is stale: bytes of an older batch. Kafka checks neither, and takes the last batch of a log as its end. Here one of
the two is chosen as the wrong one (`first_is_wrong`).

After damage the next sound batch is at the position that the damaged one's length gives, or else the first position
where a batch of magic 2 can be read: a possible header, fitting offsets, a right checksum. Messages of formats v0 and
v1 are too small and too loose in structure to be searched for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest
from sparklog.format.batch_scan import MAX_OFFSET, crc_failures, crc_message, header_rules
from sparklog.format.record_batch import (
    CODECS,
    CRC_START,
    HEADER_BYTES,
    HEADER_DTYPE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeaders,
)
from sparklog.format.window import Window
from sparklog.kafka.in_place.segment_file import BatchWalk, SegmentFile

CorruptRecords = Literal["fail", "skip", "truncate"]
FAIL: Final = "fail"
SKIP: Final = "skip"
TRUNCATE: Final = "truncate"
POLICIES = (FAIL, SKIP, TRUNCATE)

_LOG = logging.getLogger("sparklog.kafka")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A stretch of a log that was left out because it is damaged.

    * `file`, `position`, `nbytes`: the bytes; `position` is None if it is records that are left out and not bytes
    * `start`, `end`: no record of offsets `[start, end)` was read in it; `end` is None where nothing says how far the
      damage reaches
    """

    topic: str
    partition: int
    file: str
    position: int | None
    nbytes: int
    start: int
    end: int | None
    reason: str

    def __str__(self) -> str:
        last = "on" if self.end is None else f"to {max(self.end - 1, self.start)}"
        place = "" if self.position is None else f", {self.nbytes} bytes from position {self.position}"
        return (
            f"left out offsets {self.start} {last} of {self.topic}-{self.partition} as damaged: {self.reason}"
            f" (file {self.file}{place})"
        )


OnSkipped: TypeAlias = Callable[[Skipped], None]


def log_skipped(skipped: Skipped) -> None:
    _LOG.warning("sparklog: %s", skipped)


_said: set[str] = set()


def warn_once(message: str) -> None:
    """A warning of that logger, once in this process: views look again and again."""
    if message not in _said:
        _said.add(message)
        _LOG.warning("sparklog: %s", message)


def check_policy(policy: str) -> str:
    if policy not in POLICIES:
        raise BadRequest(f"unknown corrupt_records {policy!r}: expected one of {', '.join(POLICIES)}")
    return policy


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int

    def flips_into(self, low: int, high: int | None) -> int:
        """Rate how well one flipped bit of its offset explains a place between `low` and `high` (None: anywhere).

        3: it touches a neighbour there, 2: it fits, 0: it does not.
        """
        best, length = 0, self.end - self.start
        for bit in range(63):
            start = self.start ^ (1 << bit)
            if start == low or start + length == high:
                best = max(best, 3 if high is None or low <= start <= high - length else 0)
            elif high is not None and low <= start <= high - length:
                best = max(best, 2)
        return best


def first_is_wrong(before: int, first: Span, second: Span, after: int | None) -> bool:
    """Blame one of two batches out of order: True for the first, False for the second.

    `before`: where the batch in front of the first ends; `after`: where the one after the second begins, None if there
    is none. The first is right if it follows directly. Else that batch is wrong without which the rest is in order; if
    either will do, the one that a flipped bit explains or that fits into the hole it would leave.
    """
    if first.start == before or second.start < before:
        return False
    hole = second.start - before
    blame_first = first.flips_into(before, second.start) + 2 * (hole == first.end - first.start) + (hole == 0)
    if after is None:
        return blame_first > second.flips_into(first.end, None)
    if (first.end <= after) != (second.end <= after):
        return second.end <= after
    hole = after - first.end
    blame_second = second.flips_into(first.end, after) + 2 * (hole == second.end - second.start) + (hole == 0)
    return blame_first >= blame_second


@dataclass(slots=True)
class OffsetOrder:
    """Follows a log batch by batch: `end` is where its offsets end, without batches that are out of order."""

    end: int
    _before: int = 0
    _last: Span | None = None
    _position: int = -1

    def take(self, headers: BatchHeaders, start: int, holds: Callable[[int], bool]) -> npt.NDArray[np.bool_]:
        """Take in the next batches, whose positions count from `start`; True for those in order.

        `holds`: does the checksum of the batch at this position match? Asked only of batches out of order.
        """
        starts, deltas = headers.base_offset, headers.last_offset_delta
        # An offset beyond what a log can hold ends it there, and a reader of the batch gets an error.
        ends = np.minimum(starts, MAX_OFFSET - np.maximum(deltas, 0)) + deltas + 1
        positions = headers.position + start
        ordered = np.ones(len(starts), np.bool_)
        if starts[0] >= self.end and (starts[1:] >= ends[:-1]).all():
            self._before = int(ends[-2]) if len(ends) > 1 else self.end
            self._follow(Span(int(starts[-1]), int(ends[-1])), int(positions[-1]))
            return ordered
        newest = -1
        for row, span in enumerate(map(Span, starts.tolist(), ends.tolist())):
            position = int(positions[row])
            if span.start >= self.end:
                self._before = self.end
            elif self._takes_over(span, position, int(starts[row + 1]) if row + 1 < len(starts) else None, holds):
                if newest >= 0:
                    ordered[newest] = False
            else:
                ordered[row] = False
                continue
            self._follow(span, position)
            newest = row
        return ordered

    def _follow(self, span: Span, position: int) -> None:
        self._last, self._position, self.end = span, position, span.end

    def _takes_over(self, span: Span, position: int, after: int | None, holds: Callable[[int], bool]) -> bool:
        """True if the batch before this one is out of order, and not this one."""
        if self._last is None or span.start < self._before or not holds(position):
            return False
        return not holds(self._position) or first_is_wrong(self._before, self._last, span, after)


WINDOW_BYTES = 1 << 20
"""Bytes read and decoded at once: decoding has room for whatever a window of this size decompresses to."""
_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """A position where a walk met no sound batch.

    * `position`; `size`: of the batch at it, 0 if no batch can be framed
    * `offset`: the first missing offset, as far as it can be known
    * `final`: nothing that looks like a batch follows
    * `stop`: why the walk stopped (see `BatchWalk`), empty for a batch that is framed; `wrong_crc`: it is its checksum
    """

    position: int
    size: int
    offset: int
    reason: str
    final: bool
    stop: str = ""
    wrong_crc: bool = False

    @property
    def structural(self) -> bool:
        """True if it is no batch at all, in contrast to one with wrong contents."""
        return not self.size

    @property
    def unwritten(self) -> bool:
        """True if a broker that is writing, or was killed while writing, leaves this at the end of a log."""
        return self.final and (self.structural or self.wrong_crc)


class Resumed(NamedTuple):
    position: int
    offset: int


def sound_windows(
    file: SegmentFile,
    start: int,
    expected: int,
    *,
    decide: Callable[[Damage], bool],
    resumed: Callable[[Damage, int, int | None], None] | None = None,
    end: int | None = None,
    limit: int | None = None,
    window_bytes: Callable[[], int] = lambda: WINDOW_BYTES,
) -> Iterator[Window]:
    """Yield windows of sound batches from position `start`, in file order, up to the first that begins at offset `end`.

    `expected`: the least offset; `limit`: the next segment's base, which no offset reaches, None if unknown. A window
    without batches comes last if the next batch begins at or after `end`.

    `decide` returns True to go on after damage, False to end in front of it, or raises; `resumed` is called with the
    damage, and position and offset of the next sound batch: those of the file's end and `limit` without one.
    """
    position, offset = start, expected
    while True:
        damage: Damage | None = None
        walk = BatchWalk(file, position, window_bytes)
        for window in walk:
            count, damage = _sound(window, file, offset, end, limit)
            if count:
                offset = int(window.headers.next_offset[count - 1])
                yield window if count == len(window.headers) else window.select(slice(count))
            if damage is not None:
                break
            if count < len(window.headers):
                yield window.select(slice(0))
                return
            if end is not None and offset >= end:
                return
        else:
            if walk.stop == "end":
                return
            damage = _no_batch(file, walk, offset)
        if not decide(damage):
            return
        following = resume(file, damage.position, offset, limit, size=damage.size)
        if resumed is not None:
            resumed(damage, *(following or (file.size, limit)))
        if following is None:
            return
        position = following.position


def _no_batch(file: SegmentFile, walk: BatchWalk, offset: int) -> Damage:
    """Describe the bytes in front of which a walk stopped: no batch, one of an unknown format, or a long one."""
    header, unknown = file.header_at(walk.end), file.unknown_format_at(walk.end)
    size = header.size if header is not None else int(unknown.size[0]) if unknown is not None else 0
    if not size:
        return Damage(walk.end, 0, offset, walk.reason, True, walk.stop)
    final = file.header_at(walk.end + size) is None
    return Damage(walk.end, size, offset, walk.reason, final, wrong_crc=header is not None)


def _sound(
    window: Window, file: SegmentFile, expected: int, end: int | None, limit: int | None
) -> tuple[int, Damage | None]:
    """Count the batches of a window to take: all that begin below `end`, or those in front of the damage."""
    headers = window.headers
    row, reason = _disordered(window, file, expected, limit)
    inside = len(headers)
    if end is not None:
        beyond = np.flatnonzero(headers.base_offset >= end)
        inside = int(beyond[0]) if len(beyond) else inside
    if row is not None and row >= inside:
        # Out of order at the range's end: it matters only if something of the range follows.
        follows = _following(window, file, row) if row == inside else None
        row = row if follows and end is not None and follows.start < end else None
    wrong = crc_failures(window.data, headers[: inside if row is None else row + 1])
    if len(wrong):
        row = int(wrong[0])
        reason = crc_message(headers, row)
    if row is None:
        return inside, None
    base = int(headers.base_offset[row])
    before = int(headers.next_offset[row - 1]) if row else expected
    plausible = bool(len(wrong)) and base >= before and (limit is None or base < limit)
    position = window.start + int(headers.position[row])
    size = int(headers.size[row])
    final = file.header_at(position + size) is None
    return row, Damage(position, size, base if plausible else before, reason, final, wrong_crc=bool(len(wrong)))


def _disordered(window: Window, file: SegmentFile, expected: int, limit: int | None) -> tuple[int | None, str]:
    """The first batch of a window whose header or offsets cannot be right, and why."""
    headers = window.headers
    base, following = headers.base_offset, headers.next_offset
    before = np.concatenate(([expected], following[:-1]))
    rules = header_rules(headers)
    odd = np.logical_or.reduce([broken for broken, _ in rules])
    beyond = following > limit if limit is not None else np.zeros(len(base), np.bool_)
    back = base < before
    last = len(base) - 1
    after = _following(window, file, last)
    overlapped = after is not None and after.start < following[last]
    wrong = odd | beyond | back
    if not wrong.any() and not overlapped:
        return None, ""
    row = int(np.argmax(wrong)) if wrong.any() else last + 1
    if row <= last and odd[row]:
        return row, next(message for broken, message in rules if broken[row])
    if row <= last and beyond[row]:
        return row, f"expected offsets below {limit}, where the next segment begins; found {int(following[row]) - 1}"
    second = after if row > last else Span(int(base[row]), int(following[row]))
    if row and second is not None:
        first = Span(int(base[row - 1]), int(following[row - 1]))
        third = _following(window, file, row)
        if first_is_wrong(int(before[row - 1]), first, second, limit if third is None else third.start):
            wanted = f"expected a batch below offset {second.start}, where the next one begins"
            return row - 1, f"{wanted}; found offset {first.start}"
    if row > last:
        return None, ""
    return row, f"expected a batch at offset {int(before[row])} or above; found offset {int(base[row])}"


def _following(window: Window, file: SegmentFile, row: int) -> Span | None:
    """Return the offsets of the batch after a row, if it is of magic 2; `row` may be the one after the window."""
    headers = window.headers
    if row + 1 < len(headers):
        return Span(int(headers.base_offset[row + 1]), int(headers.next_offset[row + 1]))
    last = len(headers) - 1
    position = window.start + int(headers.position[last] + headers.size[last])
    header = file.header_at(position)
    if header is not None and row > last:
        header = file.header_at(position + header.size)
    if header is None or header.magic != MAGIC:
        return None
    return Span(header.base_offset, header.base_offset + header.last_offset_delta + 1)


def resume(file: SegmentFile, position: int, expected: int, limit: int | None, *, size: int = 0) -> Resumed | None:
    """Find the next sound batch after damage at `position`, whose offsets are at least `expected`; None: there is none.

    `size`: of the damaged batch by its own length field, 0 if that cannot be.
    """
    greatest = MAX_OFFSET if limit is None else limit - 1
    header = file.header_at(position + size) if size else None
    if header is not None:
        # Of compressed messages of old formats the header tells the last offset only.
        last = header.base_offset + header.last_offset_delta
        if expected <= header.base_offset <= last <= greatest and file.crc_holds(position + size, header):
            return Resumed(position + size, header.base_offset)
    start = position + 1
    while start + HEADER_BYTES <= file.size:
        data = file.read(start, _SEARCH_BYTES)
        if len(data) < HEADER_BYTES:
            return None
        for candidate in _candidates(data, file.size - start, expected, greatest):
            header = file.header_at(start + candidate)
            if header is not None and file.crc_holds(start + candidate, header):
                return Resumed(start + candidate, header.base_offset)
        start += len(data) - HEADER_BYTES + 1
    return None


def _candidates(data: bytes, left: int, expected: int, greatest: int) -> list[int]:
    """Return where in `data` a header is that a writer may have written; `left`: bytes to the file's end."""
    raw = np.frombuffer(data, np.uint8)
    count = len(raw) - HEADER_BYTES + 1
    likely = np.flatnonzero(
        (raw[MAGIC_POSITION : MAGIC_POSITION + count] == MAGIC)
        & (raw[CRC_START : CRC_START + count] == 0)
        & (raw[CRC_START + 1 : CRC_START + 1 + count] < 0x80)
    )
    if not len(likely):
        return []
    rows = np.lib.stride_tricks.sliding_window_view(raw, HEADER_BYTES)[likely].view(HEADER_DTYPE)[:, 0]
    size = rows["length"].astype(np.int64) + LOG_OVERHEAD
    base, delta = rows["base_offset"].astype(np.int64), rows["last_offset_delta"].astype(np.int64)
    records = rows["count"].astype(np.int64)
    possible = (size >= HEADER_BYTES) & (size <= left - likely) & (base >= expected) & (delta >= 0)
    possible &= (records >= 0) & (records <= delta + 1) & ((rows["attributes"].astype(np.int64) & 7) < len(CODECS))
    # Without a sum, which could overflow: these bytes may be no batch.
    possible &= base <= greatest - np.maximum(delta, 0)
    positions: list[int] = likely[possible].tolist()
    return positions
