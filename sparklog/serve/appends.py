"""Append produced batches to topics, with at most one commit per topic in flight.

Batches that arrive during a commit are added to the next commit, because a commit of five batches costs as much as a
commit of one. The first batch after an idle period is committed immediately. After a commit that started at time `s`
and ended at time `e`, the next commit starts

* not before `s + linger`; the linger is 0 on a disk, and 50 ms in a bucket, where each commit costs requests;
* as soon as `expected_batches` or `COMMIT_BYTES` are pending. Each response triggers the next batch of a busy producer,
  so the expected number is the number of batches that were committed, plus the number of batches that were pending at
  `e`. It is at least three quarters of the previous number, because some batches may still be in sockets that the event
  loop has not read;
* at the latest at `e + max(linger, min(e - s, 500 ms))`, because producers may have finished, or may have disconnected
  while the store was slow or failed.

For example, three producers with one batch in flight each write to a disk, where a commit takes 8 ms:

| ms | event                                                                                                      |
|---:|------------------------------------------------------------------------------------------------------------|
|  0 | Producer A's batch arrives after an idle period; commit 1 starts with this batch.                          |
|  3 | The batches of B and C arrive and wait.                                                                    |
|  8 | Commit 1 ends; A gets its response. Commit 2 waits for 3 batches (1 + 2 pending), at most until 16.        |
|  9 | A's next batch is the third pending batch; commit 2 starts with all three batches.                         |
| 17 | Commit 2 ends; all producers get their responses. Commit 3 waits for 3 batches, at most until 25.          |
| 18 | A and B send their next batches; C has finished.                                                           |
| 25 | Commit 3 starts with two batches. When it ends, 2 batches are expected.                                    |
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sparklog.serve.batch_commit import INTERNAL_ERROR, ReceivedBatch, Responses, commit_batches
from sparklog.serve.codes import Code, ProduceResponse
from sparklog.serve.served_log import Runner, ServedLog

if TYPE_CHECKING:
    from sparklog.serve.transactions import ClientTransaction

BUCKET_LINGER_SECONDS = 0.05
MAX_WAIT_SECONDS = 0.5
"""The maximum time to wait for the expected batches, unless the linger is longer."""
COMMIT_BYTES = 64 << 20
"""The approximate maximum size of a commit. The remaining batches are added to the next commit."""
CHECKPOINT_PAUSE_SECONDS = 0.002
"""The pause between a commit and its checkpoint, in which the event loop sends the responses and consumers fetch the
batches. The thread that encodes a checkpoint would delay both, because it holds the interpreter lock.
"""
UNKNOWN_TOPICS = 4
"""The maximum number of concurrent commits to topics that may not exist. A Produce request can contain the names of
thousands of such topics, and the commits of other clients must not wait for all of them.
"""
_LOG = logging.getLogger("sparklog.serve")
STOPPING = ProduceResponse(Code.NOT_LEADER_OR_FOLLOWER, message="the server is stopping; the batch was not written")


@dataclass(slots=True, eq=False)
class PendingBatch(ReceivedBatch):
    """A batch that has not been committed yet, with the future of its response."""

    response: asyncio.Future[ProduceResponse]

    @property
    def size(self) -> int:
        return len(self.records or b"")

    def respond(self, response: ProduceResponse) -> None:
        """Complete the future, unless its request was cancelled."""
        if not self.response.done():
            self.response.set_result(response)


@dataclass(slots=True)
class TopicQueue:
    """The pending batches of a topic, and the start of their next commit in event loop time.

    The module docstring describes `earliest_start`, `latest_start` and `expected_batches`. `worker` is the task that
    commits the batches.
    """

    linger_seconds: float
    pending: deque[PendingBatch] = field(default_factory=deque)
    earliest_start: float = -math.inf
    latest_start: float = -math.inf
    expected_batches: int = 1
    exists: bool = False
    """True if the topic exists in the state that the latest commit has read."""
    worker: asyncio.Task[None] | None = None
    _pending_bytes: int = 0
    _wait: asyncio.Future[None] | None = None
    """A future that ends the current wait of `wait_for_start`, or None if it is not waiting."""

    def add(self, batch: PendingBatch) -> None:
        self.pending.append(batch)
        self._pending_bytes += batch.size
        if self._wait is not None and self._next_start() <= self._wait.get_loop().time():
            self._end_wait()

    def _next_start(self) -> float:
        """Return the start of the next commit if no more batches arrive."""
        is_complete = len(self.pending) >= self.expected_batches or self._pending_bytes >= COMMIT_BYTES
        return self.earliest_start if is_complete else max(self.earliest_start, self.latest_start)

    def _end_wait(self) -> None:
        if self._wait is not None and not self._wait.done():
            self._wait.set_result(None)

    async def wait_for_start(self) -> None:
        """Wait until the next commit may start, or until the pending batches have been rejected."""
        loop = asyncio.get_running_loop()
        while self.pending and (seconds := self._next_start() - loop.time()) > 0:
            self._wait = loop.create_future()
            try:
                # Unlike `wait_for`, `wait` does not create a task.
                await asyncio.wait([self._wait], timeout=seconds)
            finally:
                self._wait = None

    def reject_pending(self) -> None:
        """Reject the pending batches, because the server is stopping."""
        while self.pending:
            self.pending.popleft().respond(STOPPING)
        self._pending_bytes = 0
        self._end_wait()

    def drain(self) -> list[PendingBatch]:
        """Remove and return the batches of the next commit. At least one batch is returned, and the size of the batches
        is limited to about `COMMIT_BYTES`.
        """
        batches: list[PendingBatch] = []
        nbytes = 0
        while self.pending and (not batches or nbytes + self.pending[0].size <= COMMIT_BYTES):
            batches.append(self.pending.popleft())
            nbytes += batches[-1].size
        self._pending_bytes -= nbytes
        return batches

    def schedule_next(self, committed_batches: int, started: float, ended: float) -> None:
        """Schedule the next commit after a commit that ran from `started` to `ended`."""
        self.earliest_start = started + self.linger_seconds
        self.latest_start = ended + max(self.linger_seconds, min(ended - started, MAX_WAIT_SECONDS))
        self.expected_batches = max(committed_batches + len(self.pending), self.expected_batches * 3 // 4)


class Appends:
    """Appends produced batches to the topics of a root."""

    def __init__(self, log: ServedLog, run: Runner, linger_seconds: float | None = None) -> None:
        self._log = log
        self._run = run
        assert log.root is not None, "a Kafka directory is read-only"
        self._root = log.root
        default = 0.0 if log.root.store.parallel_reads == 1 else BUCKET_LINGER_SECONDS
        self._linger = default if linger_seconds is None else linger_seconds
        self._topics: dict[str, TopicQueue] = {}
        self._is_closed = False
        self._unknown_topics = asyncio.Semaphore(UNKNOWN_TOPICS)

    def add(
        self,
        topic: str,
        partition: int,
        records: memoryview | None,
        api_version: int,
        transaction: ClientTransaction | None = None,
        topic_id: str | None = None,
    ) -> asyncio.Future[ProduceResponse]:
        """Queue a batch, and return a future that completes when the batch is durable or was rejected."""
        loop = asyncio.get_running_loop()
        batch = PendingBatch(partition, records, api_version, transaction, topic_id, loop.create_future())
        if self._is_closed:
            batch.respond(STOPPING)
            return batch.response
        queue = self._topics.get(topic) or self._topics.setdefault(topic, TopicQueue(self._linger))
        queue.add(batch)
        if queue.worker is None or queue.worker.done():
            queue.worker = loop.create_task(self._commit_pending(topic, queue))
            queue.worker.add_done_callback(partial(self._finish, topic, queue))
        return batch.response

    async def close(self, timeout_seconds: float) -> None:
        """Reject batches whose commit has not started, and wait for in-flight commits until the timeout. If a client
        does not receive the response to a committed batch, it has to send the batch again.
        """
        self._is_closed = True
        for queue in self._topics.values():
            queue.reject_pending()
        workers = [queue.worker for queue in self._topics.values() if queue.worker is not None]
        if workers:
            await asyncio.wait(workers, timeout=timeout_seconds)

    async def _commit_pending(self, topic: str, queue: TopicQueue) -> None:
        """Commit the pending batches of a topic until no batches are pending."""
        loop = asyncio.get_running_loop()
        while queue.pending:
            await queue.wait_for_start()
            started, batches = loop.time(), queue.drain()
            if not batches:
                return
            await self._commit(topic, queue, batches)
            queue.schedule_next(len(batches), started, loop.time())
            self._log.notify()
            await self._write_checkpoint(topic)

    def _finish(self, topic: str, queue: TopicQueue, worker: asyncio.Task[None]) -> None:
        """Reject the batches that are still pending when a worker ends, and remove the queue of an unknown topic.

        Every batch must have a response, even if the worker was cancelled before its first step, because the client
        waits for the response and the memory of the batch is reserved.
        """
        if queue.worker is not worker:
            return  # A batch that arrived after the worker ended has started another worker.
        queue.reject_pending()
        if not queue.exists:
            # Do not retain the queue of a topic that does not exist, because clients can request any number of names.
            del self._topics[topic]

    async def _commit(self, topic: str, queue: TopicQueue, batches: Sequence[PendingBatch]) -> None:
        """Commit batches, and respond to all of them."""
        responses: Responses = {}
        try:
            async with nullcontext() if queue.exists else self._unknown_topics:
                if self._is_closed:
                    responses = dict.fromkeys(batches, STOPPING)
                    return
                log = self._root.engine.log(topic)
                log.defers_checkpoints = True
                responses = await self._run(partial(commit_batches, recent=self._log.recent), log, batches)
                known = log.known()
                queue.exists = known is not None and known.topic_state.exists
        except Exception:  # noqa: BLE001 - the batches of other producers must still be committed
            _LOG.exception("internal error while appending to topic '%s'", topic)
        finally:
            for batch in batches:
                batch.respond(responses.get(batch, INTERNAL_ERROR))

    async def _write_checkpoint(self, topic: str) -> None:
        """Write a checkpoint of a topic after a commit if it is due."""
        log = self._root.engine.log(topic)
        if not log.has_due_checkpoint():
            return
        await asyncio.sleep(CHECKPOINT_PAUSE_SECONDS)
        if self._is_closed:
            return
        try:
            await self._run(log.write_due_checkpoint)
        except Exception:  # noqa: BLE001 - the batches of producers must still be committed
            _LOG.exception("internal error while writing a checkpoint of topic '%s'", topic)
