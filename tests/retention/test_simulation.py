"""A simulation of weeks with appenders, readers, two mergers and two retention jobs, with faults, crashes and stalls.

An independent model checks the results: files that a reader has planned within `file.delete.delay.ms` exist,
acknowledged records are not lost, and two more runs at the end delete all unreferenced files.
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.errors import Conflict, Corrupt, NotFound, Unavailable
from sparklog.log.state.invariants import check_state
from sparklog.log.topic.root import open_root
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_topic
from sparklog.testing.faulty_store import Decide
from sparklog.testing.world import DAY_MS, HOUR_MS
from tests.log.simulation.maintenance import merger
from tests.log.simulation.workload import TOPIC, Run, plain_appender
from tests.support import seeds as numbers
from tests.support.simulation.faults import ANSWERS, CRASHES, ERRORS
from tests.support.simulation.runs import Body, restarted
from tests.support.simulation.scheduler import Actor, expect
from tests.support.simulation.sweeps import Simulation, Sweep, sweeps

CONFIGS = {"segment.bytes": 150, "retention.ms": -1, "retention.bytes": 1500, "file.delete.delay.ms": DAY_MS}


def retainer(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Run retention and the vacuum from cron."""

    def body(actor: Actor) -> None:
        left = iter(range(rounds))

        def life() -> None:
            for _ in left:
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
                    run.count(item.kind, item.objects)

        restarted(run, actor, life)

    return body


def old_reader(run: Run, rounds: int) -> Callable[[Actor], None]:
    """Plan a scan, and read its files one by one until shortly before the end of the delay."""

    def body(actor: Actor) -> None:
        for _ in range(rounds):
            actor.sleep(actor.random.random() * DAY_MS / 500)
            begun = run.world.now_ms
            try:
                snapshot = run.root(actor).topic(TOPIC).log.snapshot()
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


class RetentionRun(Run):
    """Weeks of appends, merges, retention and slow readers."""

    STREAM = "retention"

    def draw(self) -> None:
        source = self.source
        kinds = self.possible(source.choice([(), ERRORS, CRASHES, ERRORS + ANSWERS + CRASHES]))
        stall_rate = 0.05 if source.random() < 0.5 else 0.0

        def decide(name: str) -> Decide:
            return self.stalling_faults(name, [0.01, 0.05], kinds, stall_rate, 3 * DAY_MS)

        def spawn(name: str, body: Body) -> None:
            self.spawn(name, body, skews=[0, 0, -HOUR_MS, 60_000], within_ms=HOUR_MS)

        setup = self.world.spawn("setup", lambda actor: None)
        open_root(self.world.store, create=True, env=setup.env).create_topic(TOPIC, partitions=2, configs=CONFIGS)
        for number in range(2):
            appends = plain_appender(self, decide(f"a{number}"), 25, source.choice([10_000, 80_000]))
            spawn(f"appender-{number}", appends)
            spawn(f"merger-{number}", slowly(merger(self, decide(f"m{number}"), 1), 12))
            spawn(f"retainer-{number}", retainer(self, decide(f"r{number}"), 15))
            spawn(f"reader-{number}", old_reader(self, 10))

    def check_result(self) -> None:
        super().check_result()
        finish(self)


def slowly(body: Callable[[Actor], None], rounds: int) -> Callable[[Actor], None]:
    """Repeat with pauses of up to a day."""

    def paced(actor: Actor) -> None:
        for _ in range(rounds):
            actor.sleep(actor.random.random() * DAY_MS / 1000)
            body(actor)

    return paced


def finish(run: Run) -> None:
    """Run retention twice, a delay apart, and check that only files of the latest version remain."""
    world = run.world
    run.land_late_requests()
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


RETENTION = Simulation(RetentionRun, "tests/retention/test_simulation.py")
WHAT_HAPPENS = ("acked", "merged", "retained", "append file", "files read")


@sweeps(
    Sweep(
        "disk",
        numbers.RETENTION,
        per_seed=dict.fromkeys((*WHAT_HAPPENS, "commit", "checkpoint"), 1),
        # Conflicts are those of slow writers whose files are below the retention floor.
        at_least={"expired": 1, "append Conflict": 1},
    ),
    Sweep(
        "bucket",
        numbers.RETENTION_IN_A_BUCKET,
        settings=lambda seed: {"bucket": True},
        per_seed=dict.fromkeys(WHAT_HAPPENS, 1),
    ),
)
def test_retention_never_deletes_a_file_that_a_reader_needs(sweep: Sweep, seeds: range) -> None:
    assert RETENTION.sweep(sweep, seeds)


def test_a_seed_is_one_run() -> None:
    RETENTION.assert_repeats(5)


def test_one_seed() -> None:
    assert RETENTION.run_one() > 0
