"""The content of a batch, by which a replay is told from other records under the same number.

A replay holds the same records, but may be laid out over other tasks, at other times and in another order. So it is
judged by what none of these changes: records, bytes of keys, values and headers, and how both spread over partitions.
Rows with neither key nor partition count together, for the task decides where these go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


ANYWHERE = -1
"""Stands for the partition of rows that have neither a key nor a partition."""
LAYOUT_BYTES = 8


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of keys, values and headers of a batch, and its `layout`: the number of partitions and a digest.

    The digest is of records and bytes by topic and partition. It says nothing once partitions were added, which sends
    keys elsewhere.
    """

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
    """The content of files, topic to the counts of each; None where these are not known of all."""
    partitions: set[tuple[str, int]] = set()
    total: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, files in counts.items():
        for each in files:
            if each is None:
                return None
            partitions.add((topic, each.partitions))
            for partition, (records, nbytes) in each.rows.items():
                before = total.get((topic, partition), (0, 0))
                total[topic, partition] = before[0] + records, before[1] + nbytes
    listed = json.dumps([[*place, *amounts] for place, amounts in sorted(total.items())], separators=(",", ":"))
    digest = hashlib.blake2b(listed.encode(), digest_size=LAYOUT_BYTES).hexdigest()
    return Content(sum(size for _, size in total.values()), f"{sum(number for _, number in partitions)}:{digest}")
