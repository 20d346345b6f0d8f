"""Checks of a root: its store, disk, space and clock, and of its topics maintenance, checkpoints and transactions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from sparklog.errors import SparklogError
from sparklog.log.journal.clock import MAX_AHEAD_MS, reading_clock_ms
from sparklog.log.journal.names import is_topic_name
from sparklog.log.state.commit_log import CHECKPOINT_COMMITS
from sparklog.log.state.slices import MERGE_TIER_MASK
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.log.topic.topic_log import MANY_UNSEALED
from sparklog.storage.local_writer import mount_of
from sparklog.storage.probe import probe
from sparklog.storage.store import Store
from sparklog.tools.doctor.finding import FAIL, OK, WARN, Finding, Machine
from sparklog.transactions.listing import owner_of

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
    fix = "use a local disk, or a mounted file system with hard links and fsync, as --root"
    try:
        report = probe(store)
    except SparklogError as error:
        return [Finding("store", FAIL, str(error), fix)]
    message = f"{report.location} creates exclusively (8 threads, one winner), durably, and tells case apart"
    return [Finding("store", OK, f"{message}; {report.took_ms:.0f} ms"), _clock(report.clock_ahead_ms)]


def _clock(ahead_ms: int) -> Finding:
    fix = "sudo timedatectl set-ntp true"
    side = "ahead of" if ahead_ms > 0 else "behind"
    message = f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {side} the store's"
    if ahead_ms > MAX_AHEAD_MS:
        return Finding("clock", FAIL, f"{message}; beyond {MAX_AHEAD_MS // 1000} s nothing is committed", fix)
    if abs(ahead_ms) > WORTH_A_WORD_MS:
        return Finding("clock", WARN, message, fix)
    return Finding("clock", OK, message if ahead_ms else "this machine's clock is the store's")


def check_disk(machine: Machine, path: str) -> list[Finding]:
    """Kind of file system and free space of a local root."""
    mount = mount_of(path)
    kind = mount.rpartition("(")[2].rstrip(")") if mount.endswith(")") else ""
    if _NETWORK.fullmatch(kind):
        message = f"{mount} is a network file system: the probe sees no trouble, but a commit costs several trips"
        fix = "put the root on a local disk, or keep its clients' caches short"
        system = Finding("file system", WARN, message, fix)
    elif kind in _MEMORY:
        system = Finding("file system", WARN, f"{mount} is memory: nothing there outlives a restart", "use a disk")
    else:
        system = Finding("file system", OK, mount)
    free, total = machine.free(path)
    message = f"{free / 2**30:,.1f} GiB of {total / 2**30:,.1f} GiB are free on {mount}"
    fix = "free space: shorten retention.ms, run `sparklog retain`, or enlarge the disk"
    if free < FULL_BYTES:
        return [system, Finding("space", FAIL, f"{message}: neither writers nor jobs get on", fix)]
    if free < NEARLY_FULL_BYTES or free < total * NEARLY_FULL_SHARE:
        return [system, Finding("space", WARN, message, fix)]
    return [system, Finding("space", OK, message)]


NEVER_COMPACTED_SLICES = 1_000
"""Unsealed slices from which a topic that no run has ever merged or sealed is worth a word."""
CHECKPOINT_LATE_COMMITS = 8 * CHECKPOINT_COMMITS
NAMED = 3

_Complaint = tuple[str, str, str]
"""Trouble of one topic: check, message, fix."""


def check_root(root: Root) -> list[Finding]:
    """All topics, one finding per kind of trouble; a topic that cannot be opened is one by itself."""
    complaints: list[_Complaint] = []
    broken: list[Finding] = []
    count = 0
    for name in filter(is_topic_name, root.store.list_folders("")):
        try:
            topic = root.topic_handle(name)
            if not topic.log.refresh().head.exists:
                continue
            count += 1
            for check in _CHECKS:
                complaints += check(root, topic)
        except SparklogError as error:
            broken.append(Finding("topics", FAIL, f"{name}: {error}", f"sparklog verify --root {_shown(root)}"))
    findings = [_joined(complaints, kind) for kind in dict.fromkeys(kind for kind, _, _ in complaints)]
    if not broken:
        findings.insert(0, Finding("topics", OK, f"{count} in {root.location}, all of them open"))
    return [*broken, *findings]


def _joined(complaints: Sequence[_Complaint], kind: str) -> Finding:
    of_kind = [(message, fix) for name, message, fix in complaints if name == kind]
    more = f"; and {len(of_kind) - NAMED} more" if len(of_kind) > NAMED else ""
    fixes = list(dict.fromkeys(fix for _, fix in of_kind))[:NAMED]
    return Finding(kind, WARN, "; ".join(message for message, _ in of_kind[:NAMED]) + more, "; ".join(fixes))


def _maintenance(root: Root, topic: Topic) -> list[_Complaint]:
    rows = topic.snapshot(refresh=False).slices.all()
    unsealed = ~rows.sealed()
    many = int(unsealed.sum())
    compact = f"sparklog compact --root {_shown(root)}, every hour (see `sparklog conf crontab`)"
    if many > MANY_UNSEALED:
        return [("maintenance", f"topic {topic.name} holds {many:,} unsealed slices, writers warn", compact)]
    untouched = unsealed.all() and not (rows.flags & MERGE_TIER_MASK).any()
    if many >= NEVER_COMPACTED_SLICES and untouched:
        return [("maintenance", f"topic {topic.name} holds {many:,} slices, none ever merged or sealed", compact)]
    return []


def _checkpoint(root: Root, topic: Topic) -> list[_Complaint]:
    state = topic.log.current()
    behind = state.head.version - state.checkpoint_version
    if behind < CHECKPOINT_LATE_COMMITS:
        return []
    message = f"topic {topic.name} has {behind:,} commits since its newest checkpoint, writers make one every "
    fix = f"look why writers cannot: permissions and space below {_shown(root)}/{topic.name}/_log/checkpoints"
    return [("checkpoints", f"{message}{CHECKPOINT_COMMITS}", fix)]


def _transactions(root: Root, topic: Topic) -> list[_Complaint]:
    head = topic.log.head(refresh=False)
    complaints = []
    for transaction in dict.fromkeys(item.txn.id for item in head.open):
        prepares = [item for item in head.open if item.txn.id == transaction]
        if root.decisions.overdue(topic.name, prepares, reading_clock_ms(root.store, root.env)):
            message = f"transaction {transaction} holds back topic {topic.name} beyond its timeout"
            command = f"sparklog transactions abort {shlex.quote(transaction)} --root {_shown(root)}"
            complaints.append(("transactions", message, f"{command}, or run either job"))
    for owner in sorted({owner_of(each) for each in head.kafka_open}):
        message = f"transaction {owner}, which Kafka left open, holds back imported topic {topic.name}"
        command = f"sparklog transactions abort {shlex.quote(owner)} --root {_shown(root)}"
        complaints.append(("transactions", message, command))
    return complaints


_CHECKS: tuple[Callable[[Root, Topic], list[_Complaint]], ...] = (_maintenance, _checkpoint, _transactions)


def _shown(root: Root) -> str:
    return shlex.quote(root.location)
