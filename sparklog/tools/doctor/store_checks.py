"""The place of a root: does its store keep its promises, is it the right kind of disk, is there space, is the clock
right?
"""

from __future__ import annotations

import re

from sparklog.errors import SparklogError
from sparklog.log.journal.clock import MAX_AHEAD_MS
from sparklog.storage.local_errors import mount_of
from sparklog.storage.probe import probe
from sparklog.storage.store import Store
from sparklog.tools.doctor.finding import FAIL, OK, WARN, Finding, Machine


WORTH_A_WORD_MS = 10_000
FULL_BYTES = 64 << 20
NEARLY_FULL_BYTES = 1 << 30
NEARLY_FULL_SHARE = 0.05
_NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|9p|afs|ceph|glusterfs|lustre|fuse\..+")
_MEMORY = ("tmpfs", "ramfs")


def check_store(store: Store) -> list[Finding]:
    """Exclusive create, read-back, hard links, a directory's fsync, and the clock, by a real probe: it writes a few
    small objects below `_probe` and removes them.
    """
    fix = "use a local disk, or an object store with conditional writes, as --root"
    try:
        report = probe(store)
    except SparklogError as error:
        return [Finding("store", FAIL, str(error), fix)]
    said = f"{report.location} creates exclusively (8 threads, one winner), durably, and tells case apart"
    return [Finding("store", OK, f"{said}; {report.took_ms:.0f} ms"), _clock(report.clock_ahead_ms)]


def _clock(ahead_ms: int) -> Finding:
    fix = "sudo timedatectl set-ntp true"
    side = "ahead of" if ahead_ms > 0 else "behind"
    said = f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {side} the store's"
    if ahead_ms > MAX_AHEAD_MS:
        return Finding("clock", FAIL, f"{said}; beyond {MAX_AHEAD_MS // 1000} s nothing is committed", fix)
    if abs(ahead_ms) > WORTH_A_WORD_MS:
        return Finding("clock", WARN, said, fix)
    return Finding("clock", OK, said if ahead_ms else "this machine's clock is the store's")


def check_disk(machine: Machine, path: str) -> list[Finding]:
    """Kind of file system and free space of a local root."""
    mount = mount_of(path)
    kind = mount.rpartition("(")[2].rstrip(")") if mount.endswith(")") else ""
    if _NETWORK.fullmatch(kind):
        said = f"{mount} is a network file system: it works as far as the probe can see, a commit costs several trips"
        system = Finding("file system", WARN, said, "put the root on a local disk, or keep its clients' caches short")
    elif kind in _MEMORY:
        system = Finding("file system", WARN, f"{mount} is memory: nothing there outlives a restart", "use a disk")
    else:
        system = Finding("file system", OK, mount)
    free, total = machine.free(path)
    said = f"{free / 2**30:,.1f} GiB of {total / 2**30:,.1f} GiB are free on {mount}"
    fix = "free space: shorten retention.ms, run jobs/retain.py, or enlarge the disk"
    if free < FULL_BYTES:
        return [system, Finding("space", FAIL, f"{said}: neither writers nor jobs get on", fix)]
    if free < NEARLY_FULL_BYTES or free < total * NEARLY_FULL_SHARE:
        return [system, Finding("space", WARN, said, fix)]
    return [system, Finding("space", OK, said)]
