"""Committed offsets of a streaming query in its consumer group (`kafka.group.id`).

Spark asks for the end of the next micro-batch from the end of the one before, and only once that one is done. So the
start it comes back with has been processed, and is committed to the group when Spark plans. An AvailableNow run asks a
last time before it ends; what a killed query had done is committed by its next run.

A run is a member of the group, as a generation of its own. The newest run fences the one before, which stops with an
error at its next micro-batch. Spark's checkpoint keeps the offsets the query goes on from; the group shows them to
others. So offsets that cannot be committed for the moment never stop a query.
"""

from __future__ import annotations

from sparklog.datasource.offsets import StreamOffset
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.spark_workers import warn
from sparklog.errors import Conflict, Fenced, NotFound, Unavailable
from sparklog.groups.group import Group
from sparklog.groups.membership import Membership
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.topic.root import Root

Document = dict[str, object]

RETRY_MS = 5_000
"""Between attempts, where the group could not be written: an idle query plans many times a second."""


class GroupProgress:
    def __init__(self, root: Root, options: ReadOptions) -> None:
        self._env = root.env
        self._group = Group(root, options.group_id or "")
        self._session_timeout_ms = options.session_timeout_ms
        self._instance = options.group_instance or f"spark-{root.env.new_id()}"
        self._member: Membership | None = None
        self._committed: dict[tuple[str, str], dict[int, int]] = {}
        self._published: Document | None = None
        self._failed: ClockReading | None = None
        self._left = False

    def processed(self, start: Document) -> None:
        """Commit what is before `start`, if it moved. Errors that may pass are warned of; a later call tries again.

        Raises Fenced if another run took over, or the group was reset or deleted; Corrupt, BadRequest if its log cannot
        be read.
        """
        if self._left and start == self._published:
            return
        if self._failed is not None and self._env.elapsed_ms(self._failed) < RETRY_MS:
            return
        try:
            self._publish(start)
            self._failed = None
        except Fenced as error:
            raise Fenced(
                f"{error}. This query reads with kafka.group.id={self._group.id}: if another query with that "
                "group, another source of the same query, or a reset of the group took over, give each source a group "
                "of its own"
            ) from None
        except (Conflict, NotFound, Unavailable) as error:
            # Topics that are gone are for the planner to report.
            self._failed = self._env.now()
            warn(f"group '{self._group.id}' is behind, a later micro-batch publishes: {error}")

    def finish(self, last: Document | None = None) -> None:
        """Leave the group. Never raises for a store that fails. `last` is committed now, if it was not."""
        if last is not None and self._failed is not None:
            self._failed = None
            self.processed(last)
        if self._member is None:
            return
        try:
            self._member.leave()
        except (Conflict, NotFound, Unavailable, OSError) as error:
            warn(f"group '{self._group.id}' stays active for its session timeout: {error}")
        self._member = None
        self._left = True

    def _publish(self, start: Document) -> None:
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
            self._committed = {item.place: dict(zip(item.partition, item.offset, strict=True)) for item in offsets}
            self._left = False
        return self._member

    def _moved(self, position: StreamOffset) -> dict[str, dict[int, int]]:
        """Return positions that the group does not have, of topics that are still those that were read.

        No request: the planner has looked at these topics, and reports a deleted topic or a restored root.
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
