"""Objects, bytes and requests of a topic do not grow with its age."""

from __future__ import annotations

import pytest

from sparklog.doctor.costs import OPENING, PRICES, TAIL, Item, bill
from sparklog.limits import Limits
from sparklog.testing.world import DAY_MS, HOUR_MS
from tests.support.lifetime import Lifetime, Spell

SMALL = Limits(checkpoint_commits=8, checkpoint_entries=8)


def lived(life: Lifetime, days: int) -> list[Spell]:
    of_day = DAY_MS // life.interval_ms
    spells = [*life.live(days * of_day, of_day)]
    assert life.read == life.written, "the reader must have met each record"
    return spells


def check_flat(days: list[Spell], slack: float) -> None:
    """Check that the last week is as large as the week before. Copies of journals are deleted within a week."""
    for what in ("objects", "metadata", "data", "requests"):
        sizes = [{"objects": day.objects, "requests": day.requests.total(), **day.bytes}[what] for day in days]
        assert max(sizes[-7:]) <= slack * max(sizes[-14:-7]), f"{what} of each day: {sizes}"


def test_size_of_a_topic_does_not_grow_with_its_age() -> None:
    life = Lifetime(
        partitions=2, interval_ms=6 * HOUR_MS, records=4, poll_every=4, job_ms=DAY_MS, retention_ms=2 * DAY_MS,
        limits=SMALL, configs={"segment.ms": DAY_MS},
    )  # fmt: skip
    check_flat(lived(life, 28), slack=1.1)
    requests, _, _ = life.opening()
    assert requests.lists == OPENING.lists
    assert requests.gets <= OPENING.gets + SMALL.checkpoint_commits + TAIL.gets, requests


def check_bill(life: Lifetime, day: Spell, names: tuple[str, ...], slack: float) -> None:
    """Check that a month of such days costs what `doctor --cost` prints."""
    computed = {item.name: item.requests for item in bill(life.workload())}
    for name in names:
        counted = life.counted_month(day)[name]
        ratio = Item(name, computed[name]).dollars(PRICES[0]) / Item(name, counted).dollars(PRICES[0])
        assert 1 / slack <= ratio <= slack, (name, ratio, counted, computed[name])


def test_bill_matches_the_counted_requests() -> None:
    """On the fifth day of a small topic, journals have not reached their maximum length; see the test of a month."""
    life = Lifetime(
        partitions=2, interval_ms=HOUR_MS, records=4, poll_every=24, job_ms=6 * HOUR_MS, retention_ms=2 * DAY_MS
    )
    check_bill(life, lived(life, 5)[-1], ("append", "maintain"), slack=1.15)


@pytest.mark.slow
def test_bill_matches_a_month_of_commits() -> None:
    """The topic has sixteen partitions and the limits of a root in production."""
    life = Lifetime(interval_ms=400_000, records=64, poll_every=8, job_ms=3 * HOUR_MS, retention_ms=2 * DAY_MS)
    days = lived(life, 24)
    check_flat(days, slack=1.1)
    check_bill(life, days[-1], ("append", "maintain"), slack=1.1)
    # A store in memory answers some requests of a parallel group before others start.
    check_bill(life, days[-1], ("poll",), slack=1.2)
