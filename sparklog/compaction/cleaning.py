"""Which segments a cleaning pass writes into one: Kafka's `Cleaner.groupSegmentsBySize` (kafka-format.md, 7.4).

Groups are runs of neighbours. Sizes are those before the pass, so a group whose records mostly vanish leaves a small
segment, which the next pass may join with others.

The task that cleans: one pass over one partition, which is one edit, whole or not at all.

Half of a pass would bring deleted keys back, so nothing is named until all of it is written. Whether the partition is
due is asked again here: where Kafka's producers wrote, the last stable offset follows from a replay of their batches,
which is no work for a planner. All times come from the run's clock, which stands still during a pass.

The map holds hashes under a key drawn anew for each pass, so that nobody can prepare two record keys that erase each
other.

Plans compaction: which partitions of a topic are due for a cleaning pass, the dirtiest first.

From the slice table alone; the segments' files are opened only where `max.compaction.lag.ms` is set, for one header
each. Where Kafka's producers wrote, a transaction of theirs may still be open, which the table does not show: the task
finds that out and may answer that nothing is due. (Then less is cleanable than the plan believed, never more, so a
partition that is left out here is not due.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sparklog.compaction.cleanable import Cleanable, cleanable
from sparklog.errors import Conflict, NotFound
from sparklog.format.batch_scan import begins_with_header, single_header
from sparklog.format.offset_index import MAX_RELATIVE_OFFSET
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.read.read_plan import SourceSlice, SourceSlices, source_slices
from sparklog.log.state.commit import COMPACT, Edit
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.intents import Rewrite
from sparklog.log.state.segments import RollRule, Segment, segments_of
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.snapshot import Snapshot
from sparklog.maintenance.work import Done, PieceReport, Progress, Settings, silent
from sparklog.storage.store import Store


def group_segments(
    segments: Sequence[Segment],
    index_sizes: Sequence[tuple[int, int]],
    configs: TopicConfigs,
    first_uncleanable: int,
) -> list[list[Segment]]:
    """The segments of a pass (those with a base below its end offset, in offset order) as groups.

    `index_sizes`: bytes of each segment's `.index` and `.timeindex`. Each group becomes one segment, named by the base
    of its first. A group ends where the next segment would make the log larger than `segment.bytes`, an index larger
    than `segment.index.bytes`, or a relative offset larger than 31 bits.
    """
    most_bytes = configs.segment_bytes
    most_index = configs.integer("segment.index.bytes")
    groups: list[list[Segment]] = []
    log = index = time_index = 0
    for i, (segment, (index_size, time_size)) in enumerate(zip(segments, index_sizes, strict=True)):
        # An upper bound: it holds without reading the segment, at the cost of a smaller group now and then.
        last_offset = (segments[i + 1].base if i + 1 < len(segments) else first_uncleanable) - 1
        if (
            groups
            and log + segment.size <= most_bytes
            and index + index_size <= most_index
            and time_index + time_size <= most_index
            and (segment.size == 0 or last_offset - groups[-1][0].base <= MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            log = index = time_index = 0
        log, index, time_index = log + segment.size, index + index_size, time_index + time_size
    return groups


if TYPE_CHECKING:
    from sparklog.compaction.clean_pass import Counts
    from sparklog.compaction.producer_state import PartitionProducers


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How a pass went. `plan`: what there was to clean; `end_offset`: the new cleaner checkpoint.

    `utilization`: share of the map's slots in use; `counts`: see there.
    """

    plan: Cleanable
    end_offset: int
    utilization: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class CleanDone(Done):
    """What a cleaning pass has written. No rewrites: nothing was due.

    `more`: the map was full before the dirty part ended, so another pass is to follow at once. `cleaned`: None if
    nothing was due.
    """

    more: bool = False
    cleaned: Cleaned | None = None


@dataclass(frozen=True, slots=True)
class CleanWork:
    """A pass over one partition. See `sparklog.maintenance.work.Work`.

    `segments`: all of the partition, whose rows count in `sources`, which holds all slices up to the last sealed one,
    or all there are where Kafka's producers wrote. Offsets are those of the snapshot at version `read_version`.
    `ratio` as the plan saw it. `slots`: of the map, instead of those that the settings' buffer has.
    """

    store: Store
    topic: str
    topic_id: str
    read_version: int
    partition: int
    configs: TopicConfigs
    settings: Settings
    sources: SourceSlices
    segments: tuple[Segment, ...]
    log_start: int
    log_end: int
    last_stable: int
    cleaned_through: int
    ratio: float
    slots: int | None = None
    env: Env = SYSTEM

    @property
    def op(self) -> str:
        return COMPACT

    @property
    def title(self) -> str:
        return f"compact {self.topic}-{self.partition}"

    @property
    def partitions(self) -> tuple[int, ...]:
        return (self.partition,)

    @property
    def nbytes(self) -> int:
        """Bytes of the sealed segments; the dirty ones of them are read twice."""
        return sum(segment.size for segment in self.segments if segment.sealed)

    def run(self, progress: Progress = silent) -> CleanDone:
        """Write what stays. `Corrupt` names damage, `Conflict` says that a file was replaced meanwhile."""
        started = self.env.now()
        state = self._replayed()
        plan = self.plan(state)
        if not plan.chosen or not plan.segments:
            return CleanDone((), (), ())
        files, inputs, cleaned = self._pass(plan, state, progress)
        edit = Edit(self.partition, inputs[0].base, inputs[-1].end, cleaned.end_offset)
        counts = cleaned.counts
        report = PieceReport(
            action=COMPACT,
            topic=self.topic,
            partition=self.partition,
            records_before=counts.records_before,
            records_after=counts.records_after,
            bytes_before=counts.bytes_read,
            bytes_after=counts.bytes_written,
            tombstones_kept=counts.tombstones_kept,
            tombstones_dropped=counts.tombstones_dropped,
            keyless_dropped=counts.keyless_dropped,
            dirty_ratio=plan.ratio,
            seconds=self.env.now().elapsed_ms(started) / 1000,
        )
        rewrite = Rewrite(edit, tuple(source.input() for source in inputs))
        more = cleaned.end_offset < plan.first_uncleanable
        return CleanDone((rewrite,), files, (report,), more, cleaned)

    def _replayed(self) -> PartitionProducers | None:
        """What Kafka's producers did, None where none wrote."""
        if not (self.sources.flags & int(SliceFlag.KAFKA_PRODUCERS)).any():
            return None
        from sparklog.compaction.producer_state import replay

        try:
            return replay(self.store, self.topic, self.sources, self.log_end)
        except NotFound as error:
            raise Conflict(f"a file was replaced since this pass was planned; plan again: {error}") from None

    def plan(self, state: PartitionProducers | None = None) -> Cleanable:
        """What a pass would find; without `state` as if no transaction of Kafka's producers were open."""
        return cleanable(
            self.segments,
            partition=self.partition,
            cleaned_through=self.cleaned_through,
            log_start=self.log_start,
            log_end=self.log_end,
            last_stable=self.last_stable if state is None else min(self.last_stable, state.last_stable),
            configs=self.configs,
            now_ms=self.settings.now_ms,
            first_batch_ts=lambda segment: first_batch_timestamp(self.store, self.sources.row(segment.first_row)),
        )

    def _pass(
        self, plan: Cleanable, state: PartitionProducers | None, progress: Progress
    ) -> tuple[tuple[FileSlices, ...], list[SourceSlice], Cleaned]:
        """The segments written, those they replace, and what was found."""
        from sparklog.compaction.batch_judge import AbortedFilter, BatchJudge
        from sparklog.compaction.clean_pass import Cleaner, Counts, Reader, fill_map
        from sparklog.compaction.offset_map import OffsetMap, slots_of
        from sparklog.compaction.segment_writer import SegmentWriter
        from sparklog.format.key_hash import HashKey

        settings, counts = self.settings, Counts()
        reader = Reader(self.store, self.topic, self.partition, progress)
        hash_key = HashKey.of(self.env.random.getrandbits(128).to_bytes(16, "little"))
        dirty = [self.sources.row(each.first_row) for each in plan.segments if each.next_base > plan.first_dirty]
        slots = slots_of(settings.dedupe_buffer_bytes) if self.slots is None else self.slots
        found = OffsetMap(slots, settings.dedupe_load_factor, expected=sum(each.records for each in dirty))
        fill_map(
            found,
            dirty,
            reader,
            AbortedFilter(state),
            hash_key,
            first_dirty=plan.first_dirty,
            first_uncleanable=plan.first_uncleanable,
        )
        end_offset = found.latest_offset + 1
        segments = [each for each in plan.segments if each.base < end_offset]
        groups = group_segments(segments, self._index_sizes(segments), self.configs, plan.first_uncleanable)
        writer = SegmentWriter(
            self.store, self.topic, self.partition, self.read_version, self.env.new_id(), self.configs
        )
        judge = BatchJudge(
            state,
            now_ms=settings.now_ms,
            expiration_ms=settings.producer_expiration_ms,
            first_uncleanable=plan.first_uncleanable,
        )
        cleaner = Cleaner(
            found,
            judge,
            reader,
            writer,
            hash_key,
            counts,
            now_ms=settings.now_ms,
            delete_retention_ms=self.configs.integer("delete.retention.ms"),
            last_clean=self._last_clean(plan),
        )
        try:
            for group in groups:
                cleaner.group([self.sources.row(segment.first_row) for segment in group])
            written = writer.close()
        except BaseException:
            writer.discard()
            raise
        # What ends below the log start is no part of the log: a delete-records may have cut the first segment.
        files = tuple(file for file in written if file.base[0] + file.offsets[0] > self.log_start)
        inputs = [self.sources.row(segment.first_row) for segment in segments]
        return files, inputs, Cleaned(plan, end_offset, found.utilization, counts)

    def _last_clean(self, plan: Cleanable) -> SourceSlice | None:
        """The last segment that begins below the dirty part."""
        clean = [segment for segment in plan.segments if segment.base < plan.first_dirty]
        return self.sources.row(clean[-1].first_row) if clean else None

    def _index_sizes(self, segments: Sequence[Segment]) -> list[tuple[int, int]]:
        """Bytes of each segment's `.index` and `.timeindex`, 0 where one is missing."""
        found = []
        for segment in segments:
            stem = self.sources.row(segment.first_row).file.removesuffix(".log")
            sizes = [self.store.stat(f"{stem}.{kind}") for kind in ("index", "timeindex")]
            index, time_index = (0 if size is None else size.size for size in sizes)
            found.append((index, time_index))
        return found


def first_batch_timestamp(store: Store, source: SourceSlice) -> int:
    """The greatest timestamp (ms) of a segment's first batch, in one small read; -1 if it has none or is damaged.

    Or missing: a plan is made for all partitions at once, and whoever reads this one will say so.
    """
    try:
        data = store.get(source.file, source.position, min(HEADER_BYTES, source.size))
    except NotFound:
        return -1
    return int(single_header(data).max_timestamp[0]) if begins_with_header(data) else -1


def keyless_by_default(snapshot: Snapshot, settings: Settings) -> dict[int, str]:
    """Partitions that hold records without a key and are compacted by a run's default alone, each with why it is left.

    Whoever sets `cleanup.policy` on a topic is asked about such records, and its writers refuse them from then on. A
    default in a properties file is known to neither: it would drop what is still being written.
    """
    configs = settings.configs_of(snapshot.head.configs)
    if not configs.is_compacted or "cleanup.policy" in snapshot.head.configs.explicit:
        return {}
    rows = snapshot.slices.all()
    found = np.unique(rows.partition[(rows.flags & int(SliceFlag.HAS_NULL_KEYS)) != 0])
    reason = (
        f"topic '{snapshot.topic}' holds records without a key, which compaction would drop, and only the default "
        "log.cleanup.policy makes it compacted; set cleanup.policy on the topic: delete to keep them, compact (with "
        "force) to drop them"
    )
    return dict.fromkeys(found.tolist(), reason)


def plan_cleaning(
    store: Store, snapshot: Snapshot, settings: Settings, *, slots: int | None = None, env: Env = SYSTEM
) -> list[CleanWork]:
    """One pass for each partition that is due, none if the topic is not compacted. Picklable.

    `slots`: of each map, instead of those that the settings' buffer has; `env` gives tasks their ids, hash keys and
    stopwatch.
    """
    head = snapshot.head
    configs = settings.configs_of(head.configs)
    if not configs.is_compacted:
        return []
    rule = RollRule.of(configs, head.topic_id)
    stable = head.last_stable()
    works: list[CleanWork] = []
    for partition in range(head.partitions):
        slices = snapshot.slices.select(partition)
        sealed = slices.sealed().nonzero()[0]
        if not len(sealed):
            continue
        log_end = int(head.log_end[partition])
        segments = tuple(segments_of(slices, partition, log_end, rule))
        all_of_it = source_slices(snapshot.topic, partition, slices)
        producers = bool((slices.flags & int(SliceFlag.KAFKA_PRODUCERS)).any())
        work = CleanWork(
            store=store,
            topic=snapshot.topic,
            topic_id=head.topic_id,
            read_version=head.version,
            partition=partition,
            configs=configs,
            settings=settings,
            sources=all_of_it if producers else all_of_it[: int(sealed[-1]) + 1],
            segments=segments,
            log_start=int(head.log_start[partition]),
            log_end=log_end,
            last_stable=int(stable[partition]),
            cleaned_through=int(head.cleaned_through[partition]),
            ratio=0.0,
            slots=slots,
            env=env,
        )
        found = work.plan()
        if found.chosen:
            works.append(replace(work, ratio=found.ratio))
    return sorted(works, key=lambda work: work.ratio, reverse=True)
