"""End Kafka transactions that were open when they were imported, by appending the markers that Kafka's coordinator
would write.

The markers have Kafka's format, so scans, sealing, compaction and Kafka's tools do not need any changes. The epoch of
an ABORT marker is the epoch after the transaction's, as when Kafka's coordinator aborts a transaction that timed out.
The coordinator's decisions are kept. If it had decided COMMIT, but had not written the marker to this partition yet, a
COMMIT marker is appended.

Before the first append to an imported topic, its open transactions are ended with ABORT (`end_before_append`). After an
append, the log differs from Kafka's log, so a broker can no longer end these transactions, and readers would never
see the new records behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparklog.errors import Conflict
from sparklog.format.append_file import WrittenSlice
from sparklog.format.control import end_txn_marker
from sparklog.format.crc32c import crc32c
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.journal.names import append_path
from sparklog.log.state.append_offsets import assign_offsets
from sparklog.log.state.commit import APPEND
from sparklog.log.state.commit_intents import Draft, Nothing, check_floor, check_topic
from sparklog.log.state.commit_log import CommitLog
from sparklog.log.state.kafka_source import COMMIT, KafkaOpen
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.topic_state import TopicState
from sparklog.log.write.append_output import AppendOutput

MAX_EPOCH = 2**15 - 1
MAX_ATTEMPTS = 10
_LOG = logging.getLogger("sparklog.log")


def end_before_append(log: CommitLog) -> None:
    """End all open Kafka transactions, and log a warning for each of them."""
    for transaction in end_kafka_transactions(log):
        how = "committed" if transaction.decided == COMMIT else "aborted"
        _LOG.warning("before the first append to topic %s: %s %s", log.topic, how, transaction)


def end_kafka_transactions(
    log: CommitLog, *, producers: Collection[int] | None = None, commit: bool = False
) -> tuple[KafkaOpen, ...]:
    """End the open transactions of `producers`, or of all producers if None, in one commit, and return the
    transactions.

    If Kafka's decision on a transaction is known, it is used. Otherwise, `commit` determines the decision.
    """
    for _ in range(MAX_ATTEMPTS):
        state = log.existing().topic_state
        transactions = tuple(
            transaction for transaction in state.kafka_open if producers is None or transaction.producer in producers
        )
        if not transactions:
            return ()
        file = _write_markers(log, state, transactions, commit)
        try:
            outcome = log.commit(EndKafkaIntent(state.topic_id, file, transactions), state)
        except Conflict:
            # Some transactions have ended, or a vacuum has increased the retention floor. Retry with the remaining
            # transactions.
            if log.existing().topic_state.topic_id != state.topic_id:
                raise
            continue
        return () if outcome.nothing is not None else transactions
    raise Conflict(f"other processes keep changing the open transactions of topic '{log.topic}'; retry later")


@dataclass(frozen=True, slots=True)
class EndKafkaIntent:
    """Append the markers of these transactions atomically.

    Raises `Conflict` if some of the transactions have already ended.
    """

    topic_id: str
    file: FileSlices
    ended: tuple[KafkaOpen, ...]
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        remaining = [transaction for transaction in self.ended if transaction in state.kafka_open]
        if not remaining:
            return Nothing("all transactions have already ended", state.version)
        if len(remaining) < len(self.ended):
            raise Conflict(
                f"another process ended some open transactions of topic '{topic}'; list the transactions again"
            )
        check_floor(topic, (self.file,), state.floor)
        files = assign_offsets(topic, (self.file,), state)
        return Draft(APPEND, files=files, kafka_ended=tuple(transaction.ended for transaction in self.ended))


def _write_markers(log: CommitLog, state: TopicState, transactions: Sequence[KafkaOpen], commit: bool) -> FileSlices:
    now_ms = log.env.wall_ms()
    output = AppendOutput(log.store, log.topic, append_path(max(state.version, 0), log.env.new_id()))
    try:
        for partition in sorted({transaction.partition for transaction in transactions}):
            ending = [transaction for transaction in transactions if transaction.partition == partition]
            committed = [
                commit if transaction.decided is None else transaction.decided == COMMIT for transaction in ending
            ]
            data = b"".join(
                end_txn_marker(
                    commit=committed[i],
                    offset=i,
                    timestamp=now_ms,
                    producer_id=transaction.producer,
                    producer_epoch=min(transaction.epoch + 1, MAX_EPOCH),
                    coordinator_epoch=0,
                )
                for i, transaction in enumerate(ending)
            )
            # The offsets of the markers are relative to the start of the slice.
            rows = np.flatnonzero(~np.array(committed, np.bool_))
            aborted = AbortedTransactions(
                np.array([ending[row].producer for row in rows], np.int64),
                np.array([ending[row].first for row in rows], np.int64),
                rows.astype(np.int64),
                np.full(len(rows), -1, np.int64),
            )
            flags = SliceFlag.KAFKA_PRODUCERS | (SliceFlag.KAFKA_ABORTED if len(aborted) else SliceFlag.NONE)
            output.write(data)
            output.end_slice(
                WrittenSlice(
                    partition=partition,
                    nbytes=len(data),
                    offsets=len(ending),
                    records=0,
                    min_ts=now_ms,
                    max_ts=now_ms,
                    crc=crc32c(data),
                    flags=int(flags),
                    aborted=aborted,
                )
            )
        return output.close()
    except BaseException:
        output.discard()
        raise
