"""Readers that continue from their positions, on hosts that may cache names. Each record is read once, and none is
skipped.

`follower` is a consumer that keeps its positions. `query` is a streaming query, which plans a batch, writes its
checkpoint, and plans the same batch again after a restart, possibly on another host.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparklog.datasource.options import parse_options
from sparklog.datasource.stream_plan import Clock, StreamPlanner
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, Corrupt, NotFound, Unavailable
from sparklog.log.state.slice_table import COMMITTED, PLAIN, Slices
from sparklog.log.topic.root import RootView
from sparklog.opening import ROOT, Location
from sparklog.testing.faulty_store import Decide
from tests.support.simulation.runs import restarted
from tests.support.simulation.scheduler import Actor, expect
from tests.transactions.simulation.actors import TOPICS, Run

Place = tuple[str, int]
Slice = tuple[str, int, int]
"""Topic, partition, first offset."""


@dataclass
class Followed:
    """The positions of a reader, and the slices that it has read."""

    name: str
    positions: dict[Place, int] = field(default_factory=dict)
    got: Counter[Slice] = field(default_factory=Counter)


def shown(rows: Slices, topic: str, partition: int, start: int, end: int) -> list[Slice]:
    """Return the slices of a range that a read_committed reader sees."""
    return [
        (topic, partition, int(rows.base[row]))
        for row in range(len(rows))
        if rows.partition[row] == partition and start <= rows.base[row] < end and rows.status[row] in (PLAIN, COMMITTED)
    ]


def follower(
    run: Run, decide: Decide, host: str, topics: Sequence[str], polls: int, pace_s: float
) -> Callable[[Actor], None]:
    """Repeatedly reads topics from the last positions up to their ends."""

    def body(actor: Actor) -> None:
        left = iter(range(polls))
        followed = Followed(actor.name)
        run.followed.append(followed)

        def life() -> None:
            view = None
            for _ in left:
                try:
                    view = view or RootView(run.root(actor, decide, host))
                    view.refresh(topics)
                    for topic in topics:
                        for partition, bounds in view.bounds(topic).items():
                            topic_partition = topic, partition
                            start, end = followed.positions.get(topic_partition, 0), bounds.last_stable
                            if start < end:
                                rows = view.snapshot(topic).slices.all()
                                followed.got.update(shown(rows, topic, partition, start, end))
                                followed.positions[topic_partition] = end
                    run.count("follower polls")
                except (Unavailable, Corrupt, NotFound, BadRequest) as error:
                    actor.note(f"follower: {error.code} {error}")
                    run.count(f"follower {type(error).__name__}")
                    view = None
                actor.sleep(actor.random.random() * pace_s)

        restarted(run, actor, life)

    return body


@dataclass
class Checkpoint:
    """The checkpoint of a streaming query: the latest planned batch, and whether it is complete."""

    start: dict[str, object] | None = None
    end: dict[str, object] | None = None
    is_done: bool = True
    planned: set[Slice] = field(default_factory=set)


def query(run: Run, decide: Decide, hosts: Sequence[str], batches: int, loss: str) -> Callable[[Actor], None]:
    """A streaming query that is restarted repeatedly, each time on one of the hosts."""

    def body(actor: Actor) -> None:
        left = [batches]
        followed = Followed(actor.name)
        run.followed.append(followed)
        kept = Checkpoint()

        def life() -> None:
            while left[0] > 0:
                try:
                    view = RootView(run.root(actor, decide, actor.random.choice(hosts)))
                    planner = planner_of(view, actor, loss)
                    go_on(planner, view)
                except (Unavailable, Corrupt, BadRequest) as error:
                    actor.note(f"query: {error.code} {error}")
                    run.count(f"query {type(error).__name__}")
                    left[0] -= 1
                    actor.sleep(actor.random.random() * 3)

        def go_on(planner: StreamPlanner, view: RootView) -> None:
            if not kept.is_done:
                run.count("batches planned again")
                done(planner, view)
            start = planner.initial() if kept.end is None else kept.end
            for _ in range(actor.random.randint(1, 3)):
                left[0] -= 1
                end = stored(planner.latest(start, limited=True))
                if end != start:
                    kept.start, kept.end, kept.is_done = start, end, False
                    kept.planned = slices(planner, view)
                    if actor.random.random() < 0.4:
                        return  # it dies, and the batch is planned again
                    done(planner, view)
                    start = end
                actor.sleep(actor.random.random() * 3)

        def slices(planner: StreamPlanner, view: RootView) -> set[Slice]:
            assert kept.start is not None
            assert kept.end is not None
            found: set[Slice] = set()
            for part in planner.ranges(kept.start, kept.end):
                rows = view.snapshot(part.topic).slices.all()
                found |= set(shown(rows, part.topic, part.partition, part.start, part.end))
            return found

        def done(planner: StreamPlanner, view: RootView) -> None:
            found = slices(planner, view)
            expect(found == kept.planned, f"a batch was planned as {kept.planned}, and after a restart as {found}")
            followed.got.update(found)
            kept.is_done = True
            for topic in TOPICS:
                for p, offset in dict(kept.end or {}).get(topic, {}).items():  # type: ignore[attr-defined]
                    followed.positions[topic, int(p)] = offset
            run.count("query batches")

        restarted(run, actor, life)

    return body


def planner_of(view: RootView, actor: Actor, loss: str) -> StreamPlanner:
    """Return the planner of a query across all topics, from their start."""
    options = {"subscribe": ",".join(TOPICS), "startingoffsets": "earliest", "failondataloss": loss}
    read = parse_options(options).read
    subscriber = Subscriber(view, Location(ROOT, "/log", "/log"), read.subscription)
    return StreamPlanner(view, subscriber, read, Clock(lambda: actor.env.boot_ms() / 1000, actor.sleep))


def stored(document: Mapping[str, object]) -> dict[str, object]:
    """Encode and decode offsets, like Spark's checkpoint."""
    found: dict[str, object] = json.loads(json.dumps(document))
    return found


def check_followers(run: Run, rows_of: Callable[[str], Slices]) -> None:
    """Check the end of a run: each follower has read each visible slice below its positions exactly once."""
    rows = {topic: rows_of(topic) for topic in TOPICS}
    for followed in run.followed:
        wanted: Counter[Slice] = Counter()
        for (topic, partition), end in followed.positions.items():
            wanted.update(shown(rows[topic], topic, partition, 0, end))
        lost, more = wanted - followed.got, followed.got - wanted
        expect(not lost, f"{followed.name} was never shown {sorted(lost)}")
        expect(not more, f"{followed.name} got {sorted(more)}, which is not there, or was given before")
