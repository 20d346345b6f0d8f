"""Write produced batches to an append file with one slice per partition.

The bytes of a batch do not change, except for its base offset, which is the offset of the batch in its slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sparklog.format.append_file import INDEX_MIN_BYTES, SliceIndex, WrittenSlice, build_index
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import NO_TIMESTAMP
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.names import append_path
from sparklog.log.state.slices import FileSlices
from sparklog.log.write.append_output import inline_file, inline_file_bytes, write_file
from sparklog.log.write.append_target import AppendTarget
from sparklog.serve.batch_checks import CheckedBatch

BASE_OFFSET_BYTES = 8


def write_batches(by_partition: Mapping[int, Sequence[CheckedBatch]], target: AppendTarget, env: Env) -> FileSlices:
    """Write the batches of partitions to a file, and return the file. A small file becomes inline records."""
    slices: list[WrittenSlice] = []
    parts: list[bytes | memoryview] = []
    for partition, batches in sorted(by_partition.items()):
        data = _slice_parts(batches)
        slices.append(_slice(partition, batches, data))
        parts += data
    if min([slice_.max_ts for slice_ in slices]) < 0 and not target.configs.log_append_time:
        # Retention uses the append time if a record has no timestamp, as a broker uses the modification time of the
        # segment.
        now_ms = env.wall_ms()
        slices = [replace(slice_, max_ts=now_ms) if slice_.max_ts < 0 else slice_ for slice_ in slices]
    is_small = all(slice_.index is None for slice_ in slices)
    if is_small and inline_file_bytes(len(slices), sum([slice_.nbytes for slice_ in slices])) <= target.inline_bytes:
        return inline_file(slices, b"".join(parts))
    return write_file(target.store, target.topic, append_path(target.read_version, env.new_id()), slices, parts)


def _slice_parts(batches: Sequence[CheckedBatch]) -> list[bytes | memoryview]:
    """Return the bytes of the batches in several parts, so that large batches are not copied."""
    parts: list[bytes | memoryview] = []
    offset = 0
    for batch in batches:
        parts += (offset.to_bytes(BASE_OFFSET_BYTES, "big"), batch.data[BASE_OFFSET_BYTES:])
        offset += batch.count
    return parts


def _slice(partition: int, batches: Sequence[CheckedBatch], parts: Sequence[bytes | memoryview]) -> WrittenSlice:
    crc = flags = 0
    for part in parts:
        crc = crc32c(part, crc)
    for batch in batches:
        flags |= batch.flags
    nbytes, records = sum([len(batch.data) for batch in batches]), sum([batch.count for batch in batches])
    return WrittenSlice(
        partition=partition,
        nbytes=nbytes,
        offsets=records,
        records=records,
        min_ts=min([batch.min_ts for batch in batches if batch.min_ts >= 0], default=NO_TIMESTAMP),
        max_ts=max([batch.max_ts for batch in batches]),
        crc=crc,
        flags=flags,
        index=_slice_index(batches, nbytes),
    )


def _slice_index(batches: Sequence[CheckedBatch], nbytes: int) -> SliceIndex | None:
    """Return the index of a slice, or None if the slice is small."""
    if nbytes <= INDEX_MIN_BYTES:
        return None
    sizes = np.array([len(batch.data) for batch in batches], np.int64)
    counts = np.array([batch.count for batch in batches], np.int64)
    max_timestamps = np.array([batch.max_ts for batch in batches], np.int64)
    return build_index(np.cumsum(sizes) - sizes, np.cumsum(counts) - counts, max_timestamps, nbytes)
