"""A producer: `send` takes records one by one from any thread, a thread of its own commits them.

Kafka's producer, with commits in place of requests: what has accumulated of a topic for the linger is one commit of it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparklog.arguments import NAME, SECONDS, checked
from sparklog.clients.producer.accumulator import Accumulator
from sparklog.clients.producer.futures import RecordFuture
from sparklog.clients.producer.options import ProducerOptions, producer_options
from sparklog.clients.producer.sender import Sender
from sparklog.clients.producer.sequences import checked_sequence
from sparklog.clients.producer.serializers import serializer
from sparklog.clients.producer.transactions import ProducerTransactions
from sparklog.common.settings import as_whole
from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable, shortened
from sparklog.groups.group_journal import Offsets
from sparklog.groups.group_state import GroupMetadata
from sparklog.groups.membership import Membership
from sparklog.log.journal.documents import INT32_MAX, INT64_MAX
from sparklog.log.journal.names import check_id
from sparklog.log.topic.root import ROOT, Root, open_root
from sparklog.log.write.python_rows import as_bytes, as_headers
from sparklog.storage.store import Store
from sparklog.transactions.completion import check_not_one_write

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOG = logging.getLogger("sparklog.producer")
EXIT_S = 30.0
"""How long the end of the interpreter waits for records that were sent."""


@checked(ProducerOptions, root=ROOT)
def producer(root: Root | Store | str | os.PathLike[str], **options: Unpack[ProducerOptions]) -> Producer:
    """Open a producer: `send` takes records one by one, and a thread commits them.

    Args:
        root: an open root, or its location.

    Returns:
        A `Producer`, to be closed or used as a context manager.

    Raises:
        NotFound: there is no root.
        BadRequest: an option does not exist, or cannot have this value.

    Example:
        with sparklog.producer("/data/log", linger_ms=5) as producer:
            future = producer.send("orders", key="anna", value="lamp")
            print(future.result().offset)
    """
    opened = root if isinstance(root, Root) else open_root(root)
    return Producer(opened, producer_options(options))


class Producer:
    """A producer: see `producer`. Threads may share it."""

    def __init__(self, root: Root, options: ProducerOptions) -> None:
        self._root = root
        self._wall_ms = root.env.wall_ms
        self._options = options
        self.client_id = options["client_id"]
        self._key = serializer("key_serializer", options["key_serializer"])
        self._value = serializer("value_serializer", options["value_serializer"])
        self._topics: set[str] = set()
        self._accumulator = Accumulator(options, root.env)
        self._append = self._accumulator.append
        self._sender = Sender(root, self._accumulator, options)
        self._transactions: ProducerTransactions | None = None
        if options["producer_id"] is not None:
            check_id(options["producer_id"], "producer id")
        if options["transactional_id"] is not None:
            check_not_one_write(options["transactional_id"])
            self._transactions = ProducerTransactions(
                root, self._accumulator, self._sender, options["transactional_id"], options["transaction_timeout_ms"]
            )
        self._thread = threading.Thread(target=self._sender.run, name=options["client_id"], daemon=True)
        self._thread.start()
        _OPEN.add(self)
        # One that is forgotten sends what it has, then its thread ends.
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
        """Take a record, which the next commit of its topic publishes. Records of a partition stay in order.

        Args:
            topic: its name; the topic must exist.
            value: the input of the value serializer; None with a key is a tombstone.
            key: what the key serializer takes; records of a key are in one partition.
            headers: a mapping, or pairs of a text and bytes.
            partition: its number; None: by the key.
            timestamp: ms since 1970; None: now.
            sequence: with `producer_id`: a whole number from 1 that grows from record to record of the topic. A record
                whose sequence is not higher than the last is dropped, as it was published before.

        Returns:
            A `RecordFuture` of the record's `RecordMetadata`.

        Raises:
            NotFound: there is no such topic.
            BadRequest: the record has neither key, value nor headers, or does not fit, or the producer is closed.
            Unavailable: `buffer_memory` was full for `max_block_ms`.

        Example:
            with sparklog.producer("/data/log") as producer:
                futures = [producer.send("orders", value=f"order {number}") for number in range(3)]
            print([future.result().offset for future in futures])
        """
        if key is not None:
            key = key if self._key is None else self._key(key)
            key = key if type(key) is bytes else as_bytes("key", key)
        if value is not None:
            value = value if self._value is None else self._value(value)
            value = value if type(value) is bytes else as_bytes("value", value)
        nbytes = (0 if value is None else len(value)) + (0 if key is None else len(key))
        if type(topic) is not str or topic not in self._topics:
            self._check_topic(topic)
        if headers is not None:
            headers = as_headers(headers)
            nbytes += sum(len(name) + len(cell or b"") for name, cell in headers)
        if timestamp is None:
            timestamp = self._wall_ms()
        elif type(timestamp) is not int or not 0 <= timestamp <= INT64_MAX:
            timestamp = _whole("timestamp", "milliseconds since 1970", timestamp, INT64_MAX)
        if self._options["partitioner"] is not None and partition is None:
            partition = self._choose(topic, key)
        if partition is not None:
            partition = self._checked_partition(topic, partition)
        if sequence is not None or self._options["producer_id"] is not None:
            sequence = checked_sequence(sequence, self._options["producer_id"])
        if self._transactions is not None and not self._transactions.takes_records:
            raise BadRequest("no transaction takes records: begin_transaction first")
        if value is None and key is None and headers is None:
            raise BadRequest("a record needs a key or a value: for a tombstone, give the key")
        return self._append(topic, (key, value, headers, timestamp, partition, sequence), nbytes)

    def _check_topic(self, topic: str) -> None:
        NAME.check("topic", topic)
        self._root.topic(topic)
        self._topics.add(topic)

    def _count(self, topic: str, least: int = 0) -> int:
        """Return the number of partitions; looked up where fewer than `least` are known."""
        log = self._root.engine.log(topic)
        count = log.state(refresh=False).partitions
        return count if count >= least else log.state().partitions

    def _checked_partition(self, topic: str, partition: object) -> int:
        number = _whole("partition", f"a whole number from 0 to {INT32_MAX}", partition, INT32_MAX)
        count = self._count(topic, number + 1)
        if number >= count:
            raise BadRequest(f"topic '{topic}' has partitions 0 to {count - 1}, found partition {number}")
        return number

    def _choose(self, topic: str, key: bytes | None) -> int:
        partitions = list(range(self._count(topic)))
        choose: Callable[..., Any] = self._options["partitioner"]  # type: ignore[assignment]
        return int(choose(key, partitions, partitions))

    @checked(topic=NAME)
    def partitions_for(self, topic: str) -> set[int]:
        """List the partitions of a topic.

        Args:
            topic: its name.

        Returns:
            Their numbers.

        Raises:
            NotFound: there is no such topic.
        """
        self._root.topic(topic)
        return set(range(self._count(topic)))

    @checked(topic=NAME)
    def last_sequence(self, topic: str) -> int:
        """Wait for what was sent, and return the last sequence that is published: a program goes on after it.

        After a commit that failed it must be asked before records are published again. No commit that was on its way,
        of this producer or of an older one with the same `producer_id`, is published after it.

        Args:
            topic: its name.

        Returns:
            The sequence; 0 if there is none.

        Raises:
            BadRequest: the producer has no `producer_id`.
            Fenced: a newer producer of this id took over.
        """
        if self._options["producer_id"] is None:
            raise BadRequest("this producer has no producer_id, so its records have no sequences")
        self._check_topic(topic)
        self.flush()
        sequences = self._sender.sequences(topic)
        with sequences.lock:
            return sequences.ask()

    # -- transactions

    def begin_transaction(self) -> None:
        """Begin a transaction; an older producer of the `transactional_id` is fenced.

        Raises:
            BadRequest: the producer has no `transactional_id`, or a transaction is open.
            Fenced: a newer producer of the id took over.
        """
        self._transactional().begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group: str | GroupMetadata | Membership) -> None:
        """Commit offsets of a consumer group with the transaction.

        Args:
            offsets: topic to partition to the next offset to read, as `Consumer.positions` returns.
            group: what `Consumer.group_metadata` returns, which fences members that were superseded; or its name.

        Raises:
            BadRequest: no transaction is open, or a partition or an offset cannot be.
            NotFound: a topic does not exist.
        """
        self._transactional().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Publish all records of the transaction at once; their futures are done then.

        Raises:
            SparklogError: it is not published, or that is unknown, as for `Transaction.commit`; or a record of it
                failed. Call `abort_transaction`, then begin again.
        """
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Abort: no reader under read_committed sees the records, whose futures fail with `Conflict`.

        Raises:
            BadRequest: no transaction is open.
            Conflict: it is committed, after a commit whose outcome was unknown.
        """
        self._transactional().abort()

    def _transactional(self) -> ProducerTransactions:
        if self._transactions is None:
            raise BadRequest("this producer has no transactional_id: sparklog.producer(root, transactional_id=...)")
        return self._transactions

    # -- the end

    @checked(timeout=SECONDS.or_none())
    def flush(self, timeout: float | None = None) -> None:
        """Commit what was sent now, and wait until all of it is done; futures tell what failed.

        Args:
            timeout: seconds; None: as long as it takes.

        Raises:
            Unavailable: it takes longer; the commits go on.
        """
        self._refuse_in_callback("flush")
        if not self._accumulator.flush(timeout):
            raise Unavailable(f"records are not committed within {timeout} s: commits go on, flush again")

    @checked(timeout=SECONDS.or_none())
    def close(self, timeout: float | None = None) -> None:
        """Commit what was sent, abort an open transaction, and end. Repeated calls do nothing.

        Args:
            timeout: seconds; None: as long as it takes. After it, records that are not done fail.

        Raises:
            BadRequest: from a callback, which runs in the thread that would be waited for.
        """
        self._refuse_in_callback("close")
        _OPEN.discard(self)
        if self._transactions is not None and self._transactions.is_open and self._thread.is_alive():
            try:
                self._transactions.abort()
            except (SparklogError, NotFound) as error:
                _LOG.warning("%r closes with an open transaction: %s", self, error)
        self._accumulator.close()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._accumulator.give_up(
                Unavailable(
                    f"this producer was closed with a timeout of {timeout} s, so whether this record is published is "
                    "unknown: look before you send it again"
                )
            )

    def _refuse_in_callback(self, call: str) -> None:
        if threading.current_thread() is self._thread:
            raise BadRequest(f"{call} in a callback would wait for itself: call it in another thread")


def _whole(name: str, valid: str, value: object, high: int) -> int:
    """Return a whole number from 0, also one of numpy. `BadRequest` for anything else."""
    number = as_whole(value)
    if number is None or not 0 <= number <= high:
        raise BadRequest(f"{name} must be {valid}, found {shortened(value)}")
    return number


_OPEN: weakref.WeakSet[Producer] = weakref.WeakSet()


def _close_all() -> None:
    """Close the producers that are open, at the end of the interpreter."""
    for open_producer in list(_OPEN):
        try:
            open_producer.close(EXIT_S)
        except SparklogError as error:
            _LOG.warning("%r: %s", open_producer, error)


def _after_fork() -> None:
    for open_producer in list(_OPEN):
        open_producer._accumulator.forked()
    _OPEN.clear()


# Earlier than the end of thread pools, where Python has that: buckets are written with one.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
