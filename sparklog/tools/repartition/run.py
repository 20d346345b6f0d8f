"""`sparklog.repartition`: checks, one pass of the copy, and groups if they are to be moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparklog.errors import BadRequest
from sparklog.log.journal.names import MAX_PARTITIONS, check_topic_name
from sparklog.log.topic.root import Root
from sparklog.tools.repartition.copying import STEP_BYTES, Copying
from sparklog.tools.repartition.group_offsets import MovedGroup, move_groups


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
    groups: tuple[MovedGroup, ...] = ()


def repartition(
    root: Root,
    topic: str,
    name: str,
    partitions: int,
    *,
    groups: bool = False,
    step_bytes: int = STEP_BYTES,
    progress: Callable[[int], object] = lambda records: None,
) -> Repartitioned:
    """Copy what `topic` has by now into `name`: see `sparklog.repartition`. `step_bytes`: stored, of each commit;
    `progress` is called with the number of records copied."""
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
    moved = tuple(move_groups(copying)) if groups else ()
    return Repartitioned(topic, name, partitions, created, records, total, waiting, moved)
