"""Archives of expired transactional ids. They keep the latest entry of each id forever.

The number of an entry is never reused. Otherwise, a process that was stopped for weeks between two requests could
create a number that another process has used in the meantime, delete the entry of that process, or read this entry as
the latest one. Therefore, the latest entry of an expired id is archived as it was written. It is a checkpoint of the
id's journal that is stored in another journal. A process that opens the id's journal continues with the next number,
the same chain, and the registry entry that detects replayed batches.

The ids are distributed over sixteen archives. Each archive is the journal of an id that is reserved by sparklog, so
backups, copies and checks treat it like any other journal of decisions. Nothing is removed from an archive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from sparklog.format import crc32c
from sparklog.log.decisions.decision import DECISION_JSON, DECISIONS, Decisions, add_expired
from sparklog.log.journal.entry_log import EntryLog
from sparklog.log.journal.seen_state import RootAccess

ONE_WRITE = "one-write:"
"""The id prefix for writes for which the user specifies no id. A process reuses the generated id, and the journal of
the id is deleted a week later.
"""
ARCHIVE = "expired-ids:"
RESERVED = (ONE_WRITE, ARCHIVE)


def archive_of(transactional_id: str) -> str:
    """Return the id of the archive in which an expired transactional id is stored."""
    return ARCHIVE + hashlib.sha256(transactional_id.encode()).hexdigest()[0]


def entry_in(archive: Decisions, transactional_id: str) -> Decisions | None:
    """Return the latest entry of an expired id, or None if it is not archived.

    Raises `Corrupt` if the entry is damaged.
    """
    text = archive.expired.get(transactional_id)
    if text is None:
        return None
    data = text.encode()
    item = DECISION_JSON.fields(data, f"{DECISIONS.prefix(archive.id)} ({transactional_id})")
    return DECISION_JSON.from_json(item, crc=crc32c.crc32c(data), nbytes=len(data))


def archived_entry(root: RootAccess, transactional_id: str) -> Decisions | None:
    """Read the latest entry of an expired id from its archive.

    Return None if it is not archived or the id is reserved.
    """
    if transactional_id.startswith(RESERVED):
        return None
    archive = EntryLog(root, DECISIONS, archive_of(transactional_id))
    return entry_in(archive.refresh(), transactional_id)


def archive_newer(archive: Decisions, entries: Mapping[str, Decisions]) -> Decisions | None:
    """Archive the latest entries of expired ids, unless the archive already contains the same or later entries."""

    def is_newer(entry: Decisions) -> bool:
        before = entry_in(archive, entry.id)
        return before is None or before.number < entry.number

    texts = {name: DECISION_JSON.encode(entry).decode() for name, entry in entries.items() if is_newer(entry)}
    return add_expired(archive, texts)
