"""Roles that maintain, copy and check the root, and roles that run servers and Spark."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import sparklog
from sparklog.errors import Conflict, NotFound
from tests.torture.process import Process, Step, become
from tests.torture.writers import PLAIN, SEQUENCED

GROWN, GROWN_PARTITIONS, MAX_PARTITIONS = "grown", 7, 6
HOUR_MS = 3_600_000


def compactor(process: Process) -> Step:
    root = process.root()

    def step() -> None:
        roll, seal_only = process.random.random() < 0.2, process.random.random() < 0.2
        for report in sparklog.compact(root, roll=roll, seal_only=seal_only):
            for failure in report.failures:
                process.log("error", "failure", str(failure))
        process.log("done")

    return step


def retainer(process: Process) -> Step:
    """Expire records and delete files. Without a mount, the clock is sometimes ahead, so that more files are deleted.

    With a mount that caches names, readers need the time of `file.delete.delay.ms`.
    """
    root = process.root()

    def step() -> None:
        ahead = [0] if process.world.mounted else [0, 0, 0, 2 * HOUR_MS, 8 * 24 * HOUR_MS]
        ahead_ms = process.random.choice(ahead)
        for report in sparklog.retain(root, now_ms=int(time.time() * 1000) + ahead_ms):
            for failure in report.failures:
                process.log("error", "failure", str(failure))
        process.log("done")

    return step


def repairer(process: Process) -> Step:
    """Repair the root, and check that nothing is damaged."""

    def step() -> None:
        report = sparklog.repair(process.place, execute=True)
        if report.before or report.left:
            process.fault(
                f"repair of a sound root: {report.before} findings, repaired {report.repaired}, {report.left}"
            )
        process.log("done", len(report.repaired))

    return step


def verifier(process: Process) -> Step:
    def step() -> None:
        began = time.time()
        report = sparklog.verify(process.place)
        if not report.sound:
            process.fault(f"verify: {[str(finding) for finding in report.findings]}")
        process.log("done", round(time.time() - began, 1))

    return step


def repartitioner(process: Process) -> Step:
    """Continue the copy with another number of partitions; sometimes add a partition to a topic."""
    root = process.root()

    def step() -> None:
        made = sparklog.repartition(root, SEQUENCED, GROWN, partitions=GROWN_PARTITIONS)
        process.log("done", made.records)
        topic = root.topic(PLAIN)
        partitions = len(topic.bounds())
        if partitions < MAX_PARTITIONS and process.random.random() < 0.05:
            topic.alter(partitions=partitions + 1)
            process.log("grown", partitions + 1)

    return step


def keeper(process: Process) -> Step:
    """Back up, sometimes prune, and sometimes restore and check the restored root."""
    from tests.torture.checks import check_restored

    root, backups = process.root(), process.world.folder / "backups"
    number = 0

    def step() -> None:
        nonlocal number
        keep = process.random.choice([None, 2])
        try:
            made = sparklog.backup(root, backups, keep=keep)
            process.log("done", made.number)
        except Conflict as error:
            process.log("error", "Conflict", str(error))
        age_marks(backups)
        if process.random.random() < 0.4:
            restored = process.world.folder / "restored" / f"{process.id}-{number}"
            number += 1
            moment = int(time.time() * 1000 - process.random.random() * 10_000)
            try:
                sparklog.restore(backups, restored, time_ms=process.random.choice([None, moment]))
            except NotFound as error:
                process.log("error", "NotFound", str(error))
            else:
                if problems := list(check_restored(process.world, restored)):
                    process.fault(f"{restored}, of {backups}: {problems}")
                    return
                process.log("restored")
            shutil.rmtree(restored, ignore_errors=True)

    return step


def age_marks(backups: Path) -> None:
    """Set the age of the mark of a killed run to six hours, after which backups are pruned again."""
    for mark in (backups / "_backups" / "running").glob("*"):
        age_s = time.time() - mark.stat().st_mtime
        if 60 < age_s < 6 * 3600:
            os.utime(mark, (time.time() - 7 * 3600,) * 2)


def server(process: Process) -> Step:
    """Replace the process by `sparklog serve`."""
    own = int(process.name.rpartition("-")[2])
    addresses = process.world.addresses[own:] + process.world.addresses[:own]
    options = ["--listen", addresses[0], "--advertise", ",".join(addresses)]
    become(process, ["-m", "sparklog", "serve", str(process.place), "--writable", *options])
    raise AssertionError("unreachable")


def spark(process: Process) -> Step:
    """Replace the process by the Spark program."""
    world = process.world
    become(process, ["-m", "tests.torture.spark_program", str(world.folder), str(process.place), process.name])
    raise AssertionError("unreachable")
