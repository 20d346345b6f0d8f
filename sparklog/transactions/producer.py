"""A transactional producer: begin a transaction, append to topics, send offsets of a consumer group, commit or abort.

A transaction consists of these steps:

1. `append` uploads rows.
2. `commit` prepares the transaction: it commits the rows to each topic as open, and the offsets to each group as
   pending.
3. `commit` decides the transaction: it writes one entry to the decision log of the id, which commits all rows and
   offsets atomically.

If the process dies before step 3, no part of the transaction becomes visible. The next instance aborts an undecided
transaction immediately. Other processes abort it once `timeout_ms` has passed since its first prepare.

Several jobs can share a transaction. One job begins the transaction and passes its number to the other jobs. They
`join` the transaction, append, and `prepare`, which records their files before it returns. Then one of the jobs
commits.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparklog.arguments import NAME, POSITIONS, checked, instance
from sparklog.common.reached import reached
from sparklog.common.settings import as_integer
from sparklog.errors import BadRequest, Conflict, Fenced, SparklogError, Unavailable, shortened
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_state import GroupMetadata, TopicOffsets, merged
from sparklog.groups.membership import GroupConsumer, Membership
from sparklog.limits import DEFAULT_TRANSACTION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS
from sparklog.log.decisions.decision import (
    BY_OWNER,
    Decisions,
    Prepared,
    PreparedGroup,
    check_undecided,
    commit,
    init,
    prepare,
)
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.log.journal.names import check_id
from sparklog.log.state.commit import Txn
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import ROOT, Root, open_root
from sparklog.log.topic.topic import WRITE_OPTIONS
from sparklog.log.write.append_target import AppendOutcome, AppendTarget, TopicFiles
from sparklog.log.write.append_writer import AppendWriter
from sparklog.log.write.arrow_data import batches
from sparklog.storage.store import Store
from sparklog.transactions.completion import check_not_one_write, recorded_everywhere

if TYPE_CHECKING:
    from sparklog.log.write.append_target import WriteOptions
    from sparklog.log.write.arrow_data import ArrowData


_LOG = logging.getLogger("sparklog.transactions")
RECHECK_MS = 1_000
"""The age in ms from which a transaction checks, with one request, for a newer instance before it prepares."""
GROUP = instance("a consumer, another member, or the name of a group", str, GroupMetadata, Membership)
OPEN, PREPARED, COMMITTED, ABORTED, UNKNOWN = "open", "prepared", "committed", "aborted", "unknown"


@checked(root=ROOT, transactional_id=NAME, instance=NAME.or_none())
def transactional(
    root: Root | Store | str | os.PathLike[str],
    transactional_id: str,
    *,
    timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
    instance: str | None = None,
) -> TransactionalProducer:
    """Return a transactional producer. Either all rows of a transaction become visible in all of its topics, or no row
    becomes visible.

    Args:
        root: An open root, or its location.
        transactional_id: An id that is the same in every run of a program. A newer instance fences older instances.
        timeout_ms: Kafka's `transaction.timeout.ms`: the time after which other processes may abort an open
            transaction.
        instance: An instance name, which several processes can share to act as one instance, or None for a new
            instance.

    Returns:
        A `TransactionalProducer`. Its method `begin()` begins a transaction.

    Raises:
        BadRequest: If the id or the timeout is invalid.

    Example:
        with sparklog.transactional("/data/log", "orders-job").begin() as transaction:
            transaction.append("orders", pa.table({"value": ["desk"]}))
            transaction.append("payments", pa.table({"value": ["310.00"]}))
    """
    check_not_one_write(transactional_id)
    opened = root if isinstance(root, Root) else open_root(root)
    return TransactionalProducer(opened, transactional_id, timeout_ms=timeout_ms, instance=instance)


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A committed transaction, with its number and the outcome in each topic. The number is None if the transaction was
    empty.
    """

    n: int | None
    topics: Mapping[str, AppendOutcome] = field(default_factory=dict)
    skipped: bool = False
    note: str = ""


class TransactionalProducer:
    """A transactional producer (see `transactional`), which can have one open transaction at a time. It is not
    thread-safe.
    """

    def __init__(
        self,
        root: Root,
        transactional_id: str,
        *,
        timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
        instance: str | None = None,
        epoch: int | None = None,
    ) -> None:
        self.root = root
        self.id = check_id(transactional_id, "transactional id")
        highest = MAX_TRANSACTION_TIMEOUT_MS
        whole_ms = as_integer(timeout_ms)
        if whole_ms is None or not 1 <= whole_ms <= highest:
            found = shortened(timeout_ms)
            raise BadRequest(f"timeout_ms must be an integer from 1 to {highest} (a day), found {found}")
        self.timeout_ms = whole_ms
        self.instance = root.env.new_id() if instance is None else check_id(instance, "instance")
        self.epoch = epoch
        """The epoch of this instance, or None if the instance has not begun a transaction. Instances with lower epochs
        are fenced.
        """
        self.log: DecisionLog = root.engine.decisions.log(self.id)
        self._open: Transaction | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name in ("append", "send_offsets", "commit", "abort", "prepare"):
                raise AttributeError(f"{name} is a method of a transaction: call begin().{name}(...)")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"TransactionalProducer({self.id!r}, {self.root.location!r})"

    def begin(self) -> Transaction:
        """Begin a transaction. Older instances are fenced, and their open transaction is aborted.

        The transaction is listed as open from its first prepare on, when its timeout starts. (In Kafka, the timeout
        starts when the first partition is added.)

        Returns:
            A `Transaction`, to commit or abort, or to use as a context manager.

        Raises:
            BadRequest: If this producer has an open transaction.
            Fenced: If a newer instance has taken over.
        """
        self.log.refresh()
        return self._begin()

    def _begin(self) -> Transaction:
        """Begin a transaction from the cached state, which the caller has just refreshed."""
        if self._open is not None and self._open.state in (OPEN, PREPARED):
            raise BadRequest(
                f"transaction {self._open.n} of '{self.id}' is open: commit or abort it before you begin "
                "another transaction"
            )
        self.root.engine.ensure_probed()
        if self._open is not None and self._open.state == UNKNOWN:
            # The number of the transaction must not be reused before its outcome is known.
            self.log.abort(self._open.n, BY_OWNER)
        state = self.log.write(lambda base: init(base, self.instance, self.epoch, self.root.env.wall_ms()))
        self.epoch = state.epoch
        self._open = Transaction(self, state.newest + 1, self.instance, None)
        return self._open

    @checked(part=NAME.or_none())
    def join(self, n: int, part: str | None = None) -> Transaction:
        """Join a transaction that another job began.

        The prepares of each job have the `timeout_ms` of the job. The first timeout that expires aborts the entire
        transaction.

        Args:
            n: The number of the transaction, which is the `n` of the transaction that `begin` returned.
            part: The name of this job's part. If the job is restarted with the same name, its new prepares replace the
                prepares of its first attempt.

        Returns:
            A `Transaction`, to append to and to `prepare`.

        Raises:
            Conflict: If the transaction is already decided.
            Fenced: If a newer instance has taken over.
            BadRequest: If `n` is not a number.
        """
        number = as_integer(n)
        if number is None:
            raise BadRequest(f"expected `n` to be the integer `n` of a transaction from `begin`, found {shortened(n)}")
        self.root.engine.ensure_probed()
        check_undecided(self.log.refresh(), number)
        return Transaction(self, number, None, part if part is None else check_id(part, "part"))


class Transaction:
    """A transaction of a producer. As a context manager, it commits at the end, and aborts after an exception."""

    def __init__(self, producer: TransactionalProducer, n: int, instance: str | None, part: str | None) -> None:
        self.n = n
        self.id = producer.id
        self.state = OPEN
        self._producer = producer
        self._root = producer.root
        self._instance = instance
        self._part = part
        self._writers: dict[str, tuple[AppendTarget, AppendWriter]] = {}
        self._files: dict[str, list[TopicFiles]] = {}
        self._offsets: dict[str, tuple[TopicOffsets, ...]] = {}
        self._members: dict[str, GroupMetadata | None] = {}
        self._prepared: list[Prepared] = []
        self._prepared_groups: list[PreparedGroup] = []
        self._outcomes: dict[str, AppendOutcome] = {}
        self._started_at = producer.root.env.now()
        self._failure: str | None = None
        """The error of an `append` that lost accepted rows. The transaction can then only be aborted."""

    def __repr__(self) -> str:
        return f"Transaction({self.id!r}, {self.n}, {self.state})"

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.state == OPEN:
            self.commit()
        elif kind is not None and self.state in (OPEN, PREPARED):
            self._abort_or_leave()

    # -- contents

    @checked(topic=NAME, options=WRITE_OPTIONS)
    def append(self, topic: str, data: ArrowData, *, options: WriteOptions | None = None) -> None:
        """Append rows to a topic, like `Topic.append`. The rows become visible with `commit`.

        If this method fails after it has accepted rows, all rows of the transaction are discarded, and the transaction
        can only be aborted: `commit` aborts it and raises `BadRequest`.

        Args:
            topic: The name of the topic.
            data: The rows, as for `Topic.append`.
            options: Codec and sizes. Only the options of the first append to a topic are used.

        Raises:
            NotFound: If the topic does not exist.
            BadRequest: If the topic rejects a row, either here or in `commit`.
        """
        self._check_open()
        if topic not in self._writers:
            target = self._root.topic(topic).log.append_target(refresh=False)
            seed = self._root.env.random.getrandbits(63)
            self._writers[topic] = target, AppendWriter(target, options, self._root.env, seed)
        writer = self._writers[topic][1]
        has_accepted_rows = False
        try:
            for batch in batches(data):
                writer.write(batch)
                has_accepted_rows = True
        except BaseException as error:
            if has_accepted_rows or writer.has_lost_rows:
                self._failure = str(error) or type(error).__name__
                self._discard_rows()
            raise

    def add(self, target: AppendTarget, files: Sequence[FileSlices]) -> None:
        self._check_open()
        if any(len(file) for file in files):
            self._files.setdefault(target.topic, []).append(TopicFiles(target, tuple(files)))

    @checked(offsets=POSITIONS.or_none())
    def send_offsets(
        self, group: str | GroupMetadata | Membership | GroupConsumer, offsets: Offsets | None = None
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction.

        Args:
            group: A consumer or another member, so that `commit` fails with `Fenced` if a newer member has joined; or
                the name of a group, without fencing.
            offsets: The next offset to read, by topic and partition, or None for the positions of the consumer.

        Raises:
            NotFound: If a topic does not exist.
            BadRequest: If a partition or an offset is invalid, or if the consumer commits automatically.
        """
        self._check_open()
        if isinstance(group, GroupConsumer):
            if group.auto_commit_interval_ms is not None:
                raise BadRequest(
                    f"{group!r} commits offsets automatically, even if the transaction is aborted; set "
                    "enable_auto_commit=False"
                )
            offsets = group.positions() if offsets is None else offsets
            group = group.membership
        if offsets is None:
            raise BadRequest(
                "expected offsets by topic and partition, found None; only a consumer may omit the offsets"
            )
        GROUP.check("group", group)
        ids = group.topic_ids if isinstance(group, Membership) else None
        member = group.metadata if isinstance(group, Membership) else None if isinstance(group, str) else group
        name = str(group) if member is None else member.group
        rows = Group(self._root, name).checked(offsets, ids)
        if not rows:
            return
        self._offsets[name] = merged(self._offsets.get(name, ()), rows)
        # If the caller passes only the name of a group, keep the member that an earlier call passed.
        self._members[name] = member or self._members.get(name)

    def _check_open(self) -> None:
        if self.state != OPEN:
            raise BadRequest(f"transaction {self.n} of '{self.id}' is {self.state}: begin a new transaction")
        if self._failure is not None:
            raise BadRequest(
                f"an append to transaction {self.n} of '{self.id}' failed: {self._failure}; abort the transaction and "
                "begin a new transaction"
            )

    # -- prepare, commit, abort

    def prepare(self) -> Mapping[str, AppendOutcome]:
        """Write the appended rows to their topics as open, so that another job can commit them.

        After this method returns, a COMMIT of the transaction by any job includes these rows.

        Returns:
            The outcome in each topic.

        Raises:
            Fenced: If a newer instance has taken over.
            Conflict: If the transaction was aborted after its timeout or by an administrator.
            BadRequest: If a topic rejects rows.
        """
        self._check_open()
        try:
            self._prepare(may_inline=False)
            groups = self._prepared_groups
            self._producer.log.write(lambda base: prepare(base, self.n, self._prepared, self._part, groups))
        except Exception:
            self.discard()
            raise
        self.state = PREPARED
        return dict(self._outcomes)

    def commit(self, *, key: WriterKey | None = None) -> CommittedTransaction:
        """Commit the transaction. When this method returns, all rows of the transaction are visible in all topics.

        Args:
            key: Identifies the batch that the transaction contains, so that a replay of the batch is skipped.

        Returns:
            The number of the transaction (None if it was empty), and the outcome in each topic.

        Raises:
            Fenced: If a newer instance of this producer, or a newer member of a consumer group whose offsets it sends,
                has taken over.
            Conflict: If the transaction was aborted after its timeout or by an administrator, or if a topic was
                deleted.
            BadRequest: If a topic rejects rows, or if an append to the transaction failed after it had accepted rows.
                In these three cases, no part of the transaction ever becomes visible.
            Unavailable: If the store failed. The message says whether the outcome is known.
        """
        log = self._producer.log
        if self.state != PREPARED:
            try:
                self._check_open()
            except BadRequest:
                if self.state == OPEN:
                    self._abort_or_leave()
                raise
            if self._root.env.elapsed_ms(self._started_at) > RECHECK_MS:
                # A fenced producer must not write, because read_uncommitted readers would see its rows.
                try:
                    check_undecided(log.refresh(), self.n, self._instance)
                except (Conflict, Fenced):
                    reached("transactions: a superseded producer stops before it prepares")
                    self.discard()
                    raise
            try:
                self._prepare()
            except Exception:
                self._abort_or_leave()
                raise
        if not self._prepared and not self._prepared_groups:
            state = log.refresh()
            if not state.prepared and not state.prepared_groups:
                check_undecided(state, self.n, self._instance)
                self.state = COMMITTED
                return CommittedTransaction(None)
        try:
            log.write(lambda base: self._decide(base, key))
        except (Conflict, Fenced):
            reached("transactions: a commit comes after an abort or a newer instance")
            self.state = ABORTED
            raise
        except SparklogError as error:
            reached("transactions: the outcome of a commit is unknown")
            self.state = UNKNOWN
            self._resolve_unknown(error)
        self.state = COMMITTED
        return CommittedTransaction(self.n, dict(self._outcomes))

    def _decide(self, base: Decisions, key: WriterKey | None) -> Decisions | None:
        return commit(
            base,
            self.n,
            [item for item in self._prepared if item not in base.prepared],
            time_ms=self._root.env.wall_ms(),
            groups=[item for item in self._prepared_groups if item not in base.prepared_groups],
            key=key,
            count=sum(outcome.records for outcome in self._outcomes.values()),
            run=self._instance,
            resolved=recorded_everywhere(self._root, base),
        )

    def _resolve_unknown(self, unknown: SparklogError) -> None:
        """Resolve an unknown outcome with an ABORT, which either becomes the decision or finds the COMMIT."""
        try:
            state = self._producer.log.abort(self.n, BY_OWNER)
        except SparklogError:
            raise unknown from None
        committed = state.commit_of(self.n)
        if committed is None:
            if not state.is_known_aborted(self.n):
                raise unknown
        elif {*self._prepared, *self._prepared_groups} <= {*committed.prepares, *committed.groups}:
            reached("transactions: a commit of unknown outcome was written")
            return
        self.state = ABORTED
        raise Unavailable(f"transaction {self.n} of '{self.id}' is aborted, and nothing was published: {unknown}")

    def abort(self) -> None:
        """Abort the transaction. `read_committed` readers never see its rows.

        Raises:
            Conflict: If the transaction is already committed.
            BadRequest: If this object has already committed or aborted the transaction.
        """
        if self.state in (COMMITTED, ABORTED):
            raise BadRequest(f"transaction {self.n} of '{self.id}' is {self.state}")
        self.discard()
        self.state = UNKNOWN
        state = self._producer.log.abort(self.n, BY_OWNER)
        self.state = ABORTED
        if state.commit_of(self.n) is not None:
            reached("transactions: an abort comes after the commit")
            self.state = COMMITTED
            raise Conflict(f"transaction {self.n} of '{self.id}' is committed and can no longer be aborted")

    def discard(self) -> None:
        """Discard rows that were appended but not prepared. The transaction itself remains undecided."""
        self._discard_rows()
        self.state = ABORTED

    def _discard_rows(self) -> None:
        for _, writer in self._writers.values():
            writer.discard()
        self._writers.clear()
        self._files.clear()

    def _abort_or_leave(self) -> None:
        try:
            self.abort()
        except SparklogError as error:
            _LOG.warning("cannot abort transaction %s of '%s', so it will time out: %s", self.n, self.id, error)

    def _prepare(self, *, may_inline: bool = True) -> None:
        # Prepare groups first, so that a superseded member fails before its rows can hold back the last stable offset
        # of a topic.
        for name, offsets in self._offsets.items():
            group, timeout_ms = Group(self._root, name), self._producer.timeout_ms
            number = group.prepare(self._members[name], self.id, self.n, timeout_ms, offsets)
            self._prepared_groups.append(PreparedGroup(name, number, self._part))
        self._offsets.clear()
        self._prepare_topics(may_inline)

    def _prepare_topics(self, may_inline: bool = True) -> None:
        for topic, (target, writer) in self._writers.items():
            self._files.setdefault(topic, []).append(TopicFiles(target, tuple(writer.finish())))
        self._writers.clear()
        siblings: dict[str, int] = {}
        for topic, parts in self._files.items():
            files = [file for part in parts for file in part.files]
            if not files:
                continue
            txn = Txn(self.id, self.n, dict(siblings), self._producer.timeout_ms)
            target = _oldest(topic, [part.target for part in parts])
            outcome = self._root.engine.log(topic).commit_append(files, target, txn=txn, may_inline=may_inline)
            siblings[topic] = outcome.version
            self._outcomes[topic] = outcome
            self._prepared.append(Prepared(topic, target.topic_id, outcome.version, outcome.commit_id, self._part))
        self._files.clear()


def _oldest(topic: str, targets: Sequence[AppendTarget]) -> AppendTarget:
    if len({target.topic_id for target in targets}) > 1:
        raise Conflict(
            f"topic '{topic}' was deleted and recreated while this transaction was writing to it: begin a new "
            "transaction"
        )
    return min(targets, key=lambda target: target.read_version)
