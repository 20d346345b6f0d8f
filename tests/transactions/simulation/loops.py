"""Consume, transform, produce: the output and the offsets of the group are committed together, even if processes die.

The source is topic a, of which only offsets matter. The output of offsets `[start, end)` is a file of generated slices
in other topics. The ranges of all visible files must be contiguous, without gaps or overlaps, up to the committed
offset of the group.
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, SparklogError, Unavailable
from sparklog.groups.group import Group
from sparklog.groups.group_state import GroupState
from sparklog.groups.group_steps import resolved
from sparklog.testing.faulty_store import Decide, FaultKind
from sparklog.transactions.producer import transactional
from tests.support.simulation.runs import restarted
from tests.support.simulation.scheduler import Actor, expect
from tests.transactions.simulation.actors import TIMEOUT_MS, TOPICS, Attempt, Run, fill

SOURCE = TOPICS[0]


def offset_of(state: GroupState) -> int:
    """Return the committed offset of a group in the source."""
    return next((each.offset[0] for each in state.offsets if each.topic == SOURCE), 0)


def loop(run: Run, decide: Decide, group: str, name: str, rounds: int, pace_s: float) -> Callable[[Actor], None]:
    """An instance that joins, continues from the committed offset, and commits each step in a transaction."""

    def body(actor: Actor) -> None:
        left = iter(range(rounds))

        def life() -> None:
            producer = member = None
            position = 0
            for _ in left:
                attempt = Attempt()
                try:
                    if producer is None or member is None:
                        root = run.root(actor, decide)
                        producer = transactional(root, name, timeout_ms=TIMEOUT_MS)
                        member = Group(root, group).join(actor.name)
                        position = offset_of(member.group.stable(2 * TIMEOUT_MS))
                    transaction = producer.begin()
                    end = position + actor.random.randint(1, 5)
                    attempt.span, attempt.span_txn = (group, position, end), (name, transaction.n)
                    run.attempts.append(attempt)
                    topics = actor.random.sample(TOPICS[1:], actor.random.randint(1, 2))
                    fill(run, actor, producer.root, transaction, attempt, topics)
                    transaction.send_offsets(member, {SOURCE: {0: end}})
                    actor.sleep(actor.random.random() * pace_s)
                    if actor.random.random() < 0.15:
                        attempt.outcome = "aborted"
                        transaction.abort()
                        position = offset_of(member.group.stable(2 * TIMEOUT_MS))
                    else:
                        transaction.commit()
                        attempt.outcome = "committed"
                        position = end
                    run.count(f"loop {attempt.outcome}")
                except (Fenced, Conflict, NotFound) as error:
                    actor.note(f"{error.code} {error}")
                    attempt.outcome = "aborted"
                    run.count(f"loop {type(error).__name__}")
                    producer = None
                    actor.sleep(actor.random.random() * 3)
                except (Unavailable, Corrupt, BadRequest) as error:
                    actor.note(f"{error.code} {error}")
                    attempt.outcome = "aborted" if "is aborted" in str(error) else attempt.outcome
                    run.count(f"loop {type(error).__name__}")
                    producer = None

        restarted(run, actor, life)

    return body


def watcher(run: Run, decide: Decide, group: str, looks: int) -> Callable[[Actor], None]:
    """Repeatedly reads the offset of a group: it contains only offsets of COMMITs, and never decreases."""
    stale_reads = FaultKind.ABSENT in getattr(decide, "kinds", ())

    def body(actor: Actor) -> None:
        left = iter(range(looks))

        def life() -> None:
            handle, seen = None, 0
            for _ in left:
                try:
                    handle = handle or Group(run.root(actor, decide), group)
                    state = handle.state()
                    offset = offset_of(state)
                    expect_settled_as_decided(run, handle.log.known(), state)
                    expect(offset >= seen, f"group {group} went back from {seen} to {offset}")
                    expect(
                        offset in committed_ends(run, group), f"group {group} shows {offset}, which nobody committed"
                    )
                    seen = offset
                    run.count("group looks")
                except (SparklogError, OSError) as error:
                    actor.note(f"watcher: {error}")
                    handle = None
                    if stale_reads:
                        seen = 0
                actor.sleep(actor.random.random() * 3)

        restarted(run, actor, life)

    return body


def expect_settled_as_decided(run: Run, raw: GroupState | None, state: GroupState) -> None:
    """Check that offsets that are no longer pending are committed if and only if a COMMIT references them."""
    assert raw is not None
    waiting = {item.number for item in state.pending}
    truth = {
        item.number: (state.id, item.number) in run.ledger.groups.get((item.txn, item.n), set())
        for item in raw.pending
        if item.number not in waiting
    }
    wanted = offset_of(resolved(raw, truth))
    expect(offset_of(state) == wanted, f"group {state.id} is shown at {offset_of(state)}, decided is {wanted}")


def committed_ends(run: Run, group: str) -> set[int]:
    """Return the ends of the ranges that are committed so far, according to the ledger."""
    spans = [
        attempt.span
        for attempt in run.attempts
        if attempt.span is not None
        and attempt.span[0] == group
        and run.ledger.decided.get(attempt.span_txn) is not None
    ]
    return {0, *(span[2] for span in spans)}


def check_spans(run: Run, read: Callable[[str], int], is_visible: Callable[[Attempt], bool]) -> None:
    """Check the end of a run: the ranges with visible output are contiguous up to the committed offset (`read`)."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for attempt in run.attempts:
        if attempt.span is not None:
            own = spans.setdefault(attempt.span[0], [])
            if is_visible(attempt):
                own.append(attempt.span[1:])
    for group, ranges in spans.items():
        at = 0
        for start, end in sorted(ranges):
            expect(start == at, f"group {group}: output of [{start}, {end}) follows offset {at}: {sorted(ranges)}")
            at = end
        found = read(group)
        expect(found == at, f"group {group} stands at {found}, its output at {at}")
