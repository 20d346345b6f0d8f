"""A work item for a cleaning pass, which cleans one partition with a single edit.

If only a part of a pass were committed, deleted keys could reappear. Therefore, the files of a pass are committed only
when all of them are written. All times come from the clock of the run, which does not advance during a pass. The map
contains hashes with a secret that is chosen at random for each pass, so that nobody can prepare record keys with
colliding hashes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from sparklog.compaction.clean_range import Cleanable, CleanerOffsets, cleanable, first_batch_timestamp, group_segments
from sparklog.compaction.cleaner import Cleaner, DirtyRange, PassCounts, SegmentReader, TombstoneRules, fill_map
from sparklog.compaction.producer_state import BatchFilter, PartitionProducers, replay
from sparklog.compaction.segment_writer import SegmentWriter
from sparklog.errors import Conflict, NotFound
from sparklog.format.key_hash import HashKey
from sparklog.format.offset_map import OffsetMap, slot_count
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices, count_files
from sparklog.log.state.commit import COMPACT, Edit, Op
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.rewrites import Rewrite
from sparklog.log.state.segments import Segment
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.maintenance.work_items import Progress, Settings, WorkReport, WorkResult, silent
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A completed cleaning pass. `end_offset` is the new cleaner checkpoint, and `utilization` is the share of used map
    slots.
    """

    plan: Cleanable
    end_offset: int
    utilization: float
    counts: PassCounts = field(default_factory=PassCounts)

    @property
    def segments(self) -> list[Segment]:
        """The segments that the pass rewrote."""
        return [segment for segment in self.plan.segments if segment.base < self.end_offset]


@dataclass(frozen=True, slots=True)
class CleanResult(WorkResult):
    """The result of a pass, which is empty if no pass was due. `more` is True if the map was full, so that another pass
    follows.
    """

    more: bool = False
    cleaned: Cleaned | None = None


@dataclass(frozen=True, slots=True)
class CleanWork:
    """A cleaning pass over a partition, as a `sparklog.maintenance.work_items.Work`."""

    store: Store
    topic: str
    topic_id: str
    read_version: int  # version of the snapshot that contains the offsets
    partition: int
    configs: TopicConfigs
    settings: Settings
    sources: PlannedSlices  # slices up to the last sealed slice, or all slices if Kafka producers wrote
    segments: tuple[Segment, ...]  # all segments, whose rows are rows of `sources`
    offsets: CleanerOffsets
    ratio: float  # dirty ratio at the time of the plan
    slots: int | None = None  # number of map slots, or None to use the buffer size of the settings
    env: Env = SYSTEM
    op: ClassVar[Op] = COMPACT

    @property
    def title(self) -> str:
        return f"compact {self.topic}-{self.partition}"

    @property
    def partitions(self) -> tuple[int, ...]:
        return (self.partition,)

    @property
    def nbytes(self) -> int:
        return sum(segment.size for segment in self.segments if segment.sealed)

    @property
    def file_count(self) -> int:
        return count_files((self.sources,))

    def run(self, progress: Progress = silent) -> CleanResult:
        """Write the remaining records. Raises `Corrupt` for damaged data, and `Conflict` if a file was replaced."""
        started = self.env.now()
        state = self._replay()
        plan = self.plan(state)
        if not plan.is_due or not plan.segments:
            return CleanResult((), (), ())
        files, cleaned = self._pass(plan, state, progress)
        inputs = [self._slice(segment) for segment in cleaned.segments]
        edit = Edit(self.partition, inputs[0].base, inputs[-1].end, cleaned.end_offset)
        counts = cleaned.counts
        report = WorkReport(
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
            seconds=self.env.elapsed_ms(started) / 1000,
        )
        rewrite = Rewrite(edit, tuple(source.input() for source in inputs))
        more = cleaned.end_offset < plan.first_uncleanable
        return CleanResult((rewrite,), files, (report,), more, cleaned)

    def _replay(self) -> PartitionProducers | None:
        if not (self.sources.flags & int(SliceFlag.KAFKA_PRODUCERS)).any():
            return None
        log_start = self.offsets.log_start
        try:
            state = replay(self.store, self.sources, self.offsets.log_end, log_start)
        except NotFound as error:
            raise Conflict(
                f"a file was replaced after this pass was planned; run the compaction again: {error}"
            ) from None
        # Like Kafka's cleaner, ignore transactions that ended below the log start, because their records are not
        # readable.
        aborted = state.aborted
        return replace(state, aborted=aborted.select(aborted.last_offsets >= log_start))

    def plan(self, state: PartitionProducers | None = None) -> Cleanable:
        """Plan the pass. If `state` is None, plan as if no transaction of a Kafka producer were open."""
        offsets = self.offsets
        if state is not None:
            offsets = replace(offsets, last_stable=min(offsets.last_stable, state.last_stable))

        def first_batch_ts(segment: Segment) -> int:
            return first_batch_timestamp(self.store, self._slice(segment))

        return cleanable(self.segments, offsets, self.configs, self.settings.now_ms, first_batch_ts)

    def _pass(
        self, plan: Cleanable, state: PartitionProducers | None, progress: Progress
    ) -> tuple[tuple[FileSlices, ...], Cleaned]:
        """Run the pass, and return its durable files, except files below the log start."""
        settings = self.settings
        hash_key = HashKey.of(self.env.random.getrandbits(128).to_bytes(16, "little"))
        reader = SegmentReader(self.store, self.topic, self.partition, progress)
        dirty = [self._slice(segment) for segment in plan.segments if segment.next_base > plan.first_dirty]
        clean = [self._slice(segment) for segment in plan.segments if segment.base < plan.first_dirty]
        slots = slot_count(settings.dedupe_buffer_bytes) if self.slots is None else self.slots
        expected = sum(source.records for source in dirty)
        offset_map = OffsetMap(slots, settings.dedupe_load_factor, expected=expected)
        dirty_range = DirtyRange(dirty, plan.first_dirty, plan.first_uncleanable)
        survey = fill_map(offset_map, dirty_range, reader, hash_key, state)
        cleaned = Cleaned(plan, offset_map.latest_offset + 1, offset_map.utilization)
        writer = SegmentWriter(
            self.store, self.topic, self.partition, self.read_version, self.env.new_id(), self.configs
        )
        batch_filter = BatchFilter(
            state,
            now_ms=settings.now_ms,
            expiration_ms=settings.producer_expiration_ms,
            first_uncleanable=plan.first_uncleanable,
        )
        retention_ms = self.configs.integer("delete.retention.ms")
        rules = TombstoneRules(settings.now_ms, retention_ms, clean[-1] if clean else None)
        cleaner = Cleaner(offset_map, hash_key, survey, batch_filter, reader, writer, rules)
        stems = [self._slice(segment).file.removesuffix(".log") for segment in cleaned.segments]
        sizes = [(self._size(f"{stem}.index"), self._size(f"{stem}.timeindex")) for stem in stems]
        try:
            for group in group_segments(cleaned.segments, sizes, self.configs, plan.first_uncleanable):
                cleaner.group([self._slice(segment) for segment in group])
            written = writer.close()
        except BaseException:
            writer.discard()
            raise
        # delete-records may have moved the log start beyond the end of a segment, so that the segment is not part of
        # the log.
        files = tuple(file for file in written if file.base[0] + file.offsets[0] > self.offsets.log_start)
        return files, replace(cleaned, counts=cleaner.counts)

    def _slice(self, segment: Segment) -> PlannedSlice:
        return self.sources.row(segment.first_row)

    def _size(self, file: str) -> int:
        """Return the size of an index, or 0 if the index is missing."""
        info = self.store.stat(file)
        return 0 if info is None else info.size
