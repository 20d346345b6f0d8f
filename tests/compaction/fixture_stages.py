"""The stages of the compaction fixtures as input of the cleaner's plan: segments with their bytes, without an import.

A stage is a log directory as Kafka left it. All segments except the last are closed, and are treated as sealed. Kafka's
empty segments are kept, although sparklog has no empty segments. `stored` writes segments to a store as an import
would.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from sparklog.format.batch_scan import scan_headers
from sparklog.format.record_batch import BatchHeaders
from sparklog.format.slice_columns import PLANNED
from sparklog.log.journal.names import append_path, sealed_path
from sparklog.log.read.planned_slices import PlannedSlices
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import Segment
from sparklog.log.state.slices import SliceFlag
from sparklog.storage.store import Store
from tests.compaction.plain_cleaner import PlainConfigs, PlainLog, PlainSegment, aborted_entries, decoded
from tests.fixture_data import fixture_tree

PARTITION = "compacted-0"
OLD_FORMATS = "old-formats"
"""The fixture that starts with messages of formats v0 and v1, which the plain model does not support."""


@dataclass(frozen=True)
class StageSegment:
    """The files of a segment: the `.log`, its indexes and its `.txnindex`, which is empty if it does not exist."""

    base: int
    path: Path
    data: bytes
    index: bytes
    time_index: bytes
    transaction_index: bytes
    modified_ms: int
    largest_ts: int

    @cached_property
    def headers(self) -> BatchHeaders:
        return scan_headers(self.data)


@dataclass(frozen=True)
class Stage:
    """A stage of a fixture. `told` is its entry in fixture.json, and `cleaner` is the output of Kafka's cleaner if it
    ran.
    """

    fixture: str
    name: str
    folder: Path
    configs: TopicConfigs
    told: dict[str, Any]
    files: tuple[StageSegment, ...]

    @property
    def now_ms(self) -> int:
        return int(self.told["clockMs"])

    @property
    def log_start(self) -> int:
        return int(self.told["logStartOffset"])

    @property
    def log_end(self) -> int:
        return int(self.told["logEndOffset"])

    @property
    def last_stable(self) -> int:
        return int(self.told["lastStableOffset"])

    @property
    def cleaner(self) -> dict[str, Any]:
        found: dict[str, Any] = self.told.get("cleaner", {})
        return found

    @property
    def first_dirty_offset(self) -> int:
        """Return the partition's offset in cleaner-offset-checkpoint, or the log start if there is none."""
        return _checkpoint(self.folder / "cleaner-offset-checkpoint", self.log_start)

    @property
    def plain(self) -> PlainLog:
        """Return the log for the plain model of Kafka's cleaner."""
        segments = [
            PlainSegment(
                base=file.base,
                batches=list(decoded(file.data)),
                modified_ms=file.modified_ms,
                index=len(file.index),
                time_index=len(file.time_index),
                aborted=aborted_entries(file.transaction_index),
            )
            for file in self.files
        ]
        return PlainLog(segments, self.log_start, self.log_end, self.first_dirty_offset)

    def segments(self, *, empty: bool = True) -> list[Segment]:
        """Return the segments as the plan sees them. Unless `empty` is True, omit empty segments, as an import does."""
        bases = [file.base for file in self.files] + [self.log_end]
        found = []
        for row, file in enumerate(self.files):
            headers = file.headers
            last = row == len(self.files) - 1
            segment = Segment(
                partition=0,
                base=file.base,
                next_base=bases[row + 1],
                end=int(headers.next_offset[-1]) if len(headers) else file.base,
                first_row=row,
                rows=1,
                size=len(file.data),
                first_ts=int(headers.max_timestamp[0]) if len(headers) else -1,
                max_ts=file.largest_ts,
                sealed=not last,
                active=last,
            )
            if empty or file.data or last:
                found.append(segment)
        return found

    def first_batch_ts(self, segment: Segment) -> int:
        """Return the largest timestamp of the segment's first batch, which `cleanable` requests."""
        headers = self.files[segment.first_row].headers
        return int(headers.max_timestamp[0]) if len(headers) else -1


@dataclass(frozen=True)
class Pass:
    """A round of Kafka's cleaner: the stage before and the stage after the round. The `cleaner` of the latter is the
    result of the round.
    """

    before: Stage
    after: Stage

    @property
    def name(self) -> str:
        return f"{self.before.fixture}/{self.after.name}"

    @property
    def now_ms(self) -> int:
        return int(self.after.cleaner["clockMs"])

    @property
    def plain_configs(self) -> PlainConfigs:
        """Return the configs of the fixture with the map size of this round."""
        configs = self.before.configs
        return PlainConfigs(
            segment_bytes=configs.segment_bytes,
            segment_index_bytes=configs.integer("segment.index.bytes"),
            index_interval_bytes=configs.index_interval_bytes,
            min_cleanable_dirty_ratio=float(configs.text("min.cleanable.dirty.ratio")),
            min_compaction_lag_ms=configs.min_compaction_lag_ms,
            max_compaction_lag_ms=configs.max_compaction_lag_ms,
            delete_retention_ms=configs.integer("delete.retention.ms"),
            offset_map_slots=self.after.cleaner.get("offsetMapSlots", 0),
        )


@cache
def stages(fixture: str) -> tuple[Stage, ...]:
    """Return all stages of `compaction/<fixture>` in the order in which they were created."""
    return read_stages(fixture_tree() / "compaction" / fixture)


def read_stages(root: Path) -> tuple[Stage, ...]:
    """Return all stages of a fixture in this directory."""
    told = json.loads((root / "fixture.json").read_text())
    configs = TopicConfigs.of({name.removeprefix("internal."): value for name, value in told["configs"].items()})
    return tuple(_stage(root.name, root / each["stage"], configs, each) for each in told["stages"])


def fixture_names() -> list[str]:
    """Return the names of the compaction fixtures."""
    return sorted(path.name for path in (fixture_tree() / "compaction").iterdir() if path.is_dir())


def passes(fixture: str) -> list[Pass]:
    """Return the rounds of the cleaner in a fixture."""
    return passes_between(stages(fixture))


def passes_between(found: Sequence[Stage]) -> list[Pass]:
    """Return the rounds of the cleaner between these stages."""
    return [Pass(before, after) for before, after in pairwise(found) if after.cleaner]


def all_passes() -> list[Pass]:
    """Return the rounds of all fixtures."""
    return [each for name in fixture_names() for each in passes(name)]


def partition_files(folder: Path) -> tuple[StageSegment, ...]:
    """Return the segments of a partition directory. Modification times are -1."""
    return tuple(_segment(path, {"mtimeMs": -1, "largestTimestamp": -1}) for path in sorted(folder.glob("*.log")))


def stored(
    store: Store, segments: Sequence[tuple[int, bytes, bytes]], *, topic: str = "compacted", shift: int = 0
) -> PlannedSlices:
    """Write segments (base, `.log`, `.txnindex`) as an import does, and return their rows for a plan.

    The last segment is a slice of an append file (between other bytes), and the other segments are sealed. `shift` is
    subtracted from the base offsets of the last segment's batches. Empty segments are omitted.
    """
    rows: list[dict[str, int]] = []
    paths: list[str] = []
    for i, (base, data, transactions) in enumerate(segments):
        if not data:
            continue
        active = i == len(segments) - 1
        path = append_path(1, "last") if active else sealed_path(0, 1, "run", base)
        before, after = (b"before", b"the footer") if active else (b"", b"")
        store.create(f"{topic}/{path}", before + data + after)
        if transactions and not active:
            store.create(f"{topic}/{path.removesuffix('.log')}.txnindex", transactions)
        headers = scan_headers(data)
        kafka = bool((headers.producer_id >= 0).any() or headers.is_control.any())
        numbers = {
            "file": len(paths),
            "file_size": len(before + data + after),
            "footer_length": len(after),
            "position": len(before),
            "size": len(data),
            "base": base,
            "end": int(headers.next_offset[-1]) + (shift if active else 0),
            "shift": shift if active else 0,
            "records": int(headers.count.sum()),
            "min_ts": -1,
            "max_ts": int(headers.max_timestamp.max()),
            "crc": crc32c(data),
            "flags": int(SliceFlag.KAFKA_PRODUCERS) if kafka else 0,
            "append_time": -1,
            "leader_epoch": -1,
            "status": 0,
        }
        rows.append(numbers)
        paths.append(path)
    columns = {name: np.array([row[name] for row in rows], np.int64) for name in ("file", *PLANNED)}
    return PlannedSlices(topic, 0, tuple(paths), columns)


def _stage(fixture: str, folder: Path, configs: TopicConfigs, told: dict[str, Any]) -> Stage:
    paths = sorted((folder / PARTITION).glob("*.log"))
    by_base = {each["baseOffset"]: each for each in told["segments"]}
    files = tuple(_segment(path, by_base[int(path.stem)]) for path in paths)
    return Stage(fixture, folder.name, folder, configs, told, files)


def _segment(path: Path, told: dict[str, Any]) -> StageSegment:
    def beside(suffix: str) -> bytes:
        other = path.with_suffix(suffix)
        return other.read_bytes() if other.exists() else b""

    return StageSegment(
        base=int(path.stem),
        path=path,
        data=path.read_bytes(),
        index=beside(".index"),
        time_index=beside(".timeindex"),
        transaction_index=beside(".txnindex"),
        modified_ms=int(told["mtimeMs"]),
        largest_ts=int(told["largestTimestamp"]),
    )


def _checkpoint(path: Path, default: int) -> int:
    for line in path.read_text().splitlines()[2:] if path.exists() else ():
        topic, partition, offset = line.split()
        if f"{topic}-{partition}" == PARTITION:
            return int(offset)
    return default
