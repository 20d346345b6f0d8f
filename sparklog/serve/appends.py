"""Appends of produced batches: when the pending batches of a topic are committed.

Each topic has a queue of batches and at most one commit in flight. Batches that arrive meanwhile go into the next one.
After a quiet time a batch does not wait. After a commit that started at `s` and ended at `e`, the next one starts

* not before `s + linger` (5 ms on a disk, 50 ms in a bucket);
* then, once `expected_batches` are pending: a commit costs as much for one batch as for five, and each response brings
  the next batch of a busy producer. So many were committed or pending at `e`, or three quarters of the number before if
  that is more: batches may be in sockets that the event loop has not read yet;
* not after `e + max(linger, e - s)`, and at most 500 ms after `e`: while a store was slow or failed, producers may have
  gone away.

Three producers with one batch in flight each, on a disk, where a commit takes 8 ms:

| ms | event                                                                                                 |
|---:|-------------------------------------------------------------------------------------------------------|
|  0 | A's batch arrives after a quiet time: commit 1 starts with it                                         |
|  3 | B's and C's batches arrive and wait                                                                   |
|  8 | commit 1 ends, A gets its response; not before 5, not after 16, 3 expected: 1 committed and 2 pending |
|  9 | A's next batch arrives, the third: commit 2 starts with all of them                                   |
| 17 | commit 2 ends; not before 14, not after 25, 3 expected                                                |
| 18 | A and B send their next batches, C has ended                                                          |
| 25 | commit 3 starts with two batches; after it 2 are expected                                             |
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparklog.errors import SparklogError
from sparklog.serve.batch_commit import ReceivedBatch, Responses, commit_batches, failed
from sparklog.serve.codes import Code, ProduceResponse
from sparklog.serve.served_log import Runner, ServedLog

LINGER_SECONDS, BUCKET_LINGER_SECONDS = 0.005, 0.05
MAX_WAIT_SECONDS = 0.5
"""The longest wait for busy producers."""
COMMIT_BYTES = 64 << 20
"""About the most bytes of one commit: further batches wait for the next."""
_LOG = logging.getLogger("sparklog.serve")


@dataclass(slots=True, eq=False)
class PendingBatch(ReceivedBatch):
    """A batch that waits for its commit, and its response."""

    response: asyncio.Future[ProduceResponse]

    @property
    def size(self) -> int:
        return len(self.records or b"")


@dataclass(slots=True)
class TopicQueue:
    """The pending batches of a topic, and when their commit starts: see the module. Times are those of the loop."""

    linger: float
    pending: deque[PendingBatch] = field(default_factory=deque)
    not_before: float = -math.inf
    not_after: float = -math.inf
    expected_batches: int = 1
    worker: asyncio.Task[None] | None = None
    _full: asyncio.Future[None] | None = None

    def add(self, batch: PendingBatch) -> None:
        self.pending.append(batch)
        if self._full is not None and not self._full.done() and len(self.pending) >= self.expected_batches:
            self._full.set_result(None)

    async def wait(self) -> None:
        """Wait until the next commit may start."""
        loop = asyncio.get_running_loop()
        if self.not_before > loop.time():
            await asyncio.sleep(self.not_before - loop.time())
        if len(self.pending) < self.expected_batches and self.not_after > loop.time():
            self._full = loop.create_future()
            # Unlike `wait_for` it makes no task.
            await asyncio.wait([self._full], timeout=self.not_after - loop.time())
            self._full = None

    def take(self) -> list[PendingBatch]:
        """Remove and return the batches of the next commit."""
        batches: list[PendingBatch] = []
        nbytes = 0
        while self.pending and (not batches or nbytes + self.pending[0].size <= COMMIT_BYTES):
            batches.append(self.pending.popleft())
            nbytes += batches[-1].size
        return batches

    def committed(self, batches: int, started: float, ended: float) -> None:
        """Set when the commit after this one starts."""
        self.not_before = started + self.linger
        self.not_after = ended + max(self.linger, min(ended - started, MAX_WAIT_SECONDS))
        self.expected_batches = max(batches + len(self.pending), self.expected_batches * 3 // 4)


class Appends:
    """Takes batches for the topics of a root."""

    def __init__(self, log: ServedLog, run: Runner, linger_seconds: float | None = None) -> None:
        self._log = log
        self._run = run
        assert log.root is not None
        self._root = log.root
        default = LINGER_SECONDS if log.root.store.parallel_reads == 1 else BUCKET_LINGER_SECONDS
        self._linger = default if linger_seconds is None else linger_seconds
        self._topics: dict[str, TopicQueue] = {}

    def add(
        self, topic: str, partition: int, records: memoryview | None, version: int
    ) -> asyncio.Future[ProduceResponse]:
        """Take a batch; the future is done once the batch is durable, or refused."""
        loop = asyncio.get_running_loop()
        batch = PendingBatch(partition, records, version, loop.create_future())
        queue = self._topics.get(topic) or self._topics.setdefault(topic, TopicQueue(self._linger))
        queue.add(batch)
        if queue.worker is None or queue.worker.done():
            queue.worker = loop.create_task(self._commit_pending(topic, queue))
        return batch.response

    async def _commit_pending(self, topic: str, queue: TopicQueue) -> None:
        loop = asyncio.get_running_loop()
        while queue.pending:
            await queue.wait()
            started, batches = loop.time(), queue.take()
            responses = await self._responses(topic, batches)
            queue.committed(len(batches), started, loop.time())
            self._log.notify()
            for batch in batches:
                if not batch.response.done():
                    batch.response.set_result(responses.get(batch) or ProduceResponse(Code.UNKNOWN_SERVER_ERROR))

    async def _responses(self, topic: str, batches: Sequence[PendingBatch]) -> Mapping[ReceivedBatch, ProduceResponse]:
        try:
            responses: Responses = await self._run(commit_batches, self._root.engine.log(topic), batches)
        except SparklogError as error:
            return failed(batches, error)
        except Exception:  # noqa: BLE001 - each batch gets a response: a client waits for it, and memory is taken
            _LOG.exception("an error of this server in an append to topic '%s'", topic)
            return {}
        return responses
