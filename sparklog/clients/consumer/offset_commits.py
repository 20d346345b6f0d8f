"""Commits of a consumer: by hand, automatic ones, and those that wait for the next call.

There is no thread per commit: what `commit_async` takes waits in order, and is written as one entry at the next call
that may write. If that is refused, each is tried by itself, so that the error is told to the one it belongs to.
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
class WaitingCommit:
    """A commit that `commit_async` took."""

    offsets: Offsets
    callback: CommitCallback | None


class OffsetCommits:
    """See the module. `interval_ms` None: no automatic commits."""

    def __init__(self, env: Env, positions: Positions, interval_ms: int | None) -> None:
        self.interval_ms = interval_ms
        self._env = env
        self._positions = positions
        self._written = env.now()
        self._waiting: deque[WaitingCommit] = deque()

    def commit(self, member: ConsumerMember, offsets: Offsets | None = None) -> None:
        """Commit now, what waits first. None: the positions that are not committed."""
        self.run_waiting(member)
        self._write(member, self._positions.uncommitted() if offsets is None else offsets)

    def put(self, offsets: Offsets | None, callback: CommitCallback | None) -> None:
        """Commit at the next call. None: the positions as they are now."""
        self._waiting.append(WaitingCommit(self._positions.by_topic() if offsets is None else offsets, callback))

    def run_due(self, member: ConsumerMember) -> None:
        """Commit what waits, and the positions if that is automatic and due."""
        self.run_waiting(member)
        now = self._env.now()
        if self.interval_ms is not None and now.elapsed_ms(self._written) >= self.interval_ms:
            self._write(member, self._positions.uncommitted())
            self._written = now

    def run_before_revoke(self, member: ConsumerMember) -> None:
        """Commit what waits, and the positions if that is automatic."""
        self.run_waiting(member)
        if self.interval_ms is not None:
            self._write(member, self._positions.uncommitted())

    def run_waiting(self, member: ConsumerMember) -> None:
        while self._waiting:
            waiting = list(self._waiting)
            error = self._try(member, _merged(waiting))
            single = len(waiting) > 1 and isinstance(error, (BadRequest, Conflict, NotFound))
            for item in waiting:
                self._waiting.popleft()
                outcome = self._try(member, item.offsets) if single else error
                if item.callback is not None:
                    item.callback(item.offsets, outcome)
                elif outcome is not None:
                    _LOG.warning("commit_async of %s: %s", item.offsets, outcome)

    def _try(self, member: ConsumerMember, offsets: Offsets) -> SparklogError | None:
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


def _merged(waiting: list[WaitingCommit]) -> Offsets:
    """Return the newest offset of each partition."""
    merged: dict[str, dict[int, object]] = {}
    for item in waiting:
        for topic, positions in item.offsets.items():
            merged.setdefault(topic, {}).update(positions)
    return merged  # type: ignore[return-value]
