"""Values of an append: what the driver gives to tasks (`WriteOptions`, `AppendTarget`) and gets back (`TopicFiles`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice

from sparklog.arguments import INTEGER
from sparklog.common.settings import int64, one_of
from sparklog.errors import BadRequest, NotFound
from sparklog.format.record_batch import CODECS, Codec
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.journal.names import read_root_id
from sparklog.log.state.commit import Commit
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import INLINE_PATH, FileSlices
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class AppendTarget:
    """A topic as a task writes files for it. The driver pickles it for the tasks."""

    store: Store
    root_id: str
    topic: str
    topic_id: str
    partitions: int
    configs: TopicConfigs
    read_version: int
    leader_epoch: int
    inline_bytes: int = 0  # maximum size of the records that go into the commit
    # When the root was last known to be the one that was opened. Another process must check it again.
    root_checked: ClockReading | None = field(default=None, compare=False, repr=False)

    def check_belongs_to(self, root_id: str, topic: str) -> None:
        """Raise `BadRequest` if files for this target are about to be committed to another topic or root."""
        if (self.root_id, self.topic) != (root_id, topic):
            raise BadRequest(
                f"files were written for topic '{self.topic}' of root {self.root_id}, not for '{topic}' of {root_id}"
            )

    def check_root(self) -> None:
        """Raise unless the root is the driver's: the same path may be another disk on this machine."""
        location = self.store.location
        try:
            root_id = read_root_id(self.store)
        except NotFound:
            raise NotFound(
                f"expected the root {self.root_id} at {location}, found none on this machine: use storage that driver "
                "and executors share"
            ) from None
        check_root_id(location, self.root_id, root_id)

    def accepts_files_for(self, other: AppendTarget) -> bool:
        """Return True if files written for `other`, maybe at an earlier version, fit this target as well."""
        return replace(self, read_version=other.read_version) == other

    def __reduce__(self) -> tuple[type[AppendTarget], tuple[object, ...]]:
        names = [member.name for member in fields(self) if member.name != "root_checked"]
        return AppendTarget, tuple(getattr(self, name) for name in names)


def check_root_id(location: str, expected: str, root_id: str) -> None:
    """Raise `BadRequest` if a root does not have the id of the driver's."""
    if root_id != expected:
        raise BadRequest(
            f"expected the root {expected} at {location}, found {root_id}: use storage that driver and executors share"
        )


@dataclass(frozen=True)
class TopicFiles:
    """The files that one or several tasks wrote for a topic."""

    target: AppendTarget
    files: tuple[FileSlices, ...]

    @property
    def records(self) -> int:
        return sum(sum(file.records) for file in self.files)


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """The result of an append: first and next offset of each partition that received records.

    `skipped` is True if the batch was appended before; `note` says so. `time_ms` is the time of the commit, which its
    records have under LogAppendTime; -1 if there is none.
    """

    version: int
    base: Mapping[int, int]
    end: Mapping[int, int]
    records: int
    skipped: bool = False
    note: str = ""
    commit_id: str = ""
    time_ms: int = -1


def appended(commit: Commit | None, records: int) -> AppendOutcome:
    """Return the outcome of an append that has a commit of its own."""
    if commit is None or not commit.files:
        version, commit_id = (-1, "") if commit is None else (commit.version, commit.commit_id)
        return AppendOutcome(version, {}, {}, 0, True, "a replay: only the new run was recorded", commit_id)
    base: dict[int, int] = {}
    end: dict[int, int] = {}
    for file in commit.files:
        for partition, first, offsets in zip(file.partition, file.base, file.offsets, strict=True):
            base.setdefault(partition, first)
            end[partition] = first + offsets
    return AppendOutcome(commit.version, base, end, records, commit_id=commit.commit_id, time_ms=commit.time_ms)


def appended_each(commit: Commit | None, appends: Sequence[Sequence[FileSlices]]) -> list[AppendOutcome]:
    """Return the outcome of each append that shares a commit, given the files of each."""
    assert commit is not None
    slices = {file.path: zip(file.partition, file.base, file.offsets, strict=True) for file in commit.files}
    # The inline files of all appends are one file of the commit, in the order of the appends.
    inline = next(iter(slices.keys() - {file.path for files in appends for file in files}), INLINE_PATH)
    outcomes = []
    for files in appends:
        base: dict[int, int] = {}
        end: dict[int, int] = {}
        for file in files:
            for partition, first, offsets in islice(slices[file.path or inline], len(file)):
                base.setdefault(partition, first)
                end[partition] = first + offsets
        records = sum([sum(file.records) for file in files])
        outcomes.append(
            AppendOutcome(commit.version, base, end, records, commit_id=commit.commit_id, time_ms=commit.time_ms)
        )
    return outcomes


FILE_BYTES = 1 << 30
MAX_BUFFER_BYTES = 1 << 30
"""Arrow's 32-bit offsets reach 2 GiB, so a buffer must stay well below."""
_CODEC, _BUFFER_BYTES, _POSITIVE = one_of(*CODECS), int64(1, MAX_BUFFER_BYTES), int64(1)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Codec and sizes of a write, for `Topic.append` and `Transaction.append`.

    Args:
        codec: compression codec, if the topic's `compression.type` is `producer`.
        level: compression level; None: the topic's `compression.*.level` (zstd: 1).
        batch_bytes: maximum size of a record batch before compression.
        buffer_bytes: Arrow data to buffer before a flush (`write.buffer.bytes`).
        file_bytes: maximum size of an append file.
    """

    codec: Codec = "zstd"
    level: int | None = None
    batch_bytes: int = 512 << 10
    buffer_bytes: int = 64 << 20
    file_bytes: int = FILE_BYTES

    def __post_init__(self) -> None:
        _CODEC.check("codec", self.codec)
        INTEGER.or_none().check("level", self.level)
        _BUFFER_BYTES.check("buffer_bytes", self.buffer_bytes)
        _POSITIVE.check("batch_bytes", self.batch_bytes)
        _POSITIVE.check("file_bytes", self.file_bytes)
