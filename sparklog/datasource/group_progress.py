"""Commits of a streaming query's offsets to its consumer group (`kafka.group.id`).

After Spark has finished a micro-batch, it requests the end of the next micro-batch, and passes the end of the finished
micro-batch as the start. All records before the start have been processed, so the start is committed to the group when
Spark plans. An AvailableNow run plans one more time before it ends. If a query is killed, the next run commits the
offsets.

Each run is a member of the group with its own generation. The latest run fences the previous run, which fails at its
next micro-batch. The query resumes from Spark's checkpoint, and the group only makes its offsets visible to other
programs. Therefore, a query continues even if its offsets cannot be committed for some time.
"""

from __future__ import annotations

from sparklog.datasource.offsets import OffsetJson, StreamOffset
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.spark_workers import warn
from sparklog.errors import Conflict, Fenced, NotFound, Unavailable
from sparklog.groups.group import Group
from sparklog.groups.membership import Membership
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.topic.root import Root

RETRY_MS = 5_000
"""Time between two attempts to commit if the group cannot be written. The time is required because an idle query plans
many times per second.
"""


class GroupProgress:
    """Commits the progress of a run of a query to its consumer group."""

    def __init__(self, root: Root, options: ReadOptions) -> None:
        self._env = root.env
        self._group = Group(root, options.group_id or "")
        self._session_timeout_ms = options.session_timeout_ms
        self._instance = options.group_instance or f"spark-{root.env.new_id()}"
        self._member: Membership | None = None
        """The membership in the group, or None before the first commit and after `finish`."""
        self._committed: dict[tuple[str, str], dict[int, int]] = {}
        """The committed offsets of the group, by topic and topic id."""
        self._published: OffsetJson | None = None
        """The latest start that was committed, or None before the first commit."""
        self._failed_at: ClockReading | None = None
        """The time at which the latest commit failed, or None if it succeeded."""
        self._has_left = False
        """True if `finish` was called, and no commit has followed."""

    def processed(self, start: OffsetJson) -> None:
        """Commit the offsets in `start` if they have changed. If the error is transient, log a warning, and a later
        call retries.

        Raises Fenced if another run has replaced this run, or if the group was reset or deleted. Raises Corrupt or
        BadRequest if the log of the group cannot be read.
        """
        if self._has_left and start == self._published:
            return
        if self._failed_at is not None and self._env.elapsed_ms(self._failed_at) < RETRY_MS:
            return
        try:
            self._publish(start)
            self._failed_at = None
        except Fenced as error:
            raise Fenced(
                f"{error}. This query reads with kafka.group.id={self._group.id}: if another query or another source "
                "of this query uses the same group, set a different group for each query or source; resetting the "
                "group also stops the query"
            ) from None
        except (Conflict, NotFound, Unavailable) as error:
            # The planner reports deleted topics.
            self._failed_at = self._env.now()
            warn(
                f"the offsets of group '{self._group.id}' were not committed; a later micro-batch will commit "
                f"them: {error}"
            )

    def finish(self, last: OffsetJson | None = None) -> None:
        """Leave the group. If the last commit failed, commit `last` before leaving.

        Errors of the store are not raised.
        """
        if last is not None and self._failed_at is not None:
            self._failed_at = None
            self.processed(last)
        if self._member is None:
            return
        try:
            self._member.leave()
        except (Conflict, NotFound, Unavailable, OSError) as error:
            warn(f"group '{self._group.id}' remains active until its session timeout expires: {error}")
        self._member = None
        self._has_left = True

    def _publish(self, start: OffsetJson) -> None:
        member = self._joined()
        if start != self._published:
            position = StreamOffset.from_json(start)
            moved = {} if position.initial else self._moved(position)
            if moved:
                member.topic_ids = dict(position.ids)
                member.commit(moved, refresh=False)
                for topic, offsets in moved.items():
                    self._committed.setdefault((topic, position.ids[topic]), {}).update(offsets)
            self._published = start
        member.heartbeat_if_due()

    def _joined(self) -> Membership:
        if self._member is None:
            self._member = self._group.join(self._instance, session_timeout_ms=self._session_timeout_ms)
            offsets = self._group.state().offsets
            self._committed = {
                item.topic_and_id: dict(zip(item.partition, item.offset, strict=True)) for item in offsets
            }
            self._has_left = False
        return self._member

    def _moved(self, position: StreamOffset) -> dict[str, dict[int, int]]:
        """Return the positions that differ from the committed offsets, for topics whose id has not changed.

        This function does not make requests, because the planner has just refreshed these topics. The planner also
        reports deleted topics.
        """
        moved = {}
        for topic, offsets in position.positions.items():
            head = self._group.root.engine.log(topic).current().topic_state
            if head.exists and position.ids.get(topic) == head.topic_id:
                committed = self._committed.get((topic, head.topic_id), {})
                ends = head.log_end.tolist()
                changed = {p: n for p, n in offsets.items() if committed.get(p) != n and p < len(ends) and n <= ends[p]}
                if changed:
                    moved[topic] = changed
        return moved
