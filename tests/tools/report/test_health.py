"""Notes follow from the contents of a report, and each contains a remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.tools.report.report_data import (
    ATTENTION,
    INFORMATION,
    MANY_COMMITS,
    MANY_UNSEALED,
    Activity,
    Disk,
    GroupFacts,
    GroupPartition,
    OpenTransaction,
    Removal,
    RootReport,
    TopicFacts,
    health,
)
from tests.tools.report.test_page import NOW_MS, report, topic

HOUR_MS = 3_600_000


def texts(found: RootReport) -> list[tuple[str, str, str]]:
    return [(note.level, note.topic, note.text) for note in health(found).notes]


def test_healthy_root_has_no_notes() -> None:
    assert not texts(report(topic()))


def test_each_rule_creates_its_note() -> None:
    base = topic()
    part = base.partitions[0]
    many = replace(base, partitions=(replace(part, unsealed=MANY_UNSEALED + 1),))
    assert "run `sparklog compact`" in texts(report(many))[0][2]
    behind = replace(base, activity=Activity(9000, NOW_MS, 0, 0, MANY_COMMITS + 1))
    assert "since its last checkpoint" in texts(report(behind))[0][2]
    never = replace(base, activity=Activity(MANY_COMMITS, NOW_MS, 0, 0, None))
    assert "no checkpoint" in texts(report(never))[0][2]
    young = replace(base, activity=Activity(MANY_COMMITS - 1, NOW_MS, 0, 0, None))
    assert not texts(report(young))
    ahead = replace(base, partitions=(replace(part, newest_ms=NOW_MS + 86_400_000),))
    assert "timestamps in the future" in texts(report(ahead))[0][2]
    uneven = topic("uneven", (10**9, 10**8, 10**8, 10**8))
    assert texts(report(uneven))[0][0] == INFORMATION
    worse = topic("uneven", (10**9, *[10**7] * 7))
    assert texts(report(worse))[0][:2] == (ATTENTION, "uneven")
    assert (
        "partition 0 has 7.5 times the mean size (1.0 GB); keys are distributed unevenly" in texts(report(worse))[0][2]
    )
    assert not texts(report(topic("small", (10**6, 10, 10, 10))))
    held = OpenTransaction("orders", 0, "job #1", 0, 5, 61_000, 60_000)
    assert "job #1" in texts(report(base, held_back=(held,)))[0][2]
    assert not texts(report(base, held_back=(replace(held, age_ms=59_000),)))
    waste = Removal("gone", "append", "unnamed", 9, 10**9)
    assert "run `sparklog retain`" in texts(report(base, removals=(waste,)))[0][2]


def test_records_that_expired_before_a_group_read_them_are_a_note() -> None:
    part = GroupPartition("orders", 3, 100, 150, 200, 100, 5.0)
    group = GroupFacts("readers", "Empty", None, (part, replace(part, partition=4, offset=150)))
    [(level, name, text)] = texts(report(topic(), groups=(group,)))
    assert (level, name) == (ATTENTION, "orders")
    assert "records expired in 1 partition before group readers read them (partition 3: 50 offsets)" in text


def test_notes_that_need_attention_are_first() -> None:
    uneven = topic("a", (10**9, 10**8, 10**8, 10**8))
    part = replace(uneven.partitions[0], unsealed=MANY_UNSEALED + 1)
    found = texts(report(uneven, replace(topic("b"), partitions=(part,))))
    assert [(level, name) for level, name, _ in found] == [(ATTENTION, "b"), (INFORMATION, "a")]


def held(**changes: object) -> OpenTransaction:
    base = OpenTransaction("orders", 3, "job; x #12", 62, 75, 27 * HOUR_MS, 48 * HOUR_MS)
    return replace(base, **changes)  # type: ignore[arg-type]


def expiring(records: int) -> TopicFacts:
    base = topic()
    first, *others = base.partitions
    rest = [replace(part, expiring=0, next_log_start=part.log_start) for part in others]
    return replace(base, partitions=(replace(first, expiring=records, next_log_start=10 + records), *rest))


def reader(offset: int | None, seconds: float | None) -> GroupFacts:
    return GroupFacts("bill", "Empty", None, (GroupPartition("orders", 0, offset, 10, 100, 5, seconds),))


OPEN = "a transaction has been open for 27 h (job; x #12); read_committed readers wait in partition 3 at offset 62; "
BEHIND = "group bill is behind: "
DELETES = "the next run of `sparklog retain` deletes "


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (report(topic(), held_back=(held(),)), ATTENTION,
         OPEN + "if its producer is dead, run `sparklog transactions abort 'job; x'`"),
        (report(topic(), held_back=(held(timeout_ms=None),)), ATTENTION,
         OPEN + "imported transactions do not time out; end the transaction in Kafka and import again, or run "
         "`sparklog transactions abort`"),
        (report(topic(), held_back=(held(timeout_ms=None),), kind="kafka"), ATTENTION,
         OPEN + "if its producer is dead, run `kafka-transactions.sh --bootstrap-server … abort --topic orders "
         "--partition 3 --start-offset 62`"),
        (report(topic(), held_back=(held(age_ms=HOUR_MS),)), "", ""),
        (report(topic(), held_back=(held(age_ms=None),)), "", ""),
        (report(expiring(3)), INFORMATION, DELETES + "3 of 160 records because of retention.ms or retention.bytes"),
        (report(expiring(80)), ATTENTION, DELETES + "80 of 160 records because of retention.ms or retention.bytes; "
         "to keep them, run `sparklog configs alter orders --add-config retention.ms=-1`"),
        (report(topic(), groups=(reader(10, 86_401),)), ATTENTION,
         BEHIND + "its first unread record is 24 h old; start its consumer, or delete the group if it is no "
         "longer used"),
        (report(topic(), groups=(reader(10, 86_399),)), "", ""),
        (report(topic(), groups=(reader(10, None),)), "", ""),
        (report(expiring(3), groups=(reader(12, 60),)), ATTENTION,
         DELETES + "records that group bill has not read (1 partition, such as 0); run its consumer first, or increase "
         "retention.ms"),
        (report(expiring(3), groups=(reader(13, 60),)), INFORMATION,
         DELETES + "3 of 160 records because of retention.ms or retention.bytes"),
        (report(topic(), disk=Disk(10**9, 49 * 10**6)), ATTENTION,
         "the disk is almost full: 49.0 MB of 1.0 GB are free; shorten retention or add space"),
        (report(topic(sizes=(10**9, 10**9)), disk=Disk(10**9, 0), removals=(Removal("t", "segment", "x", 1, 10**7),)),
         ATTENTION, "the disk is almost full: 0 B of 1.0 GB are free; run `sparklog retain`, which frees 10.0 MB now"),
        (report(topic(), disk=Disk(10**9, 51 * 10**6)), "", ""),
    ],
)  # fmt: skip
def test_each_note_has_a_remedy(facts: RootReport, level: str, text: str) -> None:
    notes = texts(facts)
    assert [(each[0], each[2]) for each in notes][:1] == ([(level, text)] if text else [])
