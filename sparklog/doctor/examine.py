"""All checks, in the order in which troubles are best put right."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from sparklog.doctor import checks
from sparklog.doctor.checks import FAIL, HERE, OK, WARN, Check, Machine
from sparklog.doctor.store_checks import check_store
from sparklog.errors import SparklogError
from sparklog.log.journal.names import refuse_foreign
from sparklog.opening import (
    KAFKA_DIRECTORY,
    KAFKA_PARTITION,
    NOTHING,
    exists,
    open_log,
    resolve,
)
from sparklog.storage import open_store
from sparklog.storage.locations import is_url


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
        checks.check_workers(machine, settings.values.get("spark.pyspark.python"), spark=spark),
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
