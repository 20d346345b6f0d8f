"""Cache the results of probes, so that not every process has to probe a store.

Results are cached in the process for every store. If a probe costs many requests (`Store.probe_rounds` above 1), the
result is also cached in the root, as `_probe/verdict-<hash>.json`. A result is valid for one location and server. The
hash is computed from both, so if a root is copied to another bucket or endpoint, its result is not read there.

Each process that commits to a local path probes it, which takes a few milliseconds. The result is not shared, because
the same path may be another mount, or another client of a network file system, on another host.

A server may be replaced or upgraded without a change of its endpoint. Therefore a result expires after a day, or as
soon as an observation contradicts it: `reverify` discards the result and probes again.

A commit relies on one guarantee: if several writers create the same number, exactly one succeeds. If a store violates
this guarantee after the probe, it acknowledges two creates. One of the two writers then continues from a commit that
does not exist. Each process remembers which objects it has created, so its next read contradicts the create. A root
that was moved away and restored causes the same contradiction, so the process probes the store again. If the probe
fails, the process writes a note about the lost commit into the root, as `_probe/lost-<hash>.json`, because nothing else
shows that the commit was lost. `sparklog verify` reports the note. You can delete the note once the records of the
commit have been written again.
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

RESULT_MS = 86_400_000
"""Time after which a result expires. The vacuum keeps unreferenced files for the same time (`file.delete.delay.ms`).

Therefore, if the next probe shows that commits may have been lost, the data files of these commits still exist.
"""
REVERIFY_MS = 60_000
"""Minimum time between two reverifications. It limits the load of a process that fails repeatedly in a restored root.
"""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A successful probe of a store.

    `server` is empty if the default endpoint of the cloud provider is used. `sparklog` is the sparklog version that ran
    the probe.
    """

    location: str
    server: str
    rounds: int
    threads: int
    probed_ms: int
    sparklog: str


PROBE_RESULT_JSON = StoredDocument(
    "probe result",
    ProbeResult,
    *members(TEXT, "location", "server"),
    *members(whole(1), "rounds", "threads"),
    Member("probedMs", whole(0)),
    Member("sparklog", TEXT),
)

_RESULT_KEY = re.compile(rf"{PROBE_FOLDER}/verdict-[0-9a-f]{{16}}\.json")
_probed: dict[tuple[str, str], int] = {}
"""The time of the last successful probe of each store, by location and server."""
_reverified: dict[tuple[str, str], int] = {}
"""The time of the last successful reverification of each store, by location and server."""
_lock = ForkLock()


def ensure_probed(store: Store, wall_ms: Clock = wall_clock_ms) -> None:
    """Probe a store unless its result is cached. Raises `BadRequest` if a guarantee does not hold."""
    if not store.needs_probe or _is_fresh(_probed, store, wall_ms()):
        return
    with _lock:
        if _is_fresh(_probed, store, wall_ms()):
            return
        probed_ms = _stored_result(store, wall_ms()) if _stores_results(store) else None
        if probed_ms is None:
            _store_result(store, probe(store, wall_ms))
            probed_ms = wall_ms()
        _probed[_store_id(store)] = probed_ms


def probe_anew(store: Store, wall_ms: Clock = wall_clock_ms) -> ProbeReport:
    """Probe a store even if its result is cached. Replace the cached result, or discard it if a guarantee does not
    hold.
    """
    try:
        report = probe(store, wall_ms)
    except BadRequest:
        discard_result(store)
        raise
    discard_result(store)
    _store_result(store, report)
    return report


def reverify(store: Store, wall_ms: Clock) -> BadRequest | None:
    """Discard the result of a store whose behavior contradicts the result, and probe the store again. Return the error
    if the probe fails.
    """
    if not (store.needs_probe and store.writable) or _is_fresh(_reverified, store, wall_ms(), REVERIFY_MS):
        return None
    with _lock:
        try:
            probe_anew(store, wall_ms)
        except BadRequest as error:
            return error
        except SparklogError:
            discard_result(store)
        else:
            _reverified[_store_id(store)] = wall_ms()
    return None


def invalidate(store: Store, wall_ms: Clock) -> None:
    """Discard the result of a store that contains a broken chain.

    The store is not probed here, because a reader may not have permission to write. The next process that commits
    probes the store.
    """
    if store.needs_probe and store.writable and not _is_fresh(_reverified, store, wall_ms(), REVERIFY_MS):
        discard_result(store)


def discard_result(store: Store) -> None:
    """Discard the cached result of a store."""
    _probed.pop(_store_id(store), None)
    if _stores_results(store):
        with suppress(SparklogError):
            store.delete(_key(store))


def is_probe_result(key: str) -> bool:
    return _RESULT_KEY.fullmatch(key) is not None


def _store_id(store: Store) -> tuple[str, str]:
    return store.location, store.server


def _is_fresh(times: dict[tuple[str, str], int], store: Store, now_ms: int, limit_ms: int = RESULT_MS) -> bool:
    """Return True if a probe time of a store is recent. A time that is far in the future is not recent, because the
    clock may have been adjusted.
    """
    probed_ms = times.get(_store_id(store))
    return probed_ms is not None and abs(now_ms - probed_ms) < limit_ms


def _stores_results(store: Store) -> bool:
    return store.probe_rounds > 1


def _key(store: Store) -> str:
    text = f"{store.location}\n{store.server}"
    return f"{PROBE_FOLDER}/verdict-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _stored_result(store: Store, now_ms: int) -> int | None:
    """Return the time at which this store last passed a probe that is at least as strict as the current probe. Return
    None if there is no such probe, or if it has expired.
    """
    key = _key(store)
    try:
        result = PROBE_RESULT_JSON.decode(store.get(key), key)
    except SparklogError:  # missing or unreadable
        return None
    is_same = (result.location, result.server) == _store_id(store)
    is_valid = is_same and result.rounds >= store.probe_rounds and result.threads >= THREADS
    return result.probed_ms if is_valid and abs(now_ms - result.probed_ms) < RESULT_MS else None


def _store_result(store: Store, report: ProbeReport) -> None:
    if not _stores_results(store):
        return
    result = ProbeResult(store.location, store.server, report.rounds, THREADS, report.probed_ms, __version__)
    data = PROBE_RESULT_JSON.encode(result)
    with suppress(SparklogError):  # the next process probes again
        if not store.create(_key(store), data):
            store.delete(_key(store))
            store.create(_key(store), data)


LOST_COMMITS_ADVICE = (
    "acknowledged commits may be lost: stop all writers of this root, run sparklog verify, and continue in another "
    "store, or in this store after sparklog doctor has passed"
)
_PREFIX = f"{PROBE_FOLDER}/lost-"
_NOTE = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}\.json")


@dataclass(frozen=True, slots=True)
class LostCommit:
    """A commit or entry that a process created successfully under `key` and that no longer exists."""

    key: str
    commit_id: str
    noted_ms: int


LOST_JSON = StoredDocument(
    "note of a lost commit", LostCommit, *members(TEXT, "key", "commitId"), Member("notedMs", whole(0))
)


def is_note(key: str) -> bool:
    return _NOTE.fullmatch(key) is not None


def lost_commits(store: Store) -> Iterator[tuple[str, LostCommit]]:
    """Yield the notes about lost commits of a root, with their keys. Unreadable notes and notes about existing commits
    are skipped.
    """
    for info in store.list(_PREFIX):
        if not is_note(info.key):
            continue
        with suppress(NotFound, Corrupt, BadRequest):
            lost = LOST_JSON.decode(store.get(info.key), info.key)
            data = read_if_there(store, lost.key)
            if data is None or peek_commit_id(data) != lost.commit_id:
                yield info.key, lost


def contradiction(store: Store, env: Env, what: str, lost: tuple[str, str] | None) -> Fenced | None:
    """Probe a store whose response contradicts the state that this process has read. Return the error if the probe
    fails.

    Args:
        store: The store.
        env: The clocks.
        what: The contradiction, for the error.
        lost: The key and id of a commit that no longer exists.
    """
    broken = reverify(store, env.wall_ms)
    if broken is None:
        return None
    if lost is not None:
        note = LostCommit(*lost, env.wall_ms())
        name = hashlib.sha256(f"{note.key}\n{note.commit_id}".encode()).hexdigest()[:16]
        with suppress(SparklogError):  # the raised error also reports the lost commit
            store.create(f"{_PREFIX}{name}.json", LOST_JSON.encode(note))
    return Fenced(f"{store.location} does not create objects exclusively: {what}; {LOST_COMMITS_ADVICE} ({broken})")
