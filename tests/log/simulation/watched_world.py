"""Single interleavings: processes over one memory store and one clock, with hooks between their requests.

A process does nothing by itself; `at` says what others do right before one of its requests, `after` what they do
between its effect and its answer. The model of `model.py` watches every commit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from sparklog.log.journal.clocks import Env
from sparklog.log.journal.names import append_path
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import Root, open_root
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import AppendOutcome, AppendTarget
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore
from sparklog.testing.world import START_MS, World
from tests.log.simulation.model import Model, TopicModel, WatchedStore

Action = Callable[[], object]


class HookedProcess:
    """One process: a root over a store of its own, clocks of its own, and what happens at its requests."""

    def __init__(self, world: WatchedWorld, skew_ms: int) -> None:
        self.world = world
        self.skew_ms = skew_ms
        self.asleep_ms = 0
        """How much less the boot-time clock has seen: a clock that stands still during sleep."""
        self.faults: dict[tuple[str, int], Fault] = {}
        self.before: dict[tuple[str, int], Action] = {}
        self.between: dict[tuple[str, int], Action] = {}
        self.hidden: Callable[[str], bool] = lambda key: False
        """Keys that a stale cache hides from this process' reads."""
        self._pending: Action | None = None
        self.store = FaultyStore(world.store, self._decide, self._pass_time)
        self.env = Env(
            wall_ms=lambda: world.now_ms + self.skew_ms,
            boot_ms=lambda: world.now_ms - START_MS - self.asleep_ms,
            sleep=self._sleep,
            random=random.Random(f"process {world.started}"),
        )
        self.root: Root = open_root(self.store, create=True, env=self.env)

    def topic(self, name: str = "t") -> Topic:
        return self.root.topic(name)

    def next(self, label: str, skip: int = 0) -> tuple[str, int]:
        """The point of this process' next request with this label."""
        return label, self.store.calls[label] + skip

    def at(self, label: str, action: Action, skip: int = 0) -> None:
        """Do `action` right before the next such request takes effect."""
        self.before[self.next(label, skip)] = action

    def after(self, label: str, action: Action, skip: int = 0) -> None:
        """Do `action` after the next such request took effect, before its answer arrives."""
        self.between[self.next(label, skip)] = action

    def fail(self, label: str, kind: FaultKind, amount: float = 1, skip: int = 0) -> None:
        self.faults[self.next(label, skip)] = Fault(kind, amount)

    def _decide(self, call: Call) -> Fault | None:
        point = call.label, call.nth
        action = self.before.pop(point, None)
        if action is not None:
            action()
        if point in self.between:
            self._pending = self.between.pop(point)
            return Fault(FaultKind.DELAY_AFTER, 0)
        if call.verb in ("get", "stat") and self.hidden(call.key):
            return Fault(FaultKind.ABSENT)
        return self.faults.pop(point, None)

    def _pass_time(self, seconds: float) -> None:
        action, self._pending = self._pending, None
        if action is not None:
            action()
        else:
            self._sleep(seconds)

    def _sleep(self, seconds: float) -> None:
        self.world.now_ms += round(seconds * 1000)

    def target(self) -> AppendTarget:
        return self.topic().log.append_target()

    def append(
        self,
        records: Mapping[int, int],
        target: AppendTarget | None = None,
        writer: WriterKey | None = None,
        **how: object,
    ) -> AppendOutcome:
        """Upload one file with `records` per partition and commit it."""
        target = target or self.target()
        files = [self.upload(target, records, **how)] if records else []  # type: ignore[arg-type]
        return self.commit(files, target, writer)

    def upload(self, target: AppendTarget, records: Mapping[int, int], null_keys: bool = False) -> FileSlices:
        path = append_path(target.read_version, self.env.new_id())
        self.world.store.create(f"{target.topic}/{path}", b"data")
        n = len(records)
        return FileSlices(
            path=path,
            size=10 * n + 5,
            footer_length=5,
            partition=tuple(records),
            nbytes=(10,) * n,
            offsets=tuple(records.values()),
            records=tuple(records.values()),
            min_ts=(1,) * n,
            max_ts=(2,) * n,
            crc=(3,) * n,
            flags=(int(null_keys),) * n,
        )

    def commit(
        self, files: Sequence[FileSlices], target: AppendTarget, writer: WriterKey | None = None
    ) -> AppendOutcome:
        """As a process that has its topic open: no request but those of the commit itself."""
        return self.root.engine.log(target.topic).commit_append(files, target, writer=writer)


class WatchedWorld(World):
    """A store, a clock and a model, with one topic `t` of two partitions."""

    def __init__(self, partitions: int = 2, configs: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.model = Model()
        self.store = WatchedStore(self.clock, self.model, "watched")
        self.started = 0
        self.process().root.create_topic("t", partitions=partitions, configs=configs)

    def process(self, skew_ms: int = 0) -> HookedProcess:
        """A new process, which knows nothing yet."""
        process = HookedProcess(self, skew_ms)
        self.started += 1
        return process

    @property
    def log(self) -> TopicModel:
        """What is true of topic `t`."""
        return self.model.topic("t")

    def commits(self, n: int) -> None:
        """`n` commits by somebody else."""
        other = self.process()
        for _ in range(n):
            other.append({0: 1})

    def collect(self, below: int, *, keep: Sequence[int] = ()) -> None:
        """Delete the commits below a version, as the vacuum will once they are old and two checkpoints lie above."""
        for version in range(below):
            if version not in keep:
                self.store.delete(f"t/_log/{version:020d}.json")

    def times_named(self, file: FileSlices) -> int:
        """How many commits of the log name this file."""
        return sum(1 for path in self.log.file_versions if path == file.path)
