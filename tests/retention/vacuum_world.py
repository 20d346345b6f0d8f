"""A world with files for tests of the vacuum: rewrites, leases, and checks of the guarantees for readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparklog.log.journal.names import append_path, sealed_path
from sparklog.log.state.commit import MERGE, Edit, VersionLease
from sparklog.log.state.invariants import check_state
from sparklog.log.state.rewrites import Input, Rewrite, RewriteIntent
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.root import topic_of
from sparklog.maintenance.work_items import Settings
from sparklog.retention.vacuum import VacuumReport, vacuum
from sparklog.testing.faulty_store import Call, Fault
from sparklog.testing.world import DAY_MS
from tests.log.simulation.watched_world import HookedProcess, WatchedWorld
from tests.support.maintaining import maintain


class VacuumWorld(WatchedWorld):
    """A world with a topic `t` and its maintenance."""

    def settings(self, **more: object) -> Settings:
        return Settings(now_ms=self.now_ms, **more)  # type: ignore[arg-type]

    def vacuum(self, process: HookedProcess | None = None, topic: str = "t", **how: object) -> VacuumReport:
        """Run a vacuum at the current time in this process, or in a new process if `process` is None."""
        chosen = process or self.process()
        return vacuum(topic_of(chosen.root, topic), self.settings(), **how)  # type: ignore[arg-type]

    def append(self, n: int = 1, topic: str = "t") -> list[str]:
        """Append `n` times in another process; return the paths of the files."""
        writer = self.process()
        paths = []
        for _ in range(n):
            target = writer.topic(topic).log.append_target()
            file = writer.upload(target, {0: 2})
            writer.commit([file], target)
            paths.append(file.path)
        return paths

    def rewrite(self, topic: str = "t", *, sealed: bool = False) -> str:
        """Rewrite partition 0 as one file in one commit; return its path."""
        worker = self.process()
        snapshot = worker.topic(topic).log.snapshot()
        rows = snapshot.slices.select(0)
        start, end = int(rows.base[0]), int(rows.end[-1])
        inputs = tuple(
            Input(rows.path(row), int(rows.position[row]), int(rows.base[row]), int(rows.end[row]))
            for row in range(len(rows))
        )
        unique = worker.env.new_id()
        if sealed:
            path = sealed_path(0, snapshot.version, unique, start)
            for suffix in (".index", ".timeindex"):
                self.store.create(f"{topic}/{path.removesuffix('.log')}{suffix}", b"index")
        else:
            path = append_path(snapshot.version, unique)
        self.store.create(f"{topic}/{path}", b"rewritten")
        footer = 0 if sealed else 5
        file = FileSlices(
            path=path,
            size=10 + footer,
            footer_length=footer,
            partition=(0,),
            nbytes=(10,),
            offsets=(end - start,),
            records=(int(rows.records.sum()),),
            min_ts=(1,),
            max_ts=(2,),
            crc=(3,),
            flags=(0,),
            base=(start,),
        )
        intent = RewriteIntent(MERGE, snapshot.state.topic_id, (Rewrite(Edit(0, start, end), inputs),), (file,))
        assert worker.topic(topic).log.commit(intent).commit is not None
        return path

    def hold(self, name: str, version: int | None, expires_ms: int | None = None, topic: str = "t") -> None:
        """Acquire a lease, or release it if `version` is None."""
        hold = None if version is None else VersionLease(version, expires_ms)
        maintain(topic_of(self.process().root, topic), leases={name: hold})

    # -- checks

    def files(self, folder: str = "t/") -> set[str]:
        """Return the existing data files by the paths that commits use."""
        keys = (info.key for info in self.store.list(folder))
        return {key.split("/", 1)[1] for key in keys if "/_log/" not in key}

    def commits(self, topic: str = "t") -> list[int]:  # type: ignore[override]
        """Return the versions of the existing commits."""
        return [int(info.key[-25:-5]) for info in self.store.list(f"{topic}/_log/0")]

    def checkpoints(self, topic: str = "t") -> list[int]:
        """Return the versions of the existing checkpoints."""
        keys = (info.key for info in self.store.list(f"{topic}/_log/checkpoints/"))
        return [int(key[-25:-5]) for key in keys if key.endswith(".json")]

    def assert_promises(self, delay_ms: int = DAY_MS, topic: str = "t", held: Mapping[str, int] | None = None) -> None:
        """Check that the latest state can be read, with all files of versions within the delay or under a lease."""
        states = self.model.topic(topic).states
        for version, state in enumerate(states):
            newer = states[version + 1].time_ms if version + 1 < len(states) else self.now_ms + 1
            if newer > self.now_ms - delay_ms or version in (held or {}).values():
                for piece in state.slices:
                    key = piece.path[1:] if piece.path.startswith("/") else f"{topic}/{piece.path}"
                    assert self.store.stat(key) is not None, f"version {version} of {topic} misses {key}"
        newest = self.process().root.engine.log(topic).snapshot()
        check_state(newest.state, newest.slices)
        assert newest.version == len(states) - 1
        named = [(s.partition, s.base, s.end, s.path) for s in states[-1].slices]
        rows = newest.slices.all()
        found = [(int(rows.partition[i]), int(rows.base[i]), int(rows.end[i]), rows.path(i)) for i in range(len(rows))]
        assert found == named


def meanwhile(process: HookedProcess, number: int, action: Callable[[], object]) -> list[int]:
    """Run `action` before the request of this number of the process; the returned list shows if the action ran."""
    first: list[int] = []
    struck: list[int] = []

    def decide(call: Call) -> Fault | None:
        first.append(call.number)
        if call.number - first[0] == number and not struck:
            struck.append(call.number)
            action()
        return None

    process.store.decide = decide
    return struck


def requests(process: HookedProcess, work: Callable[[], object]) -> int:
    """Return the number of requests of a function."""
    before = process.store.calls.total()
    work()
    return process.store.calls.total() - before
