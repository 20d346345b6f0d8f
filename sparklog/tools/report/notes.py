"""What a person should know of a root, judged from its report alone: pure, so that each rule is easily tested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sparklog.tools.report.facts import ATTENTION, INFORMATION, Note, Report, TopicFacts


MANY_UNSEALED = 500
"""Unsealed slices of one partition: after a run of jobs/compact.py there are some 32."""
MANY_COMMITS = 1_000
"""Commits behind the newest checkpoint; writers make one every 128."""
MUCH_SKEW = 3.0
"""The largest partition over the mean."""
SKEW_BYTES = 64 << 20
"""Below that skew is chance."""
FAR_AHEAD_MS = 3_600_000


def health(report: Report) -> Report:
    """The report with the notes that follow from it, what needs attention first."""
    found = [*report.notes, *_of_place(report)]
    for topic in report.topics:
        found += _of_topic(report, topic)
    order = (ATTENTION, INFORMATION)
    return replace(report, notes=tuple(sorted(found, key=lambda note: (order.index(note.level), note.topic))))


def _of_place(report: Report) -> Iterator[Note]:
    by_topic: dict[str, list[str]] = {}
    for held in report.held_back:
        if held.overdue:
            by_topic.setdefault(held.topic, []).append(held.owner)
    for topic, owners in sorted(by_topic.items()):
        names = ", ".join(dict.fromkeys(owners))
        yield Note(
            ATTENTION,
            topic,
            f"transactions past their timeout hold readers back ({names}): the next commit or maintenance run aborts "
            "them",
        )
    for group in report.groups or ():
        lost = [part for part in group.partitions if part.lost]
        if lost:
            first, plural = lost[0], "" if len(lost) == 1 else "s"
            yield Note(
                ATTENTION,
                first.topic,
                f"records expired before group {group.group} had read them, in {len(lost):,} partition{plural} "
                f"(partition {first.partition}: {first.lost:,} offsets)",
            )
    gone = sum(removal.bytes for removal in report.removals or ())
    if gone > max(report.bytes, 1 << 20):
        yield Note(
            ATTENTION, "", "files that nothing needs any more take more space than the log itself: run jobs/retain.py"
        )


def _of_topic(report: Report, topic: TopicFacts) -> Iterator[Note]:
    worst = max((part.unsealed or 0 for part in topic.partitions), default=0)
    if worst > MANY_UNSEALED:
        yield Note(
            ATTENTION,
            topic.topic,
            f"{worst:,} small slices in one partition: reads get slower; run jobs/compact.py, hourly",
        )
    if topic.activity is not None:
        behind = topic.activity.since_checkpoint
        if behind is None and topic.activity.version >= MANY_COMMITS:
            yield Note(ATTENTION, topic.topic, "no checkpoint: every start reads the whole log of commits; run verify")
        elif behind is not None and behind > MANY_COMMITS:
            yield Note(ATTENTION, topic.topic, f"{behind:,} commits since the last checkpoint: starts get slower")
    if topic.newest_ms is not None and topic.newest_ms > report.now_ms + FAR_AHEAD_MS:
        yield Note(
            ATTENTION,
            topic.topic,
            "records are stamped in the future: retention.ms keeps their segments until that time has passed; look at "
            "the producers' clocks",
        )
    if topic.skew is not None and topic.skew >= MUCH_SKEW and topic.bytes > SKEW_BYTES:
        yield Note(
            INFORMATION,
            topic.topic,
            f"the largest partition is {topic.skew:.1f} times the mean: keys are spread unevenly",
        )
