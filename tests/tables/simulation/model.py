"""Copies of a topic to a table while responses are lost, commits arrive late, processes are killed and other programs
change the table and the topic.

The topic has producers, transactions that commit or abort, retention and compaction. Two runs of the copy work at the
same time. With the profile `rejected`, a third copy has wrong options, with which it must not create the table. At the
end, one more run copies the remaining records. The rows must then be those of a replay of the topic.

With the profiles `contended` and `root contended`, the two runs always begin at about the same time, one with short
intervals and one with long intervals. With the profile `contended`, every second record is bad, and the first run often
fails after its commit to the quarantine table. With the profile `root contended`, the first run often writes the entry
of its commit late, and the versions of the table expire after each run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import sparklog
from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, Unavailable
from sparklog.log.topic.root import Root, RootView, open_root
from sparklog.maintenance.work_items import T, WorkItem
from sparklog.tables.copy import IN_PROCESS, TableCopy, TableCopyOptions
from sparklog.tables.root_watermark import RootWatermarkTable
from sparklog.tables.rows import RowOptions
from sparklog.tables.slices import SliceWork
from sparklog.tables.target import ChangeSet, NewFile, NewOutput, TableLayout, TableState, TargetTable
from sparklog.tables.watermark import Watermark
from sparklog.testing.faulty_store import Crash, Decide
from sparklog.transactions.producer import transactional
from tests.support.simulation.faults import CRASHES, ERRORS
from tests.support.simulation.runs import Body, SimulatedRun, restarted
from tests.support.simulation.scheduler import Actor, expect
from tests.tables.memory_table import MemoryCatalog, MemoryTable, Version

TOPIC, PARTITIONS, KEYS = "t", 2, 6
ROWS = RowOptions("json", schema="n INT, k INT", headers=False)
UPSERT = RowOptions("json", schema="n INT, k INT", headers=False, upsert=True, key_columns=("k",))
REJECTED = "rejected"
"""The profile of append runs in which another copy has wrong options. It is used only if it is requested."""
CONTENDED, ROOT_CONTENDED = "contended", "root contended"
"""The profiles of append runs in which another run often commits first. They are used only if they are requested."""
WRONG = RowOptions("json", schema="n INT, k INT, other INT NOT NULL", headers=False)
"""Columns that no record has."""
ROUND_MS = 4_000
"""The time between two runs of a contending copy."""
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "segment.bytes": 200, "segment.ms": 1000}


class CheckedCatalog(MemoryCatalog):
    """A catalog that checks that the files of a version exist."""

    def rows(self, version: Version | None = None) -> pa.Table:
        version = version or self.current
        assert version is not None
        missing = [path for path in version.paths if not self.files.get(path)]
        expect(not missing, f"version {version.number} contains files that were deleted: {missing}")
        return super().rows(version)


@dataclass
class FaultyCatalog:
    """A catalog whose requests fail as the seed decides. `late` contains commits that are still in flight."""

    run: CopyRun
    rate: float
    kinds: Sequence[str]
    only_commits_of: str = ""
    """The only actor whose requests fail, and only its commits."""
    catalog: CheckedCatalog = field(default_factory=CheckedCatalog)
    late: list[Callable[[], object]] = field(default_factory=list)

    def land(self, chance: float) -> None:
        """Let commits that are in flight take effect."""
        for commit in list(self.late):
            if self.run.source.random() < chance:
                self.late.remove(commit)
                try:
                    commit()
                    self.run.count("late commits")
                except Conflict:
                    self.run.count("late conflicts")

    def request(self, actor: Actor, what: str, call: Callable[[], Any], *, is_commit: bool = False) -> Any:
        """Make a request of an actor."""
        actor.yield_()
        self.land(0.1)
        is_exempt = self.only_commits_of and not (is_commit and actor.name == self.only_commits_of)
        is_faulty = actor.random.random() < self.rate and not is_exempt
        kind = actor.random.choice(self.kinds) if is_faulty else ""
        if kind:
            actor.note(f"{what}: {kind}")
        if kind == "crash before":
            raise Crash(what)
        if kind == "error before":
            raise Unavailable(f"{what} failed")
        if kind == "late" and is_commit:
            self.late.append(call)
            self.lose_response(actor, what)
        try:
            result = call()
        except Conflict as error:
            self.run.count("conflicts")
            actor.note(f"{what}: {error}")
            raise
        actor.note(what)
        if is_commit:
            self.run.count("commits")
        if kind == "crash after":
            raise Crash(what)
        if kind == "error after" and is_commit:
            self.lose_response(actor, what)
        return result

    def lose_response(self, actor: Actor, what: str) -> None:
        """Let the client wait for a response until its timeout."""
        self.run.count("lost responses")
        actor.sleep(actor.random.uniform(0.0, 10.0))
        raise Unavailable(f"the response of {what} was lost", is_unknown=True)


class FaultyTable(MemoryTable):
    """The table as one process sees it."""

    def __init__(self, faulty: FaultyCatalog, actor: Actor, name: str, has_properties: bool = True) -> None:
        super().__init__(faulty.catalog, name, has_properties=has_properties)
        self.faulty = faulty
        self.actor = actor

    def load(self) -> TableState | None:
        return self.faulty.request(self.actor, "load", super().load)

    def create(self, layout: TableLayout, watermark: Watermark) -> TableState:
        call = super().create
        return self.faulty.request(self.actor, "create", lambda: call(layout, watermark), is_commit=True)

    def add_columns(self, state: TableState, columns: Sequence[pa.Field]) -> TableState:
        call = super().add_columns
        return self.faulty.request(self.actor, "add columns", lambda: call(state, columns))

    def open_output(self, state: TableState, name: str) -> NewOutput:
        call = super().open_output
        return self.faulty.request(self.actor, "open", lambda: call(state, name))

    def append(self, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        call = super().append
        self.faulty.request(self.actor, f"append to {self.name}", lambda: call(state, files, watermark), is_commit=True)

    def upsert(self, state: TableState, changes: ChangeSet, watermark: Watermark) -> None:
        # The files of an old version are deleted when the version expires.
        if any(path not in self.catalog.files for path in state.handle.paths):
            raise Unavailable(f"a file of version {state.handle.number} does not exist")
        path = self.merge(state, changes)
        self.faulty.request(self.actor, "upsert", lambda: self.commit_merged(state, path, watermark), is_commit=True)

    def delete_files(self, paths: Sequence[str]) -> None:
        call = super().delete_files
        self.faulty.request(self.actor, "delete", lambda: call(paths))


@dataclass
class SimulatedTasks:
    """Tasks that run in any order. The results of some attempts are lost, and some attempts run again later."""

    run_: CopyRun
    actor: Actor
    failures: float
    parallelism = 3
    delayed: list[SliceWork] = field(default_factory=list)

    def run(self, works: Sequence[T]) -> Iterator[tuple[T, Any]]:
        for work in [*self.delayed, *works]:
            if self.actor.random.random() < self.failures:
                self.attempt(work)
                self.run_.count("repeated attempts")
        self.delayed = [work for work in works if isinstance(work, SliceWork)]
        if len(works) > 1:
            self.run_.count("divided intervals")
        for work in self.actor.random.sample(works, len(works)):
            yield work, self.attempt(work)

    def attempt(self, work: WorkItem) -> Any:
        try:
            return work.run()
        except SparklogError as error:
            return error


@dataclass
class CopyRun(SimulatedRun):
    """One simulated run with the profile `append` or `upsert`, or with one of the profiles `root append`, `root upsert`
    and `root contended`, in which the watermarks of tables are in the root.
    """

    numbers: Counter[str] = field(default_factory=Counter)
    committed: list[int] = field(default_factory=list)
    """The numbers of all committed records."""
    bad: list[int] = field(default_factory=list)
    """The numbers of those that are not valid rows."""
    table: FaultyCatalog = field(init=False)
    quarantine: FaultyCatalog = field(init=False)
    task_failures: float | None = None
    """The share of the attempts of tasks whose results are lost, or None if no tasks are used."""

    max_offsets: dict[str, Sequence[int]] = field(default_factory=dict)
    """The values of `max_offsets` of each copy, if they are not the default ones."""

    PROFILES = ("append", "upsert")
    STREAM = "table copies"

    @property
    def is_upsert(self) -> bool:
        return self.profile in ("upsert", "root upsert")

    @property
    def is_in_root(self) -> bool:
        return self.profile in ("root append", "root upsert", ROOT_CONTENDED)

    @property
    def is_contended(self) -> bool:
        return self.profile in (CONTENDED, ROOT_CONTENDED)

    @property
    def bad_every(self) -> int:
        """The number of records of which one is bad."""
        return {CONTENDED: 2, ROOT_CONTENDED: 1_000}.get(self.profile or "", 7)

    def draw(self) -> None:
        self.draw_profile()
        if self.is_contended:
            self.draw_contended()
            return
        is_upsert, source = self.is_upsert, self.source
        rate = source.choice([0.0, 0.05, 0.15])
        kinds = source.choice(
            [
                ("error after", "late"),
                ("error before", "error after", "late"),
                ("crash before", "crash after", "error before", "error after", "late"),
            ]
        )
        self.table, self.quarantine = FaultyCatalog(self, rate, kinds), FaultyCatalog(self, rate, kinds)
        self.quarantine.catalog.table_id = "quarantine"
        setup = self.world.spawn("setup", lambda actor: None)
        root = open_root(self.world.store, create=True, env=setup.env)
        root.create_topic(TOPIC, partitions=PARTITIONS, configs=COMPACTED if is_upsert else {})
        self.task_failures = source.choice([None, 0.0, 0.2])
        kinds_of_store = source.choice([(), ERRORS, ERRORS + CRASHES])
        for number in range(2):
            self.spawn(f"producer-{number}", producer(self, 12))
            rates = [0.03, 0.1] if self.is_in_root else [0.01, 0.03]
            decide = self.seeded_faults(f"copy-{number}", rates, kinds_of_store)
            self.spawn(f"copy-{number}", copier(self, decide, 12))
        self.spawn("other", other_program(self, self.table.catalog, 24 if self.is_in_root else 8))
        if self.is_in_root:
            self.spawn("other-quarantine", other_program(self, self.quarantine.catalog, 8))
        self.spawn("topic", compactor(self, 3) if is_upsert else retention(self, 4))
        if self.profile == REJECTED:
            self.spawn("rejected copies", rejected_copier(self, 5))

    def draw_contended(self) -> None:
        """Spawn a copy with short intervals and one with long intervals."""
        rate = 0.0 if self.is_in_root else 0.5
        self.table = FaultyCatalog(self, rate, ("crash before", "error before"), only_commits_of="short intervals")
        self.quarantine = FaultyCatalog(self, 0.0, ())
        self.quarantine.catalog.table_id = "quarantine"
        setup = self.world.spawn("setup", lambda actor: None)
        open_root(self.world.store, create=True, env=setup.env).create_topic(TOPIC, partitions=PARTITIONS)
        self.spawn("producer", producer(self, 16))
        for name, max_offsets, stall_rate in (("short intervals", 2, 0.2), ("long intervals", 1000, 0.0)):
            stalls = self.stalling_faults(name, [0.0], (), stall_rate if self.is_in_root else 0.0, 3_000)
            self.max_offsets[name] = (max_offsets,)
            self.spawn(name, copier(self, stalls, 10))
        if self.is_in_root:
            self.spawn("expiry", expiry(self, self.table.catalog, 10))

    def options(self, source: Any, max_offsets: Sequence[int] = (4, 1000)) -> TableCopyOptions:
        if self.is_upsert:
            return TableCopyOptions(UPSERT, max_offsets=source.choice(max_offsets))
        return TableCopyOptions(ROWS, bad_records="quarantine", max_offsets=source.choice(max_offsets))

    def table_copy(self, root: Root, actor: Actor) -> TableCopy:
        tables = [
            self.located(FaultyTable(faulty, actor, name, has_properties=not self.is_in_root), root)
            for faulty, name in ((self.table, "t"), (self.quarantine, "q"))
        ]
        quarantine = None if self.is_upsert else tables[1]
        runner = IN_PROCESS if self.task_failures is None else SimulatedTasks(self, actor, self.task_failures)
        options = self.options(actor.random, self.max_offsets.get(actor.name, (4, 1000)))
        copy = TableCopy(RootView(root), TOPIC, tables[0], options, quarantine, actor.note, runner)
        copy.min_slice_records = 1
        return copy

    def located(self, table: MemoryTable, root: Root, resume_offsets: Mapping[int, int] | None = None) -> TargetTable:
        """Return a table whose watermark is where the profile says."""
        return RootWatermarkTable(table, root, resume_offsets) if self.is_in_root else table

    def check_result(self) -> None:
        self.land_late_requests()
        for faulty in (self.table, self.quarantine):
            faulty.land(1.0)
        root = self.outsider("end")
        tables = []
        for catalog in (self.table.catalog, self.quarantine.catalog):
            # A user finds the copied offsets in the rows. Here, they are in the properties, which the copy ignores.
            current = catalog.current
            copied = current.watermark.next_offsets if current is not None and current.watermark is not None else None
            tables.append(self.located(MemoryTable(catalog, has_properties=not self.is_in_root), root, copied))
        options = self.options(self.source)
        TableCopy(RootView(root), TOPIC, tables[0], options, None if self.is_upsert else tables[1]).copy_existing()
        rows = self.table.catalog.rows().to_pylist()
        if self.is_upsert:
            latest = {
                int(row["key"]): json.loads(row["value"])["n"]
                for row in pa.table(root.topic(TOPIC).table(columns=["key", "value"])).to_pylist()
            }
            found = Counter((row["k"], row["n"]) for row in rows)
            expect(found == Counter(latest.items()), f"expected the rows {latest}, found {found}")
            return
        good = Counter(set(self.committed) - set(self.bad))
        found = Counter(row["n"] for row in rows)
        expect(found == good, f"missing rows: {good - found}, additional rows: {found - good}")
        positions = Counter((row["_partition_id"], row["_offset"]) for row in rows)
        expect(not positions or max(positions.values()) == 1, f"positions are repeated: {positions}")
        bad_rows = self.quarantine.catalog.rows().to_pylist() if self.quarantine.catalog.versions else []
        quarantined = Counter(int(row["value"].rpartition(b" ")[2]) for row in bad_rows)
        bad = Counter(self.bad)
        expect(quarantined == bad, f"missing bad records: {bad - quarantined}, additional: {quarantined - bad}")


def producer(run: CopyRun, rounds: int) -> Body:
    """Append batches, some of them in transactions that commit or abort."""

    def body(actor: Actor) -> None:
        root = run.root(actor)
        for round_ in range(rounds):
            actor.sleep(actor.random.uniform(0.0, 2.0))
            numbers, records = batch(run, actor)
            if actor.random.random() < 0.6:
                root.topic(TOPIC).append(records)
            else:
                transaction = transactional(root, f"{actor.name}-{round_}").begin()
                transaction.append(TOPIC, records)
                transaction.prepare()
                # The records of an open transaction limit the last stable offset.
                actor.sleep(actor.random.uniform(0.0, 3.0))
                if actor.random.random() < 0.4:
                    transaction.abort()
                    continue
                transaction.commit()
            run.committed += numbers
            run.bad += [number for number in numbers if number % run.bad_every == 0 and not run.is_upsert]

    return body


def batch(run: CopyRun, actor: Actor) -> tuple[list[int], pa.Table]:
    """Return some records with consecutive numbers. In an upsert run, some are tombstones; otherwise, some are bad."""
    first, count = run.numbers["records"], actor.random.randint(1, 8 if run.is_contended else 4)
    run.numbers["records"] += count
    numbers = list(range(first, first + count))
    keys = [actor.random.randrange(KEYS) for _ in numbers]
    values: list[bytes | None] = []
    for number, key in zip(numbers, keys, strict=True):
        if run.is_upsert:
            values.append(None if actor.random.random() < 0.2 else json.dumps({"n": number, "k": key}).encode())
        else:
            values.append(
                b"bad %d" % number if number % run.bad_every == 0 else json.dumps({"n": number, "k": key}).encode()
            )
    return numbers, pa.table(
        {
            "key": pa.array([b"%d" % key for key in keys], pa.binary()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([key % PARTITIONS for key in keys], pa.int32()),
        }
    )


def copier(run: CopyRun, decide: Decide, rounds: int) -> Body:
    """Run the copy again and again."""

    def body(actor: Actor) -> None:
        remaining = iter(range(rounds))

        def life() -> None:
            for _ in remaining:
                actor.sleep(until_next(actor) if run.is_contended else actor.random.uniform(0.0, 3.0))
                if actor.name == "long intervals":
                    # The first commit is usually that of the other copy.
                    actor.sleep(actor.random.uniform(0.0, 0.1))
                try:
                    report = run.table_copy(run.root(actor, decide), actor).copy_existing()
                    run.count("copied records", report.records)
                except (Unavailable, Conflict, NotFound) as error:
                    actor.note(f"copy: {error.code} {error}")
                    run.count(f"copy {type(error).__name__}")
                except BadRequest as error:
                    if "resume_offsets" not in str(error):
                        raise
                    actor.note(f"copy: {error}")
                    run.count("unresolved commits")
                    return

        restarted(run, actor, life)

    return body


def rejected_copier(run: CopyRun, rounds: int) -> Body:
    """Run a copy that rejects all records. It must not create the table."""

    def body(actor: Actor) -> None:
        remaining = iter(range(rounds))

        def life() -> None:
            for _ in remaining:
                actor.sleep(actor.random.uniform(0.0, 1.0))
                root, table = run.root(actor), FaultyTable(run.table, actor, "t")
                # A copy of an empty topic creates the table.
                if not any(records.num_rows for records in root.topic(TOPIC).scan(columns=["offset"])):
                    continue
                try:
                    TableCopy(RootView(root), TOPIC, table, TableCopyOptions(WRONG)).copy_existing()
                except BadRequest:
                    run.count("rejected copies")
                except Unavailable as error:
                    actor.note(f"copy with wrong options: {error}")
                else:
                    expect(False, "a copy with wrong options was successful")

        restarted(run, actor, life)

    return body


def other_program(run: CopyRun, catalog: CheckedCatalog, rounds: int) -> Body:
    """Compact the files of the table, change its metadata, and expire its versions."""

    def body(actor: Actor) -> None:
        for number in range(rounds):
            actor.sleep(actor.random.uniform(0.0, 1.0 if run.is_in_root else 4.0))
            current = catalog.current
            if current is None:
                continue
            if run.is_in_root and not (current.watermark and current.watermark.commit_id):
                # A table that another program changes before the first commit of a copy belongs to that program.
                continue
            action = actor.random.choice(["compact", "metadata", "expire"])
            if action == "compact":
                path = f"compacted-{number}.parquet"
                write(catalog, path, catalog.rows(current))
                actor.yield_()
                try:
                    catalog.commit(current, paths=(path,))
                    run.count("compacted")
                except Conflict:
                    del catalog.files[path]
            elif action == "metadata":
                catalog.change()
            else:
                expired = {path for version in catalog.versions[:-1] for path in version.paths}
                del catalog.versions[:-1]
                for path in expired - set(catalog.versions[-1].paths):
                    catalog.files.pop(path, None)
            actor.note(f"another program: {action}")

    return body


def expiry(run: CopyRun, catalog: CheckedCatalog, rounds: int) -> Body:
    """Commit a version without changes, and expire all others, before contending copies begin."""

    def body(actor: Actor) -> None:
        for _ in range(rounds):
            actor.sleep(until_next(actor, ROUND_MS - 200))
            if catalog.current is not None and catalog.current.summary is not None:
                catalog.commit(catalog.current)
                del catalog.versions[:-1]
                run.count("expired")

    return body


def until_next(actor: Actor, offset_ms: int = 0) -> float:
    """Return the number of seconds until the next round of contending copies, or until an offset of it."""
    return (ROUND_MS - (actor.env.boot_ms() - offset_ms) % ROUND_MS) / 1000


def write(catalog: CheckedCatalog, path: str, rows: pa.Table) -> None:
    output = pa.BufferOutputStream()
    pq.write_table(rows, output)
    catalog.files[path] = output.getvalue().to_pybytes()


def retention(run: CopyRun, rounds: int) -> Body:
    """Delete records from the topic that the table contains."""

    def body(actor: Actor) -> None:
        for _ in range(rounds):
            actor.sleep(actor.random.uniform(0.0, 6.0))
            current = run.table.catalog.current
            if current is not None and current.watermark is not None:
                run.root(actor).topic(TOPIC).delete_records(dict(current.watermark.next_offsets))
                run.count("deleted records")

    return body


def compactor(run: CopyRun, rounds: int) -> Body:
    """Compact the topic."""

    def body(actor: Actor) -> None:
        for _ in range(rounds):
            actor.sleep(actor.random.uniform(0.0, 6.0))
            reports = sparklog.compact(run.root(actor), topics=[TOPIC], roll=True)
            run.count("compacted topic", len(reports))

    return body
