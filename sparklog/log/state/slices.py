"""Slices of one file as writers hand them up and commits list them, and the content of a batch of appended rows.

The slices of a `FileSlices` lie back to back from byte 0 in list order, unless `position` says otherwise: a rewrite
may keep only some slices of a file, or a part of one.

The content of a batch tells a replay from other records under the same number. A replay holds the same records, but may
be spread over other tasks, at other times and in another order. So content is what none of these changes: records,
bytes of keys, values and headers, and how both spread over partitions. Rows with neither key nor partition count
together, as the task decides where these go.
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

ANYWHERE = -1
"""Stands for the partition of rows that have neither a key nor a partition."""
LAYOUT_BYTES = 8
INLINE_PATH = ""
"""The path of a file that is not written: its bytes are to be in the commit that names it."""


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of a batch and its `layout`: the number of partitions, and a digest that counts while that is the same."""

    nbytes: int
    layout: str

    def matches(self, other: Content) -> bool:
        """True if both may be the same batch."""
        comparable = self.layout.partition(":")[0] == other.layout.partition(":")[0]
        return self.nbytes == other.nbytes and (self.layout == other.layout or not comparable)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows of one file by partition (or `ANYWHERE`): records and bytes; `partitions`: of the topic, as its task saw."""

    partitions: int
    rows: Mapping[int, tuple[int, int]]


def content_of(counts: Mapping[str, Sequence[RowCounts | None]]) -> Content | None:
    """Return the content of files from the counts of each, by topic; None where some are not known."""
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
    # OpenSSL, which no reader needs.
    from hashlib import blake2b

    digest = blake2b(listed.encode(), digest_size=LAYOUT_BYTES).hexdigest()
    return Content(sum(size for _, size in total.values()), f"{sum(number for _, number in partitions)}:{digest}")


class SliceFlag(IntFlag):
    """Properties of a slice that a reader or a rewrite must know without opening it."""

    NONE = 0
    HAS_NULL_KEYS = 1
    LOG_APPEND_TIME = 2
    """The batches carry the LogAppendTime bit; the commit's time is their time unless TIMES_IN_BATCHES is set."""
    TIMES_IN_BATCHES = 4
    """Merging or sealing has patched the append time into the batches."""
    KAFKA_PRODUCERS = 8
    """Imported: some batches carry producer ids or are control batches, so transactions and sequences count."""
    KAFKA_ABORTED = 16
    """ABORT markers are in it. The `.txnindex` of a segment, or the footer of an append file, says which records they
    take back."""
    KEY_FILTER = 32
    """A filter of its keys was written next to the file: `sparklog.format.key_filter`."""


_LOG_APPEND_TIME = int(SliceFlag.LOG_APPEND_TIME)
_TIME_FLAGS = int(SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES)
MERGE_TIER_SHIFT = 8
MERGE_TIER_MASK = 0xF << MERGE_TIER_SHIFT
"""Bits 8 to 11 of a slice's flags: its tier, 0 as it was appended, t + 1 for what eight runs of tier t became."""


def with_tier(flags: int, tier: int) -> int:
    return flags & ~MERGE_TIER_MASK | min(tier, 0xF) << MERGE_TIER_SHIFT


@dataclass(slots=True)
class FileSlices:
    """One data file and its slices, in file order, as a commit lists them (docs/reference/format-commits.md).

    Not frozen, as commits are not: changed by what reads a commit alone.

    Each tuple has one entry per slice. `base` is empty before the commit. Only merging, sealing and imports set
    `position` and what follows; where it is empty, the rule for absent lists there holds. `counts` goes along from a
    task that appends to the commit, and is not stored. Nor is `data`: all bytes of a file under `INLINE_PATH`.
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
        """Return a file that holds just these slices and a footer of this length; `data`: if it is not written."""
        columns: dict[str, Any] = dict.fromkeys(WRITTEN, ())
        columns |= zip(WRITTEN, zip(*map(written_values, slices), strict=True), strict=False)
        return cls(path, sum(columns["nbytes"]) + footer_length, footer_length, **columns, data=data)

    def __len__(self) -> int:
        return len(self.partition)

    def based(self, base: tuple[int, ...]) -> FileSlices:
        file = FileSlices(*_values(self))
        file.base = base
        return file

    def in_log(self, base: int) -> FileSlices:
        """Return a file of one slice at `base`, whose batches carry the log's offsets, times and leader epochs."""
        return replace(self, base=(base,), shift=(0,), append_time=(-1,), leader_epoch=(-1,))

    @property
    def starts(self) -> tuple[int, ...]:
        return self.position or tuple(accumulate(self.nbytes[:-1], initial=0))[: len(self)]

    def append_times(self, time_ms: int) -> Sequence[int]:
        """Return LogAppendTime of each slice under a commit made at this time (ms), -1 where the batches have times."""
        if self.append_time:
            return self.append_time
        return [time_ms if flags & _TIME_FLAGS == _LOG_APPEND_TIME else -1 for flags in self.flags]


_values = attrgetter(*(item.name for item in fields(FileSlices)))
"""Takes all of a file in one call: `dataclasses.replace` and `copy` make thirty, for each append."""
