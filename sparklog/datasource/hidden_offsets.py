"""Offsets that are known to exist, but may be hidden on this host by a cache.

If a stream is restarted on another host, its checkpoint contains offsets that the first host has seen. Network file
systems cache names, so the new host may not see the latest commits, or the decision of a transaction, for some time. If
the visible end of the log were treated as the actual end, data loss would be reported. Therefore, if offsets are beyond
the visible end, the view is refreshed until caches have expired (`SETTLE_MS`), unless the topic was deleted or
recreated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sparklog.datasource.offsets import StreamOffset
from sparklog.datasource.spark_workers import warn
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.log.state.view import Bounds, LogView
from sparklog.storage.retries import SETTLE_MS, Backoff, Clock


def log_end_of(bounds: Bounds) -> int:
    return bounds.log_end


def last_stable_of(bounds: Bounds) -> int:
    return bounds.last_stable


def partition_names(partitions: Sequence[TopicPartition]) -> str:
    """Return the names of partitions for a message, such as `orders-0, orders-1`."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in partitions)


def wait_until_reached(
    view: LogView,
    known: StreamOffset,
    present: Collection[str],
    refresh: Callable[[], Collection[str]],
    clock: Clock,
    end_of: Callable[[Bounds], int] = log_end_of,
) -> list[TopicPartition]:
    """Refresh the view until it reaches these offsets, or until caches have expired.

    Args:
        view: The view.
        known: Offsets that have existed.
        present: The topics that exist in the current snapshot.
        refresh: A function that takes a new snapshot and returns the topics that exist.
        clock: The clock.
        end_of: A function that returns the end of a partition, which must reach the offset.

    Returns:
        The partitions that still end before these offsets.
    """
    backoff = Backoff(clock)
    while beyond := _beyond(view, present, known, end_of):
        if backoff.is_over():
            return beyond
        if not backoff.tries:
            warn(
                f"known offsets are beyond the end of {partition_names(beyond)} as seen from this host; retrying for "
                f"{SETTLE_MS // 1000} s"
            )
        backoff.sleep()
        present = refresh()
    return []


def _beyond(
    view: LogView, present: Collection[str], known: StreamOffset, end_of: Callable[[Bounds], int]
) -> list[TopicPartition]:
    beyond: list[TopicPartition] = []
    for topic, offsets in sorted(known.positions.items()):
        if topic not in present:
            hidden = topic in known.ids and is_unseen(view, topic)
            beyond += [(topic, partition) for partition in sorted(offsets) if hidden]
            continue
        if known.ids.get(topic) not in (None, view.topic_id(topic)):
            continue
        bounds = view.bounds(topic)
        beyond += [
            (topic, partition)
            for partition, offset in sorted(offsets.items())
            if partition not in bounds or end_of(bounds[partition]) < offset
        ]
    return beyond


def is_unseen(view: LogView, topic: str) -> bool:
    """Return True if no commit of a topic is visible on this host. The commits of a deleted topic are still visible."""
    from sparklog.log.topic.root import RootView

    return isinstance(view, RootView) and view.root.engine.log(topic).refresh().topic_state.version < 0
