"""A day of a topic of 16 partitions at one commit a second, with a reader and both jobs by their schedule.

Run: `python -m benchmarks day [--commits 86400] [--interval-ms 1000] [--records 64] [--poll-every 10]`.

By a clock where nothing but time passes: the log, the reader and the jobs are the real ones, the store has a bucket's
ways, and its objects are files. Each hour: CPU time of a commit and of a poll (p95), objects, bytes of
metadata and data, requests, memory of the process that writes and reads, memory that each job, a process of its own,
took besides, and what it costs to open the topic.

`--real [--hours 2.5] [--window-minutes 15] [--results FILE]`: for hours of real time, Spark makes a micro-batch each
second into sparklog, Delta and Iceberg side by side, with their own maintenance: `benchmarks/real_day.py`. The results
are stored after each window. `--page` writes docs/design/day.md from them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from sparklog.doctor.costs import Requests
from sparklog.format.kernels.warm import warm_up
from sparklog.maintenance.job_history import COMPACT, RETAIN
from tests.support.lifetime import Lifetime, Spell

RESULTS = Path(__file__).with_name("day.json")
"""Results of `--real`."""


def main() -> None:
    """Print a line for each hour, then the last against the first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commits", type=int, default=86_400)
    parser.add_argument("--interval-ms", type=int, default=1_000)
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--poll-every", type=int, default=10)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--hours", type=float, default=2.5)
    parser.add_argument("--window-minutes", type=float, default=15)
    parser.add_argument("--only", default="sparklog,delta,iceberg", help="formats of --real, separated by commas")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write docs/design/day.md from the results")
    chosen = parser.parse_args()
    if chosen.real:
        import real_day

        real_day.run(chosen.hours, chosen.window_minutes, chosen.only.split(","), chosen.results)
    if chosen.page:
        import day_page

        day_page.write(json.loads(chosen.results.read_text()))
    if chosen.real or chosen.page:
        return
    warm_up()
    with tempfile.TemporaryDirectory() as disk:
        life = Lifetime(interval_ms=chosen.interval_ms, records=chosen.records, poll_every=chosen.poll_every, disk=disk)
        spells = hours(life, chosen.commits)
    for what in ("appends", "polls"):
        first, last = spells[0].p95(what), spells[-1].p95(what)
        print(f"p95 of {what}: last hour {last:.2f} ms, first {first:.2f} ms: {last / first:.2f}x")


def hours(life: Lifetime, commits: int) -> list[Spell]:
    spells: list[Spell] = []
    print(
        "hour  commit p95  poll p95  objects  metadata MB  data MB  MiB  compact  retain  PUT/s  GET/s  "
        "open: GET LIST trips ms"
    )
    for spell in life.live(commits, 3_600_000 // life.interval_ms):
        spells.append(spell)
        print(line(len(spells), spell, life), flush=True)
    if life.read != life.written - life.written % (life.records * life.poll_every):
        sys.exit(f"the reader got {life.read} of {life.written} records: nothing was measured")
    return spells


def line(hour: int, spell: Spell, life: Lifetime) -> str:
    requests, trips, milliseconds = life.opening()
    made = sum(spell.by_work.values(), Requests()) * (1 / len(spell.appends))
    return (
        f"{hour:4}  {spell.p95('appends'):7.2f} ms  {spell.p95('polls'):5.1f} ms  {spell.objects:7,}  "
        f"{spell.bytes['metadata'] / 1e6:11.1f}  {spell.bytes['data'] / 1e6:7.1f}  {spell.resident_mib:3.0f}  "
        f"{spell.job_mib.get(COMPACT, 0):7.0f}  {spell.job_mib.get(RETAIN, 0):6.0f}  "
        f"{made.puts:5.2f}  {made.gets:5.2f}  {requests.gets:9.0f} {requests.lists:4.0f} {trips:5} {milliseconds:.0f}"
    )


if __name__ == "__main__":
    main()
