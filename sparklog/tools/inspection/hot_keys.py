"""Keys of a partition with most records and most bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format.payloads import RecordFields
from sparklog.format.record_batch import BoolArray, Payloads

KEYS = pa.schema(
    [
        *(("topic", pa.string()), ("partition", pa.int32()), ("key", pa.binary())),
        *(("records", pa.int64()), ("bytes", pa.int64())),
    ]
)
"""One row per key and partition, largest first; `bytes` those of its records before compression."""

MOST_KEYS = 1 << 18
"""Keys of a partition that are kept. Of a partition with more, those that are small so far are forgotten."""


@dataclass
class HotKeys:
    """Adds up records by key, window by window, in bounded memory."""

    most: int = MOST_KEYS
    parts: list[pa.Table] = field(default_factory=lambda: [KEYS.empty_table().select(["key", "records", "bytes"])])

    def add(self, body: Payloads, records: RecordFields, hashes: npt.NDArray[np.uint64], keyed: BoolArray) -> None:
        """Add the records that are `keyed` (bool[n]); `hashes` are those of their keys (uint64[n])."""
        rows = np.flatnonzero(keyed)
        _, first, group = np.unique(hashes[rows], return_index=True, return_inverse=True)
        # One key stands for all of its hash.
        start, length = records.key_start[rows[first]], records.key_length[rows[first]]
        data = body.data.data
        keys = [bytes(data[low : low + size]) for low, size in zip(start.tolist(), length.tolist(), strict=True)]
        sizes = np.bincount(group, (records.end - records.start)[rows], len(first)).astype(np.int64)
        counts = np.bincount(group, minlength=len(first)).astype(np.int64)
        self.parts.append(pa.table([pa.array(keys, pa.binary()), counts, sizes], ["key", "records", "bytes"]))
        if sum(map(len, self.parts)) > 2 * self.most:
            self.parts = [self._largest()]

    def _largest(self) -> pa.Table:
        sums = pa.concat_tables(self.parts).group_by("key", use_threads=False)
        table = sums.aggregate([("records", "sum"), ("bytes", "sum")]).select(["key", "records_sum", "bytes_sum"])
        order = [("bytes", "descending"), ("records", "descending"), ("key", "ascending")]
        return table.rename_columns(["key", "records", "bytes"]).sort_by(order).slice(0, self.most)

    def table(self, topic: str, partition: int) -> pa.Table:
        """Return the keys so far (`KEYS`)."""
        table = self._largest()
        partition_columns = [pa.repeat(topic, len(table)), pa.repeat(partition, len(table))]
        return pa.table([*partition_columns, *table.columns], KEYS.names).cast(KEYS)
