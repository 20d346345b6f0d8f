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
from sparklog.errors import SparklogError
from sparklog.storage import LocalStore, local
from sparklog.testing.world import World
from tests.support.records import random_rows, small

RATE = 0.02
STEPS = 25
ERRORS = {
    "open": [errno.EMFILE, errno.EIO, errno.ESTALE],
    "write": [errno.ENOSPC, errno.EIO],
    "fsync": [errno.EIO],
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
                root.topic("t").append(rows, options=small())
                acknowledged.append(sent[-1])
    monkeypatch.undo()
    assert calls.failed.total() > 5, calls.failed
    values = world.topic("t").scan().to_table()["value"].to_pylist()
    assert len(values) == len(set(values)), "a record was stored twice"
    assert {len(each & set(values)) for each in sent} <= {0, 3}, "a part of an append is there"
    assert set().union(*acknowledged) <= set(values), "an acknowledged append is lost"
    found = sparklog.verify(world.root())
    assert found.sound, [str(finding) for finding in found.findings]
