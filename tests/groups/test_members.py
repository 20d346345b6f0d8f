"""Steps of members that share a group: which member owns which partitions after each entry, and which may commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced
from sparklog.groups import group_steps as steps
from sparklog.groups.assignors import ALL
from sparklog.groups.group_members import GroupMember, common_assignor
from sparklog.groups.group_state import GROUP_JSON, GROUPS, GroupMetadata, GroupState
from sparklog.log.journal import documents
from sparklog.log.journal.documents import GROUP_MEMBERS, LISTED_OWNERS
from tests.groups.test_state import after, at, offsets_of

FOUR = {"a": 4}


def member(name: str, *assignors: str, instance_id: str | None = None, topics: tuple[str, ...] = ("a",)) -> GroupMember:
    return GroupMember(name, instance_id, "client", "host", 9_000, assignors or ("cooperative-sticky",), topics)


def shared(*names: str, state: GroupState | None = None) -> GroupState:
    state = state or GroupState("g")
    for name in names:
        state = after(steps.join(state, [member(name)], FOUR, {}))
    return state


def metadata(state: GroupState, name: str) -> GroupMetadata:
    item = state.member(name)
    assert item is not None
    return GroupMetadata("g", item.generation, name)


def owned(state: GroupState) -> dict[str, list[int]]:
    return {item.id: sorted(partition for _, partition in item.owned) for item in state.members}


def targets(state: GroupState) -> dict[str, list[int]]:
    return {
        item.id: sorted(partition for _, partition in (item.owned - item.revoked) | item.awaited)
        for item in state.members
    }


def test_a_partition_moves_in_two_generations() -> None:
    one = shared("one")
    assert (one.generation, owned(one)) == (1, {"one": [0, 1, 2, 3]})
    two = shared("two", state=one)
    assert two.generation == 2
    assert len(targets(two)["two"]) == 2
    # The first member still owns all partitions, and must revoke those that are no longer assigned to it.
    assert owned(two) == {"one": [0, 1, 2, 3], "two": []}
    first = two.member("one")
    assert first is not None
    assert not first.is_stable
    assert first.revoked == {("a", partition) for partition in targets(two)["two"]}
    done = after(steps.revoke(two, metadata(two, "one"), first.revoked))
    assert owned(done) == targets(done)
    assert (done.generation, len(owned(done)["two"])) == (3, 2)
    # The member that only gained partitions is unchanged, so it can still commit records that it has read.
    assert metadata(done, "two") == metadata(two, "two")
    assert metadata(done, "one").generation == 3


def test_a_partition_that_is_assigned_again_was_still_released() -> None:
    two = shared("one", "two")
    first = two.member("one")
    assert first is not None
    alone = after(steps.leave(two, metadata(two, "two")))
    assert targets(alone) == {"one": [0, 1, 2, 3]}
    state = after(steps.revoke(alone, metadata(alone, "one"), first.revoked))
    assert owned(state) == {"one": [0, 1, 2, 3]}
    with pytest.raises(Fenced, match=r"the member has released partitions since"):
        steps.commit(state, metadata(two, "one"), [at("a", {0: 1})])


def test_only_the_owner_commits() -> None:
    two = shared("one", "two")
    with pytest.raises(Fenced, match=r"member two of group 'g' no longer owns a-0, which member one owns now"):
        steps.commit(two, metadata(two, "two"), [at("a", {0: 5})])
    with pytest.raises(Fenced, match="no longer owns a-0"):
        steps.prepare(two, metadata(two, "two"), "t", 0, 1, [at("a", {0: 5})])
    state = after(steps.commit(two, metadata(two, "one"), [at("a", {0: 5})]))
    assert offsets_of(state) == {("a", 0): 5}
    assert [item.seen for item in state.members] == [state.number, 1]
    with pytest.raises(Fenced, match=r"generation 1 \(odd\).*the group is at generation 2 with 2 other members"):
        steps.heartbeat(state, GroupMetadata("g", 1, "odd"))


def test_members_leave_and_the_last_one_leaves_an_empty_group() -> None:
    two = shared("one", "two")
    alone = after(steps.leave(two, metadata(two, "one")))
    assert owned(alone) == {"two": [0, 1, 2, 3]}
    with pytest.raises(Fenced):
        steps.commit(alone, metadata(two, "one"), [])
    assert steps.leave(alone, metadata(two, "one")) is None
    empty = after(steps.leave(alone, metadata(alone, "two")))
    assert (empty.members, empty.active, empty.partitions, empty.exists) == ((), None, {}, True)


def test_an_expired_member_is_removed_unless_it_has_written_since() -> None:
    two = shared("one", "two")
    seen = {item.id: item.seen for item in two.members}
    left = after(steps.heartbeat(two, metadata(two, "two"), (), {"one": seen["one"]}))
    assert owned(left) == {"two": [0, 1, 2, 3]}
    newer = after(steps.heartbeat(two, metadata(two, "one")))
    kept = after(steps.heartbeat(newer, metadata(newer, "two"), (), {"one": seen["one"]}))
    assert (kept.generation, [item.seen for item in kept.members]) == (2, [2, 3])
    # A member does not remove itself.
    assert [
        item.id for item in after(steps.heartbeat(two, metadata(two, "two"), (), {"two": seen["two"]})).members
    ] == ["one", "two"]
    joined_later = after(steps.join(two, [member("three")], FOUR, seen))
    assert owned(joined_later) == {"three": [0, 1, 2, 3]}


def test_pending_offsets_are_superseded_with_their_member_unless_it_left() -> None:
    two = shared("one", "two")
    state = after(steps.prepare(two, metadata(two, "one"), "t", 0, 1, [at("a", {0: 5})]))
    assert not state.is_superseded(state.pending[0])
    taken_out = after(steps.heartbeat(state, metadata(state, "two"), (), {"one": state.number}))
    assert taken_out.is_superseded(taken_out.pending[0])
    left = after(steps.leave(state, metadata(state, "one")))
    assert not left.is_superseded(left.pending[0])
    # The offsets stay pending after the member released the partition. The next owner waits for the decision.
    first = state.member("one")
    assert first is not None
    moved = after(steps.revoke(state, metadata(state, "one"), first.revoked))
    assert not moved.is_superseded(moved.pending[0])


def test_a_static_member_replaces_the_previous_member() -> None:
    state = after(steps.join(shared("x"), [member("one", instance_id="i")], FOUR, {}))
    first = state.member("x")
    assert first is not None
    state = after(steps.revoke(state, metadata(state, "x"), first.revoked))
    again = after(steps.join(state, [member("two", instance_id="i")], FOUR, {}))
    assert owned(again) == {"two": owned(state)["one"], "x": owned(state)["x"]}
    with pytest.raises(Fenced):
        steps.heartbeat(again, metadata(state, "one"))


def test_more_partitions_and_other_topics_are_a_new_generation() -> None:
    one = shared("one")
    assert steps.subscribe(one, metadata(one, "one"), ["a"], FOUR) is None
    more = after(steps.subscribe(one, metadata(one, "one"), ["a"], {"a": 6}))
    assert (more.partitions, owned(more)) == ({"a": 6}, {"one": [0, 1, 2, 3, 4, 5]})
    other = after(steps.subscribe(more, metadata(more, "one"), ["b"], {"b": 1}))
    assert other.partitions == {"b": 1}
    item = other.member("one")
    assert item is not None
    assert item.owned - item.revoked == {("b", 0)}
    assert len(item.revoked) == 6


def test_members_need_a_common_assignor() -> None:
    assert common_assignor([member("a", "range", "sticky"), member("b", "sticky", "range")]) == "range"
    assert common_assignor([member("a", "range", "sticky"), *[member(x, "sticky", "range") for x in "bc"]]) == "sticky"
    assert common_assignor([member("a", "sticky"), member("b", "range", "sticky")]) == "sticky"
    with pytest.raises(Conflict, match="a common assignor, found range; sticky"):
        steps.join(
            after(steps.join(GroupState("g"), [member("a", "range")], FOUR, {})), [member("b", "sticky")], FOUR, {}
        )


OWNER = GroupMember("query", None, "", "", 9_000, (ALL,), ())
SERVER = GroupMember("serve@a:1", None, "serve@a:1", "host", 9_000, (ALL, "range", "sticky"), ())


def test_an_exclusive_owner_and_sharing_members_exclude_each_other() -> None:
    two = shared("one", "two")
    seen = {item.id: item.seen for item in two.members}
    assert steps.is_excluded(two, OWNER, {})
    assert steps.is_excluded(two, SERVER, {})
    assert not steps.is_excluded(two, OWNER, seen)
    query = after(steps.join(two, [OWNER], {}, seen))
    assert ([item.id for item in query.members], query.partitions, query.instance) == (["query"], {}, "query")
    assert (query.write_features, query.member("query")) == ((), replace(OWNER, generation=3, seen=query.number))
    with pytest.raises(Fenced, match=r"the group is at generation 3 \(query\)"):
        steps.commit(query, metadata(two, "one"), [])
    assert steps.is_excluded(query, member("one"), {})
    again = after(steps.join(query, [member("one")], FOUR, {"query": query.number}))
    assert (again.instance, owned(again)) == (None, {"one": [0, 1, 2, 3]})
    with pytest.raises(Fenced):
        steps.heartbeat(again, GroupMetadata("g", 3, "query"))


def test_a_new_exclusive_owner_replaces_the_previous_owner_and_aborts_its_prepares() -> None:
    first = after(steps.join(GroupState("g"), [OWNER], {}, {}))
    prepared = after(steps.prepare(first, metadata(first, "query"), "t", 0, 1, [at("a", {0: 5})]))
    assert not prepared.is_superseded(prepared.pending[0])
    # A restarted query with the same name also replaces it.
    second = after(steps.join(prepared, [OWNER], {}, {}))
    assert second.is_superseded(second.pending[0])
    with pytest.raises(Fenced, match="generation 1"):
        steps.commit(second, metadata(first, "query"), [at("a", {0: 5})])
    left = after(steps.leave(prepared, metadata(prepared, "query")))
    assert not left.is_superseded(left.pending[0])


def test_a_sharing_owner_is_replaced_by_its_clients() -> None:
    alone = after(steps.join(GroupState("g"), [SERVER], {}, {}))
    assert alone.read_features == (GROUP_MEMBERS, LISTED_OWNERS)
    with pytest.raises(Conflict, match="a common assignor"):
        steps.join(alone, [member("m", "cooperative-sticky")], FOUR, {})
    waiting = after(steps.join(alone, [member("m", "range")], FOUR, {}))
    assert owned(waiting) == {"m": [], SERVER.id: []}
    assert targets(waiting)["m"] == [0, 1, 2, 3]
    # The owner continues until it is ready, and starts another generation if necessary.
    owner = metadata(alone, SERVER.id)
    state = after(steps.commit(waiting, owner, [at("a", {0: 5})]))
    again = after(steps.join(state, [SERVER], {}, {}))
    assert owned(again) == {"m": [], SERVER.id: []}
    clients = [replace(member(name, "range"), owned=frozenset({("a", n), ("a", n + 2)})) for n, name in enumerate("cd")]
    with pytest.raises(Fenced):
        steps.join(again, clients, FOUR, {}, owner)
    shares = after(steps.join(again, clients, FOUR, {}, metadata(again, SERVER.id)))
    assert shares.read_features == (GROUP_MEMBERS,)
    assert owned(shares) == {"c": [0, 2], "d": [1, 3], "m": []}
    assert targets(shares) == {"c": [0, 1], "d": [2], "m": [3]}
    gone = after(steps.heartbeat(waiting, metadata(waiting, "m"), (), {SERVER.id: alone.number}))
    assert owned(gone) == {"m": [0, 1, 2, 3]}


def test_changes_by_administrators_remove_all_members() -> None:
    two = after(steps.commit(shared("one", "two"), GroupMetadata("g", 1, "one"), [at("a", {0: 1})]))
    for stepped in (
        steps.alter(two, [at("a", {0: 0})]),
        steps.delete_offsets(two, {"a": [0]}),
        steps.delete(two),
        steps.restore(two, [], 9),
    ):
        state = after(stepped)
        assert (state.members, state.active) == ((), None)
    assert after(steps.restore(two, [at("a", {0: 9}, time_ms=99)], 1)).members == two.members


def test_entries_with_members_need_the_feature_and_others_do_not() -> None:
    two = shared("one", "two")
    assert two.read_features == two.write_features == (GROUP_MEMBERS,)
    assert after(steps.alter(two, [])).write_features == ()
    data = GROUP_JSON.encode(two)
    document = documents.decode(data, "k", "entry").document
    document.pop("crc")
    owners = document["members"][1]
    assert list(owners) == [
        *("id", "instanceId", "clientId", "host", "sessionTimeoutMs", "assignors", "topics"),
        *("generation", "seen", "owned", "awaited"),
    ]
    owners["owned"] = {"a": [0]}
    with pytest.raises(Corrupt, match="a list without shared partitions"):
        GROUPS.decode(documents.encode(document), "k", two.number)
    owners["owned"], owners["id"] = {}, "one"
    with pytest.raises(Corrupt, match="sorted by id without duplicates"):
        GROUPS.decode(documents.encode(document), "k", two.number)
    owners["id"], owners["seen"] = "two", 9
    with pytest.raises(Corrupt, match="latest heartbeat is in an entry up to 1"):
        GROUPS.decode(documents.encode(document), "k", two.number)


def test_an_older_release_rejects_the_entry_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    data = GROUP_JSON.encode(shared("one"))
    monkeypatch.setattr(documents, "KNOWN_READ_FEATURES", frozenset())
    with pytest.raises(BadRequest, match="requires the sparklog features groupMembers; upgrade sparklog"):
        GROUPS.decode(data, "k", 0)


def test_generations_of_members_start_over_after_the_highest() -> None:
    state = shared("two", state=replace(shared("one"), generation=2**31 - 1))
    assert (state.generation, metadata(state, "two").generation) == (1, 1)


def test_an_entry_has_at_most_300_bytes_per_member_with_ten_partitions() -> None:
    """docs/reference/cost.md contains this number."""
    items = [replace(member(f"consumer-{n:04}-{n:022}"), host="a-name-of-a-host") for n in range(100)]
    state = GroupState("g")
    for item in items:
        state = after(steps.join(state, [item], {"a": 1_000}, {}))
    while unsettled := [item for item in state.members if item.revoked]:
        state = after(steps.revoke(state, metadata(state, unsettled[0].id), unsettled[0].revoked))
    assert len(GROUP_JSON.encode(state)) < 300 * 100
