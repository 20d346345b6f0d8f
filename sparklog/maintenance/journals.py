"""The kinds of journals of a root, except topic logs. To add a kind of journal, add it to `JOURNALS`.

`verify` reads the journals of each kind, `repair` restores their entries from copies, and `retain` deletes old entries.
Backups have their own list, because a manifest has a field for each kind: decisions, groups and root defaults. Job
leases, run records and watermarks of tables are not backed up, because they belong to one root.
"""

from __future__ import annotations

from typing import Any

from sparklog.groups.group_state import GROUPS
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.chain import ids_of
from sparklog.log.journal.entry_log import Collected, EntryKind, collect_entries
from sparklog.log.state.root_defaults import DEFAULTS
from sparklog.log.state.table_watermarks import TABLE_WATERMARKS
from sparklog.log.topic.root import Root
from sparklog.maintenance.job_history import JOB_HISTORY
from sparklog.maintenance.leases import LEASES
from sparklog.maintenance.table_runs import TABLE_RUNS

JOURNALS: tuple[EntryKind[Any], ...] = (DECISIONS, GROUPS, LEASES, JOB_HISTORY, TABLE_RUNS, TABLE_WATERMARKS, DEFAULTS)
"""Kinds in the order in which `verify` reads them. Decisions reference group entries that were written earlier."""
JOURNAL_IN = {kind.folder: kind for kind in JOURNALS}
"""The kinds of journals by directory."""


def collect_journals(root: Root, kind: EntryKind[Any], *, keep_ms: int, now_ms: int, dry_run: bool) -> Collected:
    """Delete the old entries of all journals of a kind (see `collect_entries`)."""
    collected = Collected()

    def collect(id_: str) -> None:
        collected.add(collect_entries(root.engine.entries(kind, id_), now_ms, keep_ms=keep_ms, dry_run=dry_run))

    collected.collect_each(ids_of(root.store, kind, collected.failures), collect)
    return collected
