"""The supervisor: it starts each role, kills, suspends and replaces processes at random, and completes the run."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import sparklog
from tests.torture import checks, jobs, readers, spark_program, writers
from tests.torture.process import FAULTS, MARK, LedgerTail, Process, Step, World, environment

TOPIC_CONFIGS = {"segment.bytes": 60_000, "file.delete.delay.ms": 120_000, "inline.records.bytes": 4_000}


@dataclass(frozen=True)
class Role:
    """A role: the number of its processes, the weight for kills, and the mean pause between steps.

    `place` is `disk`, `mount` or `either`. `least_s` is the minimum lifetime of a process. With `overlaps`, a suspended
    process may be replaced and continue next to its successor, which must fence it.
    """

    name: str
    begin: Callable[[Process], Step]
    count: int = 1
    weight: float = 1
    pause_s: float = 0.5
    place: str = "either"
    least_s: float = 1
    overlaps: bool = False


ROLES = (
    Role("plain", writers.appender, 2, weight=2, pause_s=0.6, overlaps=True),
    Role("expiring", writers.expiring_appender, overlaps=True, pause_s=1),
    Role("sequenced", writers.sequenced_producer, 2, weight=2, pause_s=0.8, overlaps=True),
    Role("transactor", writers.transactor, 3, weight=2, overlaps=True, pause_s=1),
    Role("keyed", writers.keyed_writer, 2, pause_s=0.8),
    Role("sharer", readers.sharer, 3, place="disk", pause_s=0.3, least_s=4),
    Role("copier", readers.copier, 2, weight=2, place="mount", pause_s=0.3, least_s=4),
    Role("compactor", jobs.compactor, weight=2, pause_s=4),
    Role("retainer", jobs.retainer, pause_s=6),
    Role("repairer", jobs.repairer, pause_s=60, least_s=10),
    Role("verifier", jobs.verifier, pause_s=60, least_s=30),
    Role("repartitioner", jobs.repartitioner, pause_s=6),
    Role("keeper", jobs.keeper, pause_s=15, least_s=20),
    Role("order-reader", readers.order_reader, 2, weight=0.3, pause_s=1),
    Role("transaction-reader", readers.transaction_reader, 2, weight=0.3, pause_s=1),
    # A mount shows acknowledged records with a delay.
    Role("key-reader", readers.key_reader, weight=0.3, pause_s=3, place="disk"),
    Role("server", jobs.server, 2, weight=2, least_s=10),
    Role("kafka-producer", writers.kafka_producer, least_s=8),
    Role("kafka-reader", readers.kafka_reader, 2, pause_s=0.2, least_s=8),
    Role("spark", jobs.spark, weight=2, least_s=90),
)


@dataclass
class Member:
    """A process of a role. `until` is the time when a suspended process continues."""

    role: Role
    name: str
    pid: int
    began: float
    until: float = 0.0


class Supervisor:
    def __init__(self, world: World, roles: Sequence[Role]) -> None:
        self.world, self.roles = world, roles
        self.random = random.Random(world.seed)
        self.members: dict[int, Member] = {}
        self.incarnations: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._faults = LedgerTail(world.ledger(FAULTS))
        self.faults: list[str] = []

    # -- processes

    def start(self, role: Role, name: str) -> None:
        number = self.incarnations[name]
        self.incarnations[name] += 1
        place = role.place if role.place != "either" else self.random.choice(["disk", "mount"])
        pid = os.fork()
        if pid == 0:
            self._be(role, name, number, self.world.mount if place == "mount" else self.world.disk)
        self.members[pid] = Member(role, name, pid, time.monotonic())

    def _be(self, role: Role, name: str, number: int, place: Path) -> None:
        """Run a role until the process ends."""
        try:
            os.setsid()
            output = os.open(self.world.folder / "logs" / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            Process(self.world, name, number, place).run(role.begin, role.pause_s)
        finally:
            os._exit(0)

    def _reap(self) -> None:
        """Replace processes that have exited."""
        for member in list(self.members.values()):
            if os.waitpid(member.pid, os.WNOHANG)[0]:
                del self.members[member.pid]
                self.counts[f"ended {member.role.name}"] += 1
                self._replace(member)

    def _replace(self, member: Member) -> None:
        if all(other.name != member.name for other in self.members.values()):
            self.start(member.role, member.name)

    def _kill(self, member: Member) -> None:
        kill(member.pid)
        os.waitpid(member.pid, 0)
        del self.members[member.pid]

    def _trouble(self) -> None:
        """Kill or suspend a random process."""
        now = time.monotonic()
        candidates = [each for each in self.members.values() if not each.until and now - each.began > each.role.least_s]
        if not candidates:
            return
        member = self.random.choices(candidates, [each.role.weight for each in candidates])[0]
        name, chance = member.role.name, self.random.random()
        if chance < 0.75:
            self.counts[f"killed {name}"] += 1
            self._kill(member)
            self._replace(member)
            return
        self.counts[f"stopped {name}"] += 1
        os.killpg(member.pid, signal.SIGSTOP)
        member.until = now + self.random.choice([0.5, 2, 5, 20])
        if member.role.overlaps and chance > 0.9:
            self.counts[f"overlapped {name}"] += 1
            self.start(member.role, member.name)

    def _continue(self, *, at_once: bool = False) -> None:
        for member in self.members.values():
            if member.until and (at_once or time.monotonic() > member.until):
                member.until = 0.0
                os.killpg(member.pid, signal.SIGCONT)

    def watch(self, seconds: float) -> None:
        """Run all roles for a time."""
        for role in self.roles:
            for number in range(role.count):
                self.start(role, f"{role.name}-{number}")
        end = time.monotonic() + seconds
        trouble = time.monotonic() + min(5.0, seconds / 3)
        while time.monotonic() < end:
            time.sleep(0.1)
            self._reap()
            self._continue()
            self.report_faults()
            if time.monotonic() > trouble:
                self._trouble()
                trouble = time.monotonic() + self.random.expovariate(self.world.pace)
        for member in list(self.members.values()):
            self._kill(member)

    # -- final checks

    def report_faults(self) -> None:
        for _, (name, message) in self._faults.new():
            self.add_fault(f"{name}: {message}")

    def add_fault(self, message: str) -> None:
        self.faults.append(message)
        print(f"FAULT {message}", flush=True)

    def finish(self) -> None:
        """End open transactions and copies, then check everything."""
        root = sparklog.open(self.world.disk)
        for name in self.incarnations:
            if name.startswith(("transactor", "copier")):
                sparklog.transactional(root, name).begin().abort()
        sparklog.repartition(root, writers.SEQUENCED, jobs.GROWN, partitions=jobs.GROWN_PARTITIONS)
        if self.incarnations["spark-0"]:
            self._finish_query()
        for done in (*sparklog.compact(root, roll=True), *sparklog.retain(root)):
            for failure in done.failures:
                self.add_fault(f"maintenance at the end: {failure}")
        counts = checks.Counts()
        for problem in checks.check_root(self.world, counts):
            self.add_fault(problem)
        self.counts.update(counts)
        for finding in sparklog.verify(self.world.disk).findings:
            self.add_fault(f"verify at the end: {finding}")
        if (report := sparklog.repair(self.world.disk)).before:
            self.add_fault(f"repair at the end: {report}")
        self.counts["versions"] = sum(root.topic(name).describe().version for name in root.topics())
        self._count_ledgers()

    def _finish_query(self) -> None:
        command = [sys.executable, "-m", "tests.torture.spark_program", str(self.world.folder), str(self.world.disk)]
        log = self.world.folder / "logs" / "spark-finish.log"
        for _ in range(5):
            with log.open("a") as output:
                done = subprocess.run(
                    [*command, "spark-0", "--finish"],
                    stdout=output,
                    stderr=output,
                    check=False,
                    env=environment(self.world),
                )
            if done.returncode == 0:
                return
        self.add_fault(f"the streaming query does not reach the end of its input: {log}")

    def _count_ledgers(self) -> None:
        for path in self.world.ledger("x").parent.glob("*.jsonl"):
            role = path.stem.rpartition("-")[0]
            for kind, content in LedgerTail(path).new():
                if kind == "error":
                    message = re.sub(r"[0-9a-zA-Z_-]{20,}|\d+", "N", str(content[1]))
                    self.counts[f"error of {role}: {content[0]}: {message[:300]}"] += 1
                elif kind in ("done", "restored", "copied", "records", "started", "grown", "finished"):
                    self.counts[f"steps {kind} of {role}"] += 1
        for path in (self.world.folder / "logs").glob("*.log"):
            if count := path.read_text(errors="replace").count("Traceback (most recent call last)"):
                self.counts[f"tracebacks in the log of {path.stem}"] += count
                if not path.stem.startswith("spark"):
                    self.add_fault(f"{count} tracebacks in {path}")


def kill(pid: int) -> None:
    """Kill a process and its group."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_all(folder: Path) -> None:
    """Kill the remaining programs of a run."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            pid = int(path.parent.name)
            if f"{MARK}={folder}".encode() in path.read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)


def free_ports(count: int) -> tuple[int, ...]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = tuple(each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return ports


@contextmanager
def mounted(folder: Path) -> Iterator[bool]:
    """Mount `disk` of a directory at `mount` with caches of names and attributes for 3 s; return False if it fails."""
    (folder / "disk").mkdir()
    (folder / "mount").mkdir()
    bindfs = shutil.which("bindfs")
    if bindfs is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("no caching mount: bindfs and /dev/fuse are needed; all roles work on the disk")
        yield False
        return
    caches = "attr_timeout=3,entry_timeout=3,negative_timeout=3"
    subprocess.run([bindfs, "-o", caches, folder / "disk", folder / "mount"], check=True)
    try:
        yield True
    finally:
        subprocess.run(["fusermount", "-u", "-z", folder / "mount"], check=False)


def create_root(world: World) -> None:
    """Create the topics, and load the modules that each process needs before it is forked."""
    root = sparklog.open(world.disk, create=True)
    root.alter_defaults({"log.retention.ms": -1})
    compacted: dict[str, object] = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.01,
        "delete.retention.ms": 60_000,
    }
    expiring: dict[str, object] = {"retention.ms": 60_000, "segment.ms": 20_000}
    names = (writers.PLAIN, *writers.TRANSACTED, writers.SERVED, *spark_program.STREAMED, spark_program.BATCHED)
    topics: dict[str, tuple[int, dict[str, object]]] = {
        **dict.fromkeys(names, (2, {})),
        **dict.fromkeys((writers.SEQUENCED, readers.COPIES), (3, {})),
        writers.LATEST: (2, compacted),
        writers.EXPIRING: (2, expiring),
    }
    for name, (partitions, configs) in topics.items():
        root.create_topic(name, partitions=partitions, configs=TOPIC_CONFIGS | configs, force=True)
    warm = root.create_topic("warm")
    warm.append({"key": ["key"], "value": ["value"]})
    warm.scan().to_table()
    sparklog.compact(root, topics=["warm"], roll=True)
    root.delete_topic("warm")
    with suppress(ImportError):
        import kafka  # noqa: F401


def run(folder: Path, *, minutes: float, seed: int, pace: float = 1.0, roles: Sequence[Role] = ROLES) -> bool:
    """Run these roles for a time in a new directory, and print the counts. Return True if there were no errors."""
    for name in ("ledgers", "logs", "spark", "restored"):
        (folder / name).mkdir(parents=True)
    with mounted(folder) as has_mount:
        world = World(folder, seed, pace, free_ports(2), has_mount)
        (folder / "world.json").write_text(json.dumps(asdict(world), default=str))
        create_root(world)
        supervisor = Supervisor(world, roles)
        try:
            supervisor.watch(minutes * 60)
            kill_all(folder)
            supervisor.report_faults()
            supervisor.finish()
        finally:
            for member in supervisor.members.values():
                kill(member.pid)
            kill_all(folder)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    supervisor.counts["CPU seconds"] = int(sum(each.ru_utime + each.ru_stime for each in used))
    (folder / "counts.json").write_text(json.dumps(supervisor.counts, indent=1, sort_keys=True))
    for name, count in sorted(supervisor.counts.items()):
        print(f"{count:9,} {name}")
    print(f"{len(supervisor.faults)} faults; ledgers and logs: {folder}")
    return not supervisor.faults
