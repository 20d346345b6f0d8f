"""Ending Kafka's transactions that an import found open: their markers are appended, as Kafka's coordinator would have.

The markers are Kafka's own, so scans, sealing, compaction and Kafka's tools need to know nothing new. An ABORT carries
the epoch after the transaction's, as when Kafka's coordinator aborts one that has timed out. What that coordinator had
decided stays decided: a transaction whose COMMIT had not reached this partition yet gets it.

An append to an imported topic ends them first (`end_before_append`), by ABORT: from then on Kafka's log and this one
differ, no broker can end them any more, and the new records would stay after them, unseen, for good.
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
TRIES = 10
_LOG = logging.getLogger("sparklog.log")


def end_before_append(log: CommitLog) -> None:
    """End all open transactions of Kafka's, of which the state known here has some, and warn of each."""
    for transaction in end_kafka_transactions(log):
        how = "committed" if transaction.decided == COMMIT else "aborted"
        _LOG.warning("topic %s is appended to now: %s %s", log.topic, how, transaction)


def end_kafka_transactions(
    log: CommitLog, *, producers: Collection[int] | None = None, commit: bool = False
) -> tuple[KafkaOpen, ...]:
    """End open transactions of producers (None: all) in one commit, as decided or by `commit`; return them."""
    for _ in range(TRIES):
        state = log.existing().topic_state
        chosen = tuple(
            transaction for transaction in state.kafka_open if producers is None or transaction.producer in producers
        )
        if not chosen:
            return ()
        file = _write_markers(log, state, chosen, commit)
        try:
            outcome = log.commit(EndKafkaIntent(state.topic_id, file, chosen), state)
        except Conflict:
            # Some were ended, or the vacuum passed: what is left is seen again.
            if log.existing().topic_state.topic_id != state.topic_id:
                raise
            continue
        return () if outcome.nothing is not None else chosen
    raise Conflict(f"the open transactions of topic '{log.topic}' change all the time: try again")


@dataclass(frozen=True, slots=True)
class EndKafkaIntent:
    """Append the markers of these transactions, all of them or none: `Conflict` if some were ended meanwhile."""

    topic_id: str
    file: FileSlices
    ended: tuple[KafkaOpen, ...]
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        left = [transaction for transaction in self.ended if transaction in state.kafka_open]
        if not left:
            return Nothing("the transactions have ended", state.version)
        if len(left) < len(self.ended):
            raise Conflict(f"some open transactions of topic '{topic}' were ended by another process: look again")
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
            # All markers are at offsets from 0 in the slice.
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
