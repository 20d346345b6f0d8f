"""Actors that do what maintenance does: merge slices, raise the upload floor and delete files, collect commits."""

from __future__ import annotations

from collections.abc import Callable

from sparklog.errors import Conflict, Corrupt, NotFound, Unavailable
from sparklog.log.journal.names import append_path
from sparklog.log.state.commit import MERGE, Edit
from sparklog.log.state.commit_intents import MaintainIntent
from sparklog.log.state.rewrites import Input, Rewrite, RewriteIntent
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.testing.faulty_store import Decide
from tests.log.simulation.workload import TOPIC, Run
from tests.support.simulation.runs import restarted
from tests.support.simulation.scheduler import Actor


def merger(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Rewrites neighbouring slices of one or two partitions into one file, as one commit of one edit per partition."""

    def body(actor: Actor) -> None:
        left = iter(range(rounds))

        def life() -> None:
            for _ in left:
                try:
                    topic = run.root(actor, decide).topic(TOPIC)
                    snapshot = topic.log.snapshot()
                    plan = planned(actor, snapshot)
                    if plan is not None:
                        run.world.store.create(f"{TOPIC}/{plan.files[0].path}", b"merged")
                        actor.sleep(actor.random.random())
                        outcome = topic.log.commit(plan)
                        run.count("merged" if outcome.commit is not None else "merge dropped")
                except (Unavailable, Conflict, NotFound, Corrupt) as error:
                    actor.note(f"merger: {error.code} {error}")
                    run.count(f"merge {type(error).__name__}")
                actor.sleep(actor.random.random() * 2)

        restarted(run, actor, life)

    return body


def planned(actor: Actor, snapshot: Snapshot) -> RewriteIntent | None:
    """Some run of two or more neighbouring slices in each of some partitions; None if there is none."""
    rows = snapshot.slices.all()
    rewrites = []
    outputs = []
    for partition in range(snapshot.state.partitions):
        span = rows.partition_rows(partition)
        count = span.stop - span.start
        if count < 2 or actor.random.random() < 0.3:
            continue
        first = span.start + actor.random.randint(0, count - 2)
        last = actor.random.randint(first + 1, span.stop - 1)
        chosen = range(first, last + 1)
        start, end = int(rows.base[first]), int(rows.end[last])
        inputs = tuple(
            Input(rows.path(row), int(rows.position[row]), int(rows.base[row]), int(rows.end[row])) for row in chosen
        )
        rewrites.append(Rewrite(Edit(partition, start, end), inputs))
        outputs.append((partition, start, end, int(rows.records[first : last + 1].sum())))
    if not outputs:
        return None
    n = len(outputs)
    file = FileSlices(
        path=append_path(snapshot.version, actor.env.new_id()),
        size=100 * n + 10,
        footer_length=10,
        partition=tuple(item[0] for item in outputs),
        nbytes=(100,) * n,
        offsets=tuple(item[2] - item[1] for item in outputs),
        records=tuple(item[3] for item in outputs),
        min_ts=(1,) * n,
        max_ts=(2,) * n,
        crc=(7,) * n,
        flags=(0,) * n,
        base=tuple(item[1] for item in outputs),
    )
    return RewriteIntent(MERGE, snapshot.state.topic_id, tuple(rewrites), (file,))


def vacuum(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Commits an upload floor, then deletes files begun below it that neither its state nor a later commit names."""

    def body(actor: Actor) -> None:
        store = run.world.store
        for _ in range(rounds):
            actor.sleep(actor.random.random() * 3)
            try:
                topic = run.root(actor, decide).topic(TOPIC)
                state = topic.log.state()
                topic.log.commit(
                    MaintainIntent(state.topic_id, floor=max(0, state.version - actor.random.randint(0, 2)))
                )
                floor = topic.log.state().floor
            except (Unavailable, Conflict, NotFound, Corrupt) as error:
                actor.note(f"vacuum: {error.code} {error}")
                continue
            for info in list(store.list(f"{TOPIC}/append/")):
                path = info.key.removeprefix(f"{TOPIC}/")
                at_floor = any(piece.path == path for piece in run.topic.states[floor].slices)
                if int(path[7:27]) < floor and not at_floor and run.topic.file_versions.get(path, -1) < floor:
                    actor.yield_()
                    store.delete(info.key)
                    run.count("files deleted")

    return body


def collector(run: Run, rounds: int, keep_ms: int) -> Callable[[Actor], None]:
    """Deletes old commits: below the second newest checkpoint, older than `keep_ms`, in any order."""

    def body(actor: Actor) -> None:
        store = run.world.store
        for _ in range(rounds):
            actor.sleep(actor.random.uniform(0.2, 1.5) * keep_ms / 1000)
            heads = [info.key for info in store.list(f"{TOPIC}/_log/checkpoints/") if info.key.endswith(".json")]
            if len(heads) < 2:
                continue
            below = f"{TOPIC}/_log/{heads[-2].rsplit('/', 1)[1]}"
            old = [
                info.key
                for info in store.list(f"{TOPIC}/_log/0")
                if info.key < below and info.modified_ms < run.world.now_ms - keep_ms
            ]
            actor.random.shuffle(old)
            for key in old:
                actor.yield_()
                store.delete(key)
                run.count("collected")

    return body
