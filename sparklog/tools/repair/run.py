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

**A Kafka directory** gets its index files back in place, as by Kafka's own recovery (`LogSegment.recover`). A broker
trusts its indexes, so a wrong index hides records. Kafka rebuilds them only after an unclean shutdown, or if the
`.index` is missing. sparklog rebuilds each index that `sparklog verify` reports as corrupt, or that omits parts of its
segment, from the batches; it writes a new file beside it and renames it. If `index.interval.bytes` is not given, it is
the topic's config in the metadata log. If the topic does not set it, or the directory has no metadata log, it is
derived from the valid indexes of the partition, or of the topic's other partitions: Kafka's default if it fits, else a
round number. An index with another interval is valid, too.

* `.txnindex`: the transactions that were aborted, by the log from its start on. Where a cleaner has removed the first
  batches of one, it begins with those that are left: readers see the same.
* A corrupt `.snapshot` gets the suffix `.deleted` if the partition has a valid one. The only snapshot is kept: after a
  clean shutdown, a broker without a snapshot starts with empty producer state, but a broker with a corrupt snapshot
  deletes it and replays the log.
* Segments stay as they are. After damage to batches the broker or a replica has to help, and indexes of such a segment
  stay as well, but for the end of the last one, which a broker had not written to the end.

No broker may be at work: it holds a lock on `.lock`, which is held here meanwhile.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sparklog.arguments import FUNCTION, NAMES, checked
from sparklog.common.parsing import is_digits
from sparklog.common.settings import whole
from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.format.checksums import SUFFIXES
from sparklog.format.segment_indexes import OffsetIndex
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.importing.coordinators import LogDir
from sparklog.kafka.importing.plan import read_metadata
from sparklog.kafka.in_place.directory import kafka_layout, partition_folders
from sparklog.kafka.in_place.files import DELETED, AnyPath, FilePath, LocalPath, file_path, held_lock, relative
from sparklog.kafka.in_place.segment_file import companion
from sparklog.kafka.in_place.segment_recovery import SKIP
from sparklog.kafka.in_place.transaction_state import TransactionState
from sparklog.log.journal import names as naming
from sparklog.log.journal.clocks import SYSTEM, Env, reading_clock_ms
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.root import ROOT, Root
from sparklog.maintenance.journals import JOURNAL_IN
from sparklog.maintenance.work_items import Runner
from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, NOTHING, exists, missing, resolve, topics_at
from sparklog.retention.vacuum_plan import HOUR_MS, data_file
from sparklog.storage import open_store
from sparklog.storage.store import ObjectInfo, Store
from sparklog.tools.repair.commit_cures import cure_missing_commit
from sparklog.tools.repair.cures import (
    Cure,
    Healer,
    Repaired,
    RepairReport,
    cure_checkpoint,
    cure_defaults,
    cure_document,
    cure_entry,
    in_the_way,
    left_after,
    of_log,
    state_at,
)
from sparklog.tools.repair.file_cures import FileCures, build_indexes, cure_flipped
from sparklog.tools.verification.findings import INDEX, Finding, Orphan, Report
from sparklog.tools.verification.kafka_directory import verify_log_dir
from sparklog.tools.verification.kafka_partition import INDEX_INTERVAL_BYTES, KafkaPartition, SegmentRead
from sparklog.tools.verification.run import Say, verify_root
from sparklog.tools.verification.slice_checks import check_index
from sparklog.tools.verification.topic_log import CheckedTopic, read_topic

NO_BOUND = 2**31
"""Above each `index.interval.bytes`."""
ROUND = (1024, 1000, 512, 500, 256, 200, 128, 100, 64, 50, 32, 10)
_INDEX = re.compile(r"(\d{20})\.(index|timeindex|txnindex)(?:\.swap)?")
_SNAPSHOT = re.compile(r"\d{20}\.snapshot")


def repair_log_dir(
    path: AnyPath,
    *,
    topics: Sequence[str] = (),
    execute: bool = False,
    interval: int | None = None,
    say: Say = lambda line: None,
    env: Env = SYSTEM,
) -> RepairReport:
    """Build the damaged index files of a Kafka log directory or partition folder again.

    `interval`: `index.interval.bytes`, if it is known. Without `execute` nothing is changed. Raises as
    `verify_log_dir`; `Conflict` if a broker is at work.
    """
    folder = file_path(path)
    with _without_broker(folder, execute):
        report = verify_log_dir(folder, topics=topics, say=say, env=env)
        repaired: list[Repaired] = []
        intervals = _Intervals(folder, interval, env)
        files = sorted({*(each.file for each in report.findings), *(n.file for n in report.notes if n.kind == INDEX)})
        for name in sorted({file.rpartition("/")[0] for file in files}):
            partition = folder.child(name) if name else folder
            mine = [file.rpartition("/")[2] for file in files if file.rpartition("/")[0] == name]
            say(f"reading {partition.name}")
            for place, how, data in _cures(partition, mine, intervals, env):
                repaired.append(Repaired(relative(place, folder), how))
                if execute:
                    _put(place, data)
        after = report
        if execute and repaired:
            folder.renew()
            after = verify_log_dir(folder, topics=topics, say=say, env=env)
        left = left_after(after, () if execute else [item.file for item in repaired])
    return RepairReport(str(folder), execute, tuple(repaired), left, len(report.findings))


@contextmanager
def _without_broker(folder: FilePath, execute: bool) -> Iterator[None]:
    """Hold the lock that a broker holds on its log directory. `Conflict` if one does."""
    if not execute or not isinstance(folder, LocalPath):
        yield
        return
    place = folder if kafka_layout(folder) == "log-dir" else folder.parent
    with held_lock(place.child(".lock")) as is_free:
        if not is_free:
            raise Conflict(f"a broker is at work in {place}: stop it, or wait until it has stopped")
        yield


def _cures(
    folder: FilePath, names: Sequence[str], intervals: _Intervals, env: Env
) -> Iterator[tuple[FilePath, str, bytes | None]]:
    """Yield what to write in a partition folder, how it was made, and its bytes; None: it is renamed to `.deleted`."""
    damaged = {name for name in names if _SNAPSHOT.fullmatch(name)}
    # Without any snapshot, a broker that was shut down cleanly would lose its producer state.
    has_others = any(_SNAPSHOT.fullmatch(name) and name not in damaged for name in folder.names())
    for name in sorted(damaged) if has_others and isinstance(folder, LocalPath) else ():
        yield folder.child(name), "set aside: the broker builds the state again from an earlier one and the log", None
    wanted = [match.group(1, 2) for name in names if (match := _INDEX.fullmatch(name))]
    if not wanted:
        return
    read = _read(folder, env)
    segments, aborted = {segment.name.base: segment for segment in read}, _aborted(read)
    interval = intervals.of(folder, read)
    for base, suffix in wanted:
        segment = segments.get(int(base))
        if segment is None or _is_damaged(segment):
            continue
        place = companion(segment.name.path, suffix)
        if suffix != "txnindex":
            indexes = build_indexes(segment.name.base, segment.batches, interval)
            yield place, "built again from the segment", indexes[suffix == "timeindex"]
        elif segment.name.base in aborted:
            yield place, "built again from the log", aborted[segment.name.base].to_bytes()


def _read(folder: FilePath, env: Env) -> list[SegmentRead]:
    partition = KafkaPartition(folder, folder, None, env, passes_torn=False)
    partition.read(0)
    return partition.segments


def _aborted(segments: Sequence[SegmentRead]) -> dict[int, AbortedTransactions]:
    """Return by base offset the aborted transactions of segments, as Kafka indexes them, up to the first damage."""
    aborted, state = dict[int, AbortedTransactions](), TransactionState()
    for segment in segments:
        if _is_damaged(segment):
            break
        markers = [marker for marker in state.abort_markers(segment.events) if marker.first >= 0]
        rows = [(marker.producer_id, marker.first, marker.last, marker.last_stable) for marker in markers]
        aborted[segment.name.base] = AbortedTransactions(*np.array(rows, np.int64).reshape(-1, 4).T)
    return aborted


def _is_damaged(segment: SegmentRead) -> bool:
    # What a broker had not written to the end is no damage to what is before it.
    return segment.damaged and not segment.torn


class _Intervals:
    """`index.interval.bytes` of the topics in a Kafka log directory, or of one partition's; `given`: of all."""

    def __init__(self, folder: FilePath, given: int | None, env: Env) -> None:
        self._log_dir = folder if kafka_layout(folder) == "log-dir" else folder.parent
        self._given = given
        self._env = env

    def of(self, folder: FilePath, segments: Sequence[SegmentRead]) -> int:
        """Return the interval of the topic that a partition belongs to; `segments`: of the partition."""
        if self._given is not None:
            return self._given
        topic = folder.name.rpartition("-")[0]
        config = self._configs.get(topic, {}).get("index.interval.bytes", "")
        if is_digits(config):
            return int(config)
        bounds = _interval_bounds(segments)
        for (name, _), other in sorted(partition_folders(self._log_dir).items()):
            if bounds[1] < NO_BOUND:
                break
            if name == topic and other.name != folder.name:
                bounds = _interval_bounds(_read(other, self._env))
        return _likely_interval(*bounds)

    @cached_property
    def _configs(self) -> Mapping[str, Mapping[str, str]]:
        # A metadata log that cannot be read is no reason to fail: the interval is derived then.
        log_dir = LogDir(self._log_dir, self._env, SKIP, lambda skipped: None)
        with suppress(SparklogError):
            metadata = read_metadata(log_dir)
            return {} if metadata is None else metadata.configs
        return {}


def _interval_bounds(segments: Sequence[SegmentRead]) -> tuple[int, int]:
    """Return the smallest and largest `index.interval.bytes` by which the sound indexes of a partition were made."""
    low, high = 0, NO_BOUND
    for segment in segments:
        index = None if _is_damaged(segment) else _sound_index(segment)
        positions = segment.batches.columns().position
        if index is None or not len(positions):
            continue
        last = 0
        for entry in index.positions.tolist():
            row = int(np.searchsorted(positions, entry))
            low, high = max(low, int(positions[row - 1]) - last), min(high, entry - last - 1)
            last = entry
        low = max(low, int(positions[-1]) - last)
    return low, high


def _likely_interval(low: int, high: int) -> int:
    # Those of a follower name several batches at once, and follow no interval.
    if low <= INDEX_INTERVAL_BYTES <= high or low > high:
        return INDEX_INTERVAL_BYTES
    # Many intervals make the same indexes: people choose round ones.
    return next((least for step in ROUND if (least := -(-low // step) * step) <= high), low)


def _sound_index(segment: SegmentRead) -> OffsetIndex | None:
    path = companion(segment.name.path, "index")
    data = path.data()
    if data is None or check_index("index", data, segment.name.base, segment.batches, file=path.name, active=True):
        return None
    index = OffsetIndex.parse(data, segment.name.base)
    return index if index.covers(segment.batches.columns().position, INDEX_INTERVAL_BYTES) else None


def _put(place: FilePath, data: bytes | None) -> None:
    """Write a file beside its place and rename it; None: give it the suffix `.deleted`."""
    if data is None:
        os.replace(str(place), str(place) + DELETED)
    else:
        store, key = place.as_object()
        store.overwrite(key, [data])


ROUNDS = 6
MOVE = "a folder, a link or a special file has its name: move that away, then repair again"


@checked(path=ROOT, topics=NAMES, index_interval_bytes=whole(1).or_none(), say=FUNCTION)
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

    def look(last: Report | None) -> Report:
        confirmed = () if last is None else last.findings
        return verify_root(store, topics=topics, runner=runner, say=say, env=env, confirmed=confirmed)

    report: Report | None = None
    before = -1
    for _ in range(ROUNDS):
        report = look(report)
        before = len(report.findings) if before < 0 else before
        every = _Treatment(store, report, env).cures(whole=not topics)
        cures = [cure for cure in every if not _was_tried(cure, done) and healer.can_apply(cure)]
        done |= {cure.key: cure for cure in cures}
        if not execute or not cures:
            break
        for cure in cures:
            say(f"repairing {cure.key}")
            # The vacuum may have deleted it by right: the next look tells.
            with suppress(NotFound):
                healer.apply(cure)
    else:
        report = look(report)
    repaired = tuple(Repaired(cure.key, cure.how, healer.aside.get(cure.key)) for cure in done.values())
    cured = [] if execute else [key for cure in done.values() for key in cure.damaged]
    left = [replace(each, remedy=MOVE) if in_the_way(store, each.file) else each for each in left_after(report, cured)]
    return RepairReport(store.location, execute, repaired, tuple(left), before)


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
        folder = key.partition("/")[0]
        if folder in JOURNAL_IN:
            return cure_entry(self.store, key)
        if folder == naming.DEFAULTS_FOLDER:
            number = naming.entry_number(key)
            return None if number is None else cure_defaults(self.store, key, number)
        if f"/{naming.CHECKPOINT_FOLDER}/" in key:
            return cure_document(self.store, key) or cure_checkpoint(self.store, key, self.env)
        return cure_document(self.store, key) or cure_missing_commit(self.store, key)

    def _of_files(self, keys: Sequence[str]) -> Iterator[Cure]:
        """Yield the cures of data files and what is beside them, by the topics that name them."""
        damaged = {key: topic for key in keys if (topic := naming.key_topic(key)) is not None}
        names = dict.fromkeys([*damaged.values(), *(naming.topic_names(self.store) if damaged else ())])
        for name in names:
            for file in self._log(name).files if damaged else ():
                mine = [
                    key
                    for key in (file.key, naming.filter_path(file.key), *map(file.index_key, SUFFIXES))
                    if key in damaged
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
        names = {naming.key_topic(orphan.file) for orphan in self.report.orphans}
        return {name: self._log(name) for name in sorted(filter(None, names))}


HOW = "set aside: no version names it"


def set_asides(report: Report, topics: Mapping[str, CheckedTopic]) -> Iterator[Cure]:
    """Yield what to set aside; nothing where a log is damaged, for that may name files."""
    if any(f"/{naming.LOG_FOLDER}/" in finding.file for finding in report.findings):
        return
    for orphan in report.orphans:
        if _is_free(orphan, topics.get(naming.key_topic(orphan.file) or "")):
            yield Cure(orphan.file, HOW, drops=(orphan.file,))


def _is_free(orphan: Orphan, log: CheckedTopic | None) -> bool:
    _, _, below = orphan.file.partition("/")
    if log is None or log.head is None:
        return False
    if below.startswith(f"{naming.LOG_FOLDER}/checkpoints/"):
        table = below.rsplit("/", 1)[-1]
        is_old = orphan.age_ms > HOUR_MS and int(table[:20]) < log.newest_checkpoint
        return naming.is_checkpoint_table_name(table) and is_old
    if below.startswith(f"{naming.LOG_FOLDER}/"):
        version = naming.entry_number(below)
        return version is not None and version < log.first
    file = data_file(ObjectInfo(orphan.file, orphan.nbytes, 0))
    return file is not None and file.read_version < log.head.floor
