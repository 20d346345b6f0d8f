"""The store that remembers names behaves as a store, and believes what it remembers for just as long as it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sparklog.errors import NotFound
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.store_tests import StoreTests
from tests.support.name_caching_store import NameCachingStore

KEEP_MS = 1_000
KEY = "t/_log/00000000000000000001.json"


@dataclass
class Shared:
    """One store, its clock, and clients of it."""

    now_ms: int = 0
    store: MemoryStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryStore(lambda: self.now_ms, "shared")

    def client(self, kind: str) -> NameCachingStore:
        return NameCachingStore(self.store, lambda: self.now_ms, **{kind: KEEP_MS})


def has(store: Store, key: str) -> bool:
    try:
        store.get(key)
    except NotFound:
        return False
    return True


@pytest.fixture(params=["name_ms", "folder_ms"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestNames(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return Shared().client("name_ms")


class TestFolders(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return Shared().client("folder_ms")


def test_an_absent_name_stays_absent_for_this_client_alone(kind: str) -> None:
    shared = Shared()
    here, elsewhere = shared.client(kind), shared.client(kind)
    assert not has(here, KEY)
    assert elsewhere.create(KEY, b"made elsewhere")
    shared.now_ms = KEEP_MS - 1
    assert not has(here, KEY)
    assert here.stat(KEY) is None
    assert has(elsewhere, KEY)
    assert has(shared.client(kind), KEY)
    shared.now_ms = KEEP_MS
    assert here.get(KEY) == b"made elsewhere"
    assert here.stat(KEY) is not None


def test_exists_then_absent(kind: str) -> None:
    shared = Shared()
    here = shared.client(kind)
    assert not has(here, KEY)
    shared.store.create(KEY, b"made elsewhere")
    assert here.create(KEY, b"ours") is False
    assert not has(here, KEY)
    shared.now_ms = KEEP_MS
    assert here.get(KEY) == b"made elsewhere"


def test_a_client_knows_what_it_does_itself(kind: str) -> None:
    here = Shared().client(kind)
    assert not has(here, KEY)
    assert not list(here.list("t/"))
    assert here.create(KEY, b"ours")
    assert has(here, KEY)
    assert [info.key for info in here.list("t/")] == [KEY]
    here.delete(KEY)
    assert not has(here, KEY)
    assert here.stat(KEY) is None
    assert not list(here.list("t/"))


def test_processes_of_one_machine_remember_in_common(kind: str) -> None:
    shared = Shared()
    here = shared.client(kind)
    assert not has(here, KEY)
    shared.store.create(KEY, b"made elsewhere")
    assert not has(here.through(shared.store), KEY)


def test_names_expire_one_by_one_and_those_of_a_folder_together() -> None:
    other = KEY.replace("1.json", "2.json")
    for kind, second_is_absent in (("name_ms", True), ("folder_ms", False)):
        shared = Shared()
        here = shared.client(kind)
        assert not has(here, KEY)
        shared.now_ms = KEEP_MS // 2
        assert not has(here, other)
        for key in (KEY, other):
            shared.store.create(key, b"")
        shared.now_ms = KEEP_MS
        assert has(here, KEY)
        assert has(here, other) is not second_is_absent


def test_attributes_outlive_the_object_and_data_does_not() -> None:
    shared = Shared()
    here = shared.client("name_ms")
    shared.store.create(KEY, b"made elsewhere")
    assert here.stat(KEY) is not None
    shared.store.delete(KEY)
    assert here.stat(KEY) is not None
    with pytest.raises(NotFound):
        here.get(KEY)
    assert here.stat(KEY) is None


def test_listings_of_a_folder_are_remembered_and_say_what_is_absent() -> None:
    shared = Shared()
    here = shared.client("folder_ms")
    shared.store.create(KEY, b"")
    assert [info.key for info in here.list("t/_log/")] == [KEY]
    assert list(here.list_folders("")) == ["t"]
    new = KEY.replace("1.json", "2.json")
    shared.store.create(new, b"")
    shared.store.create("u/file", b"")
    assert [info.key for info in here.list("t/_log/0")] == [KEY]
    assert not has(here, new)
    assert list(here.list_folders("")) == ["t"]
    shared.now_ms = KEEP_MS
    assert [info.key for info in here.list("t/_log/", after=KEY)] == [new]
    assert has(here, new)
    assert list(here.list_folders("")) == ["t", "u"]


def test_a_listing_names_what_a_look_up_did_not_find_before() -> None:
    shared = Shared()
    names, folders = shared.client("name_ms"), shared.client("folder_ms")
    assert not has(names, KEY)
    assert not has(folders, KEY)
    shared.store.create(KEY, b"")
    for here in (names, folders):
        assert [info.key for info in here.list("t/_log/")] == [KEY]
    assert has(folders, KEY)
    assert not has(names, KEY)
