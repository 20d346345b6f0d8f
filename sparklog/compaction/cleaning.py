"""Plans compaction: which partitions of a topic are due for a cleaning pass, the dirtiest first.

From the slice table alone; the segments' files are opened only where `max.compaction.lag.ms` is set, for one header
each. Where Kafka's producers wrote, a transaction of theirs may still be open, which the table does not show: the task
finds that out and may answer that nothing is due. (Then less is cleanable than the plan believed, never more, so a
partition that is left out here is not due.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparklog.compaction.clean_work import CleanWork
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.read.source_slices import source_slices
from sparklog.log.state.segments import RollRule, segments_of
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.snapshot import Snapshot
from sparklog.maintenance.work import Settings
from sparklog.storage.store import Store


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
