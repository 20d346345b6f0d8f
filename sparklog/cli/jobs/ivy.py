"""Keep the report of Spark's Ivy from standard error: 130 to 290 lines for a jar, which no setting of Spark silences.

The JVM that a session starts has the standard error of this process. So it is started with a pipe in its place, and
what comes out of that is passed on, without the report, as long as the JVM lives.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

FIRST, LAST = b":: loading settings ::", b" artifacts copied, "
"""The first line of a report begins so, and the last one holds this, if all was found."""
REASON = b"Exception in thread"
"""The line that says what was not found begins so."""


def without_report(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that are not of a report of Ivy's, and of one that failed the reason."""
    inside = False
    for line in lines:
        if line.startswith(FIRST):
            inside = True
        elif inside and LAST in line:
            inside = False
        elif not inside or line.startswith(REASON):
            yield line


@contextmanager
def without_ivy() -> Iterator[None]:
    """Filter the standard error of processes that are started inside of this."""
    reading, writing = os.pipe()
    before = os.dup(2)
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, os.dup(before)), name="sparklog-ivy", daemon=True)
    passing.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def _pass_on(reading: int, target: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(target, "wb", buffering=0) as shown:
        for line in without_report(lines):
            shown.write(line)
