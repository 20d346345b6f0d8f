"""Random weeks of appenders, readers, two mergers and two jobs of retention at once, under faults, crashes and stalls.

Judged by the simulation's independent model: whatever a reader planned on within `file.delete.delay.ms` is there,
nothing that was acknowledged is lost, and in the end two more runs leave nothing that no version names.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

from sparklog.errors import Conflict, Corrupt, NotFound, Unavailable
from sparklog.log.state.invariants import check_state
from sparklog.log.topic.root import open_root
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_topic
from sparklog.testing.faulty_store import Decide, Seeded
from sparklog.testing.world import DAY_MS, HOUR_MS
from tests.log.simulation.maintenance import merger
from tests.log.simulation.model import expect
from tests.log.simulation.seeds import of_bucket
from tests.log.simulation.simulated_world import Actor
from tests.log.simulation.workload import (
    ANSWERS,
    CRASHES,
    ERRORS,
    TOPIC,
    Run,
    Stalls,
    plain_appender,
    process,
)
from tests.support.replay import replayable
from tests.support.seeds import RETENTION, RETENTION_IN_A_BUCKET

CONFIGS = {"segment.bytes": 150, "retention.ms": -1, "retention.bytes": 1500, "file.delete.delay.ms": DAY_MS}


def calm(call: object) -> None:
    """No faults."""


def retainer(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Retention and vacuum, from cron."""

    def body(actor: Actor) -> None:
        left = [rounds]

        def life() -> None:
            while left[0] > 0:
                left[0] -= 1
                actor.sleep(actor.random.uniform(0.3, 1.5) * DAY_MS / 1000)
                try:
                    topic = run.root(actor, decide).topic(TOPIC)
                    report = retain_topic(topic, Settings(run.world.shared.now_ms()))
                except (Unavailable, Conflict, NotFound, Corrupt) as error:
                    actor.note(f"retention: {error.code} {error}")
                    run.count("retention gave up")
                    continue
                run.count("failed" if report.failed else "retained")
                if report.expired:
                    run.count("expired")
                for item in report.vacuum.removed if report.vacuum else ():
                    run.counters[item.kind] = run.counters.get(item.kind, 0) + item.objects

        process(actor, life)

    return body


def old_reader(run: Run, rounds: int) -> Callable[[Actor], None]:
    """Plans, and reads its files one by one until almost a delay later."""

    def body(actor: Actor) -> None:
        for _ in range(rounds):
            actor.sleep(actor.random.random() * DAY_MS / 500)
            begun = run.world.now_ms
            try:
                snapshot = run.root(actor, calm).topic(TOPIC).log.snapshot()
            except (Unavailable, NotFound, Corrupt) as error:
                actor.note(f"reader: {error}")
                continue
            for path in sorted(snapshot.slices.paths()):
                actor.sleep(actor.random.random() * DAY_MS / 1000 / max(1, len(snapshot.slices)))
                if run.world.now_ms - begun >= DAY_MS:
                    break
                found = run.world.store.stat(f"{TOPIC}/{path}")
                expect(found is not None, f"a reader of version {snapshot.version} misses {path}")
                run.count("files read")

    return body


def simulated(seed: int, *, bucket: bool = False) -> Run:
    """One seed, judged."""
    run = Run(seed)
    if bucket:
        run.world.as_bucket()
    source = random.Random(f"retention {seed}")
    kinds = source.choice([(), ERRORS, CRASHES, ERRORS + ANSWERS + CRASHES])
    kinds = of_bucket(kinds) if bucket else kinds
    stalling = source.random() < 0.5

    def decide(name: str) -> Decide:
        chances = random.Random(f"{seed}/faults/{name}")
        rate = source.choice([0.01, 0.05]) if kinds else 0.0
        return Stalls(Seeded(chances, rate, kinds, 5.0), chances, 0.05 if stalling else 0.0, 3 * DAY_MS)

    world = run.world
    setup = world.spawn("setup", lambda actor: None)
    open_root(world.store, create=True, env=setup.env).create_topic(TOPIC, partitions=2, configs=CONFIGS)

    def spawn(name: str, body: Callable[[Actor], None]) -> None:
        world.spawn(name, body, skew_ms=source.choice([0, 0, -HOUR_MS, 60_000]), start_ms=source.randint(0, HOUR_MS))

    for number in range(2):
        spawn(f"appender-{number}", plain_appender(run, decide(f"a{number}"), 25, source.choice([10_000, 80_000])))
        spawn(f"merger-{number}", slowly(merger(run, decide(f"m{number}"), 1), 12))
        spawn(f"retainer-{number}", retainer(run, decide(f"r{number}"), 15))
        spawn(f"reader-{number}", old_reader(run, 10))
    world.run()
    run.judge()
    finish(run)
    return run


def slowly(body: Callable[[Actor], None], rounds: int) -> Callable[[Actor], None]:
    """Again and again, with up to a day between."""

    def paced(actor: Actor) -> None:
        for _ in range(rounds):
            actor.sleep(actor.random.random() * DAY_MS / 1000)
            body(actor)

    return paced


def finish(run: Run) -> None:
    """All is quiet: two more runs, a delay apart, leave what the newest version names and nothing else."""
    world = run.world
    for store in world.stores:
        world.landing = True
        store.land()
        world.landing = False
    actor = world.spawn("end", lambda actor: None)
    for _ in range(2):
        world.now_ms += 3 * DAY_MS
        topic = open_root(world.store, env=actor.env).topic(TOPIC)
        report = retain_topic(topic, Settings(world.now_ms))
        expect(not report.failed, f"{report.failures}")
    state = run.topic.state
    named = {f"{TOPIC}/{piece.path}" for piece in state.slices}
    found = {info.key for info in world.store.list(f"{TOPIC}/")}
    expect(named <= found, f"files are missing: {sorted(named - found)}")
    floor = topic.log.state().floor
    appended = {key for key in found if key.startswith(f"{TOPIC}/append/")}
    left = {key for key in appended - named if int(key.split("/")[2][:20]) < floor}
    expect(not left, f"orphans are left below the floor {floor}: {sorted(left)}")
    snapshot = topic.log.snapshot()
    check_state(snapshot.state, snapshot.slices)
    expect(snapshot.version == state.version, "the log's newest version is not the model's")
    rows = snapshot.slices.all()
    pieces = list(zip(rows.partition.tolist(), rows.base.tolist(), rows.end.tolist(), strict=True))
    expect(pieces == [(p.partition, p.base, p.end) for p in state.slices], "its slices are not the model's")


def check(seed: int, *, bucket: bool = False) -> Run:
    """Run a seed; a failure names it and how to replay it."""
    with replayable(seed, "tests/retention/test_simulation.py", bucket=bucket):
        return simulated(seed, bucket=bucket)


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", RETENTION.few())
def test_weeks(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen.update(check(seed).counters)
    for what in ("acked", "merged", "retained", "append file", "commit", "checkpoint", "files read"):
        assert seen[what] >= len(seeds), f"too little happened: {what} {seen[what]}"
    assert seen["expired"] > 0
    assert seen["append Conflict"] > 0, "no slow writer met the floor"


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", RETENTION_IN_A_BUCKET.few())
def test_weeks_in_a_bucket(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen.update(check(seed, bucket=True).counters)
    for what in ("acked", "merged", "retained", "append file", "files read"):
        assert seen[what] >= len(seeds), f"too little happened: {what} {seen[what]}"


def test_a_seed_is_one_run() -> None:
    assert check(5).world.trace == check(5).world.trace


def test_one_seed() -> None:
    seed = int(os.environ.get("SPARKLOG_SEED", "3"))
    assert check(seed, bucket="SPARKLOG_BUCKET" in os.environ).world.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", RETENTION.many())
def test_many_weeks(seeds: range) -> None:
    assert sum(check(seed).counters.get("retained", 0) for seed in seeds) > len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", RETENTION_IN_A_BUCKET.many())
def test_many_weeks_in_a_bucket(seeds: range) -> None:
    for seed in seeds:
        assert check(seed, bucket=True).world.failure is None
