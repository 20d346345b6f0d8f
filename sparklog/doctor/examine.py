"""All checks, in the order in which troubles are best put right. A store is probed by small objects below `_probe`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from sparklog.doctor import checks
from sparklog.doctor.checks import FAIL, HERE, OK, WARN, Check, Machine
from sparklog.doctor.worker_checks import check_workers
from sparklog.errors import BadRequest, SparklogError
from sparklog.log.journal.clocks import MAX_AHEAD_MS
from sparklog.log.journal.names import ROOT_KEY, refuse_foreign
from sparklog.log.journal.probe_results import discard_result, probe_anew
from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, NOTHING, exists, open_log, resolve
from sparklog.storage import open_store
from sparklog.storage import probe as probing
from sparklog.storage.local import LocalStore
from sparklog.storage.locations import is_url
from sparklog.storage.probe import DELETE, THREADS, GuaranteeResult
from sparklog.storage.store import Store


def examine(
    root: str | None = None,
    *,
    conf_file: str | None = None,
    start_spark: bool = False,
    max_age_ms: int | None = None,
    machine: Machine = HERE,
) -> list[Check]:
    """Look at Python, Java, packages and Spark's settings, and at a root if one is given.

    `conf_file`: instead of the spark-defaults.conf that Spark would read; `start_spark`: start a local session and ask
    it; `max_age_ms`: of the last success of each job. `BadRequest` if that file cannot be read.
    """
    settings = checks.spark_settings(machine, conf_file)
    spark = checks.has_spark(machine)
    findings = [
        checks.check_python(),
        *checks.check_packages(),
        checks.check_kernels(),
        *check_workers(machine, settings.values.get("spark.pyspark.python"), spark=spark),
        checks.check_java(machine, spark=spark),
    ]
    if start_spark:
        settings, answers = checks.ask_spark()
        findings += [*answers, *(checks.check_settings(machine, settings) if settings.source is not None else [])]
    elif spark or conf_file is not None:
        findings += checks.check_settings(machine, settings)
    return findings if root is None else [*findings, *examine_root(root, machine, max_age_ms)]


def examine_root(root: str, machine: Machine = HERE, max_age_ms: int | None = None) -> list[Check]:
    """The place and the state of a root. A Kafka directory is only told to be one: nothing is written there."""
    from sparklog.doctor.job_checks import check_jobs

    try:
        location = resolve(root)
        if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
            return [Check("root", OK, f"{location.path} is a {location.kind}: read where it is, never written")]
        if location.kind == NOTHING and not is_url(location.path) and not exists(location):
            return [Check("root", FAIL, f"{location.path} does not exist", f"mkdir -p {location.path}")]
        store = open_store(location.root)
        if location.kind == NOTHING:
            refuse_foreign(store)
        tried = check_store(store) if store.writable else [_unwritable(location.root)]
        findings = tried if is_url(location.root) else [*checks.check_disk(machine, location.root), *tried]
        if location.kind == NOTHING:
            message = f"{location.path} is no root yet: the first topic makes it one"
            fix = f"sparklog topics create <topic> --root {shlex.quote(location.path)}"
            return [*findings, Check("root", WARN, message, fix)]
        opened = open_log(location)
        return [*findings, *check_jobs(opened, max_age_ms), *checks.check_root(opened)]
    except SparklogError as error:
        return [Check("root", FAIL, str(error), "put that right, or give another --root")]


def _unwritable(path: str) -> Check:
    """Say what this user lacks: the store may be fit for a root."""
    message = f"this user may read {path}, not write: reads, verify and backup work, writers and both jobs do not"
    fix = f"run as its owner, or sudo chown -R {os.getuid()} {shlex.quote(path)}"
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        fix = "mount its file system writable: it is mounted read-only"
    return Check("store", FAIL, message, fix)


def failed(findings: Sequence[Check]) -> bool:
    """True if something does not work; a warning could only be better."""
    return any(check.status == FAIL for check in findings)


WORTH_A_WORD_MS = 10_000


def check_store(store: Store) -> list[Check]:
    """Check exclusive create, read-back, hard links, fsync of a directory, and the clock; cache a root's result."""
    try:
        report = probing.probe(store) if store.stat(ROOT_KEY) is None else probe_anew(store)
    except SparklogError as error:
        fix = "use a local disk, or a mounted file system with hard links and fsync, as --root"
        if not isinstance(store, LocalStore):
            fix = f"sparklog doctor --store {shlex.quote(store.location)} tests each guarantee by itself"
        return [Check("store", FAIL, str(error), fix)]
    message = f"{report.location} creates exclusively (8 threads, one winner), durably, and tells case apart"
    return [Check("store", OK, f"{message}; {report.took_ms:.0f} ms"), _clock(report.clock_ahead_ms)]


def examine_store(location: str) -> list[Check]:
    """Test every guarantee of the store at a location, which may hold a root or nothing, and leave nothing there."""
    try:
        store = open_store(location)
        if isinstance(store, LocalStore) and not os.path.isdir(store.location):
            return [Check("store", FAIL, f"{store.location} does not exist", f"mkdir -p {store.location}")]
        report, results = probing.examine(store)
    except SparklogError as error:
        return [Check("store", FAIL, str(error), "give another --store")]
    findings = [_finding(store, result, report.clock_ahead_ms) for result in results]
    failed = [result for result in results if result.error is not None and result.guarantee is not DELETE]
    broken = any(isinstance(result.error, BadRequest) for result in failed)
    if broken:
        discard_result(store)
    if failed:
        problem = "cannot hold a root" if broken else "could not be tested"
        message = f"{report.location} {problem}: {', '.join(result.guarantee.name for result in failed)}"
        return [*findings, Check("store", FAIL, message, "mend what fails above, or use another store")]
    races = f"{report.rounds} race{'s' if report.rounds > 1 else ''} of {THREADS} threads"
    message = f"{report.location} can hold a root: {races}, {report.took_ms:.0f} ms"
    return [*findings, Check("store", OK, message)]


def _finding(store: Store, result: GuaranteeResult, ahead_ms: int) -> Check:
    guarantee, error = result.guarantee, result.error
    if error is None:
        return _clock(ahead_ms) if guarantee.name == "clock" else Check(guarantee.name, OK, guarantee.description)
    again = f"grant or mend what the line names, then: sparklog doctor --store {shlex.quote(store.location)}"
    if guarantee is DELETE:
        return Check(guarantee.name, WARN, str(error), f"{guarantee.remedy}: {again}")
    return Check(guarantee.name, FAIL, str(error), guarantee.remedy if isinstance(error, BadRequest) else again)


def _clock(ahead_ms: int) -> Check:
    fix = "sudo timedatectl set-ntp true"
    side = "ahead of" if ahead_ms > 0 else "behind"
    message = f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {side} the store's"
    if ahead_ms > MAX_AHEAD_MS:
        return Check("clock", FAIL, f"{message}; beyond {MAX_AHEAD_MS // 1000} s nothing is committed", fix)
    if abs(ahead_ms) > WORTH_A_WORD_MS:
        return Check("clock", WARN, message, fix)
    return Check("clock", OK, message if ahead_ms else "this machine's clock is the store's")
