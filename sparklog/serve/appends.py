"""Appends of produced batches: between two commits of a topic is a linger, and the next has all that arrived meanwhile.

One commit of a topic is under way at a time. After a quiet time the first batch does not wait. After a commit of busy
producers the next waits until as many batches are there as producers had sent: each answer brings another one, and a
commit costs as much for one batch as for five. It waits for a linger at most, or as long as the last commit took, but
not for a store that fails or is slow. What is in sockets yet is not seen, so the number that is expected falls by a
quarter a commit at most.

A batch of an idempotent producer is judged by the state that its commit is based on (`producer_sequences`); where that
was not the newest, all are judged again. A failure of unknown outcome is answered so that the client tries again: then
the commits tell.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from sparklog.errors import SparklogError, Unavailable
from sparklog.format.append_file import WrittenSlice, build_index
from sparklog.format.crc32c import crc32c
from sparklog.log.journal.names import append_path
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import KafkaWriterKey, SequenceConflict
from sparklog.log.topic.engine import TopicLog
from sparklog.log.write.append_output import AppendOutput
from sparklog.log.write.append_target import AppendTarget
from sparklog.log.write.inline_records import tail_bytes, unwritten
from sparklog.serve.addresses import Runner
from sparklog.serve.batch_checks import ProducedBatch, SentBatch, check_batches
from sparklog.serve.codes import Code, CodeError, ProduceAnswer, code_of
from sparklog.serve.producer_sequences import LANDED, NEXT, OLD_EPOCH, judge, last_number, writer_id
from sparklog.serve.served_log import ServedLog

LINGER_SECONDS, BUCKET_LINGER_SECONDS = 0.005, 0.05
LONGEST_WAIT_SECONDS = 0.5
"""For busy producers, however long the last commit took: after a failing store they may be gone."""
COMMIT_BYTES = 64 << 20
"""Of one commit, about: what is over waits for the next."""
REMEMBERED = 10_000
TRIES = 8
_LOG = logging.getLogger("sparklog.serve")


@dataclass(slots=True, eq=False)
class _Item:
    """A batch as it arrived, and once it is checked."""

    sent: SentBatch
    answer: asyncio.Future[ProduceAnswer]
    batch: ProducedBatch | None = None
    result: ProduceAnswer | None = None

    @property
    def size(self) -> int:
        return len(self.sent.records or b"")


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
    is_full: asyncio.Event = field(default_factory=asyncio.Event)


class Appends:
    """Takes batches for the topics of a root."""

    def __init__(self, log: ServedLog, run: Runner, linger_seconds: float | None = None) -> None:
        self._log = log
        self._run = run
        root = log.root
        assert root is not None
        self._root = root
        local = root.store.parallel_reads == 1
        default = LINGER_SECONDS if local else BUCKET_LINGER_SECONDS
        self._linger = default if linger_seconds is None else linger_seconds
        self._topics: dict[str, _Topic] = {}
        self._bases: OrderedDict[tuple[str, int, int, int, int], int] = OrderedDict()

    def add(
        self, topic: str, partition: int, records: memoryview | None, version: int
    ) -> asyncio.Future[ProduceAnswer]:
        """Take a batch; the future is done once it is durable, or refused."""
        loop = asyncio.get_running_loop()
        item = _Item(SentBatch(partition, records, version), loop.create_future())
        queue = self._topics.setdefault(topic, _Topic())
        queue.waiting.append(item)
        if len(queue.waiting) >= queue.expected:
            queue.is_full.set()
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
        await asyncio.sleep(max(0.0, queue.earliest - loop.time()))
        queue.is_full.clear()
        if len(queue.waiting) < queue.expected and queue.latest > loop.time():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(queue.is_full.wait(), queue.latest - loop.time())

    # -- in a thread

    def _append(self, topic: str, items: Sequence[_Item]) -> None:
        """Check batches and commit those that can be; each gets its result."""
        log = self._root.engine.log(topic)
        for _ in range(TRIES):
            target = log.append_target()
            head = log.head(refresh=False)
            numbers = dict[str, int | None]()
            self._check([item for item in items if item.result is None and item.batch is None], target)
            taken = [
                (item, item.batch)
                for item in items
                if item.result is None and item.batch is not None and self._is_next(topic, item, head.registry, numbers)
            ]
            if not taken:
                return
            keys = tuple(
                KafkaWriterKey(
                    id_, number, _batch_of(head.registry, id_), sum(_count(id_, batch) for _, batch in taken)
                )
                for id_, number in numbers.items()
                if number is not None
            )
            try:
                self._commit(topic, log, target, taken, keys)
            except SequenceConflict:
                continue
            if all(item.result is not None for item in items):
                return
        raise Unavailable(f"producers of topic '{topic}' write by several servers at once: try again")

    def _check(self, items: Sequence[_Item], target: AppendTarget) -> None:
        for item in items:
            if not 0 <= item.sent.partition < target.partitions:
                item.result = ProduceAnswer(Code.UNKNOWN_TOPIC_OR_PARTITION)
        rest = [item for item in items if item.result is None]
        checked = check_batches([item.sent for item in rest], target.configs, self._root.env.wall_ms())
        for item, batch in zip(rest, checked, strict=True):
            if isinstance(batch, CodeError):
                item.result = ProduceAnswer(batch.code, message=str(batch))
            else:
                item.batch = batch

    def _is_next(self, topic: str, item: _Item, registry: object, numbers: dict[str, int | None]) -> bool:
        """Judge a batch after those before it in the same commit; `numbers`: the last ones by writer."""
        batch = item.batch
        assert batch is not None
        if not batch.is_idempotent:
            return True
        header, id_ = batch.header, writer_id(batch.header.producer_id, batch.partition)
        last = numbers.get(id_)
        if last is None:
            last = last_number(registry, header.producer_id, batch.partition)  # type: ignore[arg-type]
        verdict = judge(last, header)
        if verdict.kind == LANDED and id_ in numbers:
            # A retry of what is in this very commit: it is judged once that has landed, or has not.
            return False
        if verdict.kind == NEXT:
            numbers[id_] = verdict.number
            return True
        if verdict.kind == LANDED:
            base = self._bases.get(_place(topic, batch))
            code = Code.DUPLICATE_SEQUENCE_NUMBER if base is None else Code.NONE
            item.result = ProduceAnswer(code, -1 if base is None else base)
        else:
            old = verdict.kind == OLD_EPOCH
            item.result = ProduceAnswer(Code.INVALID_PRODUCER_EPOCH if old else Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return False

    def _commit(
        self,
        topic: str,
        log: TopicLog,
        target: AppendTarget,
        taken: Sequence[tuple[_Item, ProducedBatch]],
        keys: tuple[KafkaWriterKey, ...],
    ) -> None:
        by_partition: dict[int, list[ProducedBatch]] = {}
        inside: list[int] = []
        for _, batch in taken:
            before = by_partition.setdefault(batch.partition, [])
            inside.append(sum(other.header.count for other in before))
            batch.data[:8] = inside[-1].to_bytes(8, "big")
            before.append(batch)
        file = _file(log, target, by_partition)
        outcome = log.commit_append([file], target, kafka_writers=keys)
        starts = log.head(refresh=False).log_start
        for (item, batch), offset in zip(taken, inside, strict=True):
            base = outcome.base[batch.partition] + offset
            time_ms = outcome.time_ms if target.configs.log_append_time else -1
            item.result = ProduceAnswer(Code.NONE, base, time_ms, int(starts[batch.partition]))
            if batch.is_idempotent:
                self._bases[_place(topic, batch)] = base
        while len(self._bases) > REMEMBERED:
            self._bases.popitem(last=False)


def _place(topic: str, batch: ProducedBatch) -> tuple[str, int, int, int, int]:
    header = batch.header
    return topic, batch.partition, header.producer_id, header.producer_epoch, header.base_sequence


def _batch_of(registry: object, id_: str) -> int | None:
    entry = registry.get(id_)  # type: ignore[attr-defined]
    return None if entry is None else int(entry.batch)


def _count(id_: str, batch: ProducedBatch) -> int:
    return batch.header.count if writer_id(batch.header.producer_id, batch.partition) == id_ else 0


def _file(log: TopicLog, target: AppendTarget, by_partition: dict[int, list[ProducedBatch]]) -> FileSlices:
    """Return the batches as a file of a slice for each partition: written, or not where it is to go into the commit."""
    slices = [_slice(partition, batches) for partition, batches in sorted(by_partition.items())]
    parts = [batch.data for _, batches in sorted(by_partition.items()) for batch in batches]
    small = all(one.index is None for one in slices)
    if small and tail_bytes(len(slices), sum(map(len, parts))) <= target.inline_bytes:
        return unwritten(slices, b"".join(parts))
    output = AppendOutput(target.store, target.topic, append_path(target.read_version, log.env.new_id()))
    try:
        output.write(*parts)
        for one in slices:
            output.end_slice(one)
        return output.close()
    except BaseException:
        output.discard()
        raise


def _slice(partition: int, batches: Sequence[ProducedBatch]) -> WrittenSlice:
    sizes = np.array([len(batch.data) for batch in batches], np.int64)
    counts = np.array([batch.header.count for batch in batches], np.int64)
    times = np.array([batch.max_ts for batch in batches], np.int64)
    crc, flags = 0, 0
    for batch in batches:
        crc, flags = crc32c(batch.data, crc), flags | int(batch.flags)
    nbytes, records = int(sizes.sum()), int(counts.sum())
    return WrittenSlice(
        partition=partition,
        nbytes=nbytes,
        offsets=records,
        records=records,
        min_ts=min(batch.min_ts for batch in batches),
        max_ts=int(times.max()),
        crc=crc,
        flags=flags,
        index=build_index(np.cumsum(sizes) - sizes, np.cumsum(counts) - counts, times, nbytes),
    )
