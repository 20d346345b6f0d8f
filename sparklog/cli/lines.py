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

    A run ends when it has `run_bytes` or when `linger_s` have passed on `clock` since its first byte came.
    """
    held: list[bytes] = []
    size = 0
    deadline = 0.0
    while True:
        if held and (size >= run_bytes or not _ready(fd, deadline - clock())):
            run, rest = _cut(b"".join(held))
            held, size = [rest] if rest else [], len(rest)
            if run:
                yield run
            deadline = clock() + linger_s
            if size >= run_bytes:
                # One line longer than a run: wait for its end.
                run_bytes = 2 * size
        data = os.read(fd, READ_BYTES)
        if not data:
            break
        if not held:
            deadline = clock() + linger_s
        held.append(data)
        size += len(data)
    if held:
        yield b"".join(held)


def _cut(data: bytes) -> tuple[bytes, bytes]:
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _ready(fd: int, wait_s: float) -> bool:
    """Whether a read would not block, waiting at most `wait_s` for that. Regular files are always ready."""
    if wait_s <= 0:
        return False
    try:
        return bool(select.select([fd], [], [], wait_s)[0])
    except (OSError, ValueError):
        # Not something select knows here (Windows pipes): read, and block if it must.
        return True
