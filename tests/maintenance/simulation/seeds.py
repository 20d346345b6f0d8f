"""One run per seed: the seed draws the topic, actors, faults and stalls, and `run_seed` checks the result."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from sparklog.compaction.run import CompactOptions
from sparklog.log.state.commit import TxnDecision
from sparklog.log.topic.root import Root, topic_of
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import RetainReport, retain_topic
from sparklog.testing.world import DAY_MS, HOUR_MS
from tests.maintenance.simulation.workload import (
    TOPIC,
    Run,
    appender,
    compactor,
    deleter,
    plans,
    reader,
    recreator,
    retainer,
    transactor,
    upload,
)
from tests.support.compaction import compact_topic
from tests.support.maintaining import maintain
from tests.support.simulation.faults import ANSWERS, CRASHES, DAMAGE, ERRORS, LOST
from tests.support.simulation.runs import Body
from tests.support.simulation.scheduler import expect
from tests.support.simulation.sweeps import Simulation
from tests.support.small_limits import small_limits

CHECKPOINT_COMMITS = 5
"""Checkpoints are frequent, so that short runs delete commits."""
ROUNDS = 6
"""The maximum number of vacuums until nothing more is deleted; two delete all data files."""


def configs(source: random.Random) -> dict[str, str]:
    """Return the configs of a topic: segments of a few batches, and times of hours and days."""
    chosen = {
        "cleanup.policy": source.choice(["compact", "compact", "compact", "delete", "delete", "compact,delete"]),
        "segment.bytes": source.choice(["200", "600", "2000", str(1 << 30)]),
        "segment.ms": str(source.choice([HOUR_MS, 12 * HOUR_MS, 7 * DAY_MS])),
        "index.interval.bytes": source.choice(["0", "100", "4096"]),
        "retention.ms": str(source.choice([-1, HOUR_MS, 8 * HOUR_MS, 2 * DAY_MS])),
        "delete.retention.ms": str(source.choice([0, 6 * HOUR_MS, 2 * DAY_MS])),
        "min.cleanable.dirty.ratio": source.choice(["0.0", "0.0", "0.3", "0.5"]),
        "file.delete.delay.ms": str(source.choice([HOUR_MS, 6 * HOUR_MS, DAY_MS])),
    }
    rare = {
        "segment.index.bytes": "24",
        "segment.jitter.ms": str(HOUR_MS),
        "min.compaction.lag.ms": str(6 * HOUR_MS),
        "max.compaction.lag.ms": str(DAY_MS),
        "retention.bytes": "3000",
        "message.timestamp.type": "LogAppendTime",
    }
    chosen.update((name, text) for name, text in rare.items() if source.random() < 0.15)
    return chosen


FAULTS = {
    **dict.fromkeys(("calm", "slow", "rush", "stalls", LOST), ()),
    "answers": ANSWERS[:2] + ERRORS[1:2],
    "errors": ERRORS + ANSWERS[:2],
    "crashes": CRASHES,
    "damage": DAMAGE,
    "stale": ANSWERS[2:],
}


@dataclass
class MaintenanceRun(Run):
    """Writers, readers and deletions of one topic during compaction and retention."""

    PROFILES: ClassVar[tuple[str, ...]] = (
        "calm",
        "slow",
        "rush",
        "rush",
        "answers",
        "errors",
        "crashes",
        "stalls",
        "everything",
        "damage",
        "stale",
    )

    def __post_init__(self) -> None:
        source = random.Random(f"{self.STREAM} {self.seed}")
        drawn = source.choice(self.PROFILES)
        profile = self.profile = self.profile or drawn
        self.configs = {**configs(source), "inline.records.bytes": str(self.inline)}
        self.inline = None
        self.partitions = source.choice([1, 1, 2, 3])
        self.slots = source.choice([None, None, 4, 8])
        self.keys = source.choice([3, 8])
        self.clean = profile in ("calm", "slow", "rush") and not self.bucket
        self.stalling = profile in ("stalls", "everything")
        self.stale = profile == "stale"
        self.slow = 0.7 if profile in ("slow", "rush") else 0.2
        self.cron = 0.95 if profile == "rush" else 0.5
        super().__post_init__()
        self.source = source

    def play(self) -> None:
        # A cached tail of commits would hide deleted commits.
        tails = 0 if self.seed % 2 else 256
        with small_limits(checkpoint_commits=CHECKPOINT_COMMITS, cached_inline_commits=tails):
            super().play()

    def draw(self) -> None:
        source, profile = self.source, self.draw_profile()
        kinds = self.possible(FAULTS.get(profile, ERRORS + ANSWERS[:2] + CRASHES))
        self.model.least_ways = 1 if profile in ("damage", "stale") else 2
        self.model.losing = self.losses is not None

        def spawn(name: str, make: Callable[..., Body], turns: int, **more: bool) -> None:
            skew_ms = 0 if make is retainer else source.choice([0, 0, 0, source.randint(-HOUR_MS, 4 * 60_000)])
            start_ms = source.randint(0, HOUR_MS) if profile != "rush" else source.randint(0, 100)
            decide = self.stalling_faults(name, [0.005, 0.02, 0.05], kinds, 0.15 if self.stalling else 0.0, 9 * DAY_MS)
            self.world.spawn(name, make(self, decide, turns, **more), skew_ms=skew_ms, start_ms=start_ms)

        if profile == LOST:
            self.lose_objects(source.randint(1, 4), 6 * 3600.0)
        spawn("appender-0", appender, source.randint(2, 6))
        spawn("appender-1", appender, source.randint(1, 4))
        spawn("compactor-0", compactor, source.randint(1, 3))
        spawn("compactor-1", compactor, source.randint(1, 3))
        spawn("retainer-0", retainer, source.randint(1, 3))
        spawn("reader-0", reader, source.randint(1, 3))
        if profile == "rush":
            spawn("compactor-2", compactor, source.randint(2, 4))
        if source.random() < 0.5:
            spawn("retainer-1", retainer, source.randint(1, 3))
        if source.random() < 0.5:
            spawn("transactor", transactor, source.randint(1, 3))
        if source.random() < 0.5:
            spawn("deleter", deleter, source.randint(1, 3))
        if source.random() < 0.4:
            spawn("holder", reader, source.randint(1, 3), holding=True)
        if source.random() < 0.15:
            self.recreating = True
            spawn("recreator", recreator, source.randint(1, 2))

    def check_result(self) -> None:
        self.count("commits", self.model.commits)
        if self.model.knows_newest:
            finish(self)


MAINTENANCE = Simulation(MaintenanceRun, "tests/maintenance/simulation/test_simulation.py")


def finish(run: Run) -> None:
    """Complete delayed work and all maintenance, then check that only referenced files remain."""
    world = run.world
    run.land_late_requests()
    run.check()
    root = run.outsider("finish")
    if run.state.deleted:
        root.create_topic(TOPIC, partitions=run.partitions, configs=run.configs)
    topic = root.topic(TOPIC)
    state = topic.log.state()
    undecided = {(item.txn.id, item.txn.n) for item in state.open}
    resolved = tuple(TxnDecision(*each) for each in sorted(undecided))
    maintain(topic, leases=dict.fromkeys(state.leases), resolved=resolved)
    expect(
        tuple(map(run.records.stable, range(state.partitions))) == run.state.log_end, "the last stable offset stands"
    )
    run.check()
    world.now_ms += 9 * DAY_MS
    # Files based on the latest version may still be committed; a further commit makes them unreferenced.
    target = topic.log.append_target()
    topic.log.commit_append(upload(run, root.env, target), target)
    run.slots = None
    compact(run, root, roll=True)
    run.check()
    rows = topic.log.snapshot().slices.all()
    expect(bool(rows.sealed().all()), "unsealed slices are left after all was rolled")
    # A topic that was damaged during the entire run may not have old files yet.
    least = 1 if run.losses is None else 2
    for number in range(ROUNDS):
        world.now_ms += 9 * DAY_MS
        report = retain(run, root)
        run.check()
        if number == 1:
            check_data_files(run)
        if number + 1 >= least and report.vacuum is not None and not report.vacuum.objects and not report.expired:
            break
    else:
        expect(False, f"the vacuum goes on finding something after {ROUNDS} rounds")
    check_data_files(run)
    check_log_files(run)
    if run.seed % 4 == 0:
        delete(run, root)


def delete(run: Run, root: Root) -> None:
    """Delete the topic: its data remains for the delay and its numbers forever. A recreated topic is another topic."""
    root.delete_topic(TOPIC)
    files = data_files(run)
    retain(run, root)
    expect(data_files(run) == files, "the data of a topic that was deleted just now is gone")
    if run.seed % 8 == 0:
        root.create_topic(TOPIC, partitions=2, configs=run.configs)
        run.check()
    for _ in range(2):
        run.world.now_ms += 2 * DAY_MS
        retain(run, root)
    expect(not data_files(run), f"data of a deleted topic is left: {sorted(data_files(run))[:5]}")
    expect(root.engine.log(TOPIC).refresh().topic_state.version == run.state.version, "the numbering is gone")


def data_files(run: Run) -> set[str]:
    return {info.key for folder in ("append", "sealed") for info in run.store.list(f"{TOPIC}/{folder}/")}


def compact(run: Run, root: Root, *, roll: bool) -> None:
    """Run compaction without faults."""
    report = compact_topic(
        root.topic(TOPIC),
        Settings(now_ms=run.world.now_ms),
        InProcess(),
        CompactOptions(roll=roll),
        plans=plans(run, root.env),
    )
    expect(not report.failures, f"undisturbed, and yet: {report.failures}")


def retain(run: Run, root: Root) -> RetainReport:
    """Run retention and the vacuum without faults."""
    report = retain_topic(topic_of(root, TOPIC), Settings(now_ms=run.world.now_ms))
    expect(not report.failures, f"undisturbed, and yet: {report.failures}")
    return report


def check_data_files(run: Run) -> None:
    """Check that the store contains the referenced files, the indexes of referenced segments, and no other data."""
    named = {piece.path for piece in run.state.slices}
    wanted = {f"{TOPIC}/{path}" for path in named}
    for path in named:
        if path.startswith("sealed/"):
            wanted |= {f"{TOPIC}/{path.removesuffix('.log')}.{kind}" for kind in ("index", "timeindex")}
    found = data_files(run)
    expect(found == wanted, f"left over: {sorted(found - wanted)[:5]}, missing: {sorted(wanted - found)[:5]}")


def check_log_files(run: Run) -> None:
    """Check that the log has only the latest checkpoints, their tables, and all commits since the oldest of them."""
    commits = [int(info.key[-25:-5]) for info in run.store.list(f"{TOPIC}/_log/0")]
    below = [info.key.rsplit("/", 1)[1] for info in run.store.list(f"{TOPIC}/_log/checkpoints/")]
    heads = [int(name[:20]) for name in below if name.endswith(".json")]
    tables = [int(name[:20]) for name in below if name.endswith(".arrow")]
    newest = run.state.version
    few = newest < 4 * CHECKPOINT_COMMITS
    expect(heads == tables or len(heads) < 2, f"heads of checkpoints {heads}, tables {tables}")
    expect(len(heads) >= 2 or few, f"checkpoints {heads} of {newest} versions")
    first = heads[0] if len(heads) >= 2 else 0
    expect(commits == list(range(first, newest + 1)), f"commits {commits}, checkpoints {heads}, newest {newest}")
    # No checkpoint can be written while a commit is lost.
    expect(newest - first <= 4 * CHECKPOINT_COMMITS or run.losses is not None, f"checkpoints {heads}, newest {newest}")
    others = [info.key for info in run.store.list("") if not info.key.startswith(f"{TOPIC}/")]
    expect(others == ["_root.json"], f"foreign objects: {others}")
