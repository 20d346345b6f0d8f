"""An append before and after: WriteOptions and AppendTarget (driver to task), TopicFiles (back), and AppendOutcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice

from sparklog.arguments import WHOLE
from sparklog.common.settings import one_of, whole
from sparklog.errors import BadRequest
from sparklog.format.record_batch import CODECS, Codec
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.state.commit import Commit
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import INLINE_PATH, FileSlices
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class AppendTarget:
    """The topic as a task writes files for it: picklable, carried from the driver to the tasks."""

    store: Store
    root_id: str
    topic: str
    topic_id: str
    partitions: int
    configs: TopicConfigs
    read_version: int
    leader_epoch: int
    inline_bytes: int = 0  # of records that go into the commit, at most
    # When the root was seen to be the one that was opened, where that cost no time of its own.
    root_checked: ClockReading | None = field(default=None, compare=False, repr=False)

    def check_belongs_to(self, root_id: str, topic: str) -> None:
        """Raise `BadRequest` if files for this target are to be committed to another topic or root."""
        if (self.root_id, self.topic) != (root_id, topic):
            raise BadRequest(
                f"files were written for topic '{self.topic}' of root {self.root_id}, not for '{topic}' of {root_id}"
            )

    def takes_rows_as(self, other: AppendTarget) -> bool:
        """Return True if files written for `other`, maybe at an earlier version, are right for this target as well."""
        return replace(self, read_version=other.read_version) == other

    def __reduce__(self) -> tuple[type[AppendTarget], tuple[object, ...]]:
        # Another process must look for itself.
        return AppendTarget, tuple(
            getattr(self, member.name) for member in fields(self) if member.name != "root_checked"
        )


@dataclass(frozen=True)
class TopicFiles:
    target: AppendTarget
    files: tuple[FileSlices, ...]

    @property
    def records(self) -> int:
        return sum(sum(file.records) for file in self.files)


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """First and next offsets of an append, per partition that got records. `skipped`: a replay (see `note`)."""

    version: int
    base: Mapping[int, int]
    end: Mapping[int, int]
    records: int
    skipped: bool = False
    note: str = ""
    commit_id: str = ""
    time_ms: int = -1
    """Of the commit: the time of its records under LogAppendTime; -1 without one."""


def appended(commit: Commit | None, records: int) -> AppendOutcome:
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
    """Return the outcome of each of several appends in a commit, given as the files that it was made of."""
    assert commit is not None
    slices = {file.path: zip(file.partition, file.base, file.offsets, strict=True) for file in commit.files}
    # The files that were not written are one file of the commit, in their order.
    joined = next(iter(slices.keys() - {file.path for files in appends for file in files}), INLINE_PATH)
    outcomes = []
    for files in appends:
        base: dict[int, int] = {}
        end: dict[int, int] = {}
        for file in files:
            for partition, first, offsets in islice(slices[file.path or joined], len(file)):
                base.setdefault(partition, first)
                end[partition] = first + offsets
        records = sum([sum(file.records) for file in files])
        outcomes.append(
            AppendOutcome(commit.version, base, end, records, commit_id=commit.commit_id, time_ms=commit.time_ms)
        )
    return outcomes


FILE_BYTES = 1 << 30
MAX_BUFFER_BYTES = 1 << 30
"""Arrow's 32-bit offsets reach 2 GiB: a buffer must stay well below."""
_CODEC, _BUFFER_BYTES, _POSITIVE = one_of(*CODECS), whole(1, MAX_BUFFER_BYTES), whole(1)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Codec and sizes of a write, for `Topic.append` and `Transaction.append`.

    Args:
        codec: counts where the topic's `compression.type` is `producer`.
        level: of the codec; None: the topic's `compression.*.level` (zstd: 1).
        batch_bytes: of a record batch, uncompressed.
        buffer_bytes: Arrow data held before a flush (`write.buffer.bytes`).
        file_bytes: where a file ends and the next begins.
    """

    codec: Codec = "zstd"
    level: int | None = None
    batch_bytes: int = 512 << 10
    buffer_bytes: int = 64 << 20
    file_bytes: int = FILE_BYTES

    def __post_init__(self) -> None:
        _CODEC.check("codec", self.codec)
        WHOLE.or_none().check("level", self.level)
        _BUFFER_BYTES.check("buffer_bytes", self.buffer_bytes)
        _POSITIVE.check("batch_bytes", self.batch_bytes)
        _POSITIVE.check("file_bytes", self.file_bytes)
