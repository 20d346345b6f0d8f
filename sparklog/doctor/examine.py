"""Run all checks in the order in which problems should be fixed. Probes of a store write small objects to `_probe`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from sparklog.doctor import checks
from sparklog.doctor.checks import FAIL, HERE, OK, WARN, Check, Machine
from sparklog.doctor.worker_checks import check_workers
from sparklog.errors import BadRequest, SparklogError
from sparklog.log.journal.clocks import MAX_AHEAD_MS
from sparklog.log.journal.names import ROOT_KEY, reject_foreign_files
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
    """Check Python, Java, packages and Spark settings, and, if `root` is given, the root.

    Args:
        root: the location of the root.
        conf_file: the file to read instead of Spark's spark-defaults.conf. Raises `BadRequest` if it cannot be read.
        start_spark: start a local session and check its settings.
        max_age_ms: report a failure if the last success of a job is older than this.
        machine: the host to check.
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
        settings, session = checks.check_session()
        findings += [*session, *(checks.check_settings(machine, settings) if settings.source is not None else [])]
    elif spark or conf_file is not None:
        findings += checks.check_settings(machine, settings)
    return findings if root is None else [*findings, *examine_root(root, machine, max_age_ms)]


def examine_root(root: str, machine: Machine = HERE, max_age_ms: int | None = None) -> list[Check]:
    """Check the store and the state of a root. A Kafka log directory is recognized but not checked, because it is not
    written.

    If `max_age_ms` is given, a location without a root is a failure, because the state of its jobs is unknown.
    """
    from sparklog.doctor.job_checks import check_jobs

    try:
        location = resolve(root)
        if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
            if max_age_ms is not None:
                message = f"{location.path} is a {location.kind}, which has no jobs"
                return [Check("root", FAIL, message, "specify a root")]
            return [Check("root", OK, f"{location.path} is a {location.kind}, which is read in place")]
        if location.kind == NOTHING and not is_url(location.path) and not exists(location):
            return [Check("root", FAIL, f"{location.path} does not exist", f"mkdir -p {location.path}")]
        store = open_store(location.root)
        if location.kind == NOTHING:
            reject_foreign_files(store)
        findings = check_store(store) if store.writable else [_read_only_check(location.root)]
        if not is_url(location.root):
            findings = [*checks.check_disk(machine, location.root), *findings]
        if location.kind == NOTHING:
            message = f"{location.path} is not a root yet; the root is created with the first topic"
            fix = f"sparklog topics create <topic> --root {shlex.quote(location.path)}"
            return [*findings, Check("root", WARN if max_age_ms is None else FAIL, message, fix)]
        opened = open_log(location)
        return [*findings, *check_jobs(opened, max_age_ms), *checks.check_root(opened)]
    except SparklogError as error:
        return [Check("root", FAIL, str(error), "fix this error, or use another --root")]


def _read_only_check(path: str) -> Check:
    """Return the check result for a store that this user cannot write."""
    message = (
        f"this user can read {path} but cannot write to it, so reads, verify and backup work, but writers and "
        "jobs do not"
    )
    fix = f"run as its owner, or sudo chown -R {os.getuid()} {shlex.quote(path)}"
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        fix = "mount the file system, which is mounted read-only, as writable"
    return Check("store", FAIL, message, fix)


def failed(findings: Sequence[Check]) -> bool:
    """Return True if a check has failed. Warnings are not failures."""
    return any(check.status == FAIL for check in findings)


CLOCK_WARNING_MS = 10_000


def check_store(store: Store) -> list[Check]:
    """Probe a store and check its clock. If the store contains a root, the result of the probe is cached."""
    try:
        report = probing.probe(store) if store.stat(ROOT_KEY) is None else probe_anew(store)
    except SparklogError as error:
        fix = "use a local disk, or a mounted file system with hard links and fsync, as --root"
        if not isinstance(store, LocalStore):
            fix = f"run sparklog doctor --store {shlex.quote(store.location)}, which tests each guarantee separately"
        return [Check("store", FAIL, str(error), fix)]
    message = f"{report.location} creates objects exclusively and durably, with case-sensitive names"
    return [Check("store", OK, f"{message}; {report.took_ms:.0f} ms"), _clock(report.clock_ahead_ms)]


def examine_store(location: str) -> list[Check]:
    """Test each guarantee of the store at a location, which may be a root or empty. Created objects are deleted."""
    try:
        store = open_store(location)
        if isinstance(store, LocalStore) and not os.path.isdir(store.location):
            return [Check("store", FAIL, f"{store.location} does not exist", f"mkdir -p {store.location}")]
        report, results = probing.examine(store)
    except SparklogError as error:
        return [Check("store", FAIL, str(error), "use another --store")]
    findings = [_finding(store, result, report.clock_ahead_ms) for result in results]
    failed = [result for result in results if result.error is not None and result.guarantee is not DELETE]
    broken = any(isinstance(result.error, BadRequest) for result in failed)
    if broken:
        discard_result(store)
    if failed:
        problem = "is not suitable for a root" if broken else "could not be tested"
        message = f"{report.location} {problem}: {', '.join(result.guarantee.name for result in failed)}"
        return [*findings, Check("store", FAIL, message, "fix the failures above, or use another store")]
    races = f"{report.rounds} race{'s' if report.rounds > 1 else ''} of {THREADS} threads"
    message = f"{report.location} is suitable for a root: {races}, {report.took_ms:.0f} ms"
    return [*findings, Check("store", OK, message)]


def _finding(store: Store, result: GuaranteeResult, ahead_ms: int) -> Check:
    guarantee, error = result.guarantee, result.error
    if error is None:
        return _clock(ahead_ms) if guarantee.name == "clock" else Check(guarantee.name, OK, guarantee.description)
    retry = f"fix the error and run sparklog doctor --store {shlex.quote(store.location)}"
    if guarantee is DELETE:
        return Check(guarantee.name, WARN, str(error), f"{guarantee.remedy}; {retry}")
    return Check(guarantee.name, FAIL, str(error), guarantee.remedy if isinstance(error, BadRequest) else retry)


def _clock(ahead_ms: int) -> Check:
    fix = "sudo timedatectl set-ntp true"
    side = "ahead of" if ahead_ms > 0 else "behind"
    message = f"the clock of this host is {abs(ahead_ms) / 1000:.1f} s {side} the store's"
    if ahead_ms > MAX_AHEAD_MS:
        return Check("clock", FAIL, f"{message}; commits fail if it is more than {MAX_AHEAD_MS // 1000} s ahead", fix)
    if abs(ahead_ms) > CLOCK_WARNING_MS:
        return Check("clock", WARN, message, fix)
    return Check("clock", OK, message if ahead_ms else "the store uses the clock of this host")
