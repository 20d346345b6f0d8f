"""Unreferenced files of a root whose logs are whole: set aside where the vacuum would be right to delete them.

| object                  | is set aside if                                                                           |
|-------------------------|-------------------------------------------------------------------------------------------|
| data file, its indexes and filters | its writer had read a version below the retention floor                        |
| slice table             | no checkpoint names it, a newer checkpoint is there, and it is older than an hour          |
| commit                  | the commits after it are not there, and no version needs it                               |

Uploads in flight, temporary files, rests of probes and files that sparklog gives no such name stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparklog.log.journal.names import LOG_FOLDER, checkpoint_version, is_checkpoint_table_name, is_topic_name
from sparklog.retention.vacuum_plan import HOUR_MS, data_file
from sparklog.storage.store import ObjectInfo
from sparklog.tools.repair.cures import Cure
from sparklog.tools.verification.findings import Orphan, Report
from sparklog.tools.verification.topic_log import CheckedTopic

HOW = "set aside: no version names it"


def set_asides(report: Report, topics: Mapping[str, CheckedTopic]) -> Iterator[Cure]:
    """Yield what to set aside; nothing where a log is damaged, for that may name files."""
    if any(f"/{LOG_FOLDER}/" in finding.file for finding in report.findings):
        return
    for orphan in report.orphans:
        if _is_free(orphan, topics.get(orphan.file.partition("/")[0])):
            yield Cure(orphan.file, HOW, drops=(orphan.file,))


def _is_free(orphan: Orphan, log: CheckedTopic | None) -> bool:
    name, _, below = orphan.file.partition("/")
    if log is None or log.head is None or not is_topic_name(name):
        return False
    if below.startswith(f"{LOG_FOLDER}/checkpoints/"):
        table = below.rsplit("/", 1)[-1]
        is_old = orphan.age_ms > HOUR_MS and int(table[:20]) < log.newest_checkpoint
        return is_checkpoint_table_name(table) and is_old
    if below.startswith(f"{LOG_FOLDER}/"):
        version = checkpoint_version(below)
        return version is not None and version < log.first
    file = data_file(name, ObjectInfo(orphan.file, orphan.nbytes, 0))
    return file is not None and file.read_version < log.head.floor
