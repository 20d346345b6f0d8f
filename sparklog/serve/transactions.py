"""Write and read the transactions of Kafka clients in the journals of their transactional ids.

A transaction of a Kafka client is a transaction of the root (`sparklog.transactions.producer`), in which any server can
do each step, because its state is in the log:

1. InitProducerId writes an `init` entry to the journal of the transactional id. The entry has the next epoch, which
   fences the earlier instances of the producer, and it aborts the transaction that they left open.
2. Produce commits the batches of each topic as slices of the open transaction. Before the first response for a topic,
   the server adds the topic to the journal with a `prepare` entry, so that any server can find all its prepares.
3. TxnOffsetCommit adds pending offsets to the group's journal, and then the group to the journal of the id.
4. EndTxn reads the prepares from the states of the topics, and writes the decision.

AddPartitionsToTxn and AddOffsetsToTxn only check the producer: a transaction without records or offsets has no effect,
so it does not have to be recorded in the journal.

**Which transaction a request belongs to.** Requests do not contain the number of the transaction, which always follows
the number of the latest decision. Therefore each request reads the latest entry. If a cache of names may hide the
latest entry, the `prepare` of step 2 is written for every Produce request, not only for the first of a topic: its
number can be created only after the latest entry. Step 4 then waits until it can read the version of each topic that
this entry lists.

**Version 2 of transactions** (KIP-890). Each transaction of a client has a separate epoch. The entry that ends a
transaction has the next epoch, and the name of its instance has the epoch before, so that a retry of EndTxn with that
epoch gets the same response. A request with an older epoch is rejected, so a late batch does not become a part of the
next transaction. After the first transaction, a request needs the latest entry only if the cached entry has another
epoch.

**Decisions of others.** A timeout, an operator or a newer group member may abort a transaction while its producer is
writing. The producer must not continue as if nothing had happened, because its next batch would belong to the next
transaction. So after such an abort, its requests are rejected until it has aborted the transaction itself, or begun the
next epoch.

**Producer ids.** The id and the epoch of a client's producer follow from the transactional id and the epoch in its
journal, so they are the same on every server: the first 32,000 epochs are those of the first producer id, the next
32,000 those of the second, and so on. Kafka's epochs begin at 0 and have 16 bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sparklog.errors import Unavailable
from sparklog.groups.group import Group
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_state import GroupMetadata
from sparklog.limits import DEFAULT_TRANSACTION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS
from sparklog.log.decisions.decision import (
    BY_EXPIRY,
    BY_NEWER_GENERATION,
    BY_OPERATOR,
    BY_OWNER,
    BY_TIMEOUT,
    Decisions,
    Prepared,
    PreparedGroup,
    abort,
    commit,
    init,
    prepare,
)
from sparklog.log.decisions.decision_log import DecisionLog, open_transactions, timeout_of
from sparklog.log.journal.clocks import reading_clock_ms
from sparklog.log.journal.entry_log import Step
from sparklog.log.journal.names import check_id
from sparklog.log.state.commit import Txn
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import Root
from sparklog.serve.codes import Code, CodeError
from sparklog.storage.retries import Backoff
from sparklog.transactions.completion import check_not_one_write, recorded_everywhere, resolve_topic

MIN_PRODUCER_ID = 1 << 32
"""The minimum producer id of a Kafka client. It is above the producer ids in imported topics, because broker ids start
at 0.
"""
EPOCHS = 32_000
"""Number of epochs of a producer id. Kafka's epochs end at 32,767."""
ABORTED_BY_OTHERS = (BY_TIMEOUT, BY_OPERATOR, BY_NEWER_GENERATION, BY_EXPIRY)


@dataclass(frozen=True, slots=True)
class ProducerEpoch:
    """The producer id and the epoch of an instance of a producer."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerEpoch(-1, -1)


@dataclass(frozen=True, slots=True)
class ClientInstance:
    """A Kafka client as an instance of a transactional id. Its string form is stored in the journal as the name of the
    instance.

    * `timeout_ms`: the client's `transaction.timeout.ms`
    * `continued`: the epoch that the client had before the latest one, if it has ended a transaction in version 2 of
      the protocol, or continues after an error
    * `id`: random
    """

    timeout_ms: int
    continued: int | None
    id: str

    def __str__(self) -> str:
        return f"kafka/{self.timeout_ms}/{'' if self.continued is None else self.continued}/{self.id}"

    @classmethod
    def parse(cls, text: str | None) -> ClientInstance | None:
        """Return the instance with this name, or None if the instance is not a Kafka client."""
        kind, *parts = (text or "").split("/")
        if kind != "kafka" or len(parts) != 3 or not parts[0].isdecimal():
            return None
        return cls(int(parts[0]), int(parts[1]) if parts[1].isdecimal() else None, parts[2])


class TransactionCoordinator:
    """Coordinates transactions (see the module docstring). Methods wait for the store, and can be called by several
    threads. The methods raise `CodeError` with the error code of a broker if a producer is fenced or unknown.
    """

    def __init__(self, root: Root) -> None:
        self.root = root

    def init(self, transactional_id: str, timeout_ms: int, producer: ProducerEpoch = NO_PRODUCER) -> ProducerEpoch:
        """Begin the next epoch, and abort the open transaction.

        Args:
            transactional_id: The id.
            timeout_ms: The client's `transaction.timeout.ms`.
            producer: The client's producer, if it continues after an error.

        As in Kafka, raises `CodeError` with CONCURRENT_TRANSACTIONS if another request begins an epoch concurrently.
        Clients then retry.
        """
        check_not_one_write(check_id(transactional_id, "transactional id"))
        if not 1 <= timeout_ms <= MAX_TRANSACTION_TIMEOUT_MS:
            raise CodeError(Code.INVALID_TRANSACTION_TIMEOUT)
        log = self.log(transactional_id)
        # Read this before anything else. The client may have closed its connection because this request takes too long
        # (the probe does on a slow store) and have got a newer epoch with another request, which must not be fenced.
        epoch = log.refresh().epoch
        self.root.engine.ensure_probed()
        new_id = self.root.env.new_id()

        def step(base: Decisions) -> Decisions | None:
            continued = None
            if producer == NO_PRODUCER and base.epoch != epoch:
                raise CodeError(
                    Code.CONCURRENT_TRANSACTIONS, f"another request has started a new epoch for '{base.id}'"
                )
            if producer != NO_PRODUCER and base.number >= 0:
                if producer == self._former(base):
                    # The response to an earlier attempt, or to EndTxn, was lost.
                    return None
                if ClientInstance.parse(base.run) is None or producer != self.producer(base):
                    raise CodeError(Code.PRODUCER_FENCED)
                continued = base.epoch
            return init(base, str(ClientInstance(timeout_ms, continued, new_id)), None, self.root.env.wall_ms())

        return self._producer_after(log, step)

    def producer(self, state: Decisions, epoch: int | None = None) -> ProducerEpoch:
        """Return the producer of an epoch in the journal of a transactional id. If the epoch is None, the latest epoch
        is used.
        """
        latest = state.epoch if epoch is None else epoch
        assert latest is not None
        cycle, producer_epoch = divmod(latest - 1, EPOCHS)
        name = f"{self.root.id}/{state.id}/{cycle}"
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        return ProducerEpoch(MIN_PRODUCER_ID + (int.from_bytes(digest, "big") >> 3), producer_epoch)

    def _producer_after(self, log: DecisionLog, step: Step[Decisions]) -> ProducerEpoch:
        """Write an entry, and return its producer. The latest entry may already have the epoch of another client."""
        latest: Decisions | None = None

        def drafted(base: Decisions) -> Decisions | None:
            nonlocal latest
            after = step(base)
            latest = after or base
            return after

        log.write(drafted)
        assert latest is not None
        return self.producer(latest)

    def _former(self, state: Decisions) -> ProducerEpoch | None:
        """Return the producer of the epoch before the latest one, if its client may not know the latest epoch.

        Return None if another client began the latest epoch, or if the latest epoch has been used.
        """
        instance = ClientInstance.parse(state.run)
        is_used = bool(state.prepared or state.prepared_groups) or state.reason in ABORTED_BY_OTHERS
        if instance is None or instance.continued is None or is_used:
            return None
        return self.producer(state, instance.continued)

    def open_starts(self, topic: TopicState) -> dict[tuple[int, int], int]:
        """Return the first offset of each open transaction of a Kafka client, by producer id and partition."""
        starts: dict[tuple[int, int], int] = {}
        for item in topic.open:
            state = self.log(item.txn.id).current()
            if ClientInstance.parse(state.run) is not None and not state.is_decided(item.txn.n):
                for partition, first in item.first.items():
                    starts.setdefault((self.producer(state).producer_id, partition), first)
        return starts

    def checked_state(self, transactional_id: str, producer: ProducerEpoch, *, is_v2: bool = False) -> Decisions:
        """Return the latest state of an id, after checking that `producer` may write its next transaction.

        In version 2, the cached state is sufficient if it has the producer's epoch, which has only one transaction. But
        the client must have ended its previous transaction in version 2, because Produce 12 does not imply EndTxn 5.
        """
        known = self.log(transactional_id).current() if is_v2 else None
        instance = ClientInstance.parse(None if known is None else known.run)
        if known is not None and instance is not None and instance.continued is not None:
            with suppress(CodeError):
                self._check_may_write(known, producer)
                return known
        state = self.latest(transactional_id)
        self._check_may_write(state, producer)
        return state

    def end(
        self, transactional_id: str, producer: ProducerEpoch, *, is_commit: bool, is_v2: bool = False
    ) -> ProducerEpoch:
        """Commit or abort the open transaction of a producer, and return the producer of the next transaction.

        In version 2, the next transaction has the next epoch. In version 1, a commit without records and offsets has no
        effect. The producer may also abort a transaction that others have aborted, and then begin the next one.
        """
        log, state = self.log(transactional_id), self.latest(transactional_id)
        n, found = state.newest + 1, list[Prepared]()
        if is_commit and not (is_v2 and self._has_ended(state, producer, is_commit=True)):
            self._check_may_write(state, producer)
            if not state.prepared and not state.prepared_groups:
                if is_v2:
                    raise CodeError(Code.INVALID_TXN_STATE, f"transaction {n} of '{state.id}' is empty")
                return producer
            found = self._prepares(state, n)

        def step(base: Decisions) -> Decisions | None:
            if is_v2:
                if self._has_ended(base, producer, is_commit=is_commit):
                    # The response to an earlier attempt was lost.
                    return None
                self._check_instance(base, producer)
            after = self._committed(base, producer, n, found) if is_commit else self._aborted(base, producer, n)
            return None if after is None else _with_next_epoch(base, after, is_v2=is_v2)

        return self._producer_after(log, step)

    def _has_ended(self, state: Decisions, producer: ProducerEpoch, *, is_commit: bool) -> bool:
        """Return True if `producer` has ended the latest transaction with this result in its previous epoch. Raises
        `CodeError` if `producer` has ended the transaction with the other result.
        """
        if producer != self._former(state) or state.reason not in (None, BY_OWNER):
            return False
        if is_commit != (state.reason is None):
            raise CodeError(
                Code.INVALID_TXN_STATE,
                f"transaction {state.newest} of '{state.id}' has already been committed or aborted",
            )
        return True

    def abort_overdue(self, topics: Sequence[str]) -> bool:
        """Abort transactions of these topics that exceeded their timeout. Return True if outcomes were recorded.
        Requests are sent only for a topic whose cached state contains a transaction that appears to be overdue.
        """
        now_ms = self.root.env.wall_ms()
        is_changed = False
        for name in topics:
            log = self.root.engine.log(name)
            known = log.known()
            prepares = () if known is None else known.topic_state.open
            if any(now_ms - item.time_ms > timeout_of(item) for item in prepares):
                is_changed |= bool(resolve_topic(self.root.topic(name)))
        return is_changed

    def _aborted(self, base: Decisions, producer: ProducerEpoch, n: int) -> Decisions | None:
        self._check_instance(base, producer)
        if base.is_decided(n) and base.reason in ABORTED_BY_OTHERS:
            # This entry records that the producer has received the abort.
            return abort(base, base.newest + 1, BY_OWNER)
        return abort(base, n, BY_OWNER)

    def _committed(
        self, base: Decisions, producer: ProducerEpoch, n: int, found: Sequence[Prepared]
    ) -> Decisions | None:
        if base.commit_of(n) is not None:
            # An attempt whose response was lost.
            return None
        self.check_undecided(base, producer, n)
        recorded = {(item.topic, item.version) for item in base.prepared}
        prepares = [item for item in found if (item.topic, item.version) not in recorded]
        resolved = recorded_everywhere(self.root, base)
        return commit(base, n, prepares, time_ms=self.root.env.wall_ms(), resolved=resolved)

    def _prepares(self, state: Decisions, n: int) -> list[Prepared]:
        """Return all prepares of transaction `n`, from the latest states of its topics."""
        found = []
        for prepared in state.prepared:
            topic = self._topic_since(prepared)
            # If the topic was deleted, the transaction commits its records in the other topics, as in Kafka.
            prepares = open_transactions(topic).get((state.id, n), ()) if topic.exists else ()
            found += [Prepared(prepared.topic, topic.topic_id, item.version, item.commit_id) for item in prepares]
        return list(dict.fromkeys(found))

    def _topic_since(self, prepared: Prepared) -> TopicState:
        """Return the latest state of a topic, which contains this prepare.

        A directory cache may hide the prepare, and also earlier prepares that the COMMIT must list.
        """
        backoff, log = Backoff(self.root.env), self.root.engine.log(prepared.topic)
        while True:
            topic = log.refresh().topic_state
            log.make_durable()
            if topic.version >= prepared.version or topic.topic_id != prepared.topic_id:
                return topic
            if not backoff.wait():
                raise Unavailable(f"commit {prepared.version} of topic '{prepared.topic}' cannot be read: retry later")

    def log(self, transactional_id: str) -> DecisionLog:
        """Return the journal of a transactional id."""
        return self.root.engine.decisions.log(transactional_id)

    def now_ms(self) -> int:
        """Return the store's time, which is used to compute the ages of transactions."""
        return reading_clock_ms(self.root.store, self.root.env)

    def latest(self, transactional_id: str) -> Decisions:
        """Return the latest state of a transactional id, with one request."""
        return self.log(transactional_id).refresh()

    def check_undecided(self, state: Decisions, producer: ProducerEpoch, n: int) -> None:
        """Raise `CodeError` unless `producer` may write transaction `n`, which is undecided."""
        self._check_may_write(state, producer)
        if state.is_decided(n):
            raise CodeError(
                Code.INVALID_TXN_STATE, f"transaction {n} of '{state.id}' has already been committed or aborted"
            )

    def _check_may_write(self, state: Decisions, producer: ProducerEpoch) -> None:
        """Raise `CodeError` unless `producer` is the latest instance and no other process aborted its transaction."""
        self._check_instance(state, producer)
        if state.reason in ABORTED_BY_OTHERS:
            message = f"transaction {state.newest} of '{state.id}' was aborted ({state.reason})"
            raise CodeError(Code.TRANSACTION_ABORTABLE, message)

    def _check_instance(self, state: Decisions, producer: ProducerEpoch) -> None:
        """Raise `CodeError` unless `producer` is the latest instance."""
        if ClientInstance.parse(state.run) is None or state.epoch is None:
            raise CodeError(Code.INVALID_PRODUCER_ID_MAPPING)
        latest = self.producer(state)
        if producer.producer_id != latest.producer_id:
            raise CodeError(Code.INVALID_PRODUCER_ID_MAPPING)
        if producer.epoch != latest.epoch:
            raise CodeError(Code.PRODUCER_FENCED)


@dataclass(frozen=True, slots=True)
class ClientTransaction:
    """The open transaction of a producer, as Produce and TxnOffsetCommit requests refer to it."""

    coordinator: TransactionCoordinator
    transactional_id: str
    producer: ProducerEpoch
    is_v2: bool = False
    """True if each transaction of the producer has an epoch of its own."""

    def open(self, topic: str) -> Txn:
        """Return the transaction for a commit to `topic`."""
        state = self.coordinator.checked_state(self.transactional_id, self.producer, is_v2=self.is_v2)
        siblings = {item.topic: item.version for item in state.prepared if item.topic != topic}
        return Txn(state.id, state.newest + 1, siblings, _timeout_ms(state))

    def add_topic(self, txn: Txn, log: TopicLog) -> None:
        """Add a topic to the journal after a commit of batches to it, unless it has been added.

        Raises `CodeError` if the transaction has been decided in the meantime. In this case, the batches are aborted.
        """
        decisions, topic = self.coordinator.log(txn.id), log.state(refresh=False)
        prepares = open_transactions(topic).get((txn.id, txn.n))
        if not prepares:
            # The commit has recorded the decision of the transaction.
            self.coordinator.check_undecided(self.coordinator.latest(txn.id), self.producer, txn.n)
            raise CodeError(Code.INVALID_TXN_STATE, "the batches belong to an earlier transaction")
        latest = prepares[-1]
        prepared = Prepared(log.topic, topic.topic_id, latest.version, latest.commit_id, part=log.topic)
        known = decisions.current()
        is_added = known.newest + 1 == txn.n and any(item.topic == log.topic for item in known.prepared)
        if not is_added or log.store.hides_names:
            log.make_durable()
            self._write(txn.n, lambda base: prepare(base, txn.n, [prepared], part=log.topic))

    def add_offsets(self, group: Group, member: GroupMetadata | None, offsets: Offsets) -> None:
        """Add pending offsets of a group to the transaction."""
        state = self.coordinator.checked_state(self.transactional_id, self.producer, is_v2=self.is_v2)
        n = state.newest + 1
        number = group.prepare(member, state.id, n, _timeout_ms(state), group.checked(offsets))
        self._write(n, lambda base: prepare(base, n, (), groups=[PreparedGroup(group.id, number)]))

    def _write(self, n: int, step: Step[Decisions]) -> None:
        """Write an entry about transaction `n` while it is undecided."""

        def checked(base: Decisions) -> Decisions | None:
            self.coordinator.check_undecided(base, self.producer, n)
            return step(base)

        self.coordinator.log(self.transactional_id).write(checked)


def _with_next_epoch(base: Decisions, after: Decisions, *, is_v2: bool) -> Decisions:
    """Return the entry that ends a transaction, with the epoch of the next transaction. In version 1, the epoch does
    not change.
    """
    instance = ClientInstance.parse(base.run)
    assert instance is not None
    assert base.epoch is not None
    continued = base.epoch if is_v2 else None
    return replace(after, run=str(replace(instance, continued=continued)), epoch=base.epoch + is_v2)


def _timeout_ms(state: Decisions) -> int:
    instance = ClientInstance.parse(state.run)
    return DEFAULT_TRANSACTION_TIMEOUT_MS if instance is None else instance.timeout_ms
