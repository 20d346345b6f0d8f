"""A simulation of writers, transactions, groups, added partitions and concurrent copies, with faults and crashes.

Run more seeds with `python -m tests.tools.repartition.test_simulation 0 1000`.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest

from sparklog.errors import SparklogError
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import Root
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore, Seeded
from sparklog.transactions.producer import Transaction, transactional
from tests.support.seeds import REPARTITIONS
from tests.tools.repartition.repartition_world import KEYS, RepartitionWorld, check_copy, check_group

KINDS = (
    *(FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.LATE, FaultKind.TWICE),
    *(FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER),
)
PARTITIONS = 5
GROUPS = ("a", "b", "c")


class Story:
    """The events of one seed in `old`, and runs that copy it, two of them concurrent."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        inline = self.random.choice(["0", "700", "16384"])
        self.world = RepartitionWorld(self.random.randint(1, 4), {"inline.records.bytes": inline}, seed=seed * 1000)
        self.counters: Counter[str] = Counter()
        self.open: Transaction | None = None
        self.is_inside = False

    def run(self) -> None:
        acts = [self.append, self.append, self.transaction, self.grow, self.commit, self.copy, self.copy]
        for _ in range(self.random.randint(6, 14)):
            self.world.now_ms += 1000
            self.random.choice(acts)()
        if self.open is not None:
            self.open.abort()
        committed = {
            name: {place: item.offset for (topic, place), item in offsets.items() if topic == "old"}
            for name in GROUPS
            for offsets in [Groups(self.world.root()).group(name).committed()]
        }
        made = self.world.copy(PARTITIONS, groups=True, step_bytes=self.step_bytes())
        self.check_copy()
        for item in made.groups:
            check_group(self.world.root(), committed[item.group], item)
            self.counters["groups that read again"] += item.again > 0
        assert len(made.groups) == sum(map(bool, committed.values()))
        assert self.world.copy(PARTITIONS).records == 0

    def check_copy(self) -> None:
        check_copy(self.world.root(), PARTITIONS)

    def step_bytes(self) -> int:
        return self.random.choice([300, 900, 5_000])

    def append(self) -> None:
        keys = self.random.choices(KEYS, k=self.random.randint(1, 60))
        partitions = self.world.topic("old").log.state().partitions
        by_hand = self.random.randrange(partitions) if self.random.random() < 0.3 else None
        self.world.topic("old").append(self.world.rows(keys, by_hand))

    def transaction(self) -> None:
        if self.open is not None:
            self.random.choice([self.open.commit, self.open.abort])()
            self.open = None
            return
        transaction = transactional(self.world.root(), f"job {self.world.names}").begin()
        transaction.append("old", self.world.rows(self.random.choices(KEYS, k=5)))
        transaction._prepare_topics()
        self.open = transaction
        self.counters["transactions"] += 1

    def grow(self) -> None:
        if self.random.random() < 0.2:
            topic = self.world.topic("old")
            topic.alter(partitions=topic.log.state().partitions + 1)
            self.counters["grown"] += 1

    def commit(self) -> None:
        """Advance a group in some of the partitions."""
        group = Groups(self.world.root()).group(self.random.choice(GROUPS))
        before = {partition: item.offset for (topic, partition), item in group.committed().items() if topic == "old"}
        offsets = {
            partition: self.random.randint(before.get(partition, 0), limits.last_stable)
            for partition, limits in self.world.topic("old").bounds().items()
            if self.random.random() < 0.8
        }
        if offsets:
            group.alter({"old": offsets})

    def copy(self) -> None:
        """Run a copy that may fail, with another copy between two of its requests."""
        faults = Seeded(self.random, self.random.choice([0, 0.01, 0.05]), KINDS)
        other = self.random.randint(0, 60)

        def decide(call: Call) -> Fault | None:
            if call.number == other and not self.is_inside:
                self.is_inside = True
                try:
                    self.attempt(self.world.root())
                    self.append()
                finally:
                    self.is_inside = False
                self.counters["two at once"] += 1
            return faults(call)

        store = FaultyStore(self.world.store, decide, self.world.sleep)
        try:
            self.attempt(self.world.root(store))
        except (SparklogError, Crash) as error:
            self.counters[f"ended by {type(error).__name__}"] += 1
        store.land()

    def attempt(self, root: Root) -> None:
        made = self.world.copy(PARTITIONS, root=root, groups=self.random.random() < 0.3, step_bytes=self.step_bytes())
        self.counters["copies"] += 1
        self.counters["records"] += made.records


def run(seed: int) -> Counter[str]:
    story = Story(seed)
    story.run()
    return story.counters


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", REPARTITIONS.few())
def test_each_record_is_copied_once_with_any_seed(seeds: range) -> None:
    total: Counter[str] = Counter()
    for seed in seeds:
        total.update(run(seed))
    assert all(total[what] for what in ("copies", "two at once", "transactions", "groups that read again")), total


@pytest.mark.slow
@pytest.mark.parametrize("seeds", REPARTITIONS.many())
def test_each_record_is_copied_once_with_more_seeds(seeds: range) -> None:
    for seed in seeds:
        run(seed)


if __name__ == "__main__":
    counted: Counter[str] = Counter()
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            counted.update(run(number))
        except BaseException as error:
            print("seed", number, type(error).__name__, error, flush=True)
            raise
    print(dict(counted))
