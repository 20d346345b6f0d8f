"""The idempotency registry: per writer id the newest batch a topic has taken, and which run of the writer may write.

A writer id is a streaming query's id or a user's `txnAppId`. One entry per id is enough, because a writer numbers its
batches and Spark replays only the last one planned. The rules (`decide`), for a commit of batch b where the newest is
n:

| kind   | b > n | b = n                                                              | b < n                   |
|--------|-------|--------------------------------------------------------------------|-------------------------|
| stream | write | a replay: skip if it has the same content, else an error           | error: old checkpoint   |
| txn    | write | skip with a warning, as Delta does                                 | skip with a warning     |

Skipping what is lower would lose data silently whenever a checkpoint was restored or copied: its next batch holds
other records under an old number; so may one of the same number (`sparklog.log.state.slices`). So one run at a time may
write: the first commit of another run takes over, also when it only replays, and a superseded run is fenced.

Each run that takes over gets a higher **epoch**; one with a lower epoch is fenced, however many came between. Handles
and producers remember the epoch of their run; runs of streaming queries come with the time (ms) of their first commit.
The last four runs are known by name as well: release 0.1.0 wrote no epochs.

Each entry carries the time of the newest commit its writer made: one that has been idle for 90 days is dropped by a
maintenance commit that lists it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from sparklog.arguments import NAME, WHOLE
from sparklog.errors import BadRequest, Conflict, Fenced
from sparklog.log.journal.clocks import MAX_AHEAD_MS
from sparklog.log.journal.documents import TEXT, TEXTS, Document, Member, members, whole
from sparklog.log.state.commit import CONTENT_JSON, Writer
from sparklog.log.state.slices import Content

EARLIER_RUNS = 4
STREAM, TXN = "stream", "txn"


@dataclass(frozen=True, slots=True)
class WriterKey:
    """Id and number of a batch of a writer: a batch that was published before is skipped.

    Args:
        id: of the writer, the same in every run.
        batch: its number, which grows.
        run: of a streaming query; None: runs are not fenced.
        mode: `stream` (each number follows the one before) or `txn` (Delta's txnAppId and txnVersion).
        replay_mismatch: `accept` takes a replay of another content as the same batch.
        epoch: of the run, as far as it is known.
        content: of the batch, as far as it is known.

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
        """`BadRequest` for values no registry can hold."""
        NAME.check("the id of a writer", self.id)
        NAME.or_none().check("the run of a writer", self.run)
        for name, number in (("batch id (txnVersion)", self.batch), ("epoch", self.epoch or 0)):
            WHOLE.check(f"the {name} of writer '{self.id}'", number)
        if not self.id or len(self.id) > 1024:
            raise BadRequest(f"a writer id has 1 to 1024 characters, found {len(self.id)}")
        if self.run is not None and len(self.run) > 1024:
            raise BadRequest(f"the run of a writer has at most 1024 characters, found {len(self.run)}")
        if self.epoch is not None and not 0 <= self.epoch < 2**63:
            raise BadRequest(f"the epoch of writer '{self.id}' must be 0 to 2^63-1, found {self.epoch!r}")
        if not 0 <= self.batch < 2**63:
            batch = f"the batch id (txnVersion) of writer '{self.id}'"
            raise BadRequest(f"{batch} must be 0 to 2^63-1, found {self.batch!r}")
        if self.mode not in (STREAM, TXN):
            raise BadRequest(f"the mode of a writer is 'stream' or 'txn', found '{self.mode}'")
        if self.replay_mismatch not in ("error", "accept"):
            raise BadRequest(f"replayMismatch is 'error' or 'accept', found '{self.replay_mismatch}'")

    def writer(self, count: int, entry: WriterEntry | None = None) -> Writer:
        epoch = None if self.run is None else next_epoch(entry, self.run, self.epoch)
        return Writer(self.mode, self.id, self.batch, self.run, count, epoch, self.content)


@dataclass(frozen=True, slots=True)
class WriterEntry:
    """A writer's newest batch. `time_ms`: of the last commit that the writer made here, a take-over included."""

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
class BatchVerdict:
    """The verdict on a batch: write it, or skip it (`note` has the reason); `take_over`: record the new run."""

    write: bool
    take_over: bool = False
    note: str = ""


KAFKA_WRITER = "kafka-producer-"
"""Begins the ids of writers that are producers of Kafka's: an id for each producer and partition."""


@dataclass(frozen=True, slots=True)
class KafkaWriterKey:
    """A producer of Kafka's in one partition: the number of its last record, and that of its entry, which it follows.

    Or the copy of one partition of another topic (`sparklog.tools.repartition`): the offset that it goes on from.

    `follows` None: the topic does not know it. One commit may have many of them, and is whole or not there: so what of
    a producer landed is known exactly, whichever server asks.
    """

    id: str
    batch: int
    follows: int | None
    count: int

    def writer(self, entry: WriterEntry | None, topic: str) -> Writer:
        """Return the writer of a commit. `SequenceConflict` if its entry is not the one that was looked at."""
        if (None if entry is None else entry.batch) != self.follows:
            raise SequenceConflict(f"producer {self.id} of topic '{topic}' has written meanwhile: look again")
        return Writer(TXN, self.id, self.batch, None, self.count)


class SequenceConflict(Conflict):
    """A producer of Kafka's has written since it was looked at: maybe this very batch."""


class RunHistory(Protocol):
    """The run that may write, runs before it, and the epoch: of a registry's entry, or of a transactional id."""

    @property
    def run(self) -> str | None: ...
    @property
    def earlier_runs(self) -> tuple[str, ...]: ...
    @property
    def epoch(self) -> int | None: ...


def is_superseded(runs: RunHistory, run: str, epoch: int | None, now_ms: int) -> bool:
    """True if another run took over from this one. An epoch far ahead of `now_ms` is of a wrong clock: no sign."""
    if run == runs.run:
        return False
    if run in runs.earlier_runs:
        return True
    return epoch is not None and runs.epoch is not None and epoch < runs.epoch <= now_ms + MAX_AHEAD_MS


def next_epoch(runs: RunHistory | None, run: str, epoch: int | None) -> int:
    """The epoch of a run that writes: the one it has, or the next."""
    if runs is not None and runs.run == run and runs.epoch is not None:
        return runs.epoch
    if epoch is not None:
        return epoch
    return 1 if runs is None or runs.epoch is None else runs.epoch + 1


def earlier_runs(runs: RunHistory, run: str) -> tuple[str, ...]:
    """The runs before `run`, which takes over: newest first, as many as are remembered by name."""
    if runs.run is None:
        return runs.earlier_runs
    return (runs.run, *(old for old in runs.earlier_runs if old not in (runs.run, run)))[:EARLIER_RUNS]


def decide(entry: WriterEntry | None, key: WriterKey, count: int, place: str, now_ms: int) -> BatchVerdict:
    """Apply the rule above. `Fenced` for a superseded run, `Conflict` for an old checkpoint or another replay."""
    if entry is None:
        return BatchVerdict(write=True)
    if key.run is not None and is_superseded(entry, key.run, key.epoch, now_ms):
        raise Fenced(
            f"run {key.run} of writer '{key.id}' was taken over by run {entry.run} on {place} "
            f"(version {entry.version}); stop this run"
        )
    if key.batch > entry.batch:
        return BatchVerdict(write=True)
    note = f"batch {key.batch} of '{key.id}' is already in {place}"
    if key.mode == TXN:
        return BatchVerdict(write=False, note=f"{note} (newest {entry.batch}); skipped")
    if key.batch < entry.batch:
        raise Conflict(
            f"checkpoint older than the log: writer '{key.id}' sends batch {key.batch}, {place} already has batch "
            f"{entry.batch} (version {entry.version}); restore the right checkpoint or go on with a new txnAppId"
        )
    if key.replay_mismatch == "error":
        _check_replay(entry, key, count, place)
    take_over = key.run is not None and key.run != entry.run
    return BatchVerdict(write=False, take_over=take_over, note=note)


def _check_replay(entry: WriterEntry, key: WriterKey, count: int, place: str) -> None:
    sent, taken = f"{count} records", f"{entry.count}"
    if count == entry.count:
        if key.content is None or entry.content is None or key.content.matches(entry.content):
            return
        sent, taken = f"{sent}, {key.content.nbytes} bytes", f"{taken}, {entry.content.nbytes} bytes"
        if key.content.nbytes == entry.content.nbytes:
            taken += " that are in other partitions"
    raise Conflict(
        f"replay mismatch: batch {key.batch} of writer '{key.id}' has {sent}, {place} took it with "
        f"{taken} (version {entry.version}); use a new txnAppId, or replayMismatch=accept if the query is "
        "not deterministic"
    )


def advance(entry: WriterEntry | None, writer: Writer, version: int, time_ms: int) -> WriterEntry:
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
