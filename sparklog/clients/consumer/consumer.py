"""A consumer in pure Python, which reads topics and commits offsets for its group.

As in Kafka's consumer, all work is done in `poll`. Records are returned partition by partition, in offset order.
Compacted offsets and transaction markers are skipped. If the isolation level is read_committed, aborted records are
also skipped, and reading stops at the last stable offset.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sparklog.arguments import FUNCTION, LATER_POSITIONS, NAME, POSITIONS, checked, instance
from sparklog.clients.consumer.consumer_options import TOPICS, ConsumerOptions, consumer_options
from sparklog.clients.consumer.joined_member import JoinedMember
from sparklog.clients.consumer.member import ConsumerMember, ManualAssignment, StandaloneMember
from sparklog.clients.consumer.offset_commits import CommitCallback, OffsetCommits
from sparklog.clients.consumer.partition_reader import ConsumerRecord, PartitionReader
from sparklog.clients.consumer.positions import PARTITIONS_OR_PAIRS, Partitions, partition_pairs
from sparklog.clients.consumer.rebalances import RebalanceListener, Rebalances
from sparklog.clients.consumer.subscribed_topics import TopicSubscription, subscription_to
from sparklog.common.settings import ValueType
from sparklog.common.warned import is_due_warning
from sparklog.errors import BadRequest, Conflict, Fenced, NotFound, SparklogError, Unavailable, Wakeup
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_state import CommittedOffset, GroupMetadata
from sparklog.groups.membership import GroupConsumer, Membership
from sparklog.log.topic.root import ROOT, Root, open_root
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOG = logging.getLogger("sparklog.groups")
PATTERN = ValueType("a regular expression", lambda value: isinstance(value, (str, re.Pattern)))
LISTENER = instance("a RebalanceListener", RebalanceListener).or_none()


@checked(
    ConsumerOptions,
    root=ROOT,
    group=NAME.or_none(),
    topics=TOPICS.or_none(),
    pattern=PATTERN.or_none(),
    listener=LISTENER,
)
def consumer(
    root: Root | Store | str | os.PathLike[str],
    group: str | None = None,
    *,
    topics: str | Sequence[str] | None = None,
    pattern: str | re.Pattern[str] | None = None,
    listener: RebalanceListener | None = None,
    **options: Unpack[ConsumerOptions],
) -> Consumer:
    """Join a consumer group, and read topics from the group's committed offsets.

    Args:
        root: An open root, or its location.
        group: The id of the group, which is created if it does not exist, or None to read without a group.
        topics: One or more topic names. If neither `topics` nor `pattern` is given, call `subscribe` or `assign`
            afterwards.
        pattern: A regular expression. All topics whose full name matches are read, including topics that are created
            later.
        listener: The listener to notify when partitions are assigned and revoked.

    Returns:
        A `Consumer`. Close it, or use it as a context manager.

    Raises:
        NotFound: If a topic does not exist.
        BadRequest: If an option does not exist, or has an invalid value.
        Conflict: If the group has an exclusive owner, or if its members do not have a common assignor.
        Unavailable: If offsets of the group have been pending in a transaction for more than a minute.

    Example:
        with sparklog.consumer("/data/log", "billing", topics="orders", auto_offset_reset="earliest") as consumer:
            for batch in consumer.poll(timeout=1.0):
                print(batch.num_rows)
    """
    opened = root if isinstance(root, Root) else open_root(root)
    reader = Consumer(opened, group, consumer_options(options))
    if topics is not None or pattern is not None:
        reader.subscribe(topics, pattern=pattern, listener=listener)
    elif listener is not None:
        raise BadRequest(
            "a listener requires a subscription: specify topics or a pattern, or pass the listener to `subscribe`"
        )
    return reader


class Consumer(PartitionReader, GroupConsumer):
    """A consumer, as returned by `sparklog.consumer`. Other threads may only call `wakeup`."""

    def __init__(self, root: Root, group: str | None, options: ConsumerOptions) -> None:
        super().__init__(root, None if group is None else Group(root, group), options)
        automatic = options["enable_auto_commit"] and group is not None
        self.auto_commit_interval_ms = options["auto_commit_interval_ms"] if automatic else None
        self._commits = OffsetCommits(self._env, self._positions, self.auto_commit_interval_ms)
        self._rebalances = Rebalances(self._positions, self._fetcher, self._starts, self._commits)
        self._member: ConsumerMember | None = None
        self._subscription: TopicSubscription | None = None
        self._names: tuple[str, ...] = ()
        self._matched_at = self._env.now()
        """The time at which the names of the subscribed topics were determined."""
        self._woken = False

    def __repr__(self) -> str:
        group = "no group" if self._group is None else repr(self._group.id)
        return f"Consumer({group}, {self._root.location!r}, {', '.join(self.topics) or 'no topics'})"

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # If an exception was raised in the block, do not commit positions, so that the current records are read again.
        self.close(commit=kind is None)

    @property
    def group(self) -> Group:
        """The group of the consumer. Raises `BadRequest` if the consumer has no group."""
        if self._group is None:
            raise BadRequest(f"{self!r} has no group: create the consumer with a group")
        return self._group

    @property
    def membership(self) -> Membership:
        """The membership in the group, which is used to commit offsets. Raises `BadRequest` if the consumer is not in a
        group.
        """
        if not isinstance(self._member, JoinedMember):
            raise BadRequest(
                f"{self!r} is not a member of a group: subscribe to topics, or send offsets with the id of the group"
            )
        return self._member.membership

    # -- topics and partitions

    @property
    def topics(self) -> tuple[str, ...]:
        """The subscribed topics, or the topics of manually assigned partitions."""
        return self._names

    @checked(topics=TOPICS.or_none(), pattern=PATTERN.or_none(), listener=LISTENER)
    def subscribe(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Replace the subscribed topics, and join the group. If the consumer has no group, read all partitions of the
        topics.

        Args:
            topics: One or more topic names.
            pattern: A regular expression that must match the full topic name. It is used instead of `topics`.
            listener: The new listener to notify when partitions are assigned and revoked. None removes the listener.

        Raises:
            NotFound: If a topic does not exist.
            BadRequest: If partitions were assigned manually. Call `unsubscribe` first.
        """
        self._check_open()
        if isinstance(self._member, ManualAssignment):
            raise BadRequest(f"{self!r} has manually assigned partitions: call unsubscribe first")
        subscription = subscription_to(topics, pattern)
        names = subscription.matching(self._view)
        self._topics.refresh(names)
        self._rebalances.listener = RebalanceListener() if listener is None else listener
        self._subscription, self._names, self._matched_at = subscription, names, self._env.now()
        if self._member is not None:
            self._member.subscribe(names)
            return
        try:
            self._member = self._join()
            self._rebalances.follow(self._member)
        except SparklogError:
            try:
                if self._member is not None:
                    self._member.leave()
            finally:
                self._clear_subscription()
            raise

    def _join(self) -> ConsumerMember:
        if self._group is not None:
            return JoinedMember.join(self._topics, self._group, self._names, self._options)
        member = StandaloneMember(self._topics)
        member.subscribe(self._names)
        return member

    @checked(partitions=PARTITIONS_OR_PAIRS)
    def assign(self, partitions: Partitions) -> None:
        """Replace the partitions to read, without becoming a member of the group.

        Offsets can be committed for the group if the group has no members.

        Args:
            partitions: The partitions, as a mapping of topics to partitions or as pairs of topic and partition. If
                empty, this is the same as `unsubscribe`.

        Raises:
            NotFound: If a partition does not exist.
            BadRequest: If the consumer is subscribed to topics. Call `unsubscribe` first.
        """
        self._check_open()
        if self._subscription is not None:
            raise BadRequest(f"{self!r} is subscribed to topics: call unsubscribe first")
        pairs = partition_pairs(partitions)
        if not pairs:
            self.unsubscribe()
            return
        names = tuple(dict.fromkeys(topic for topic, _ in pairs))
        self._topics.refresh(names)
        self._topics.bounds(pairs)
        if self._member is not None:
            self._commits.run_before_revoke(self._member)
        self._drop_read()
        self._positions.drop(self._positions.assigned - frozenset(pairs))
        self._member, self._names = ManualAssignment(pairs, self._group), names
        self._rebalances.follow(self._member)

    def unsubscribe(self) -> None:
        """Stop reading, and leave the group. If auto-commit is enabled, the positions are committed first."""
        self._check_open()
        self._leave(commit=True)

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics.

        Returns:
            The names of the topics. If the consumer is subscribed to a pattern, the names of the matching topics.
        """
        return frozenset(self._names if self._subscription is not None else ())

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer currently reads.

        Returns:
            The partitions, as pairs of topic and partition.
        """
        return self._positions.assigned

    # -- committing

    def seek_to_committed(self) -> None:
        """Continue at the committed offsets, for example after an aborted transaction.

        Raises:
            NotFound: If an offset is missing or out of range, and `auto_offset_reset` is `none`.
            Unavailable: If offsets of the group have been pending in a transaction for more than a minute.
        """
        self._check_open()
        if self._member is not None:
            self._rebalances.start(self._positions.assigned, self._member.polled)
            self._drop_read()

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata that is required to commit offsets of this consumer in a transaction.

        Returns:
            The group, member id and generation, as an argument for `send_offsets_to_transaction`.

        Raises:
            BadRequest: If the consumer is not a member of a group.
        """
        return self.membership.metadata

    def committed(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of the group.

        Returns:
            The offset, metadata, leader epoch and commit time of each pair of topic and partition.

        Raises:
            BadRequest: If the consumer has no group.
        """
        return self.group.committed()

    @checked(offsets=POSITIONS.or_none())
    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit positions, and wait until they are committed.

        Args:
            offsets: The next offset to read, by topic and partition. None commits the current positions.

        Raises:
            Fenced: If the member was removed, or if another member owns a partition. Nothing was committed.
            NotFound: If a topic does not exist.
            Conflict: If a topic was recreated, or if this consumer has manually assigned partitions and the group has
                members.
            BadRequest: If a partition or an offset is invalid, or if the consumer is closed or has no group.
        """
        self._commits.commit(self._committing(), offsets)

    @checked(offsets=LATER_POSITIONS.or_none(), callback=FUNCTION.or_none())
    def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> None:
        """Commit positions at the next `poll`, `commit` or `close`. Commits are made in the order of the calls.

        If the consumer is removed from its group before the commit, the commit fails with `Fenced`.

        Args:
            offsets: The next offset to read, by topic and partition. None commits the current positions.
            callback: A function that is called after the commit with the offsets, and with the error or None. The
                function is called by the `poll`, `commit` or `close` that commits the offsets.

        Raises:
            BadRequest: If the consumer is closed, or has no group.
        """
        self._committing()
        self._commits.put(offsets, callback)

    def _committing(self) -> ConsumerMember:
        self._check_open()
        if self._group is None or self._member is None:
            raise BadRequest(
                f"{self!r} cannot commit offsets: specify a group, and subscribe to topics or assign partitions"
            )
        return self._member

    # -- polling

    def wakeup(self) -> None:
        """Make the current `poll` raise `Wakeup`. If no `poll` is running, the next `poll` raises `Wakeup`. This method
        can be called by any thread.
        """
        self._woken = True

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate over the records in a coroutine, like `for record in consumer`. Another thread reads each batch of
        records.
        """
        while True:
            # Yield from `_records` itself, because the program may seek or poll during the iteration.
            while (record := next(self._records, None)) is not None:
                yield record
            if not await self._read_chunk_in_thread():
                return

    async def _read_chunk_in_thread(self) -> bool:
        import asyncio  # Most programs that use a consumer do not need these modules.
        from contextvars import copy_context

        context = copy_context()
        # This future is not a task, because `asyncio.run` cancels all tasks, and a cancelled task does not wait for its
        # thread.
        reading = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(self._read_chunk))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            # The program may use the consumer as soon as this coroutine has ended, so stop the thread first.
            self.wakeup()
            await asyncio.gather(reading, return_exceptions=True)
            self._woken = False
            raise

    def _plan(self) -> bool:
        try:
            # Reading the topics may have found new partitions, which are assigned immediately.
            return self._fetcher.plan() or self._with_group(self._follow)
        except NotFound:
            # A topic that matched the pattern may have been deleted.
            if not self._refresh_matches():
                raise
            return True

    def _run_due_work(self) -> None:
        """Run the work that is due: commits, a heartbeat, a check for matching topics, and rebalances."""
        if self._woken:
            self._woken = False
            raise Wakeup(f"{self!r} was woken up")
        self._with_group(self._run_group_work)
        self._rebalances.notify()

    def _with_group(self, work: Callable[[], bool]) -> bool:
        """Call `work`, which reads and writes the group, and return the result.

        If the consumer was removed from its group, rejoin the group. If the store is unavailable, log a warning and
        return False, because records can be read without the group for some time. The next call retries.
        """
        try:
            try:
                return work()
            except Fenced as error:
                self._lose(error)
                return work()
        except Unavailable as error:
            if is_due_warning("consumer", self._root.location, repr(self), now_ms=self._env.boot_ms()):
                _LOG.warning(
                    "%r could not commit to or read its group, and will retry at the next poll: %s", self, error
                )
            return False

    def _follow(self) -> bool:
        return self._member is not None and self._rebalances.follow(self._member)

    def _run_group_work(self) -> bool:
        """Run the due work of `_run_due_work`. Return True if the assignment has changed."""
        while True:
            try:
                member = self._ensure_member()
                member.polled()
                self._commits.run_due(member)
                if self._env.elapsed_ms(self._matched_at) >= self._options["metadata_max_age_ms"]:
                    self._refresh_matches()
                has_changed = self._rebalances.follow(member)
                if has_changed:
                    self._refresh_matches()
                return has_changed
            except NotFound:
                # A topic that matched the pattern may have been deleted.
                if not self._refresh_matches():
                    raise

    def _lose(self, error: Fenced) -> None:
        """Remove all partitions, because the consumer was removed from its group. The next `poll` rejoins the group."""
        member, self._member = self._member, None
        if member is not None:
            member.stop()
        _LOG.warning("%r was removed from its group and will rejoin it: %s", self, error)
        self._rebalances.lose()
        self._commits.fail_pending(error)
        if member is not None and member.is_replaced():
            # Do not rejoin, because two processes with the same instance id would replace each other repeatedly.
            self._clear_subscription()
            raise error

    def _ensure_member(self) -> ConsumerMember:
        """Return the member. Join the group again if the consumer was removed from it."""
        if self._member is None and self._subscription is not None:
            self._topics.refresh(self._names)
            self._member = self._join()
        if self._member is None:
            raise BadRequest(f"{self!r} has nothing to read: subscribe to topics, or assign partitions")
        return self._member

    def _refresh_matches(self) -> bool:
        """Find the topics that match the pattern. Return True if the matching topics have changed."""
        self._matched_at = self._env.now()
        if self._subscription is None or self._subscription.pattern is None:
            return False
        names = self._subscription.matching(self._view)
        if names == self._names:
            return False
        self._topics.refresh(names, new=True)
        deleted = frozenset(self._names) - frozenset(names)
        if deleted:
            self._topics.remove(deleted)
            self._positions.deleted_topics |= deleted
            self._fetcher.drop()
        self._names = names
        if self._member is not None:
            self._member.subscribe(names)
        return True

    def _leave(self, *, commit: bool) -> None:
        """Revoke all partitions, and leave the group. If `commit` is True and auto-commit is enabled, the positions are
        committed first.
        """
        member = self._member
        if member is None:
            # The consumer was removed from its group and has not rejoined it, or has no subscription.
            self._clear_subscription()
            self._commits.run_callbacks()
            return
        self._return_chunk()
        try:
            if commit:
                self._commits.run_before_revoke(member)
            else:
                self._commits.run_pending(member)
        except Fenced as error:
            _LOG.warning("%r failed to commit before leaving its group: %s", self, error)
            self._rebalances.lose()
        except (Conflict, NotFound, Unavailable) as error:
            _LOG.warning("%r failed to commit before leaving its group: %s", self, error)
        try:
            self._rebalances.end()
            member.leave()
        except (Conflict, NotFound, Unavailable) as error:
            _LOG.warning("%r could not leave its group: %s", self, error)
        finally:
            self._clear_subscription()
        self._rebalances.notify()

    def _clear_subscription(self) -> None:
        self._member = self._subscription = None
        self._rebalances.listener = RebalanceListener()
        self._topics.remove(self._names)
        self._names = ()

    @checked()
    def close(self, *, commit: bool = True) -> None:
        """Leave the group and close the consumer. Further calls have no effect.

        Args:
            commit: Whether to commit the positions first if auto-commit is enabled.
        """
        # A forked child process is not a member of the group.
        if self._closed or self._process != os.getpid():
            return
        try:
            self._leave(commit=commit)
        finally:
            self._closed = True
