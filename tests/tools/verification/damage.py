"""Damage of a root in memory, the findings of verify, and undoing the damage."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from sparklog.testing.world import World
from sparklog.tools.verification.findings import Finding, Report
from sparklog.tools.verification.run import verify_root


def kind_of(key: str) -> str:
    """Return the type of a file by its key, which is more specific than its suffix."""
    suffix = key.rsplit(".", 1)[-1]
    if key.startswith(("_transactions/", "_groups/")):
        suffix = key.split("/", 1)[0]
    return f"{suffix} checkpoint" if "/checkpoints/" in key else suffix if "/" in key else "root"


def by_kind(whole: World) -> dict[str, list[str]]:
    """Return the keys of all files with contents by type."""
    found: dict[str, list[str]] = defaultdict(list)
    for info in whole.store.list(""):
        if info.size:
            found[kind_of(info.key)].append(info.key)
    return dict(sorted(found.items()))


def verified(whole: World, key: str = "", **how: bool) -> Report:
    """Verify the topic of `key`, the entire root without a key, or all but data files for a key of another log."""
    owner = key.split("/", 1)[0]
    topics = () if not key or owner.startswith("_") else (owner,)
    if key and not topics:
        how["quick"] = True
    return verify_root(whole.store, topics=topics, env=whole.env(), **how)


@contextmanager
def replaced(whole: World, key: str, data: bytes) -> Iterator[None]:
    """Replace the bytes of an object during the block."""
    before = whole.store.get(key)
    whole.store.replace(key, data)
    try:
        yield
    finally:
        whole.store.replace(key, before)


@contextmanager
def undone(whole: World) -> Iterator[None]:
    """Undo all changes of the store after the block."""
    before = whole.store.snapshot()
    try:
        yield
    finally:
        whole.store.restore(before)


def flip(data: bytes, at: int, bit: int) -> bytes:
    """Return the data with one flipped bit."""
    wrong = bytearray(data)
    wrong[at] ^= 1 << bit
    return bytes(wrong)


def sampled(data: bytes, rng: random.Random) -> int:
    """Return a random position: anywhere, at the start, or near the end, where footers and trailers are."""
    drawn = rng.randrange(4)
    if drawn == 0:
        return rng.randrange(min(len(data), 64))
    if drawn == 1:
        return len(data) - 1 - rng.randrange(min(len(data), 300))
    return rng.randrange(len(data))


def named(report: Report, key: str) -> list[Finding]:
    """Return the findings about one file."""
    return [finding for finding in report.findings if finding.file == key]
