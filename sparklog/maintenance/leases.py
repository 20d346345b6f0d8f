"""Job leases prevent several schedulers from doing the same work. Correctness does not depend on leases.

A run of a job claims its topics in the journal `_maintenance/<job>/_log` of the root. The latest entry of the journal
contains all claims. A claim is valid for five minutes according to the store's clock and is renewed every minute. A run
releases its claim at the end; if the run is killed, its claim expires. A run skips topics that other runs have claimed,
so hosts can share a root by using `--topic`. A run is fenced if its claim expired, for example while the process was
suspended, and a later run has removed the claim.

There is one journal per job and root instead of one per topic. The number of entries that a run writes (two, and one
per minute) therefore does not depend on the number of topics.
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
CLAIM_OPS = ACQUIRE, RENEW, RELEASE = "take", "renew", "release"


@dataclass(frozen=True, slots=True)
class Claim:
    """The topics that a run has claimed, and the period of the claim according to the store's clock. If there are no
    topics, the claim is for all topics.
    """

    run: str
    host: str
    process: int
    since_ms: int
    until_ms: int
    topics: tuple[str, ...] = ()

    def is_valid_at(self, now_ms: int) -> bool:
        """Return True if the claim has not expired. If the end is too far ahead, a wrong clock has set it, so the claim
        is invalid.
        """
        return now_ms < self.until_ms <= now_ms + LEASE_MS + MAX_AHEAD_MS

    def __str__(self) -> str:
        return f"{self.host} (process {self.process}, since {iso_time(self.since_ms)})"


@dataclass(frozen=True, slots=True)
class Leases(StateEntry):
    """The claims on a root by runs of a job, oldest first."""

    op: str = ACQUIRE
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
    """The claim of a run of a job.

    Attributes:
        topics: the requested topics (all topics if empty); after `acquire`, the topics that the run may work on.
        other_claims: claims of other runs on requested topics.
        is_blocked: True if other runs have claimed all requested topics.
    """

    def __init__(self, root: Root, job: str, topics: Sequence[str] = ()) -> None:
        self.job = job
        self.topics = tuple(topics)
        self.other_claims: tuple[Claim, ...] = ()
        self.is_blocked = False
        self._root = root
        self._log = root.engine.entries(LEASES, job)
        self._run = root.env.new_id()
        self._fenced: Fenced | None = None

    def acquire(self) -> None:
        """Claim the requested topics that no other run has claimed."""
        requested = self.topics
        self._log.refresh()
        now_ms = self._now_ms()
        claim = Claim(self._run, platform.node(), os.getpid(), now_ms, now_ms + LEASE_MS, requested)

        def step(base: Leases) -> Leases | None:
            valid = tuple(claim for claim in base.without(self._run) if claim.is_valid_at(now_ms))
            self.other_claims = tuple(
                claim for claim in valid if not (claim.topics and requested) or {*claim.topics} & {*requested}
            )
            claimed = self._claimed_topics()
            claims_all = any(not other.topics for other in self.other_claims)
            self.is_blocked = claims_all or (requested != () and claimed.issuperset(requested))
            return None if self.is_blocked else replace(base, op=ACQUIRE, claims=(*valid, claim))

        self._log.write(step)
        if self.other_claims and not self.is_blocked:
            claimed = self._claimed_topics()
            self.topics = tuple(topic for topic in requested or self._root.topics([]) if topic not in claimed)
            self.is_blocked = not self.topics

    def renew(self) -> None:
        """Extend the claim by five minutes. Raises `Fenced` if another run has removed the claim."""
        now_ms = self._now_ms()

        def step(base: Leases) -> Leases:
            own = [replace(claim, until_ms=now_ms + LEASE_MS) for claim in base.claims if claim.run == self._run]
            if not own:
                raise Fenced(
                    f"the lease of {self.job} on {self._root.location} has expired, and another run has "
                    "started. This run "
                    "stops; committed work is kept"
                )
            others = (claim for claim in base.without(self._run) if claim.is_valid_at(now_ms))
            return replace(base, op=RENEW, claims=(*others, *own))

        self._log.write(step)

    def release(self) -> None:
        """Remove the claim if it exists."""

        def step(base: Leases) -> Leases | None:
            remaining = base.without(self._run)
            return None if remaining == base.claims else replace(base, op=RELEASE, claims=remaining)

        self._log.write(step)

    def check(self) -> None:
        """Raise the `Fenced` error if `keep_renewed` has received this error. Callers check the lease between work
        items.
        """
        if self._fenced is not None:
            raise self._fenced

    def keep_renewed(self, ended: threading.Event) -> None:
        """Renew the claim periodically until the run has ended or is fenced. Failed renewals are retried."""
        while not ended.wait(self._root.store.limits.renew_seconds):
            try:
                self.renew()
            except Fenced as error:
                self._fenced = error
                return
            except SparklogError as error:
                log(f"{self.job}: failed to renew the lease: {error} [{error.code}]")
            except BaseException as error:  # noqa: BLE001 - if this thread ended, the lease would expire silently
                log(f"{self.job}: failed to renew the lease: {type(error).__name__}")

    def _claimed_topics(self) -> set[str]:
        return {topic for other in self.other_claims for topic in other.topics}

    def _now_ms(self) -> int:
        return self._root.engine.to_store_clock(self._root.env.wall_ms())


@contextmanager
def job_lease(root: Root, job: str, topics: Sequence[str], *, enabled: bool) -> Iterator[JobLease]:
    """Acquire a lease for a run, and renew the lease in a thread until the run ends. If the lease cannot be acquired,
    log the error and continue without a lease.
    """
    lease = JobLease(root, job, topics)
    if not (enabled and root.store.writable):
        yield lease
        return
    ended = threading.Event()
    renewing = threading.Thread(target=lease.keep_renewed, args=(ended,), name="sparklog-lease", daemon=True)
    try:
        try:
            lease.acquire()
        except SparklogError as error:
            log(f"{job}: RUNS WITHOUT A LEASE, so another run may do the same work: {error} [{error.code}]")
        else:
            renewing.start()
        for claim in lease.other_claims:
            topic_names = ", ".join(claim.topics) or "the root"
            log(
                f"{job}: skipping {topic_names}, because another run on {claim} has a lease; use --no-lease to "
                "ignore the lease"
            )
        yield lease
    finally:
        ended.set()
        with suppress(SparklogError):
            lease.release()


def read_job_leases(root: Root, job: str) -> tuple[Claim, ...]:
    """Return the claims of a job that have not been released, including expired claims."""
    return EntryChain(root.store, LEASES, job, root.env).latest().claims
