"""What actors do in a random run, and what is asked of each answer they get."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, Unavailable
from sparklog.log.journal.names import append_path
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import Root, open_root
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_output import inline_file, written_slices
from sparklog.log.write.append_target import AppendOutcome, AppendTarget
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Decide, FaultKind
from tests.log.simulation.model import Model, State, TopicModel, WatchedStore
from tests.support.simulation.runs import SimulatedRun, no_faults, restarted
from tests.support.simulation.scheduler import Actor, SimulatedWorld, expect

TOPIC = "t"


@dataclass
class Acked:
    """An append that the code said it made."""

    topic_id: str
    paths: tuple[str, ...]
    outcome: AppendOutcome
    bases: dict[int, int]


@dataclass
class Run(SimulatedRun):
    """A run over one topic: the model, and what was acknowledged."""

    model: Model = field(default_factory=Model)
    acked: list[Acked] = field(default_factory=list)
    acked_batches: list[tuple[str, str, int]] = field(default_factory=list)
    failed_paths: set[str] = field(default_factory=set)
    """Files of appends that failed, and of which the code said that nothing was written."""
    progress: dict[str, int] = field(default_factory=dict)
    """Streaming checkpoints: query -> latest batch whose commit file was written."""

    def create_world(self) -> None:
        store = WatchedStore(lambda: self.world.now_ms, self.model, f"seed-{self.seed}")
        self.world = SimulatedWorld(self.seed, store=store)

    @property
    def topic(self) -> TopicModel:
        return self.model.topic(TOPIC)

    def root(self, actor: Actor, decide: Decide = no_faults, host: str | None = None) -> Root:
        """Open or create the root as a new process."""
        return open_root(actor.store(decide), create=True, env=actor.env)

    def acknowledge(self, target: AppendTarget, files: Sequence[FileSlices], outcome: AppendOutcome) -> None:
        """The code says these files are in the log: check that they are, where it says."""
        if outcome.skipped:
            return
        state = self.topic.states[outcome.version]
        expect(state.topic_id == target.topic_id, f"append for {target.topic_id} acknowledged in {state.topic_id}")
        landed = {path for path, version in self.topic.file_versions.items() if version == outcome.version}
        written = tuple(file.path for file in files if file.path)
        if len(written) < len(files):
            # Those that were not written are one: in the commit, or in a file that the driver has written.
            (joined,) = landed.difference(written)
            written += (joined,)
            self.count("in commits" if joined.startswith("_log/") else "by the driver")
        for path in written:
            named = self.topic.file_versions.get(path)
            expect(named == outcome.version, f"{path} acknowledged at {outcome.version}, the log has it at {named}")
        lowest: dict[int, int] = {}
        for piece in state.slices:
            if piece.version == outcome.version:
                lowest[piece.partition] = min(piece.base, lowest.get(piece.partition, piece.base))
        for partition, base in lowest.items():
            expect(
                outcome.base[partition] == base, f"partition {partition} acknowledged at {outcome.base}, is at {base}"
            )
        expect(outcome.records == sum(sum(file.records) for file in files), "a wrong number of records acknowledged")
        self.acked.append(Acked(target.topic_id, written, outcome, lowest))

    def reject(self, files: Sequence[FileSlices], error: Exception) -> None:
        """Remember the files of a failed append, unless its outcome is unknown."""
        if isinstance(error, Unavailable) and not error.is_unknown:
            self.failed_paths.update(file.path for file in files if file.path)
            self.count("definite failures", bool(files))

    def check_result(self) -> None:
        """At the end: what was acknowledged is in the log exactly once (files are unique by the model's own rule), and
        what failed is not.
        """
        failed = self.failed_paths & self.topic.file_versions.keys()
        expect(not failed, f"an append of {failed} failed without an unknown outcome, but is in the log")
        for item in self.acked:
            for path in item.paths:
                named = self.topic.file_versions.get(path)
                expect(named == item.outcome.version, f"acknowledged {path} is gone from the log")
        for key in self.acked_batches:
            expect(key in self.topic.batch_versions, f"acknowledged batch {key} is not in the log")
        for what, count in (("commits", self.model.commits), ("checkpoints", self.model.checkpoints)):
            self.count(what, count)
        self.count("carried documents", self.model.carried)
        self.count(
            "reported as corrupt", sum(self.counters[f"{who} Corrupt"] for who in ("append", "stream", "reader"))
        )


def slices(
    source: random.Random, target: AppendTarget, records: int, path: str, *, null_keys: bool = False
) -> FileSlices:
    """A made-up append file of `records` records over random partitions."""
    parts = sorted(source.choices(range(target.partitions), k=min(records, source.randint(1, 3))))
    sizes = [1] * len(parts)
    sizes[-1] += records - len(parts)
    n = len(parts)
    return FileSlices(
        path=path,
        size=100 * n + 10,
        footer_length=10,
        partition=tuple(parts),
        nbytes=(100,) * n,
        offsets=tuple(sizes),
        records=tuple(sizes),
        min_ts=(1,) * n,
        max_ts=(2,) * n,
        crc=(7,) * n,
        flags=(1 if null_keys else 0,) * n,
    )


def upload(store: Store, actor: Actor, target: AppendTarget, records: int) -> list[FileSlices]:
    """Write one or two append files, as tasks do; a failed upload is tried again under a new name."""
    files = []
    left = records
    while left:
        part = left if left == 1 or actor.random.random() < 0.7 else left // 2
        if target.inline_bytes and actor.random.random() < 0.6:
            small = slices(actor.random, target, part, "")
            files.append(inline_file(written_slices(small), actor.random.randbytes(sum(small.nbytes))))
            left -= part
            continue
        path = append_path(target.read_version, actor.env.new_id())
        try:
            writer = store.writer(f"{target.topic}/{path}")
            writer.write(b"data")
            writer.close()
        except Unavailable:
            continue
        files.append(slices(actor.random, target, part, path))
        left -= part
    return files


def plain_appender(run: Run, decide: Decide, appends: int, pace_s: float = 0.0) -> Callable[[Actor], None]:
    """Appends without a writer key: after an unknown outcome the records may be there or not, but never twice."""

    def body(actor: Actor) -> None:
        left = iter(range(appends))

        def life() -> None:
            topic: Topic | None = None
            target: AppendTarget | None = None
            for _ in left:
                files: list[FileSlices] = []
                try:
                    if topic is None or actor.random.random() < (0.2 if run.losses is None else 0.5):
                        topic, target = run.root(actor, decide).ensure_topic(TOPIC, partitions=3), None
                    # A long job appends with what it read at its start.
                    if target is None or actor.random.random() < 0.5:
                        target = topic.log.append_target()
                    files = upload(topic.store, actor, target, actor.random.randint(1, 4))
                    outcome = topic.log.commit_append(files, target)
                    run.acknowledge(target, files, outcome)
                    run.count("acked")
                    actor.sleep(actor.random.random() * pace_s)
                except (Unavailable, Conflict, NotFound, Corrupt, Fenced) as error:
                    if isinstance(error, Fenced) and run.losses is None:
                        raise
                    actor.note(f"append: {error.code} {error}")
                    run.count(f"append {type(error).__name__}")
                    run.reject(files, error)
                    topic, target = topic if run.losses is None else None, None
                    actor.sleep(actor.random.random())

        restarted(run, actor, life)

    return body


def batch_records(query: str, batch: int) -> int:
    return random.Random(f"{query}/{batch}").randint(1, 5)


def stream_driver(run: Run, decide: Decide, query: str, batches: int, pace_s: float = 0.0) -> Callable[[Actor], None]:
    """A streaming query's driver: writes the batch after its checkpoint, then its checkpoint. Several may run."""

    def body(actor: Actor) -> None:
        def life() -> None:
            run_id = actor.env.new_id()
            topic = None
            failures = 0
            while run.progress.get(query, -1) < batches - 1 and failures < 10:
                batch = run.progress.get(query, -1) + 1
                try:
                    topic = topic or run.root(actor, decide).ensure_topic(TOPIC, partitions=2)
                    target = topic.log.append_target()
                    files = upload(topic.store, actor, target, batch_records(query, batch))
                    key = WriterKey(query, batch, run_id)
                    outcome = topic.log.commit_append(files, target, writer=key)
                    run.acknowledge(target, files, outcome)
                    present = run.topic.batch_versions.get((target.topic_id, query, batch))
                    expect(
                        present is not None,
                        f"batch {batch} of {query} acknowledged ({outcome}), but it is not in the log",
                    )
                    run.acked_batches.append((target.topic_id, query, batch))
                    run.count("batches" if not outcome.skipped else "replays skipped")
                    actor.sleep(actor.random.random() * pace_s)
                    run.progress[query] = max(run.progress.get(query, -1), batch)
                except Fenced as error:
                    actor.note(f"fenced: {error}")
                    run.count("fenced")
                    return
                except Conflict as error:
                    actor.note(f"conflict: {error}")
                    run.count("stream Conflict")
                    if "checkpoint is older" in str(error):
                        return
                    failures += 1
                    topic = None
                except (Unavailable, NotFound, Corrupt) as error:
                    actor.note(f"batch: {error.code} {error}")
                    run.count(f"stream {type(error).__name__}")
                    failures += 1
                    topic = None
                    actor.sleep(actor.random.random())

        restarted(run, actor, life)

    return body


def administrator(run: Run, decide: Decide, steps: int, *, destructive: bool) -> Callable[[Actor], None]:
    """Creates, alters, deletes records, deletes and re-creates."""

    def body(actor: Actor) -> None:
        left = iter(range(steps))

        def life() -> None:
            for _ in left:
                try:
                    root = run.root(actor, decide)
                    act(actor, root)
                except (Unavailable, Conflict, NotFound, Corrupt, Fenced) as error:
                    if isinstance(error, Fenced) and run.losses is None:
                        raise
                    actor.note(f"administrator: {error.code} {error}")
                    run.count(f"admin {type(error).__name__}")
                actor.sleep(actor.random.random() * 2)

        restarted(run, actor, life)

    def act(actor: Actor, root: Root) -> None:
        what = actor.random.choice(["create", "configs", "partitions", "records", "delete"])
        if what == "create":
            root.create_topic(TOPIC, partitions=2)
        elif what == "delete":
            if destructive:
                root.delete_topic(TOPIC)
                if actor.random.random() < 0.7:
                    root.create_topic(TOPIC, partitions=actor.random.randint(1, 3))
                    run.count("re-created")
        else:
            topic = root.topic(TOPIC)
            state = topic.log.state()
            if what == "configs":
                name = actor.random.choice(["retention.ms", "segment.bytes"])
                topic.alter(configs={name: str(actor.random.randint(10**6, 10**8))})
            elif what == "partitions" and state.partitions < 6:
                try:
                    topic.alter(partitions=state.partitions + 1)
                except BadRequest as error:
                    # Somebody added the partition between our look and our request.
                    expect("can only increase" in str(error), str(error))
            elif what == "records":
                partition = actor.random.randrange(state.partitions)
                end = int(state.log_end[partition])
                topic.delete_records({partition: actor.random.randint(0, end)})
        run.count(what)

    return body


def reader(run: Run, decide: Decide, polls: int, pause_s: float) -> Callable[[Actor], None]:
    """Tails the topic: every snapshot is the log at its version, and as new as the log was when it was asked for."""
    # A handle that was opened before a commit was lost, and has not read it, may stop before it for a while.
    stale_reads = FaultKind.ABSENT in getattr(decide, "kinds", ()) or run.losses is not None

    def body(actor: Actor) -> None:
        left = iter(range(polls))

        def life() -> None:
            topic: Topic | None = None
            tail = Tail(run)
            for _ in left:
                try:
                    topic = topic or run.root(actor, decide).topic(TOPIC)
                    known = len(run.topic.states) - 1
                    tail.take(topic.log.snapshot(), 0 if stale_reads else known)
                    run.count("snapshots")
                except (Unavailable, NotFound, Corrupt, Conflict) as error:
                    actor.note(f"reader: {error.code} {error}")
                    run.count(f"reader {type(error).__name__}")
                    if not isinstance(error, Unavailable):
                        topic, tail = None, Tail(run)
                actor.sleep(actor.random.random() * pause_s)

        restarted(run, actor, life)

    return body


class Tail:
    """One reader's view: versions never go back, and what was read once never changes or goes missing."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.version = -1
        self.topic_id = ""
        self.next: dict[int, int] = {}

    def take(self, snapshot: Snapshot, at_least: int) -> None:
        topic_state = snapshot.state
        expect(
            topic_state.version >= self.version,
            f"a snapshot went back from version {self.version} to {topic_state.version}",
        )
        expect(
            topic_state.version >= at_least,
            f"a snapshot shows version {topic_state.version}, the log had {at_least} before it was taken",
        )
        expect(
            topic_state.version < len(self.run.topic.states),
            f"a snapshot shows version {topic_state.version} that does not exist",
        )
        state = self.run.topic.states[topic_state.version]
        where = f"snapshot at version {topic_state.version}"
        expect(
            (topic_state.topic_id, topic_state.deleted) == (state.topic_id, state.deleted), f"{where}: another topic"
        )
        expect(
            tuple(topic_state.log_start.tolist()) == state.log_start,
            f"{where}: log starts {topic_state.log_start} != {state.log_start}",
        )
        expect(
            tuple(topic_state.log_end.tolist()) == state.log_end,
            f"{where}: log ends {topic_state.log_end} != {state.log_end}",
        )
        expect(tuple(sorted(topic_state.configs.explicit.items())) == state.configs, f"{where}: configs differ")
        expect(topic_state.floor == state.floor, f"{where}: floor differs")
        registry = tuple((name, entry.batch, entry.count) for name, entry in sorted(topic_state.registry.items()))
        expect(registry == state.batches, f"{where}: registry {registry} != {state.batches}")
        rows = snapshot.slices.all()
        names = ("partition", "base", "end", "position", "records")
        found = list(zip(*(getattr(rows, name).tolist() for name in names), strict=True))
        paths = [rows.path(row) for row in range(len(rows))]
        expect(
            found == [(s.partition, s.base, s.end, s.position, s.records) for s in state.slices],
            f"{where}: slices differ",
        )
        expect(paths == [s.path for s in state.slices], f"{where}: slices lie in other files")
        self.version = topic_state.version
        self.consume(state)

    def consume(self, state: State) -> None:
        """Read on from where the last snapshot ended: records come without gaps (nothing here rewrites slices)."""
        if state.topic_id != self.topic_id:
            self.topic_id, self.next = state.topic_id, {}
        for piece in state.slices:
            at = max(self.next.get(piece.partition, 0), state.log_start[piece.partition])
            if piece.end > at:
                expect(piece.base <= at, f"records {at} to {piece.base} of partition {piece.partition} are missing")
                self.next[piece.partition] = piece.end
        for partition, end in enumerate(state.log_end):
            at = max(self.next.get(partition, 0), state.log_start[partition])
            expect(at == end, f"partition {partition} ends at {end}, its records at {at}")
