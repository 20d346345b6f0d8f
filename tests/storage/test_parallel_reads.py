"""Two requests that run in parallel on a remote store and one after the other on a disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn

import pytest

from sparklog.errors import Corrupt, NotFound
from sparklog.storage.parallel_reads import request_both
from tests.support.counted_root import CountedRoot


def test_two_requests_run_in_parallel_on_a_remote_store(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=60)

    def first() -> str:
        both.wait()
        return "first"

    def second() -> int:
        both.wait()
        return 2

    assert request_both(CountedRoot("bucket", tmp_path).store, first, second) == ("first", 2)


def test_two_requests_run_one_after_the_other_on_a_disk(tmp_path: Path) -> None:
    order = list[str]()
    request_both(CountedRoot("local", tmp_path).store, lambda: order.append("first"), lambda: order.append("second"))
    assert order == ["first", "second"]


@pytest.mark.parametrize("kind", ["local", "bucket"])
def test_the_error_of_the_first_request_is_raised(kind: str, tmp_path: Path) -> None:
    def missing() -> NoReturn:
        raise NotFound("the first object does not exist")

    def corrupt() -> NoReturn:
        raise Corrupt("the second object is corrupt")

    with pytest.raises(NotFound, match="first"):
        request_both(CountedRoot(kind, tmp_path).store, missing, corrupt)
