"""Plans the cleaning passes of a topic, with the dirtiest partition first.

The driver plans from the slice table alone. Only if `max.compaction.lag.ms` is set, it reads one batch header per
segment. If Kafka producers wrote to a partition, a transaction may still be open, which the table does not show.
Therefore, the task replays the batches of these producers, and plans again with the last stable offset. The task may
find that fewer offsets are cleanable than the driver planned, or that no pass is due, but never that more offsets are
cleanable.
"""

from __future__ import annotations

from dataclasses import replace

from sparklog.compaction.clean_range import CleanerOffsets
from sparklog.compaction.clean_work import CleanWork
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.planned_slices import planned_slices
from sparklog.log.state.segments import RollRule, segments_of
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import SliceFlag
from sparklog.maintenance.work_items import Settings
from sparklog.storage.store import Store


def plan_cleaning(
    store: Store, snapshot: Snapshot, settings: Settings, *, slots: int | None = None, env: Env = SYSTEM
) -> list[CleanWork]:
    """Plan a pass for each due partition of a compacted topic. `slots` overrides the size of the key maps."""
    state = snapshot.state
    configs = settings.configs_of(snapshot.topic, state.configs)
    if not configs.is_compacted:
        return []
    rule = RollRule.of(configs, state.topic_id)
    works: list[CleanWork] = []
    for partition in range(state.partitions):
        slices = snapshot.slices.select(partition)
        sealed = slices.sealed().nonzero()[0]
        if not len(sealed):
            continue
        log_end = int(state.log_end[partition])
        segments = tuple(segments_of(slices, partition, log_end, rule))
        all_slices = planned_slices(snapshot.topic, partition, slices)
        producers = bool((slices.flags & int(SliceFlag.KAFKA_PRODUCERS)).any())
        work = CleanWork(
            store=store,
            topic=snapshot.topic,
            topic_id=state.topic_id,
            read_version=state.version,
            partition=partition,
            configs=configs,
            settings=settings,
            sources=all_slices if producers else all_slices[: int(sealed[-1]) + 1],
            segments=segments,
            offsets=CleanerOffsets.of(state, partition),
            ratio=0.0,
            slots=slots,
            env=env,
        )
        planned = work.plan()
        if planned.is_due:
            works.append(replace(work, ratio=planned.ratio))
    return sorted(works, key=lambda work: work.ratio, reverse=True)
