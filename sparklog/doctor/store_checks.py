"""Checks of a store by a real probe: small objects below `_probe`, which are removed."""

from __future__ import annotations

import os
import shlex

from sparklog.doctor.checks import FAIL, OK, WARN, Check
from sparklog.errors import BadRequest, SparklogError
from sparklog.log.journal.clocks import MAX_AHEAD_MS
from sparklog.log.journal.names import ROOT_KEY
from sparklog.log.journal.probe_verdict import forget, probe_anew
from sparklog.storage import open_store
from sparklog.storage.local import LocalStore
from sparklog.storage.probe import DELETE, THREADS, PromiseOutcome, examine, probe
from sparklog.storage.store import Store

WORTH_A_WORD_MS = 10_000


def check_store(store: Store) -> list[Check]:
    """Exclusive create, read-back, hard links, a directory's fsync, and the clock. Renews the verdict of a root."""
    try:
        report = probe(store) if store.stat(ROOT_KEY) is None else probe_anew(store)
    except SparklogError as error:
        fix = "use a local disk, or a mounted file system with hard links and fsync, as --root"
        if not isinstance(store, LocalStore):
            fix = f"sparklog doctor --store {shlex.quote(store.location)} tries each promise by itself"
        return [Check("store", FAIL, str(error), fix)]
    message = f"{report.location} creates exclusively (8 threads, one winner), durably, and tells case apart"
    return [Check("store", OK, f"{message}; {report.took_ms:.0f} ms"), _clock(report.clock_ahead_ms)]


def examine_store(location: str) -> list[Check]:
    """Test every promise of the store at a location, which may hold a root or nothing, and leave nothing there."""
    try:
        store = open_store(location)
        if isinstance(store, LocalStore) and not os.path.isdir(store.location):
            return [Check("store", FAIL, f"{store.location} does not exist", f"mkdir -p {store.location}")]
        report, outcomes = examine(store)
    except SparklogError as error:
        return [Check("store", FAIL, str(error), "give another --store")]
    findings = [_finding(store, outcome, report.clock_ahead_ms) for outcome in outcomes]
    failed = [outcome for outcome in outcomes if outcome.error is not None and outcome.promise is not DELETE]
    broken = any(isinstance(outcome.error, BadRequest) for outcome in failed)
    if broken:
        forget(store)
    if failed:
        problem = "cannot hold a root" if broken else "could not be tested"
        message = f"{report.location} {problem}: {', '.join(outcome.promise.name for outcome in failed)}"
        return [*findings, Check("store", FAIL, message, "mend what fails above, or use another store")]
    races = f"{report.rounds} race{'s' if report.rounds > 1 else ''} of {THREADS} threads"
    message = f"{report.location} can hold a root: {races}, {report.took_ms:.0f} ms"
    return [*findings, Check("store", OK, message)]


def _finding(store: Store, outcome: PromiseOutcome, ahead_ms: int) -> Check:
    promise, error = outcome.promise, outcome.error
    if error is None:
        return _clock(ahead_ms) if promise.name == "clock" else Check(promise.name, OK, promise.kept)
    again = f"grant or mend what the line names, then: sparklog doctor --store {shlex.quote(store.location)}"
    if promise is DELETE:
        return Check(promise.name, WARN, str(error), f"{promise.remedy}: {again}")
    return Check(promise.name, FAIL, str(error), promise.remedy if isinstance(error, BadRequest) else again)


def _clock(ahead_ms: int) -> Check:
    fix = "sudo timedatectl set-ntp true"
    side = "ahead of" if ahead_ms > 0 else "behind"
    message = f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {side} the store's"
    if ahead_ms > MAX_AHEAD_MS:
        return Check("clock", FAIL, f"{message}; beyond {MAX_AHEAD_MS // 1000} s nothing is committed", fix)
    if abs(ahead_ms) > WORTH_A_WORD_MS:
        return Check("clock", WARN, message, fix)
    return Check("clock", OK, message if ahead_ms else "this machine's clock is the store's")
