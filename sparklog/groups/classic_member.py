"""A client of Kafka's classic protocol as a member of a group whose assignment is in the journal.

It follows what Kafka's coordinator does for classic members of a consumer group (KIP-848): the client joins, syncs and
sends heartbeats as always, but no client is the leader, and the assignor runs with each entry of the group. A server
holds the member, and is its process.

| request   | what happens                                                                                  |
|-----------|-----------------------------------------------------------------------------------------------|
| JoinGroup | records the subscription, and gives up revoked partitions that the client has stopped reading |
| SyncGroup | returns the owned partitions, without those that the member has to revoke                     |
| Heartbeat | reports a rebalance if the assignment is not the one that the latest SyncGroup has returned   |

So a partition moves as follows:

1. Client A reads partition 0. Member B joins, and the assignor gives it partition 0, which becomes `revoked` at A.
2. The next heartbeat of A reports a rebalance. A commits its offsets and sends JoinGroup. With an eager assignor it has
   stopped reading everything, so the partition is given up now, and B owns it.
3. With a cooperative assignor, A goes on reading, and lists partition 0 in JoinGroup. SyncGroup returns the assignment
   without it. A stops reading it, commits, and sends JoinGroup again, without it. The partition is given up now.

The generation that a client knows is the group's when it joined. Requests with another one are rejected, so that a
commit from before JoinGroup cannot follow it. The member's own generation, in the journal, fences the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparklog.common.reached import reached
from sparklog.errors import Fenced
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_members import Partitions
from sparklog.groups.membership import Membership


class ClassicMember:
    """See the module. Its caller makes one call at a time. `Fenced`: the group went on without the member."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.generation = membership.state.generation
        self._synced: Partitions | None = None
        """The partitions that the client reads, as far as SyncGroup has returned them; None: not since it joined."""

    def rejoin(
        self, topics: Sequence[str], assignors: Sequence[str], owned: Partitions, partitions: Mapping[str, int]
    ) -> None:
        """Apply a JoinGroup request of the client.

        Args:
            topics: the topics that it subscribes to.
            assignors: names of its assignors, the preferred one first.
            owned: partitions that it goes on reading; empty with an eager assignor.
            partitions: how many partitions each topic has.
        """
        self.membership.refresh()
        self.membership.subscribe(topics, partitions, assignors)
        stopped = self.membership.member.revoked - owned
        if stopped:
            reached("groups: a classic member gives up partitions when it rejoins")
            self.membership.revoke(stopped)
        elif self.membership.member.revoked:
            reached("groups: a cooperative classic member still reads what it has to revoke")
        self.generation = self.membership.state.generation
        self._synced = None

    def sync(self, generation: int) -> Partitions:
        """Return the partitions that the client may read from now on."""
        self.check_generation(generation)
        self._synced = self._assigned()
        return self._synced

    def must_rejoin(self) -> bool:
        """Return True if the client has to join again, to stop reading partitions or to start with others."""
        revoked = self.membership.member.revoked
        return self._synced is not None and (bool(revoked) or self._synced != self._assigned())

    def commit(self, generation: int, offsets: Offsets) -> None:
        self.check_generation(generation)
        self.membership.commit(offsets)

    def check_generation(self, generation: int) -> None:
        """Raise `Fenced` if a request names a generation from before the client's latest JoinGroup."""
        if generation != self.generation:
            reached("groups: a request of an older generation of a classic member is refused")
            raise Fenced(
                f"member {self.membership.metadata.member_id} of group '{self.membership.group.id}' has joined again: "
                f"it is at generation {self.generation}, the request at {generation}"
            )

    def _assigned(self) -> Partitions:
        member = self.membership.member
        return member.owned - member.revoked
