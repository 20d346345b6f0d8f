"""A small root with one file of each type that a repair can rebuild."""

from __future__ import annotations

from sparklog.compaction.run import CompactOptions
from sparklog.groups.lag import Groups
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.testing.world import DAY_MS, World
from tests.support.compaction import compact_topic
from tests.support.small_limits import small_limits
from tests.tools.verification.whole_root import rows

CONFIGS = {"cleanup.policy": "compact", "segment.bytes": 4096, "index.interval.bytes": 200, "inline.records.bytes": 0}


def small_root() -> World:
    """Return a root with a compacted topic with key filters, a topic with inline records, and a group."""
    world = World()
    with small_limits(checkpoint_commits=3, checkpoint_entries=3, filter_min_bytes=200):
        root = world.root()
        topic = root.create_topic("latest", configs=CONFIGS)
        for number in range(3):
            topic.append(rows(40 * number, 40, 1, keys=100))
            world.now_ms += 1000
        compact_topic(topic, Settings(world.now_ms + 3650 * DAY_MS), InProcess(), CompactOptions(roll=True))
        topic.append(rows(200, 5, 1))
        small = root.create_topic("small")
        for number in range(2):
            small.append(rows(4 * number, 4, 1))
        group = Groups(root).group("g")
        for number in range(8):
            group.alter({"latest": {0: number}})
    return world
