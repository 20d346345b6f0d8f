"""Create objects that are not journal entries, even if responses are lost, and read objects that may not exist."""

from __future__ import annotations

from sparklog.errors import NotFound, Unavailable
from sparklog.log.journal.clocks import Env
from sparklog.storage.retries import Backoff
from sparklog.storage.store import Store


def read_if_there(store: Store, key: str) -> bytes | None:
    """Return an object, or None if it does not exist."""
    try:
        return store.get(key)
    except NotFound:
        return None


def create_or_read(store: Store, key: str, data: bytes, env: Env) -> bytes | None:
    """Create an object and return None, or return the bytes of the existing object.

    A store may also report that the object exists in two other cases. If an earlier request of this process succeeded
    but its response was lost, the stored bytes equal `data`. If an object store rejected a conditional write because of
    a conflict, the object may not exist. It is then created again. Raises `Unavailable` if the object cannot be read
    for 90 s.
    """
    backoff = Backoff(env)
    while not store.create(key, data):
        try:
            return store.get(key)
        except NotFound:
            if not backoff.wait():
                raise Unavailable(f"{key} in {store.location} exists, but cannot be read; try again later") from None
    return None
