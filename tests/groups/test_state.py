"""The state of a group: its encoding, and the result of each step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sparklog.errors import BadRequest, Corrupt, Fenced
from sparklog.groups import group_steps as steps
from sparklog.groups.assignors import ALL
from sparklog.groups.group_members import GroupMember
from sparklog.groups.group_state import (
    GROUP_JSON,
    GROUPS,
    GroupMetadata,
    GroupState,
    TopicOffsets,
    merged,
    topic_offsets,
    without,
)
from sparklog.groups.group_steps import resolved
from sparklog.log.journal import documents

ONE = GroupMetadata("g", 1, "one")


def at(
    topic: str, offsets: Mapping[int, int], *, topic_id: str = "", time_ms: int = 5, metadata: str = ""
) -> TopicOffsets:
    rows = {partition: (offset, time_ms, -1, metadata) for partition, offset in offsets.items()}
    return topic_offsets(topic, topic_id or f"id-{topic}", rows)


def after(state: GroupState | None) -> GroupState:
    """Return the state with the next number, as the log writes it."""
    assert state is not None
    written = replace(state, number=state.number + 1)
    assert GROUPS.decode(GROUP_JSON.encode(written), "k", written.number) == written
    return written


def joined(instance: str = "one", base: GroupState | None = None) -> GroupState:
    owner = GroupMember(instance, None, "", "", 45_000, (ALL,), ())
    return after(steps.join(base or GroupState("g"), [owner], {}, {}))


def offsets_of(state: GroupState) -> dict[tuple[str, int], int]:
    return {(each.topic, p): o for each in state.offsets for p, o in zip(each.partition, each.offset, strict=True)}


def test_an_entry_survives_encoding_and_decoding() -> None:
    mixed = topic_offsets("b", "id-b", {2: (9, 7, 4, "m"), 0: (3, 8, -1, "ö")})
    state = after(steps.commit(joined(), ONE, [at("a", {0: 1, 5: 2}, metadata="x"), mixed]))
    state = after(steps.prepare(state, ONE, "txn/1", 3, 60_000, [at("a", {5: 9})]))
    data = GROUP_JSON.encode(
        replace(state, commit_id="x", prev_crc=3, time_ms=9, read_features=(), write_features=("w",))
    )
    found = GROUPS.decode(data, "k", state.number)
    assert (found.offsets, found.pending, found.write_features) == (state.offsets, state.pending, ("w",))
    assert found.pending[0].number == 2
    # The list has one item if all partitions have the same value.
    assert b'"partition":[0,5],"offset":[1,2],"timeMs":[5],"leaderEpoch":[-1],"metadata":["x"]' in data
    assert b'"timeMs":[8,7],"leaderEpoch":[-1,4],"metadata":["\\u00f6","m"]' in data
    with pytest.raises(Corrupt, match=r"expected entry 7, found entry 2.*\(file k\)"):
        GROUPS.decode(data, "k", 7)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"op":"commit"', b'"op":"odd"', "op must be one of join, subscribe, heartbeat"),
        (b'"generation":1', b'"generation":-1', "generation must be an integer from 0"),
        (b'"active":1', b'"active":9', "active must be an integer from 0 to 1"),
        (b'"deleted":false', b'"deleted":0', "deleted must be true or false"),
        (b'"partition":[0,5]', b'"partition":[5,0]', "partition must be sorted partitions without duplicates"),
        (b'"partition":[0,5],"offset":[1,2]', b'"partition":[],"offset":[]', "partition must be sorted partitions"),
        (b'"offset":[1,2]', b'"offset":[1]', "offset must be a list of 2 integers"),
        (b'"offset":[1,2]', b'"offset":[1,-2]', "offset must be a list of integers from 0"),
        (b'"timeMs":[5]', b'"timeMs":[5,5,5]', "timeMs must be a list of 1 or 2 integers"),
        (b'"metadata":[""]', b'"metadata":[]', "metadata must be a list of 1 or 2 texts"),
        (b'"pending":[]', b'"pending":[],"odd":1', "unknown fields odd"),
    ],
)
def test_invalid_entries_are_corrupt(old: bytes, new: bytes, says: str) -> None:
    data = GROUP_JSON.encode(after(steps.commit(joined(), ONE, [at("a", {0: 1, 5: 2})])))
    assert data.count(old) == 1
    changed = data.replace(old, new)
    body = changed[: changed.rindex(b',"crc":')] + b"}"
    with pytest.raises(Corrupt, match=says):
        GROUPS.decode(documents.encode(json.loads(body)), "k", 1)


def test_a_newer_format_is_rejected() -> None:
    with pytest.raises(BadRequest, match="requires the sparklog features odd"):
        GROUPS.decode(GROUP_JSON.encode(replace(joined(), read_features=("odd",))), "k", 0)


def test_offsets_are_merged_by_topic_and_id() -> None:
    base = (at("a", {0: 1, 1: 1}), at("b", {0: 1}))
    found = merged(base, [at("a", {1: 7, 3: 7}), at("a", {0: 9}, topic_id="new"), at("c", {0: 2})])
    assert [item.topic_and_id for item in found] == [("a", "id-a"), ("a", "new"), ("b", "id-b"), ("c", "id-c")]
    assert (found[0].partition, found[0].offset) == ((0, 1, 3), (1, 7, 7))
    left = without(found, {("a", "id-a"): [0, 3], ("b", "id-b"): {0}})
    assert [(item.topic_and_id, item.partition) for item in left] == [
        (("a", "id-a"), (1,)),
        (("a", "new"), (0,)),
        (("c", "id-c"), (0,)),
    ]


def test_every_step_of_an_older_generation_is_fenced() -> None:
    state = joined("two", after(steps.commit(joined(), ONE, [at("a", {0: 1})])))
    assert (state.generation, state.instance, offsets_of(state)) == (2, "two", {("a", 0): 1})
    says = r"generation 1 \(one\) of group 'g' was superseded: the group is at generation 2 \(two\)"
    for late in (
        lambda: steps.commit(state, ONE, [at("a", {0: 9})]),
        lambda: steps.heartbeat(state, ONE),
        lambda: steps.prepare(state, ONE, "t", 0, 1, [at("a", {0: 9})]),
    ):
        with pytest.raises(Fenced, match=says):
            late()
    assert steps.leave(state, ONE) is None
    two = GroupMetadata("g", 2, "two")
    assert after(steps.leave(state, two)).instance is None
    with pytest.raises(Fenced):
        steps.commit(after(steps.leave(state, two)), two, [])
    same_number = replace(two, member_id="three")
    with pytest.raises(Fenced):
        steps.heartbeat(state, same_number)


def test_administrators_fence_members_and_maintenance_does_not() -> None:
    state = after(steps.commit(joined(), ONE, [at("a", {0: 1, 1: 1}), at("b", {0: 5})]))
    for stepped in (
        steps.alter(state, [at("a", {0: 0})]),
        steps.delete_offsets(state, {"a": {1}}),
        steps.delete(state),
    ):
        changed = after(stepped)
        assert (changed.generation, changed.instance, changed.active) == (2, None, None)
        with pytest.raises(Fenced):
            steps.commit(changed, ONE, [])
    altered = after(steps.alter(state, [at("a", {0: 0})]))
    assert offsets_of(altered) == {("a", 0): 0, ("a", 1): 1, ("b", 0): 5}
    less = after(steps.delete_offsets(state, {"a": {1, 7}, "c": {0}}))
    assert offsets_of(less) == {("a", 0): 1, ("b", 0): 5}
    assert steps.delete_offsets(state, {"a": {7}, "c": {0}}) is None
    gone = after(steps.delete(state))
    assert (gone.exists, gone.offsets) == (False, ())
    assert steps.delete(gone) is None
    assert joined("new", gone).generation == 3
    without_b = after(steps.expire(state, everything=False, deleted={("b", "id-b")}))
    assert offsets_of(without_b) == {("a", 0): 1, ("a", 1): 1}
    assert steps.commit(without_b, ONE, []).generation == 1
    assert without_b.touched == state.touched


def test_expiry_deletes_offsets_that_are_not_pending() -> None:
    state = after(steps.commit(joined(), ONE, [at("a", {0: 1})]))
    expired = after(steps.expire(state, everything=True, deleted=()))
    assert (expired.exists, expired.offsets, expired.generation) == (False, (), 2)
    assert steps.expire(expired, everything=True, deleted=()) is None
    assert steps.expire(state, everything=False, deleted={("b", "id-b"), ("a", "other")}) is None
    pending = after(steps.prepare(state, None, "t", 0, 1, [at("a", {0: 9})]))
    left = after(steps.expire(pending, everything=True, deleted=()))
    assert (left.exists, left.offsets, left.pending) == (True, (), pending.pending)
    assert steps.expire(left, everything=True, deleted=()) is None


def test_pending_offsets_are_resolved_by_number() -> None:
    state = after(steps.prepare(joined(), ONE, "t", 0, 1, [at("a", {0: 5, 1: 5})]))
    state = after(steps.prepare(state, ONE, "t", 0, 1, [at("a", {0: 6})]))
    state = after(steps.prepare(state, None, "u", 4, 1, [at("a", {1: 7})]))
    assert [(item.txn, item.number, item.generation) for item in state.pending] == [
        ("t", 1, 1),
        ("t", 2, 1),
        ("u", 3, None),
    ]
    assert offsets_of(state) == {}
    assert resolved(state, {}) is state
    aborted = resolved(state, {1: True, 2: False})
    assert offsets_of(aborted) == {("a", 0): 5, ("a", 1): 5}
    assert [item.number for item in aborted.pending] == [3]
    assert offsets_of(resolved(state, {1: True, 2: True, 3: True})) == {("a", 0): 6, ("a", 1): 7}
    # A later prepare is committed first, so the outcome of the earlier one no longer matters for these partitions.
    later = resolved(state, {3: True})
    assert offsets_of(later) == {("a", 1): 7}
    assert offsets_of(resolved(later, {1: True, 2: False})) == {("a", 0): 5, ("a", 1): 7}


def test_later_changes_override_a_prepare() -> None:
    state = after(steps.prepare(joined(), ONE, "t", 0, 1, [at("a", {0: 5, 1: 5})]))
    for stepped in (
        steps.commit(state, ONE, [at("a", {0: 9})]),
        steps.alter(state, [at("a", {0: 9})]),
    ):
        assert offsets_of(resolved(after(stepped), {1: True})) == {("a", 0): 9, ("a", 1): 5}
    assert offsets_of(resolved(after(steps.delete_offsets(state, {"a": {0}})), {1: True})) == {("a", 1): 5}
    assert after(steps.delete(state)).pending == ()
    assert after(steps.alter(state, [at("a", {0: 9, 1: 9})])).pending == ()


def test_restoring_keeps_newer_offsets() -> None:
    state = after(steps.commit(joined(), ONE, [at("a", {0: 10, 1: 10}, time_ms=100)]))
    older = [at("a", {0: 1, 1: 1, 2: 1}, time_ms=50), at("b", {0: 1}, time_ms=50)]
    found = after(steps.restore(state, older, 0))
    assert offsets_of(found) == {("a", 0): 10, ("a", 1): 10, ("a", 2): 1, ("b", 0): 1}
    assert (found.generation, found.instance) == (1, "one")
    assert steps.restore(found, older, 1) is None
    newer = after(steps.restore(found, [at("a", {0: 3}, time_ms=200)], 7))
    assert offsets_of(newer)["a", 0] == 3
    assert (newer.generation, newer.instance) == (7, None)
    assert steps.restore(newer, [at("a", {0: 3}, time_ms=200)], 7) is None
    assert after(steps.restore(GroupState("g"), older, 3)).generation == 3


def test_generations_start_over_after_the_highest() -> None:
    state = replace(joined(), generation=2**31 - 1)
    assert joined("two", state).generation == 1
