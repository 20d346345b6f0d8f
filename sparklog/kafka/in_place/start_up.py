"""Files that a log cleaner left behind when its broker died, read as Kafka's next start-up would leave them.

The cleaner writes `<base>.log.cleaned`, renames it to `.swap` when it is whole and durable, then renames what it
replaces to `.deleted`, then the `.swap` to its name. (Splitting an overflowing segment does the same with several new
segments, from the last to the first.) Kafka's rules (LogLoader), in this order:

1. `.deleted` and `.cleaned` do not count.
2. A `.swap` at or above the lowest `.cleaned` does not count: what it belongs to was not whole.
3. Segments from the lowest base of the `.log.swap` files up to their greatest next offset are replaced by them.
4. Every other `.swap` takes its name.

At every moment of a swap this reads the records that were there before or those that the cleaner kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from sparklog.kafka.in_place.segment_file import BatchWalk, SegmentFile, seek

_ANY_OFFSET = 2**63 - 1


class _Named(Protocol):
    @property
    def base(self) -> int: ...

    @property
    def path(self) -> str: ...


Segment = TypeVar("Segment", bound=_Named)


def after_start_up(
    logs: Sequence[Segment],
    swaps: Sequence[Segment],
    lowest_cleaned: int | None,
    next_offset: Callable[[Segment], int],
) -> list[Segment]:
    """The segments that count, by base: of `.log` files, `.log.swap` files and the lowest base of a `.cleaned`."""
    valid = [swap for swap in swaps if lowest_cleaned is None or swap.base < lowest_cleaned]
    if not valid:
        return sorted(logs, key=_base)
    low, high = min(swap.base for swap in valid), max(next_offset(swap) for swap in valid)
    bases = {swap.base for swap in valid}
    kept = [log for log in logs if not low <= log.base < high and log.base not in bases]
    return sorted([*kept, *valid], key=_base)


def _base(segment: _Named) -> int:
    return segment.base


def next_offset_of(segment: _Named) -> int:
    """The offset after a segment's last batch, its base without one. `FileNotFoundError` if it is gone."""
    found = segment.base
    with SegmentFile(segment.path) as file:
        for window in BatchWalk(file, seek(file, segment.base, _ANY_OFFSET)):
            found = max(found, int(window.headers.next_offset[-1]))
    return found
