"""Entries of a decision log: their encoding, and the result of each step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced
from sparklog.log.decisions import decision
from sparklog.log.decisions.decision import (
    DECISION_JSON,
    DECISIONS,
    CommitDecision,
    Decisions,
    Prepared,
    PreparedGroup,
)
from sparklog.log.journal.names import check_id, id_folder, transactions_prefix
from sparklog.log.state.commit import TxnDecision
from sparklog.log.state.writer_runs import WriterKey

A1 = Prepared("a", "id-a", 1, "c1")
A2 = Prepared("a", "id-a", 2, "c2")
B7 = Prepared("b", "id-b", 7, "c7")
JOB = Prepared("b", "id-b", 9, "c9", "job")
GROUP = PreparedGroup("g", 3)


def started(run: str = "one", id_: str = "t") -> Decisions:
    state = decision.init(Decisions(id_), run)
    assert state is not None
    return replace(state, number=0)


def committed(state: Decisions, n: int, *prepares: Prepared, **how: object) -> Decisions:
    after = decision.commit(state, n, prepares, time_ms=5, **how)  # type: ignore[arg-type]
    assert after is not None
    return replace(after, number=state.number + 1)


def test_an_entry_is_decoded_as_encoded() -> None:
    state = committed(started(id_="ö/1"), 0, A1, B7, groups=[GROUP])
    state = replace(state, commit_id="x", prev_crc=3, time_ms=9, batch=4, count=8, prepared=(JOB,))
    state = replace(state, prepared_groups=(PreparedGroup("h", 9, "job"),))
    found = DECISIONS.decode(DECISION_JSON.encode(state), "k", 1)
    assert found == state
    assert found.crc is not None
    with pytest.raises(Corrupt, match=r"expected entry 2, found entry 1.*\(file k\)"):
        DECISIONS.decode(DECISION_JSON.encode(state), "k", 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"op": "odd"}, "op must be one of init, prepare, commit, abort, forget"),
        ({"reason": "odd"}, "reason must be null or one of"),
        ({"newest": -2}, "newest must be an integer from -1"),
        ({"commits": (CommitDecision(3, 1, (A1,)),)}, "commits must be ordered by number, with numbers up to 0"),
    ],
)
def test_an_invalid_entry_is_corrupt(change: dict[str, object], says: str) -> None:
    state = replace(committed(started(), 0, A1), **change)  # type: ignore[arg-type]
    with pytest.raises(Corrupt, match=says):
        DECISIONS.decode(DECISION_JSON.encode(state), "k", 1)


def test_a_newer_format_is_rejected() -> None:
    state = replace(started(), read_features=("odd",))
    with pytest.raises(BadRequest, match="requires the sparklog features odd"):
        DECISIONS.decode(DECISION_JSON.encode(state), "k", 0)


def test_the_first_decision_is_final() -> None:
    state = committed(started(), 0, A1)
    assert decision.abort(state, 0, decision.BY_TIMEOUT) is None
    assert decision.commit(state, 0, [A1], time_ms=9) is None
    with pytest.raises(Conflict, match="was committed without this part"):
        decision.commit(state, 0, [A2], time_ms=9)
    aborted = decision.abort(state, 1, decision.BY_TIMEOUT)
    assert aborted is not None
    with pytest.raises(Conflict, match=r"transaction 1 of 't' is already decided \(transaction.timeout.ms passed\)"):
        decision.commit(aborted, 1, [A2], time_ms=9)
    with pytest.raises(Conflict, match="does not exist, because the next transaction is 2"):
        decision.commit(aborted, 5, [A2], time_ms=9)


def test_a_new_instance_aborts_the_open_transaction_and_fences_the_old_instance() -> None:
    state = committed(started("one"), 0, A1)
    taken = decision.init(state, "two")
    assert taken is not None
    assert (taken.newest, taken.run, taken.earlier_runs, taken.reason) == (1, "two", ("one",), "fenced")
    assert taken.commit_of(0) is not None
    assert decision.init(taken, "two") is None
    with pytest.raises(Fenced, match="instance one of transactional id 't' was superseded by instance two; stop"):
        decision.init(taken, "one")
    with pytest.raises(Fenced, match="superseded by instance two"):
        decision.commit(taken, 1, [A2], time_ms=9, run="one")
    with pytest.raises(Fenced, match="aborted by a newer instance"):
        decision.prepare(taken, 1, [A2])


def test_topics_record_the_prepares_of_the_commit() -> None:
    state = committed(started(), 0, A1, A2, B7)
    assert state.resolved("a", "id-a", 0) == TxnDecision("t", 0, (1, 2), {"b": 7})
    assert state.resolved("b", "id-b", 0) == TxnDecision("t", 0, (7,), {"a": 2})
    assert state.resolved("b", "re-created", 0).committed == ()
    assert state.resolved("c", "id-c", 0).committed == ()
    assert not state.is_known_aborted(0)
    aborted = decision.abort(state, 1, decision.BY_OWNER)
    assert aborted is not None
    assert aborted.is_known_aborted(1)
    assert aborted.resolved("a", "id-a", 1) == TxnDecision("t", 1)


def test_recorded_prepares_are_committed_and_replaced_per_part() -> None:
    state = started()
    recorded = decision.prepare(state, 0, [JOB], "job")
    assert recorded is not None
    assert decision.prepare(recorded, 0, [JOB], "job") is None
    again = decision.prepare(recorded, 0, [replace(JOB, version=12)], "job")
    assert again is not None
    assert [item.version for item in again.prepared] == [12]
    nothing = decision.prepare(again, 0, [], "job")
    assert nothing is not None
    assert nothing.prepared == ()
    whole = committed(again, 0, A1)
    found = whole.commit_of(0)
    assert found is not None
    assert {(item.topic, item.version) for item in found.prepares} == {("a", 1), ("b", 12)}
    assert whole.prepared == ()


def test_a_commit_is_kept_until_recorded_and_the_latest_is_always_kept() -> None:
    state = committed(started(), 0, A1)
    assert decision.prune(state, {0}) is None
    state = committed(state, 1, A2)
    assert [item.n for item in state.commits] == [0, 1]
    less = decision.prune(state, {0, 1})
    assert less is not None
    assert [item.n for item in less.commits] == [1]
    assert [item.n for item in committed(state, 2, B7, resolved={0, 1}).commits] == [2]
    aborted = decision.abort(state, 2, decision.BY_OWNER)
    assert aborted is not None
    assert [item.n for item in aborted.commits] == [0, 1]


def test_group_offsets_are_committed_by_entry_number() -> None:
    job = PreparedGroup("h", 4, "job")
    recorded = decision.prepare(started(), 0, [], "job", [job])
    assert recorded is not None
    assert decision.prepare(recorded, 0, [], "job", [job]) is None
    again = decision.prepare(recorded, 0, [], "job", [replace(job, number=6)])
    assert again is not None
    assert again.prepared_groups == (replace(job, number=6),)
    state = committed(again, 0, groups=[GROUP])
    assert state.prepared_groups == ()
    named = [("g", 3), ("h", 4), ("h", 6), ("g", 6)]
    assert [state.commits_group(0, *each) for each in named] == [True, False, True, False]
    assert decision.commit(state, 0, [], time_ms=9, groups=[GROUP]) is None
    with pytest.raises(Conflict, match="was committed without this part"):
        decision.commit(state, 0, [], time_ms=9, groups=[PreparedGroup("g", 9)])
    for aborted in (decision.abort(again, 0, decision.BY_NEWER_GENERATION), decision.init(again, "two")):
        assert aborted is not None
        assert (aborted.prepared_groups, aborted.commits_group(0, "h", 6)) == ((), False)
        with pytest.raises(Fenced, match=r"aborted by a newer (instance|member of its consumer group)"):
            decision.commit(aborted, 0, [], time_ms=9)


def test_the_replay_rule_is_applied_to_every_state() -> None:
    state = committed(started(), 0, A1, key=WriterKey("t", 4), count=3)
    assert (state.batch, state.count) == (4, 3)
    with pytest.raises(Conflict, match="batch 4 of 't' was committed by another run"):
        decision.commit(state, 1, [A2], time_ms=9, key=WriterKey("t", 4), count=3)
    with pytest.raises(Conflict, match="transactional id 't' has batch 4"):
        decision.commit(state, 1, [A2], time_ms=9, key=WriterKey("t", 3), count=3)


@pytest.mark.parametrize(
    ("id_", "folder"),
    [
        ("orders-job_1.x", "orders-job_1.x"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        (".", "%2E"),
        ("ö=%", "%C3%B6%3D%25"),
        ("x" * 200, "x" * 200),
    ],
)
def test_ids_become_directory_names(id_: str, folder: str) -> None:
    assert id_folder(id_) == folder
    assert transactions_prefix(id_) == f"_transactions/{folder}"


def test_long_ids_are_hashed_and_invalid_ids_are_rejected() -> None:
    assert id_folder("x" * 201).startswith("=")
    assert len({id_folder("ö" * 67), id_folder("ö" * 68), id_folder("x" * 201)}) == 3
    for wrong in ("", "x" * 1025, "\ud800", None):
        with pytest.raises(BadRequest, match="transactional id"):
            check_id(wrong, "transactional id")  # type: ignore[arg-type]
