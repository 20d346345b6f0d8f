"""`sparklog.repartition`: checks, the copy of what is there, and groups if they are to be moved."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from sparklog.errors import BadRequest
from sparklog.log.journal.arguments import NAME, NUMBER, checked, whole
from sparklog.log.journal.names import MAX_PARTITIONS, check_topic_name
from sparklog.log.topic.root import ROOT, Root, open_root
from sparklog.storage.store import Store
from sparklog.tools.repartition.copying import STEP_BYTES, Copying
from sparklog.tools.repartition.group_offsets import MovedGroup, set_offsets


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """Report of a run: `records` that it copied, `total` of all runs, and the groups that it was asked to move.

    `created`: by this run. `waiting`: offsets after the first open transaction of a partition, which were not copied.
    """

    source: str
    topic: str
    partitions: int
    created: bool
    records: int
    total: int
    waiting: int
    groups: tuple[MovedGroup, ...]


@checked(root=ROOT, topic=NAME, name=NAME, partitions=NUMBER, step_bytes=whole(1))
def repartition(
    root: Root | Store | str | os.PathLike[str],
    topic: str,
    name: str,
    *,
    partitions: int,
    move_groups: bool = False,
    progress: Callable[[int], object] = lambda records: None,
    step_bytes: int = STEP_BYTES,
) -> Repartitioned:
    """Copy a topic into one with another number of partitions, by key, each record once; run again, it goes on.

    Args:
        root: an open root, or its location.
        topic: the topic to copy, up to its end of now. It stays as it is.
        name: the topic to create with the same configs, or to go on with.
        partitions: of the new topic.
        move_groups: set offsets in the new topic for the groups that have some in the old one. First stop the writers.
        progress: is called with the number of records copied, after each step.
        step_bytes: of the old topic, as stored, that become one commit.

    Returns:
        How many records were copied, now and in all; and the groups, with a `problem` where one was not moved.

    Raises:
        NotFound: there is no such topic.
        Conflict: the new topic exists and is no such copy, has other partitions, or records of other writers.
        BadRequest: a name or a number is not valid.

    Example:
        made = sparklog.repartition("/data/log", "orders", "orders-12", partitions=12)
        print(made.records)
    """
    root = root if isinstance(root, Root) else open_root(root)
    if check_topic_name(name) == check_topic_name(topic):
        raise BadRequest(f"expected another name than that of topic '{topic}', whose records stay where they are")
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise BadRequest(f"a topic has 1 to {MAX_PARTITIONS} partitions, found {partitions}")
    source = root.topic(topic).log.read_snapshot()
    copying = Copying(root, source, name, partitions)
    created = copying.create()
    records = copying.run(step_bytes, progress)
    total = int(copying.copied().records.sum())
    waiting = int((source.head.log_end - copying.ends).sum())
    moved = tuple(set_offsets(copying)) if move_groups else ()
    return Repartitioned(topic, name, partitions, created, records, total, waiting, moved)
