"""Repair a root: verify it, apply fixes, and repeat until verification finds nothing to fix.

The repair takes up to `MAX_ROUNDS` rounds, because a fix can make other fixes possible. For example, a checkpoint can
only be rebuilt after a damaged commit has been fixed. Readers, writers and jobs can run concurrently: a fixed object
contains its original bytes or is not required by readers, and the vacuum may delete all objects that are set aside.

If no log is damaged, unreferenced files that the vacuum may delete are set aside:

| object                             | is set aside if                                                                |
|------------------------------------|--------------------------------------------------------------------------------|
| data file, its indexes and filters | its writer read a version below the retention floor                            |
| slice table                        | it is older than an hour, a later checkpoint exists, and it has no checkpoint  |
| commit                             | the next commits have been deleted, and no version needs the commit            |

Uploads in progress, temporary files, remainders of probes and unrecognized files are not changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sparklog.arguments import FUNCTION, NAMES, checked
from sparklog.common.settings import int64
from sparklog.errors import BadRequest, NotFound
from sparklog.format.checksums import SUFFIXES
from sparklog.log.journal import names as naming
from sparklog.log.journal.clocks import SYSTEM, Env, reading_clock_ms
from sparklog.log.state.history import History
from sparklog.log.topic.root import ROOT, Root
from sparklog.maintenance.journals import JOURNAL_IN
from sparklog.maintenance.work_items import Runner
from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, NOTHING, exists, missing, resolve, topics_at
from sparklog.retention.vacuum_plan import HOUR_MS, data_file
from sparklog.storage import open_store
from sparklog.storage.store import ObjectInfo, Store
from sparklog.tools.repair.commit_fixes import fix_missing_commit
from sparklog.tools.repair.file_fixes import FileFixes, fix_flipped_bits
from sparklog.tools.repair.fixes import Fix, Repaired, Repairer, RepairReport, is_blocked, remaining_findings
from sparklog.tools.repair.kafka_directory import repair_log_dir
from sparklog.tools.repair.log_fixes import (
    fix_checkpoint,
    fix_defaults,
    fix_document,
    fix_entry,
    is_log_object,
    state_at,
)
from sparklog.tools.verification.findings import Finding, Report, UnreferencedFile
from sparklog.tools.verification.run import Say, verify_root
from sparklog.tools.verification.topic_log import CheckedTopic, read_topic

MAX_ROUNDS = 6
BLOCKED = "a directory, a link or a special file has the name of this object; move it away and run repair again"


@checked(path=ROOT, topics=NAMES, index_interval_bytes=int64(1).or_none(), say=FUNCTION)
def repair(
    path: Root | Store | str | os.PathLike[str],
    *,
    topics: Sequence[str] = (),
    execute: bool = False,
    index_interval_bytes: int | None = None,
    say: Say = lambda line: None,
) -> RepairReport:
    """Rebuild damaged objects that `verify` reports, and list the damaged objects that must be restored from a backup.

    Args:
        path: a root, a topic's directory, or a Kafka log directory or partition directory whose broker is stopped.
        topics: names of the topics to repair. If empty, all topics are repaired.
        execute: apply the fixes. If False, no file is changed.
        index_interval_bytes: the value of `index.interval.bytes` of the brokers of a Kafka directory, if it is not the
            default.
        say: called with a line of text for each step.

    Returns:
        A report. `repaired` lists the changes that were or would be made. `sound` is True if no problems remain.

    Raises:
        NotFound: If `path` does not contain a log, or if a topic does not exist.
        Unavailable: If the store rejects a write. Fixes that were already applied are not reverted.

    Example:
        report = sparklog.repair("/data/log", execute=True)
        assert report.sound, report.left
    """
    location = None if isinstance(path, (Root, Store)) else resolve(os.fspath(path))
    if location is not None and location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        return repair_log_dir(
            location.path, topics=topics, execute=execute, index_interval_bytes=index_interval_bytes, say=say
        )
    if location is not None and location.kind == NOTHING and not exists(location):
        raise NotFound(missing(location))
    if index_interval_bytes is not None:
        raise BadRequest("index_interval_bytes only applies to Kafka directories; omit it for a root")
    if location is not None:
        return repair_root(open_store(location.root), topics=topics_at(location, topics), execute=execute, say=say)
    store = path.store if isinstance(path, Root) else path
    assert isinstance(store, Store)
    return repair_root(store, topics=topics, execute=execute, say=say)


def repair_root(
    store: Store,
    *,
    topics: Sequence[str] = (),
    execute: bool = False,
    runner: Runner | None = None,
    say: Say = lambda line: None,
    env: Env = SYSTEM,
) -> RepairReport:
    """Repair the root in `store`, or some of its topics, and set unreferenced files aside.

    If `execute` is False, no object is changed, and the report describes the fixes. Raises the same exceptions as
    `verify_root`, and `Unavailable` if the store rejects a write. Fixes that were already applied are not reverted.
    """
    folder = f"{time.strftime('%Y-%m-%dT%H-%M-%S', time.gmtime(env.wall_ms() / 1000))}-{env.new_id()}"
    repairer, applied = Repairer(store, folder), dict[str, Fix]()

    def verify(previous: Report | None) -> Report:
        confirmed = () if previous is None else previous.findings
        return verify_root(store, topics=topics, runner=runner, say=say, env=env, confirmed=confirmed)

    report: Report | None = None
    problems = -1
    for _ in range(MAX_ROUNDS):
        report = verify(report)
        problems = len(report.findings) if problems < 0 else problems
        planned = _RepairPlan(store, report, env).fixes(set_files_aside=not topics)
        fixes = [fix for fix in planned if not _was_attempted(fix, applied) and repairer.can_apply(fix)]
        applied |= {fix.key: fix for fix in fixes}
        if not execute or not fixes:
            break
        for fix in fixes:
            say(f"repairing {fix.key}")
            # If the vacuum has deleted the object in the meantime, the next verification detects it.
            with suppress(NotFound):
                repairer.apply(fix)
    else:
        report = verify(report)
    repaired = tuple(Repaired(fix.key, fix.how, repairer.copies.get(fix.key)) for fix in applied.values())
    fixed_files = [] if execute else [key for fix in applied.values() for key in fix.damaged]
    remaining = tuple(
        replace(finding, remedy=BLOCKED) if is_blocked(store, finding.file) else finding
        for finding in remaining_findings(report, fixed_files)
    )
    return RepairReport(store.location, execute, repaired, remaining, problems)


def _was_attempted(fix: Fix, applied: Mapping[str, Fix]) -> bool:
    """Return True if an earlier round attempted this fix. A fix that creates objects is attempted only once per key."""
    earlier = applied.get(fix.key)
    return earlier is not None and (earlier == fix or bool(fix.creates))


@dataclass
class _RepairPlan:
    """The fixes for the findings of one report."""

    store: Store
    report: Report
    env: Env
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    logs: dict[str, CheckedTopic] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for finding in self.report.findings:
            self.findings.setdefault(finding.file, []).append(finding)

    def fixes(self, *, set_files_aside: bool) -> Iterator[Fix]:
        """Yield the fixes, one per object.

        If `set_files_aside` is True, the entire root must have been verified, because another topic may reference a
        file.
        """
        fixes: dict[str, Fix] = {}
        for key in sorted(self.findings):
            fix = fix_flipped_bits(self.store, key, self.findings[key]) or self._log_fix(key)
            if fix is not None:
                previous_fix = fixes.get(fix.key, fix)
                # A fix that only creates copies does not change the damaged object.
                leaves_object = fix.size is None and not fix.drops
                fixes[fix.key] = replace(
                    previous_fix, damaged=previous_fix.damaged if leaves_object else (*previous_fix.damaged, key)
                )
        yield from fixes.values()
        remaining = set(self.findings).difference(fixes, *(fix.damaged for fix in fixes.values()))
        yield from self._file_fixes(sorted(remaining))
        if set_files_aside:
            names = {naming.key_topic(file.file) for file in self.report.unreferenced}
            topics = {name: self._log(name) for name in sorted(filter(None, names))}
            yield from unreferenced_file_fixes(self.report, topics)

    def _log_fix(self, key: str) -> Fix | None:
        if not is_log_object(key):
            return None
        folder = key.partition("/")[0]
        if folder in JOURNAL_IN:
            return fix_entry(self.store, key)
        if folder == naming.DEFAULTS_FOLDER:
            number = naming.entry_number(key)
            return None if number is None else fix_defaults(self.store, key, number)
        if f"/{naming.CHECKPOINT_FOLDER}/" in key:
            return fix_document(self.store, key) or fix_checkpoint(self.store, key, self.env)
        return fix_document(self.store, key) or fix_missing_commit(self.store, key)

    def _file_fixes(self, keys: Sequence[str]) -> Iterator[Fix]:
        """Yield the fixes of data files and their auxiliary files, using the topics that reference the data files."""
        damaged = {key: topic for key in keys if (topic := naming.key_topic(key)) is not None}
        topics = dict.fromkeys([*damaged.values(), *(naming.topic_names(self.store) if damaged else ())])
        for topic in topics:
            for file in self._log(topic).files if damaged else ():
                file_keys = (file.key, naming.filter_path(file.key), *map(file.index_key, SUFFIXES))
                damaged_keys = [key for key in file_keys if key in damaged]
                if damaged_keys:
                    history = History(self.store, topic)
                    versions = history.commits.version
                    latest = state_at(history, int(versions[-1])) if len(versions) else None
                    yield from FileFixes(self.store, file, latest).fixes(damaged_keys)
                    damaged = {key: owner for key, owner in damaged.items() if key not in damaged_keys}

    def _log(self, topic: str) -> CheckedTopic:
        if topic not in self.logs:
            self.logs[topic] = read_topic(self.store, topic, reading_clock_ms(self.store, self.env))
        return self.logs[topic]


def unreferenced_file_fixes(report: Report, topics: Mapping[str, CheckedTopic]) -> Iterator[Fix]:
    """Yield fixes that set unreferenced files aside. If a log is damaged, yield no fixes, because the log may reference
    the files.
    """
    if any(f"/{naming.LOG_FOLDER}/" in finding.file for finding in report.findings):
        return
    for unreferenced in report.unreferenced:
        key = unreferenced.file
        if _can_delete(unreferenced, topics.get(naming.key_topic(key) or "")):
            yield Fix(key, "set aside, because no version references it", drops=(key,))


def _can_delete(unreferenced: UnreferencedFile, log: CheckedTopic | None) -> bool:
    """Return True if the vacuum may delete an unreferenced file."""
    _, _, path = unreferenced.file.partition("/")
    if log is None or log.state is None:
        return False
    if path.startswith(f"{naming.LOG_FOLDER}/checkpoints/"):
        table = path.rsplit("/", 1)[-1]
        is_old = unreferenced.age_ms > HOUR_MS and int(table[:20]) < log.latest_checkpoint
        return naming.is_checkpoint_table_name(table) and is_old
    if path.startswith(f"{naming.LOG_FOLDER}/"):
        version = naming.entry_number(path)
        return version is not None and version < log.first
    file = data_file(ObjectInfo(unreferenced.file, unreferenced.nbytes, 0))
    return file is not None and file.read_version < log.state.floor
