"""Plan cleaning passes, and run one as a work item: one partition, one edit, whole or not at all.

The driver plans from the slice table alone (`plan_cleaning`), the dirtiest partition first. It opens files only where
`max.compaction.lag.ms` is set, for one header each. Where Kafka's producers wrote, one of their transactions may still
be open, which the table does not show. So the task replays their batches, plans again with the last stable offset, and
may return that nothing is due. Less is cleanable then than the driver planned, never more.

Half of a pass would bring deleted keys back, so no file is named until all of it is written. All times come from the
run's clock, which stands still during a pass. The map holds hashes under a key drawn anew for each pass, so that record
keys that erase each other cannot be prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sparklog.compaction.cleanable import Cleanable, CleanerOffsets, cleanable
from sparklog.errors import Conflict, NotFound
from sparklog.format.batch_scan import begins_with_header, single_header
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.format.segment_indexes import MAX_RELATIVE_OFFSET
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.read.read_plan import PlannedSlice, PlannedSlices, planned_slices
from sparklog.log.state.commit import COMPACT, Edit
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.rewrites import Rewrite
from sparklog.log.state.segments import RollRule, Segment, segments_of
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.snapshot import Snapshot
from sparklog.maintenance.work_items import Done, PieceReport, Progress, Settings, silent
from sparklog.storage.store import Store


def group_segments(
    segments: Sequence[Segment],
    index_sizes: Sequence[tuple[int, int]],
    configs: TopicConfigs,
    first_uncleanable: int,
) -> list[list[Segment]]:
    """Group neighbouring segments of a pass into one new segment each: Kafka's `Cleaner.groupSegmentsBySize`.

    `segments`: those with a base below the pass's end offset, in offset order; `index_sizes`: bytes of each one's
    `.index` and `.timeindex`. A group ends where the next segment would make the log larger than `segment.bytes`, an
    index larger than `segment.index.bytes`, or a relative offset larger than 31 bits (docs/reference/kafka-format.md).
    Sizes are those before the pass, so a group that loses most of its records becomes a small segment.
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
    from sparklog.compaction.cleaner import Counts
    from sparklog.compaction.producer_state import PartitionProducers


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The outcome of a pass. `end_offset`: the new cleaner checkpoint; `utilization`: share of map slots in use."""

    plan: Cleanable
    end_offset: int
    utilization: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class CleanDone(Done):
    """The files of a cleaning pass. No rewrites, and `cleaned` None: nothing was due.

    `more`: the map was full before the dirty part ended, so another pass follows at once.
    """

    more: bool = False
    cleaned: Cleaned | None = None


@dataclass(frozen=True, slots=True)
class CleanWork:
    """A pass over one partition. See `sparklog.maintenance.work_items.Work`.

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
    sources: PlannedSlices
    segments: tuple[Segment, ...]
    offsets: CleanerOffsets
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
        """Write the records that stay. `Corrupt` names damage; `Conflict`: a file was replaced meanwhile."""
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
        """Replay the batches of Kafka's producers; None if they wrote none."""
        if not (self.sources.flags & int(SliceFlag.KAFKA_PRODUCERS)).any():
            return None
        from sparklog.compaction.producer_state import replay

        try:
            return replay(self.store, self.sources, self.offsets.log_end)
        except NotFound as error:
            raise Conflict(f"a file was replaced since this pass was planned; plan again: {error}") from None

    def plan(self, state: PartitionProducers | None = None) -> Cleanable:
        """Plan the pass; without `state` as if no transaction of Kafka's producers were open."""
        offsets = self.offsets
        if state is not None:
            offsets = replace(offsets, last_stable=min(offsets.last_stable, state.last_stable))

        def first_batch_ts(segment: Segment) -> int:
            return first_batch_timestamp(self.store, self.sources.row(segment.first_row))

        return cleanable(self.segments, offsets, self.configs, self.settings.now_ms, first_batch_ts)

    def _pass(
        self, plan: Cleanable, state: PartitionProducers | None, progress: Progress
    ) -> tuple[tuple[FileSlices, ...], list[PlannedSlice], Cleaned]:
        """Write the new segments; return them, the slices they replace, and the outcome."""
        from sparklog.compaction.batch_judge import AbortedFilter, BatchJudge
        from sparklog.compaction.cleaner import Cleaner, Reader, TombstoneRules, fill_map
        from sparklog.compaction.offset_map import OffsetMap, slots_of
        from sparklog.compaction.segment_writer import SegmentWriter
        from sparklog.format.key_hash import HashKey

        settings = self.settings
        hash_key = HashKey.of(self.env.random.getrandbits(128).to_bytes(16, "little"))
        reader = Reader(self.store, self.topic, self.partition, hash_key, progress)
        dirty = [self.sources.row(each.first_row) for each in plan.segments if each.next_base > plan.first_dirty]
        slots = slots_of(settings.dedupe_buffer_bytes) if self.slots is None else self.slots
        offset_map = OffsetMap(slots, settings.dedupe_load_factor, expected=sum(each.records for each in dirty))
        fill_map(offset_map, dirty, reader, AbortedFilter(state), plan.first_dirty, plan.first_uncleanable)
        end_offset = offset_map.latest_offset + 1
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
        rules = TombstoneRules(settings.now_ms, self.configs.integer("delete.retention.ms"), self._last_clean(plan))
        cleaner = Cleaner(offset_map, judge, reader, writer, rules)
        try:
            for group in groups:
                cleaner.group([self.sources.row(segment.first_row) for segment in group])
            written = writer.close()
        except BaseException:
            writer.discard()
            raise
        # A segment that ends below the log start is not part of the log: delete-records may have cut it.
        files = tuple(file for file in written if file.base[0] + file.offsets[0] > self.offsets.log_start)
        inputs = [self.sources.row(segment.first_row) for segment in segments]
        return files, inputs, Cleaned(plan, end_offset, offset_map.utilization, cleaner.counts)

    def _last_clean(self, plan: Cleanable) -> PlannedSlice | None:
        """Return the last segment that begins below the dirty part."""
        clean = [segment for segment in plan.segments if segment.base < plan.first_dirty]
        return self.sources.row(clean[-1].first_row) if clean else None

    def _index_sizes(self, segments: Sequence[Segment]) -> list[tuple[int, int]]:
        """Return the bytes of each segment's `.index` and `.timeindex`, 0 where one is missing."""
        index_sizes = []
        for segment in segments:
            stem = self.sources.row(segment.first_row).file.removesuffix(".log")
            sizes = [self.store.stat(f"{stem}.{kind}") for kind in ("index", "timeindex")]
            index, time_index = (0 if size is None else size.size for size in sizes)
            index_sizes.append((index, time_index))
        return index_sizes


def first_batch_timestamp(store: Store, source: PlannedSlice) -> int:
    """Return the greatest timestamp (ms) of a segment's first batch; -1 if it has none, is damaged or missing.

    Damage is no error here: the plan covers all partitions, and the pass over this one reports it.
    """
    try:
        data = store.get(source.file, source.position, min(HEADER_BYTES, source.size))
    except NotFound:
        return -1
    return int(single_header(data).max_timestamp[0]) if begins_with_header(data) else -1


def keyless_by_default(snapshot: Snapshot, settings: Settings) -> dict[int, str]:
    """Return the partitions that hold records without a key and are compacted by a run's default only, with a reason.

    A topic that sets `cleanup.policy` has been checked for such records, and its writers refuse them. A default in a
    properties file is known to neither: it would drop records that are still being written.
    """
    configs = settings.configs_of(snapshot.head.configs)
    if not configs.is_compacted or "cleanup.policy" in snapshot.head.configs.explicit:
        return {}
    rows = snapshot.slices.all()
    partitions = np.unique(rows.partition[(rows.flags & int(SliceFlag.HAS_NULL_KEYS)) != 0])
    reason = (
        f"topic '{snapshot.topic}' holds records without a key, which compaction would drop, and only the default "
        "log.cleanup.policy makes it compacted; set cleanup.policy on the topic: delete to keep them, compact (with "
        "force) to drop them"
    )
    return dict.fromkeys(partitions.tolist(), reason)


def plan_cleaning(
    store: Store, snapshot: Snapshot, settings: Settings, *, slots: int | None = None, env: Env = SYSTEM
) -> list[CleanWork]:
    """Plan one pass for each partition that is due, none if the topic is not compacted. Picklable.

    `slots`: size of each map instead of that of the settings' buffer; `env` gives tasks ids, hash keys and a stopwatch.
    """
    head = snapshot.head
    configs = settings.configs_of(head.configs)
    if not configs.is_compacted:
        return []
    rule = RollRule.of(configs, head.topic_id)
    works: list[CleanWork] = []
    for partition in range(head.partitions):
        slices = snapshot.slices.select(partition)
        sealed = slices.sealed().nonzero()[0]
        if not len(sealed):
            continue
        log_end = int(head.log_end[partition])
        segments = tuple(segments_of(slices, partition, log_end, rule))
        all_of_it = planned_slices(snapshot.topic, partition, slices)
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
            offsets=CleanerOffsets.of(head, partition),
            ratio=0.0,
            slots=slots,
            env=env,
        )
        planned = work.plan()
        if planned.chosen:
            works.append(replace(work, ratio=planned.ratio))
    return sorted(works, key=lambda work: work.ratio, reverse=True)
