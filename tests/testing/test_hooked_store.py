"""Hooks before and after the requests of a store."""

from __future__ import annotations

import pytest

from sparklog.errors import NotFound, Unavailable
from sparklog.limits import Limits
from sparklog.testing import HookedStore, World


@pytest.fixture
def world() -> World:
    return World()


def test_hooks_see_each_request_with_its_key_and_result(world: World) -> None:
    calls: list[object] = []

    def after(verb: str, key: str, result: object) -> object:
        calls.append((verb, key, result))
        return result

    store = HookedStore(world.store, before=lambda verb, key: calls.append((verb, key)), after=after)
    assert store.create("a", b"1")
    assert store.get("a") == b"1"
    assert calls == [("create", "a"), ("create", "a", True), ("get", "a"), ("get", "a", b"1")]


def test_a_request_that_fails_before_it_is_sent_has_no_effect(world: World) -> None:
    def fail(verb: str, key: str) -> None:
        raise Unavailable("down")

    with pytest.raises(Unavailable, match="down"):
        HookedStore(world.store, before=fail).create("a", b"1")
    assert world.store.stat("a") is None


def test_a_request_whose_response_is_lost_has_taken_effect(world: World) -> None:
    def lose(verb: str, key: str, result: object) -> None:
        raise Unavailable("timed out")

    with pytest.raises(Unavailable, match="timed out"):
        HookedStore(world.store, after=lose).create("a", b"1")
    assert world.store.get("a") == b"1"


def test_a_hook_can_replace_results(world: World) -> None:
    store = HookedStore(world.store, after=lambda verb, key, result: None if verb == "stat" else result)
    store.create("a", b"1")
    assert store.stat("a") is None
    assert store.get("a") == b"1"


def test_an_action_runs_once_at_the_next_request_with_its_label(world: World) -> None:
    store = HookedStore(world.store)
    store.before_next("get:other", lambda: world.store.delete("a"))
    store.create("a", b"1")
    with pytest.raises(NotFound):
        store.get("a")
    seen: list[bytes] = []
    store.after_next("create:other", lambda: seen.append(store.get("a")))
    for _ in range(2):
        store.create("a", b"2")
    assert seen == [b"2"]


def test_a_hooked_store_has_its_own_limits(world: World) -> None:
    store = HookedStore(world.store, limits=Limits(checkpoint_commits=3), parallel_reads=8, writable=False)
    assert (store.limits.checkpoint_commits, store.parallel_reads, store.writable) == (3, 8, False)
    assert (world.store.limits, world.store.parallel_reads, world.store.writable) == (Limits(), 1, True)
    store.limits = Limits(checkpoint_commits=4)
    assert (store.limits.checkpoint_commits, world.store.limits) == (4, Limits())
    plain = HookedStore(world.store)
    assert (plain.limits, plain.parallel_reads, plain.writable) == (Limits(), 1, True)
