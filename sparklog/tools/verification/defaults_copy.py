"""Check the copies of root defaults. The copies are stored outside the journal, so that the loss of the journal is
detected.
"""

from __future__ import annotations

from sparklog.errors import NotFound
from sparklog.log.journal.names import DEFAULTS_FOLDER, commit_key, entry_number
from sparklog.log.state.root_defaults import DEFAULTS, ID
from sparklog.storage.store import Store
from sparklog.tools.verification.checked_logs import CheckedLog
from sparklog.tools.verification.findings import MISSING, CheckCounts

RUN_REPAIR = "run sparklog repair --execute, which restores the entry from the copy"
DELETE_COPY = "delete the copy; the next job run writes a new copy"


def read_defaults_copy(store: Store) -> CheckedLog:
    """Compare the copies of root default entries with the entries."""
    log = CheckedLog(store, DEFAULTS_FOLDER, "copy", DEFAULTS.noun)
    for info in store.list(f"{DEFAULTS_FOLDER}/"):
        number = entry_number(info.key)
        if number is None:
            continue
        try:
            _compare(log, info.key, number)
        except NotFound:
            # A job has replaced this copy since the copies were listed.
            continue
    return log


def _compare(log: CheckedLog, key: str, number: int) -> None:
    copy, data = log.read(key, number, DEFAULTS.decode, CheckCounts(entries=1), remedy=DELETE_COPY)
    entry_key = commit_key(DEFAULTS.prefix(ID), number)
    if copy is None:
        return
    try:
        if log.store.get(entry_key) != data:
            log.report(DEFAULTS.noun, key, f"the copy differs from entry {number} of the root defaults", DELETE_COPY)
    except NotFound:
        message = f"entry {number} of the root defaults is missing, but its copy {key} exists; jobs and writers fail"
        log.report(MISSING, entry_key, message, RUN_REPAIR)
