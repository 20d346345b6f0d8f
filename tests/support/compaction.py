"""Compaction of one topic that a test has open, and the tier of a merged slice."""

from __future__ import annotations

from sparklog.compaction.run import PLANS, CompactOptions, OnDone, Plans, _run_all, _TopicRun
from sparklog.log.state.slices import MERGE_TIER_MASK, MERGE_TIER_SHIFT
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.report import TopicReport
from sparklog.maintenance.work_items import Runner, Settings

NO_OPTIONS = CompactOptions()


def compact_topic(
    topic: Topic,
    settings: Settings,
    runner: Runner,
    options: CompactOptions = NO_OPTIONS,
    on_done: OnDone | None = None,
    plans: Plans = PLANS,
) -> TopicReport:
    """Seal, merge and, on a topic with `compact`, clean. Failures are in the report, not raised."""
    run = _TopicRun(topic, settings, options.roll, plans)
    _run_all([run], runner, options, on_done)
    return run.report


def merge_tier(flags: int) -> int:
    """Return the tier that a slice's flags name."""
    return (flags & MERGE_TIER_MASK) >> MERGE_TIER_SHIFT
