"""Read the auxiliary files of a data file: key filters, and the indexes of sealed segments.

Auxiliary files contain no additional information. If an auxiliary file cannot be read, only the data file is read.
"""

from __future__ import annotations

import logging

from sparklog.common.warned import is_first_warning
from sparklog.errors import NotFound, SparklogError
from sparklog.storage.store import Store

_LOG = logging.getLogger("sparklog.log")


class Unreadable(Exception):  # noqa: N818
    """Raised if a file may exist but currently cannot be read."""


def read_auxiliary_file(store: Store, key: str, length: int | None = None) -> bytes | None:
    """Return the first `length` bytes of a file, or None if the file does not exist.

    If an error may be temporary, a warning is logged, and `Unreadable` is raised.
    """
    try:
        return store.get(key, 0, length)
    except NotFound:
        return None
    except SparklogError as error:
        if is_first_warning("unreadable auxiliary files", store.location):
            _LOG.warning(
                "cannot read %s, so more data is read than necessary (logged once for all such files): %s", key, error
            )
        raise Unreadable from None
