"""The idempotency registry: for each writer id, the latest batch that a topic has accepted, and the run that may write.

A writer id is the id of a streaming query, or a user's `txnAppId`. One entry per id is sufficient, because a writer
numbers its batches and Spark replays only the last planned batch. `decide` applies these rules to batch b if the latest
batch is n:

| kind   | b > n | b = n                                                              | b < n                   |
|--------|-------|--------------------------------------------------------------------|-------------------------|
| stream | write | a replay: skip if the content is the same, otherwise an error      | error: old checkpoint   |
| txn    | write | skip with a warning, like Delta                                    | skip with a warning     |

If a stream's lower batch were skipped, data would be lost silently after a checkpoint was restored or copied, because
the next batch of the stream has other records with an old number. A batch with the same number may also have other
records. `sparklog.log.state.slices` defines how contents are compared. Therefore, only one run of a writer may write at
a time. The first commit of another run takes over, even if it only replays a batch, and the previous run is fenced.

Each run that takes over gets a higher **epoch**. A run with a lower epoch is fenced, regardless of the number of runs
in between. Handles and producers remember the epoch of their run. The epoch of a streaming query's run is the time (ms)
of its first commit. The registry also has the names of the last four runs, because release 0.1.0 did not write epochs.

Each entry has the time of its writer's last commit. A maintenance commit removes entries that have been idle for 90
days.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from sparklog.arguments import INTEGER, NAME
from sparklog.errors import BadRequest, Conflict, Fenced
from sparklog.log.journal.clocks import MAX_AHEAD_MS
from sparklog.log.journal.documents import TEXT, TEXTS, Document, Member, members, whole
from sparklog.log.state.commit import WriterBatch
from sparklog.log.state.commit_json import CONTENT_JSON
from sparklog.log.state.slices import Content

MAX_EARLIER_RUNS = 4
STREAM, TXN = "stream", "txn"


@dataclass(frozen=True, slots=True)
class WriterKey:
    """The writer id and the number of a batch. A batch that was already committed is skipped.

    Args:
        id: The writer's id, which is the same in every run
        batch: The number of the batch; numbers increase
        run: The run of a streaming query. If None, runs are not fenced
        mode: `stream` (consecutive numbers) or `txn` (Delta's txnAppId and txnVersion)
        replay_mismatch: `accept` treats a replay with other content as the same batch
        epoch: The epoch of the run, if it is known
        content: The content of the batch, if it is known

    Example:
        for attempt in range(2):
            topic.append(pa.table({"value": ["once"]}), writer=WriterKey("daily-orders", 20260127, mode="txn"))
    """

    id: str
    batch: int
    run: str | None = None
    mode: Literal["stream", "txn"] = "stream"
    replay_mismatch: Literal["error", "accept"] = "error"
    epoch: int | None = None
    content: Content | None = None

    def check(self) -> None:
        """Raise `BadRequest` if a value is invalid."""
        NAME.check("the id of a writer", self.id)
        NAME.or_none().check("the run of a writer", self.run)
        for name, number in (("batch id (txnVersion)", self.batch), ("epoch", self.epoch or 0)):
            INTEGER.check(f"the {name} of writer '{self.id}'", number)
        if not self.id or len(self.id) > 1024:
            raise BadRequest(f"a writer id must have 1 to 1024 characters, found {len(self.id)}")
        if self.run is not None and len(self.run) > 1024:
            raise BadRequest(f"the run of a writer must have at most 1024 characters, found {len(self.run)}")
        if self.epoch is not None and not 0 <= self.epoch < 2**63:
            raise BadRequest(f"the epoch of writer '{self.id}' must be 0 to 2^63-1, found {self.epoch!r}")
        if not 0 <= self.batch < 2**63:
            batch = f"the batch id (txnVersion) of writer '{self.id}'"
            raise BadRequest(f"{batch} must be 0 to 2^63-1, found {self.batch!r}")
        if self.mode not in (STREAM, TXN):
            raise BadRequest(f"the mode of a writer must be 'stream' or 'txn', found '{self.mode}'")
        if self.replay_mismatch not in ("error", "accept"):
            raise BadRequest(f"replayMismatch must be 'error' or 'accept', found '{self.replay_mismatch}'")

    def writer(self, count: int, entry: WriterEntry | None = None) -> WriterBatch:
        epoch = None if self.run is None else next_epoch(entry, self.run, self.epoch)
        return WriterBatch(self.mode, self.id, self.batch, self.run, count, epoch, self.content)


@dataclass(frozen=True, slots=True)
class WriterEntry:
    """A writer's latest batch.

    `time_ms` is the time of its last commit, even if that commit only took over from another run.
    """

    batch: int
    count: int
    version: int
    time_ms: int
    run: str | None
    earlier_runs: tuple[str, ...] = ()
    epoch: int | None = None
    content: Content | None = None


ENTRY_JSON = Document(
    WriterEntry,
    *members(whole(0), "batch", "count", "version", "timeMs"),
    Member("run", TEXT, nullable=True),
    Member("earlierRuns", TEXTS),
    Member("epoch", whole(0), optional=True),
    inline={"content": CONTENT_JSON},
)


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """The decision to write or skip a batch, with the reason in `note`. If `take_over` is true, the new run is
    recorded.
    """

    write: bool
    take_over: bool = False
    note: str = ""


KAFKA_WRITER = "kafka-producer-"
"""The prefix of the writer ids of Kafka producers. Each producer has one id per partition."""


@dataclass(frozen=True, slots=True)
class KafkaWriterKey:
    """The state of a Kafka producer in one partition: the sequence number of its last record, and the sequence number
    of the topic's previous registry entry for the producer.

    `sparklog.tools.repartition` stores the progress of its copy in the same way. The id is a source partition, and
    `batch` is the offset at which the copy continues.

    `follows` is None if the topic has no entry for the producer. A commit may have many of these entries and is atomic,
    so every server knows exactly which records of a producer were committed.
    """

    id: str
    batch: int
    follows: int | None
    count: int

    def writer(self, entry: WriterEntry | None, topic: str) -> WriterBatch:
        """Return the commit's entry for this writer. Raises `SequenceConflict` if the topic's entry has changed."""
        if (None if entry is None else entry.batch) != self.follows:
            raise SequenceConflict(
                f"producer {self.id} of topic '{topic}' has written in the meantime; refresh and retry"
            )
        return WriterBatch(TXN, self.id, self.batch, None, self.count)


class SequenceConflict(Conflict):
    """Raised if a Kafka producer has written a batch, possibly the same batch, since its entry was read."""


class RunHistory(Protocol):
    """The run that may write, earlier runs, and the epoch. Registry entries and transactional ids contain a run
    history.
    """

    @property
    def run(self) -> str | None: ...
    @property
    def earlier_runs(self) -> tuple[str, ...]: ...
    @property
    def epoch(self) -> int | None: ...


def is_superseded(runs: RunHistory, run: str, epoch: int | None, now_ms: int) -> bool:
    """Return True if another run took over. If an epoch is far ahead of `now_ms`, it was set by a wrong clock and is
    ignored.
    """
    if run == runs.run:
        return False
    if run in runs.earlier_runs:
        return True
    return epoch is not None and runs.epoch is not None and epoch < runs.epoch <= now_ms + MAX_AHEAD_MS


def next_epoch(runs: RunHistory | None, run: str, epoch: int | None) -> int:
    """Return the epoch of a run that writes. If the run already has an epoch, this epoch is returned. Otherwise, the
    next epoch is returned.
    """
    if runs is not None and runs.run == run and runs.epoch is not None:
        return runs.epoch
    if epoch is not None:
        return epoch
    return 1 if runs is None or runs.epoch is None else runs.epoch + 1


def earlier_runs(runs: RunHistory, run: str) -> tuple[str, ...]:
    """Return the runs that preceded `run`, which takes over. The result contains at most `MAX_EARLIER_RUNS` runs,
    latest first.
    """
    if runs.run is None:
        return runs.earlier_runs
    return (runs.run, *(old for old in runs.earlier_runs if old not in (runs.run, run)))[:MAX_EARLIER_RUNS]


def decide(entry: WriterEntry | None, key: WriterKey, count: int, target: str, now_ms: int) -> BatchDecision:
    """Apply the rules in the table above. `target` is the topic or topics, for messages.

    Raises:
        Fenced: If another run has taken over
        Conflict: If the checkpoint is old, or a replay has other content
    """
    if entry is None:
        return BatchDecision(write=True)
    if key.run is not None and is_superseded(entry, key.run, key.epoch, now_ms):
        raise Fenced(
            f"run {key.run} of writer '{key.id}' was superseded by run {entry.run} on {target} (version "
            f"{entry.version}); stop this run"
        )
    if key.batch > entry.batch:
        return BatchDecision(write=True)
    note = f"batch {key.batch} of writer '{key.id}' was already committed to {target}"
    if key.mode == TXN:
        return BatchDecision(write=False, note=f"{note} (latest batch {entry.batch}); skipped")
    if key.batch < entry.batch:
        raise Conflict(
            f"the checkpoint is older than the log: writer '{key.id}' sent batch {key.batch}, but {target} has batch "
            f"{entry.batch} (version {entry.version}); restore the correct checkpoint, or continue with a new txnAppId"
        )
    if key.replay_mismatch == "error":
        _check_replay(entry, key, count, target)
    take_over = key.run is not None and key.run != entry.run
    return BatchDecision(write=False, take_over=take_over, note=note)


def _check_replay(entry: WriterEntry, key: WriterKey, count: int, target: str) -> None:
    sent, accepted = f"{count} records", f"{entry.count}"
    if count == entry.count:
        if key.content is None or entry.content is None or key.content.matches(entry.content):
            return
        sent, accepted = f"{sent}, {key.content.nbytes} bytes", f"{accepted}, {entry.content.nbytes} bytes"
        if key.content.nbytes == entry.content.nbytes:
            accepted += " in other partitions"
    raise Conflict(
        f"replay mismatch: batch {key.batch} of writer '{key.id}' has {sent}, but {target} has committed it with "
        f"{accepted} (version {entry.version}); use a new txnAppId, or replayMismatch=accept if the query is "
        "not deterministic"
    )


def advance(entry: WriterEntry | None, writer: WriterBatch, version: int, time_ms: int) -> WriterEntry:
    """Return the entry after a commit by `writer` at this time."""
    if entry is None:
        return WriterEntry(writer.batch, writer.count, version, time_ms, writer.run, (), writer.epoch, writer.content)
    run, earlier, epoch = entry.run, entry.earlier_runs, entry.epoch
    if writer.run is not None:
        epoch = entry.epoch if writer.epoch is None else writer.epoch
        earlier = entry.earlier_runs if writer.run == entry.run else earlier_runs(entry, writer.run)
        run = writer.run
    if writer.batch <= entry.batch:
        return replace(entry, time_ms=time_ms, run=run, earlier_runs=earlier, epoch=epoch)
    return WriterEntry(writer.batch, writer.count, version, time_ms, run, earlier, epoch, writer.content)
