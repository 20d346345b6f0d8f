"""The decision log of an id: races, lost responses, stalls, checkpoints, damage."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sparklog.errors import Conflict, Corrupt, Unavailable
from sparklog.limits import DEFAULT_TRANSACTION_TIMEOUT_MS, Limits
from sparklog.log.decisions import decision
from sparklog.log.decisions.decision import CommitDecision, Decisions, Prepared
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.log.journal import entry_log
from sparklog.log.journal.entry_log import KEEP_MS
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.log.journal.seen_state import RootAccess
from sparklog.log.state.commit import Txn
from sparklog.log.write.append_writer import AppendWriter
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Fault, FaultKind, FaultyStore, Script
from sparklog.testing.world import HOUR_MS, World
from sparklog.testing.wrapper_stores import CountingStore, HookedStore
from sparklog.transactions.producer import transactional
from tests.support.records import rows

A = Prepared("a", "id-a", 1, "c1")
PREFIX = "_transactions/t"


def log_of(world: World, store: Store, name: str = "t") -> DecisionLog:
    return DecisionLog(RootAccess(store, world.env()), name)


def start(log: DecisionLog, run: str = "one") -> Decisions:
    return log.write(lambda base: decision.init(base, run))


def commit(log: DecisionLog, n: int, *prepares: Prepared) -> Decisions:
    return log.write(lambda base: decision.commit(base, n, prepares or (A,), time_ms=1))


def test_entries_are_numbered_and_chained() -> None:
    world = World()
    store = world.store
    log, other = log_of(world, store), log_of(world, store)
    assert other.refresh().number == -1
    start(log)
    assert commit(log, 0).number == 1
    assert commit(log, 1).number == 2
    assert other.current().number == -1
    assert other.deciding(1).newest == 1
    assert other.refresh() == log.current()
    assert [info.key for info in store.list(PREFIX)] == [commit_key(PREFIX, number) for number in range(3)]


def test_a_writer_that_loses_a_race_finds_the_decision() -> None:
    world = World()
    store = world.store
    owner, helper = log_of(world, store), log_of(world, store)
    start(owner)
    helper.refresh()
    commit(owner, 0)
    assert helper.abort(0, decision.BY_TIMEOUT).commit_of(0) is not None
    owner.refresh()
    assert helper.abort(1, decision.BY_TIMEOUT).is_known_aborted(1)
    with pytest.raises(Conflict, match=r"transaction.timeout.ms passed"):
        commit(owner, 1)
    assert owner.current().newest == 1


@pytest.mark.parametrize(
    "kind", [FaultKind.ERROR_AFTER, FaultKind.TWICE, FaultKind.ERROR_BEFORE, FaultKind.FALSE_EXISTS]
)
def test_lost_responses_are_resolved(kind: FaultKind) -> None:
    world = World()
    store = FaultyStore(world.store, Script({("create:commit", 1): Fault(kind)}), world.sleep)
    log = log_of(world, store)
    start(log)
    assert commit(log, 0).number == 1
    assert log_of(world, store).refresh().commit_of(0) is not None


def test_a_write_that_succeeded_before_a_stall_is_found() -> None:
    world = World()
    store = FaultyStore(world.store, Script({}), world.sleep)
    log = log_of(world, store)
    start(log)
    store.decide = Script({("create:commit", 1): Fault(FaultKind.DELAY_AFTER, 2 * HOUR_MS / 1000)})
    assert commit(log, 0).number == 1
    store.decide = Script({("create:commit", 2): Fault(FaultKind.DELAY, 2 * HOUR_MS / 1000)})
    assert commit(log, 1).number == 2


@pytest.mark.parametrize("collected", [False, True])
def test_a_stall_during_which_entries_are_deleted(collected: bool) -> None:
    """The first checkpoint shows that the journal has another entry 1. Without it, the result is unknown."""
    world = World(limits=Limits(checkpoint_entries=2))
    inner = world.store
    other = log_of(world, inner)
    start(other)

    class Sleeper(FaultyStore):
        def create(self, key: str, data: bytes) -> bool:
            for n in range(4):
                commit(other, n)
            for number in range(5):
                inner.delete(commit_key(PREFIX, number))
            if collected:
                inner.delete(checkpoint_key(PREFIX, 1))
            world.now_ms += 2 * HOUR_MS
            return super().create(key, data)

    log = log_of(world, Sleeper(inner, Script({})))
    log.refresh()
    if not collected:
        assert log.abort(0, decision.BY_OWNER).commit_of(0) is not None
        return
    with pytest.raises(Unavailable, match="stalled for more than an hour and its outcome is unknown"):
        log.abort(0, decision.BY_OWNER)


def test_a_checkpoint_avoids_reading_all_entries() -> None:
    world = World(limits=Limits(checkpoint_entries=4))
    store = world.store
    log = log_of(world, store)
    start(log)
    for n in range(10):
        commit(log, n)
    assert log.checkpoints() == [3, 7]
    for number in range(7):
        store.delete(commit_key(PREFIX, number))
    assert log_of(world, store).refresh() == log.current()
    store.replace(checkpoint_key(PREFIX, 7), b"damaged")
    with pytest.raises(Corrupt, match="entry 4 of transactional id 't' is missing"):
        log_of(world, store).refresh()


def test_large_entries_get_checkpoints_earlier() -> None:
    world = World()
    store = world.store
    log = log_of(world, store)
    size = start(log).nbytes
    commit(log, 0)
    assert log.checkpoints() == []
    store.limits = Limits(checkpoint_bytes=4 * size)
    for n in range(1, 6):
        commit(log, n)
    copies = log.checkpoints()
    assert 1 <= len(copies) < 5
    other = log_of(world, store)
    assert other.refresh() == log.current()
    commit(other, 6)
    assert other.known() == log.refresh()
    assert log.checkpoints() in (copies, [*copies, log.current().number])


def test_an_error_for_a_damaged_entry_reports_its_key() -> None:
    world = World()
    store = world.store
    log = log_of(world, store)
    start(log)
    commit(log, 0)
    good = store.get(commit_key(PREFIX, 0))
    store.replace(commit_key(PREFIX, 0), good.replace(b"one", b"two"))
    with pytest.raises(Corrupt, match=r"does not match its CRC-32C.*00000000000000000000.json"):
        log_of(world, store).refresh()
    other = start(log_of(world, store, "u"))
    store.replace(commit_key(PREFIX, 0), store.get(commit_key("_transactions/u", other.number)))
    with pytest.raises(Corrupt, match="expected decisions of 't', found decisions of 'u'"):
        log_of(world, store).refresh()


def test_a_broken_chain_is_corrupt() -> None:
    world = World()
    store, elsewhere = world.store, MemoryStore(world.clock)
    for place in (store, elsewhere):
        log = log_of(world, place)
        start(log, f"run-{id(place)}")
        commit(log, 0)
    store.replace(commit_key(PREFIX, 1), elsewhere.get(commit_key(PREFIX, 1)))
    with pytest.raises(Corrupt, match="the chain of decisions is broken: entry 1"):
        log_of(world, store).refresh()


def test_a_log_that_ends_before_known_entries_is_unavailable() -> None:
    world = World()
    store = world.store
    log = log_of(world, store)
    start(log)
    commit(log, 0)
    store.delete(commit_key(PREFIX, 1))
    world.now_ms += 2 * HOUR_MS
    with pytest.raises(Unavailable, match="ends at entry 0, but this process has already read beyond this entry"):
        log.refresh()


def test_unknown_write_features_stop_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    store: MemoryStore = world.store
    log = log_of(world, store)
    monkeypatch.setattr(entry_log, "KNOWN_WRITE_FEATURES", frozenset({"odd"}))
    first = decision.init(Decisions("t"), "one")
    assert first is not None
    log.write(lambda base: replace(first, write_features=("odd",)) if base.number < 0 else None)
    monkeypatch.setattr(entry_log, "KNOWN_WRITE_FEATURES", frozenset())
    with pytest.raises(ValueError, match="requires the sparklog features odd; upgrade"):
        log.write(partial(decision.init, run="two"))


def history(log: DecisionLog) -> set[int]:
    """Write thirty decisions with other entries in between, and prune all COMMITs from the latest entry. Return the
    committed numbers.
    """
    start(log)
    for n in range(30):
        for part in range(n % 4):
            log.write(partial(decision.prepare, n=n, prepares=(replace(A, version=part),), part=str(part)))
        if n % 3:
            commit(log, n)
        else:
            log.abort(n, decision.BY_OWNER)
        log.write(partial(decision.prune, resolved=range(n + 1)))
    commit(log, 30)
    log.write(partial(decision.prune, resolved=range(30)))
    assert [item.n for item in log.current().commits] == [30]
    return {n for n in range(31) if n % 3 or n == 30}


def test_a_pruned_outcome_is_found_in_the_entry_that_decided_it() -> None:
    world = World()
    store = CountingStore(world.store)
    committed = history(log_of(world, store))
    log = log_of(world, store)
    log.refresh()
    for n in range(31):
        store.reset()
        found = log.outcome(n)
        assert found is not None
        assert (found.commit_of(n) is not None) == (n in committed)
        # Twice the logarithm of the number of entries in between, and the entry that proves that it belongs to this
        # chain.
        store.expect_at_most(get=14)
        assert log.outcome(n) is found
    assert store.counts["get"] <= 14


def test_an_outcome_is_found_although_each_entry_is_damaged_in_its_first_read() -> None:
    """Otherwise, the transaction would count as open, and the last stable offset would go back."""
    world = World()
    committed = history(log_of(world, world.store))
    seen = set[str]()

    def damaged(verb: str, key: str, result: Any) -> Any:
        if verb != "get" or key in seen:
            return result
        seen.add(key)
        return bytes(len(result))

    store = HookedStore(world.store)
    log = log_of(world, store)
    log.refresh()
    store.after = damaged
    for n in (2, 7, 20):
        seen.clear()
        found = log.outcome(n)
        assert found is not None
        assert (found.commit_of(n) is not None) == (n in committed)


def test_an_unclear_transaction_is_aborted_after_entries_may_be_deleted() -> None:
    world = World()
    store = world.store
    history(log_of(world, store))
    world.now_ms += 1_000
    last = commit(log_of(world, store), 31).number
    for number in range(last - 1):
        store.delete(commit_key(PREFIX, number))
    store.create(checkpoint_key(PREFIX, last), store.get(commit_key(PREFIX, last)))
    log = log_of(world, store)
    assert log.refresh().newest == 31
    assert log.outcome(31) is not None
    assert log.outcome(30) is not None
    assert log.outcome(7) is None
    world.now_ms += KEEP_MS - 1_000
    assert not log.has_expired(7)
    world.now_ms += 1
    assert log.has_expired(7)
    assert log.outcome(7) is None


def test_an_entry_with_a_reused_number_is_ignored() -> None:
    world = World()
    store = world.store
    history(log_of(world, store))
    log = log_of(world, store)
    last = log.refresh().number
    entries = [log.kind.decode(store.get(log.key(number)), log.key(number), number) for number in range(last)]
    true = max((item for item in entries if item.newest == 9), key=lambda item: item.number)
    assert true.commit_of(9) is None
    lie = replace(true, op=decision.COMMIT, reason=None, commits=(CommitDecision(9, 1, (A,)),))
    for number in range(true.number + 1):
        store.delete(log.key(number))
    store.create(log.key(lie.number), log.kind.table.encode(lie))
    assert log.outcome(9) is None


def test_commits_to_a_topic_with_an_open_transaction_read_the_time_of_its_oldest_prepare_once() -> None:
    """The next prepares are newer, and the host's clock shows that the timeout is far away."""
    world = World()
    store = CountingStore(world.store)
    root = world.root(store)
    log = root.create_topic("t").log
    transactional(root, "job").begin()
    store.reset()
    for _ in range(5):
        target = log.append_target()
        writer = AppendWriter(target, None, log.env, 1)
        writer.write(rows("x").to_batches()[0])
        log.commit_append(writer.finish(), target, txn=Txn("job", 0))
    for _ in range(3):
        root.topic("t").append(rows("y"))
    assert (store.by_kind["stat", "commit"], store.counts["now_ms"]) == (1, 0)
    # Five seconds before the timeout, an exact clock is necessary.
    world.now_ms += DEFAULT_TRANSACTION_TIMEOUT_MS - 3_000
    root.topic("t").append(rows("y"))
    assert store.counts["now_ms"] == 1
    assert len(root.topic("t").log.state().open) == 5
    world.now_ms += 6_000
    root.topic("t").append(rows("y"))
    assert root.topic("t").log.state().open == ()
