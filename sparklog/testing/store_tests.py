"""Tests that every store must pass. They require pytest.

class TestMyStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return MyStore(tmp_path)
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparklog.errors import BadRequest, NotFound, Unavailable
from sparklog.storage.store import ObjectInfo, Store

INVALID_KEYS = [
    *("", "/a", "a//b", "a/", "..", "a/../b", "./a", "a/.", "a b", "ü", "a\\b", "a\x00b", "a\nb", "~a"),
    *("a" * 256, "a/" * 600 + "a"),
]


class StoreTests:
    """The test suite for stores. To run it, subclass this class and define a fixture `store` that returns an empty
    store.
    """

    clock_step_ms = 20
    """The resolution of the store's times. File timestamps come from a clock that advances every few milliseconds."""

    def test_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert store.location

    def test_create_and_get(self, store: Store) -> None:
        assert store.create("t/_log/00000000000000000000.json", b"hello") is True
        assert store.get("t/_log/00000000000000000000.json") == b"hello"
        assert store.get("t/_log/00000000000000000000.json", 1, 3) == b"ell"
        assert store.get("t/_log/00000000000000000000.json", 3) == b"lo"

    def test_get_beyond_the_end_is_short(self, store: Store) -> None:
        store.create("a", b"hello")
        assert store.get("a", 3, 100) == b"lo"
        assert store.get("a", 5, 1) == b""
        assert store.get("a", 1 << 50, 1 << 50) == b""
        assert store.get("a", 0, 0) == b""

    def test_negative_ranges_are_rejected(self, store: Store) -> None:
        store.create("a", b"hello")
        with pytest.raises(BadRequest, match="negative"):
            store.get("a", -1)
        with pytest.raises(BadRequest, match="negative"):
            store.get("a", 0, -1)

    def test_second_create_changes_nothing(self, store: Store) -> None:
        assert store.create("a/b", b"first")
        assert store.create("a/b", b"second") is False
        assert store.get("a/b") == b"first"

    def test_overwrite_replaces_the_bytes_of_an_object(self, store: Store) -> None:
        store.create("a/b", b"first")
        store.overwrite("a/b", [b"sec", b"ond"])
        assert store.get("a/b") == b"second"
        store.overwrite("a/c", iter([b"none was there"]))
        store.overwrite("a/d", [])
        assert [(info.key, info.size) for info in store.list("a/")] == [("a/b", 6), ("a/c", 14), ("a/d", 0)]
        assert list(store.temporary_files("")) == []

    def test_empty_object(self, store: Store) -> None:
        assert store.create("a", b"")
        assert store.get("a") == b""
        assert store.stat("a") is not None

    def test_exactly_one_creator_wins(self, store: Store) -> None:
        for turn in range(5):
            start = threading.Barrier(8)
            bodies = [b"%d" % n * 5000 for n in range(8)]

            def create(body: bytes, key: str = f"race/{turn}", start: threading.Barrier = start) -> bool:
                start.wait()
                return store.create(key, body)

            with ThreadPoolExecutor(8) as pool:
                won = [body for body, created in zip(bodies, pool.map(create, bodies), strict=True) if created]
            assert len(won) == 1
            assert store.get(f"race/{turn}") == won[0]
        assert [info.key for info in store.list("")] == [f"race/{turn}" for turn in range(5)]

    def test_missing_object(self, store: Store) -> None:
        with pytest.raises(NotFound, match="no object a/b"):
            store.get("a/b")
        assert store.stat("a/b") is None
        store.delete("a/b")
        store.create("a/b", b"x")
        with pytest.raises(NotFound):
            store.get("a/b/c")
        assert store.stat("a/b/c") is None
        store.delete("a/b/c")
        assert store.get("a/b") == b"x"

    def test_a_folder_is_not_an_object(self, store: Store) -> None:
        store.create("a/b", b"x")
        assert store.stat("a") is None
        with pytest.raises(NotFound):
            store.get("a")
        store.delete("a")
        assert store.get("a/b") == b"x"

    def test_delete_and_create_again(self, store: Store) -> None:
        store.create("a/b/c", b"1")
        store.delete("a/b/c")
        assert store.stat("a/b/c") is None
        assert list(store.list("")) == []
        assert list(store.list_folders("")) == []
        assert store.create("a/b/c", b"2")
        assert store.get("a/b/c") == b"2"

    def test_delete_many(self, store: Store) -> None:
        for key in ["a/b", "a/c", "a/d"]:
            store.create(key, b"x")
        store.delete_many(["a/b", "a/missing", "a/d"])
        assert [info.key for info in store.list("")] == ["a/c"]
        store.delete_many([])

    def test_stat(self, store: Store) -> None:
        before = store.now_ms()
        store.create("a/b", b"12345")
        info = store.stat("a/b")
        assert info is not None
        assert (info.key, info.size) == ("a/b", 5)
        assert before - self.clock_step_ms <= info.modified_ms <= store.now_ms() + self.clock_step_ms

    def test_writer(self, store: Store) -> None:
        writer = store.writer("t/append/x.slices")
        writer.write(b"abc")
        writer.write(bytearray(b"def"))
        writer.write(memoryview(b"g" * 3_000_000))
        assert store.stat("t/append/x.slices") is None
        assert list(store.list("")) == []
        writer.close()
        assert store.get("t/append/x.slices") == b"abcdef" + b"g" * 3_000_000
        writer.close()
        writer.discard()
        (info,) = store.list("t/")
        assert store.stat("t/append/x.slices") == info == ObjectInfo(info.key, 3_000_006, info.modified_ms)

    def test_discarded_writer_leaves_nothing(self, store: Store) -> None:
        writer = store.writer("t/append/x.slices")
        writer.write(b"abc")
        writer.discard()
        writer.discard()
        assert list(store.list("")) == []
        assert store.stat("t/append/x.slices") is None

    def test_writer_never_overwrites(self, store: Store) -> None:
        store.create("a", b"first")
        writer = store.writer("a")
        writer.write(b"second")
        with pytest.raises(Unavailable, match=r"already exists|exists already"):
            writer.close()
        assert store.get("a") == b"first"

    def test_write_after_close_is_rejected(self, store: Store) -> None:
        writer = store.writer("a")
        writer.close()
        with pytest.raises(ValueError, match="closed"):
            writer.write(b"x")
        assert store.get("a") == b""

    def test_list_in_key_order(self, store: Store) -> None:
        # "a" and "a/b/c" are not among the keys, because "a" and "a/b" would be both files and directories.
        keys = ["a-b/c", "a.b", "a/b", "a/b-c", "a0", "b/x/y/z", "b/x/y0", "B"]
        for key in reversed(keys):
            store.create(key, key.encode())
        assert [info.key for info in store.list("")] == sorted(keys)
        assert [(info.key, info.size) for info in store.list("a/")] == [("a/b", 3), ("a/b-c", 5)]
        for after in [*keys, "", "a/", "a/b/", "b/x/y", "zz"]:
            assert [info.key for info in store.list("", after)] == sorted(key for key in keys if key > after)
        for prefix in ["a", "a/", "a/b", "a-", "b/x/y", "b/x/y/", "b", "nothing", "nothing/at/all", "."]:
            assert [info.key for info in store.list(prefix)] == sorted(key for key in keys if key.startswith(prefix))
            rest = [info.key for info in store.list(prefix, "a/b")]
            assert rest == sorted(key for key in keys if key.startswith(prefix) and key > "a/b")

    def test_list_folders(self, store: Store) -> None:
        for key in ["b/x", "a/y/z", "a/x/z", "a.b/x", "a-b/x", "file"]:
            store.create(key, b"")
        assert list(store.list_folders("")) == ["a-b", "a.b", "a", "b"]
        assert list(store.list_folders("a/")) == ["x", "y"]
        assert list(store.list_folders("file/")) == []
        assert list(store.list_folders("nothing/")) == []
        with pytest.raises(BadRequest, match="end in '/'"):
            store.list_folders("a")

    @pytest.mark.parametrize("key", INVALID_KEYS)
    def test_invalid_keys_are_rejected(self, store: Store, key: str) -> None:
        for call in (store.get, store.stat, store.delete, store.writer, lambda k: store.create(k, b"")):
            with pytest.raises(BadRequest, match="not a key"):
                call(key)
        assert list(store.list("")) == []

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a//", "~", "a/ b"])
    def test_invalid_prefixes_are_rejected(self, store: Store, prefix: str) -> None:
        with pytest.raises(BadRequest, match="not a"):
            store.list(prefix)

    def test_names_keep_their_case(self, store: Store) -> None:
        assert store.create("x/Orders", b"1")
        assert store.create("x/orders", b"2")
        assert (store.get("x/Orders"), store.get("x/orders")) == (b"1", b"2")
