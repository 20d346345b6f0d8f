"""Which segments a cleaning pass writes into one: Kafka's `Cleaner.groupSegmentsBySize` (kafka-format.md, 7.4).

Groups are runs of neighbours. Sizes are those before the pass, so a group whose records mostly vanish leaves a small
segment, which the next pass may join with others.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import MAX_RELATIVE_OFFSET, Segment


def group_segments(
    segments: Sequence[Segment],
    index_sizes: Sequence[tuple[int, int]],
    configs: TopicConfigs,
    first_uncleanable: int,
) -> list[list[Segment]]:
    """The segments of a pass (those with a base below its end offset, in offset order) as groups.

    `index_sizes`: bytes of each segment's `.index` and `.timeindex`. Each group becomes one segment, named by the base
    of its first. A group ends where the next segment would make the log larger than `segment.bytes`, an index larger
    than `segment.index.bytes`, or a relative offset larger than 31 bits.
    """
    most_bytes = configs.segment_bytes
    most_index = configs.integer("segment.index.bytes")
    groups: list[list[Segment]] = []
    log = index = time_index = 0
    for i, (segment, (index_size, time_size)) in enumerate(zip(segments, index_sizes, strict=True)):
        # An upper bound: it holds without reading the segment, at the cost of a smaller group now and then.
        last_offset = (segments[i + 1].base if i + 1 < len(segments) else first_uncleanable) - 1
        if (
            groups
            and log + segment.size <= most_bytes
            and index + index_size <= most_index
            and time_index + time_size <= most_index
            and (segment.size == 0 or last_offset - groups[-1][0].base <= MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            log = index = time_index = 0
        log, index, time_index = log + segment.size, index + index_size, time_index + time_size
    return groups
