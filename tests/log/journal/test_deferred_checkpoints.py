"""Checkpoints that a writer defers: written on request, or by a later write if two are due."""

from __future__ import annotations

from sparklog.limits import Limits
from sparklog.testing import World


def test_a_deferred_checkpoint_is_written_on_request_or_when_two_are_due() -> None:
    world = World(limits=Limits(checkpoint_commits=4))
    root = world.root()
    topic = root.create_topic("t")
    topic.log.defers_checkpoints = True
    found = dict[int, list[int]]()
    for _ in range(12):
        version = topic.append([{"value": b"x"}]).version
        if version == 9:
            topic.log.write_due_checkpoint()
        found[version] = topic.log.checkpoints()
    assert found[6] == []
    assert found[7] == found[11] == [7], "the second checkpoint is due at commit 7"
    assert topic.log.has_due_checkpoint()
    topic.log.write_due_checkpoint()
    assert topic.log.checkpoints() == [7, 12]
    assert not topic.log.has_due_checkpoint()
    assert world.root().topic("t").log.refresh().topic_state == topic.log.current().topic_state
