"""Roots on a disk with one damaged object: they are read, verified, repaired and read again.

`rich_root` creates a small root with all types of objects. `Trial` copies it to a directory, damages one object, and
checks:

* each read has the same result as before the damage, or raises a `SparklogError`
* verify or a read reports the damage
* after a repair whose report is sound, each read has the same result as before the damage, and the repaired objects
  have their original bytes
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import sparklog
from sparklog.compaction.run import CompactOptions
from sparklog.errors import SparklogError
from sparklog.groups.lag import Groups
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.log.journal import documents
from sparklog.log.journal.documents import document_of
from sparklog.log.topic.root import Root
from sparklog.maintenance.job_history import read_job_history
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.storage.local import LocalStore
from sparklog.testing.world import DAY_MS, World
from sparklog.tools.repair.run import repair_root
from sparklog.tools.verification.findings import Report
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.completion import collect, resolve_topic
from sparklog.transactions.producer import transactional
from tests.support.compaction import compact_topic
from tests.support.small_limits import small_limits
from tests.tools.verification.whole_root import rows

Objects = Mapping[str, bytes]
TOPICS = ("latest", "small", "files", "left", "right", "txn-a", "txn-b")
LEVELS = ("read_committed", "read_uncommitted")
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": 4096, "index.interval.bytes": 200, "inline.records.bytes": 0}


def rich_root(fixtures: Path) -> dict[str, bytes]:
    """Return the objects of a root with all types of objects.

    The root has compacted segments with filters, append files, inline records, checkpoints, imported transactions, own
    transactions with a register, groups, leases, outcomes and defaults.
    """
    world = World()
    with small_limits(checkpoint_commits=4, checkpoint_entries=3, filter_min_bytes=200):
        root = world.root()
        root.alter_defaults({"log.retention.ms": -1})
        root.alter_defaults({"retention.ms": -1}, pattern="audit-.*")
        latest = root.create_topic("latest", configs=CONFIGS)
        for number in range(4):
            latest.append(rows(40 * number, 40, 1, keys=100))
            world.now_ms += 1000
        compact_topic(latest, Settings(world.now_ms + 3650 * DAY_MS), InProcess(), CompactOptions(roll=True))
        latest.append(rows(200, 5, 1))
        files = root.create_topic("files", partitions=2, configs={"inline.records.bytes": 0})
        small = root.create_topic("small")
        for number in range(6):
            small.append(rows(4 * number, 4, 1))
            files.append(rows(6 * number, 6, 2))
        for name in ("left", "right"):
            root.create_topic(name)
        _transactions(root, world)
        group = Groups(root).group("g")
        for number in range(5):
            group.alter({"latest": {0: number}, "small": {0: number}})
        import_log_dir(root, fixtures / "transactions" / "data", ImportOptions(topics=("txn-a", "txn-b")))
        sparklog.compact(root, topics=["small"])
        sparklog.retain(root, topics=["small"])
    return {info.key: world.store.get(info.key) for info in world.store.list("") if not info.key.startswith("_probe")}


def _transactions(root: Root, world: World) -> None:
    """Create an expired transactional id, an active one, and an open transaction."""
    for number, id_ in enumerate(("gone", *("job",) * 4)):
        transaction = transactional(root, id_, timeout_ms=DAY_MS).begin()
        for name in ("left", "right"):
            transaction.append(name, rows(3 * number, 3, 1))
        if number:
            transaction.send_offsets("billing", {"small": {0: number}})
        (transaction.abort if number == 2 else transaction.commit)()
        if not number:
            for days in (2, 1, 8):
                world.now_ms += days * DAY_MS
                for name in ("left", "right"):
                    resolve_topic(root.topic(name))
                collect(root, expiration_ms=DAY_MS)
    undecided = transactional(root, "other", timeout_ms=DAY_MS).begin()
    undecided.append("left", rows(90, 3, 1))
    undecided._prepare_topics()


# ---------------------------------------------------------------- reads

Reads = dict[str, object]
"""The result or the error by the name of the read."""


def read_all(root_of: Callable[[], Root]) -> Reads:
    """Read everything of a root; the result of a failed read is the error of sparklog."""
    found: Reads = {}

    def take(what: str, read: Callable[[], object]) -> None:
        try:
            found[what] = read()
        except SparklogError as error:
            found[what] = error

    try:
        root = root_of()
    except SparklogError as error:
        return {"root": error}
    take("defaults", lambda: root.defaults())
    take("outcomes", lambda: read_job_history(root))
    for name in TOPICS:
        take(f"configs of {name}", lambda name=name: root.topic(name).log.state().configs)  # type: ignore[misc]
        partitions = 2 if name in ("files", "txn-a", "txn-b") else 1
        for level in LEVELS:
            for partition in range(partitions):

                def scan(name: str = name, level: str = level, partition: int = partition) -> pa.Table:
                    return root.topic(name).scan(partitions=[partition], isolation_level=level).to_table()

                take(f"{name}-{partition} {level}", scan)
    for number in (3, 77, 150):
        key = f"key-{number % 100}"
        take(f"key {key}", lambda key=key: root.topic("latest").get(key))  # type: ignore[misc]
    for group in ("g", "billing"):
        take(f"group {group}", lambda group=group: Groups(root).group(group).committed())  # type: ignore[misc]
    for id_ in ("gone", "job", "other"):
        take(f"decisions of {id_}", lambda id_=id_: root.engine.decisions.log(id_).refresh().newest)  # type: ignore[misc]
    return found


def differing(before: Reads, after: Reads) -> list[str]:
    """Return the names of reads with another result that is not an error."""
    root_error = after.get("root")
    if root_error is not None:
        return []
    return [what for what, was in before.items() if not isinstance(after[what], SparklogError) and after[what] != was]


def is_older(before: object, after: object) -> bool:
    """Return True if a result may be that of an earlier version; for a topic, the first records in order."""
    if isinstance(before, pa.Table) and isinstance(after, pa.Table):
        return bool(after.equals(before.slice(0, len(after))))
    return not isinstance(before, pa.Table)


# ---------------------------------------------------------------- damage


def _spliced(data: bytes, start: int, end: int, new: bytes) -> bytes:
    return data[:start] + new + data[end:]


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randrange(max(len(data), 1))


Change = Callable[[bytes, random.Random], bytes]


def _flipped(data: bytes, at: int, rng: random.Random) -> bytes:
    if not data:
        return b"\1"
    return _spliced(data, at, at + 1, bytes([data[at] ^ 1 << rng.randrange(8)]))


def _edited(data: bytes, rng: random.Random) -> bytes:
    """Change one number of a document and correct its checksum; flip a bit of other objects."""
    whole = document_of(data)
    try:
        document = json.loads(whole)
        del document["crc"]
    except (ValueError, KeyError, TypeError):
        return _flipped(data, _place(data, rng), rng)
    places: list[tuple[object, object]] = []

    def walk(value: object) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, item in items:
            if type(item) is int and name != "format":
                places.append((value, name))
            walk(item)

    walk(document)
    if places:
        holder, name = rng.choice(places)
        holder[name] = max(0, holder[name] + rng.choice((-1, 1, 2, 1000)))  # type: ignore[index]
    return documents.encode(document) + data[len(whole) :]


CHANGES: dict[str, Change] = {
    "flip": lambda data, rng: _flipped(data, _place(data, rng), rng),
    "flip at the start": lambda data, rng: _flipped(data, rng.randrange(min(len(data), 16) or 1), rng),
    "flip at the end": lambda data, rng: _flipped(data, len(data) - 1 - rng.randrange(min(len(data), 16) or 1), rng),
    "two flips": lambda data, rng: CHANGES["flip"](CHANGES["flip"](data, rng), rng),
    "smash": lambda data, rng: _spliced(data, at := _place(data, rng), at + 9, rng.randbytes(len(data[at : at + 9]))),
    "cut": lambda data, rng: data[: _place(data, rng)],
    "cut one byte": lambda data, rng: data[:-1],
    "cut a few bytes": lambda data, rng: data[: -rng.randrange(2, 12)],
    "cut to one byte": lambda data, rng: data[:1],
    "cut the start": lambda data, rng: data[_place(data, rng) + 1 :],
    "empty": lambda data, rng: b"",
    "zero": lambda data, rng: bytes(len(data)),
    "zero the end": lambda data, rng: data[: (at := _place(data, rng))] + bytes(len(data) - at),
    "zero the start": lambda data, rng: bytes(min(16, len(data))) + data[16:],
    "zero within": lambda data, rng: _spliced(data, at := _place(data, rng), at + 8, bytes(len(data[at : at + 8]))),
    "append zeros": lambda data, rng: data + bytes(rng.randrange(1, 40)),
    "append noise": lambda data, rng: data + rng.randbytes(rng.randrange(1, 40)),
    "append a newline": lambda data, rng: data + b"\n",
    "append itself": lambda data, rng: data + data,
    "prepend": lambda data, rng: rng.randbytes(rng.randrange(1, 12)) + data,
    "prepend zeros": lambda data, rng: bytes(8) + data,
    "insert": lambda data, rng: _spliced(data, at := _place(data, rng), at, rng.randbytes(1)),
    "drop a byte": lambda data, rng: _spliced(data, at := _place(data, rng), at + 1, b""),
    "reverse": lambda data, rng: data[::-1],
    "swap halves": lambda data, rng: data[len(data) // 2 :] + data[: len(data) // 2],
    "repeat a part": lambda data, rng: _spliced(data, at := _place(data, rng), at, data[at : at + 64]),
    "edit a number": _edited,
}
MOVES = ("swap", "overwrite with another", "next number", "folder", "fifo", "dangling link", "delete", "move away")
DAMAGES = (*CHANGES, *MOVES)
assert len(DAMAGES) >= 29
LOSSES = ("folder", "fifo", "dangling link", "delete", "move away")
"""After the loss of the latest entry of a log, readers cannot distinguish the older state from the latest one."""


def type_of(key: str) -> str:
    """Return the type of an object, which is more specific than its suffix."""
    owner, _, rest = key.partition("/")
    if not rest:
        return "root"
    suffix = key.rsplit(".", 1)[-1]
    if owner == "_transactions":
        owner = "register" if "expired" in key else "decisions"
    what = f"{owner} " if owner.startswith("_") or owner in ("register", "decisions") else ""
    if "/checkpoints/" in key:
        return f"{what}{suffix} checkpoint"
    if "/_log/" in key:
        return f"{what}entry" if what else f"commit of {owner}"
    return suffix


@dataclass
class Trial:
    """A root with one damaged object in `folder`."""

    folder: Path
    objects: Objects
    before: Reads
    seed: int
    key: str = ""
    damage: str = ""
    wrong: list[str] = field(default_factory=list)
    named: bool = False
    sound: bool = False
    repaired: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.damage} of {self.key}: {'; '.join(self.wrong) or 'right'}"

    def path(self, key: str) -> Path:
        return self.folder / key

    def world(self) -> World:
        # Sleeping takes no time, and the clock is the clock of the disk.
        return World(LocalStore(self.folder, durable=False), now_ms=int(time.time() * 1000), seed=self.seed)

    def root(self) -> Root:
        world = self.world()
        return sparklog.open(world.store, env=world.env())

    def run(self) -> Trial:
        """Damage the root and check the results."""
        begun = time.monotonic()
        shutil.rmtree(self.folder, ignore_errors=True)
        for key, data in self.objects.items():
            self.path(key).parent.mkdir(parents=True, exist_ok=True)
            self.path(key).write_bytes(data)
        self._damage(random.Random(self.seed))
        try:
            self._check_result()
        except Exception as error:  # noqa: BLE001 - any exception is an error of the trial
            self.wrong.append(f"raised {type(error).__name__}: {error}"[:300])
        self.seconds = time.monotonic() - begun
        return self

    def _damage(self, rng: random.Random) -> None:
        types: dict[str, list[str]] = {}
        for key in sorted(self.objects):
            types.setdefault(type_of(key), []).append(key)
        mine = types[rng.choice(sorted(types))]
        self.key = key = self.key or rng.choice(mine)
        self.damage = self.damage or rng.choice(DAMAGES)
        path, data = self.path(key), self.objects[key]
        if self.damage in CHANGES:
            path.write_bytes(CHANGES[self.damage](data, rng))
            return
        other = rng.choice([each for each in mine if each != key] or [key])
        if self.damage == "swap":
            path.write_bytes(self.objects[other])
            self.path(other).write_bytes(data)
        elif self.damage == "overwrite with another":
            path.write_bytes(self.objects[other])
        elif self.damage == "next number":
            self._numbered(key, 1).write_bytes(data)
        elif self.damage == "move away":
            more = rng.randrange(2, 9)
            while (place := self._numbered(key, more)).exists():
                more += 1
            os.replace(path, place)
        else:
            path.unlink()
            if self.damage == "folder":
                path.mkdir()
            elif self.damage == "fifo":
                os.mkfifo(path)
            elif self.damage == "dangling link":
                path.symlink_to("nowhere")

    def _numbered(self, key: str, more: int) -> Path:
        """Return the key of a later number of the same log, or a key next to an object without a number."""
        folder, _, name = key.rpartition("/")
        number, rest = name[:20], name[20:]
        if not number.isdigit():
            return self.path(f"{key}.{more}")
        return self.path(f"{folder}/{int(number) + more:020d}{rest}")

    def _check_result(self) -> None:
        changed = any(self._now(key) != data for key, data in self.objects.items())
        after = read_all(self.root)
        failed = any(isinstance(result, SparklogError) for result in after.values())
        report = self._verified()
        self.named = failed or not report.sound or bool(report.foreign) or bool(report.unreferenced)
        other = differing(self.before, after)
        is_lost = self.damage in LOSSES and type_of(self.key).partition(" ")[0] not in ("log", "slices")
        allowed = is_lost or (not report.sound and self.key.startswith("_transactions/"))
        # The number of the latest entry is stored nowhere else. The document of another topic is accepted until its
        # table is read.
        is_forged = self.damage == "edit a number" or (not report.sound and "/checkpoints/" in self.key)
        if is_forged:
            other = [what for what in other if isinstance(self.before[what], pa.Table)]
        self.wrong += [
            f"other result of {what}" for what in other if not (allowed and is_older(self.before[what], after[what]))
        ]
        if changed and not self.named and not (is_lost or self.damage == "edit a number"):
            self.wrong.append("nothing names it")
        world = self.world()
        repair = repair_root(world.store, execute=True, env=world.env())
        self.sound, self.repaired = repair.sound, len(repair.repaired)
        again = read_all(self.root)
        self.wrong += [
            f"other result after repair of {what}"
            for what in differing(self.before, again)
            if not (is_forged and not isinstance(self.before[what], pa.Table))
            if not (allowed and is_older(self.before[what], again[what])) or (repair.sound and what not in other)
        ]
        if repair.sound:
            left = [what for what, result in again.items() if isinstance(result, SparklogError)]
            self.wrong += [f"repair says sound, and {what} fails: {again[what]}"[:300] for what in left]
            self.wrong += [] if self._verified().sound else ["repair says sound, verify does not"]
        for item in repair.repaired:
            was, now = self.objects.get(item.file), self._now(item.file)
            if item.how.startswith("passed") or "stay lost" in item.how:
                continue
            if was is not None and now not in (was, None) and "/checkpoints/" not in item.file:
                self.wrong.append(f"repaired {item.file} has other bytes than before")

    def _verified(self) -> Report:
        world = self.world()
        return verify_root(world.store, env=world.env())

    def _now(self, key: str) -> bytes | None:
        with suppress(OSError):
            return self.path(key).read_bytes() if self.path(key).is_file() else None
        return None


def trials(folder: Path, objects: Objects, seeds: range) -> Iterator[Trial]:
    """Run a trial for each seed."""
    shutil.rmtree(folder, ignore_errors=True)
    whole = Trial(folder, objects, {}, -1)
    for key, data in objects.items():
        whole.path(key).parent.mkdir(parents=True, exist_ok=True)
        whole.path(key).write_bytes(data)
    before = read_all(whole.root)
    errors = [what for what, result in before.items() if isinstance(result, SparklogError)]
    assert errors == [], [str(before[what]) for what in errors]
    report = whole._verified()
    assert report.sound, report.findings
    assert not report.foreign, report.foreign
    for seed in seeds:
        yield Trial(folder, objects, before, seed).run()
