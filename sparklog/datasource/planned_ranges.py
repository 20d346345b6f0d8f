"""The offset ranges of a planned micro-batch.

Spark may plan a micro-batch, and read it only after a restart. The topics may have changed in the meantime. Records
that can no longer be read are reported as data loss.
"""

from __future__ import annotations

from sparklog.datasource.data_loss import DataLoss
from sparklog.datasource.offsets import StreamOffset
from sparklog.datasource.stream_topics import StreamTopics
from sparklog.log.state.view import OffsetRange


def planned_ranges(topics: StreamTopics, loss: DataLoss, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
    """Return the ranges of a micro-batch without records that can no longer be read.

    Waits until the records are visible. The ranges include all partitions in `end`, even if the query no longer reads
    some of them, so that a repeated micro-batch contains the same records.
    """
    topics.wait_for_micro_batch(start, end)
    return [offsets for topic in sorted(end.positions) for offsets in _topic_ranges(topics, loss, topic, start, end)]


def _topic_ranges(
    topics: StreamTopics, loss: DataLoss, topic: str, start: StreamOffset, end: StreamOffset
) -> list[OffsetRange]:
    # If the checkpoint does not contain the id of the topic, any id is accepted.
    planned_id, current_id = end.ids.get(topic), topics.id_of(topic)
    if current_id is None or planned_id not in (None, current_id):
        change = "deleted" if current_id is None else "deleted and recreated"
        loss.report(
            f"The topic {topic!r} was {change} before the offsets planned for this micro-batch were read", "skips them"
        )
        return []
    bounds = topics.all_bounds(topic)
    # If the topic was recreated before the micro-batch was planned, the start contains offsets of the deleted topic.
    has_start = start.ids.get(topic) in (None, planned_id)
    ranges = []
    for partition, last in sorted(end.positions[topic].items()):
        limits = bounds.get(partition)
        if limits is None:
            loss.report(f"Partition {partition} of topic {topic!r} no longer exists", "skips it")
            continue
        first = end.added.get(topic, {}).get(partition)
        if first is None and has_start:
            first = start.get(topic, partition)
        if first is None:
            # The partition has no records, or an earlier version of sparklog planned the micro-batch.
            first = limits.log_start
        if first < last:
            first = loss.check_start(topic, partition, first, last, limits)
            last = loss.check_end(topic, partition, last, limits, "ends the micro-batch at the log end")
        if first < last:
            ranges.append(OffsetRange(topic, partition, first, last))
    return ranges
