"""Checks of a store by a real probe: small objects below `_probe`, which are removed."""

from __future__ import annotations

import os
import shlex

from sparklog.doctor.checks import FAIL, OK, WARN, Finding
from sparklog.errors import BadRequest, SparklogError
from sparklog.log.journal.clocks import MAX_AHEAD_MS
from sparklog.log.journal.names import ROOT_KEY
from sparklog.log.journal.probe_verdict import forget, probe_anew
from sparklog.storage import open_store
from sparklog.storage.local import LocalStore
from sparklog.storage.probe import DELETE, THREADS, PromiseOutcome, examine, probe
from sparklog.storage.store import Store

WORTH_A_WORD_MS = 10_000


def check_store(store: Store) -> list[Finding]:
    """Exclusive create, read-back, hard links, a directory's fsync, and the clock. Renews the verdict of a root."""
    try:
        report = probe(store) if store.stat(ROOT_KEY) is None else probe_anew(store)
    except SparklogError as error:
        fix = "use a local disk, or a mounted file system with hard links and fsync, as --root"
        if not isinstance(store, LocalStore):
            fix = f"sparklog doctor --store {shlex.quote(store.location)} tries each promise by itself"
        return [Finding("store", FAIL, str(error), fix)]
    message = f"{report.location} creates exclusively (8 threads, one winner), durably, and tells case apart"
    return [Finding("store", OK, f"{message}; {report.took_ms:.0f} ms"), _clock(report.clock_ahead_ms)]


def examine_store(location: str) -> list[Finding]:
    """Test every promise of the store at a location, which may hold a root or nothing, and leave nothing there."""
    try:
        store = open_store(location)
        if isinstance(store, LocalStore) and not os.path.isdir(store.location):
            return [Finding("store", FAIL, f"{store.location} does not exist", f"mkdir -p {store.location}")]
        report, outcomes = examine(store)
    except SparklogError as error:
        return [Finding("store", FAIL, str(error), "give another --store")]
    findings = [_finding(store, each, report.clock_ahead_ms) for each in outcomes]
    failed = [each for each in outcomes if each.error is not None and each.promise is not DELETE]
    broken = any(isinstance(each.error, BadRequest) for each in failed)
    if broken:
        forget(store)
    if failed:
        problem = "cannot hold a root" if broken else "could not be tested"
        message = f"{report.location} {problem}: {', '.join(each.promise.name for each in failed)}"
        return [*findings, Finding("store", FAIL, message, "mend what fails above, or use another store")]
    races = f"{report.rounds} race{'s' if report.rounds > 1 else ''} of {THREADS} threads"
    message = f"{report.location} can hold a root: {races}, {report.took_ms:.0f} ms"
    return [*findings, Finding("store", OK, message)]


def _finding(store: Store, outcome: PromiseOutcome, ahead_ms: int) -> Finding:
    promise, error = outcome.promise, outcome.error
    if error is None:
        return _clock(ahead_ms) if promise.name == "clock" else Finding(promise.name, OK, promise.kept)
    again = f"grant or mend what the line names, then: sparklog doctor --store {shlex.quote(store.location)}"
    if promise is DELETE:
        return Finding(promise.name, WARN, str(error), f"{promise.remedy}: {again}")
    return Finding(promise.name, FAIL, str(error), promise.remedy if isinstance(error, BadRequest) else again)


def _clock(ahead_ms: int) -> Finding:
    fix = "sudo timedatectl set-ntp true"
    side = "ahead of" if ahead_ms > 0 else "behind"
    message = f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {side} the store's"
    if ahead_ms > MAX_AHEAD_MS:
        return Finding("clock", FAIL, f"{message}; beyond {MAX_AHEAD_MS // 1000} s nothing is committed", fix)
    if abs(ahead_ms) > WORTH_A_WORD_MS:
        return Finding("clock", WARN, message, fix)
    return Finding("clock", OK, message if ahead_ms else "this machine's clock is the store's")
