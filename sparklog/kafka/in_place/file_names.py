"""Suffixes of the files that lie beside a `.log`, and of files that the cleaner or retention is at."""

from __future__ import annotations

import os

SWAP = ".swap"
DELETED = ".deleted"
CLEANED = ".cleaned"


def companion(log: str, suffix: str) -> str:
    """The file that belongs to a `.log` (`.log.swap`, `.log.deleted`) under another extension, as `index`.

    A swap renames the files of a segment one by one, the `.log` first, so the others may still be named `.swap`.
    """
    for state in (SWAP, DELETED):
        if log.endswith(state):
            return f"{log.removesuffix(state).removesuffix('.log')}.{suffix}{state}"
    plain = f"{log.removesuffix('.log')}.{suffix}"
    return plain if os.path.exists(plain) or not os.path.exists(plain + SWAP) else plain + SWAP
