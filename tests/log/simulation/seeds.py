"""The seeds of the commit protocol: each draws actors, faults, clocks and stalls."""

from __future__ import annotations

import random

from sparklog.testing.faulty_store import Decide
from sparklog.testing.world import HOUR_MS
from tests.log.simulation.maintenance import collector, merger, vacuum
from tests.log.simulation.workload import Run, administrator, plain_appender, reader, stream_driver
from tests.support.simulation.faults import ANSWERS, CRASHES, DAMAGE, ERRORS, LATE, LOST, LateCreates
from tests.support.simulation.scheduler import expect
from tests.support.simulation.sweeps import Simulation

CHECKPOINT_COMMITS = 4
"""Where commits are collected, checkpoints are frequent, so that short runs have many; elsewhere they cost time."""
CHECKPOINT_COMMITS_ELSEWHERE = 9
ROLES = (
    "appender",
    "stream",
    "stream",
    "zombie",
    "administrator",
    "reader",
    "reader",
    "merger",
    "vacuum",
)
FAULTS = {
    "calm": (),
    "answers": ANSWERS[:2] + ERRORS[1:2],
    "errors": ERRORS + ANSWERS,
    "crashes": CRASHES,
    "damage": DAMAGE,
    LOST: (),
}
LONG_RUNS = ("stalls", "collector")
LONGEST_STALL_MS = {"stalls": 3 * HOUR_MS, "collector": 5 * HOUR_MS}
PACE_S = {"stalls": HOUR_MS / 2000, "collector": HOUR_MS / 2000, LOST: 15.0}


class LogRun(Run):
    """Appenders, streaming queries, administrators, readers and maintenance over one topic."""

    PROFILES = ("calm", "answers", "errors", "crashes", "everything", "stalls", "collector", "damage")

    def draw(self) -> None:
        source, profile = self.source, self.draw_profile()
        kinds = self.possible(FAULTS.get(profile, ERRORS + ANSWERS + CRASHES))
        longest_ms, pace_s = LONGEST_STALL_MS.get(profile, 60_000), PACE_S.get(profile, 0.0)
        stall_rate = 0.2 if profile in (*LONG_RUNS, "everything") else 0.0
        kinds = () if profile in LONG_RUNS and source.random() < 0.5 else kinds

        def decide(name: str) -> Decide:
            if profile == LATE:
                return LateCreates(random.Random(f"{self.seed}/late/{name}"), 0.4)
            return self.stalling_faults(name, [0.03, 0.1], kinds, stall_rate, longest_ms)

        def skews() -> list[int]:
            return [0, 0, 0, source.randint(-HOUR_MS, 4 * 60_000)]

        count = source.randint(2, 8)
        max_appends = 12 if profile == "collector" else 6
        destructive = source.random() < 0.4
        pause_s = longest_ms / 4000 if profile in LONG_RUNS else 30.0 if profile == LOST else 3.0
        first = plain_appender(self, decide("appender-0"), source.randint(2, max_appends), pace_s)
        self.spawn("appender-0", first, skews=skews())
        for number in range(1, count):
            role = source.choice(ROLES)
            label = f"{role}-{number}"
            plan = decide(label)
            if role == "appender":
                body = plain_appender(self, plan, source.randint(1, max_appends), pace_s)
            elif role == "stream":
                body = stream_driver(self, plan, f"query-{number}", source.randint(2, 5), pace_s)
            elif role == "zombie":
                batches = source.randint(2, 5)
                self.spawn(label, stream_driver(self, plan, "shared", batches, pace_s), skews=skews())
                label += "b"
                body = stream_driver(self, decide(label), "shared", batches, pace_s)
            elif role == "merger":
                body = merger(self, plan, source.randint(2, 4))
            elif role == "vacuum":
                body = vacuum(self, plan, source.randint(1, 3))
            elif role == "administrator":
                body = administrator(self, plan, source.randint(2, 5), destructive=destructive)
            else:
                body = reader(self, plan, source.randint(3, 8), pause_s)
            self.spawn(label, body, skews=skews())
        if profile == LOST:
            self.lose_objects(random.Random(f"losses {self.seed}").randint(1, 4), 60.0)
        if profile == "collector":
            # Keep commits for longer than the hour after which a writer no longer trusts a number.
            self.world.spawn("collector", collector(self, 8, 3 * HOUR_MS // 2))

    def limits(self) -> dict[str, float]:
        # With few checkpoints a lost commit is one that a process reads when it opens the log.
        if self.profile == LOST:
            return {"checkpoint_commits": 40}
        is_frequent = self.profile == "collector" or self.seed % 8 == 0
        return {"checkpoint_commits": CHECKPOINT_COMMITS if is_frequent else CHECKPOINT_COMMITS_ELSEWHERE}

    def check_result(self) -> None:
        super().check_result()
        if self.profile == "calm" and not self.bucket:
            failed = {what: n for what, n in self.counters.items() if what.endswith((" Unavailable", " Corrupt"))}
            expect(not failed, f"no faults were injected, but these failed: {failed}")


LOG = Simulation(LogRun, "tests/log/simulation/test_simulation.py")
