"""The thread that commits accumulated records. Each batch is written in one commit of its topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparklog.clients.producer.accumulator import Accumulator, Batch
from sparklog.clients.producer.batch_rows import PartitionedRows, Records, no_positions, rejected_rows, rows_of
from sparklog.clients.producer.futures import RecordPositions
from sparklog.clients.producer.options import ProducerOptions
from sparklog.clients.producer.sequences import TopicSequences
from sparklog.errors import BadRequest, SparklogError, Unavailable
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.appending import write_rows
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import Root
from sparklog.log.write.append_target import AppendTarget, WriteOptions
from sparklog.storage.parallel_reads import map_requests


@dataclass(frozen=True, slots=True)
class WrittenRecords:
    """The files of accepted records, which are not referenced by a commit yet."""

    rows: PartitionedRows
    files: Sequence[FileSlices]
    target: AppendTarget


class Sender:
    """Commits batches in a thread, which calls `run`. If the producer uses transactions, `commit` is replaced."""

    def __init__(self, root: Root, accumulator: Accumulator, options: ProducerOptions) -> None:
        self._root = root
        self._accumulator = accumulator
        self.write_options = WriteOptions(codec=options["compression_type"])
        self._producer_id = options["producer_id"]
        self._sequences: dict[str, TopicSequences] = {}
        self._seed = root.env.random.getrandbits(31)
        self.commit: Callable[[Batch], None] = self._commit

    def run(self) -> None:
        """Commit batches until the accumulator is closed and empty."""
        try:
            while batches := self._accumulator.drain():
                # If requests require a round trip, commit the batches of different topics in parallel. Each topic has
                # at most one commit in flight.
                for _ in map_requests(self._root.store, self._finish, batches):
                    pass
        except BaseException as error:
            self._accumulator.fail_all(
                Unavailable(
                    f"the sender thread of this producer failed ({type(error).__name__}: {error}), so it is unknown "
                    "whether its last records were published: check the topic before you send the records again with "
                    "another producer"
                )
            )
            raise

    def _finish(self, batch: Batch) -> None:
        try:
            # If each call of `send` was interrupted, the batch is empty.
            if batch.rows:
                self.commit(batch)
        except SparklogError as error:
            batch.result.fail(error)
        self._accumulator.release([batch])

    def sequences(self, topic: str) -> TopicSequences:
        """Return the sequences of a topic if the producer has a `producer_id`."""
        if topic not in self._sequences:
            self._sequences.setdefault(topic, TopicSequences(self._root.engine.log(topic), self._producer_id or ""))
        return self._sequences[topic]

    def next_seed(self) -> int:
        """Return the seed of the next batch. It changes with each batch, so that keyless records are written to a
        different partition.
        """
        self._seed += 1
        return self._seed

    def _commit(self, batch: Batch) -> None:
        """Commit a batch, and resolve its futures."""
        log, records = self._root.engine.log(batch.topic), Records.of(batch)
        if self._producer_id is None:
            batch.result.succeed(self._publish(log, batch, records, None))
            return
        sequences = self.sequences(batch.topic)
        with sequences.lock:
            try:
                sequences.start_run()
                rows = sequences.new_rows(records.sequences)
                if not rows:
                    positions = no_positions(batch.rows)
                else:
                    last = records.sequences[rows[-1]] or 0
                    positions = self._publish(log, batch, records.select(rows), sequences.writer_key(last))
                    sequences.last = last
            except SparklogError as error:
                sequences.failed(error)
                raise
        batch.result.succeed(positions)

    def _publish(self, log: TopicLog, batch: Batch, records: Records, key: WriterKey | None) -> RecordPositions:
        """Commit records of a batch. Return the positions of all records of the batch."""
        written = self._write(log, batch, records)
        if written is None:
            return no_positions(batch.rows)
        try:
            outcome = log.commit_append(written.files, written.target, writer=key)
        except Unavailable as error:
            raise _not_published(error, len(written.rows.numbers)) from error
        if outcome.skipped:
            # The batch was committed so long ago that the commit has been deleted.
            return no_positions(batch.rows)
        return written.rows.positions(outcome, dict(outcome.base))

    def _write(self, log: TopicLog, batch: Batch, records: Records) -> WrittenRecords | None:
        """Write records to files. Only rejected records fail. Return None if no record remains."""
        seed, options = self.next_seed(), self.write_options
        while True:
            partitions = log.state(refresh=False).partitions
            try:
                rows = rows_of(records, partitions, seed, options.batch_bytes)
                append = write_rows(log, rows, options)
            except BadRequest:
                target = log.append_target()
                rejected = rejected_rows(records, target, self._root.env, options, seed)
                if not rejected and target.partitions == partitions:
                    raise
                batch.result.reject({records.numbers[row]: error for row, error in rejected.items()})
                records = records.select([row for row in range(len(records)) if row not in rejected])
                if not records:
                    return None
            except Unavailable as error:
                raise _not_published(error, len(records)) from error
            else:
                files, target = append.files, append.target
                if target.partitions == partitions:
                    return WrittenRecords(PartitionedRows.of(rows, target, records, batch.rows), files, target)


def _not_published(error: Unavailable, records: int) -> Unavailable:
    """Return the error for records whose commit failed, or may have failed."""
    if not error.is_unknown:
        message = f"{error}; none of the records in this commit ({records}) was published: send the records again"
        return Unavailable(message, is_denied=error.is_denied)
    return Unavailable(
        f"{error}; it is unknown whether the records in this commit ({records}) were published: check the topic "
        "before you send the records again, or use producer_id= and sequence=, which never publish a record twice",
        is_unknown=True,
    )
