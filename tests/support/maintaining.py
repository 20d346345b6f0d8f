"""Commits of maintenance by hand: to the topic as it is now."""

from __future__ import annotations

from sparklog.log.state.commit_intents import MaintainIntent
from sparklog.log.state.commit_log import CommitResult
from sparklog.log.topic.topic import Topic


def maintain(topic: Topic, **changes: object) -> CommitResult:
    """Commit a `MaintainIntent` with these fields for the topic, deleted or not, that lies under the name now."""
    topic_id = topic.log.refresh().topic_state.topic_id
    return topic.log.commit(MaintainIntent(topic_id, **changes))  # type: ignore[arg-type]
