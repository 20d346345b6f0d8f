"""Read the files beside a data file that only save work: filters of keys, and indexes of sealed segments.

All they say is in the data file as well. So one that cannot be read fails no read: the data file is read without it.
"""

from __future__ import annotations

import logging

from sparklog.errors import NotFound, SparklogError
from sparklog.storage.store import Store

_LOG = logging.getLogger("sparklog.log")
_warned: set[str] = set()
"""Stores of which this process has warned."""


class Unreadable(Exception):  # noqa: N818
    """Such a file is there, as far as is known, and cannot be read now."""


def read_helper_file(store: Store, key: str, length: int | None = None) -> bytes | None:
    """Return the file, up to `length` bytes; None: there is none. `Unreadable`, not for good, after a warning."""
    try:
        return store.get(key, 0, length)
    except NotFound:
        return None
    except SparklogError as error:
        if store.location not in _warned:
            _warned.add(store.location)
            _LOG.warning("reading without %s, and other such files that fail: more is read than needed: %s", key, error)
        raise Unreadable from None
