"""Plan cleaning passes (Kafka's LogCleanerManager), and run one as a work item: one partition, one edit.

A partition's log falls into three parts (docs/reference/kafka-format.md, the range of a pass):

    clean | dirty, cleanable | not cleanable yet
          first dirty        first uncleanable

Clean is what lies below the cleaner checkpoint, `Head.cleaned_through`. Not cleanable is what follows the last stable
offset, the active segment, and segments that `min.compaction.lag.ms` protects; the bound is moved down to a segment's
base. Unsealed slices count as the active segment, even if Kafka would have rolled it: a run seals before it cleans.

The driver plans from the slice table alone (`plan_cleaning`), the dirtiest partition first. It opens files only where
`max.compaction.lag.ms` is set, for one header each. Where Kafka's producers wrote, one of their transactions may still
be open, which the table does not show. So the task replays their batches, plans again with the last stable offset, and
may return that nothing is due. Less is cleanable then than the driver planned, never more.

Half of a pass would bring deleted keys back, so no file is named until all of it is written. All times come from the
run's clock, which stands still during a pass. The map holds hashes under a key drawn anew for each pass, so that record
keys that erase each other cannot be prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile

import numpy as np

from sparklog.compaction.cleaner import Cleaner, Counts, Reader, TombstoneRules, fill_map
from sparklog.compaction.producer_state import BatchJudge, PartitionProducers, replay
from sparklog.compaction.segment_writer import SegmentWriter
from sparklog.errors import Conflict, NotFound
from sparklog.format.batch_scan import begins_with_header, single_header
from sparklog.format.key_hash import HashKey
from sparklog.format.offset_map import OffsetMap, slots_of
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.format.segment_indexes import MAX_RELATIVE_OFFSET
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices, planned_slices
from sparklog.log.state.commit import COMPACT, Edit
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.rewrites import Rewrite
from sparklog.log.state.segments import RollRule, Segment, segments_of
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.topic_state import Head
from sparklog.maintenance.work_items import Done, PieceReport, Progress, Settings, silent
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The clean, dirty and uncleanable parts of one partition; offsets, and bytes of whole segments before the pass.

    * `first_dirty`: where the pass begins to collect keys; `first_uncleanable`: base of the first segment it leaves
    * `clean_bytes`: segments that begin below `first_dirty`; `cleanable_bytes`: those that hold dirty offsets below
      `first_uncleanable` (one that straddles `first_dirty` counts in both, as in Kafka)
    * `ratio`: cleanable of both, 0.0 where there is nothing
    * `overdue`: the oldest dirty segment began longer than `max.compaction.lag.ms` ago
    * `chosen`: a pass is due; `segments`: closed ones below `first_uncleanable`, clean ones, which it rewrites, too
    """

    partition: int
    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    ratio: float
    overdue: bool
    chosen: bool
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class CleanerOffsets:
    """The offsets of one partition that bound a pass; `cleaned_through` is the cleaner checkpoint."""

    partition: int
    cleaned_through: int
    log_start: int
    log_end: int
    last_stable: int

    @classmethod
    def of(cls, head: Head, partition: int) -> CleanerOffsets:
        return cls(
            partition,
            cleaned_through=int(head.cleaned_through[partition]),
            log_start=int(head.log_start[partition]),
            log_end=int(head.log_end[partition]),
            last_stable=int(head.last_stable()[partition]),
        )


def cleanable(
    segments: Sequence[Segment],
    offsets: CleanerOffsets,
    configs: TopicConfigs,
    now_ms: int,
    first_batch_ts: Callable[[Segment], int],
) -> Cleanable:
    """Part one partition's segments (in offset order, the active one last) and decide if a pass is due.

    `cleaned_through` counts only inside `[log_start, log_end]`; outside of it Kafka starts over at the log start.
    `first_batch_ts` returns the greatest timestamp of a segment's first batch in ms, read from the file. It is called
    only for dirty segments of a topic that sets `max.compaction.lag.ms`.
    """
    closed = list(takewhile(lambda each: each.sealed and not each.active, segments))
    active_base = segments[len(closed)].base if len(closed) < len(segments) else offsets.log_end
    in_log = offsets.log_start <= offsets.cleaned_through <= offsets.log_end
    first_dirty = offsets.cleaned_through if in_log else offsets.log_start
    dirty = _from_offset(closed, first_dirty)

    limits = [offsets.last_stable, active_base]
    min_lag = configs.min_compaction_lag_ms
    if min_lag > 0:
        limits += [each.base for each in dirty if each.max_ts > now_ms - min_lag][:1]
    uncleanable = max(first_dirty, min(limits))
    first_uncleanable = next((each.base for each in _from_offset(closed, uncleanable)), active_base)

    clean_bytes = sum(each.size for each in closed if each.base < first_dirty)
    cleanable_bytes = sum(each.size for each in dirty if each.base < first_uncleanable)
    total = clean_bytes + cleanable_bytes
    ratio = cleanable_bytes / total if total else 0.0
    oldest = now_ms - configs.max_compaction_lag_ms
    limited = "max.compaction.lag.ms" in configs.explicit
    overdue = limited and any(0 < first_batch_ts(each) < oldest for each in dirty)
    min_ratio = float(configs.text("min.cleanable.dirty.ratio"))
    return Cleanable(
        partition=offsets.partition,
        first_dirty=first_dirty,
        first_uncleanable=first_uncleanable,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        ratio=ratio,
        overdue=overdue,
        chosen=total > 0 and (ratio > min_ratio or (overdue and cleanable_bytes > 0)),
        segments=tuple(each for each in closed if each.base < first_uncleanable),
    )


def _from_offset(closed: Sequence[Segment], offset: int) -> Sequence[Segment]:
    """Return the closed segments from the one that contains `offset` on: a segment reaches to the base of the next."""
    return list(dropwhile(lambda each: each.next_base <= offset, closed))


def group_segments(
    segments: Sequence[Segment], index_sizes: Sequence[tuple[int, int]], configs: TopicConfigs, first_uncleanable: int
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


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A pass that ran. `end_offset`: the new cleaner checkpoint; `utilization`: share of map slots in use."""

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
        if not (self.sources.flags & int(SliceFlag.KAFKA_PRODUCERS)).any():
            return None
        log_start = self.offsets.log_start
        try:
            state = replay(self.store, self.sources, self.offsets.log_end, log_start)
        except NotFound as error:
            raise Conflict(f"a file was replaced since this pass was planned; plan again: {error}") from None
        # Kafka's cleaner does not know of those that ended below the log start: no reader sees their records.
        aborted = state.aborted
        return replace(state, aborted=aborted.select(aborted.last_offsets >= log_start))

    def plan(self, state: PartitionProducers | None = None) -> Cleanable:
        """Plan the pass; without `state` as if no transaction of Kafka's producers were open."""
        offsets = self.offsets
        if state is not None:
            offsets = replace(offsets, last_stable=min(offsets.last_stable, state.last_stable))

        def first_batch_ts(segment: Segment) -> int:
            return first_batch_timestamp(self.store, self._slice(segment))

        return cleanable(self.segments, offsets, self.configs, self.settings.now_ms, first_batch_ts)

    def _pass(
        self, plan: Cleanable, state: PartitionProducers | None, progress: Progress
    ) -> tuple[tuple[FileSlices, ...], list[PlannedSlice], Cleaned]:
        settings = self.settings
        hash_key = HashKey.of(self.env.random.getrandbits(128).to_bytes(16, "little"))
        reader = Reader(self.store, self.topic, self.partition, hash_key, progress)
        dirty = [self._slice(each) for each in plan.segments if each.next_base > plan.first_dirty]
        slots = slots_of(settings.dedupe_buffer_bytes) if self.slots is None else self.slots
        offset_map = OffsetMap(slots, settings.dedupe_load_factor, expected=sum(each.records for each in dirty))
        fill_map(offset_map, dirty, reader, state, plan.first_dirty, plan.first_uncleanable)
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
        clean = [self._slice(segment) for segment in plan.segments if segment.base < plan.first_dirty]
        retention_ms = self.configs.integer("delete.retention.ms")
        rules = TombstoneRules(settings.now_ms, retention_ms, clean[-1] if clean else None)
        cleaner = Cleaner(offset_map, judge, reader, writer, rules)
        try:
            for group in groups:
                cleaner.group([self._slice(segment) for segment in group])
            written = writer.close()
        except BaseException:
            writer.discard()
            raise
        # A segment that ends below the log start is not part of the log: delete-records may have cut it.
        files = tuple(file for file in written if file.base[0] + file.offsets[0] > self.offsets.log_start)
        inputs = [self._slice(segment) for segment in segments]
        return files, inputs, Cleaned(plan, end_offset, offset_map.utilization, cleaner.counts)

    def _slice(self, segment: Segment) -> PlannedSlice:
        return self.sources.row(segment.first_row)

    def _index_sizes(self, segments: Sequence[Segment]) -> list[tuple[int, int]]:
        """Return the bytes of each segment's `.index` and `.timeindex`, 0 where one is missing."""
        index_sizes = []
        for segment in segments:
            stem = self._slice(segment).file.removesuffix(".log")
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

    Writers to a topic that sets `cleanup.policy` refuse such records; a default in a properties file they do not know.
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
