"""Unreferenced files: what they may be, and whether they are sparklog's at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sparklog.log.journal.names import (
    GROUPS_FOLDER,
    LOG_FOLDER,
    TRANSACTIONS_FOLDER,
    is_checkpoint_table_name,
    is_topic_name,
)
from sparklog.retention.vacuum_plan import data_file
from sparklog.storage.store import ObjectInfo, Store, key_kind
from sparklog.tools.verification.findings import Orphan
from sparklog.tools.verification.topic_log import TopicLog


def sorted_out(
    store: Store, listing: Sequence[ObjectInfo], named: Collection[str], topics: Mapping[str, TopicLog], now_ms: int
) -> tuple[tuple[Orphan, ...], tuple[Orphan, ...]]:
    """Sort the unreferenced files of a listing: sparklog's, and foreign ones. `now_ms`: the store's clock.

    Files that were written meanwhile are neither.
    """
    orphans: list[Orphan] = []
    foreign: list[Orphan] = []
    for info in listing:
        if info.key in named:
            continue
        why = _why(info, topics)
        target = foreign if why is None else orphans
        target.append(
            Orphan(info.key, info.size, max(0, now_ms - info.modified_ms), why or "sparklog gives no such name")
        )
    orphans += [
        Orphan(info.key, info.size, max(0, now_ms - info.modified_ms), "temporary file: being written, or left")
        for info in store.temporary_files("")
    ]
    return tuple(orphans), tuple(foreign)


def _why(info: ObjectInfo, topics: Mapping[str, TopicLog]) -> str | None:
    """Say what an unreferenced file may be; None if it is not sparklog's."""
    owner, _, below = info.key.partition("/")
    if owner in (TRANSACTIONS_FOLDER, GROUPS_FOLDER):
        return "written just now" if key_kind(info.key) in ("commit", "checkpoint") and LOG_FOLDER in below else None
    if not below or not is_topic_name(owner):
        return None
    log = topics.get(owner)
    kind = key_kind(info.key)
    if below.startswith(f"{LOG_FOLDER}/"):
        if kind == "checkpoint" and is_checkpoint_table_name(info.key.rsplit("/", 1)[-1]):
            return "slice table that no checkpoint names: its writer died, or writes the checkpoint now"
        if kind == "commit" and log is not None and int(info.key[-25:-5]) < log.first:
            return "commits after it are not there and no version needs it: the vacuum removes it"
        return "written just now, or deleted since" if kind == "commit" or info.key.endswith(".json") else None
    file = data_file(owner, info)
    if file is None:
        return None
    if log is None or log.head is None:
        return "no state of its topic can be rebuilt"
    if log.head.deleted:
        return "its topic was deleted: the vacuum removes it"
    if file.read_version < log.head.floor:
        return "replaced, expired or never committed: the vacuum removes it"
    return "upload in flight, or left by a writer that died: the vacuum removes it later"
