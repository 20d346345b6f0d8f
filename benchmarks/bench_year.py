"""A year of a topic: what is left of it, what opening it costs, and its bill, all by count.

Run: `python -m benchmarks year [--commits 6480] [--interval-s 400] [--records 64]`.

The real log, reader and jobs run for a month by a moved clock. Nothing is kept for longer than a week after its
retention time, so from then on objects, bytes and requests of a day must be those of the day before: then a year
leaves what a month leaves, whatever the number of commits. The requests of the last day are multiplied to a month
and compared with those of `sparklog doctor --cost`.
"""

from __future__ import annotations

import argparse

from sparklog.doctor.costs import PRICES, Item, Requests, bill
from sparklog.format.kernels.warm import warm_up
from sparklog.testing.world import DAY_MS
from tests.support.lifetime import Lifetime, Spell

FLAT = 1.1
"""A week may be so much above the one before."""


def main() -> None:
    """Print each day, then the bill."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commits", type=int, default=6_480)
    parser.add_argument("--interval-s", type=int, default=400)
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--poll-every", type=int, default=8)
    parser.add_argument("--retention-days", type=int, default=7)
    chosen = parser.parse_args()
    warm_up()
    life = Lifetime(
        interval_ms=chosen.interval_s * 1000,
        records=chosen.records,
        poll_every=chosen.poll_every,
        retention_ms=chosen.retention_days * DAY_MS,
    )
    days: list[Spell] = []
    for day in life.live(chosen.commits, DAY_MS // life.interval_ms):
        days.append(day)
        requests, trips, milliseconds = life.opening()
        share = day.bytes["metadata"] / day.bytes["data"]
        print(
            f"day {len(days):3}  {day.objects:6,} objects  metadata {day.bytes['metadata'] / 1e6:6.2f} MB, {share:.0%} "
            f"of {day.bytes['data'] / 1e6:.1f} MB  PUT {day.requests['create'] + day.requests['writer']:6,}  "
            f"GET {day.requests['get']:7,}  open {requests.gets:.0f} GET {requests.lists:.0f} LIST, {trips} trips, "
            f"{milliseconds:.0f} ms",
            flush=True,
        )
    print_flatness(days)
    print_bill(life, days[-1])


def print_flatness(days: list[Spell]) -> None:
    """Compare the largest day of the last week with that of the week before: copies of journals come and go."""
    for what in ("objects", "metadata", "requests"):
        sizes = [{"objects": day.objects, "requests": day.requests.total(), **day.bytes}[what] for day in days]
        growth = max(sizes[-7:]) / max(sizes[-14:-7] or sizes)
        print(f"{what}: the last week is {growth:.2f}x of the week before: {'flat' if growth <= FLAT else 'GROWS'}")


def print_bill(life: Lifetime, day: Spell) -> None:
    """A month at the last day's rate, counted and as `sparklog doctor --cost` says."""
    computed = {item.name: item.requests for item in bill(life.workload())}
    for name, counted in life.counted_month(day).items():
        dollars = [Item(name, requests).dollars(PRICES[0]) for requests in (counted, computed[name])]
        print(
            f"{name:8}  a month, counted: {_shown(counted)} ${dollars[0]:.2f}; "
            f"doctor --cost: {_shown(computed[name])} ${dollars[1]:.2f}"
        )


def _shown(requests: Requests) -> str:
    return f"{requests.puts:9,.0f} PUT {requests.gets:11,.0f} GET {requests.lists:7,.0f} LIST"


if __name__ == "__main__":
    main()
