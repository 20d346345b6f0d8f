"""Appends of produced batches: between two commits of a topic is a linger, and the next has all that arrived meanwhile.

One commit of a topic is under way at a time. After a quiet time the first batch does not wait. After a commit of busy
producers the next waits until as many batches are there as producers had sent: each answer brings another one, and a
commit costs as much for one batch as for five. It waits for a linger at most, or as long as the last commit took, but
not for a store that fails or is slow. What is in sockets yet is not seen, so the number that is expected falls by a
quarter a commit at most.

A batch of an idempotent producer is judged by the state that its commit is based on (`batch_checks`); where that
was not the newest, all are judged again. A failure of unknown outcome is answered so that the client tries again: then
the commits tell.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparklog.errors import Conflict, SparklogError, Unavailable
from sparklog.format.append_file import INDEX_MIN_BYTES, WrittenSlice, build_index
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import LOG_APPEND_TIME_BIT, NO_PRODUCER_ID, NO_TIMESTAMP
from sparklog.log.journal.names import append_path
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import KafkaWriterKey, SequenceConflict, WriterEntry
from sparklog.log.topic.engine import TopicLog
from sparklog.log.write.append_output import tail_bytes, unwritten, write_file
from sparklog.log.write.append_target import AppendTarget
from sparklog.serve.batch_checks import ProducedBatch, checked_batch, last_number, next_number, writer_id
from sparklog.serve.codes import Code, CodeError, ProduceAnswer, code_of
from sparklog.serve.served_log import Runner, ServedLog

LINGER_SECONDS, BUCKET_LINGER_SECONDS = 0.005, 0.05
LONGEST_WAIT_SECONDS = 0.5
"""For busy producers, however long the last commit took: after a failing store they may be gone."""
COMMIT_BYTES = 64 << 20
"""Of one commit, about: what is over waits for the next."""
TRIES = 8
_LOG = logging.getLogger("sparklog.serve")


@dataclass(slots=True, eq=False)
class _Item:
    """A batch as it arrived, and its answer: `result` before it is given."""

    partition: int
    records: memoryview | None
    version: int
    answer: asyncio.Future[ProduceAnswer]
    result: ProduceAnswer | None = None

    @property
    def size(self) -> int:
        return len(self.records or b"")


@dataclass(slots=True)
class _Topic:
    """Batches that wait, what commits them, and when the next commit begins (loop time).

    From `earliest` on if `expected` batches wait, else at `latest`.
    """

    waiting: list[_Item] = field(default_factory=list)
    worker: asyncio.Task[None] | None = None
    earliest: float = -math.inf
    latest: float = -math.inf
    expected: int = 1
    full: asyncio.Future[None] | None = None


class Appends:
    """Takes batches for the topics of a root."""

    def __init__(self, log: ServedLog, run: Runner, linger_seconds: float | None = None) -> None:
        self._log = log
        self._run = run
        assert log.root is not None
        self._root = log.root
        default = LINGER_SECONDS if log.root.store.parallel_reads == 1 else BUCKET_LINGER_SECONDS
        self._linger = default if linger_seconds is None else linger_seconds
        self._topics: dict[str, _Topic] = {}

    def add(
        self, topic: str, partition: int, records: memoryview | None, version: int
    ) -> asyncio.Future[ProduceAnswer]:
        """Take a batch; the future is done once it is durable, or refused."""
        loop = asyncio.get_running_loop()
        item = _Item(partition, records, version, loop.create_future())
        queue = self._topics.get(topic) or self._topics.setdefault(topic, _Topic())
        queue.waiting.append(item)
        if queue.full is not None and not queue.full.done() and len(queue.waiting) >= queue.expected:
            queue.full.set_result(None)
        if queue.worker is None or queue.worker.done():
            queue.worker = loop.create_task(self._work(topic, queue))
        return item.answer

    async def _work(self, topic: str, queue: _Topic) -> None:
        loop = asyncio.get_running_loop()
        while queue.waiting:
            await self._linger_on(queue)
            begun = loop.time()
            items, nbytes = list[_Item](), 0
            while queue.waiting and (not items or nbytes + queue.waiting[0].size <= COMMIT_BYTES):
                nbytes += queue.waiting[0].size
                items.append(queue.waiting.pop(0))
            try:
                await self._run(self._append, topic, items)
            except SparklogError as error:
                for item in items:
                    item.result = item.result or ProduceAnswer(code_of(error), message=str(error))
            except Exception:  # noqa: BLE001 - each batch is answered: a client waits for it, and memory is taken
                _LOG.exception("an error of this server in an append to topic '%s'", topic)
            queue.earliest = begun + self._linger
            queue.latest = loop.time() + max(self._linger, min(loop.time() - begun, LONGEST_WAIT_SECONDS))
            queue.expected = max(len(items) + len(queue.waiting), queue.expected * 3 // 4)
            self._log.poke()
            for item in items:
                if not item.answer.done():
                    item.answer.set_result(item.result or ProduceAnswer(Code.UNKNOWN_SERVER_ERROR))

    async def _linger_on(self, queue: _Topic) -> None:
        loop = asyncio.get_running_loop()
        if queue.earliest > loop.time():
            await asyncio.sleep(queue.earliest - loop.time())
        if len(queue.waiting) < queue.expected and queue.latest > loop.time():
            queue.full = loop.create_future()
            # Unlike `wait_for` it makes no task.
            await asyncio.wait([queue.full], timeout=queue.latest - loop.time())
            queue.full = None

    # -- in a thread

    def _append(self, topic: str, items: Sequence[_Item]) -> None:
        """Check batches and commit those that can be; each gets its result."""
        log, batches = self._root.engine.log(topic), dict[_Item, ProducedBatch]()
        if self._append_all(log, items):
            return
        for _ in range(TRIES):
            target = log.append_target()
            batches = batches or self._checked(items, target)
            taken, keys = self._judged(log, batches)
            if not taken:
                return
            with suppress(SequenceConflict):
                self._commit(log, target, taken, keys)
                if all(item.result is not None for item in items):
                    return
        raise Unavailable(f"producers of topic '{topic}' write by several servers at once: try again")

    def _append_all(self, log: TopicLog, items: Sequence[_Item]) -> bool:
        """Commit all batches by the state that is known here: the newest one as a rule, so no look is made for it.

        False if it is not, or refuses a batch: a newer one may take it.
        """
        recent = log.known()
        if recent is None or not recent.head.exists:
            return False
        target = log.append_target(refresh=False)
        taken, keys = self._judged(log, self._checked(items, target))
        if len(taken) == len(items):
            with suppress(Conflict):
                self._commit(log, target, taken, keys, unless_changed=True)
                return True
        for item in items:
            item.result = None
        return False

    def _checked(self, items: Sequence[_Item], target: AppendTarget) -> dict[_Item, ProducedBatch]:
        """Return the batches that are right; the others get their result."""
        batches, now_ms = dict[_Item, ProducedBatch](), self._root.env.wall_ms()
        for item in items:
            if not 0 <= item.partition < target.partitions:
                item.result = ProduceAnswer(Code.UNKNOWN_TOPIC_OR_PARTITION)
            elif item.result is None:
                try:
                    batches[item] = checked_batch(item.records, item.version, target.configs, now_ms)
                except CodeError as problem:
                    rows: Any = problem.fields.get("recordErrors", ())
                    item.result = ProduceAnswer(problem.code, message=str(problem), record_errors=rows)
        return batches

    def _judged(
        self, log: TopicLog, batches: Mapping[_Item, ProducedBatch]
    ) -> tuple[list[tuple[_Item, ProducedBatch]], tuple[KafkaWriterKey, ...]]:
        """Return the batches that can be committed now, and what the commit says of their producers."""
        registry, keys = log.head(refresh=False).registry, dict[str, KafkaWriterKey]()
        rest = [(item, batch) for item, batch in batches.items() if item.result is None]
        taken = [(item, batch) for item, batch in rest if self._is_next(log, item, batch, registry, keys)]
        return taken, tuple(keys.values())

    def _is_next(
        self,
        log: TopicLog,
        item: _Item,
        batch: ProducedBatch,
        registry: Mapping[str, WriterEntry],
        keys: dict[str, KafkaWriterKey],
    ) -> bool:
        """Judge a batch after those before it in the same commit; `keys`: of their producers, by writer."""
        if batch.producer_id == NO_PRODUCER_ID:
            return True
        id_ = writer_id(batch.producer_id, item.partition)
        before = keys.get(id_)
        follows = last_number(registry, id_) if before is None else before.follows
        try:
            number = next_number(follows if before is None else before.batch, batch)
        except CodeError as error:
            if error.code is not Code.DUPLICATE_SEQUENCE_NUMBER:
                item.result = ProduceAnswer(error.code)
            elif before is None:
                item.result = _repeated(log, item, batch, registry[id_])
            # Otherwise it is a retry of a batch in this same commit, and is checked again after the commit attempt.
            return False
        keys[id_] = KafkaWriterKey(id_, number, follows, batch.count + (before.count if before else 0))
        return True

    def _commit(
        self,
        log: TopicLog,
        target: AppendTarget,
        taken: Sequence[tuple[_Item, ProducedBatch]],
        keys: tuple[KafkaWriterKey, ...],
        *,
        unless_changed: bool = False,
    ) -> None:
        by_partition: dict[int, list[ProducedBatch]] = {}
        for item, batch in taken:
            batches = by_partition.setdefault(item.partition, [])
            batch.offset = batches[-1].offset + batches[-1].count if batches else 0
            batch.data[:8] = batch.offset.to_bytes(8, "big")
            batches.append(batch)
        files = [_file(log, target, by_partition)]
        outcome = log.commit_append(files, target, kafka_writers=keys, unless_changed=unless_changed)
        starts = log.head(refresh=False).log_start
        time_ms = outcome.time_ms if target.configs.log_append_time else -1
        for item, batch in taken:
            base = outcome.base[item.partition] + batch.offset
            item.result = ProduceAnswer(Code.NONE, base, time_ms, int(starts[item.partition]))


def _repeated(log: TopicLog, item: _Item, batch: ProducedBatch, entry: WriterEntry) -> ProduceAnswer:
    """Return the answer to a retry of a committed batch: its offset, if it can still be found in the log."""
    from sparklog.serve.repeated_batches import find_repeated

    stored = find_repeated(log, item.partition, batch, entry)
    if stored is None:
        return ProduceAnswer(Code.DUPLICATE_SEQUENCE_NUMBER)
    time_ms = stored.max_timestamp if stored.attributes & LOG_APPEND_TIME_BIT else -1
    log_start = int(log.head(refresh=False).log_start[item.partition])
    return ProduceAnswer(Code.NONE, stored.base_offset, time_ms, log_start)


def _file(log: TopicLog, target: AppendTarget, by_partition: dict[int, list[ProducedBatch]]) -> FileSlices:
    """Return the batches as a file of a slice for each partition: written, or not where it is to go into the commit."""
    ordered = sorted(by_partition.items())
    slices = [_slice(partition, batches) for partition, batches in ordered]
    if min([one.max_ts for one in slices]) < 0 and not target.configs.log_append_time:
        # Without timestamps, retention counts from the append, as a broker uses the segment's modification time.
        now_ms = log.env.wall_ms()
        slices = [replace(one, max_ts=now_ms) if one.max_ts < 0 else one for one in slices]
    parts = [batch.data for _, batches in ordered for batch in batches]
    small = all(one.index is None for one in slices)
    if small and tail_bytes(len(slices), sum(one.nbytes for one in slices)) <= target.inline_bytes:
        return unwritten(slices, b"".join(parts))
    return write_file(target.store, target.topic, append_path(target.read_version, log.env.new_id()), slices, parts)


def _slice(partition: int, batches: Sequence[ProducedBatch]) -> WrittenSlice:
    crc, flags, index, nbytes = 0, 0, None, sum([len(batch.data) for batch in batches])
    for batch in batches:
        crc, flags = crc32c(batch.data, crc), flags | batch.flags
    if nbytes > INDEX_MIN_BYTES:
        columns = np.array([(len(batch.data), batch.offset, batch.max_ts) for batch in batches], np.int64).T
        index = build_index(np.cumsum(columns[0]) - columns[0], columns[1], columns[2], nbytes)
    records = batches[-1].offset + batches[-1].count
    return WrittenSlice(
        partition=partition,
        nbytes=nbytes,
        offsets=records,
        records=records,
        min_ts=min([batch.min_ts for batch in batches if batch.min_ts >= 0], default=NO_TIMESTAMP),
        max_ts=max([batch.max_ts for batch in batches]),
        crc=crc,
        flags=flags,
        index=index,
    )
