"""A disk with occasional failures of system calls: acknowledged appends are stored exactly once, and appends are
atomic.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.errors import SparklogError, Unavailable
from sparklog.storage import LocalStore, local
from sparklog.testing.world import World
from tests.support.records import random_rows, small

RATE = 0.02
STEPS = 25
ERRORS = {
    "open": [errno.EMFILE, errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EROFS],
    "write": [errno.ENOSPC, errno.EDQUOT, errno.EIO],
    "fsync": [errno.EIO, errno.ENOSPC],
    "link": [errno.EIO, errno.ENOSPC],
    "unlink": [errno.EBUSY],
    "scandir": [errno.EMFILE],
    "preadv": [errno.EIO, errno.ESTALE],
}


class FailingCalls:
    """Replaces the module `os` of the local store. Calls fail with `errors`, some of them after they have succeeded.

    NFS repeats a request if the response was lost, so a successful `link` may report EEXIST or fail.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rate = RATE
        self.failed: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._failing(name, real) if name in ERRORS else real

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.rng.random() >= self.rate:
                return real(*args, **kwargs)
            number = self.rng.choice(ERRORS[name])
            if name == "link" and self.rng.random() < 0.5:
                real(*args, **kwargs)
                number = self.rng.choice([errno.EEXIST, number])
            elif name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            self.failed[name] += 1
            raise OSError(number, os.strerror(number))

        return call


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("inline", [True, False], ids=["records in commits", "records in files"])
def test_acknowledged_appends_are_stored_exactly_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, inline: bool
) -> None:
    world = World(LocalStore(tmp_path), seed=1000 * seed)
    configs = {"retention.ms": -1, **({} if inline else {"inline.records.bytes": 0})}
    world.root().create_topic("t", configs=configs)
    calls = FailingCalls(seed)
    sent: list[set[bytes]] = []
    acknowledged: list[set[bytes]] = []
    failed: set[bytes] = set()
    root = world.root()
    monkeypatch.setattr(local, "os", calls)
    for step in range(STEPS):
        with suppress(SparklogError):
            if calls.rng.random() < 0.2:
                root = world.root()
            if calls.rng.random() < 0.2:
                sparklog.compact(root, roll=True)
                sparklog.retain(root)
            else:
                rows = random_rows(3, first=100 * step, value_bytes=60, seed=step)
                sent.append(set(rows["value"].to_pylist()))
                try:
                    root.topic("t").append(rows, options=small())
                    acknowledged.append(sent[-1])
                except Unavailable as error:
                    failed |= set() if error.is_unknown else sent[-1]
    monkeypatch.undo()
    assert calls.failed.total() > 5, calls.failed
    values = world.topic("t").scan().to_table()["value"].to_pylist()
    assert len(values) == len(set(values)), "a record was stored twice"
    assert {len(each & set(values)) for each in sent} <= {0, 3}, "a part of an append is there"
    assert set().union(*acknowledged) <= set(values), "an acknowledged append is lost"
    assert not failed & set(values), "an append is there that failed without an unknown outcome"
    found = sparklog.verify(world.root())
    assert found.sound, [str(finding) for finding in found.findings]


@pytest.mark.parametrize("failures", [3, 10**6], ids=["temporary failure", "permanent failure"])
def test_a_commit_is_acknowledged_only_if_its_name_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    world = World(LocalStore(tmp_path))
    topic = world.root().create_topic("t")
    topic.append({"value": [b"first"]})
    failed: list[int] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}") and len(failed) < failures:
            failed.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    if failures == 3:
        assert topic.append({"value": [b"second"]}).base == {0: 1}
        assert len(failed) == failures
    else:
        with pytest.raises(Unavailable, match=r"is unknown: cannot make durable .*I/O error") as caught:
            topic.append({"value": [b"second"]})
        assert caught.value.is_unknown


def test_an_append_to_a_full_disk_fails_immediately_and_succeeds_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(LocalStore(tmp_path))
    topic = world.root().create_topic("t")
    topic.append({"value": [b"first"]})

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        started_ms = world.now_ms
        with pytest.raises(Unavailable, match=r"no space left on device: free .*; nothing was written") as caught:
            topic.append({"value": [b"second"]})
        assert world.now_ms == started_ms
        assert not caught.value.is_unknown
        assert topic.scan().to_table()["value"].to_pylist() == [b"first"]
    assert topic.append({"value": [b"second"]}).base == {0: 1}
