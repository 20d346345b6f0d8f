"""The leases of group members. A member whose lease has expired is removed from the group by another member.

A lease ends one session timeout after the latest entry of the member, based on the store's clock and the modification
time of the entry in the store. Reading the clock and the modification time requires requests. Therefore a member reads
them when it joins, and later only if the lease has expired according to the member's own monotonic clock. As a result,
a member that continues to write is not removed if a wall clock is set ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.common.reached import reached
from sparklog.groups import group_steps as steps
from sparklog.groups.group_journal import GroupJournal
from sparklog.groups.group_members import GroupMember
from sparklog.groups.group_state import GroupState
from sparklog.log.journal.clocks import ClockReading


@dataclass(frozen=True, slots=True)
class MemberLease:
    """The lease of a member, as known to this process."""

    seen: int
    """The number of the latest entry of the member."""
    read_at: ClockReading
    """The time at which this process read the entry."""
    remaining_ms: float
    """The remaining time of the lease at `read_at`."""

    def has_expired(self, now: ClockReading) -> bool:
        # Do not use the wall clock, because it may be set ahead.
        return now.boot_ms - self.read_at.boot_ms >= self.remaining_ms


class MemberLeases:
    """The leases of a group's members.

    A lease is first checked with the clock of this process. If the lease appears to have expired, it is checked with
    the store's clock.
    """

    def __init__(self, group: GroupJournal) -> None:
        self._group = group
        self._leases: dict[str, MemberLease] = {}

    def note(self, state: GroupState) -> None:
        """Record the heartbeats of the members in a state."""
        now = self._group.root.env.now()
        self._leases = {member.id: self._lease(member, now) for member in state.members}

    def expired(self, state: GroupState, *, read_store: bool = False, own: str | None = None) -> steps.Expired:
        """Return the members whose lease has expired. Requests are sent if a lease appears to have expired, or if
        `read_store` is True.

        Args:
            own: The id of the caller's member, which is not checked.
        """
        self.note(state)
        now = self._group.root.env.now()
        others = [member for member in state.members if member.id != own]
        to_check = [member for member in others if read_store or self._leases[member.id].has_expired(now)]
        return self._expired_by_store(to_check) if to_check else {}

    def _lease(self, member: GroupMember, now: ClockReading) -> MemberLease:
        lease = self._leases.get(member.id)
        if lease is not None and lease.seen == member.seen:
            return lease
        return MemberLease(member.seen, now, member.session_timeout_ms)

    def _expired_by_store(self, members: Sequence[GroupMember]) -> dict[str, int]:
        env = self._group.root.env
        written = {number: self._group.written_ms(number) for number in {member.seen for member in members}}
        store_ms, now, expired = self._group.root.store.now_ms(), env.now(), dict[str, int]()
        for member in members:
            written_ms = written[member.seen]
            # If the entry is missing, it was deleted by maintenance, so the entry is more than a day old.
            remaining_ms = 0 if written_ms is None else written_ms + member.session_timeout_ms - store_ms
            if remaining_ms > 0:
                if self._leases[member.id].has_expired(now):
                    reached("groups: a session that seemed to have timed out is valid by the store's clock")
            else:
                expired[member.id] = member.seen
            self._leases[member.id] = MemberLease(member.seen, now, max(remaining_ms, 0))
        return expired
