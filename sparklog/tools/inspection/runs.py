"""Runs of batches of a partition: in a Kafka directory, a sparklog root, or one file.

A partition is a list of runs in offset order: whole batches, back to back, in one file. Of a Kafka directory a run is a
segment up to the log's end; of a root it is a slice, in an append file or a sealed segment. Facts that the batches
lack come with the run: the shift of their offsets, their append time, the transaction that holds them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from sparklog.errors import BadRequest, NotFound
from sparklog.format import transaction_index
from sparklog.format.append_file import TAIL_BYTES, decode_footer, footer_length
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.in_place.directory import split_folder_name
from sparklog.kafka.in_place.partition_state import PartitionState
from sparklog.kafka.in_place.segment_state import SegmentState
from sparklog.log.journal.names import file_key, is_sealed
from sparklog.log.read.aborted import aborted_ranges
from sparklog.log.state.slice_table import ABORTED, COMMITTED, OPEN
from sparklog.log.state.snapshot import Snapshot
from sparklog.log.state.view import Bounds
from sparklog.storage import Store, open_store

SEGMENT, SEALED, APPEND = "Kafka segment", "sealed segment", "append file"
_OUTCOMES = {OPEN: "open", COMMITTED: "committed", ABORTED: "aborted"}


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes `[position, position + size)` of an object: whole batches of one partition.

    * `name`: the file as it is shown, below the topic's or partition's folder; `kind`: what sort of file it is
    * `base`: the segment's or slice's first offset; `shift`: what to add to a batch header's base offset
    * `append_time`: ms, the time of records under LogAppendTime that their batches do not carry; -1: they carry it
    * `transaction`, `outcome`: of a transaction of sparklog's that wrote the run, both empty if none did
    """

    store: Store
    key: str
    name: str
    kind: str
    position: int
    size: int
    base: int
    shift: int = 0
    append_time: int = -1
    leader_epoch: int = -1
    footer_length: int = 0
    file_size: int = 0
    transaction: str = ""
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition. `aborted`, `open`: Kafka's transactions in it; `open` gives each producer's first open offset."""

    topic: str
    partition: int
    bounds: Bounds
    runs: tuple[Run, ...]
    aborted: AbortedTransactions
    open: tuple[tuple[int, int], ...]


def of_kafka(topic: str, partition: int, state: PartitionState, bounds: Bounds) -> PartitionLog:
    """Return a partition folder of Kafka's, up to the end of its log."""
    store = open_store(state.folder)
    runs = tuple(_segment(store, segment) for segment in state.segments)
    aborted = state.aborted(state.first_base, max(state.log_end, state.first_base))
    return PartitionLog(topic, partition, bounds, runs, aborted, tuple(state.transactions.open.items()))


def _segment(store: Store, state: SegmentState) -> Run:
    name = os.path.basename(state.name.path)
    return Run(store, name, name, SEGMENT, 0, state.end, state.name.base, file_size=state.size)


def of_root(snapshot: Snapshot, partition: int, bounds: Bounds) -> PartitionLog:
    """Return a partition of a root's topic at one version: every slice that it names."""
    head, rows = snapshot.head, snapshot.slices.select(partition)
    store, topic = snapshot.store, snapshot.topic
    names = ("position", "size", "base", "shift", "append_time", "leader_epoch", "footer_length", "file_size")
    columns = {name: rows.columns[name].tolist() for name in names}
    status, number = rows.status.tolist(), rows.txn_n.tolist()
    runs = []
    for row in range(len(rows)):
        path, outcome = rows.path(row), _OUTCOMES.get(status[row], "")
        kind = SEALED if is_sealed(path) else APPEND
        whose = f"{rows.txn_id(row)} #{number[row]}" if outcome else ""
        facts = {name: column[row] for name, column in columns.items()}
        runs.append(Run(store, file_key(topic, path), path, kind, **facts, transaction=whose, outcome=outcome))
    first = min(int(rows.base[0]), bounds.log_start) if len(rows) else bounds.log_start
    aborted = aborted_ranges(store, topic, snapshot.slices, partition, first, bounds.log_end)
    open_ = tuple((each.producer, each.first) for each in head.kafka_open if each.partition == partition)
    return PartitionLog(topic, partition, bounds, tuple(runs), aborted or transaction_index.none(), open_)


def of_file(path: str | os.PathLike[str]) -> list[PartitionLog]:
    """Return the partitions in one file: a `.log` of Kafka's or a sealed one, or an append file of any number of them.

    A segment's transactions are judged by all of its folder. Offsets in an append file count from 0 within each slice:
    only a commit gives their place in the log. `NotFound` if there is no such file, `BadRequest` for any other file.
    """
    location = os.path.abspath(os.fspath(path))
    folder, name = os.path.split(location)
    if not os.path.isfile(location):
        raise NotFound(f"there is no file {location}: give a .log or .slices file, a topic or a log directory")
    if name.endswith(".slices"):
        return _append_file(open_store(folder), name)
    stem, _, suffix = name.partition(".")
    if not (len(stem) == 20 and stem.isdigit() and suffix == "log"):
        raise BadRequest(f"expected a segment such as 00000000000000000000.log or a .slices file, found {location}")
    topic, partition = split_folder_name(folder)
    state = PartitionState(folder)
    state.refresh()
    segment = next((each for each in state.segments if each.name.base == int(stem)), None)
    if segment is None:
        raise NotFound(f"{location} is no segment of its folder's log: a cleaner that died left it behind")
    end = segment.next_offset
    whole = of_kafka(topic, partition, state, Bounds(int(stem), end, end, end))
    return [replace(whole, runs=(_segment(open_store(folder), segment),))]


def _append_file(store: Store, name: str) -> list[PartitionLog]:
    info = store.stat(name)
    size = 0 if info is None else info.size
    length = footer_length(store.get(name, max(0, size - TAIL_BYTES)), file=name)
    logs: dict[int, PartitionLog] = {}
    for entry in decode_footer(store.get(name, size - length), file_size=size, file=name).slices:
        before = logs.get(entry.partition)
        base, runs = (before.bounds.log_end, before.runs) if before else (0, ())
        run = Run(store, name, name, APPEND, entry.position, entry.nbytes, base, base, -1, -1, length, size)
        end = base + entry.offsets
        bounds, none = Bounds(0, end, end, end), transaction_index.none()
        logs[entry.partition] = PartitionLog(name, entry.partition, bounds, (*runs, run), none, ())
    return [logs[partition] for partition in sorted(logs)]
