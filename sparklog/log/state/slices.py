"""The slices of one file in the form that writers report and commits contain, and the content of a batch of appended
rows.

The slices of a `FileSlices` are contiguous in list order and start at byte 0, unless `position` specifies other
positions. For example, a rewrite may keep only some slices of a file, or a part of a slice.

The content of a batch distinguishes a replay from other records with the same batch number. A replay has the same
records, but tasks may write these records at other times, in another order and in other files. Therefore, the content
consists of properties that do not change: the number of records, the total size of keys, values and headers, and the
distribution of records and bytes across partitions. Rows that have neither a key nor a partition are counted together,
because the task chooses their partitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntFlag
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sparklog.format.slice_columns import WRITTEN, written_values

if TYPE_CHECKING:
    from sparklog.format.append_file import WrittenSlice

ANY_PARTITION = -1
"""The partition number under which rows without a key and a partition are counted."""
LAYOUT_BYTES = 8
INLINE_PATH = ""
"""The path of an inline file, whose bytes are in the commit that lists it."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a batch, which consists of its size and its `layout`.

    The layout is the number of partitions and a digest. Digests are only comparable if the number of partitions is the
    same.
    """

    nbytes: int
    layout: str

    def matches(self, other: Content) -> bool:
        """Return True if both contents may belong to the same batch."""
        comparable = self.layout.partition(":")[0] == other.layout.partition(":")[0]
        return self.nbytes == other.nbytes and (self.layout == other.layout or not comparable)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The number of records and bytes in one file by partition (or `ANY_PARTITION`), and the topic's partition count
    that the task used.
    """

    partitions: int
    rows: Mapping[int, tuple[int, int]]


def content_of(counts: Mapping[str, Sequence[RowCounts | None]]) -> Content | None:
    """Return the content of files. `counts` contains the counts of each file by topic. Return None if some counts are
    unknown.
    """
    partitions: set[tuple[str, int]] = set()
    total: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, files in counts.items():
        for file in files:
            if file is None:
                return None
            partitions.add((topic, file.partitions))
            for partition, (records, nbytes) in file.rows.items():
                before = total.get((topic, partition), (0, 0))
                total[topic, partition] = before[0] + records, before[1] + nbytes
    listed = json.dumps(
        [[*partition_key, *amounts] for partition_key, amounts in sorted(total.items())], separators=(",", ":")
    )
    # This import loads OpenSSL, which readers do not need.
    from hashlib import blake2b

    digest = blake2b(listed.encode(), digest_size=LAYOUT_BYTES).hexdigest()
    return Content(sum(size for _, size in total.values()), f"{sum(number for _, number in partitions)}:{digest}")


class SliceFlag(IntFlag):
    """Properties of a slice that readers and rewrites need without reading the slice."""

    NONE = 0
    HAS_NULL_KEYS = 1
    LOG_APPEND_TIME = 2
    """The batches have the LogAppendTime bit. Unless TIMES_IN_BATCHES is set, their timestamp is the commit time."""
    TIMES_IN_BATCHES = 4
    """Merging or sealing has written the append times to the batches."""
    KAFKA_PRODUCERS = 8
    """The slice contains imported batches with producer ids, or control batches. Transactions and sequence numbers
    apply.
    """
    KAFKA_ABORTED = 16
    """The slice contains ABORT markers. The `.txnindex` of a segment, or the footer of an append file, contains the
    aborted offsets.
    """
    KEY_FILTER = 32
    """The file has a key filter; see `sparklog.format.key_filter`."""


_LOG_APPEND_TIME = int(SliceFlag.LOG_APPEND_TIME)
_TIME_FLAGS = int(SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES)
MERGE_TIER_SHIFT = 8
MERGE_TIER_MASK = 0xF << MERGE_TIER_SHIFT
"""Bits 8 to 11 of a slice's flags are its tier. Appended slices have tier 0. If eight files of tier t are merged, the
result has tier t + 1.
"""


def with_tier(flags: int, tier: int) -> int:
    return flags & ~MERGE_TIER_MASK | min(tier, 0xF) << MERGE_TIER_SHIFT


@dataclass(slots=True)
class FileSlices:
    """One data file and its slices, in file order, as a commit lists them (docs/reference/format-commits.md).

    Instances are mutable for the same reason as commits, and only `decode_commit` changes them.

    Each tuple has one value per slice. `base` is empty before the commit. Only merging, sealing and imports set
    `position` and the fields after it. An empty field has the value that the page above defines for an absent list.
    Tasks that append report `counts` to the commit, and `data` has the bytes of an inline file. These two fields are
    not stored in the document.
    """

    path: str
    size: int
    footer_length: int
    partition: tuple[int, ...]
    nbytes: tuple[int, ...]
    offsets: tuple[int, ...]
    records: tuple[int, ...]
    min_ts: tuple[int, ...]
    max_ts: tuple[int, ...]
    crc: tuple[int, ...]
    flags: tuple[int, ...]
    base: tuple[int, ...] = ()
    position: tuple[int, ...] = ()
    shift: tuple[int, ...] = ()
    append_time: tuple[int, ...] = ()
    leader_epoch: tuple[int, ...] = ()
    index_crc: tuple[int, ...] = ()
    counts: RowCounts | None = field(default=None, compare=False)
    data: bytes = field(default=b"", compare=False, repr=False)

    @classmethod
    def of(cls, path: str, slices: Sequence[WrittenSlice], footer_length: int, data: bytes = b"") -> FileSlices:
        """Return a file that contains these slices and a footer of this length. `data` contains the bytes of an inline
        file.
        """
        columns: dict[str, Any] = dict.fromkeys(WRITTEN, ())
        columns |= zip(WRITTEN, zip(*map(written_values, slices), strict=True), strict=False)
        return cls(path, sum(columns["nbytes"]) + footer_length, footer_length, **columns, data=data)

    def __len__(self) -> int:
        return len(self.partition)

    def with_base(self, base: tuple[int, ...]) -> FileSlices:
        file = FileSlices(*_values(self))
        file.base = base
        return file

    def in_log(self, base: int) -> FileSlices:
        """Return a file that contains one slice at `base`. Its batches contain the offsets, timestamps and leader
        epochs of the log.
        """
        return replace(self, base=(base,), shift=(0,), append_time=(-1,), leader_epoch=(-1,))

    @property
    def starts(self) -> tuple[int, ...]:
        return self.position or tuple(accumulate(self.nbytes[:-1], initial=0))[: len(self)]

    def append_times(self, time_ms: int) -> Sequence[int]:
        """Return each slice's LogAppendTime for a commit at this time (ms), or -1 if batches have their own times."""
        if self.append_time:
            return self.append_time
        return [time_ms if flags & _TIME_FLAGS == _LOG_APPEND_TIME else -1 for flags in self.flags]


_values = attrgetter(*(item.name for item in fields(FileSlices)))
"""A function that reads all fields in one call. `dataclasses.replace` and `copy` would require thirty calls per append.
"""
