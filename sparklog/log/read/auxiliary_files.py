"""Read the optional files of a data file: key filters, and indexes of sealed segments.

They only repeat what is in the data file. If one cannot be read, the data file is read without it.
"""

from __future__ import annotations

import logging

from sparklog.errors import NotFound, SparklogError
from sparklog.storage.store import Store

_LOG = logging.getLogger("sparklog.log")
_warned: set[str] = set()
"""Stores for which this process has logged the warning."""


class Unreadable(Exception):  # noqa: N818
    """The file may exist, but cannot be read at the moment."""


def read_auxiliary_file(store: Store, key: str, length: int | None = None) -> bytes | None:
    """Return the first `length` bytes of the file; None if it does not exist.

    Raises `Unreadable`, after a warning, for an error that may be temporary.
    """
    try:
        return store.get(key, 0, length)
    except NotFound:
        return None
    except SparklogError as error:
        if store.location not in _warned:
            _warned.add(store.location)
            _LOG.warning(
                "cannot read %s, so more data is read than necessary (logged once for all such files): %s", key, error
            )
        raise Unreadable from None
