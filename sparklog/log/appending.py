"""Arrow data into append files, without Spark: what `Topic.append` commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.log.append_target import AppendTarget
from sparklog.log.append_writer import AppendWriter, WriteOptions
from sparklog.log.env import Env
from sparklog.log.partitioner import sticky_seed
from sparklog.log.registry import WriterKey
from sparklog.log.rows import ROW_COLUMNS
from sparklog.log.slices import FileSlices

__all__ = ["ArrowData", "batches", "write_files"]

ArrowData: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch | pa.Table]


def write_files(
    data: ArrowData, target: AppendTarget, env: Env, *, options: WriteOptions | None, writer: WriterKey | None
) -> list[FileSlices]:
    """The files of these rows (columns: `rows.ROW_COLUMNS`); nothing is left of them if a row is refused."""
    seed = sticky_seed(writer.id, writer.batch) if writer is not None else env.random.getrandbits(63)
    sink = AppendWriter(target, options, env, seed)
    try:
        for batch in batches(data):
            sink.write(batch)
        return sink.finish()
    except BaseException:
        sink.discard()
        raise


def batches(data: ArrowData) -> Iterator[pa.RecordBatch]:
    """Record batches of tables, batches, readers and iterables of them; `BadRequest` for columns that no record has."""
    for item in (data,) if isinstance(data, pa.Table | pa.RecordBatch) else data:
        if not isinstance(item, pa.Table | pa.RecordBatch):
            raise BadRequest(f"expected pyarrow tables or record batches, found {type(item).__name__}")
        unknown = [name for name in item.schema.names if name not in ROW_COLUMNS]
        if unknown:
            raise BadRequest(f"expected columns of {', '.join(ROW_COLUMNS)}; found {', '.join(unknown)}: drop them")
        if isinstance(item, pa.RecordBatch):
            yield item
        else:
            yield from item.to_batches()
