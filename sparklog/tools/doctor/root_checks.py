"""The state of a root's topics: does maintenance run, are there checkpoints, does a transaction hold something back?"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from sparklog.errors import SparklogError
from sparklog.log.journal.clock import reading_clock_ms
from sparklog.log.journal.names import is_topic_name
from sparklog.log.state.commit_log import CHECKPOINT_COMMITS
from sparklog.log.state.slices import MERGE_TIER_MASK
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import MANY_UNSEALED, Topic
from sparklog.tools.doctor.finding import FAIL, OK, WARN, Finding
from sparklog.transactions.kafka import owner_of


NEVER_COMPACTED_SLICES = 1_000
"""Unsealed slices from which a topic that no run has ever merged or sealed is worth a word."""
CHECKPOINT_LATE_COMMITS = 8 * CHECKPOINT_COMMITS
NAMED = 3

_Complaint = tuple[str, str, str]
"""Of one topic: check, what was found, what puts it right."""


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
    found = [_joined(complaints, kind) for kind in dict.fromkeys(kind for kind, _, _ in complaints)]
    if not broken:
        found.insert(0, Finding("topics", OK, f"{count} in {root.location}, all of them open"))
    return [*broken, *found]


def _joined(complaints: Sequence[_Complaint], kind: str) -> Finding:
    mine = [(said, fix) for name, said, fix in complaints if name == kind]
    more = f"; and {len(mine) - NAMED} more" if len(mine) > NAMED else ""
    fixes = list(dict.fromkeys(fix for _, fix in mine))[:NAMED]
    return Finding(kind, WARN, "; ".join(said for said, _ in mine[:NAMED]) + more, "; ".join(fixes))


def _maintenance(root: Root, topic: Topic) -> list[_Complaint]:
    rows = topic.snapshot(refresh=False).slices.all()
    unsealed = ~rows.sealed()
    many = int(unsealed.sum())
    compact = f"spark-submit jobs/compact.py --root {_shown(root)}, every hour (see conf/crontab)"
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
    said = f"topic {topic.name} has {behind:,} commits since its newest checkpoint, writers make one every "
    fix = f"look why writers cannot: permissions and space below {_shown(root)}/{topic.name}/_log/checkpoints"
    return [("checkpoints", f"{said}{CHECKPOINT_COMMITS}", fix)]


def _transactions(root: Root, topic: Topic) -> list[_Complaint]:
    head = topic.head(refresh=False)
    found = []
    for transaction in dict.fromkeys(item.txn.id for item in head.open):
        prepares = [item for item in head.open if item.txn.id == transaction]
        if root.decisions.overdue(topic.name, prepares, reading_clock_ms(root.store, root.env)):
            said = f"transaction {transaction} holds back topic {topic.name} beyond its timeout"
            command = f"sparklog transactions abort {shlex.quote(transaction)} --root {_shown(root)}"
            found.append(("transactions", said, f"{command}, or run either job"))
    for owner in sorted({owner_of(each) for each in head.kafka_open}):
        said = f"transaction {owner}, which Kafka left open, holds back imported topic {topic.name}"
        command = f"sparklog transactions abort {shlex.quote(owner)} --root {_shown(root)}"
        found.append(("transactions", said, command))
    return found


_CHECKS: tuple[Callable[[Root, Topic], list[_Complaint]], ...] = (_maintenance, _checkpoint, _transactions)


def _shown(root: Root) -> str:
    return shlex.quote(root.location)
