"""A store on a mount that takes no file: whatever would write is refused, the clock of a local store included."""

from __future__ import annotations

from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore

WRITING = ("create", "overwrite", "write", "close", "delete", "now_ms")


class ReadOnly(FaultyStore):
    writable = False  # type: ignore[assignment]


def read_only(store: Store) -> ReadOnly:
    """The store as a read-only mount shows it: reading works, anything else is `Unavailable`."""

    def refuse(call: Call) -> Fault | None:
        return Fault(FaultKind.ERROR_BEFORE) if call.verb in WRITING else None

    return ReadOnly(store, refuse)
