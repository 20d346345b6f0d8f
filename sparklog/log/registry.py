"""The idempotency registry: per writer id the newest batch a topic has taken, and which run of the writer may write.

A writer id is a streaming query's id or a user's `txnAppId`. One entry per id is enough, because a writer numbers its
batches and Spark replays only the last one planned. The rules (`decide`), for a commit of batch b where the newest is
n:

| kind   | b > n | b = n                                                              | b < n                   |
|--------|-------|--------------------------------------------------------------------|-------------------------|
| stream | write | a replay: skip if it has the same number of records, else an error | error: old checkpoint   |
| txn    | write | skip with a warning, as Delta does                                 | skip with a warning     |

Skipping what is lower would lose data silently whenever a checkpoint was restored or copied: its next batch holds other
records under an old number. For the same reason one run at a time may write: the first commit of another run takes
over, also when it only replays, and a run that was superseded is fenced.

Each entry carries the time of the newest commit its writer made: one that has been idle for 90 days is dropped by a
maintenance commit that lists it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparklog.errors import BadRequest, Conflict, Fenced
from sparklog.log.commit import Writer
from sparklog.log.fields import Fields

EARLIER_RUNS = 4
STREAM = "stream"
TXN = "txn"
REGISTRY_FIELDS = ("batch", "count", "version", "timeMs", "run", "earlierRuns")


@dataclass(frozen=True, slots=True)
class WriterKey:
    """How a writer wants to be known: `mode` `stream` (strict) or `txn` (Delta's txnAppId and txnVersion).

    `run` is the run of a streaming query, None where runs are not fenced. `replay_mismatch="accept"` takes a replay
    of another size as the same batch, for queries that are not deterministic.
    """

    id: str
    batch: int
    run: str | None = None
    mode: Literal["stream", "txn"] = "stream"
    replay_mismatch: Literal["error", "accept"] = "error"

    def check(self) -> None:
        """`BadRequest` for values no registry can hold."""
        if not self.id or len(self.id) > 1024:
            raise BadRequest(f"a writer id has 1 to 1024 characters, found {len(self.id)}")
        if self.run is not None and len(self.run) > 1024:
            raise BadRequest(f"the run of a writer has at most 1024 characters, found {len(self.run)}")
        if not 0 <= self.batch < 2**63:
            raise BadRequest(f"the batch id (txnVersion) of writer '{self.id}' must be 0 to 2^63-1, found {self.batch}")
        if self.mode not in (STREAM, TXN):
            raise BadRequest(f"the mode of a writer is 'stream' or 'txn', found '{self.mode}'")
        if self.replay_mismatch not in ("error", "accept"):
            raise BadRequest(f"replayMismatch is 'error' or 'accept', found '{self.replay_mismatch}'")

    def writer(self, count: int) -> Writer:
        """As a commit records it."""
        return Writer(self.mode, self.id, self.batch, self.run, count)


@dataclass(frozen=True, slots=True)
class Entry:
    """A writer's newest batch, its record count and version, the run that wrote it and up to four before.

    `time_ms`: commit time of whatever the writer did last here, a take-over included.
    """

    batch: int
    count: int
    version: int
    time_ms: int
    run: str | None
    earlier_runs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "batch": self.batch,
            "count": self.count,
            "version": self.version,
            "timeMs": self.time_ms,
            "run": self.run,
            "earlierRuns": list(self.earlier_runs),
        }

    @classmethod
    def from_json(cls, item: Fields) -> Entry:
        item.only(frozenset(REGISTRY_FIELDS))
        return cls(
            item.integer("batch", 0),
            item.integer("count", 0),
            item.integer("version", 0),
            item.integer("timeMs", 0),
            item.optional_text("run"),
            item.texts("earlierRuns"),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a batch: write it, or skip it (`note` says why); `take_over`: record the new run all the same."""

    write: bool
    take_over: bool = False
    note: str = ""


def decide(entry: Entry | None, key: WriterKey, count: int, place: str) -> Verdict:
    """The rule above. `Fenced` for a superseded run, `Conflict` for an old checkpoint or a replay that differs.

    `place`: whose registry it is, for messages ("topic 'orders'").
    """
    if entry is None:
        return Verdict(write=True)
    if key.run is not None and key.run != entry.run and key.run in entry.earlier_runs:
        raise Fenced(
            f"run {key.run} of writer '{key.id}' was taken over by run {entry.run} on {place} "
            f"(version {entry.version}); stop this run"
        )
    if key.batch > entry.batch:
        return Verdict(write=True)
    if key.mode == TXN:
        note = f"batch {key.batch} of '{key.id}' is already in {place} (newest {entry.batch}); skipped"
        return Verdict(write=False, note=note)
    if key.batch < entry.batch:
        raise Conflict(
            f"checkpoint older than the log: writer '{key.id}' sends batch {key.batch}, {place} already has batch "
            f"{entry.batch} (version {entry.version}); restore the right checkpoint or go on with a new txnAppId"
        )
    if count != entry.count and key.replay_mismatch == "error":
        raise Conflict(
            f"replay mismatch: batch {key.batch} of writer '{key.id}' has {count} records, {place} took it with "
            f"{entry.count} (version {entry.version}); use a new txnAppId, or replayMismatch=accept if the query is "
            "not deterministic"
        )
    take_over = key.run is not None and key.run != entry.run
    return Verdict(write=False, take_over=take_over, note=f"batch {key.batch} of '{key.id}' is already in {place}")


def advance(entry: Entry | None, writer: Writer, version: int, time_ms: int) -> Entry:
    """The entry after a commit by `writer` at this time: the state function's part, which judges nothing."""
    if entry is None:
        return Entry(writer.batch, writer.count, version, time_ms, writer.run)
    run, earlier = entry.run, entry.earlier_runs
    if writer.run is not None and writer.run != run:
        if run is not None:
            earlier = (run, *(old for old in earlier if old not in (run, writer.run)))[:EARLIER_RUNS]
        run = writer.run
    if writer.batch <= entry.batch:
        return Entry(entry.batch, entry.count, entry.version, time_ms, run, earlier)
    return Entry(writer.batch, writer.count, version, time_ms, run, earlier)
