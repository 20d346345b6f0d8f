"""Create an object that is no entry of a journal, whatever the store answers, and read what may not be there."""

from __future__ import annotations

from sparklog.errors import NotFound, Unavailable
from sparklog.log.journal.clocks import Env
from sparklog.storage.retries import Backoff
from sparklog.storage.store import Store


def read_if_there(store: Store, key: str) -> bytes | None:
    """Return an object; None if there is none."""
    try:
        return store.get(key)
    except NotFound:
        return None


def create_or_read(store: Store, key: str, data: bytes, env: Env) -> bytes | None:
    """Create an object and return None; if one is there, return its bytes.

    "It exists" proves nothing. It may be our own success, whose answer was lost: the bytes are `data` then. Or it was a
    conflict on an object store, after which nothing is there: it is created again. `Unavailable` if the object stays
    unreadable for 90 s.
    """
    backoff = Backoff(env)
    while not store.create(key, data):
        try:
            return store.get(key)
        except NotFound:
            if not backoff.wait():
                raise Unavailable(f"{key} in {store.location} exists and cannot be read; try again later") from None
    return None
