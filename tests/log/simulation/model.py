"""An independent model of the log: reads raw objects as they land in the store and judges each commit by the rules.

It shares no code with what it judges: commits are parsed with `json`, state is lists and dicts, and the rules of who
may write what are written down once more. Whatever the log's own code says (an answer, a snapshot, a checkpoint) is
compared with the model at that version.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import crc32c
import zstandard

from sparklog.storage.memory import MemoryStore
from tests.support.simulation.scheduler import expect

_COMMIT = re.compile(r"(.+)/_log/([0-9]{20})\.json\Z")
_CHECKPOINT = re.compile(r"(.+)/_log/checkpoints/([0-9]{20})\.json\Z")
_READ_VERSION = re.compile(r"(?:append|sealed/[0-9]+)/([0-9]{20})-")


@dataclass(frozen=True, order=True)
class Slice:
    """Where records of one partition lie: `[base, end)` in a file at a position, named by commit `version`."""

    partition: int
    base: int
    end: int
    path: str
    position: int
    records: int
    version: int


@dataclass(frozen=True)
class State:
    """The topic after one version."""

    version: int
    topic_id: str
    deleted: bool
    time_ms: int
    log_start: tuple[int, ...]
    log_end: tuple[int, ...]
    slices: tuple[Slice, ...]
    configs: tuple[tuple[str, str], ...]
    floor: int
    batches: tuple[tuple[str, int, int], ...]
    """(writer id, newest batch, its record count)."""

    def __deepcopy__(self, memo: object) -> State:
        return self


@dataclass
class TopicModel:
    """All that happened under one topic name."""

    name: str
    states: list[State] = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)
    documents: list[bytes] = field(default_factory=list)
    """Of all commits, as the next ones may carry them."""
    versions_of: dict[str, int] = field(default_factory=dict)
    """Commit id -> version."""
    file_versions: dict[str, int] = field(default_factory=dict)
    """Data file -> the one version that appended it."""
    topic_ids: set[str] = field(default_factory=set)
    batch_versions: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """(topic id, writer id, batch) -> the one version that wrote it."""
    runs: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """(topic id, writer id) -> runs in the order in which they took over."""
    zombies: set[str] = field(default_factory=set)
    """Commit ids that were created under a number that had been collected: never in the log."""

    @property
    def state(self) -> State:
        return self.states[-1]


class Model:
    """Watches a `WatchedStore`; `topics` holds what is true."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicModel] = {}
        self.store: MemoryStore | None = None
        self.checkpoints = 0
        self.commits = 0
        self.carried = 0
        """Documents that commits carry."""

    def topic(self, name: str) -> TopicModel:
        return self.topics.setdefault(name, TopicModel(name))

    def created(self, key: str, data: bytes) -> None:
        """An object has come to exist."""
        found = _COMMIT.match(key)
        if found:
            self.commits += 1
            self._commit(self.topic(found[1]), int(found[2]), data)
            return
        found = _CHECKPOINT.match(key)
        if found:
            self.checkpoints += 1
            self._checkpoint(self.topic(found[1]), int(found[2]), json.loads(data))

    def _commit(self, topic: TopicModel, version: int, data: bytes) -> None:
        doc = parsed(data, version)
        commit_id = doc["commitId"]
        if version < len(topic.states):
            topic.zombies.add(commit_id)
            return
        expect(
            version == len(topic.states), f"commit {version} of {topic.name} leaves a gap after {len(topic.states) - 1}"
        )
        expect(doc["version"] == version, f"commit {version} calls itself {doc['version']}")
        previous = topic.crcs[-1] if topic.crcs else None
        expect(doc["prevCrc"] == previous, f"commit {version} is not chained to its predecessor")
        expect(commit_id not in topic.versions_of, f"commit id {commit_id} is in the log twice")
        carried = topic.documents[version - len(doc["carried"]) :] if doc["carried"] else []
        expect(doc["carried"] == carried, f"commit {version} carries other documents than the log has")
        self.carried += len(carried)
        state = self._apply(topic, version, doc)
        topic.states.append(state)
        topic.documents.append(data[: data.index(b"\n") + 1])
        topic.crcs.append(crc32c.crc32c(data))
        topic.versions_of[commit_id] = version

    def _apply(self, topic: TopicModel, version: int, doc: dict[str, Any]) -> State:
        where = f"{topic.name} version {version} ({doc['op']})"
        before = topic.states[-1] if topic.states else None
        if doc["op"] == "create":
            state = self._create(topic, before, version, doc, where)
        else:
            # A deleted topic still has files: maintenance goes on writing down its upload floor and holds.
            outlives = doc["op"] == "maintain" and not doc.get("files")
            expect(before is not None and (not before.deleted or outlives), f"{where}: no topic is there")
            assert before is not None
            expect(doc["topicId"] == before.topic_id, f"{where}: made for another topic id")
            state = before
        expect(before is None or doc["timeMs"] >= before.time_ms, f"{where}: commit time goes back")
        floor = max(state.floor, doc.get("floor", 0))
        expect(doc.get("floor", floor) >= state.floor, f"{where}: the upload floor goes back")
        state = self._grow(state, doc, where)
        state = self._configure(state, doc)
        state = (
            self._edit(topic, state, version, doc, where)
            if doc.get("edits")
            else self._append(topic, state, version, doc, where)
        )
        state = self._write(topic, state, version, doc, where)
        state = self._trim(state, doc, where)
        check_slices(state, where)
        if doc["op"] == "delete":
            # Numbering and upload floor go on under the name; nothing else of the topic does.
            state = State(version, state.topic_id, True, 0, (), (), (), (), floor, ())
        return replace(state, version=version, time_ms=doc["timeMs"], floor=floor)

    def _create(self, topic: TopicModel, before: State | None, version: int, doc: dict[str, Any], where: str) -> State:
        expect(before is None or before.deleted, f"{where}: the topic exists already")
        expect(doc["topicId"] not in topic.topic_ids, f"{where}: a topic id is used again")
        topic.topic_ids.add(doc["topicId"])
        n = doc["partitions"]
        floor = before.floor if before else 0
        return State(version, doc["topicId"], False, doc["timeMs"], (0,) * n, (0,) * n, (), (), floor, ())

    def _grow(self, state: State, doc: dict[str, Any], where: str) -> State:
        n = doc.get("partitions")
        if n is None:
            return state
        more = n - len(state.log_end)
        expect(more >= 0, f"{where}: fewer partitions than before")
        return replace(state, log_start=state.log_start + (0,) * more, log_end=state.log_end + (0,) * more)

    def _configure(self, state: State, doc: dict[str, Any]) -> State:
        configs = dict(state.configs)
        for name, value in doc.get("configs", {}).items():
            if value is None:
                configs.pop(name, None)
            else:
                configs[name] = value
        return replace(state, configs=tuple(sorted(configs.items())))

    def _append(self, topic: TopicModel, state: State, version: int, doc: dict[str, Any], where: str) -> State:
        ends = list(state.log_end)
        slices = list(state.slices)
        for file in doc.get("files", []):
            self._name_file(topic, state, version, file["path"], where)
            position = file.get("start", 0)
            for p, base, size, offsets, records in zip(
                file["partition"], file["base"], file["bytes"], file["offsets"], file["records"], strict=True
            ):
                expect(p < len(ends), f"{where}: partition {p} does not exist")
                expect(base == ends[p], f"{where}: partition {p} ends at {ends[p]}, a slice was put at {base}")
                ends[p] = base + offsets
                slices.append(Slice(p, base, base + offsets, file["path"], position, records, version))
                position += size
        return replace(state, log_end=tuple(ends), slices=tuple(sorted(slices)))

    def _name_file(self, topic: TopicModel, state: State, version: int, path: str, where: str) -> None:
        expect(
            path not in topic.file_versions, f"{where}: {path} was appended at {topic.file_versions.get(path)} already"
        )
        topic.file_versions[path] = version
        if path.startswith("_log/"):
            expect(path == f"_log/{version:020d}.json", f"{where}: records are in another commit, {path}")
            return
        read = _READ_VERSION.match(path)
        expect(read is not None, f"{where}: no read version in {path}")
        assert read is not None
        expect(int(read[1]) >= state.floor, f"{where}: {path} was uploaded below the floor {state.floor}")
        if self.store is not None:
            expect(self.store.stat(f"{topic.name}/{path}") is not None, f"{where}: {path} does not exist")

    def _edit(self, topic: TopicModel, state: State, version: int, doc: dict[str, Any], where: str) -> State:
        """Slices replaced: every input is there, outputs lie in the edits' ranges, nothing else changes."""
        slices = {(s.path, s.partition, s.base): s for s in state.slices}
        ranges = {}
        for edit in doc["edits"]:
            ranges.setdefault(edit["partition"], []).append((edit["start"], edit["end"]))
        removed: dict[int, list[Slice]] = {}
        for item in doc.get("remove", []):
            for p, base in zip(item["partition"], item["base"], strict=True):
                found = slices.pop((item["path"], p, base), None)
                if found is None:
                    expect(base < state.log_start[p], f"{where}: removes a slice of {p} at {base} that is not there")
                    continue
                expect(
                    any(start <= found.base and found.end <= end for start, end in ranges.get(p, [])),
                    f"{where}: removes a slice outside its edit",
                )
                removed.setdefault(p, []).append(found)
        for file in doc.get("files", []):
            self._name_file(topic, state, version, file["path"], where)
            at = [sum(file["bytes"][:row]) for row in range(len(file["bytes"]))]
            for p, base, position, offsets, records in zip(
                file["partition"],
                file["base"],
                file.get("position", at),
                file["offsets"],
                file["records"],
                strict=True,
            ):
                expect(
                    any(start <= base and base + offsets <= end for start, end in ranges.get(p, [])),
                    f"{where}: puts a slice outside its edit",
                )
                slices[file["path"], p, base] = Slice(p, base, base + offsets, file["path"], position, records, version)
        return replace(state, slices=tuple(sorted(slices.values())))

    def _write(self, topic: TopicModel, state: State, version: int, doc: dict[str, Any], where: str) -> State:
        writer = doc.get("writer")
        batches = {name: (batch, count) for name, batch, count in state.batches}
        for name in doc.get("expired", {}):
            batches.pop(name, None)
        if writer is not None:
            name, batch = writer["id"], writer["batch"]
            if doc.get("files"):
                newest = batches.get(name, (-1, 0))[0]
                expect(batch > newest, f"{where}: batch {batch} of {name} is written again (newest is {newest})")
                batches[name] = (batch, writer["count"])
                records = sum(sum(file["records"]) for file in doc["files"])
                expect(
                    records == writer["count"],
                    f"{where}: holds {records} records, its writer counted {writer['count']}",
                )
                topic.batch_versions[state.topic_id, name, batch] = version
            runs = topic.runs.setdefault((state.topic_id, name), [])
            run = writer.get("run")
            if run is not None and run not in runs[-1:]:
                expect(run not in runs[-5:], f"{where}: run {run} of {name} was superseded and writes again")
                runs.append(run)
        return replace(state, batches=tuple((name, *entry) for name, entry in sorted(batches.items())))

    def _trim(self, state: State, doc: dict[str, Any], where: str) -> State:
        starts = list(state.log_start)
        for text, offset in doc.get("logStarts", {}).items():
            p = int(text)
            starts[p] = max(starts[p], offset)
            expect(starts[p] <= state.log_end[p], f"{where}: log start {offset} of {p} lies beyond its end")
        kept = tuple(s for s in state.slices if s.end > starts[s.partition])
        return replace(state, log_start=tuple(starts), slices=kept)

    def _checkpoint(self, topic: TopicModel, version: int, doc: dict[str, Any]) -> None:
        expect(version < len(topic.states), f"checkpoint {version} of {topic.name} is ahead of the log")
        assert self.store is not None
        state = topic.states[version]
        table_key = (
            f"{topic.name}/_log/checkpoints/{doc['table']['name']}" if isinstance(doc.get("table"), dict) else None
        )
        # A head that lands days late may find its table vacuumed: then readers and vacuums pass over it.
        if table_key is not None and self.store.stat(table_key) is not None:
            check_table(state, self.store.get(table_key), f"checkpoint {version} of {topic.name}")


def parsed(data: bytes, version: int) -> dict[str, Any]:
    """The document of a commit; a file whose slices are in the commit gets its path, and where they `start`.

    `carried` becomes the list of the documents.
    """
    line, newline, rest = data.partition(b"\n")
    doc: dict[str, Any] = json.loads(line)
    carried = doc.get("carried", {"bytes": 0, "crc": 0, "commits": 0})
    start = len(line) + 1 + carried["bytes"]
    packed, tail = rest[: carried["bytes"]], rest[carried["bytes"] :]
    expect(crc32c.crc32c(packed) == carried["crc"], f"commit {version}: what it carries has another CRC-32C")
    doc["carried"] = zstandard.decompress(packed).splitlines(keepends=True) if packed else []
    expect(len(doc["carried"]) == carried["commits"], f"commit {version}: it carries {len(doc['carried'])} documents")
    needed = {"carriedCommits": bool(packed), "inlineRecords": bool(tail)}
    for name in ("readFeatures", "writeFeatures"):
        missing = [feature for feature, is_needed in needed.items() if is_needed and feature not in doc[name]]
        expect(not missing, f"commit {version} does not say in {name} that it needs {missing}")
    inline, here = doc.get("inline"), [file for file in doc.get("files", []) if not file["path"]]
    expect(len(here) == (inline is not None), f"commit {version}: {len(here)} files are in it")
    expect(bool(newline), f"commit {version} does not end its line")
    expect(len(tail) == (inline["bytes"] if inline else 0), f"commit {version}: {len(tail)} bytes follow it")
    for file in here:
        expect(crc32c.crc32c(tail) == inline["crc"], f"commit {version}: its records have another CRC-32C")
        expect(sum(file["bytes"]) + file["footerLength"] == len(tail), f"commit {version}: slices do not fill the tail")
        file["path"], file["start"] = f"_log/{version:020d}.json", start
    return doc


def check_table(state: State, data: bytes, where: str) -> None:
    """The slices in an Arrow file are those of the model, and their bases and ends agree."""
    import pyarrow as pa

    table = pa.ipc.open_file(io.BytesIO(data)).read_all()
    found = list(zip(*(table.column(name).to_pylist() for name in ("partition", "base", "end")), strict=True))
    expect(found == [(s.partition, s.base, s.end) for s in state.slices], f"{where}: its slices are not the log's")


def check_slices(state: State, where: str) -> None:
    """Slices are ordered, disjoint and within the log; every slice ends above the log start."""
    for p, (start, end) in enumerate(zip(state.log_start, state.log_end, strict=True)):
        expect(0 <= start <= end, f"{where}: partition {p} starts at {start} and ends at {end}")
    last: dict[int, int] = {}
    for s in state.slices:
        expect(s.end > state.log_start[s.partition], f"{where}: a slice of {s.partition} ends below the log start")
        expect(s.end <= state.log_end[s.partition], f"{where}: a slice of {s.partition} ends beyond the log end")
        expect(s.base >= last.get(s.partition, 0), f"{where}: slices of {s.partition} overlap at {s.base}")
        last[s.partition] = s.end


class WatchedStore(MemoryStore):
    """A memory store that shows the model every object the moment it exists."""

    def __init__(self, clock: Callable[[], int], model: Model, name: str = "test") -> None:
        super().__init__(clock, name)
        self._model = model
        model.store = self

    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        if created:
            self._model.created(key, data)
        return created
