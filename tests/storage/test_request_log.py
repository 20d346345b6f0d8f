"""Requests to stores are logged with one line each, and the behavior of the store does not change."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path

import pytest

from sparklog.errors import NotFound
from sparklog.storage import LocalStore, open_store
from sparklog.storage.retries import Backoff
from tests.support.pauses import Pauses


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [re.sub(r" [0-9.]+ ms", "", record.getMessage()) for record in caplog.records]
    caplog.clear()
    return texts


def test_each_request_is_logged_with_its_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sparklog.requests")
    store = open_store(tmp_path)
    assert [store.create("a/b", b"four"), store.create("a/b", b"5")] == [True, False]
    assert store.get("a/b") + store.get("a/b", 1, length=2) == b"fourou"
    assert (store.stat("a/c"), store.stat("a/b").size) == (None, 4)  # type: ignore[union-attr]
    with pytest.raises(NotFound):
        store.get("a/c")
    writer = store.writer("a/w")
    writer.write(b"12")
    writer.write(memoryview(b"345"))
    writer.close()
    assert [info.key for info in store.list("a/")] == ["a/b", "a/w"]
    assert [next(iter(store.list("a/"))).key, *store.list_folders("")] == ["a/b", "a"]
    store.delete("a/b")
    store.delete_many(["a/w", "a/x"])
    assert store.now_ms() > 0
    assert lines(caplog) == [
        *("create a/b 4 bytes created", "create a/b 1 bytes exists", "get a/b 4 bytes ok", "get a/b 2 bytes ok"),
        *("stat a/c - bytes absent", "stat a/b - bytes ok", "get a/c - bytes NotFound", "close a/w 5 bytes created"),
        *("list a/ - bytes 2 names", "list a/ - bytes 1 names", "list_folders - bytes 1 names"),
        *("delete a/b - bytes ok", "delete a/w - bytes ok", "delete a/x - bytes ok", "now_ms - bytes ok"),
    ]


def test_logging_keeps_the_capabilities_and_copies_do_not_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"linked")
    caplog.set_level(logging.DEBUG, "sparklog.requests")
    store = open_store(tmp_path / "store")
    assert isinstance(store, LocalStore)
    assert store.link(str(tmp_path / "file"), (tmp_path / "file").stat().st_ino, "a")
    assert len(lines(caplog)) == 1
    assert pickle.loads(pickle.dumps(store)).get("a") == b"linked"
    assert lines(caplog) == []


def test_methods_are_not_replaced_if_the_log_is_disabled(tmp_path: Path) -> None:
    logged = {"get", "list", "writer"}
    assert not logged & vars(open_store(tmp_path)).keys()


def test_retries_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sparklog.storage")
    Backoff(Pauses().policy().clock).sleep()
    assert re.fullmatch(r"attempt 1 failed; retrying in \d\.\d s", lines(caplog)[0])
