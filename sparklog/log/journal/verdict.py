"""Keep the verdict of a probe, so that not every process pays for one.

In this process: for every store. In the root, as `_probe/verdict-<hash>.json`: where a probe costs many requests
(`Store.probe_rounds` above 1). It holds for one place: the location and the server. The hash is that of the place, so
the verdict of a root that was copied to another bucket or endpoint is not even looked at there.

A local path is probed by each process that commits. That costs milliseconds, and the same path may be another mount, or
another client of a network file system, on each machine.

A verdict does not expire. Who replaces the server behind an endpoint runs `sparklog doctor`, which probes anew.
"""

from __future__ import annotations

import hashlib
import re
import sys
from contextlib import suppress
from dataclasses import dataclass

from sparklog.errors import BadRequest, SparklogError
from sparklog.log.journal.documents import TEXT, Member, StoredDocument, whole
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.probe import PROBE_FOLDER, THREADS, ProbeReport, probe
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class Verdict:
    """A probe that a place has passed: `server` is empty for a cloud's own, `sparklog` the version that probed."""

    location: str
    server: str
    rounds: int
    threads: int
    probed_ms: int
    sparklog: str


VERDICT_JSON = StoredDocument(
    "verdict of a probe",
    Verdict,
    Member("location", TEXT),
    Member("server", TEXT),
    Member("rounds", whole(1)),
    Member("threads", whole(1)),
    Member("probedMs", whole(0)),
    Member("sparklog", TEXT),
)

_VERDICT = re.compile(rf"{PROBE_FOLDER}/verdict-[0-9a-f]{{16}}\.json")
_probed: set[tuple[str, str]] = set()
"""Places that this process trusts."""
_lock = ForkLock()


def ensure_probed(store: Store) -> None:
    """Probe a store unless this process knows of a verdict. `BadRequest` names the promise that is broken."""
    place = (store.location, store.server)
    if not store.needs_probe or place in _probed:
        return
    with _lock:
        if place not in _probed:
            if not _keeps_verdicts(store) or not _is_trusted(store):
                _keep(store, probe(store))
            _probed.add(place)


def probe_anew(store: Store) -> ProbeReport:
    """Probe a store whatever the verdict; renew that, or take it back where a promise is broken."""
    try:
        report = probe(store)
    except BadRequest:
        forget(store)
        raise
    forget(store)
    _keep(store, report)
    return report


def forget(store: Store) -> None:
    """Take the verdict on a store back."""
    _probed.discard((store.location, store.server))
    if _keeps_verdicts(store):
        with suppress(SparklogError):
            store.delete(_key(store))


def is_verdict(key: str) -> bool:
    return _VERDICT.fullmatch(key) is not None


def _keeps_verdicts(store: Store) -> bool:
    return store.probe_rounds > 1


def _key(store: Store) -> str:
    place = f"{store.location}\n{store.server}"
    return f"{PROBE_FOLDER}/verdict-{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"


def _is_trusted(store: Store) -> bool:
    """True if a probe of this place, no weaker than one of today, has passed."""
    key = _key(store)
    try:
        verdict = VERDICT_JSON.decode(store.get(key), key)
    except SparklogError:  # none, or one that cannot be read
        return False
    same = (verdict.location, verdict.server) == (store.location, store.server)
    return same and verdict.rounds >= store.probe_rounds and verdict.threads >= THREADS


def _keep(store: Store, report: ProbeReport) -> None:
    if not _keeps_verdicts(store):
        return
    version = str(getattr(sys.modules["sparklog"], "__version__", ""))
    verdict = Verdict(store.location, store.server, report.rounds, THREADS, report.probed_ms, version)
    data = VERDICT_JSON.encode(verdict)
    with suppress(SparklogError):  # the next process probes, too
        if not store.create(_key(store), data):
            store.delete(_key(store))
            store.create(_key(store), data)
