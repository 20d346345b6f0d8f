"""Files that the versions of a topic name, from one version to another, and when the last version named each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparklog.errors import NotFound
from sparklog.log.journal.names import file_key
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import SliceTable, Snapshot
from sparklog.log.state.topic_state import EMPTY
from sparklog.storage.store import Store
from sparklog.tools.backup.copying import DataFile, data_file, data_files


@dataclass
class Named:
    """Files that one of the versions `base.version` to `last.version` names, by key.

    `unnamed` is the first version that no longer names a file; `times` the commit time of each version.
    """

    base: Snapshot
    last: Snapshot
    files: dict[str, DataFile] = field(default_factory=dict)
    unnamed: dict[str, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)

    def since(self, missing: Mapping[str, object]) -> int:
        """The version from which on nothing is missing; `NotFound` if the last one itself misses something."""
        first = max(self.base.version, 0)
        for key in missing:
            if key not in self.unnamed:
                raise NotFound(f"{key} is missing, and version {self.last.version} names it: run verify")
            first = max(first, self.unnamed[key])
        return first

    def of_last(self) -> list[DataFile]:
        """The files that the last version names."""
        return [file for key, file in self.files.items() if key not in self.unnamed]


def start_at(store: Store, topic: str, history: History, version: int) -> Snapshot:
    """The state at a version; -1: before the first."""
    return Snapshot(topic, store, EMPTY, SliceTable()) if version < 0 else history.at(version)


def oldest_base(history: History, version: int) -> int:
    """The oldest version from which all states up to `version` can be rebuilt; -1: all there ever were."""
    if history.commits.has(0, version):
        return -1
    for checkpoint in sorted(history.checkpoints):
        if (
            checkpoint <= version
            and history.commits.has(checkpoint + 1, version)
            and history.sound(checkpoint) is not None
        ):
            return checkpoint
    raise NotFound(
        f"version {version} of topic '{history.topic}' cannot be rebuilt: no sound checkpoint at or below it has all "
        "commits between; run verify"
    )


def files_named(history: History, base: Snapshot, version: int) -> Named:
    """Walk the log from `base` to `version`. `NotFound` if a commit is gone, `Corrupt` if one does not follow."""
    topic = history.topic
    named = Named(base, base, {file.key: file for file in data_files(topic, base.slices.all())})
    named.times[base.version] = base.head.made_ms
    head, table, paths = base.head, base.slices, base.slices.paths()
    for after, commit in history.walk(base.head, version):
        head, table = after, table.apply(commit, after)
        named.times[head.version] = head.made_ms
        for file in commit.files:
            made = data_file(topic, file)
            known = named.files.get(made.key)
            # A rewrite names a file again with the slices that it keeps: what was said before counts as well.
            if known is None or len(known.pieces) < len(made.pieces):
                named.files[made.key] = made
            named.unnamed.pop(made.key, None)
        if commit.remove or commit.log_starts or commit.op in ("create", "delete"):
            now = table.paths()
            for path in paths - now:
                named.unnamed[file_key(topic, path)] = head.version
            paths = now
        else:
            paths |= {file.path for file in commit.files}
    named.last = Snapshot(topic, history.store, head, table)
    # Named and gone within one commit: it holds nothing that a version shows.
    for key in set(named.files) - {file_key(topic, path) for path in paths} - set(named.unnamed):
        named.unnamed[key] = head.version
    return named
