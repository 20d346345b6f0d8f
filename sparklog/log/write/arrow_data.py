"""Convert the data that `Topic.append` and transactions accept to Arrow batches and append files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

import pyarrow as pa

from sparklog.errors import BadRequest, shortened
from sparklog.log.journal.clocks import Env
from sparklog.log.read.topic_scan import Scan
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.write.append_target import AppendTarget, WriteOptions
from sparklog.log.write.append_writer import AppendWriter
from sparklog.log.write.python_rows import batch_of_columns, batches_of_rows
from sparklog.log.write.rows import ROW_COLUMNS, sticky_seed


class ArrowStream(Protocol):
    """Data with Arrow's stream protocol, such as Polars and pandas data frames, DuckDB relations and scans."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """Data with Arrow's array protocol, as a struct array."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


ArrowItem: TypeAlias = pa.Table | pa.RecordBatch | ArrowStream | ArrowArray
ArrowData: TypeAlias = ArrowItem | Iterable[ArrowItem] | Mapping[str, Any] | Iterable[Mapping[str, Any]]
"""Arrow data, or plain Python data: a dictionary of columns, or one dictionary per row."""


def write_files(
    data: ArrowData,
    target: AppendTarget,
    env: Env,
    *,
    options: WriteOptions | None,
    writer: WriterKey | None,
    is_root_checked: bool = False,
    allow_negative_timestamps: bool = False,
) -> list[FileSlices]:
    """Write data to files. `AppendWriter` describes the parameters."""
    seed = sticky_seed(writer.id, writer.batch) if writer is not None else env.random.getrandbits(63)
    sink = AppendWriter(
        target,
        options,
        env,
        seed,
        is_root_checked=is_root_checked,
        allow_negative_timestamps=allow_negative_timestamps,
    )
    try:
        for batch in batches(data):
            sink.write(batch)
        return sink.finish()
    except BaseException:
        sink.discard()
        raise


def batches(data: ArrowData) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of the data. Raises `BadRequest` if it is neither Arrow data nor dictionaries."""
    if isinstance(data, Mapping) and not is_arrow(data):
        yield batch_of_columns(data)
        return
    # Iterate over the batches of a scan, because Arrow's protocol would change the type of its errors.
    several = isinstance(data, Scan) or (isinstance(data, Iterable) and not is_arrow(data))
    items = iter(cast("Iterable[object]", data) if several else (data,))
    for item in items:
        if isinstance(item, Mapping) and not is_arrow(item):
            yield from batches_of_rows(chain([item], items))
            return
        if not is_arrow(item):
            raise BadRequest(
                "data must be pyarrow tables, record batches, other objects with __arrow_c_stream__ or "
                "__arrow_c_array__, or dictionaries, "
                f"found {shortened(item if several and not isinstance(data, (str, bytes)) else data)}"
            )
        stream = item if isinstance(item, pa.Table | pa.RecordBatch | pa.RecordBatchReader) else _imported(item)
        unknown = [name for name in stream.schema.names if name not in ROW_COLUMNS]
        if unknown:
            raise BadRequest(
                f"expected columns of {', '.join(ROW_COLUMNS)}; found {', '.join(unknown)}; drop these columns"
            )
        if isinstance(stream, pa.RecordBatch):
            yield stream
        else:
            yield from stream.to_batches() if isinstance(stream, pa.Table) else stream


def is_table(data: ArrowData) -> TypeGuard[pa.Table | pa.RecordBatch]:
    return isinstance(data, pa.Table | pa.RecordBatch)


def is_arrow(data: object) -> bool:
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _imported(item: Any) -> pa.RecordBatchReader | pa.RecordBatch:
    """Import data from another library with Arrow's protocol, without copying it."""
    try:
        if hasattr(item, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(item)
        return pa.record_batch(item)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadRequest(
            f"expected columns of {', '.join(ROW_COLUMNS)}; Arrow cannot import {type(item).__name__}: {error}"
        ) from None
