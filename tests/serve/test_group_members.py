"""Group members in situations that are rare for clients: a slow leader, a group that is closed during a rebalance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import sparklog
from sparklog.groups.assignors import ALL
from sparklog.groups.group_members import GroupMember
from sparklog.groups.group_state import GroupMetadata, GroupState
from sparklog.groups.membership import Membership
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.group_members import EMPTY, STABLE, GroupMembers, JoinResult, MemberState
from sparklog.serve.join_details import JoinDetails
from sparklog.serve.options import Address
from tests.serve.wire import Wire


class Entered:
    """A generation in a journal. `left` is set when the group has ended."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.left = False
        self.metadata = GroupMetadata("g", generation, "serve@here:1")
        self.state = GroupState("g", members=(GroupMember("serve@here:1", None, "", "", 1, (ALL,), ()),))

    def leave(self) -> None:
        self.left = True


def group_of(begin: Callable[[], Awaitable[object]]) -> GroupMembers:
    numbers = count()
    return GroupMembers("g", cast(Any, begin), lambda: str(next(numbers)), cast(Any, None), cast(Any, None))


def details(name: str, session_ms: int) -> JoinDetails:
    return JoinDetails("", None, name, "host", session_ms, 20_000, "consumer", (("range", b""),))


async def joined(group: GroupMembers, *asked: JoinDetails) -> list[JoinResult]:
    return await asyncio.gather(*(group.join(one, id_first=False) for one in asked))


def test_a_member_that_waits_for_a_slow_leader_is_kept() -> None:
    async def run() -> None:
        generations = count(1)

        async def begin(*_: object) -> Membership:
            return cast(Membership, Entered(next(generations)))

        group = group_of(begin)
        leader, other = await joined(group, details("leader", 60_000), details("other", 20))
        assert leader.members
        syncing = asyncio.create_task(group.sync(other.member, other.generation, None, {}))
        # Longer than the session timeout, because a member cannot send heartbeats while it waits for a response.
        await asyncio.sleep(0.1)
        await group.sync(leader.member, leader.generation, None, {leader.member: b"A", other.member: b"B"})
        assert await syncing == b"B"
        assert group.state == STABLE
        await asyncio.sleep(0.1)
        assert list(group.members) == [leader.member], "and now it has been silent for too long"

    asyncio.run(run())


def test_the_instance_id_of_another_member_is_rejected() -> None:
    async def run() -> None:
        async def begin(*_: object) -> Membership:
            return cast(Membership, Entered(1))

        group = group_of(begin)
        (one,) = await joined(group, details("one", 60_000))
        group.checked(one.member, one.generation, None)
        with pytest.raises(CodeError) as raised:
            group.checked(one.member, one.generation, "unknown")
        assert raised.value.code is Code.UNKNOWN_MEMBER_ID

    asyncio.run(run())


def test_each_generation_follows_the_previous_one() -> None:
    """The journal rejects the generation of a server that another owner has fenced (`Group.own`)."""

    async def run() -> None:
        continued: list[GroupMetadata | None] = []

        async def begin(_: object, previous: GroupMetadata | None) -> Membership:
            continued.append(previous)
            return cast(Membership, Entered(len(continued)))

        group = group_of(begin)
        (one,) = await joined(group, details("one", 60_000))
        await group.sync(one.member, one.generation, None, {one.member: b"A"})
        again = replace(details("one", 60_000), member=one.member)
        await asyncio.gather(group.join(again, id_first=False), group.join(details("two", 60_000), id_first=False))
        assert continued == [None, GroupMetadata("g", 1, "serve@here:1")]

    asyncio.run(run())


def test_a_repeated_sync_group_ends_the_previous_request() -> None:
    """The client has closed the connection of the previous request, which must not stay open until the group ends."""

    async def run() -> None:
        async def begin(*_: object) -> Membership:
            return cast(Membership, Entered(1))

        group = group_of(begin)
        leader, other = await joined(group, details("leader", 60_000), details("other", 60_000))
        asked = [asyncio.create_task(group.sync(other.member, 1, None, {})) for _ in range(2)]
        with pytest.raises(CodeError, match="UNKNOWN_MEMBER_ID"):
            await asyncio.wait_for(asked[0], 20)
        await group.sync(leader.member, 1, None, {other.member: b"B"})
        assert await asked[1] == b"B"

    asyncio.run(run())


def test_members_get_a_response_if_a_rebalance_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        errors: list[Exception] = [RuntimeError("broken"), RuntimeError("broken")]

        async def begin(*_: object) -> Membership:
            if errors:
                raise errors.pop()
            return cast(Membership, Entered(1))

        group = group_of(begin)
        with pytest.raises(CodeError, match="COORDINATOR_NOT_AVAILABLE"):
            await asyncio.wait_for(joined(group, details("one", 60_000)), 20)
        (member,) = group.members
        again = replace(details("one", 60_000), member=member)
        with pytest.raises(CodeError, match="COORDINATOR_NOT_AVAILABLE"):
            await group.join(again, id_first=False)
        assert (await group.join(again, id_first=False)).generation == 1

    asyncio.run(run())
    # Clients rejoin immediately, so the warning is logged once per minute.
    assert caplog.text.count("cannot write the next generation, so the members must rejoin: broken") == 1


def test_a_group_closed_during_a_rebalance_ends_in_the_journal() -> None:
    async def run() -> None:
        entered, beginning, go = Entered(1), asyncio.Event(), asyncio.Event()

        async def begin(*_: object) -> Membership:
            beginning.set()
            await go.wait()
            return cast(Membership, entered)

        group = group_of(begin)
        joining = asyncio.create_task(group.join(details("one", 60_000), id_first=False))
        await beginning.wait()
        group.close(Code.NOT_COORDINATOR)
        go.set()
        with pytest.raises(CodeError, match="NOT_COORDINATOR"):
            await joining
        async with group.lock:
            assert entered.left
            assert (group.state, group.membership, group.members) == (EMPTY, None, {})

    asyncio.run(run())


JOURNAL = cast(Any, SimpleNamespace(log=SimpleNamespace(refresh=lambda: None)))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], tuple[GroupMembers, MemberState]]:
    """Create a shared group with one client. The client must rejoin within 20 ms if the function returns True."""

    async def call(function: Callable[..., Any], *arguments: object) -> Any:
        return function(*arguments)

    def group(must_rejoin: Callable[[], bool]) -> tuple[GroupMembers, MemberState]:
        group = GroupMembers("g", cast(Any, None), str, cast(Any, None), cast(Any, call))
        member = MemberState(replace(details("one", 60_000), member="one", rebalance_ms=20))
        member.classic = cast(Any, SimpleNamespace(membership=None, must_rejoin=must_rejoin))
        group.members["one"], group.is_shared, group.state = member, True, STABLE
        return group, member

    monkeypatch.setattr("sparklog.serve.group_members.refresh_membership", lambda *_: None)
    monkeypatch.setattr("sparklog.serve.group_members.leave_journal", lambda _: None)
    return group


def test_a_member_whose_assignment_is_restored_does_not_have_to_rejoin(shared: Any) -> None:
    """For example, another member has joined and left between two heartbeats of this member."""

    async def run() -> None:
        answers = [True, False]
        group, _ = shared(lambda: answers.pop(0))
        for _ in range(2):
            await group.refresh_shared(JOURNAL)
        await asyncio.sleep(0.1)
        assert list(group.members) == ["one"]

    asyncio.run(run())


def test_a_member_that_does_not_rejoin_is_removed_after_the_current_call(
    shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        group, member = shared(lambda: True)
        await group.refresh_shared(JOURNAL)
        async with member.call_lock:
            await asyncio.sleep(0.1)
            assert list(group.members) == ["one"]
        await asyncio.sleep(0.1)
        assert not group.members

    monkeypatch.setattr("sparklog.serve.group_members.LOCKED_SECONDS", 0.01)
    asyncio.run(run())


@pytest.mark.parametrize("gone", ["with its last member", "with all members at once"])
def test_a_group_is_empty_when_its_last_leave_group_returns(
    serve: Callable[..., Address], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    leave = Membership.leave

    def slow(membership: Membership) -> None:
        time.sleep(0.1)
        leave(membership)

    monkeypatch.setattr(Membership, "leave", slow)
    wire = Wire(serve(sparklog.open(tmp_path, create=True).location, writable=True))
    asked = {"groupId": "g", "sessionTimeoutMs": 10_000, "rebalanceTimeoutMs": 10_000, "protocolType": "consumer"}
    asked["protocols"] = [{"name": "range", "metadata": b"abcd"}]
    joined = wire.ask("JoinGroup", 3, {**asked, "memberId": ""})
    member = joined["memberId"]
    given = {"assignments": [{"memberId": member, "assignment": b"x"}]}
    wire.ask("SyncGroup", 2, {"groupId": "g", "generationId": joined["generationId"], "memberId": member, **given})
    if gone == "with its last member":
        assert wire.ask("LeaveGroup", 1, {"groupId": "g", "memberId": member})["errorCode"] == Code.NONE
    else:
        wire.ask("LeaveGroup", 3, {"groupId": "g", "members": [{"memberId": member}]})
    assert wire.ask("DescribeGroups", 0, {"groups": ["g"]})["groups"][0]["groupState"] == "Empty"
    assert wire.ask("DeleteGroups", 0, {"groupsNames": ["g"]})["results"][0]["errorCode"] == Code.NONE
    wire.close()
