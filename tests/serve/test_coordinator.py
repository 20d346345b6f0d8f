"""The groups of a coordinator: offset commits that share an entry or are fenced, eviction, and the stop of a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparklog.groups.group_state import OffsetAndMetadata
from sparklog.groups.membership import Membership
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.topic.root import open_root
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.coordinator import Coordinator
from sparklog.serve.group_members import STABLE, MemberState
from sparklog.serve.join_details import JoinDetails
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.peers import Peers
from sparklog.serve.server import Server, in_memory
from sparklog.storage.memory import MemoryStore
from tests.serve.conftest import FREE

GROUP = "g"
HERE = Address("here", 1)
ONE = JoinDetails("one", None, "client", "host", 9_000, 9_000, "consumer", ())


def offsets(partition: int, offset: int) -> dict[str, dict[int, OffsetAndMetadata]]:
    return {"t": {partition: OffsetAndMetadata(offset)}}


class Runs:
    """Calls functions when the test requests it. `calls` are the pending calls."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[None]] = []

    async def __call__(self, function: Callable[..., Any], *arguments: object) -> Any:
        self.calls.append(asyncio.get_running_loop().create_future())
        await self.calls[-1]
        return function(*arguments)


def coordinator(runs: Runs) -> Coordinator:
    root = open_root(MemoryStore(SYSTEM.wall_ms), create=True)
    root.create_topic("t", partitions=4)
    return Coordinator(root, Peers([HERE]), runs)


def join(asked: Coordinator) -> Membership:
    """Write the next generation, like a rebalance."""
    members = asked.members(GROUP)
    members.members["one"] = MemberState(ONE)
    members.membership = asked.group(GROUP).join(f"serve@{HERE}", session_timeout_ms=9_000)
    return members.membership


async def waiting(runs: Runs, count: int) -> None:
    while len(runs.calls) < count:
        await asyncio.sleep(0)


def test_pending_offset_commits_share_an_entry() -> None:
    async def run() -> None:
        runs = Runs()
        asked = coordinator(runs)
        join(asked)
        number = asked.group(GROUP).state().number
        first = asyncio.create_task(asked.commit(GROUP, offsets(0, 1)))
        await waiting(runs, 1)
        others = [asyncio.create_task(asked.commit(GROUP, offsets(partition, 2))) for partition in (0, 1, 2, 3)]
        await asyncio.sleep(0)
        # If a client disconnects, its offsets are committed with those of other clients.
        others[3].cancel()
        runs.calls[0].set_result(None)
        await waiting(runs, 2)
        runs.calls[1].set_result(None)
        await asyncio.gather(first, *others[:3])
        group = asked.group(GROUP)
        assert {
            topic_partition[1]: item.offset for topic_partition, item in group.committed().items()
        } == dict.fromkeys(range(4), 2)
        assert group.state().number == number + 2

    asyncio.run(run())


@pytest.mark.parametrize("pending", [False, True], ids=["last member of a shared group was dropped", "pending id"])
def test_only_groups_without_clients_are_evicted(pending: bool) -> None:
    async def run() -> None:
        asked = coordinator(Runs())
        members = asked.members(GROUP)
        if pending:
            details = replace(ONE, member="", protocols=(("range", b""),))
            with pytest.raises(CodeError, match="MEMBER_ID_REQUIRED"):
                await members.join(details, id_first=True)
        else:
            member = members.members["one"] = MemberState(ONE)
            members.is_shared, members.state = True, STABLE
            members._drop_member(member)
        await asyncio.wait_for(asked._watch_group(GROUP, members, 1), 5)
        assert (GROUP in asked._groups) == pending

    asyncio.run(run())


async def stop_server(*leave: Callable[[], object]) -> None:
    """Stop a server with the clients of a shared group. Each function is called when its client leaves the group."""
    server = Server(in_memory(), ServeOptions(listen=FREE))
    await server.start()
    asked = server._services.coordinator
    assert asked is not None
    members = asked.members(GROUP)
    members.is_shared, members.state = True, STABLE
    for number, function in enumerate(leave):
        classic = SimpleNamespace(membership=SimpleNamespace(leave=function))
        members.members[str(number)] = MemberState(replace(ONE, member=str(number)), classic=cast(Any, classic))
    await server.stop()


def test_the_clients_of_a_stopping_server_leave_shared_groups_in_parallel() -> None:
    both, left = threading.Barrier(2), list[int]()

    def leave() -> None:
        both.wait(5)
        left.append(threading.get_ident())

    asyncio.run(stop_server(leave, leave))
    assert len(left) == 2
    assert threading.get_ident() not in left


def test_a_stopping_server_does_not_wait_for_a_slow_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    released, left = threading.Event(), list[bool]()

    async def run() -> None:
        await stop_server(lambda: left.append(released.wait(10)))
        assert left == []
        released.set()

    monkeypatch.setattr("sparklog.serve.server.STOP_SECONDS", 0.1)
    asyncio.run(run())


@pytest.mark.parametrize("taken", [False, True], ids=["by its next generation", "by another member"])
def test_a_late_offset_commit_is_rejected(taken: bool) -> None:
    async def run() -> None:
        runs = Runs()
        asked = coordinator(runs)
        join(asked)
        late = asyncio.create_task(asked.commit(GROUP, offsets(0, 1)))
        await waiting(runs, 1)
        if taken:
            asked.group(GROUP).join("another", session_timeout_ms=9_000)
        else:
            join(asked)
        runs.calls[0].set_result(None)
        with pytest.raises(CodeError) as refused:
            await late
        assert refused.value.code == (Code.UNKNOWN_MEMBER_ID if taken else Code.ILLEGAL_GENERATION)
        assert (asked.local_members(GROUP) is None) == taken, "members of a group that goes on here stay"

    asyncio.run(run())


def test_a_failed_heartbeat_is_followed_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        signs: list[str] = []

        async def call(function: Callable[..., Any], *_: object) -> None:
            signs.append(function.__name__)
            raise RuntimeError("broken")

        asked = Coordinator(open_root(MemoryStore(SYSTEM.wall_ms), create=True), Peers([HERE]), call)
        join(asked)
        while len(signs) < 2:
            assert not asked._watching.done()
            await asyncio.sleep(0)

    monkeypatch.setattr("sparklog.serve.coordinator.POLL_SECONDS", 0)
    asyncio.run(run())


def test_servers_agree_on_the_coordinator_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    root = open_root(MemoryStore(SYSTEM.wall_ms), create=True)
    nodes = [Address("one", 1), Address("two", 2), Address("three", 3)]
    alive = set(nodes)

    async def responds(peers: Peers, node: Address) -> bool:
        return node in alive

    async def call(function: Callable[..., Any], *arguments: object) -> Any:
        return function(*arguments)

    async def owner(name: str) -> Address:
        servers = [Coordinator(root, Peers([node, *nodes]), call) for node in alive]
        owners = {await server.owner(name) for server in servers}
        assert len(owners) == 1, "one group, and several servers that would have it"
        return owners.pop()

    async def run() -> None:
        names = [f"group-{number}" for number in range(40)]
        before = {name: await owner(name) for name in names}
        assert set(before.values()) == alive
        # The journal takes precedence: the group stays with its server as long as that server responds.
        other = next(node for node in nodes if node != before[names[0]])
        root_group = Coordinator(root, Peers([other]), call).group(names[0])
        root_group.join(f"serve@{other}", session_timeout_ms=45_000)
        assert await owner(names[0]) == other
        alive.remove(other)
        assert {await owner(name) for name in names} == alive

    monkeypatch.setattr(Peers, "responds", responds)
    asyncio.run(run())
