"""The data files that versions of a topic reference, and the properties that each file must have.

`verify` checks the files, `backup` copies them, `restore` copies the files of one version, and `prune` keeps them.
Commits and checkpoints describe a file by its slices. Two versions may reference different slices of one file, because
a rewrite references the file again with the remaining slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace

from sparklog.errors import NotFound
from sparklog.format.slice_columns import SliceRow
from sparklog.log.journal.names import file_key
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot, added_slices
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.topic_state import EMPTY


@dataclass(slots=True, unsafe_hash=True)
class SliceClaim(SliceRow):
    """A slice, as described by a commit or a footer."""

    partition: int


CLAIMED = tuple(column.name for column in fields(SliceClaim))


@dataclass(frozen=True, slots=True)
class ReferencedFile:
    """A data file that is referenced by one or more versions."""

    key: str
    size: int
    footer_length: int  # length of the footer, or 0 for a sealed segment
    claims: tuple[SliceClaim, ...]
    index_crc: int = 0  # checksum of a sealed segment's index files (`sparklog.format.checksums`)

    @property
    def filtered(self) -> bool:
        """True if the file has a key filter file."""
        return any(claim.flags & SliceFlag.KEY_FILTER for claim in self.claims)

    @property
    def sealed(self) -> bool:
        return self.footer_length == 0

    def index_key(self, suffix: str) -> str:
        return self.key.removesuffix("log") + suffix


def merge_files(files: Iterable[ReferencedFile]) -> dict[str, ReferencedFile]:
    """Return each file once, by key, with all its referenced slices. A clone shares files with its source."""
    merged_files: dict[str, ReferencedFile] = {}
    for file in files:
        other = merged_files.setdefault(file.key, file)
        if other is not file:
            merged_files[file.key] = replace(other, claims=tuple(dict.fromkeys((*other.claims, *file.claims))))
    return merged_files


@dataclass(slots=True)
class ReferencedFiles:
    """Data files by their paths in the commits of a topic. Equal slices of different versions are stored once."""

    topic: str
    _files: dict[str, tuple[int, int, int, dict[SliceClaim, None]]] = field(default_factory=dict)

    def add(self, rows: Slices) -> None:
        names = ("file", "file_size", "footer_length", "index_crc", *CLAIMED)
        columns = (rows.columns[name].tolist() for name in names)
        for code, size, footer_length, index_crc, *claim in zip(*columns, strict=True):
            *_, claims = self._files.setdefault(rows.paths[code], (size, footer_length, index_crc, {}))
            claims[SliceClaim(*claim)] = None

    def by_path(self) -> Iterator[tuple[str, ReferencedFile]]:
        for path, (size, footer_length, index_crc, claims) in self._files.items():
            yield path, ReferencedFile(file_key(self.topic, path), size, footer_length, tuple(claims), index_crc)

    def files(self) -> list[ReferencedFile]:
        """Return all files, ordered by key."""
        files = merge_files(file for _, file in self.by_path())
        return [files[key] for key in sorted(files)]


def referenced_files(snapshot: Snapshot) -> ReferencedFiles:
    """Return the files that one version references."""
    referenced = ReferencedFiles(snapshot.topic)
    referenced.add(snapshot.slices.all())
    return referenced


@dataclass
class FilesOfVersions:
    """The files that any version from `base.version` to `last.version` references, by key.

    `unreferenced_since` contains the first version that no longer references a file, and `times` contains the commit
    time of each version.
    """

    base: Snapshot
    last: Snapshot
    files: dict[str, ReferencedFile] = field(default_factory=dict)
    unreferenced_since: dict[str, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)

    def since(self, missing: Iterable[str]) -> int:
        """Return the first version from which no file is missing.

        Raises `NotFound` if a file of the last version is missing.
        """
        first = max(self.base.version, 0)
        for key in missing:
            if key not in self.unreferenced_since:
                raise NotFound(f"{key} is missing, but version {self.last.version} references it; run sparklog verify")
            first = max(first, self.unreferenced_since[key])
        return first

    def of_last(self) -> list[ReferencedFile]:
        return [file for key, file in self.files.items() if key not in self.unreferenced_since]


def files_of_versions(history: History, base: Snapshot, version: int) -> FilesOfVersions:
    """Walk the log from `base` to `version`.

    Raises `NotFound` if a commit is missing, and `Corrupt` if the chain is broken.
    """
    topic = history.topic
    found = FilesOfVersions(base, base, times={base.version: base.state.created_ms})
    state, table, paths, referenced = base.state, base.slices, base.slices.paths(), referenced_files(base)
    for after, commit in history.walk(base.state, version):
        state, table = after, table.apply(commit, after)
        found.times[state.version] = state.created_ms
        if commit.files:
            referenced.add(added_slices(commit))
        for file in commit.files:
            found.unreferenced_since.pop(file_key(topic, file.path), None)
        if commit.remove or commit.log_starts or commit.op in ("create", "delete"):
            now = table.paths()
            for path in paths - now:
                found.unreferenced_since[file_key(topic, path)] = state.version
            paths = now
        else:
            paths |= {file.path for file in commit.files}
    found.files = {file.key: file for file in referenced.files()}
    found.last = Snapshot(topic, history.store, state, table)
    # A file that was added and removed in the same commit has no slices in any version.
    for key in set(found.files) - {file_key(topic, path) for path in paths} - set(found.unreferenced_since):
        found.unreferenced_since[key] = state.version
    return found


def start_at(history: History, version: int) -> Snapshot:
    """Return the state at a version. Version -1 is the state before the first commit."""
    return Snapshot(history.topic, history.store, EMPTY, SliceTable()) if version < 0 else history.at(version)


def oldest_base(history: History, version: int) -> int:
    """Return the oldest version from which all states up to `version` can be rebuilt, or -1 if all states can be."""
    if history.commits.has(0, version):
        return -1
    for checkpoint in sorted(history.checkpoints):
        followed = checkpoint <= version and history.commits.has(checkpoint + 1, version)
        if followed and history.checkpoint(checkpoint) is not None:
            return checkpoint
    raise NotFound(
        f"version {version} of topic '{history.topic}' cannot be rebuilt, because no valid checkpoint exists at or "
        "below this version, or commits after the checkpoint are missing; run sparklog verify"
    )
