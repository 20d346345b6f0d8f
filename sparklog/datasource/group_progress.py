"""What one run of a streaming query tells its consumer group (`kafka.group.id`): how far it has come.

Spark asks for the end of the next micro-batch from the end of the one before, and only once that one is done: an answer
that it comes back with has been processed. So offsets are published when Spark plans, ahead of `commit(end)`, which
it calls a little later in the same planning with the same offsets. That is right after each micro-batch, or with the
next trigger; an AvailableNow run asks a last time before it ends and leaves nothing unsaid, and what a query that
was killed had done is said by its next run.

A run is a member of the group, as a generation of its own. The newest run wins: whoever was a member is fenced by
it, and stops with an error at its next micro-batch, for two queries that overwrite each other's offsets say nothing
about either. Spark's checkpoint keeps what the query itself goes on from; the group is for others to see. So offsets
that cannot be published for the moment never stop a query.
"""

from __future__ import annotations

from sparklog.datasource.offsets import StreamOffset
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.user_errors import warn
from sparklog.errors import Conflict, Fenced, NotFound, Unavailable
from sparklog.groups.group import Group, Membership
from sparklog.log.journal.env import Moment
from sparklog.log.topic.root import Root

Document = dict[str, object]

HEARTBEATS = 3
"""Signs of life per session timeout, from a query that has nothing to publish."""
RETRY_MS = 5_000
"""Between attempts, where the group could not be written: an idle query plans many times a second."""


class GroupProgress:
    """See the module. Lives in the process that plans one run of a query."""

    def __init__(self, root: Root, options: ReadOptions) -> None:
        self._env = root.env
        self._group = Group(root, options.group_id or "")
        self._session_timeout_ms = options.session_timeout_ms
        self._instance = options.group_instance or f"spark-{root.env.new_id()}"
        self._member: Membership | None = None
        self._known: dict[tuple[str, str], dict[int, int]] = {}
        self._seen: Document | None = None
        self._written: Moment | None = None
        self._failed: Moment | None = None
        self._left = False

    def processed(self, start: Document) -> None:
        """Spark came back with `start`: everything before it is done. At most one commit, none where nothing moved.

        Raises Fenced if another run took over, or somebody has reset or deleted the group; Corrupt, BadRequest if its
        log cannot be read. What passes by itself is warned of, and tried again with a later call.
        """
        if self._left and start == self._seen:
            return
        if self._failed is not None and self._env.now().elapsed_ms(self._failed) < RETRY_MS:
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
        """There will be nothing more: the group is empty at once. Never raises for a store that fails.

        `last`: what is done, for which there will be no later call: it is tried again now if it was not published.
        """
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
        if start != self._seen:
            at = StreamOffset.from_json(start)
            moved = {} if at.initial else self._moved(at)
            if moved:
                member.topic_ids = dict(at.ids)
                member.commit(moved, refresh=False)
                self._written = self._env.now()
                for topic, offsets in moved.items():
                    self._known.setdefault((topic, at.ids[topic]), {}).update(offsets)
            self._seen = start
        now = self._env.now()
        if self._written is not None and now.elapsed_ms(self._written) >= self._session_timeout_ms // HEARTBEATS:
            member.heartbeat()
            self._written = now

    def _joined(self) -> Membership:
        if self._member is None:
            self._member = self._group.join(self._instance, session_timeout_ms=self._session_timeout_ms)
            self._written = self._env.now()
            offsets = self._group.state().offsets
            self._known = {each.place: dict(zip(each.partition, each.offset, strict=True)) for each in offsets}
            self._left = False
        return self._member

    def _moved(self, at: StreamOffset) -> dict[str, dict[int, int]]:
        """Positions that the group does not have, of the topics that are still those that were read.

        No request: the planner has looked at the topics when it planned these positions, or they are looked at now for
        the first time. What was deleted since is for the planner to report; offsets under its id mean nothing then.

        A root that was restored may have less than the query had read. That is for the planner to report; the group
        keeps what was restored with the root.
        """
        moved = {}
        for topic, offsets in at.positions.items():
            head = self._group.root.topic_handle(topic).log.current().head
            if head.exists and at.ids.get(topic) == head.topic_id:
                known = self._known.get((topic, head.topic_id), {})
                ends = head.log_end.tolist()
                changed = {
                    partition: offset
                    for partition, offset in offsets.items()
                    if known.get(partition) != offset and partition < len(ends) and offset <= ends[partition]
                }
                if changed:
                    moved[topic] = changed
        return moved
