"""Write rows as the slices of one topic.

`AppendWriter` buffers up to `buffer_bytes` of Arrow data, encodes the data by partition as one slice per partition, and
continues in the same file. A task therefore has bounded memory and creates one object per GiB. Small results become
inline records of the commit (`sparklog.log.write.append_output`). Offsets count from 0 in each slice, and the commit
that references the file assigns the final offsets. The order of rows in a partition does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format.append_file import INDEX_MIN_BYTES, SliceIndex, WrittenSlice, build_index
from sparklog.format.arrow_numpy import valid_rows
from sparklog.format.encode import EncodedSlice, EncodeOptions, EncoderRows, encode_rows
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.state.slices import ANY_PARTITION, FileSlices, RowCounts, SliceFlag
from sparklog.log.write.append_output import SliceOutput
from sparklog.log.write.append_target import AppendTarget, WriteOptions
from sparklog.log.write.rows import JOINED_BYTES, Partitioner, Rows, checked_chunks, rows_of


class AppendWriter:
    """Writes one task's rows for one topic. Call `finish` once. Call `discard` after an error, or instead of `finish`.

    If a flush or `finish` fails, rows that `write` has accepted are lost. From then on, `write`, `flush` and `finish`
    raise `BadRequest`, so that the remaining rows cannot be published without the lost rows. If `write` rejects the
    columns of a batch, the writer has accepted no row of the batch and can still be used.

    Args:
        target: the topic.
        options: codec and sizes.
        env: clocks and random numbers.
        seed: the seed that selects the first partition of rows without a key.
        is_root_checked: True if the caller has checked that the root is the driver's root.
        allow_negative_timestamps: True to accept negative timestamps, because the rows are copies of records that Kafka
            clients wrote.
    """

    def __init__(
        self,
        target: AppendTarget,
        options: WriteOptions | None = None,
        env: Env = SYSTEM,
        seed: int = 0,
        *,
        is_root_checked: bool = False,
        allow_negative_timestamps: bool = False,
    ) -> None:
        self._target = target
        self._options = options if options is not None else WriteOptions()
        self._env = env
        self._allow_negative_timestamps = allow_negative_timestamps
        self._partitioner = Partitioner(target.partitions, seed=seed, sticky_bytes=self._options.batch_bytes)
        codec = target.configs.codec(self._options.codec)
        self._encode = EncodeOptions(
            codec=codec,
            level=target.configs.level(codec, self._options.level),
            batch_bytes=self._options.batch_bytes,
            max_message_bytes=target.configs.max_message_bytes,
            log_append_time=target.configs.log_append_time,
        )
        self._pending: list[list[pa.RecordBatch]] = []
        """Groups of consecutive batches. The batches of a group are joined, because copying small batches is cheaper
        than one call of each kernel per batch.
        """
        self._pending_bytes = 0
        self._group_bytes = 0
        self._output = SliceOutput(target, env, self._options.file_bytes, is_root_checked=is_root_checked)
        self._counts: dict[int, tuple[int, int]] = {}
        """The number of records and bytes by partition. Rows whose partition this writer chose are counted under
        `ANY_PARTITION`.
        """
        self.has_lost_rows = False
        """True if an error may have lost rows that the writer has accepted."""
        self._unusable: str | None = None
        """The reason why the writer can no longer be used, with advice, or None if it can be used."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch. Raises `BadRequest` if the columns of the batch are invalid."""
        self._check_usable()
        # If the columns are invalid, the batch is rejected before any of its rows is accepted, and the writer can still
        # be used.
        chunks = checked_chunks(batch, self._options.buffer_bytes)
        with self._unusable_after_error():
            for chunk in chunks:
                nbytes = chunk.nbytes
                if self._pending_bytes + nbytes > self._options.buffer_bytes:
                    self._flush()
                if not self._pending or self._group_bytes >= JOINED_BYTES:
                    self._pending.append([])
                    self._group_bytes = 0
                self._pending[-1].append(chunk)
                self._group_bytes += nbytes
                self._pending_bytes += nbytes
                if self._pending_bytes >= self._options.buffer_bytes:
                    self._flush()

    def flush(self) -> None:
        """Encode and upload the buffered rows, so that several writers can share one memory budget."""
        self._check_usable()
        with self._unusable_after_error():
            self._flush()

    def _flush(self) -> None:
        """Encode and upload the buffered rows. If this fails, some of them are lost; see `_unusable_after_error`."""
        if not self._pending:
            return
        now_ms = self._env.wall_ms()
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        rows = [self._partitioned(group, now_ms) for group in pending]
        for partition, encoded in encode_rows(rows, options=self._encode):
            # The partitioner chose the partition of the "free" records, which have no key and no explicit partition.
            self._count(partition, encoded.records - encoded.free_records, encoded.content_bytes - encoded.free_bytes)
            self._count(ANY_PARTITION, encoded.free_records, encoded.free_bytes)
            self._output.add(self._written_slice(partition, encoded, now_ms), encoded.buffers)

    def finish(self) -> list[FileSlices]:
        """Flush, and return the durable files or an inline file for `TopicLog.commit_append`.

        The writer can no longer be used, because another `finish` would return the same records again.
        """
        self._check_usable()
        with self._unusable_after_error():
            self._flush()
            files = self._output.finish()
        self._unusable = "has finished; write further rows with a new writer"
        return self._with_counts(files)

    def _with_counts(self, files: Sequence[FileSlices]) -> list[FileSlices]:
        """Return the files with row counts. The last file has the counts of all files, so that the sum does not depend
        on how the rows are divided into files.
        """
        partitions = self._target.partitions
        counted = [replace(file, counts=RowCounts(partitions, {})) for file in files]
        if counted:
            counted[-1].counts = RowCounts(partitions, self._counts)
        return counted

    def discard(self) -> None:
        """Discard all rows. The writer can no longer be used."""
        self._unusable = self._unusable or "has discarded its rows; write all rows again with a new writer"
        self._pending, self._pending_bytes = [], 0
        self._output.discard()

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise BadRequest(f"the writer of topic '{self._target.topic}' {self._unusable}")

    @contextmanager
    def _unusable_after_error(self) -> Iterator[None]:
        """Make the writer unusable if an error occurs, because the error may have lost accepted rows."""
        try:
            yield
        except BaseException as error:
            reason = str(error) or type(error).__name__
            self._unusable = (
                f"has lost rows and can no longer be used: {reason}; write all rows again with a new writer"
            )
            self.has_lost_rows = True
            raise

    def _partitioned(self, batches: list[pa.RecordBatch], now_ms: int) -> EncoderRows:
        """Return the rows of batches with the partition of each row. Raises `BadRequest` if the topic rejects a row."""
        rows = rows_of(batches, now_ms, allow_negative_timestamps=self._allow_negative_timestamps)
        _check_rows(rows, self._target, now_ms)
        partition = self._partitioner.assign(rows.n, key=rows.key, value=rows.value, partition=rows.partition)
        is_explicit = None if rows.partition is None else valid_rows(rows.partition)
        return EncoderRows(
            rows.key,
            rows.value,
            rows.headers,
            rows.timestamp,
            partition=None if self._target.partitions == 1 else partition,
            explicit=is_explicit,
        )

    def _count(self, partition: int, records: int, nbytes: int) -> None:
        if records:
            before = self._counts.get(partition, (0, 0))
            self._counts[partition] = before[0] + records, before[1] + nbytes

    def _written_slice(self, partition: int, encoded: EncodedSlice, now_ms: int) -> WrittenSlice:
        """Return the description of a slice, which is stored in the footer of its file and in the commit."""
        flags = SliceFlag.LOG_APPEND_TIME if self._encode.log_append_time else SliceFlag.NONE
        if encoded.has_null_keys:
            flags |= SliceFlag.HAS_NULL_KEYS
        return WrittenSlice(
            partition=partition,
            nbytes=encoded.nbytes,
            offsets=encoded.records,
            records=encoded.records,
            min_ts=encoded.min_ts,
            # The age of records without timestamps is based on their append time.
            max_ts=now_ms if encoded.max_ts < 0 else encoded.max_ts,
            crc=encoded.crc,
            flags=int(flags),
            index=_slice_index(encoded),
        )


def _check_rows(rows: Rows, target: AppendTarget, now_ms: int) -> None:
    """Raise `BadRequest` if a key is missing in a compacted topic, or a timestamp is too far from the clock."""
    configs = target.configs
    if configs.is_compacted and (rows.key is None or rows.key.null_count):
        raise BadRequest(f"topic {target.topic} is compacted and rejects records without a key; add a key to each row")
    limits = (configs.timestamp_before_max_ms, configs.timestamp_after_max_ms)
    if configs.log_append_time or min(limits) == INT64_MAX:
        return
    oldest, latest = int(rows.timestamp.min()), int(rows.timestamp.max())
    for side, timestamp, distance_ms, limit_ms in (
        ("before", oldest, now_ms - oldest, limits[0]),
        ("after", latest, latest - now_ms, limits[1]),
    ):
        if distance_ms > limit_ms:
            raise BadRequest(
                f"timestamp {timestamp} is more than message.timestamp.{side}.max.ms ({limit_ms}) {side} the clock "
                f"({now_ms}); correct the timestamp or alter topic {target.topic}"
            )


def _slice_index(encoded: EncodedSlice) -> SliceIndex | None:
    """Return the index of a slice, or None if the slice is small."""
    if encoded.nbytes <= INDEX_MIN_BYTES:
        return None
    base = np.concatenate([np.zeros(1, np.int64), encoded.last_offsets[:-1] + 1])
    return build_index(encoded.positions, base, encoded.max_timestamps, encoded.nbytes)
