"""A store on a mount that takes no file: whatever would write is refused, the clock of a local store included."""

from __future__ import annotations

from sparklog.errors import Unavailable
from sparklog.storage.store import Store
from sparklog.testing.wrapper_stores import HookedStore

WRITING = ("create", "overwrite", "writer", "delete", "delete_many", "now_ms")


def read_only(store: Store) -> HookedStore:
    """Return the store as a read-only mount shows it: reading works, anything else is `Unavailable`."""

    def refuse(verb: str, key: str) -> None:
        if verb in WRITING:
            raise Unavailable(f"{verb} {key}: read-only file system")

    return HookedStore(store, before=refuse, writable=False)
