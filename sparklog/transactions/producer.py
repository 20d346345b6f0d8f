"""A transactional producer: begin, append to topics, send offsets of a consumer group, commit or abort.

Rows are uploaded as they come and published by `commit`: one commit per topic that holds them open (prepare), then one
entry in the decision log of the id, which commits them all at once. A process that dies in between leaves no part of it
visible. The next instance aborts an undecided transaction at once, any other process once `timeout_ms` has passed since
its first prepare.

Jobs that share a transaction: one begins it and hands its number on. The others `join` it, append, and `prepare`, which
records their files before it returns. Then one of them commits.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparklog.arguments import NAME, POSITIONS, checked, instance
from sparklog.common.reached import reached
from sparklog.common.settings import as_whole
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
LOOK_AGAIN_MS = 1_000
"""A transaction older than this looks for a newer instance before it prepares: one request."""
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
    """Return a producer that writes transactions under an id: all topics of one are published, or none.

    Args:
        root: an open root, or its location.
        transactional_id: the same in every run of a program; a newer instance fences older ones.
        timeout_ms: Kafka's `transaction.timeout.ms`: an open transaction may be aborted by others after it.
        instance: a name where several processes are to be one instance; default: a new one.

    Returns:
        A `TransactionalProducer`; `begin()` begins a transaction.

    Raises:
        BadRequest: the id or the timeout is not valid.

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
    """A committed transaction: its number (None: it was empty) and the outcome in each topic."""

    n: int | None
    topics: Mapping[str, AppendOutcome] = field(default_factory=dict)
    skipped: bool = False
    note: str = ""


class TransactionalProducer:
    """A transactional producer: see `transactional`. One transaction at a time; not safe to share between threads."""

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
        whole_ms = as_whole(timeout_ms)
        if whole_ms is None or not 1 <= whole_ms <= highest:
            found = shortened(timeout_ms)
            raise BadRequest(f"timeout_ms must be a whole number from 1 to {highest} (a day), found {found}")
        self.timeout_ms = whole_ms
        self.instance = root.env.new_id() if instance is None else check_id(instance, "instance")
        self.epoch = epoch
        """Epoch of this instance, once it has begun a transaction: lower ones are fenced, however many come between."""
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
        """Begin a transaction; an older instance is fenced, and what it has open aborted.

        As with Kafka, where a transaction is ongoing from its first partition on, it is listed as open from its first
        prepare on, and its timeout counts from there.

        Returns:
            A `Transaction`, to be committed or aborted, or used as a context manager.

        Raises:
            BadRequest: one of this producer is open.
            Fenced: a newer instance has taken over.
        """
        self.log.refresh()
        return self._begin()

    def _begin(self) -> Transaction:
        """Begin by the state that is known here, which was looked at a moment ago."""
        if self._open is not None and self._open.state in (OPEN, PREPARED):
            raise BadRequest(
                f"transaction {self._open.n} of '{self.id}' is open: commit or abort it before the next one is begun"
            )
        self.root.engine.ensure_probed()
        if self._open is not None and self._open.state == UNKNOWN:
            # Its number is used again only when its outcome is known.
            self.log.abort(self._open.n, BY_OWNER)
        state = self.log.write(lambda base: init(base, self.instance, self.epoch, self.root.env.wall_ms()))
        self.epoch = state.epoch
        self._open = Transaction(self, state.newest + 1, self.instance, None)
        return self._open

    @checked(part=NAME.or_none())
    def join(self, n: int, part: str | None = None) -> Transaction:
        """Take part in a transaction that another job began.

        The `timeout_ms` of each job counts for its prepares; the first to pass aborts the whole transaction.

        Args:
            n: its number, the `n` of what `begin` returned.
            part: the name of this job's share. A job that was started again under it replaces what its first attempt
                recorded.

        Returns:
            A `Transaction`, to append to and to `prepare`.

        Raises:
            Conflict: it is decided already.
            Fenced: a newer instance has taken over.
            BadRequest: `n` is no number.
        """
        number = as_whole(n)
        if number is None:
            raise BadRequest(
                f"expected the number of a transaction, the `n` of what `begin` returned; found {shortened(n)}"
            )
        self.root.engine.ensure_probed()
        check_undecided(self.log.refresh(), number)
        return Transaction(self, number, None, part if part is None else check_id(part, "part"))


class Transaction:
    """A transaction of a producer. As a context manager it commits at the end, and aborts on an exception."""

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
        self._begun = producer.root.env.now()

    def __repr__(self) -> str:
        return f"Transaction({self.id!r}, {self.n}, {self.state})"

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.state == OPEN:
            self.commit()
        elif kind is not None and self.state in (OPEN, PREPARED):
            self._give_up()

    # -- contents

    @checked(topic=NAME, options=WRITE_OPTIONS)
    def append(self, topic: str, data: ArrowData, *, options: WriteOptions | None = None) -> None:
        """Append rows to a topic, as `Topic.append`. `commit` publishes them.

        Args:
            topic: its name.
            data: as for `Topic.append`.
            options: codec and sizes; those of the first append to a topic count.

        Raises:
            NotFound: there is no such topic.
            BadRequest: the topic refuses a row, here or at `commit`.
        """
        self._check_open()
        if topic not in self._writers:
            target = self._root.topic(topic).log.append_target(refresh=False)
            seed = self._root.env.random.getrandbits(63)
            self._writers[topic] = target, AppendWriter(target, options, self._root.env, seed)
        for batch in batches(data):
            self._writers[topic][1].write(batch)

    def add(self, target: AppendTarget, files: Sequence[FileSlices]) -> None:
        self._check_open()
        if any(len(file) for file in files):
            self._files.setdefault(target.topic, []).append(TopicFiles(target, tuple(files)))

    @checked(offsets=POSITIONS.or_none())
    def send_offsets(
        self, group: str | GroupMetadata | Membership | GroupConsumer, offsets: Offsets | None = None
    ) -> None:
        """Commit offsets of a consumer group with the transaction.

        Args:
            group: a consumer (without `offsets`: its positions) or another member, and `commit` is refused with
                `Fenced` once a newer member has joined; or the name alone, which fences nothing.
            offsets: topic to partition to the next offset to read; None: the positions of the consumer.

        Raises:
            NotFound: a topic does not exist.
            BadRequest: a partition or an offset that cannot be, or a consumer that commits by itself.
        """
        self._check_open()
        if isinstance(group, GroupConsumer):
            if group.auto_commit_interval_ms is not None:
                raise BadRequest(
                    f"{group!r} commits by itself, also what a transaction aborts; set enable_auto_commit=False"
                )
            offsets = group.positions() if offsets is None else offsets
            group = group.membership
        if offsets is None:
            raise BadRequest("expected offsets, topic to partition to offset; only a consumer knows its own")
        GROUP.check("group", group)
        ids = group.topic_ids if isinstance(group, Membership) else None
        member = group.metadata if isinstance(group, Membership) else None if isinstance(group, str) else group
        name = str(group) if member is None else member.group
        rows = Group(self._root, name).checked(offsets, ids)
        if not rows:
            return
        self._offsets[name] = merged(self._offsets.get(name, ()), rows)
        # Offsets that are sent by the name alone keep the member that was given before.
        self._members[name] = member or self._members.get(name)

    def _check_open(self) -> None:
        if self.state != OPEN:
            raise BadRequest(f"transaction {self.n} of '{self.id}' is {self.state}: begin another one")

    # -- prepare, commit, abort

    def prepare(self) -> Mapping[str, AppendOutcome]:
        """Record what was appended, and hold it open in its topics: for a job that leaves the commit to another one.

        When it returns, a COMMIT of the transaction, by any job, has these rows in it.

        Returns:
            The outcome in each topic.

        Raises:
            Fenced: a newer instance took over.
            Conflict: it was aborted, by its timeout or an operator.
            BadRequest: a topic refuses rows.
        """
        self._check_open()
        try:
            self._prepare(inline=False)
            groups = self._prepared_groups
            self._producer.log.write(lambda base: prepare(base, self.n, self._prepared, self._part, groups))
        except Exception:
            self.discard()
            raise
        self.state = PREPARED
        return dict(self._outcomes)

    def commit(self, *, key: WriterKey | None = None) -> CommittedTransaction:
        """Commit: when this returns, all of it is visible in all topics.

        Args:
            key: enter this batch in the replay rule of the id; None: none.

        Returns:
            The number of the transaction (None: it was empty), and the outcome in each topic.

        Raises:
            Fenced: a newer instance took over, of this producer or of a consumer whose offsets it sends.
            Conflict: it was aborted, by its timeout or an operator, or a topic was deleted.
            BadRequest: a topic refuses rows. In these three cases no part of it is ever visible.
            Unavailable: the store failed; the message says if the outcome is known.
        """
        log = self._producer.log
        if self.state != PREPARED:
            self._check_open()
            if self._root.env.elapsed_ms(self._begun) > LOOK_AGAIN_MS:
                # Fenced long ago, it writes nothing: no rows for read_uncommitted, no gap in the offsets.
                try:
                    check_undecided(log.refresh(), self.n, self._instance)
                except (Conflict, Fenced):
                    reached("transactions: a superseded producer stops before it prepares")
                    self.discard()
                    raise
            try:
                self._prepare()
            except Exception:
                self._give_up()
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
            self._settle(error)
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

    def _settle(self, unknown: SparklogError) -> None:
        """Resolve an unknown outcome: try an ABORT, which either is the decision or finds the COMMIT."""
        try:
            state = self._producer.log.abort(self.n, BY_OWNER)
        except SparklogError:
            raise unknown from None
        committed = state.commit_of(self.n)
        if committed is None:
            if not state.surely_aborted(self.n):
                raise unknown
        elif {*self._prepared, *self._prepared_groups} <= {*committed.prepares, *committed.groups}:
            reached("transactions: a commit of unknown outcome had landed")
            return
        self.state = ABORTED
        raise Unavailable(f"transaction {self.n} of '{self.id}' is aborted, nothing of it is published: {unknown}")

    def abort(self) -> None:
        """Abort: read_committed never shows any of it.

        Raises:
            Conflict: it is committed already.
            BadRequest: it was committed or aborted by this object.
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
            raise Conflict(f"transaction {self.n} of '{self.id}' is committed: it cannot be aborted any more")

    def discard(self) -> None:
        """Drop rows that were appended here and not prepared; the transaction itself stays undecided."""
        for _, writer in self._writers.values():
            writer.discard()
        self._writers.clear()
        self._files.clear()
        self.state = ABORTED

    def _give_up(self) -> None:
        try:
            self.abort()
        except SparklogError as error:
            _LOG.warning("transaction %s of '%s' is left to its timeout: %s", self.n, self.id, error)

    def _prepare(self, *, inline: bool = True) -> None:
        # Groups first: a member that was superseded stops before it holds back a topic.
        for name, offsets in self._offsets.items():
            group, timeout_ms = Group(self._root, name), self._producer.timeout_ms
            number = group.prepare(self._members[name], self.id, self.n, timeout_ms, offsets)
            self._prepared_groups.append(PreparedGroup(name, number, self._part))
        self._offsets.clear()
        self._prepare_topics(inline)

    def _prepare_topics(self, inline: bool = True) -> None:
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
            outcome = self._root.engine.log(topic).commit_append(files, target, txn=txn, inline=inline)
            siblings[topic] = outcome.version
            self._outcomes[topic] = outcome
            self._prepared.append(Prepared(topic, target.topic_id, outcome.version, outcome.commit_id, self._part))
        self._files.clear()


def _oldest(topic: str, targets: Sequence[AppendTarget]) -> AppendTarget:
    if len({target.topic_id for target in targets}) > 1:
        raise Conflict(f"topic '{topic}' was deleted and created again while this transaction wrote to it: begin again")
    return min(targets, key=lambda target: target.read_version)
