"""The copy of the root's defaults, apart from their journal, that tells lost defaults from none."""

from __future__ import annotations

from sparklog.errors import NotFound
from sparklog.log.journal.names import DEFAULTS_FOLDER, commit_key, entry_number
from sparklog.log.state.root_defaults import DEFAULTS, ID
from sparklog.storage.store import Store
from sparklog.tools.verification.checked_logs import CheckedLog
from sparklog.tools.verification.findings import MISSING, CheckCounts

RUN_REPAIR = "run sparklog repair --execute, which restores it from the copy"
DELETE_COPY = "delete the copy: the next run of a job makes another"


def read_defaults_copy(store: Store) -> CheckedLog:
    """Read the copies of entries of the root's defaults, and compare them with the entries."""
    log = CheckedLog(store, DEFAULTS_FOLDER, "copy", DEFAULTS.noun)
    for info in store.list(f"{DEFAULTS_FOLDER}/"):
        number = entry_number(info.key)
        if number is None:
            continue
        try:
            _compare(log, info.key, number)
        except NotFound:
            # A newer one has taken its place.
            continue
    return log


def _compare(log: CheckedLog, key: str, number: int) -> None:
    copy, data = log.take(key, number, DEFAULTS.decode, CheckCounts(entries=1), remedy=DELETE_COPY)
    entry_key = commit_key(DEFAULTS.prefix(ID), number)
    if copy is None:
        return
    try:
        if log.store.get(entry_key) != data:
            message = f"the copy is not what entry {number} of the root's defaults says"
            log.report(DEFAULTS.noun, key, message, DELETE_COPY)
    except NotFound:
        message = f"entry {number} of the root's defaults is not there, and {key} is its copy: jobs and writers refuse"
        log.report(MISSING, entry_key, message, RUN_REPAIR)
