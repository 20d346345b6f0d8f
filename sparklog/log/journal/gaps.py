"""Detect gaps in a journal, and create the error message for a gap.

A gap is a missing number below an existing number.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from sparklog.log.journal.documents import document_of
from sparklog.storage.store import Store


def missing_numbers(store: Store, missing: int, listed: Sequence[int]) -> str:
    """Return the error message for a gap that begins at `missing`. `listed` contains the numbers in a listing."""
    later = [number for number in listed if number > missing]
    numbers = f"entry {missing} of the log is missing"
    if later and later[0] > missing + 1:
        numbers = f"entries {missing} to {later[0] - 1} of the log are missing"
    if later:
        numbers += (
            f", although entry {later[0]} exists"
            if len(later) == 1
            else f", although entries {later[0]} to {later[-1]} exist"
        )
    return (
        f"{numbers}, so the log cannot be read after the gap, and cannot be written. If the root is still being "
        f"copied, wait until the copy is complete. Otherwise run sparklog repair {shlex.quote(store.location)}, which "
        "reports whether the lost objects can be rebuilt, or restore them from a backup"
    )


def follows(data: bytes, crc: int) -> bool:
    """Return True if an object of a journal follows the entry with CRC-32C `crc`."""
    return _previous(data) == crc


def follows_other(data: bytes, crc: int) -> bool:
    """Return True if an object of a journal follows an entry with another CRC-32C than `crc`."""
    return _previous(data) not in (None, crc)


def _previous(data: bytes) -> object:
    """Return the `prevCrc` of an object, or None if the object is corrupt.

    Readers of the object report the corruption.
    """
    try:
        return json.loads(document_of(data))["prevCrc"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
