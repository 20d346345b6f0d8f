"""Repairing the index files of a Kafka directory in place, as Kafka's own recovery does (`LogSegment.recover`).

A broker trusts its indexes: one that misleads hides records. Kafka builds them again only after an unclean stop, or
where they are missing. Here each index that `sparklog verify` calls damaged is built again from the batches of its
segment, written beside it and renamed. `index.interval.bytes` is a config of the broker or topic, which no file here
has. If it is not given, it is one by which the sound indexes of the partition were made, Kafka's default where that
fits, else a round one. An index by another interval is right as well.

* `.txnindex`: the transactions that were aborted, by the log from its start on. Where a cleaner has removed the first
  batches of one, it begins with those that are left: readers see the same.
* A damaged `.snapshot` gets the suffix `.deleted`: the broker removes it when it starts, and makes another one.
* Segments stay as they are. After damage to batches the broker or a replica has to help, and indexes of such a segment
  stay as well, but for the end of the last one, which a broker had not written to the end.

No broker may be at work: it holds a lock on `.lock`, which is held here meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from sparklog.errors import Conflict, Corrupt
from sparklog.format.segment_indexes import OffsetIndex
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.in_place.directory import kafka_layout
from sparklog.kafka.in_place.files import DELETED, AnyPath, FilePath, LocalPath, file_path, held_lock, relative
from sparklog.kafka.in_place.segment_file import companion
from sparklog.kafka.in_place.transaction_state import TransactionState
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.tools.repair.file_cures import build_indexes
from sparklog.tools.repair.report import Repaired, RepairReport, left_after
from sparklog.tools.verification.index_files import check_index
from sparklog.tools.verification.kafka_directory import verify_log_dir
from sparklog.tools.verification.kafka_partition import KafkaPartition, SegmentRead
from sparklog.tools.verification.run import Say

KAFKA_INTERVAL = 4096
"""Kafka's default of `index.interval.bytes`."""
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
        files = sorted({finding.file for finding in report.findings})
        for name in sorted({file.rpartition("/")[0] for file in files}):
            partition = folder.child(name) if name else folder
            mine = [file.rpartition("/")[2] for file in files if file.rpartition("/")[0] == name]
            say(f"reading {partition.name}")
            for place, how, data in _cures(partition, mine, interval, env):
                repaired.append(Repaired(relative(place, folder), how))
                if execute:
                    _put(place, data)
        left = left_after(report, [item.file for item in repaired])
        if execute and repaired:
            folder.renew()
            left = verify_log_dir(folder, topics=topics, say=say, env=env).findings
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
    folder: FilePath, names: Sequence[str], interval: int | None, env: Env
) -> Iterator[tuple[FilePath, str, bytes | None]]:
    """Yield what to write in a partition folder, how it was made, and its bytes; None: it is renamed to `.deleted`."""
    for name in names:
        if _SNAPSHOT.fullmatch(name) and isinstance(folder, LocalPath):
            yield folder.child(name), "set aside: the broker makes another one", None
    wanted = [match.group(1, 2) for name in names if (match := _INDEX.fullmatch(name))]
    if not wanted:
        return
    read = _read(folder, env)
    segments, aborted = {segment.name.base: segment for segment in read}, _aborted(read)
    interval = _interval(read) if interval is None else interval
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


def _interval(segments: Sequence[SegmentRead]) -> int:
    """Return the `index.interval.bytes` by which the sound indexes of a partition were made."""
    low, high = 0, 2**31
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
    # Those of a follower name several batches at once, and follow no interval.
    if low <= KAFKA_INTERVAL <= high or low > high:
        return KAFKA_INTERVAL
    # Many intervals make the same indexes: people choose round ones.
    return next((least for step in ROUND if (least := -(-low // step) * step) <= high), low)


def _sound_index(segment: SegmentRead) -> OffsetIndex | None:
    path = companion(segment.name.path, "index")
    data = path.data()
    if data is None or check_index("index", data, segment.name.base, segment.batches, file=path.name, active=True):
        return None
    with suppress(Corrupt):
        return OffsetIndex.parse(data, segment.name.base)
    return None


def _put(place: FilePath, data: bytes | None) -> None:
    """Write a file beside its place and rename it; None: give it the suffix `.deleted`."""
    if data is None:
        os.replace(str(place), str(place) + DELETED)
    else:
        store, key = place.as_object()
        store.overwrite(key, [data])
