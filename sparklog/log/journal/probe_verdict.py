"""Keep the verdict of a probe, so that not every process pays for one.

In this process: for every store. In the root, as `_probe/verdict-<hash>.json`: where a probe costs many requests
(`Store.probe_rounds` above 1). It holds for one place: the location and the server. The hash is that of the place, so
the verdict of a root that was copied to another bucket or endpoint is not even looked at there.

A local path is probed by each process that commits. That costs milliseconds, and the same path may be another mount, or
another client of a network file system, on each machine.

A server may be replaced or upgraded behind its endpoint. So a verdict counts for a day, and no longer once something
contradicts it: `doubt` takes it back and probes again.

A commit rests on one promise: of those who create a number, exactly one is told that it has. A store that breaks it
after it was probed tells two, of which one goes on from a commit that is not there. What this process has created it
remembers, and what it reads next contradicts it. A root that was moved away and restored looks the same: so the store
is probed again. Where that fails too, the commit that is gone is noted in the root, as `_probe/lost-<hash>.json`, for
nothing else tells of it: `sparklog verify` names it. The note may be deleted once its records were written again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from sparklog.errors import BadRequest, Corrupt, Fenced, NotFound, SparklogError
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.journal.documents import TEXT, Member, StoredDocument, members, peek_commit_id, whole
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.probe import THREADS, Clock, ProbeReport, probe, wall_clock_ms
from sparklog.storage.store import PROBE_FOLDER, Store
from sparklog.version import __version__

VERDICT_MS = 86_400_000
"""A verdict counts for so long: as long as the vacuum keeps files that no commit names (`file.delete.delay.ms`).

So when the next probe shows that commits may have been lost, the files of their records are still there.
"""
DOUBT_MS = 60_000
"""After a probe that doubt has caused and that passed, the next doubt causes none for so long: who fails in a loop, in
a root that was restored under it, makes no load.
"""


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """A probe that a place has passed: `server` is empty for a cloud's own, `sparklog` the version that probed."""

    location: str
    server: str
    rounds: int
    threads: int
    probed_ms: int
    sparklog: str


VERDICT_JSON = StoredDocument(
    "verdict of a probe",
    ProbeVerdict,
    *members(TEXT, "location", "server"),
    *members(whole(1), "rounds", "threads"),
    Member("probedMs", whole(0)),
    Member("sparklog", TEXT),
)

_VERDICT = re.compile(rf"{PROBE_FOLDER}/verdict-[0-9a-f]{{16}}\.json")
_probed: dict[tuple[str, str], int] = {}
"""Places that this process trusts, and when they were probed."""
_doubted: dict[tuple[str, str], int] = {}
"""Places that this process has doubted, and when they passed the probe that followed."""
_lock = ForkLock()


def ensure_probed(store: Store, wall_ms: Clock = wall_clock_ms) -> None:
    """Probe a store unless this process knows of a verdict. `BadRequest` names the promise that is broken."""
    if not store.needs_probe or _is_fresh(_probed, store, wall_ms()):
        return
    with _lock:
        if _is_fresh(_probed, store, wall_ms()):
            return
        probed_ms = _kept(store, wall_ms()) if _keeps_verdicts(store) else None
        if probed_ms is None:
            _keep(store, probe(store, wall_ms))
            probed_ms = wall_ms()
        _probed[_place(store)] = probed_ms


def probe_anew(store: Store, wall_ms: Clock = wall_clock_ms) -> ProbeReport:
    """Probe a store whatever the verdict; renew that, or take it back where a promise is broken."""
    try:
        report = probe(store, wall_ms)
    except BadRequest:
        forget(store)
        raise
    forget(store)
    _keep(store, report)
    return report


def doubt(store: Store, wall_ms: Clock) -> BadRequest | None:
    """Take back the verdict on a store that contradicts it, and probe again; return the broken promise, if it shows."""
    if not (store.needs_probe and store.writable) or _is_fresh(_doubted, store, wall_ms(), DOUBT_MS):
        return None
    with _lock:
        try:
            probe_anew(store, wall_ms)
        except BadRequest as error:
            return error
        except SparklogError:
            forget(store)
        else:
            _doubted[_place(store)] = wall_ms()
    return None


def distrust(store: Store, wall_ms: Clock) -> None:
    """Take back the verdict on a store where a chain is broken: who commits next probes it; readers may not write."""
    if store.needs_probe and store.writable and not _is_fresh(_doubted, store, wall_ms(), DOUBT_MS):
        forget(store)


def forget(store: Store) -> None:
    """Take the verdict on a store back."""
    _probed.pop(_place(store), None)
    if _keeps_verdicts(store):
        with suppress(SparklogError):
            store.delete(_key(store))


def is_verdict(key: str) -> bool:
    return _VERDICT.fullmatch(key) is not None


def _place(store: Store) -> tuple[str, str]:
    return store.location, store.server


def _is_fresh(times: dict[tuple[str, str], int], store: Store, now_ms: int, limit_ms: int = VERDICT_MS) -> bool:
    """True if a place has a time that is not long ago, nor far ahead: clocks may be set."""
    probed_ms = times.get(_place(store))
    return probed_ms is not None and abs(now_ms - probed_ms) < limit_ms


def _keeps_verdicts(store: Store) -> bool:
    return store.probe_rounds > 1


def _key(store: Store) -> str:
    text = f"{store.location}\n{store.server}"
    return f"{PROBE_FOLDER}/verdict-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _kept(store: Store, now_ms: int) -> int | None:
    """Return when this place passed a probe no weaker than one of today; None if it did not, or too long ago."""
    key = _key(store)
    try:
        verdict = VERDICT_JSON.decode(store.get(key), key)
    except SparklogError:  # none, or one that cannot be read
        return None
    same = (verdict.location, verdict.server) == _place(store)
    counts = same and verdict.rounds >= store.probe_rounds and verdict.threads >= THREADS
    return verdict.probed_ms if counts and abs(now_ms - verdict.probed_ms) < VERDICT_MS else None


def _keep(store: Store, report: ProbeReport) -> None:
    if not _keeps_verdicts(store):
        return
    verdict = ProbeVerdict(store.location, store.server, report.rounds, THREADS, report.probed_ms, __version__)
    data = VERDICT_JSON.encode(verdict)
    with suppress(SparklogError):  # the next process probes, too
        if not store.create(_key(store), data):
            store.delete(_key(store))
            store.create(_key(store), data)


LEAVE = (
    "acknowledged commits may be lost: stop all that write to this root, run sparklog verify, and go on in another "
    "store, or in this one once sparklog doctor passes"
)
_PREFIX = f"{PROBE_FOLDER}/lost-"
_NOTE = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}\.json")


@dataclass(frozen=True, slots=True)
class LostCommit:
    """A commit or entry that a process was told it had created under `key`, and that is not there."""

    key: str
    commit_id: str
    noted_ms: int


LOST_JSON = StoredDocument(
    "note of a lost commit", LostCommit, *members(TEXT, "key", "commitId"), Member("notedMs", whole(0))
)


def is_note(key: str) -> bool:
    return _NOTE.fullmatch(key) is not None


def lost_commits(store: Store) -> Iterator[tuple[str, LostCommit]]:
    """Yield the notes of a root with their keys, unless the commit is there or the note cannot be read."""
    for info in store.list(_PREFIX):
        if not is_note(info.key):
            continue
        with suppress(NotFound, Corrupt, BadRequest):
            lost = LOST_JSON.decode(store.get(info.key), info.key)
            data = read_if_there(store, lost.key)
            if data is None or peek_commit_id(data) != lost.commit_id:
                yield info.key, lost


def contradiction(store: Store, env: Env, what: str, lost: tuple[str, str] | None) -> Fenced | None:
    """Probe a store that contradicts `what` is known; return its error. `lost`: key and id of a commit that is gone."""
    broken = doubt(store, env.wall_ms)
    if broken is None:
        return None
    if lost is not None:
        note = LostCommit(*lost, env.wall_ms())
        name = hashlib.sha256(f"{note.key}\n{note.commit_id}".encode()).hexdigest()[:16]
        with suppress(SparklogError):  # the error says it, too
            store.create(f"{_PREFIX}{name}.json", LOST_JSON.encode(note))
    return Fenced(
        f"{store.location} does not keep its promise, that of all who create one object exactly one is told so: "
        f"{what}; {LEAVE} ({broken})"
    )
