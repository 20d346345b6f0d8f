"""Writing rows as append files.

`AppendWriter` buffers up to `buffer_bytes` of Arrow data, then writes it grouped by partition, one slice per partition,
and goes on in the same file. So the memory of a task is bounded, and it costs one object per GiB. What is small is not
written at all, but handed to the commit (`sparklog.log.write.append_output`). Offsets count from 0 in each slice: the
commit that names the files assigns them. Rows of one partition keep their order. `sparklog.log.write.arrow_data` does
it without Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from sparklog.errors import BadRequest, NotFound, SparklogError
from sparklog.format.append_file import INDEX_MIN_BYTES, SliceIndex, WrittenSlice, build_index
from sparklog.format.arrow_numpy import valid_rows
from sparklog.format.encode import EncodedSlice, EncodeOptions, EncoderRows, encode_rows
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.names import append_path, file_key, read_root_id
from sparklog.log.state.slices import ANYWHERE, FileSlices, RowCounts, SliceFlag
from sparklog.log.write.append_output import AppendOutput, inline_file, inline_file_bytes
from sparklog.log.write.append_target import AppendTarget, WriteOptions
from sparklog.log.write.rows import Partitioner, Rows, checked_pieces, joinable, rows_of
from sparklog.storage.parallel_reads import map_requests


class AppendWriter:
    """Writes one task's rows as append files of one topic; after an error, or instead of `finish`, call `discard`.

    Up to `inline.records.bytes` encoded slices are held in memory, and no file is begun.

    The first file looks whether the root is the driver's (a request), unless the caller has (`checked_root`): before it
    is begun on a disk, which may be another one on each machine.

    `copied`: the rows are records of another topic, so negative timestamps are kept.
    """

    def __init__(
        self,
        target: AppendTarget,
        options: WriteOptions | None = None,
        env: Env = SYSTEM,
        seed: int = 0,
        *,
        checked_root: bool = False,
        copied: bool = False,
    ) -> None:
        self._target = target
        self._options = options if options is not None else WriteOptions()
        self._env = env
        self._partitioner = Partitioner(target.partitions, seed=seed, sticky_bytes=self._options.batch_bytes)
        codec = target.configs.codec(self._options.codec)
        self._encode = EncodeOptions(
            codec=codec,
            level=target.configs.level(codec, self._options.level),
            batch_bytes=self._options.batch_bytes,
            max_message_bytes=target.configs.max_message_bytes,
            log_append_time=target.configs.log_append_time,
        )
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._output: AppendOutput | None = None
        self._most_inline = target.inline_bytes
        self._held: list[tuple[WrittenSlice, bytes]] = []
        self._files: list[FileSlices] = []
        self._counts: dict[int, tuple[int, int]] = {}
        self._checked_root = checked_root
        self._copied = copied

    def write(self, batch: pa.RecordBatch) -> None:
        for piece in checked_pieces(batch, self._options.buffer_bytes):
            if self._pending_bytes + piece.nbytes > self._options.buffer_bytes:
                self.flush()
            self._pending.append(piece)
            self._pending_bytes += piece.nbytes
            if self._pending_bytes >= self._options.buffer_bytes:
                self.flush()

    def finish(self) -> list[FileSlices]:
        """Flush and close; return durable files, or one that is not written, for `TopicLog.commit_append`."""
        self.flush()
        self._close()
        if self._held:
            self._files = [
                inline_file([written for written, _ in self._held], b"".join(data for _, data in self._held))
            ]
            self._held = []
        if self._files:
            # Of all files, with the last of them: where a file ends has nothing to do with the rows.
            nothing, rows = RowCounts(self._target.partitions, {}), RowCounts(self._target.partitions, self._counts)
            *earlier, last = self._files
            self._files = [*(replace(file, counts=nothing) for file in earlier), replace(last, counts=rows)]
        return self._files

    def discard(self) -> None:
        """Give up. The file being written vanishes; whole ones are left to the vacuum, as nothing names them."""
        self._pending, self._pending_bytes, self._held = [], 0, []
        output, self._output = self._output, None
        if output is not None:
            output.discard()

    def flush(self) -> None:
        """Encode and upload what is buffered now: for callers that share one memory budget among several writers."""
        if not self._pending:
            return
        now = self._env.wall_ms()
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        parts = [self._placed(batches, now) for batches in joinable(pending)]
        for number, encoded in encode_rows(parts, options=self._encode):
            self._count(number, encoded.records - encoded.free_records, encoded.content_bytes - encoded.free_bytes)
            self._count(ANYWHERE, encoded.free_records, encoded.free_bytes)
            self._add(number, encoded)

    def _placed(self, batches: list[pa.RecordBatch], now: int) -> EncoderRows:
        rows = rows_of(batches, now, copied=self._copied)
        _check_rows(rows, self._target, now)
        partition = self._partitioner.assign(rows.n, key=rows.key, value=rows.value, partition=rows.partition)
        placed = None if rows.partition is None else valid_rows(rows.partition)
        lanes = None if self._target.partitions == 1 else partition
        return EncoderRows(rows.key, rows.value, rows.headers, rows.timestamp, lanes, placed)

    def _count(self, place: int, records: int, nbytes: int) -> None:
        if records:
            before = self._counts.get(place, (0, 0))
            self._counts[place] = before[0] + records, before[1] + nbytes

    def _add(self, partition: int, encoded: EncodedSlice) -> None:
        written = self._described(partition, encoded)
        if written.index is None and self._is_small(encoded.nbytes):
            self._held.append((written, b"".join(encoded.buffers)))
            return
        held, self._held = self._held, []
        for earlier, data in held:
            self._write(earlier, data)
        self._write(written, *encoded.buffers)

    def _is_small(self, nbytes: int) -> bool:
        if self._output is not None or self._files:
            return False
        held = sum(written.nbytes for written, _ in self._held)
        return inline_file_bytes(len(self._held) + 1, held + nbytes) <= self._most_inline

    def _described(self, partition: int, encoded: EncodedSlice) -> WrittenSlice:
        flags = SliceFlag.LOG_APPEND_TIME if self._encode.log_append_time else SliceFlag.NONE
        if encoded.has_null_keys:
            flags |= SliceFlag.HAS_NULL_KEYS
        return WrittenSlice(
            partition=partition,
            nbytes=encoded.nbytes,
            offsets=encoded.records,
            records=encoded.records,
            min_ts=encoded.min_ts,
            # The age of records without timestamps counts from their append.
            max_ts=self._env.wall_ms() if encoded.max_ts < 0 else encoded.max_ts,
            crc=encoded.crc,
            flags=int(flags),
            index=_index(encoded),
        )

    def _write(self, written: WrittenSlice, *data: bytes | bytearray | memoryview) -> None:
        if self._output is not None and self._output.position + written.nbytes > self._options.file_bytes:
            self._close()
        if self._output is None:
            if self._target.store.parallel_reads == 1:
                if self._must_check_root():
                    check_root(self._target)
                self._checked_root = True
            path = append_path(self._target.read_version, self._env.new_id())
            self._output = AppendOutput(self._target.store, self._target.topic, path)
        self._output.write(*data)
        self._output.end_slice(written)

    def _must_check_root(self) -> bool:
        root_checked = self._target.root_checked
        return not self._checked_root and (root_checked is None or not self._env.now().is_soon_after(root_checked))

    def _close(self) -> None:
        """Close the file, which then exists. Where requests cost a round trip, the root is looked at meanwhile."""
        output, self._output = self._output, None
        if output is None:
            return
        if self._must_check_root():
            closing: list[Callable[[], FileSlices | None]] = [output.close, partial(check_root, self._target)]
            try:
                closed, _ = map_requests(self._target.store, lambda ask: ask(), closing)
            except SparklogError:
                # It may be in another root now.
                with suppress(SparklogError):
                    self._target.store.delete(file_key(self._target.topic, output.path))
                raise
        else:
            closed = output.close()
        self._checked_root = True
        self._files += [] if closed is None else [closed]


def check_root(target: AppendTarget) -> None:
    """Raise unless the root is the one that the driver saw: the same path may be another disk on this machine."""
    where = target.store.location
    try:
        root_id = read_root_id(target.store)
    except NotFound:
        raise NotFound(
            f"expected the root {target.root_id} at {where}, found none on this machine: use storage that driver and "
            "executors share"
        ) from None
    refuse_other_root(where, target.root_id, root_id)


def refuse_other_root(location: str, expected: str, root_id: str) -> None:
    """Raise BadRequest if a root has not the id that the driver saw."""
    if root_id != expected:
        raise BadRequest(
            f"expected the root {expected} at {location}, found {root_id}: use storage that driver and executors share"
        )


def _check_rows(rows: Rows, target: AppendTarget, now_ms: int) -> None:
    configs = target.configs
    if configs.is_compacted and (rows.key is None or rows.key.null_count):
        raise BadRequest(f"topic {target.topic} is compacted and takes no record without a key: give every row a key")
    if configs.log_append_time:
        return
    oldest, newest = int(rows.timestamp.min()), int(rows.timestamp.max())
    for side, timestamp, away_ms, limit_ms in (
        ("before", oldest, now_ms - oldest, configs.timestamp_before_max_ms),
        ("after", newest, newest - now_ms, configs.timestamp_after_max_ms),
    ):
        if away_ms > limit_ms:
            raise BadRequest(
                f"timestamp {timestamp} is more than message.timestamp.{side}.max.ms ({limit_ms}) {side} the clock "
                f"({now_ms}): correct it or alter topic {target.topic}"
            )


def _index(encoded: EncodedSlice) -> SliceIndex | None:
    if encoded.nbytes <= INDEX_MIN_BYTES:
        return None
    base = np.concatenate([np.zeros(1, np.int64), encoded.last_offsets[:-1] + 1])
    return build_index(encoded.positions, base, encoded.max_timestamps, encoded.nbytes)
