"""A producer. Any thread can send single records, and a background thread commits them.

The producer works like Kafka's producer, but writes commits instead of sending produce requests. The records that are
sent to a topic during the linger time are written in one commit.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sparklog.arguments import NAME, SECONDS, checked
from sparklog.clients.producer.accumulator import RECORD_BYTES, Accumulator
from sparklog.clients.producer.batch_rows import columns_of
from sparklog.clients.producer.futures import RecordFuture, RecordFutures, RowSpan, limited
from sparklog.clients.producer.options import ProducerOptions, producer_options
from sparklog.clients.producer.sender import Sender
from sparklog.clients.producer.sequences import checked_sequence
from sparklog.clients.producer.serializers import serialized_data, serializer
from sparklog.clients.producer.transactions import ProducerTransactions
from sparklog.common.settings import as_integer
from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable, shortened
from sparklog.format.arrow_numpy import fixed_array, fixed_values, valid_rows
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_state import GroupMetadata
from sparklog.groups.membership import Membership
from sparklog.log.journal.documents import INT32_MAX, INT64_MAX
from sparklog.log.journal.names import check_id
from sparklog.log.topic.root import ROOT, Root, open_root
from sparklog.log.write.arrow_data import ArrowData, batches
from sparklog.log.write.python_rows import as_bytes, as_headers
from sparklog.log.write.rows import checked_chunks, halved
from sparklog.storage.exit_hooks import call_before_pools_stop
from sparklog.storage.store import Store
from sparklog.transactions.completion import check_not_one_write

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOG = logging.getLogger("sparklog.producer")
EXIT_S = 30.0
"""The maximum time to wait for sent records at interpreter exit."""


@checked(ProducerOptions, root=ROOT)
def producer(root: Root | Store | str | os.PathLike[str], **options: Unpack[ProducerOptions]) -> Producer:
    """Open a producer, which accepts single records and commits them in a background thread.

    Args:
        root: An open root, or its location.

    Returns:
        A `Producer`. Close it, or use it as a context manager.

    Raises:
        NotFound: If the root does not exist.
        BadRequest: If an option does not exist, or if its value is not valid.

    Example:
        with sparklog.producer("/data/log", linger_ms=5) as producer:
            future = producer.send("orders", key="anna", value="lamp")
            print(future.result().offset)
    """
    opened = root if isinstance(root, Root) else open_root(root)
    return Producer(opened, producer_options(options))


class Producer:
    """A producer, as returned by `sparklog.producer`. A producer can be shared by threads."""

    def __init__(self, root: Root, options: ProducerOptions) -> None:
        self._root = root
        self._wall_ns = root.env.wall_ns
        self._partitioner = options["partitioner"]
        self._producer_id = options["producer_id"]
        self.client_id = options["client_id"]
        self._key = serializer("key_serializer", options["key_serializer"])
        self._value = serializer("value_serializer", options["value_serializer"])
        self._serializers = {
            name: serialize for name, serialize in (("key", self._key), ("value", self._value)) if serialize is not None
        }
        names = ("key_serializer", "value_serializer", "partitioner", "producer_id", "transactional_id")
        self._accepts_bytes = all(options[name] is None for name in names)  # type: ignore[literal-required]
        """Whether a key and a value of bytes are a valid record without further checks."""
        # Half of the memory, so that rows can accumulate during a commit.
        self._chunk_bytes = max(1, min(options["batch_size"], options["buffer_memory"] // 2))
        self._topics: set[str] = set()
        self._accumulator = Accumulator(options, root.env)
        self._append = self._accumulator.append
        self._sender = Sender(root, self._accumulator, options)
        self._transactions: ProducerTransactions | None = None
        if self._producer_id is not None:
            check_id(self._producer_id, "producer id")
        if options["transactional_id"] is not None:
            check_not_one_write(options["transactional_id"])
            self._transactions = ProducerTransactions(
                root, self._accumulator, self._sender, options["transactional_id"], options["transaction_timeout_ms"]
            )
        self._thread = threading.Thread(target=self._sender.run, name=options["client_id"], daemon=True)
        self._thread.start()
        _OPEN.add(self)
        # If a producer is garbage-collected, its thread sends the remaining records and ends.
        weakref.finalize(self, self._accumulator.close).atexit = False

    def __repr__(self) -> str:
        return f"Producer({self.client_id!r}, {self._root.location!r})"

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    # -- records

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        *,
        sequence: int | None = None,
    ) -> RecordFuture:
        """Send a record. The record is published by the next commit of its topic. The records of a partition are
        published in order.

        Args:
            topic: The name of an existing topic.
            value: The input of the value serializer. None is a tombstone if the record has a key.
            key: The input of the key serializer. Records with the same key are written to the same partition.
            headers: A mapping, or pairs of a name and a value in bytes.
            partition: The partition number, or None if the key determines the partition.
            timestamp: The timestamp in ms since 1970, or None for the current time.
            sequence: An integer of at least 1 that increases with each record of the topic, if the producer has a
                `producer_id`. A record whose sequence is not higher than the last sequence was published earlier, and
                is dropped.

        Returns:
            A `RecordFuture` of the record's `RecordMetadata`.

        Raises:
            NotFound: If the topic does not exist.
            BadRequest: If the record has no key, value or headers, if the record is not valid, or if the producer is
                closed.
            Unavailable: If `buffer_memory` was full for `max_block_ms`.

        Example:
            with sparklog.producer("/data/log") as producer:
                futures = [producer.send("orders", value=f"order {number}") for number in range(3)]
            print([future.result().offset for future in futures])
        """
        if (
            (type(value) is bytes and type(topic) is str and (key is None or type(key) is bytes))
            and (headers is None and partition is None and timestamp is None and sequence is None)
            and self._accepts_bytes
        ):
            # The steps of `Accumulator.append` without further calls, because each call takes a tenth of the time.
            accumulator, memory = self._accumulator, len(value) + RECORD_BYTES
            if key is not None:
                memory += len(key)
            with accumulator.lock:
                batch = accumulator.batches.get(topic)
                if batch is not None and batch.room >= memory:
                    row, cells = batch.rows, batch.cells
                    try:
                        if key is not None:
                            cells.key_rows.append(len(cells.values))
                            cells.keys.append(key)
                        cells.values.append(value)
                        cells.times_ns.append(self._wall_ns())
                    except BaseException:
                        batch.drop_incomplete_record()
                        raise
                    batch.rows = row + 1
                    batch.room -= memory
                    return RecordFuture(batch.result, row)
        return self._send(topic, value, key, headers, partition, timestamp, sequence)

    def _send(
        self, topic: str, value: Any, key: Any, headers: Any, partition: Any, timestamp: Any, sequence: Any
    ) -> RecordFuture:
        key, value, headers, nbytes = self._serialized(key, value, headers)
        if type(topic) is not str or topic not in self._topics:
            self._check_topic(topic)
        if timestamp is not None and (type(timestamp) is not int or not 0 <= timestamp <= INT64_MAX):
            timestamp = _checked_integer("timestamp", "milliseconds since 1970", timestamp, INT64_MAX)
        if partition is not None or self._partitioner is not None:
            partition = self._partition(topic, key, partition)
        if sequence is not None or self._producer_id is not None:
            sequence = checked_sequence(sequence, self._producer_id)
        if self._transactions is not None:
            self._check_transaction()
        if value is None and key is None and headers is None:
            raise BadRequest("a record requires a key or a value: set a key to write a tombstone")
        has_details = not (headers is None and timestamp is None and partition is None and sequence is None)
        details = (headers, timestamp, partition, sequence) if has_details else None
        return self._append(topic, key, value, nbytes, self._wall_ns(), details)

    @checked(topic=NAME)
    def send_many(self, topic: str, data: ArrowData) -> RecordFutures:
        """Send the rows of a table or of lists, which is faster than a call of `send` for each record.

        The records are published in order, by one or more of the next commits of the topic.

        Args:
            topic: The name of an existing topic.
            data: The rows, as for `Topic.append`: Arrow data, a dictionary of columns, or an iterable of dictionaries,
                one per row. The columns are `value`, `key`, `headers`, `timestamp` and `partition`. Serializers are
                applied to the keys and values of dictionaries. Arrow data is accepted only without serializers.

        Returns:
            A sequence of the `RecordFuture` of each row. The futures are created when they are accessed.

        Raises:
            NotFound: If the topic does not exist.
            BadRequest: If a row is not valid, if the producer is closed, or if it has a `producer_id`. No row of
                invalid data is accepted.
            Unavailable: If `buffer_memory` was full for `max_block_ms`. The message contains the number of accepted
                rows.

        Example:
            with sparklog.producer("/data/log") as producer:
                futures = producer.send_many("orders", {"key": ["anna", "ben"], "value": ["lamp", "desk"]})
            print([future.result().partition for future in futures])
        """
        if topic not in self._topics:
            self._check_topic(topic)
        if self._producer_id is not None:
            raise BadRequest("a producer with a producer_id requires a sequence for each record: call send")
        self._check_transaction()
        # Convert all rows before the first row is accepted.
        chunks = [
            part
            for batch in batches(serialized_data(data, self._serializers))
            for chunk in checked_chunks(batch, self._chunk_bytes)
            # Small rows become several times as large, because columns such as the timestamp are added.
            for part in halved(self._columns(topic, chunk), self._chunk_bytes)
        ]
        for chunk in chunks:
            self._accumulator.check_fits(chunk.nbytes, chunk.nbytes)
        spans: list[RowSpan] = []
        for chunk in chunks:
            try:
                spans.append(self._accumulator.append_columns(topic, chunk))
            except Unavailable as error:
                rows = sum(chunk.num_rows for chunk in chunks)
                accepted = sum(span.rows for span in spans)
                raise Unavailable(f"only the first {accepted} of {rows} rows were accepted: {error}") from None
        return RecordFutures(spans)

    def _columns(self, topic: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of rows to accumulate, with valid partitions."""
        columns = columns_of(rows, self._wall_ns() // 1_000_000)
        *others, partition = columns.columns
        if self._partitioner is not None:
            cells = zip(columns.column("key").to_pylist(), partition.to_pylist(), strict=True)
            chosen = np.array([self._partition(topic, key, given) for key, given in cells], np.int32)
            return pa.RecordBatch.from_arrays([*others, fixed_array(chosen, pa.int32())], schema=columns.schema)
        if partition.null_count < len(partition):
            highest = int(fixed_values(partition, np.int32)[valid_rows(partition)].max())
            self._check_partition(topic, highest)
        return columns

    def _check_transaction(self) -> None:
        if self._transactions is not None and not self._transactions.accepts_records:
            raise BadRequest("no transaction is open: call begin_transaction before you send records")

    def _serialized(self, key: Any, value: Any, headers: Any) -> tuple[bytes | None, bytes | None, Any, int]:
        """Return the key and value as bytes, the headers, and the total size of all three."""
        nbytes = 0
        if key is not None:
            key = key if self._key is None else self._key(key)
            key = key if type(key) is bytes else as_bytes("key", key)
            nbytes = 0 if key is None else len(key)
        if value is not None:
            value = value if self._value is None else self._value(value)
            value = value if type(value) is bytes else as_bytes("value", value)
            nbytes += 0 if value is None else len(value)
        if headers is not None:
            headers = as_headers(headers)
            nbytes += sum(len(name) + len(cell or b"") for name, cell in headers)
        return key, value, headers, nbytes

    def _check_topic(self, topic: str) -> None:
        NAME.check("topic", topic)
        self._root.topic(topic)
        self._topics.add(topic)

    def _partition_count(self, topic: str, minimum: int = 0) -> int:
        """Return the number of partitions. Read the number again if the cached number is less than `minimum`."""
        log = self._root.engine.log(topic)
        count = log.state(refresh=False).partitions
        return count if count >= minimum else log.state().partitions

    def _partition(self, topic: str, key: bytes | None, partition: object) -> int:
        """Validate and return the given partition, or the partition that the partitioner selects."""
        if partition is None and self._partitioner is not None:
            partitions = list(range(self._partition_count(topic)))
            partition = int(self._partitioner(key, partitions, partitions))
        number = _checked_integer("partition", f"an integer from 0 to {INT32_MAX}", partition, INT32_MAX)
        self._check_partition(topic, number)
        return number

    def _check_partition(self, topic: str, number: int) -> None:
        count = self._partition_count(topic, number + 1)
        if number >= count:
            raise BadRequest(f"topic '{topic}' has partitions 0 to {count - 1}, found partition {number}")

    @checked(topic=NAME)
    def partitions_for(self, topic: str) -> set[int]:
        """List the partitions of a topic.

        Args:
            topic: The name of the topic.

        Returns:
            The partition numbers.

        Raises:
            NotFound: If the topic does not exist.
        """
        self._root.topic(topic)
        return set(range(self._partition_count(topic)))

    @checked(topic=NAME)
    def last_sequence(self, topic: str) -> int:
        """Wait for sent records, and return the last published sequence. A program can continue with the next sequence.

        After a failed commit, call this method before you send more records. The method fences commits of this
        producer, or of an older producer with the same `producer_id`, that are still in flight.

        Args:
            topic: The name of the topic.

        Returns:
            The sequence, or 0 if no record was published.

        Raises:
            BadRequest: If the producer has no `producer_id`.
            Fenced: If a newer producer with this id is running.
        """
        if self._producer_id is None:
            raise BadRequest("this producer has no producer_id, so its records do not have sequence numbers")
        self._check_topic(topic)
        self.flush()
        sequences = self._sender.sequences(topic)
        with sequences.lock:
            return sequences.read_last()

    # -- transactions

    def begin_transaction(self) -> None:
        """Begin a transaction, and fence older producers with the same `transactional_id`.

        Raises:
            BadRequest: If the producer has no `transactional_id`, or if a transaction is open.
            Fenced: If a newer producer with this id is running.
        """
        self._transactional().begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group: str | GroupMetadata | Membership) -> None:
        """Commit offsets of a consumer group as a part of the transaction.

        Args:
            offsets: The next offset to read by topic and partition, as returned by `Consumer.positions`.
            group: The result of `Consumer.group_metadata`, which fences superseded members, or the name of the group.

        Raises:
            BadRequest: If no transaction is open, or if a partition or offset is not valid.
            NotFound: If a topic does not exist.
        """
        self._transactional().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Publish all records of the transaction atomically, and set the results of their futures.

        Raises:
            SparklogError: If the transaction was not published, or may not have been published (see
                `Transaction.commit`), or if one of its records failed. Call `abort_transaction`, and then begin a new
                transaction.
        """
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Abort the transaction. The futures of its records fail with `Conflict`, and read_committed consumers skip the
        records.

        Raises:
            BadRequest: If no transaction is open.
            Conflict: If the result of an earlier commit was unknown, and the transaction has been committed.
        """
        self._transactional().abort()

    def _transactional(self) -> ProducerTransactions:
        if self._transactions is None:
            raise BadRequest("this producer has no transactional_id: use sparklog.producer(root, transactional_id=...)")
        return self._transactions

    # -- end of life

    @checked(timeout=SECONDS.or_none())
    def flush(self, timeout: float | None = None) -> None:
        """Commit all sent records without lingering, and wait until they are done. Errors are raised by the futures.

        Args:
            timeout: The maximum time to wait in seconds, or None for no limit.

        Raises:
            Unavailable: If the records are not done in time. The commits continue.
        """
        self._reject_in_callback("flush")
        if not self._accumulator.flush(timeout):
            raise Unavailable(f"records were not committed within {timeout} s; the commits continue: call flush again")

    @checked(timeout=SECONDS.or_none())
    def close(self, timeout: float | None = None) -> None:
        """Commit all sent records, abort an open transaction, and stop the thread. Further calls have no effect.

        Args:
            timeout: The maximum time to wait in seconds, or None for no limit. Records that are not done in time fail.

        Raises:
            BadRequest: If the method is called from a callback, because it would wait for the thread in which the
                callback runs.
        """
        self._reject_in_callback("close")
        _OPEN.discard(self)
        if self._transactions is not None and self._transactions.is_open and self._thread.is_alive():
            try:
                self._transactions.abort()
            except (SparklogError, NotFound) as error:
                _LOG.warning("%r closes with an open transaction: %s", self, error)
        self._accumulator.close()
        self._thread.join(limited(timeout))
        if self._thread.is_alive():
            self._accumulator.fail_all(
                Unavailable(
                    f"this producer was closed with a timeout of {timeout} s, so it is unknown whether this record "
                    "was published: check the topic before you send the record again"
                )
            )

    def _reject_in_callback(self, call: str) -> None:
        if threading.current_thread() is self._thread:
            raise BadRequest(f"{call} would wait for itself in a callback: call it from another thread")


def _checked_integer(name: str, valid: str, value: object, high: int) -> int:
    """Convert an integer from 0 to `high`, such as a numpy integer, to an int. Raises `BadRequest` otherwise."""
    number = as_integer(value)
    if number is None or not 0 <= number <= high:
        raise BadRequest(f"{name} must be {valid}, found {shortened(value)}")
    return number


_OPEN: weakref.WeakSet[Producer] = weakref.WeakSet()


def _close_all() -> None:
    """Close open producers when the interpreter exits."""
    for open_producer in list(_OPEN):
        try:
            open_producer.close(EXIT_S)
        except SparklogError as error:
            _LOG.warning("%r: %s", open_producer, error)


def _after_fork() -> None:
    for open_producer in list(_OPEN):
        open_producer._accumulator.fail_after_fork()
    _OPEN.clear()


call_before_pools_stop(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
