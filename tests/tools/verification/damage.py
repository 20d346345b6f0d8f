"""Damage to a root in memory, what verify says of it, and undoing it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from sparklog.testing.world import World
from sparklog.tools.verification.findings import Finding, Report
from sparklog.tools.verification.run import verify_root


def kind_of(key: str) -> str:
    """Which sort of file a key is, finer than its suffix."""
    suffix = key.rsplit(".", 1)[-1]
    if key.startswith(("_transactions/", "_groups/")):
        suffix = key.split("/", 1)[0]
    return f"{suffix} checkpoint" if "/checkpoints/" in key else suffix if "/" in key else "root"


def by_kind(whole: World) -> dict[str, list[str]]:
    """Keys of all files that have bytes, by kind."""
    found: dict[str, list[str]] = defaultdict(list)
    for info in whole.store.list(""):
        if info.size:
            found[kind_of(info.key)].append(info.key)
    return dict(sorted(found.items()))


def verified(whole: World, key: str = "", **how: bool) -> Report:
    """The root, or only the topic that `key` is of; for one of another log, all but the bytes of data files."""
    owner = key.split("/", 1)[0]
    topics = () if not key or owner.startswith("_") else (owner,)
    if key and not topics:
        how["quick"] = True
    return verify_root(whole.store, topics=topics, env=whole.env(), **how)


@contextmanager
def replaced(whole: World, key: str, data: bytes) -> Iterator[None]:
    """An object has other bytes for a while."""
    before = whole.store.get(key)
    whole.store.replace(key, data)
    try:
        yield
    finally:
        whole.store.replace(key, before)


@contextmanager
def undone(whole: World) -> Iterator[None]:
    """Whatever happens to the store is taken back."""
    before = whole.store.snapshot()
    try:
        yield
    finally:
        whole.store.restore(before)


def flip(data: bytes, at: int, bit: int) -> bytes:
    """One bit is the other one."""
    wrong = bytearray(data)
    wrong[at] ^= 1 << bit
    return bytes(wrong)


def sampled(data: bytes, rng: random.Random) -> int:
    """A position: anywhere, at the beginning, or near the end, where footers and trailers are."""
    drawn = rng.randrange(4)
    if drawn == 0:
        return rng.randrange(min(len(data), 64))
    if drawn == 1:
        return len(data) - 1 - rng.randrange(min(len(data), 300))
    return rng.randrange(len(data))


def named(report: Report, key: str) -> list[Finding]:
    """What is said of one file."""
    return [finding for finding in report.findings if finding.file == key]
