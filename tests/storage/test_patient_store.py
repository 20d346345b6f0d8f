"""Reads on a mount with a name cache wait for objects that are listed but hidden."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.errors import NotFound, Unavailable
from sparklog.storage.patient_store import patient
from sparklog.storage.retries import SETTLE_MS
from sparklog.storage.store import Store
from sparklog.testing.world import World
from tests.support.name_caching_store import NameCachingStore

READS: dict[str, Callable[[Store], object]] = {"get": lambda store: store.get("t/a"), "stat": lambda s: s.stat("t/a")}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("cached_ms", [1_000, 2 * SETTLE_MS])
def test_reads_wait_for_a_hidden_object(name: str, cached_ms: int) -> None:
    world, read = World(), READS[name]
    store = NameCachingStore(world.store, lambda: world.now_ms, name_ms=cached_ms)
    assert store.stat("t/a") is None
    world.store.create("t/a", b"x")
    if cached_ms > SETTLE_MS:
        with pytest.raises(Unavailable, match=r"t/a .* is listed but cannot be read"):
            read(patient(store, world.env()))
    else:
        assert read(patient(store, world.env()))


def test_an_object_that_is_not_listed_does_not_exist() -> None:
    world = World()
    store = patient(NameCachingStore(world.store, lambda: world.now_ms, name_ms=1_000), world.env())
    assert store.stat("t/a") is None
    with pytest.raises(NotFound):
        store.get("t/a")
    assert patient(world.store, world.env()) is world.store
