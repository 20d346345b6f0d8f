"""`Topic.append`: Arrow data in, one commit out, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.log.append_writer import AppendWriter, WriteOptions
from sparklog.log.partitioner import sticky_seed
from sparklog.log.rows import ROW_COLUMNS

if TYPE_CHECKING:
    from sparklog.log.append_target import AppendOutcome
    from sparklog.log.registry import WriterKey
    from sparklog.log.topic import Topic

__all__ = ["ArrowData", "append", "batches"]

ArrowData: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch | pa.Table]


def append(
    topic: Topic, data: ArrowData, *, options: WriteOptions | None = None, writer: WriterKey | None = None
) -> AppendOutcome:
    """Append rows (columns: `rows.ROW_COLUMNS`) as one commit over all partitions; see `Topic.append`."""
    target = topic.append_target()
    seed = sticky_seed(writer.id, writer.batch) if writer is not None else topic.root.env.random.getrandbits(63)
    sink = AppendWriter(target, options, topic.root.env, seed)
    try:
        for batch in batches(data):
            sink.write(batch)
        files = sink.finish()
    except BaseException:
        sink.discard()
        raise
    return topic.commit_append(files, target, writer=writer)


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
