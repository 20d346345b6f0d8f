"""A client that uses the consumer protocol (KIP-848), as a member of a group whose assignment is stored in the journal.

The client sends heartbeats to a server, which translates them into entries of the journal. A heartbeat contains the
client's epoch and, after a change, the partitions that the client owns. The response contains the next epoch and, after
a change, the partitions that the client may own.

A partition moves as follows:

1. Client A has epoch 1 and owns partition 0. Member B joins with an entry of generation 2, in which the assignor
   assigns partition 0 to B. The entry adds the partition to A's `revoked` partitions.
2. A sends a heartbeat with epoch 1. The response contains epoch 1 and an assignment without partition 0.
3. A stops reading partition 0, commits its offset with epoch 1, and sends a heartbeat with epoch 1 and its partitions.
   The server releases partition 0 with an entry, from which on B owns it. A's generation in the journal is now 2, which
   fences commits with epoch 1. The response contains epoch 2.

**Epochs.** If a member does not have to revoke partitions, its epoch is the generation of the group, and no entry is
written when the epoch changes. The journal stores only the generation in which the member joined, moved to another
server or last released partitions. A server that has not received a heartbeat of the member accepts every epoch from
this generation to the generation of the group. After the first heartbeat, the server requires the epoch of its latest
response, like a broker.

**Lost responses.** If a client does not receive a response, it sends its epoch and all its partitions again. The server
accepts the epoch of the previous request if the client owns only partitions that are assigned to it. The journal stores
the epoch of a request that changed the member's generation, so that other servers also accept this epoch.

**Other servers.** If the client sends a heartbeat to another server, this server moves the member with an entry. The
entry starts a new generation, which fences the first server. Delayed commits of the first server are rejected, and it
does not remove the member when the member's session on this server times out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparklog.common.reached import reached
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_members import ConsumerProtocol, GroupMember, Partitions
from sparklog.groups.group_steps import EpochMismatch
from sparklog.groups.membership import Membership


class ConsumerGroupMember:
    """A member of a group that represents a client of the consumer protocol. This class is not thread-safe.

    Methods raise `Fenced` if the member was removed from the group or has moved to another server.
    """

    def __init__(self, membership: Membership, epoch: int, offered: Partitions = frozenset()) -> None:
        self.membership = membership
        self.epoch = epoch
        """The epoch in the latest response. Before the first response, it is the epoch in the request."""
        self.assigned: Partitions = frozenset()
        """The partitions in the latest response."""
        self._previous_epoch = 0
        self._offered = offered
        """The owned partitions that the client may read, because they have been returned in a response."""

    @classmethod
    def join(cls, group: Group, member: GroupMember, partitions: Mapping[str, int]) -> ConsumerGroupMember:
        """Add a member, which does not own partitions yet."""
        return cls(group.share_as([member], partitions)[0], 0)

    @classmethod
    def move(cls, group: Group, member_id: str, epoch: int, owned: Partitions | None) -> ConsumerGroupMember:
        """Continue a member of another server. Raises `EpochMismatch` if the epoch or the partitions are not valid."""
        membership = group.move(member_id, epoch, owned)
        # If the epoch is 0, the client has joined again and does not read partitions.
        return cls(membership, epoch, frozenset() if epoch == 0 else membership.member.owned)

    def check_epoch(self, epoch: int, owned: Partitions | None) -> None:
        """Raise `EpochMismatch` if a heartbeat has neither the member's epoch nor 0 nor a valid previous epoch."""
        if epoch == 0:
            # The client has joined again and does not read partitions.
            self._offered = frozenset()
        if epoch in (0, self.epoch):
            return
        is_possible = owned is not None and owned <= self.assigned
        if epoch != self._previous_epoch or not is_possible:
            reached("groups: a heartbeat with an invalid epoch is rejected")
            raise self._mismatch(epoch)
        reached("groups: a heartbeat is repeated with the previous epoch")

    def is_subscribed(self, topics: Sequence[str], assignors: Sequence[str], consumer: ConsumerProtocol) -> bool:
        """Return True if the journal contains this subscription."""
        member = self.membership.member
        return (member.topics, member.assignors, member.consumer) == (tuple(topics), tuple(assignors), consumer)

    def may_release(self, owned: Partitions | None) -> bool:
        """Return True if a heartbeat shows that the client does not read the partitions that it must revoke."""
        revoked = self.membership.member.revoked
        if not revoked:
            return False
        return revoked.isdisjoint(self._offered) or (owned is not None and revoked.isdisjoint(owned))

    def release(self, epoch: int) -> None:
        """Release the partitions that the member must revoke. `epoch` is the epoch in the heartbeat."""
        reached("groups: a member of the consumer protocol releases partitions")
        self.membership.revoke(epoch=epoch)

    def respond(self, epoch: int) -> Partitions:
        """Set the epoch of the response to a heartbeat, and return the partitions that the client may own.

        As in Kafka, the response contains the next epoch and new partitions when the client has revoked all partitions
        that it must revoke.
        """
        member, state = self.membership.member, self.membership.state
        must_revoke = not self._offered.isdisjoint(member.revoked)
        self.assigned = member.assigned & self._offered if must_revoke else member.assigned
        self._offered = (self._offered | self.assigned) & member.owned
        if not must_revoke and self.epoch != state.generation:
            self.epoch, self._previous_epoch = state.generation, epoch
        return self.assigned

    def commit(self, epoch: int, offsets: Offsets) -> None:
        """Commit offsets. Raises `EpochMismatch` if the epoch is not the member's epoch."""
        self.check_commit_epoch(epoch)
        self.membership.commit(offsets)

    def check_commit_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            reached("groups: a commit with another epoch is rejected")
            raise self._mismatch(epoch)

    def _mismatch(self, epoch: int) -> EpochMismatch:
        return EpochMismatch.of(self.membership.group.id, self.membership.metadata.member_id, epoch, self.epoch)
