"""Leases of jobs, so that two schedulers do no work twice. Nothing rests on them: without one a job is as safe.

A run claims its topics in the root, in the journal `_maintenance/<job>/_log`, whose newest entry has all claims. A
claim lasts five minutes by the store's clock and is renewed each minute; a run that ends takes it back, one that dies
lets it run out. A run leaves out topics that others have claimed, so hosts may share a root by `--topic`. It is fenced
once its claim is gone: it ran out unnoticed (a stalled process), and a later run has dropped it.

One journal for each job and root, not one for each topic: a run costs two entries and one a minute, however many topics
it works on.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from sparklog.common.times import iso_time
from sparklog.errors import Fenced, SparklogError
from sparklog.log.journal.chain import EntryChain
from sparklog.log.journal.clocks import MAX_AHEAD_MS
from sparklog.log.journal.documents import (
    TEXT,
    TEXTS,
    Document,
    Member,
    StoredDocument,
    members,
    objects_of,
    one_of,
    whole,
)
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, EntryKind, StateEntry
from sparklog.log.journal.names import MAINTENANCE_FOLDER
from sparklog.log.topic.root import Root
from sparklog.output import log

LEASE_MS = 300_000
CLAIM_OPS = TAKE, RENEW, RELEASE = "take", "renew", "release"


@dataclass(frozen=True, slots=True)
class Claim:
    """The topics that a run works on (none named: all), from and until a time of the store's clock."""

    run: str
    host: str
    process: int
    since_ms: int
    until_ms: int
    topics: tuple[str, ...] = ()

    def holds_at(self, now_ms: int) -> bool:
        """True until it runs out. An end too far ahead was written while a clock was wrong."""
        return now_ms < self.until_ms <= now_ms + LEASE_MS + MAX_AHEAD_MS

    def __str__(self) -> str:
        return f"{self.host} (process {self.process}, since {iso_time(self.since_ms)})"


@dataclass(frozen=True, slots=True)
class Leases(StateEntry):
    """The claims on a root by runs of one job, in the order in which they were made."""

    op: str = TAKE
    claims: tuple[Claim, ...] = ()

    def without(self, run: str) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.claims if claim.run != run)


CLAIM_JSON = Document(
    Claim, *members(TEXT, "run", "host"), *members(whole(0), "process", "sinceMs", "untilMs"), Member("topics", TEXTS)
)
LEASE_JSON = StoredDocument(
    "entry", Leases, *ENTRY_MEMBERS, Member("op", one_of(*CLAIM_OPS)), Member("claims", objects_of(CLAIM_JSON))
)
LEASES = EntryKind(
    folder=MAINTENANCE_FOLDER,
    owner="job",
    what="leases",
    noun="lease",
    empty=Leases,
    table=LEASE_JSON,
    old_entry="lease",
)


class JobLease:
    """The claim of one run of a job. `topics` are those wanted (none: all), then those that `take` has left to it.

    `others`: claims of other runs on topics that were wanted; `waits`: these leave nothing to do.
    """

    def __init__(self, root: Root, job: str, topics: Sequence[str] = ()) -> None:
        self.job = job
        self.topics = tuple(topics)
        self.others: tuple[Claim, ...] = ()
        self.waits = False
        self._root = root
        self._log = root.engine.entries(LEASES, job)
        self._run = root.env.new_id()
        self._fenced: Fenced | None = None

    def take(self) -> None:
        """Claim what no other run has claimed."""
        wanted = self.topics
        self._log.refresh()
        now_ms = self._now_ms()
        claim = Claim(self._run, platform.node(), os.getpid(), now_ms, now_ms + LEASE_MS, wanted)

        def step(base: Leases) -> Leases | None:
            held = tuple(claim for claim in base.without(self._run) if claim.holds_at(now_ms))
            self.others = tuple(claim for claim in held if not (claim.topics and wanted) or {*claim.topics} & {*wanted})
            taken = {topic for other in self.others for topic in other.topics}
            self.waits = any(not other.topics for other in self.others) or (wanted != () and taken.issuperset(wanted))
            return None if self.waits else replace(base, op=TAKE, claims=(*held, claim))

        self._log.write(step)
        if self.others and not self.waits:
            taken = {topic for other in self.others for topic in other.topics}
            self.topics = tuple(topic for topic in wanted or self._root.topics([]) if topic not in taken)
            self.waits = not self.topics

    def renew(self) -> None:
        """Put the end off. `Fenced` if the claim is gone."""
        now_ms = self._now_ms()

        def step(base: Leases) -> Leases:
            mine = [replace(claim, until_ms=now_ms + LEASE_MS) for claim in base.claims if claim.run == self._run]
            if not mine:
                raise Fenced(
                    f"the lease of {self.job} on {self._root.location} ran out and another run came after it: this one "
                    "stops; what it committed stays"
                )
            others = (claim for claim in base.without(self._run) if claim.holds_at(now_ms))
            return replace(base, op=RENEW, claims=(*others, *mine))

        self._log.write(step)

    def release(self) -> None:
        """Take the claim back, if there is one."""

        def step(base: Leases) -> Leases | None:
            left = base.without(self._run)
            return None if left == base.claims else replace(base, op=RELEASE, claims=left)

        self._log.write(step)

    def check(self) -> None:
        """Raise what `keep` has met; between two pieces of work."""
        if self._fenced is not None:
            raise self._fenced

    def keep(self, ended: threading.Event) -> None:
        """Renew until the run has ended, or is fenced. A store that fails for a while is asked again."""
        while not ended.wait(self._root.store.limits.renew_seconds):
            try:
                self.renew()
            except Fenced as error:
                self._fenced = error
                return
            except SparklogError as error:
                log(f"{self.job}: the lease was not renewed: {error} [{error.code}]")
            except BaseException as error:  # noqa: BLE001 - without this thread the lease would run out in silence
                log(f"{self.job}: the lease was not renewed: {type(error).__name__}")

    def _now_ms(self) -> int:
        return self._root.engine.by_store_clock(self._root.env.wall_ms())


@contextmanager
def job_lease(root: Root, job: str, topics: Sequence[str], *, wanted: bool) -> Iterator[JobLease]:
    """Take a lease for a run, keep it, give it back. One that cannot be had is printed, and stops no job."""
    lease = JobLease(root, job, topics)
    if not (wanted and root.store.writable):
        yield lease
        return
    ended = threading.Event()
    keeper = threading.Thread(target=lease.keep, args=(ended,), name="sparklog-lease", daemon=True)
    try:
        try:
            lease.take()
        except SparklogError as error:
            log(f"{job}: RUNS WITHOUT A LEASE, so another run may do the same work twice: {error} [{error.code}]")
        else:
            keeper.start()
        for claim in lease.others:
            topic_names = ", ".join(claim.topics) or "the root"
            log(f"{job}: {topic_names} is left to another run, on {claim}; --no-lease runs beside it")
        yield lease
    finally:
        ended.set()
        with suppress(SparklogError):
            lease.release()


def read_job_leases(root: Root, job: str) -> tuple[Claim, ...]:
    """Return the claims of runs of a job that have not ended, those that have run out as well."""
    return EntryChain(root.store, LEASES, job, root.env).latest().claims
