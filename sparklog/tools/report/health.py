"""Judge a report by its facts alone, without a root: notes of what needs attention, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from shlex import quote

from sparklog.maintenance.overdue import troubles
from sparklog.tools.report.report_data import ATTENTION, INFORMATION, GroupFacts, HeldBack, Note, RootReport, TopicFacts
from sparklog.units import HOUR_MS, count, duration, size_text

MANY_UNSEALED = 500  # slices of one partition: after a run of `sparklog compact` there are some 32
MANY_COMMITS = 1_000  # after the newest checkpoint; writers make one every 128
SOME_SKEW, MUCH_SKEW = 3.0, 4.0  # the largest partition over the mean
SKEW_BYTES = 64 << 20  # below that skew is chance
LONG_OPEN_MS = HOUR_MS
LONG_BEHIND_MS = 24 * HOUR_MS
LEAST_FREE = 0.05  # of the disk


def health(report: RootReport) -> RootReport:
    """Return the report with the notes that follow from it, those that need attention first."""
    notes = [*report.notes, *_transactions(report), *_space(report), *_jobs(report)]
    for group in report.groups or ():
        notes += _group(report, group)
    for topic in report.topics:
        notes += [*_expiry(report, topic), *_layout(report, topic)]
    order = (ATTENTION, INFORMATION)
    return replace(report, notes=tuple(sorted(notes, key=lambda note: (order.index(note.level), note.topic))))


def _transactions(report: RootReport) -> Iterator[Note]:
    late: dict[str, list[HeldBack]] = {}
    long: dict[tuple[str, bool], list[HeldBack]] = {}
    for transaction in report.held_back:
        if transaction.overdue:
            late.setdefault(transaction.topic, []).append(transaction)
        elif transaction.age_ms is not None and transaction.age_ms > LONG_OPEN_MS:
            long.setdefault((transaction.topic, transaction.timeout_ms is None), []).append(transaction)
    for topic, mine in sorted(late.items()):
        hold = f"transactions past their timeout hold readers back ({_owners(mine)})"
        yield Note(ATTENTION, topic, f"{hold}: the next commit or maintenance run aborts them")
    for (topic, kafkas), mine in sorted(long.items()):
        oldest = max(mine, key=lambda transaction: transaction.age_ms or 0)
        where = f"partition {oldest.partition} from offset {oldest.first:,}"
        since = f"open for {duration(oldest.age_ms)} ({_owners(mine)}): readers of committed records wait in {where}"
        if report.kind == "kafka":
            arguments = f"--topic {quote(topic)} --partition {oldest.partition} --start-offset {oldest.first}"
            remedy = f"if its producer is gone, `kafka-transactions.sh --bootstrap-server … abort {arguments}`"
        elif kafkas:
            remedy = "no timeout ends it: import again once Kafka has, or `sparklog transactions abort`"
        else:
            remedy = f"if its producer is gone, `sparklog transactions abort {quote(oldest.owner.rsplit(' #', 1)[0])}`"
        yield Note(ATTENTION, topic, f"a transaction is {since}; {remedy}")


def _owners(mine: list[HeldBack]) -> str:
    owners = list(dict.fromkeys(transaction.owner for transaction in mine))
    return ", ".join(owners[:5]) + (f" and {len(owners) - 5:,} more" if len(owners) > 5 else "")


def _space(report: RootReport) -> Iterator[Note]:
    gone = sum(removal.bytes for removal in report.removals or ())
    if gone > max(report.bytes, 1 << 20):
        waste = f"unreferenced files take {size_text(gone)}, more than the log itself"
        yield Note(ATTENTION, "", f"{waste}, and wait only for the vacuum: run `sparklog retain`")
    disk = report.disk
    if disk is not None and disk.free < LEAST_FREE * disk.total:
        left = f"the disk is almost full: {size_text(disk.free)} of {size_text(disk.total)} are free"
        frees = (
            f"run `sparklog retain`, which frees {size_text(gone)} now" if gone else "shorten retention or add space"
        )
        yield Note(ATTENTION, "", f"{left}; {frees}")


def _jobs(report: RootReport) -> Iterator[Note]:
    for trouble in troubles(report.jobs or ()):
        topic = trouble.topics[0] if len(trouble.topics) == 1 else ""
        yield Note(ATTENTION, topic, f"{trouble.text}; look at `sparklog jobs`, and at the schedule's own log")


def _group(report: RootReport, group: GroupFacts) -> Iterator[Note]:
    lost = [part for part in group.partitions if part.lost]
    if lost:
        first, where = lost[0], count(len(lost), "partition")
        expired = f"records expired before group {group.group} had read them, in {where}"
        remedy = "keep records longer (retention.ms), or run its consumer more often"
        yield Note(ATTENTION, first.topic, f"{expired} (partition {first.partition}: {first.lost:,} offsets); {remedy}")
    starts = {
        (topic.topic, part.partition): part.next_log_start
        for topic in report.topics
        for part in topic.partitions
        if part.expiring
    }
    for topic in dict.fromkeys(part.topic for part in group.partitions):
        mine = [part for part in group.partitions if part.topic == topic and part.offset is not None]
        behind = max((part.seconds_behind or 0 for part in mine), default=0) * 1000
        if behind > LONG_BEHIND_MS:
            lag = f"group {group.group} is behind: its oldest unread record has waited for {duration(behind)}"
            remedy = "start its consumer, or delete the group if it is no longer used"
            yield Note(ATTENTION, topic, f"{lag}; {remedy}")
        losing = [p.partition for p in mine if (p.offset or 0) < (starts.get((topic, p.partition)) or 0)]
        if losing:
            where = f"{count(len(losing), 'partition')}, such as {losing[0]}"
            unread = (
                f"the next run of `sparklog retain` deletes records that group {group.group} has not read ({where})"
            )
            yield Note(ATTENTION, topic, f"{unread}: run its consumer before, or raise retention.ms")


def _expiry(report: RootReport, topic: TopicFacts) -> Iterator[Note]:
    if topic.expiring:
        much = 2 * topic.expiring >= (topic.records or 0)
        of = f"{topic.expiring:,} of {count(topic.records or 0, 'record')}"
        keep = f"`sparklog configs alter {quote(topic.topic)} --add-config retention.ms=-1` keeps them" if much else ""
        text = f"the next run of `sparklog retain` deletes {of}, by retention.ms or retention.bytes"
        yield Note(ATTENTION if much else INFORMATION, topic.topic, f"{text}{'; ' if keep else ''}{keep}")


def _layout(report: RootReport, topic: TopicFacts) -> Iterator[Note]:
    worst = max((part.unsealed or 0 for part in topic.partitions), default=0)
    if worst > MANY_UNSEALED:
        small = f"{worst:,} small slices in one partition"
        yield Note(ATTENTION, topic.topic, f"{small}: reads get slower; run `sparklog compact`, hourly")
    if topic.activity is not None:
        behind = topic.activity.since_checkpoint
        if behind is None and topic.activity.version >= MANY_COMMITS:
            yield Note(ATTENTION, topic.topic, "no checkpoint: every start reads the whole log of commits; run verify")
        elif behind is not None and behind > MANY_COMMITS:
            slow = f"{behind:,} commits since the last checkpoint: starts get slower"
            yield Note(ATTENTION, topic.topic, f"{slow}; run `sparklog verify`")
    if topic.newest_ms is not None and topic.newest_ms > report.now_ms + HOUR_MS:
        kept = "retention.ms keeps their segments until that time has passed; look at the producers' clocks"
        yield Note(ATTENTION, topic.topic, f"records are stamped in the future: {kept}")
    if topic.skew is not None and topic.skew >= SOME_SKEW and topic.bytes > SKEW_BYTES:
        largest = max(topic.partitions, key=lambda part: part.bytes)
        skew = f"partition {largest.partition} holds {topic.skew:.1f} times the mean ({size_text(largest.bytes)})"
        remedy = "keys are spread unevenly: use finer keys, or give the partition with each row"
        yield Note(ATTENTION if topic.skew >= MUCH_SKEW else INFORMATION, topic.topic, f"{skew}; {remedy}")
