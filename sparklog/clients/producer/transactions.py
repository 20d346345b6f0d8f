"""Transactions of a producer. Batches are uploaded when they are sent, and the commit resolves their futures."""

from __future__ import annotations

from sparklog.clients.producer.accumulator import Accumulator, Batch
from sparklog.clients.producer.batch_rows import PartitionedRows, Records, rows_of
from sparklog.clients.producer.futures import BatchResult
from sparklog.clients.producer.sender import Sender
from sparklog.errors import BadRequest, Conflict, SparklogError, Unavailable
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_state import GroupMetadata
from sparklog.groups.membership import Membership
from sparklog.log.topic.root import Root
from sparklog.storage.fork_safety import ForkLock
from sparklog.transactions.producer import ABORTED, COMMITTED, Transaction, TransactionalProducer


class ProducerTransactions:
    """The transactions of a producer with a `transactional_id`. At most one transaction is open at a time."""

    def __init__(self, root: Root, accumulator: Accumulator, sender: Sender, transactional_id: str, timeout_ms: int):
        self._root = root
        self._accumulator = accumulator
        self._sender = sender
        self._producer = TransactionalProducer(root, transactional_id, timeout_ms=timeout_ms)
        self._lock = ForkLock()
        self._transaction: Transaction | None = None
        self._uploaded: list[tuple[BatchResult, PartitionedRows]] = []
        self._failure: SparklogError | None = None
        self.accepts_records = False
        sender.commit = self.upload

    @property
    def is_open(self) -> bool:
        return self._transaction is not None

    def begin(self) -> None:
        with self._lock:
            if self._transaction is not None:
                raise BadRequest("a transaction is open: call commit_transaction or abort_transaction first")
            self._transaction = self._producer.begin()
            self._uploaded, self._failure = [], None
            self.accepts_records = True

    def upload(self, batch: Batch) -> None:
        """Append a batch to the open transaction. The futures are resolved when the transaction is committed. This
        method is called by the sender's thread.
        """
        with self._lock:
            transaction = self._transaction
            if transaction is None or self._failure is not None:
                raise self._failure or Conflict("not published: the transaction of the record had already ended")
            try:
                log = self._root.topic(batch.topic).log
                target, options = log.append_target(refresh=False), self._sender.write_options
                records = Records.of(batch)
                rows = rows_of(records, target.partitions, self._sender.next_seed(), options.batch_bytes)
                transaction.append(batch.topic, rows, options=options)
                self._uploaded.append((batch.result, PartitionedRows.of(rows, target, records, batch.rows)))
            except SparklogError as error:
                self._fail(error)
                raise
            except BaseException as error:
                # The sender stops. The commit must not publish the transaction without this batch.
                self._fail(Unavailable(f"not published: a batch of the transaction failed: {error!r}"))
                raise

    def _fail(self, error: SparklogError) -> None:
        """Fail all records of the transaction."""
        self._failure = error
        for result, _ in self._uploaded:
            result.fail(error)
        self._uploaded = []

    def send_offsets(self, offsets: Offsets, group: str | GroupMetadata | Membership) -> None:
        with self._lock:
            self._open().send_offsets(group, offsets)

    def _open(self) -> Transaction:
        if self._transaction is None:
            raise BadRequest("no transaction is open: call begin_transaction first")
        return self._transaction

    def commit(self) -> None:
        transaction = self._open()
        self.accepts_records = False
        self._accumulator.flush(None)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                outcomes = transaction.commit().topics
            except SparklogError as error:
                self._fail(error)
                raise
            next_offsets = {topic: dict(outcome.base) for topic, outcome in outcomes.items()}
            for result, rows in self._uploaded:
                result.succeed(rows.positions(outcomes[result.topic], next_offsets[result.topic]))
            self._uploaded, self._transaction = [], None

    def abort(self) -> None:
        transaction = self._open()
        self.accepts_records = False
        aborted = Conflict(f"not published: transaction {transaction.n} of '{transaction.id}' was aborted")
        self._accumulator.fail_pending(aborted)
        # Wait for a batch that is being uploaded, because the batch belongs to the transaction.
        self._accumulator.flush(None)
        with self._lock:
            self._fail(aborted)
            self._transaction = None
            if transaction.state not in (ABORTED, COMMITTED):
                transaction.abort()
