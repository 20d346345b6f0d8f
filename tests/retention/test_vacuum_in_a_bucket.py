"""The vacuum with delayed listings and timestamps in whole seconds."""

from __future__ import annotations

import random

import pytest

from sparklog.log.topic.root import open_root, topic_of
from sparklog.maintenance.work_items import Settings
from sparklog.retention.vacuum import VacuumReport, vacuum
from sparklog.testing.bucket_store import BucketStore
from sparklog.testing.world import DAY_MS
from tests.retention.vacuum_world import VacuumWorld


class BucketWorld(VacuumWorld):
    def __init__(self, **how: int) -> None:
        super().__init__()
        self.bucket = BucketStore(self.store, random.Random(1), self.clock, quick_ms=0, **how)

    def vacuum_bucket(self) -> VacuumReport:
        root = open_root(self.bucket, env=self.process().env)
        return vacuum(topic_of(root, "t"), Settings(self.bucket.now_ms()))


@pytest.mark.parametrize("begin_ms", [0, 1, 500, 998, 999])
def test_replaced_files_are_kept_for_the_entire_delay(begin_ms: int) -> None:
    world = BucketWorld(late_ms=0)
    world.append(2)
    world.now_ms += DAY_MS + begin_ms
    world.rewrite()
    replaced_ms = world.now_ms
    for world.now_ms in (replaced_ms + DAY_MS - 1_000, replaced_ms + DAY_MS - 1):
        world.vacuum_bucket()
        assert len(world.files()) == 3
        world.assert_promises()
    world.now_ms = replaced_ms + DAY_MS + 3_000
    world.vacuum_bucket()
    assert len(world.files()) == 1
