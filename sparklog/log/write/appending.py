"""Arrow data into append files, without Spark: what `Topic.append` commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeAlias, cast

import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.log.journal.env import Env
from sparklog.log.read.topic_scan import Scan
from sparklog.log.state.registry import WriterKey
from sparklog.log.state.slices import FileSlices
from sparklog.log.write.append_writer import AppendTarget, AppendWriter, WriteOptions
from sparklog.log.write.partitioner import sticky_seed
from sparklog.log.write.rows import ROW_COLUMNS


class ArrowStream(Protocol):
    """Data with a stream by Arrow's protocol: data frames of Polars and pandas, relations of DuckDB, scans."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """Data with one struct array by Arrow's protocol."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


ArrowItem: TypeAlias = pa.Table | pa.RecordBatch | ArrowStream | ArrowArray
ArrowData: TypeAlias = ArrowItem | Iterable[ArrowItem]


def write_files(
    data: ArrowData, target: AppendTarget, env: Env, *, options: WriteOptions | None, writer: WriterKey | None
) -> list[FileSlices]:
    """Write files of these rows; nothing is left of them if a row is refused."""
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
    """Yield record batches of tables, batches, Arrow streams and iterables of them."""
    # A scan's batches are taken one by one: through the protocol its errors would lose their kind.
    several = isinstance(data, Scan) or (isinstance(data, Iterable) and not _is_arrow(data))
    for item in cast("Iterable[object]", data) if several else (data,):
        if not _is_arrow(item):
            raise BadRequest(
                "expected pyarrow tables, record batches or what else has __arrow_c_stream__ or __arrow_c_array__, "
                f"found {type(item).__name__}"
            )
        yield from _batches_of(item)


def _is_arrow(data: object) -> bool:
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _batches_of(item: Any) -> Iterator[pa.RecordBatch]:
    stream = item if isinstance(item, pa.Table | pa.RecordBatch | pa.RecordBatchReader) else _imported(item)
    unknown = [name for name in stream.schema.names if name not in ROW_COLUMNS]
    if unknown:
        raise BadRequest(f"expected columns of {', '.join(ROW_COLUMNS)}; found {', '.join(unknown)}: drop them")
    if isinstance(stream, pa.RecordBatch):
        yield stream
    elif isinstance(stream, pa.Table):
        yield from stream.to_batches()
    else:
        yield from stream


def _imported(item: Any) -> pa.RecordBatchReader | pa.RecordBatch:
    """Take data of another library by Arrow's protocol, without a copy."""
    try:
        if hasattr(item, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(item)
        return pa.record_batch(item)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadRequest(
            f"expected columns of {', '.join(ROW_COLUMNS)}; Arrow cannot take {type(item).__name__} so: {error}"
        ) from None
