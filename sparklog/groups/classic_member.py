"""A client that uses Kafka's classic protocol, as a member of a group whose assignment is stored in the journal.

The requests have the same effect as requests of classic members of a consumer group in Kafka (KIP-848). The client
joins, syncs and sends heartbeats as usual. The group does not have a leader, because the assignment is computed when an
entry of the group is written. The member belongs to the process of the server that the client is connected to.

| request   | effect                                                                                           |
|-----------|--------------------------------------------------------------------------------------------------|
| JoinGroup | records the subscription, and releases revoked partitions that the client has stopped reading    |
| SyncGroup | returns the owned partitions, except those that the member must revoke                           |
| Heartbeat | reports a rebalance if the assignment has changed since the latest SyncGroup response            |

A partition moves as follows:

1. Client A reads partition 0. Member B joins, and the assignor assigns partition 0 to B. The partition is added to A's
   `revoked` partitions.
2. The response to A's next heartbeat reports a rebalance. A commits its offsets and sends JoinGroup. If the assignor is
   eager, A has stopped reading all partitions. The member releases partition 0, and B owns it.
3. If the assignor is cooperative, A continues to read, and its JoinGroup lists partition 0. SyncGroup returns the
   assignment without partition 0. A stops reading the partition, commits its offsets, and sends JoinGroup again,
   without partition 0. Then the member releases the partition.

A client's generation is the generation of the group when the client joined. Requests with another generation are
rejected, so a delayed commit that was sent before JoinGroup cannot be applied after JoinGroup. The journal stores the
generation of the member, and this generation fences the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparklog.common.reached import reached
from sparklog.errors import Fenced
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_members import Partitions
from sparklog.groups.membership import Membership


class ClassicMember:
    """A member of a group that represents a client of the classic protocol. This class is not thread-safe.

    Methods raise `Fenced` if the member was removed from the group.
    """

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.generation = membership.state.generation
        self._synced: Partitions | None = None
        """The partitions in the latest SyncGroup response, or None if the client has not sent SyncGroup since it
        joined.

        """

    def rejoin(
        self, topics: Sequence[str], assignors: Sequence[str], owned: Partitions, partitions: Mapping[str, int]
    ) -> None:
        """Handle a JoinGroup request of the client.

        Args:
            topics: The topics that the client subscribes to.
            assignors: The names of the client's assignors, in order of preference.
            owned: The partitions that the client continues to read, which are empty if the assignor is eager.
            partitions: The number of partitions of each topic.
        """
        self.membership.refresh()
        self.membership.subscribe(topics, partitions, assignors)
        stopped = self.membership.member.revoked - owned
        if stopped:
            reached("groups: a classic member releases partitions when it rejoins")
            self.membership.revoke(stopped)
        elif self.membership.member.revoked:
            reached("groups: a cooperative classic member still reads partitions that it must revoke")
        self.generation = self.membership.state.generation
        self._synced = None

    def sync(self, generation: int) -> Partitions:
        """Return the partitions that the client may read after this request."""
        self.check_generation(generation)
        self._synced = self._assigned()
        return self._synced

    def must_rejoin(self) -> bool:
        """Return True if the client must rejoin because its assignment has changed."""
        revoked = self.membership.member.revoked
        return self._synced is not None and (bool(revoked) or self._synced != self._assigned())

    def commit(self, generation: int, offsets: Offsets) -> None:
        self.check_generation(generation)
        self.membership.commit(offsets)

    def check_generation(self, generation: int) -> None:
        """Raise `Fenced` if the generation of a request is not the generation of the client's latest JoinGroup."""
        if generation != self.generation:
            reached("groups: a request of an older generation of a classic member is rejected")
            raise Fenced(
                f"member {self.membership.metadata.member_id} of group '{self.membership.group.id}' has rejoined in "
                f"generation {self.generation}; the request has generation {generation}"
            )

    def _assigned(self) -> Partitions:
        member = self.membership.member
        return member.owned - member.revoked
