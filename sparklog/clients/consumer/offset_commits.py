"""Explicit, automatic and asynchronous commits of a consumer.

An explicit commit is one entry, which is written or rejected as a whole. If the entry of an automatic commit is
rejected because a topic was deleted or recreated, the positions in the other topics are still committed, as in Kafka.

Asynchronous commits do not run in a separate thread. `commit_async` adds a commit to a queue, and the next call that
can commit offsets writes all queued commits as one entry. If the entry is rejected, each commit is written separately,
so that each callback receives the error of its own commit.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sparklog.clients.consumer.member import ConsumerMember
from sparklog.clients.consumer.positions import Positions
from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.groups.group_journal import Offsets
from sparklog.log.journal.clocks import Env

_LOG = logging.getLogger("sparklog.groups")
CommitCallback: TypeAlias = Callable[[Offsets, Exception | None], object]


@dataclass(frozen=True)
class PendingCommit:
    """A commit in the queue of `commit_async`."""

    offsets: Offsets
    callback: CommitCallback | None


class OffsetCommits:
    """Commits the positions of a consumer. `interval_ms` is the interval of automatic commits, or None if automatic
    commits are disabled.
    """

    def __init__(self, env: Env, positions: Positions, interval_ms: int | None) -> None:
        self.interval_ms = interval_ms
        self._env = env
        self._positions = positions
        self._last_automatic = env.now()
        self._pending: deque[PendingCommit] = deque()
        self._completed: deque[tuple[PendingCommit, SparklogError | None]] = deque()
        """The commits that were written or rejected, and whose callbacks have not been called yet."""

    def commit(self, member: ConsumerMember, offsets: Offsets | None = None) -> None:
        """Run the pending commits, and then commit `offsets`.

        If `offsets` is None, commit the uncommitted positions.
        """
        self.run_pending(member)
        self._write(member, self._positions.uncommitted() if offsets is None else offsets)

    def put(self, offsets: Offsets | None, callback: CommitCallback | None) -> None:
        """Add a commit to the queue. If `offsets` is None, the commit contains the current positions."""
        self._pending.append(PendingCommit(self._positions.by_topic() if offsets is None else offsets, callback))

    def run_due(self, member: ConsumerMember) -> None:
        """Run the pending commits, and an automatic commit if one is due."""
        self.run_pending(member)
        now = self._env.now()
        if self.interval_ms is not None and now.elapsed_ms(self._last_automatic) >= self.interval_ms:
            self._commit_positions(member)
            self._last_automatic = now

    def run_before_revoke(self, member: ConsumerMember) -> None:
        """Run the pending commits. If automatic commits are enabled, also commit the positions."""
        self.run_pending(member)
        if self.interval_ms is not None:
            self._commit_positions(member)

    def _commit_positions(self, member: ConsumerMember) -> None:
        """Commit the uncommitted positions. If a topic is rejected, commit the other topics and raise the error."""
        offsets = self._positions.uncommitted()
        try:
            self._write(member, offsets)
        except (Conflict, NotFound):
            results = [self._try(member, {topic: positions}) for topic, positions in offsets.items()]
            errors = [error for error in results if error is not None]
            if errors:
                raise errors[0] from None

    def fail_pending(self, error: SparklogError) -> None:
        """Reject the pending commits, because their member was removed from the group. Otherwise, the next membership
        would write them, although another member may have committed later offsets. The next call runs the callbacks.
        """
        self._completed.extend((commit, error) for commit in self._pending)
        self._pending.clear()

    def run_pending(self, member: ConsumerMember) -> None:
        """Write the pending commits, and then call their callbacks.

        A callback may commit offsets, which calls this method again. Therefore all pending commits are written before
        the first callback is called. If a callback raises an error, the next call continues with the next callback.
        """
        while self._pending or self._completed:
            pending = list(self._pending)
            errors = self._write_pending(member, pending)
            self._pending.clear()
            self._completed.extend(zip(pending, errors, strict=True))
            self.run_callbacks()

    def run_callbacks(self) -> None:
        """Call the callbacks of the commits that were written or rejected."""
        while self._completed:
            commit, error = self._completed.popleft()
            if commit.callback is not None:
                commit.callback(commit.offsets, error)
            elif error is not None:
                _LOG.warning("commit_async of %s failed: %s", commit.offsets, error)

    def _write_pending(self, member: ConsumerMember, pending: list[PendingCommit]) -> list[SparklogError | None]:
        """Write commits as one entry, or separately if the entry is rejected. Return the error of each commit."""
        error = self._try(member, _merged(pending))
        if len(pending) > 1 and isinstance(error, (BadRequest, Conflict, NotFound)):
            return [self._try(member, commit.offsets) for commit in pending]
        return [error] * len(pending)

    def _try(self, member: ConsumerMember, offsets: Offsets) -> SparklogError | None:
        """Commit offsets. Return the error instead of raising it."""
        try:
            self._write(member, offsets)
        except SparklogError as error:
            return error
        return None

    def _write(self, member: ConsumerMember, offsets: Offsets) -> None:
        if not isinstance(offsets, Mapping) or any(offsets.values()):
            member.commit(offsets)
            for topic, positions in offsets.items():
                for partition, position in positions.items():
                    offset = position.offset if hasattr(position, "offset") else position
                    self._positions.committed[topic, partition] = int(offset)


def _merged(pending: list[PendingCommit]) -> Offsets:
    """Return the offsets of all commits. For each partition, the last commit takes precedence."""
    merged: dict[str, dict[int, object]] = {}
    for commit in pending:
        for topic, positions in commit.offsets.items():
            merged.setdefault(topic, {}).update(positions)
    return merged  # type: ignore[return-value]
