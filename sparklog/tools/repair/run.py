"""Repairing a root: verify it, cure what a rebuild can cure, verify it again, until nothing more can be cured.

One cure may show the next damage, so this goes round a few times: a commit that can be read again shows what its
checkpoint should be. Nothing else has to stop meanwhile: a cured object has the bytes that it had, or is one that
readers do without, and what is set aside may be deleted by the rules of the vacuum.

Unreferenced files of a root whose logs are whole are set aside where the vacuum would be right to delete them:

| object                  | is set aside if                                                                           |
|-------------------------|-------------------------------------------------------------------------------------------|
| data file, its indexes and filters | its writer had read a version below the retention floor                        |
| slice table             | no checkpoint names it, a newer checkpoint is there, and it is older than an hour          |
| commit                  | the commits after it are not there, and no version needs it                               |

Uploads in flight, temporary files, rests of probes and files that sparklog gives no such name stay where they are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sparklog.errors import BadRequest, NotFound
from sparklog.format.checksums import SUFFIXES
from sparklog.log.journal.arguments import NAMES, checked, whole
from sparklog.log.journal.clocks import SYSTEM, Env, reading_clock_ms
from sparklog.log.journal.names import (
    CHECKPOINT_FOLDER,
    LOG_FOLDER,
    entry_number,
    filter_path,
    is_checkpoint_table_name,
    is_topic_name,
)
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.root import ROOT, Root
from sparklog.maintenance.work_items import Runner
from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, NOTHING, exists, missing, resolve, topics_at
from sparklog.retention.vacuum_plan import HOUR_MS, data_file
from sparklog.storage import open_store
from sparklog.storage.store import ObjectInfo, Store
from sparklog.tools.repair.cures import Cure, Healer
from sparklog.tools.repair.file_cures import FileCures, cure_flipped
from sparklog.tools.repair.kafka_directory import repair_log_dir
from sparklog.tools.repair.log_cures import KINDS, cure_checkpoint, cure_document, cure_entry, of_log, state_at
from sparklog.tools.repair.report import Repaired, RepairReport, left_after
from sparklog.tools.verification.findings import Finding, Orphan, Report
from sparklog.tools.verification.run import Say, verify_root
from sparklog.tools.verification.topic_log import CheckedTopic, read_topic

ROUNDS = 6


@checked(path=ROOT, topics=NAMES, index_interval_bytes=whole(1).or_none())
def repair(
    path: Root | Store | str | os.PathLike[str],
    *,
    topics: Sequence[str] = (),
    execute: bool = False,
    index_interval_bytes: int | None = None,
    say: Say = lambda line: None,
) -> RepairReport:
    """Cure what `verify` calls damage where a rebuild can, and name what only a backup brings back.

    Args:
        path: a root, a topic's folder, a Kafka log directory or one partition folder of it (its broker is stopped).
        topics: names; empty: all.
        execute: do it; without it nothing is changed.
        index_interval_bytes: of a Kafka directory, its config, if it was changed.
        say: gets a line for each step.

    Returns:
        A report: `repaired` is what was done or would be; `sound` is True if no damage is left, or would be.

    Raises:
        NotFound: there is no log, or no such topic.
        Unavailable: the store refuses a write; what was cured so far stays.

    Example:
        report = sparklog.repair("/data/log", execute=True)
        assert report.sound, report.left
    """
    place = None if isinstance(path, (Root, Store)) else resolve(os.fspath(path))
    if place is not None and place.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        interval = index_interval_bytes
        return repair_log_dir(place.path, topics=topics, execute=execute, interval=interval, say=say)
    if place is not None and place.kind == NOTHING and not exists(place):
        raise NotFound(missing(place))
    if index_interval_bytes is not None:
        raise BadRequest("index_interval_bytes is for Kafka directories: a root has the config; leave it out")
    if place is not None:
        return repair_root(open_store(place.root), topics=topics_at(place, topics), execute=execute, say=say)
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
    """Cure the damage of the root in `store`, or of these topics, and set aside what no version names.

    Without `execute` nothing is changed, and the report tells what would be. Raises as `verify_root`; `Unavailable` if
    the store refuses a write: what was cured so far stays.
    """
    folder = f"{time.strftime('%Y-%m-%dT%H-%M-%S', time.gmtime(env.wall_ms() / 1000))}-{env.new_id()}"
    healer, done = Healer(store, folder), dict[str, Cure]()
    before = -1
    for _ in range(ROUNDS):
        report = verify_root(store, topics=topics, runner=runner, say=say, env=env)
        before = len(report.findings) if before < 0 else before
        cures = [cure for cure in _Treatment(store, report, env).cures(whole=not topics) if not _was_tried(cure, done)]
        done |= {cure.key: cure for cure in cures}
        if not execute or not cures:
            break
        for cure in cures:
            say(f"repairing {cure.key}")
            # The vacuum may have deleted it by right: the next look tells.
            with suppress(NotFound):
                healer.apply(cure)
    else:
        report = verify_root(store, topics=topics, runner=runner, say=say, env=env)
    repaired = tuple(Repaired(cure.key, cure.how, healer.aside.get(cure.key)) for cure in done.values())
    cured = [] if execute else [key for cure in done.values() for key in cure.damaged]
    return RepairReport(store.location, execute, repaired, left_after(report, cured), before)


def _was_tried(cure: Cure, done: Mapping[str, Cure]) -> bool:
    """True if this was tried in an earlier round. What makes new objects is tried once."""
    before = done.get(cure.key)
    return before is not None and (before == cure or bool(cure.creates))


@dataclass
class _Treatment:
    """The cures of one report."""

    store: Store
    report: Report
    env: Env
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    logs: dict[str, CheckedTopic] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for finding in self.report.findings:
            self.findings.setdefault(finding.file, []).append(finding)

    def cures(self, *, whole: bool) -> Iterator[Cure]:
        """Yield what to do, each object once. `whole`: all of the root was verified, so what is unnamed is that."""
        cured: dict[str, Cure] = {}
        for key in sorted(self.findings):
            cure = cure_flipped(self.store, key, self.findings[key]) or self._of_log(key)
            if cure is not None:
                before = cured.get(cure.key, cure)
                stays = cure.size is None and not cure.drops
                cured[cure.key] = replace(before, damaged=before.damaged if stays else (*before.damaged, key))
        yield from cured.values()
        left = set(self.findings).difference(cured, *(cure.damaged for cure in cured.values()))
        yield from self._of_files(sorted(left))
        if whole:
            yield from set_asides(self.report, self._topics())

    def _of_log(self, key: str) -> Cure | None:
        if not of_log(key):
            return None
        if key.partition("/")[0] in KINDS:
            return cure_entry(self.store, key)
        if f"/{CHECKPOINT_FOLDER}/" in key:
            return cure_document(self.store, key) or cure_checkpoint(self.store, key, self.env)
        return cure_document(self.store, key)

    def _of_files(self, keys: Sequence[str]) -> Iterator[Cure]:
        """Yield the cures of data files and what is beside them, by the topics that name them."""
        damaged = {key: key.partition("/")[0] for key in keys if is_topic_name(key.partition("/")[0])}
        folders = self.store.list_folders("") if damaged else ()
        names = dict.fromkeys([*damaged.values(), *filter(is_topic_name, folders)])
        for name in names:
            for file in self._log(name).files if damaged else ():
                mine = [
                    key for key in (file.key, filter_path(file.key), *map(file.index_key, SUFFIXES)) if key in damaged
                ]
                if mine:
                    yield from FileCures(self.store, file, self._newest(name)).cures(mine)
                    damaged = {key: owner for key, owner in damaged.items() if key not in mine}

    def _newest(self, name: str) -> Snapshot | None:
        history = History(self.store, name)
        return state_at(history, int(history.commits.version[-1])) if len(history.commits) else None

    def _log(self, name: str) -> CheckedTopic:
        if name not in self.logs:
            self.logs[name] = read_topic(self.store, name, reading_clock_ms(self.store, self.env))
        return self.logs[name]

    def _topics(self) -> Mapping[str, CheckedTopic]:
        names = {orphan.file.partition("/")[0] for orphan in self.report.orphans}
        return {name: self._log(name) for name in sorted(names) if is_topic_name(name)}


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
        version = entry_number(below)
        return version is not None and version < log.first
    file = data_file(name, ObjectInfo(orphan.file, orphan.nbytes, 0))
    return file is not None and file.read_version < log.head.floor
