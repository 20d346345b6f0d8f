"""State of Spark's long-lived Python processes: open roots and topics, and objects exempt from garbage collection.

Processes that plan and commit writes live between micro-batches, over queries and sessions. So a handle is never
trusted: the root's id is read anew each time (a folder may have been deleted and made again), and the topic itself
probes for the next commit.

Spark's worker daemon runs `gc.collect()` after every task: 28 ms over the objects of pyspark, numpy and pyarrow, and
several times that once numba is loaded. Frozen objects are not visited. Freezing after the first use in a worker takes
the Python CPU time of a small micro-batch from 250 to 48 ms.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from sparklog.datasource.options import SinkOptions
from sparklog.errors import NotFound
from sparklog.kafka.in_place.location import NOTHING, Location, open_log

_done: set[str] = set()


def freeze_gc(after: str) -> None:
    """Collect, then exempt all objects alive now from garbage collection; once per process for each kind of work."""
    if after not in _done:
        _done.add(after)
        gc.collect()
        gc.freeze()


if TYPE_CHECKING:
    from sparklog.log.topic.root import Root
    from sparklog.log.topic.topic import Topic

_roots: dict[str, Root] = {}


def root_at(location: Location, *, create: bool = False) -> Root:
    """Return the root at a location, kept open. Raises NotFound where there is none, unless `create`."""
    from sparklog.log.journal.names import read_root_id

    kept = _roots.get(location.root)
    if kept is not None:
        try:
            if read_root_id(kept.store) == kept.id:
                return kept
        except NotFound:
            pass
        del _roots[location.root]
    if location.kind == NOTHING and not create:
        raise NotFound(
            f"There is no sparklog root at {location.root}: create root and topic first, or leave "
            "auto.create.topics.enable on"
        )
    _roots[location.root] = open_log(location, create=create)
    return _roots[location.root]


def topic_at(root: Root, name: str, options: SinkOptions) -> Topic:
    """Return the topic to write, created with `num.partitions` where it is missing and may be created."""
    if options.auto_create:
        return root.ensure_topic(name, partitions=options.partitions, configs=None)
    try:
        return root.topic(name)
    except NotFound as error:
        raise NotFound(f"{error}; auto.create.topics.enable=false keeps this write from creating it") from None
