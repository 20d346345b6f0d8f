"""Classify unreferenced files: leftover and unfinished files of sparklog, and unrecognized files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sparklog.log.journal import names as naming
from sparklog.log.journal.probe_results import is_note, is_probe_result
from sparklog.maintenance.journals import JOURNAL_IN
from sparklog.retention.vacuum_plan import data_file
from sparklog.storage.store import PROBE_FOLDER, ObjectInfo, Store, key_kind
from sparklog.tools.verification.findings import UnreferencedFile
from sparklog.tools.verification.topic_log import CheckedTopic


def classify_unreferenced(
    store: Store,
    listing: Sequence[ObjectInfo],
    referenced: Collection[str],
    topics: Mapping[str, CheckedTopic],
    now_ms: int,
) -> tuple[tuple[UnreferencedFile, ...], tuple[UnreferencedFile, ...]]:
    """Return the unreferenced files of a listing: first the files of sparklog, then unrecognized files.

    `now_ms` is the time of the store's clock. Files that were written after the listing are not returned.
    """

    def unreferenced_file(info: ObjectInfo, why: str) -> UnreferencedFile:
        return UnreferencedFile(info.key, info.size, max(0, now_ms - info.modified_ms), why)

    candidates = (info for info in listing if info.key not in referenced and not _is_permanent(info.key))
    explained = [(info, _explain(info, topics)) for info in candidates]
    unreferenced = [unreferenced_file(info, why) for info, why in explained if why is not None]
    unreferenced += [
        unreferenced_file(info, "temporary file of a write that is in progress or was interrupted")
        for info in store.temporary_files("")
    ]
    foreign = [
        unreferenced_file(info, "sparklog does not use file names of this form")
        for info, why in explained
        if why is None
    ]
    return tuple(unreferenced), tuple(foreign)


def _is_permanent(key: str) -> bool:
    """Return True if the file is a probe result, a note about a lost commit, or an object that was set aside."""
    return is_probe_result(key) or is_note(key) or key.startswith(f"{naming.REPAIR_FOLDER}/")


def _explain(info: ObjectInfo, topics: Mapping[str, CheckedTopic]) -> str | None:
    """Return a possible reason why an unreferenced file exists, or None if sparklog does not use file names of this
    form.
    """
    owner, _, path = info.key.partition("/")
    if owner == PROBE_FOLDER:
        return "a probe is running or was interrupted"
    kind = key_kind(info.key)
    if owner in JOURNAL_IN:
        return (
            "an entry or copy that has just been written"
            if kind in ("commit", "checkpoint") and naming.LOG_FOLDER in path
            else None
        )
    topic = naming.key_topic(info.key)
    if topic is None:
        return None
    log = topics.get(topic)
    if path.startswith(f"{naming.LOG_FOLDER}/"):
        if kind == "checkpoint" and naming.is_checkpoint_table_name(info.key.rsplit("/", 1)[-1]):
            return "slice table without a checkpoint: its writer has not written the checkpoint yet, or stopped"
        if kind == "commit" and log is not None and int(info.key[-25:-5]) < log.first:
            return "commit before a gap, which no version needs; the vacuum deletes it"
        return (
            "an object that has just been written or deleted"
            if kind == "commit" or info.key.endswith(".json")
            else None
        )
    file = data_file(info)
    if file is None:
        return None
    if log is None or log.state is None:
        return "the state of its topic cannot be rebuilt"
    if log.state.deleted:
        return "its topic was deleted; the vacuum deletes the file"
    if file.read_version < log.state.floor:
        return "replaced, expired or never committed; the vacuum deletes the file"
    return "upload in progress, or left by a writer that stopped; the vacuum deletes the file later"
