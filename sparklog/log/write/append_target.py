"""Data classes of an append. The driver sends `WriteOptions` and `AppendTarget` to tasks, which return `TopicFiles`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from sparklog.arguments import INTEGER
from sparklog.common.settings import int64, one_of
from sparklog.errors import BadRequest, NotFound
from sparklog.format.record_batch import CODECS, Codec
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.journal.names import read_root_id
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import FileSlices
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class AppendTarget:
    """The topic for which a task writes files. The driver sends the pickled target to the tasks."""

    store: Store
    root_id: str
    topic: str
    topic_id: str
    partitions: int
    configs: TopicConfigs
    read_version: int
    leader_epoch: int
    inline_bytes: int = 0  # maximum size of inline records in the commit
    # The time of the latest check that the root has not been replaced. Other processes must check again.
    root_checked_at: ClockReading | None = field(default=None, compare=False, repr=False)

    def check_belongs_to(self, root_id: str, topic: str) -> None:
        """Raise `BadRequest` if the files were written for another topic or root."""
        if (self.root_id, self.topic) != (root_id, topic):
            raise BadRequest(
                f"the files were written for topic '{self.topic}' of root {self.root_id}, "
                f"not for topic '{topic}' of root {root_id}"
            )

    def check_root(self) -> None:
        """Raise an error if the root differs from the driver's root. The path may be another disk on this host."""
        location = self.store.location
        try:
            root_id = read_root_id(self.store)
        except NotFound:
            raise NotFound(
                f"expected the root {self.root_id} at {location}, found none on this host; use storage that the "
                "driver and the executors share"
            ) from None
        check_root_id(location, self.root_id, root_id)

    def accepts_files_for(self, other: AppendTarget) -> bool:
        """Return True if files that were written for the target `other`, possibly at an earlier version, can also be
        published to this target.
        """
        return replace(self, read_version=other.read_version) == other

    def __reduce__(self) -> tuple[type[AppendTarget], tuple[object, ...]]:
        names = [member.name for member in fields(self) if member.name != "root_checked_at"]
        return AppendTarget, tuple(getattr(self, name) for name in names)


def check_root_id(location: str, expected: str, root_id: str) -> None:
    """Raise `BadRequest` if the id of a root is not the id of the driver's root."""
    if root_id != expected:
        raise BadRequest(
            f"expected the root {expected} at {location}, found {root_id}; use storage that the driver and "
            "the executors share"
        )


@dataclass(frozen=True)
class TopicFiles:
    """The files that one or more tasks wrote for a topic."""

    target: AppendTarget
    files: tuple[FileSlices, ...]

    @property
    def records(self) -> int:
        return sum(sum(file.records) for file in self.files)


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """The result of an append: the first and next offset of each partition that received records.

    If the batch was appended before, `skipped` is True and `note` contains the reason. `time_ms` is the `created_ms` of
    the commit, which is the timestamp of the records if the topic uses LogAppendTime, or -1 if there is no commit.
    """

    version: int
    base: Mapping[int, int]
    end: Mapping[int, int]
    records: int
    skipped: bool = False
    note: str = ""
    commit_id: str = ""
    time_ms: int = -1


FILE_BYTES = 1 << 30
MAX_BUFFER_BYTES = 1 << 30
"""Arrow's 32-bit offsets are limited to 2 GiB, so a buffer must be considerably smaller."""
_CODEC, _BUFFER_BYTES, _POSITIVE = one_of(*CODECS), int64(1, MAX_BUFFER_BYTES), int64(1)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Codec and sizes of a write, for `Topic.append` and `Transaction.append`.

    Args:
        codec: the compression codec, if the topic's `compression.type` is `producer`.
        level: the compression level, or None for the topic's `compression.*.level` (1 for zstd).
        batch_bytes: the maximum size of a record batch before compression.
        buffer_bytes: the size of Arrow data to buffer before a flush (`write.buffer.bytes`).
        file_bytes: the maximum size of an append file.
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
