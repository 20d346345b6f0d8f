"""Numbers beyond a gap: no reader gets to them.

A reader begins behind the newest checkpoint and ends at the first number that is missing. What lies beyond is either
the rest of a log that lost objects, or was made by a process that outlived its root and went on with its own numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparklog.errors import NotFound
from sparklog.log.journal.names import commit_key
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import LOG, Finding


MOST_UNREACHED = 20
REMEDY = "restore what is missing before it, or delete it if a process that outlived a restored root made it"


def log_end(numbers: Sequence[int], checkpoint: int) -> int:
    """The last of `numbers` (ascending) that readers get to, who begin behind `checkpoint` (-1: there is none).

    All numbers count as reached where nothing lies below the gap.
    """
    end = checkpoint
    for number in numbers:
        if number > end + 1:
            return end if end >= 0 else numbers[-1]
        end = max(end, number)
    return end


def unreached(store: Store, prefix: str, what: str, numbers: Sequence[int], end: int) -> Iterator[Finding]:
    """Name what lies beyond the end of a log. `NotFound` if the gap was one of the listing alone: list again."""
    beyond = [number for number in numbers if number > end]
    if beyond and store.stat(commit_key(prefix, end + 1)) is not None:
        raise NotFound(f"{what} {end + 1} came to be while the log was listed")
    for number in beyond[:MOST_UNREACHED]:
        message = f"{what} {number} lies beyond a gap: {what} {end + 1} is not there, and no reader goes on behind it"
        yield Finding(LOG, commit_key(prefix, number), message, REMEDY)
