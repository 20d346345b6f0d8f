"""Intents and concurrent commits: each rule, on the states that it applies to."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from sparklog.errors import BadRequest, Conflict, Fenced, NotFound
from sparklog.log.journal.names import append_path
from sparklog.log.state.append_offsets import AppendIntent
from sparklog.log.state.commit import (
    ALTER,
    APPEND,
    COMPACT,
    CREATE,
    DELETE,
    DELETE_RECORDS,
    IMPORT,
    MAINTAIN,
    MERGE,
    RETAIN,
    SEAL,
    TAKEOVER,
    Edit,
    RemovedSlices,
    Txn,
    TxnDecision,
    VersionLease,
    WriterBatch,
)
from sparklog.log.state.commit_intents import (
    AlterIntent,
    CreateIntent,
    DeleteIntent,
    Draft,
    Intent,
    LogStartIntent,
    MaintainIntent,
    Nothing,
)
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.invariants import check_commit, check_state
from sparklog.log.state.rewrites import Input, Outputs, Rewrite, RewriteIntent
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.topic_state import EMPTY, TopicState
from sparklog.log.state.writer_runs import WriterKey
from tests.log.topics import Chain, file_of, output_of

NOW = 1_000


def draft(intent: Intent, chain: Chain, origin: TopicState | None = None) -> Draft:
    found = intent.draft("t", chain.state, origin or chain.state, chain.table)
    assert isinstance(found, Draft)
    return found


def nothing(intent: Intent, chain: Chain, origin: TopicState | None = None) -> Nothing:
    found = intent.draft("t", chain.state, origin or chain.state, chain.table)
    assert isinstance(found, Nothing)
    return found


def land(chain: Chain, intent: Intent, origin: TopicState | None = None) -> Draft:
    """Commit an intent manually, with all checks."""
    found = draft(intent, chain, origin)
    commit = found.commit(chain.state, f"c{chain.state.version}", chain.state.time_ms)
    given = ("crc", "nbytes", "version", "prev_crc")
    values = {each.name: getattr(commit, each.name) for each in fields(commit) if each.name not in given}
    before = chain.state
    written = chain.add(**values)
    check_commit(before, written, chain.state)
    check_state(chain.state, chain.table)
    return found


# -- append


def test_an_append_is_assigned_the_next_offsets_of_each_state() -> None:
    chain = Chain(2)
    intent = AppendIntent("topic-one", (file_of([(1, 3), (0, 2), (1, 4)]), file_of([(0, 1)], name="b")), NOW)
    assert [file.base for file in draft(intent, chain).files] == [(0, 0, 3), (2,)]
    chain.append((0, 10), (1, 20))
    assert [file.base for file in draft(intent, chain).files] == [(20, 10, 23), (12,)]
    assert draft(intent, chain).op == APPEND
    assert intent.count == 10


def test_an_append_without_slices_writes_no_commit() -> None:
    chain = Chain(2)
    assert nothing(AppendIntent("topic-one", (), NOW), chain).note == "nothing to append"
    assert not nothing(AppendIntent("topic-one", (file_of([]),), NOW), chain).skipped


def test_an_append_to_a_missing_partition_is_rejected() -> None:
    with pytest.raises(BadRequest, match="topic 't' has partitions 0 to 1, found partition 2"):
        draft(AppendIntent("topic-one", (file_of([(2, 1)]),), NOW), Chain(2))


def test_an_append_to_a_topic_created_again_is_a_conflict() -> None:
    chain = Chain(1)
    intent = AppendIntent("topic-one", (file_of([(0, 1)]),), NOW)
    chain.add(op=DELETE)
    with pytest.raises(NotFound, match="topic 't' was deleted"):
        draft(intent, chain)
    chain.add(op=CREATE, topic_id="two", partitions=1)
    with pytest.raises(Conflict, match="deleted and recreated: expected topic id topic-one, found two"):
        draft(intent, chain)


def test_an_append_below_the_retention_floor_is_a_conflict() -> None:
    chain = Chain(1)
    for _ in range(5):
        chain.append((0, 1))
    chain.add(op=MAINTAIN, floor=3)
    draft(AppendIntent("topic-one", (file_of([(0, 1)], read_version=3),), NOW), chain)
    with pytest.raises(
        Conflict,
        match=r"based on version 2 of topic 't', which is below the retention floor 3.*write the records again",
    ):
        draft(AppendIntent("topic-one", (file_of([(0, 1)], read_version=2),), NOW), chain)


def test_null_keys_are_rejected_when_a_topic_becomes_compacted() -> None:
    chain = Chain(1)
    flags = int(SliceFlag.HAS_NULL_KEYS)
    intent = AppendIntent("topic-one", (file_of([(0, 1)], flags=flags),), NOW)
    draft(intent, chain)
    chain.add(op=ALTER, configs={"cleanup.policy": "compact,delete"})
    with pytest.raises(BadRequest, match="topic 't' is compacted, so every record must have a key"):
        draft(intent, chain)
    draft(AppendIntent("topic-one", (file_of([(0, 1)]),), NOW), chain)


def test_an_append_validated_with_older_configs_is_accepted() -> None:
    chain = Chain(1)
    intent = AppendIntent("topic-one", (file_of([(0, 1)]),), NOW)
    chain.add(op=ALTER, configs={"max.message.bytes": "10", "compression.type": "lz4"})
    assert draft(intent, chain).files


def test_the_registry_is_checked_against_every_state() -> None:
    chain = Chain(1)
    intent = AppendIntent("topic-one", (file_of([(0, 4)]),), NOW, WriterKey("q", 7, "r1"))
    assert draft(intent, chain).writer == WriterBatch("stream", "q", 7, "r1", 4, epoch=1)
    chain.append((0, 4), writer=WriterBatch("stream", "q", 7, "r1", 4))
    assert nothing(intent, chain).skipped
    assert nothing(intent, chain).version == 1
    chain.append((0, 4), writer=WriterBatch("stream", "q", 8, "r2", 4))
    with pytest.raises(Fenced):
        draft(intent, chain)
    with pytest.raises(Conflict, match="checkpoint is older than the log"):
        draft(replace(intent, key=WriterKey("q", 7, "r2")), chain)


def test_a_replay_by_a_new_run_records_the_takeover() -> None:
    chain = Chain(1)
    chain.append((0, 4), writer=WriterBatch("stream", "q", 7, "r1", 4))
    found = land(chain, AppendIntent("topic-one", (file_of([(0, 4)]),), NOW, WriterKey("q", 7, "r2")))
    assert (found.op, found.files) == (TAKEOVER, ())
    assert chain.state.registry["q"].run == "r2"
    assert chain.state.log_end.tolist() == [4]
    with pytest.raises(Fenced):
        draft(AppendIntent("topic-one", (file_of([(0, 4)]),), NOW, WriterKey("q", 8, "r1")), chain)


def test_an_empty_replay_of_a_batch_with_records_is_a_mismatch() -> None:
    chain = Chain(1)
    chain.append((0, 4), writer=WriterBatch("stream", "q", 7, "r1", 4))
    with pytest.raises(Conflict, match="replay mismatch"):
        draft(AppendIntent("topic-one", (), NOW, WriterKey("q", 7, "r1")), chain)
    assert not nothing(AppendIntent("topic-one", (), NOW, WriterKey("q", 8, "r1")), chain).skipped


def test_the_slices_of_a_prepare_are_open() -> None:
    chain = Chain(1)
    found = land(chain, AppendIntent("topic-one", (file_of([(0, 4)]),), NOW, txn=Txn("t", 1)))
    assert found.txn == Txn("t", 1)
    assert chain.state.last_stable().tolist() == [0]


# -- rewrites


def two_slices() -> tuple[Chain, Rewrite, Rewrite]:
    """Return a topic with a file over two partitions, and an edit of each partition."""
    chain = Chain(2)
    path = chain.append((0, 10), (1, 10)).files[0].path
    edits = [Rewrite(Edit(partition, 0, 10), (Input(path, 100 * partition, 0, 10),)) for partition in (0, 1)]
    return chain, edits[0], edits[1]


def test_a_rewrite_replaces_its_inputs() -> None:
    chain, first, second = two_slices()
    files = (output_of(0, 0, 10), output_of(1, 0, 10))
    found = land(chain, RewriteIntent(SEAL, "topic-one", (first, second), files))
    assert found.dropped == ()
    assert chain.table.all().sealed().tolist() == [True, True]


def test_concurrent_appends_do_not_affect_a_rewrite() -> None:
    chain, first, second = two_slices()
    intent = RewriteIntent(SEAL, "topic-one", (first, second), (output_of(0, 0, 10), output_of(1, 0, 10)))
    chain.append((0, 5))
    land(chain, intent)
    assert chain.table.all().base.tolist() == [0, 10, 0]


def test_the_second_of_two_rewrites_of_a_slice_is_dropped() -> None:
    chain, first, second = two_slices()
    rival = RewriteIntent(SEAL, "topic-one", (first,), (output_of(0, 0, 10, read_version=1),))
    intent = RewriteIntent(SEAL, "topic-one", (first, second), (output_of(0, 0, 10), output_of(1, 0, 10)))
    land(chain, rival)
    found = land(chain, intent)
    assert found.dropped == (first.edit,)
    assert [file.path for file in found.files] == [output_of(1, 0, 10).path]
    gone = nothing(intent, chain)
    # The outputs of the rewrite exist, so its edit is not reported as dropped.
    assert (gone.note, gone.dropped) == ("none of the edits applies", (first.edit,))


def test_a_retry_of_a_committed_rewrite_drops_nothing() -> None:
    chain, first, second = two_slices()
    intent = RewriteIntent(SEAL, "topic-one", (first, second), (output_of(0, 0, 10), output_of(1, 0, 10)))
    land(chain, intent)
    assert nothing(intent, chain).dropped == ()


def test_an_output_that_overlaps_another_slice_is_rejected() -> None:
    chain = Chain(1)
    one, _, three = (chain.append((0, 10)).files[0].path for _ in range(3))
    inputs = (Input(one, 0, 0, 10), Input(three, 0, 20, 30))
    wrong = RewriteIntent(MERGE, "topic-one", (Rewrite(Edit(0, 0, 30), inputs),), (output_of(0, 0, 30),))
    with pytest.raises(BadRequest, match="overlap the slice at 10, which the edit does not replace"):
        wrong.draft("t", chain.state, chain.state, chain.table)
    beside = (output_of(0, 0, 10), output_of(0, 20, 30))
    land(chain, RewriteIntent(MERGE, "topic-one", (Rewrite(Edit(0, 0, 30), inputs),), beside))
    assert chain.table.all().base.tolist() == [0, 10, 20]


def test_a_cleaning_pass_is_dropped_atomically() -> None:
    chain = Chain(1)
    one, two = (chain.append((0, 10)).files[0].path for _ in range(2))
    whole = Rewrite(Edit(0, 0, 20, 20), (Input(one, 0, 0, 10), Input(two, 0, 10, 20)))
    half = RewriteIntent(
        SEAL, "topic-one", (Rewrite(Edit(0, 10, 20), (Input(two, 0, 10, 20),)),), (output_of(0, 10, 20),)
    )
    land(chain, half)
    found = nothing(RewriteIntent(COMPACT, "topic-one", (whole,), (output_of(0, 0, 20),)), chain)
    assert found.dropped == (whole.edit,)


def test_inputs_below_the_log_start_are_ignored() -> None:
    chain = Chain(1)
    one, two = (chain.append((0, 10)).files[0].path for _ in range(2))
    intent = RewriteIntent(
        SEAL,
        "topic-one",
        (Rewrite(Edit(0, 0, 20), (Input(one, 0, 0, 10), Input(two, 0, 10, 20))),),
        (output_of(0, 0, 10), output_of(0, 10, 20)),
    )
    land(chain, LogStartIntent("topic-one", {0: 13}, RETAIN))
    found = land(chain, intent)
    assert found.remove == (RemovedSlices(two, (0,), (10,), (0,)),)
    assert chain.table.all().base.tolist() == [10]
    assert chain.state.log_start.tolist() == [13]


def test_retention_and_rewrites_commute() -> None:
    states = []
    for retention_first in (True, False):
        chain = Chain(1)
        one, two = (chain.append((0, 10), name=name).files[0].path for name in ("one", "two"))
        retain = LogStartIntent("topic-one", {0: 10}, RETAIN)
        seal = RewriteIntent(
            SEAL,
            "topic-one",
            (Rewrite(Edit(0, 0, 20), (Input(one, 0, 0, 10), Input(two, 0, 10, 20))),),
            (output_of(0, 0, 10), output_of(0, 10, 20)),
        )
        for intent in (retain, seal) if retention_first else (seal, retain):
            land(chain, intent)
        rows = chain.table.all()
        states.append((rows.base.tolist(), rows.end.tolist(), [rows.path(row) for row in range(len(rows))]))
    assert states[0] == states[1] == ([10], [20], [output_of(0, 10, 20).path])


def test_a_rewrite_of_expired_inputs_writes_no_commit() -> None:
    chain, first, second = two_slices()
    land(chain, LogStartIntent("topic-one", {0: 10, 1: 10}, RETAIN))
    intent = RewriteIntent(SEAL, "topic-one", (first, second), (output_of(0, 0, 10), output_of(1, 0, 10)))
    assert nothing(intent, chain).dropped == ()


def test_a_rewrite_keeps_some_slices_of_an_output_file() -> None:
    file = file_of([(0, 10), (1, 10), (0, 5)]).with_base((0, 0, 10))
    other = file_of([(1, 10)], name="other").with_base((10,))
    outputs = Outputs([file, other])
    (kept,) = outputs.of([Edit(0, 0, 15)])
    assert (kept.partition, kept.base, kept.position, kept.shift) == ((0, 0), (0, 10), (0, 200), ())
    assert outputs.of([Edit(1, 10, 20), Edit(0, 0, 15), Edit(1, 0, 10)]) == (file, other)
    assert outputs.of([Edit(1, 5, 20)]) == (other,)
    assert outputs.of([Edit(2, 0, 1), Edit(0, 5, 10)]) == ()


def test_parts_of_an_output_file_keep_the_fields_of_their_slices() -> None:
    file = replace(
        file_of([(1, 10), (0, 10), (1, 5)]).with_base((0, 0, 10)),
        position=(500, 0, 200),
        shift=(1, 2, 3),
        append_time=(4, 5, 6),
        leader_epoch=(7, 8, 9),
    )
    (kept,) = Outputs([file]).of([Edit(1, 0, 15)])
    assert (kept.partition, kept.base, kept.offsets, kept.position) == ((1, 1), (0, 10), (10, 5), (500, 200))
    assert (kept.shift, kept.append_time, kept.leader_epoch) == ((1, 3), (4, 6), (7, 9))
    assert (kept.path, kept.size, kept.footer_length) == (file.path, file.size, file.footer_length)


def test_a_merge_of_many_partitions_visits_each_slice_a_few_times() -> None:
    """Each attempt to commit the merge is validated again. Scanning all slices for each edit would take too long."""
    count = 3_000
    looks = [0]

    class Counted(tuple[int, ...]):
        def __getitem__(self, row: Any) -> Any:
            looks[0] += 1
            return tuple.__getitem__(self, row)

        def __iter__(self) -> Any:
            looks[0] += len(self)
            return tuple.__iter__(self)

    file = file_of([(partition, 1) for partition in range(count)]).with_base((0,) * count)
    names = ("partition", "base", "nbytes")
    outputs = Outputs([replace(file, **{name: Counted(getattr(file, name)) for name in names})])
    for partition in range(count):
        assert len(outputs.of([Edit(partition, 0, 1)])) == 1
    assert looks[0] <= 8 * count


def test_outputs_of_a_merge_when_one_edit_is_dropped() -> None:
    chain, first, second = two_slices()
    merged = file_of([(0, 10), (1, 10)], name="m").with_base((0, 0))
    land(chain, RewriteIntent(SEAL, "topic-one", (first,), (output_of(0, 0, 10),)))
    land(chain, RewriteIntent(MERGE, "topic-one", (first, second), (merged,)))
    rows = chain.table.all()
    assert [rows.path(row) for row in range(2)] == [output_of(0, 0, 10).path, merged.path]
    assert rows.position.tolist() == [0, 100]


def test_a_rewrite_of_a_file_below_the_retention_floor() -> None:
    chain, first, second = two_slices()
    for _ in range(3):
        chain.append((0, 1))
    chain.add(op=MAINTAIN, floor=3)
    intent = RewriteIntent(SEAL, "topic-one", (first, second), (output_of(0, 0, 10, read_version=2),))
    with pytest.raises(Conflict, match="below the retention floor 3"):
        draft(intent, chain)
    # A part of a file that the state references is not an upload.
    part = replace(file_of([(0, 10)], name="f0"), size=240, position=(0,), nbytes=(50,)).with_base((0,))
    assert part.path == append_path(0, "f0")
    assert draft(RewriteIntent(SEAL, "topic-one", (first,), (part,)), chain).files == (part,)


def test_a_rewrite_above_the_last_stable_offset_is_rejected() -> None:
    chain = Chain(1)
    path = chain.append((0, 10), txn=Txn("t", 1)).files[0].path
    intent = RewriteIntent(
        SEAL, "topic-one", (Rewrite(Edit(0, 0, 10), (Input(path, 0, 0, 10),)),), (output_of(0, 0, 10),)
    )
    with pytest.raises(BadRequest, match="ends at 10, above the last stable offset"):
        land(chain, intent)


# -- log starts, alter, create, delete, maintain


def test_log_starts_only_increase() -> None:
    chain = Chain(2)
    chain.append((0, 10), (1, 5))
    found = draft(LogStartIntent("topic-one", {0: 4, 1: 0}), chain)
    assert (found.op, dict(found.log_starts)) == (DELETE_RECORDS, {0: 4})
    land(chain, LogStartIntent("topic-one", {0: 6}))
    assert nothing(LogStartIntent("topic-one", {0: 4, 1: 0}), chain).note == "no log start advances"


@pytest.mark.parametrize(
    ("starts", "expected"), [({0: 11}, "offset 11"), ({0: -2}, "offset -2"), ({2: 0}, "found partition 2")]
)
def test_log_starts_out_of_range_are_rejected(starts: dict[int, int], expected: str) -> None:
    chain = Chain(2)
    chain.append((0, 10))
    with pytest.raises(NotFound, match=expected):
        draft(LogStartIntent("topic-one", starts), chain)


def test_concurrent_changes_of_one_config_conflict() -> None:
    chain = Chain(1, {"retention.ms": "5"})
    origin = chain.state
    intent = AlterIntent("topic-one", {"retention.ms": 7, "segment.bytes": 100})
    assert dict(draft(intent, chain).configs) == {"retention.ms": "7", "segment.bytes": "100"}
    chain.add(op=ALTER, configs={"cleanup.policy": "compact"})
    draft(intent, chain, origin)
    chain.add(op=ALTER, configs={"retention.ms": "6"})
    with pytest.raises(
        Conflict, match=r"another process changed config retention.ms of topic 't'.*expected 5, found 6"
    ):
        draft(intent, chain, origin)


def test_altering_to_the_current_value_writes_no_commit() -> None:
    chain = Chain(1, {"retention.ms": "5"})
    assert nothing(AlterIntent("topic-one", {"retention.ms": 5, "segment.ms": None}), chain).note == "nothing changes"
    assert dict(draft(AlterIntent("topic-one", {"retention.ms": None}), chain).configs) == {"retention.ms": None}


def test_concurrent_additions_of_partitions_conflict() -> None:
    chain = Chain(2)
    origin = chain.state
    assert draft(AlterIntent("topic-one", {}, 4), chain).partitions == 4
    chain.add(op=ALTER, partitions=3)
    with pytest.raises(Conflict, match="expected 2, found 3"):
        draft(AlterIntent("topic-one", {}, 4), chain, origin)
    for count in (3, 2, 100_001):
        with pytest.raises(
            BadRequest, match=f"has 3 partitions; the number of partitions can only increase.*found {count}"
        ):
            draft(AlterIntent("topic-one", {}, count), chain)


def test_create_and_delete() -> None:
    chain = Chain(1)
    create = CreateIntent("two", 3, TopicConfigs.of({"retention.ms": 1}))
    with pytest.raises(Conflict, match="topic 't' already exists, with 1 partition;"):
        draft(create, chain)
    land(chain, DeleteIntent("topic-one"))
    with pytest.raises(NotFound):
        draft(DeleteIntent("topic-one"), chain)
    found = land(chain, create)
    assert (found.partitions, found.configs, chain.state.version) == (3, {"retention.ms": "1"}, 2)
    with pytest.raises(Conflict, match="recreated"):
        draft(DeleteIntent("topic-one"), chain)
    assert isinstance(create.draft("t", EMPTY, EMPTY, None), Draft)


def test_maintenance_records_floor_leases_and_expired_writers() -> None:
    chain = Chain(1)
    for batch in range(3):
        chain.append((0, 1), writer=WriterBatch("stream", "q", batch, None, 1))
    chain.append((0, 1), txn=Txn("t", 1))
    intent = MaintainIntent(
        "topic-one", {"h": VersionLease(2), "gone": None}, 2, {"q": 2}, (TxnDecision("t", 1), TxnDecision("old", 1))
    )
    found = land(chain, intent)
    # The registry entry was written at version 3, not 2, so the writer is not idle.
    assert (dict(found.leases), found.floor, dict(found.expired)) == ({"h": VersionLease(2)}, 2, {})
    assert found.resolved == (TxnDecision("t", 1),)
    assert nothing(intent, chain).note == "nothing changes"
    with pytest.raises(Conflict, match=r"lease 'x' requires version 1 .* below the retention floor 2"):
        draft(MaintainIntent("topic-one", {"x": VersionLease(1)}), chain)
    assert dict(draft(MaintainIntent("topic-one", expired={"q": 3}), chain).expired) == {"q": 3}


def test_maintenance_of_a_topic_that_was_created_again() -> None:
    chain = Chain(1)
    held = MaintainIntent("topic-one", {"h": VersionLease(0)})
    land(chain, DeleteIntent("topic-one"))
    assert dict(land(chain, held).leases) == {"h": VersionLease(0)}, "a deleted topic still has files"
    land(chain, CreateIntent("two", 1, TopicConfigs()))
    for late in (held, MaintainIntent("topic-one", resolved=(TxnDecision("t", 1),))):
        with pytest.raises(Conflict, match="recreated: expected topic id topic-one, found two"):
            draft(late, chain)


def test_unknown_write_features_stop_writers() -> None:
    chain = Chain(1)
    chain.add(op=ALTER, configs={"retention.ms": "1"}, write_features=("tiers",))
    found = draft(AppendIntent("topic-one", (file_of([(0, 1)]),), NOW), chain)
    with pytest.raises(BadRequest, match="requires the sparklog features tiers; upgrade"):
        found.commit(chain.state, "c", 1)


def test_commit_time_never_decreases() -> None:
    chain = Chain(1)
    found = draft(AppendIntent("topic-one", (file_of([(0, 1)]),), NOW), chain)
    assert found.commit(chain.state, "c", chain.state.time_ms - 5000).time_ms == chain.state.time_ms
    assert found.commit(chain.state, "c", chain.state.time_ms + 5).time_ms == chain.state.time_ms + 5


# -- invariants


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"time_ms": 1}, "time never decreases"),
        ({"files": (file_of([(0, 1)]).with_base((11,)),)}, "appends are dense"),
        ({"files": (file_of([(0, 1)]).with_base((9,)),)}, "appends are dense"),
        ({"op": IMPORT, "files": (file_of([(0, 1)]).with_base((9,)),)}, "appends are dense"),
        ({"op": DELETE_RECORDS, "log_starts": {0: 11}}, "log start in range"),
        ({"op": SEAL, "remove": (RemovedSlices(append_path(0, "f0"), (0,), (0,), (0,)),)}, "outputs within edits"),
        ({"op": SEAL, "edits": (Edit(0, 0, 5), Edit(0, 4, 8))}, "outputs within edits"),
        ({"op": SEAL, "edits": (Edit(0, 0, 11),)}, "outputs within edits"),
        ({"op": SEAL, "edits": (Edit(0, 0, 5),), "files": (output_of(0, 4, 6),)}, "outputs within edits"),
        (
            {"op": SEAL, "edits": (Edit(0, 0, 9),), "files": (output_of(0, 4, 6), output_of(0, 5, 7))},
            "outputs within edits",
        ),
        (
            {"op": SEAL, "edits": (Edit(0, 0, 5),), "remove": (RemovedSlices("x", (0,), (6,), (0,)),)},
            "outputs within edits",
        ),
        ({"op": MAINTAIN, "floor": 2}, "floor and leases in range"),
        ({"op": MAINTAIN, "leases": {"h": VersionLease(5)}}, "floor and leases in range"),
        ({"op": ALTER, "partitions": 1}, "partitions exist"),
    ],
)
def test_each_invariant_is_checked(values: dict[str, object], expected: str) -> None:
    chain = Chain(2)
    chain.append((0, 10))
    commit, _ = chain.commit(**values)
    with pytest.raises(BadRequest, match=rf"^cannot commit \({expected}\)"):
        check_commit(chain.state, commit, chain.state.apply(commit))
