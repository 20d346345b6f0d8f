"""An independent model of the records that a topic must contain at each version, regardless of maintenance.

It observes the store together with the model of commits (`tests.log.simulation.model`). Writers pass the records of
each file to the model before they commit the file; after that, only the commits determine the state. Compaction follows
Kafka's rules on a dictionary of records:

* a pass knows the highest offset of each key from the first dirty offset to its cleaned-through offset
* a record below that offset is deleted if its key has a higher offset, or if it is a tombstone whose delete horizon has
  passed
* a tombstone that is kept gets its delete horizon in the first pass that rewrites it

Merging and sealing change nothing. Each deletion is checked at the time of the deletion against the versions that a
reader may have planned within `file.delete.delay.ms`, against leases, and against the retention of commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sparklog.testing.world import DAY_MS
from tests.log.simulation.model import Model, State, TopicModel, WatchedStore
from tests.support.simulation.scheduler import expect

_COMMIT = re.compile(r"(.+)/_log/([0-9]{20})\.json\Z")
_HEAD = re.compile(r"(.+)/_log/checkpoints/([0-9]{20})\.json\Z")
_DATA = re.compile(r"([^/]+)/((?:append|sealed)/.+)\Z")
_INDEX = re.compile(r"\.(index|timeindex|txnindex)\Z")

Key = tuple[str, int, int]
"""A prepare: transactional id, number, version."""


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int
    prepare: Key | None = None


class Written(NamedTuple):
    """A record as passed by a writer, before it has an offset."""

    key: bytes | None
    value: bytes | None
    timestamp: int


@dataclass(frozen=True)
class Records:
    """All records of a topic at one version. The dictionaries are never changed after construction."""

    present: tuple[dict[int, Record], ...] = ()
    """For each partition, offset -> record, including records of open and aborted transactions."""
    horizon: tuple[dict[int, int], ...] = ()
    """For each partition, the offset of a tombstone -> its delete horizon."""
    cleaned: tuple[int, ...] = ()
    log_start: tuple[int, ...] = ()
    log_end: tuple[int, ...] = ()
    open: Mapping[Key, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    aborted: frozenset[Key] = frozenset()
    leases: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    def stable(self, partition: int) -> int:
        """Return the last stable offset."""
        first = [spans[partition][0] for spans in self.open.values() if partition in spans]
        return max(min([*first, self.log_end[partition]]), self.log_start[partition])

    def committed(self, partition: int) -> Iterator[tuple[int, Record]]:
        """Return the records that a read_committed reader sees, in offset order."""
        stable = self.stable(partition)
        for offset, record in self.present[partition].items():
            if offset < stable and record.prepare not in self.aborted:
                yield offset, record

    def rows(self) -> dict[tuple[int, int], Written]:
        """Return (partition, offset) -> committed record."""
        return {
            (partition, offset): Written(record.key, record.value, record.timestamp)
            for partition in range(len(self.present))
            for offset, record in self.committed(partition)
        }

    def undecided(self) -> dict[tuple[int, int], Written]:
        """Return the records at and above the last stable offset that are not aborted."""
        return self._others(lambda p, offset, record: record.prepare not in self.aborted and offset >= self.stable(p))

    def aborted_rows(self) -> dict[tuple[int, int], Written]:
        """Return all aborted records, rewritten or not."""
        return self._others(lambda p, offset, record: record.prepare in self.aborted)

    def _others(self, wanted: Callable[[int, int, Record], bool]) -> dict[tuple[int, int], Written]:
        return {
            (p, offset): Written(record.key, record.value, record.timestamp)
            for p, present in enumerate(self.present)
            for offset, record in present.items()
            if wanted(p, offset, record)
        }


@dataclass
class RecordLog:
    """All versions of one topic: `versions[v]` belongs to `TopicModel.states[v]`."""

    versions: list[Records] = field(default_factory=list)
    created_ms: list[int] = field(default_factory=list)
    """The creation time of each version by the clock of the store."""
    unnamed_ms: dict[str, int] = field(default_factory=dict)
    """File -> the time when the latest version stopped referencing it."""
    born_ms: dict[str, int] = field(default_factory=dict)
    """Key of a commit -> creation time, including commits of stalled writers."""
    newest: list[dict[bytes, int]] = field(default_factory=list)
    """For each partition, key -> offset of its latest committed record, deleted or not."""


TAKEN_BACK_MS = 300_000
"""A writer waits up to 90 seconds for names that a cache hides."""


class RecordModel(Model):
    """The expected records of all topics of a `RecordStore`, in `logs`."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__()
        self.clock = clock
        self.losing = False
        """True if commits are lost: a writer that finds a gap deletes its commit."""
        self.knows_newest = True
        """False after the latest commit was withdrawn."""
        self.least_ways = 2
        """The number of checkpoints that must remain to open a topic; a damaged checkpoint requires the one before."""
        self.uploads: dict[str, dict[int, list[Written]]] = {}
        self.in_memory: dict[tuple[int, int], list[Written]] = {}
        """Slices that are not in a file yet, by partition and CRC-32C."""
        self.logs: dict[str, RecordLog] = {}
        self.passes: dict[str, int] = {}
        """Output of a cleaning pass -> the time that the pass used."""
        self.empty_passes: dict[tuple[int, int, int, int | None], int] = {}
        """The same for passes without output: partition, start, end, cleaned-through offset."""

    def log(self, name: str) -> RecordLog:
        return self.logs.setdefault(name, RecordLog())

    def newest(self, name: str) -> Records:
        return self.log(name).versions[-1]

    def superseded_ms(self, name: str, version: int) -> int | None:
        """Return when a version was replaced as the latest one, or None if it is the latest."""
        made = self.log(name).created_ms
        return made[version + 1] if version + 1 < len(made) else None

    # -- commits

    def created(self, key: str, data: bytes) -> None:
        found = _COMMIT.match(key)
        if found:
            self.log(found[1]).born_ms[key] = self.clock()
        super().created(key, data)

    def _apply(self, topic: TopicModel, version: int, doc: dict[str, Any]) -> State:
        state = super()._apply(topic, version, doc)
        log = self.log(topic.name)
        where = f"{topic.name} version {version} ({doc['op']})"
        before = log.versions[-1] if log.versions else Records()
        log.versions.append(self._next(before, state, doc, where))
        log.created_ms.append(self.clock())
        named = {piece.path for piece in state.slices}
        if topic.states:
            for path in {piece.path for piece in topic.states[-1].slices} - named:
                log.unnamed_ms[path] = self.clock()
        self._remember(log, before, log.versions[-1], doc["op"], where)
        return state

    def _next(self, before: Records, state: State, doc: dict[str, Any], where: str) -> Records:
        if doc["op"] in ("create", "delete"):
            before = Records(leases=before.leases)
        more = len(state.log_end) - len(before.present)
        present = [*before.present, *({} for _ in range(more))]
        horizon = [*before.horizon, *({} for _ in range(more))]
        cleaned = [*before.cleaned, *(0 for _ in range(more))]
        opened = dict(before.open)
        aborted = set(before.aborted)
        configs = dict(state.configs)
        for edit in doc.get("edits", []):
            if doc["op"] == "compact":
                self._clean(before, present, horizon, cleaned, edit, doc, configs, where)
            else:
                expect(edit["cleanedThrough"] is None, f"{where}: it moves cleaned-through")
        if not doc.get("edits"):
            self._appended(present, opened, doc, configs, where)
        for item in doc.get("resolved", []):
            for prepare in [key for key in opened if key[:2] == (item["id"], item["n"])]:
                del opened[prepare]
                if prepare[2] not in item.get("committed", []):
                    aborted.add(prepare)
        if doc["op"] == "retain":
            self._check_expiry(present, before, state, doc, configs, where)
        for p, start in enumerate(state.log_start):
            if any(offset < start for offset in present[p]):
                present[p] = {offset: record for offset, record in present[p].items() if offset >= start}
        leases = dict(before.leases)
        for name, lease in doc.get("holds", {}).items():
            leases.pop(name, None)
            if lease is not None:
                leases[name] = lease["version"], lease["expiresMs"]
        alive = {key: _above(spans, state.log_start) for key, spans in opened.items()}
        return Records(
            tuple(present),
            tuple(horizon),
            tuple(cleaned),
            state.log_start,
            state.log_end,
            {key: spans for key, spans in alive.items() if spans},
            frozenset(aborted),
            leases,
        )

    def _appended(
        self,
        present: list[dict[int, Record]],
        opened: dict[Key, Mapping[int, tuple[int, int]]],
        doc: dict[str, Any],
        configs: Mapping[str, str],
        where: str,
    ) -> None:
        txn = doc.get("txn")
        prepare = None if txn is None else (txn["id"], txn["n"], doc["version"])
        spans: dict[int, tuple[int, int]] = {}
        stamped = configs.get("message.timestamp.type") == "LogAppendTime"
        for file in doc.get("files", []):
            in_memory = file["path"] not in self.uploads
            for p, base, offsets, crc in zip(
                file["partition"], file["base"], file["offsets"], file["crc"], strict=True
            ):
                expect(not in_memory or (p, crc) in self.in_memory, f"{where}: nobody wrote {file['path']}")
                written = self.in_memory[p, crc] if in_memory else self.uploads[file["path"]][p]
                expect(offsets == len(written), f"{where}: {offsets} offsets for {len(written)} records")
                time_ms = doc["timeMs"] if stamped else None
                present[p] = present[p] | {
                    base + i: Record(each.key, each.value, time_ms or each.timestamp, prepare)
                    for i, each in enumerate(written)
                }
                first, end = spans.get(p, (base, base))
                spans[p] = first, max(end, base + offsets)
        if prepare is not None and spans:
            opened[prepare] = spans

    def _clean(
        self,
        before: Records,
        present: list[dict[int, Record]],
        horizon: list[dict[int, int]],
        cleaned: list[int],
        edit: dict[str, Any],
        doc: dict[str, Any],
        configs: Mapping[str, str],
        where: str,
    ) -> None:
        p, start, end, through = edit["partition"], edit["start"], edit["end"], edit["cleanedThrough"]
        expect("compact" in configs.get("cleanup.policy", ""), f"{where}: the topic is not compacted")
        expect(through is not None, f"{where}: a pass without cleaned-through")
        expect(through <= before.stable(p), f"{where}: cleaned through {through}, beyond the last stable offset")
        covered = dict(before.committed(p))
        missed = [offset for offset in covered if offset < through and not start <= offset < end]
        expect(not missed, f"{where}: half a pass, cleaned through {through} without the records at {missed[:5]}")
        now_ms = self._clock_of(p, edit, doc, where)
        first = before.cleaned[p] if before.cleaned[p] >= before.log_start[p] else before.log_start[p]
        highest = {record.key: offset for offset, record in covered.items() if first <= offset < through}
        kept = dict(present[p])
        stamps = dict(horizon[p])
        for offset, record in present[p].items():
            if not start <= offset < end:
                continue
            known = offset < through
            gone = offset not in covered or (known and highest.get(record.key, -1) > offset)
            if record.value is None and known and stamps.get(offset, now_ms + 1) <= now_ms:
                gone = True
            if gone:
                del kept[offset]
            elif record.value is None:
                stamps.setdefault(offset, now_ms + int(configs.get("delete.retention.ms", DAY_MS)))
        present[p], horizon[p] = kept, stamps
        cleaned[p] = max(cleaned[p], through)

    def _clock_of(self, p: int, edit: dict[str, Any], doc: dict[str, Any], where: str) -> int:
        for file in doc.get("files", []):
            if file["partition"][0] == p:
                expect(file["path"] in self.passes, f"{where}: no pass wrote {file['path']}")
                return self.passes[file["path"]]
        key = p, edit["start"], edit["end"], edit["cleanedThrough"]
        return self.empty_passes.get(key, self.clock())

    def _check_expiry(
        self,
        present: list[dict[int, Record]],
        before: Records,
        state: State,
        doc: dict[str, Any],
        configs: Mapping[str, str],
        where: str,
    ) -> None:
        """Check that only old records expire. Aborted records have no age, because a merge may have dropped them."""
        expect("delete" in configs.get("cleanup.policy", "delete"), f"{where}: the topic is compacted only")
        if "retention.bytes" in configs:
            return
        retention_ms = int(configs.get("retention.ms", 7 * DAY_MS))
        expect(retention_ms >= 0, f"{where}: nothing expires by time")
        for text, start in doc.get("logStarts", {}).items():
            for offset, record in present[int(text)].items():
                if offset < start and record.prepare not in before.aborted:
                    age = self.clock() - record.timestamp
                    expect(age > retention_ms, f"{where}: record {offset} of {text} expired at the age of {age} ms")

    def _remember(self, log: RecordLog, before: Records, after: Records, op: str, where: str) -> None:
        """Check that the latest value of each key is present, and that no record of a deleted key is."""
        if op == "create":
            log.newest = []
        log.newest += [{} for _ in range(len(after.present) - len(log.newest))]
        for p, newest in enumerate(log.newest):
            if p >= len(after.present):
                continue
            if op != "compact":
                # The outcome of an open transaction comes later than the outcome of subsequent records, so offsets are
                # compared.
                for offset, record in after.committed(p):
                    if record.key is not None and offset > newest.get(record.key, -1):
                        newest[record.key] = offset
                continue
            committed = dict(after.committed(p))
            seen = {record.key: offset for offset, record in committed.items() if record.key is not None}
            was = dict(before.committed(p))
            for key, offset in newest.items():
                if offset < after.log_start[p] or offset in committed or offset >= after.stable(p):
                    continue
                value = was[offset].value if offset in was else None
                expect(value is None, f"{where}: the newest value of {key!r}, at {offset} of {p}, is gone")
                expect(key not in seen, f"{where}: {key!r} of {p}, deleted at {offset}, is back at {seen.get(key)}")

    # -- deletions

    def deleted(self, key: str) -> None:
        """Check that an object which is about to be deleted is not needed."""
        now = self.clock()
        commit, data = _COMMIT.match(key), _DATA.match(key)
        if commit:
            age = now - self.log(commit[1]).born_ms[key]
            if self.losing and age < TAKEN_BACK_MS:
                # Its writer found a gap below or above it, and no later commit continues it.
                self.knows_newest &= int(commit[2]) < len(self.topic(commit[1]).states) - 1
                return
            kept = max(7 * DAY_MS, 2 * self.delay_ms(commit[1]))
            expect(age >= kept, f"{key} was collected at the age of {age} ms, before {kept}")
        if data:
            self._check_data(data[1], _INDEX.sub(".log", data[2]), now, key)
        else:
            if commit:
                self._check_data(commit[1], key.split("/", 1)[1], now, key)
            name = key.split("/", 1)[0]
            ways = self._ways_in(name, key)
            expect(ways >= self.least_ways, f"{key} was deleted, which leaves {ways} checkpoints to open {name} from")

    def _ways_in(self, name: str, without: str) -> int:
        """Return the number of checkpoints from which the latest version can be read without this object.

        A log with all its commits needs no checkpoint.
        """
        assert self.store is not None
        keys = {info.key for info in self.store.list(f"{name}/_log/")} - {without}
        tables = {key.rsplit("/", 1)[1][:20] for key in keys if key.endswith(".arrow")}
        heads = [found[2] for key in keys if (found := _HEAD.match(key))]
        last = len(self.topic(name).states)
        reached = [
            state
            for state in heads
            if state in tables
            and all(f"{name}/_log/{version:020d}.json" in keys for version in range(int(state) + 1, last))
        ]
        whole = all(f"{name}/_log/{version:020d}.json" in keys for version in range(last))
        return max(len(reached), self.least_ways if whole else 0)

    def _check_data(self, name: str, path: str, now: int, key: str) -> None:
        log, states = self.log(name), self.topic(name).states
        expect(
            all(piece.path != path for piece in states[-1].slices), f"{key} was deleted, the newest version names it"
        )
        since = log.unnamed_ms.get(path)
        delay = self.delay_ms(name)
        if since is not None:
            expect(now - since >= delay, f"{key} was deleted {now - since} ms after it was unnamed, before {delay}")
        for lease, (version, expires_ms) in log.versions[-1].leases.items():
            if expires_ms is None or expires_ms > now:
                named = any(piece.path == path for piece in states[version].slices)
                expect(not named, f"{key} was deleted, but lease {lease} of version {version} protects it")

    def delay_ms(self, name: str) -> int:
        """Return `file.delete.delay.ms`; for a deleted topic, the value at its deletion."""
        configs = next(state.configs for state in reversed(self.topic(name).states) if not state.deleted)
        return int(dict(configs).get("file.delete.delay.ms", DAY_MS))

    # -- copies, to repeat one story

    def copy(self, clock: Callable[[], int]) -> RecordModel:
        """Return a model with the same past, for another store."""
        other = RecordModel(clock)
        other.checkpoints, other.commits = self.checkpoints, self.commits
        other.uploads, other.passes = dict(self.uploads), dict(self.passes)
        other.in_memory = dict(self.in_memory)
        other.empty_passes = dict(self.empty_passes)
        for name, topic in self.topics.items():
            other.topics[name] = replace(
                topic,
                states=list(topic.states),
                crcs=list(topic.crcs),
                documents=list(topic.documents),
                versions_of=dict(topic.versions_of),
                file_versions=dict(topic.file_versions),
                topic_ids=set(topic.topic_ids),
                batch_versions=dict(topic.batch_versions),
                runs={key: list(runs) for key, runs in topic.runs.items()},
                zombies=set(topic.zombies),
            )
        for name, log in self.logs.items():
            other.logs[name] = RecordLog(
                list(log.versions),
                list(log.created_ms),
                dict(log.unnamed_ms),
                dict(log.born_ms),
                [dict(newest) for newest in log.newest],
            )
        return other


def _above(spans: Mapping[int, tuple[int, int]], log_start: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Return the slices of an open prepare that are not completely below the log start."""
    return {p: (first, end) for p, (first, end) in spans.items() if p < len(log_start) and end > log_start[p]}


class RecordStore(WatchedStore):
    """A store in memory that also reports deletions to the model."""

    _model: RecordModel

    def __init__(self, clock: Callable[[], int], model: RecordModel, name: str = "test") -> None:
        super().__init__(clock, model, name)
        self.deletions = 0

    def delete(self, key: str) -> None:
        if self.stat(key) is not None:
            self.deletions += 1
            self._model.deleted(key)
        super().delete(key)
