"""Repair of a Kafka log directory: rebuild index files in place, as Kafka's recovery does (`LogSegment.recover`).

Brokers trust their indexes, so a wrong index hides records. Kafka only rebuilds indexes after an unclean shutdown, or
if the `.index` file is missing. sparklog rebuilds each index that `sparklog verify` reports as corrupt or incomplete
from the batches of the segment. It writes a new file next to the old file and renames it.

If `index.interval.bytes` is not given, the topic config in the metadata log is used. If the topic does not set this
config, or if the directory does not contain a metadata log, the value is derived from valid indexes of the partition or
of other partitions of the topic. Kafka's default is used if it matches the indexes. Otherwise a round number that
matches the indexes is used. An index that is built with a different interval is also valid.

* A `.txnindex` contains the aborted transactions, which are found by reading the log from the start. If a cleaner has
  removed the first batches of a transaction, the entry of the transaction starts at the first remaining batch. Readers
  return the same records in this case.
* A corrupt `.snapshot` file is renamed with the suffix `.deleted` if the partition has a valid snapshot. The only
  snapshot of a partition is not renamed. If a broker does not find a snapshot after a clean shutdown, it starts with an
  empty producer state. If the broker finds a corrupt snapshot, it deletes the snapshot and replays the log.
* Segments are not changed. Corrupt batches must be recovered by the broker or from a replica. The indexes of a segment
  with corrupt batches are not changed, unless only the partially written end of the last segment is corrupt.

The broker must be stopped. The repair acquires the lock on `.lock`, which a running broker holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property

import numpy as np

from sparklog.common.parsing import is_digits
from sparklog.errors import Conflict, SparklogError
from sparklog.format.segment_indexes import OffsetIndex
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.importing.coordinators import LogDir
from sparklog.kafka.importing.plan import read_metadata
from sparklog.kafka.in_place.directory import kafka_layout, partition_dirs
from sparklog.kafka.in_place.files import DELETED, AnyPath, FilePath, LocalPath, file_path, relative, try_lock
from sparklog.kafka.in_place.segment_file import companion
from sparklog.kafka.in_place.segment_recovery import SKIP
from sparklog.kafka.in_place.transaction_state import TransactionState
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.tools.repair.file_fixes import build_indexes
from sparklog.tools.repair.fixes import Repaired, RepairReport, remaining_findings
from sparklog.tools.verification.findings import INDEX
from sparklog.tools.verification.kafka_directory import verify_log_dir
from sparklog.tools.verification.kafka_partition import INDEX_INTERVAL_BYTES, KafkaPartition, SegmentRead
from sparklog.tools.verification.run import Say
from sparklog.tools.verification.slice_checks import check_index

UNBOUNDED = 2**31
"""A value greater than any `index.interval.bytes`."""
ROUND_STEPS = (1024, 1000, 512, 500, 256, 200, 128, 100, 64, 50, 32, 10)
_INDEX = re.compile(r"(\d{20})\.(index|timeindex|txnindex)(?:\.swap)?")
_SNAPSHOT = re.compile(r"\d{20}\.snapshot")


def repair_log_dir(
    path: AnyPath,
    *,
    topics: Sequence[str] = (),
    execute: bool = False,
    index_interval_bytes: int | None = None,
    say: Say = lambda line: None,
    env: Env = SYSTEM,
) -> RepairReport:
    """Rebuild the damaged index files of a Kafka log directory or partition directory.

    If `execute` is False, no file is changed. Raises the same exceptions as `verify_log_dir`, and `Conflict` if a
    broker is running.
    """
    log_dir = file_path(path)
    with _broker_lock(log_dir, execute):
        report = verify_log_dir(log_dir, topics=topics, say=say, env=env)
        repaired: list[Repaired] = []
        intervals = _IndexIntervals(log_dir, index_interval_bytes, env)
        notes = (note.file for note in report.notes if note.kind == INDEX)
        files = sorted({*(finding.file for finding in report.findings), *notes})
        for folder in sorted({file.rpartition("/")[0] for file in files}):
            partition = log_dir.child(folder) if folder else log_dir
            names = [file.rpartition("/")[2] for file in files if file.rpartition("/")[0] == folder]
            say(f"reading {partition.name}")
            for path_to_fix, how, data in _partition_fixes(partition, names, intervals, env):
                repaired.append(Repaired(relative(path_to_fix, log_dir), how))
                if execute:
                    _replace(path_to_fix, data)
        after = report
        if execute and repaired:
            log_dir.refresh()
            after = verify_log_dir(log_dir, topics=topics, say=say, env=env)
        remaining = remaining_findings(after, () if execute else [fixed.file for fixed in repaired])
    return RepairReport(str(log_dir), execute, tuple(repaired), remaining, len(report.findings))


@contextmanager
def _broker_lock(folder: FilePath, execute: bool) -> Iterator[None]:
    """Lock the log directory in the same way as a running broker. Raises `Conflict` if a broker has locked the
    directory.
    """
    if not execute or not isinstance(folder, LocalPath):
        yield
        return
    log_dir = folder if kafka_layout(folder) == "log-dir" else folder.parent
    with try_lock(log_dir.child(".lock")) as is_free:
        if not is_free:
            raise Conflict(f"a broker is running in {log_dir}; stop the broker and run repair again")
        yield


def _partition_fixes(
    folder: FilePath, names: Sequence[str], intervals: _IndexIntervals, env: Env
) -> Iterator[tuple[FilePath, str, bytes | None]]:
    """Yield the path of each file to change, the description of the change, and the new bytes.

    If the bytes are None, the file is renamed with the suffix `.deleted`.
    """
    damaged = {name for name in names if _SNAPSHOT.fullmatch(name)}
    # Do not remove the only snapshot, because a broker that was shut down cleanly would then start with an empty
    # producer state.
    has_others = any(_SNAPSHOT.fullmatch(name) and name not in damaged for name in folder.names())
    for name in sorted(damaged) if has_others and isinstance(folder, LocalPath) else ():
        how = "set aside, because the broker can rebuild the producer state from an earlier snapshot and the log"
        yield folder.child(name), how, None
    indexes = [match.group(1, 2) for name in names if (match := _INDEX.fullmatch(name))]
    if not indexes:
        return
    read = _read(folder, env)
    segments, aborted = {segment.name.base: segment for segment in read}, _aborted(read)
    interval = intervals.of(folder, read)
    for base, suffix in indexes:
        segment = segments.get(int(base))
        if segment is None or _is_damaged(segment):
            continue
        path = companion(segment.name.path, suffix)
        if suffix != "txnindex":
            built = build_indexes(segment.name.base, segment.batches, interval)
            yield path, "rebuilt from the segment", built[suffix == "timeindex"]
        elif segment.name.base in aborted:
            yield path, "rebuilt from the log", aborted[segment.name.base].to_bytes()


def _read(folder: FilePath, env: Env) -> list[SegmentRead]:
    partition = KafkaPartition(folder, folder, None, env, reads_past_torn_end=False)
    partition.read(0)
    return partition.segments


def _aborted(segments: Sequence[SegmentRead]) -> dict[int, AbortedTransactions]:
    """Return the aborted transactions up to the first corrupt batch, by the base offset of their segment."""
    aborted, state = dict[int, AbortedTransactions](), TransactionState()
    for segment in segments:
        if _is_damaged(segment):
            break
        markers = [marker for marker in state.abort_markers(segment.events) if marker.first >= 0]
        rows = [(marker.producer_id, marker.first, marker.last, marker.last_stable) for marker in markers]
        aborted[segment.name.base] = AbortedTransactions(*np.array(rows, np.int64).reshape(-1, 4).T)
    return aborted


def _is_damaged(segment: SegmentRead) -> bool:
    # The batches before a partially written end are valid.
    return segment.damaged and not segment.torn


class _IndexIntervals:
    """The `index.interval.bytes` of the topics in a Kafka log directory. If `configured` is set, this value is used for
    all topics.
    """

    def __init__(self, folder: FilePath, configured: int | None, env: Env) -> None:
        self._log_dir = folder if kafka_layout(folder) == "log-dir" else folder.parent
        self._configured = configured
        self._env = env

    def of(self, folder: FilePath, segments: Sequence[SegmentRead]) -> int:
        """Return the interval of the partition in `folder` with the given segments."""
        if self._configured is not None:
            return self._configured
        topic = folder.name.rpartition("-")[0]
        config = self._configs.get(topic, {}).get("index.interval.bytes", "")
        if is_digits(config):
            return int(config)
        bounds = _interval_bounds(segments)
        for (name, _), other in sorted(partition_dirs(self._log_dir).items()):
            if bounds[1] < UNBOUNDED:
                break
            if name == topic and other.name != folder.name:
                bounds = _interval_bounds(_read(other, self._env))
        return _likely_interval(*bounds)

    @cached_property
    def _configs(self) -> Mapping[str, Mapping[str, str]]:
        # If the metadata log cannot be read, the interval is derived from other indexes.
        log_dir = LogDir(self._log_dir, self._env, SKIP, lambda skipped: None)
        with suppress(SparklogError):
            metadata = read_metadata(log_dir)
            return {} if metadata is None else metadata.configs
        return {}


def _interval_bounds(segments: Sequence[SegmentRead]) -> tuple[int, int]:
    """Return the smallest and the largest `index.interval.bytes` that result in the valid indexes of a partition."""
    low, high = 0, UNBOUNDED
    for segment in segments:
        index = None if _is_damaged(segment) else _valid_index(segment)
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
    # An index that was written by a follower contains entries for several batches and does not depend on an interval,
    # so low may exceed high.
    if low <= INDEX_INTERVAL_BYTES <= high or low > high:
        return INDEX_INTERVAL_BYTES
    # Many intervals result in the same indexes, and configured intervals are usually round numbers.
    return next((multiple for step in ROUND_STEPS if (multiple := -(-low // step) * step) <= high), low)


def _valid_index(segment: SegmentRead) -> OffsetIndex | None:
    path = companion(segment.name.path, "index")
    data = path.data()
    if data is None or check_index("index", data, segment.name.base, segment.batches, file=path.name, active=True):
        return None
    index = OffsetIndex.parse(data, segment.name.base)
    return index if index.covers(segment.batches.columns().position, INDEX_INTERVAL_BYTES) else None


def _replace(path: FilePath, data: bytes | None) -> None:
    """Replace the file at `path` by writing a new file and renaming it.

    If `data` is None, rename the existing file with the suffix `.deleted`.
    """
    if data is None:
        os.replace(str(path), str(path) + DELETED)
    else:
        store, key = path.as_object()
        store.overwrite(key, [data])
