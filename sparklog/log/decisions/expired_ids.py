"""Registers of expired transactional ids: the newest entry of each, for good.

The number of an entry is never used twice: a process that was stopped for weeks between two requests would create,
delete or take for the newest what another one has put there since. So what is kept of an id is its newest entry, as it
was written. It is a checkpoint of the id's journal in another place: who opens the journal goes on from there, with the
next number, the same chain, and what the replay rule needs.

The ids are spread over sixteen registers. Each is the journal of an id that sparklog has reserved, so backups, copies
and checks treat it as any other journal of decisions. Nothing goes from a register.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from sparklog.format import crc32c
from sparklog.log.decisions.decision import DECISION_JSON, DECISIONS, Decisions, keep
from sparklog.log.journal.entry_log import EntryLog
from sparklog.log.journal.seen_state import RootAccess

ONE_WRITE = "one-write:"
"""Ids of writes without an id begin so. A process uses one while it works; its log is deleted a week after that."""
REGISTER = "expired-ids:"
OF_SPARKLOG = (ONE_WRITE, REGISTER)


def register_of(transactional_id: str) -> str:
    """Return the id of the register in which an id is kept once it has expired."""
    return REGISTER + hashlib.sha256(transactional_id.encode()).hexdigest()[0]


def entry_in(register: Decisions, transactional_id: str) -> Decisions | None:
    """Return the newest entry of an expired id; None if it is not in the register. `Corrupt` if it is damaged."""
    text = register.expired.get(transactional_id)
    if text is None:
        return None
    data = text.encode()
    item = DECISION_JSON.fields(data, f"{DECISIONS.prefix(register.id)} ({transactional_id})")
    return DECISION_JSON.from_json(item, crc=crc32c.crc32c(data), nbytes=len(data))


def kept_entry(root: RootAccess, transactional_id: str) -> Decisions | None:
    """Read the register of an id, and return the id's newest entry there; None of one that cannot expire."""
    if transactional_id.startswith(OF_SPARKLOG):
        return None
    register = EntryLog(root, DECISIONS, register_of(transactional_id))
    return entry_in(register.refresh(), transactional_id)


def keep_newer(register: Decisions, entries: Mapping[str, Decisions]) -> Decisions | None:
    """Put the newest entries of expired ids into a register, but those that it has, or has newer ones of."""

    def is_newer(entry: Decisions) -> bool:
        before = entry_in(register, entry.id)
        return before is None or before.number < entry.number

    texts = {name: DECISION_JSON.encode(entry).decode() for name, entry in entries.items() if is_newer(entry)}
    return keep(register, texts)
