"""Input in runs of whole lines: as much as there is, but not waiting for more than `linger_s` once something is there.

So `sparklog produce < file` appends megabytes at a time, while lines that trickle in from a pipe or are typed are
appended within a second.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

READ_BYTES = 1 << 20


def line_runs(fd: int, *, run_bytes: int, linger_s: float, clock: Callable[[], float]) -> Iterator[bytes]:
    """Runs of whole lines read from a file descriptor, each at least one line; the last may lack its newline.

    A run ends when it has `run_bytes` or when `linger_s` have passed on `clock` since its first byte came. An interrupt
    gives the whole lines that are held, then goes on to the caller.
    """
    held = bytearray()
    deadline = 0.0
    try:
        while True:
            if held and (len(held) >= run_bytes or not _ready(fd, deadline - clock())):
                if run := _take_lines(held):
                    yield run
                deadline = clock() + linger_s
                # One line longer than a run: wait for its end.
                run_bytes = max(run_bytes, 2 * len(held))
            data = os.read(fd, READ_BYTES)
            if not data:
                break
            if not held:
                deadline = clock() + linger_s
            held += data
    except KeyboardInterrupt:
        if run := _take_lines(held):
            yield run
        raise
    if held:
        yield bytes(held)


def _take_lines(held: bytearray) -> bytes:
    """Take the whole lines out of `held`; what is left has no newline."""
    end = held.rfind(b"\n") + 1
    run = bytes(held[:end])
    del held[:end]
    return run


def _ready(fd: int, wait_s: float) -> bool:
    """Whether a read would not block, waiting at most `wait_s` for that. Regular files are always ready."""
    if wait_s <= 0:
        return False
    try:
        return bool(select.select([fd], [], [], wait_s)[0])
    except (OSError, ValueError):
        # Not something select knows here (Windows pipes): read, and block if it must.
        return True
