"""Arrow record batches of log records: their schema, uniform batch sizes, and the protocols for reading them."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import methodcaller
from typing import ClassVar, NoReturn

import pyarrow as pa

from sparklog.errors import BadRequest, SparklogError
from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.storage.parallel_reads import UntilError

MAX_JOINED_BATCHES = 4096
"""Maximum number of batches to join.

This limit is required because batches without columns have no bytes, so the byte limit does not apply to them.
"""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([RECORD_SCHEMA.field(name) for name in columns])


def joined(batches: Iterable[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about `batch_bytes`. Small batches are joined, and large ones are sliced.

    If `batches` raises an error, the rows that were read before the error are yielded first.
    """
    small: list[pa.RecordBatch] = []
    filled = 0
    batches = UntilError(batches)
    for batch in batches:
        size = batch.nbytes
        if small and (filled + size > batch_bytes or len(small) >= MAX_JOINED_BATCHES):
            yield _one(small)
            small, filled = [], 0
        if size > 2 * batch_bytes:
            rows = -(-batch.num_rows // -(-size // batch_bytes))
            yield from (batch.slice(row, rows) for row in range(0, batch.num_rows, rows))
        elif batch.num_rows:
            small.append(batch)
            filled += size
            if 2 * filled >= batch_bytes:
                yield _one(small)
                small, filled = [], 0
    if small:
        yield _one(small)
    batches.raise_error()


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


_fail = ctypes.pythonapi.PyErr_SetObject
_fail.argtypes, _fail.restype = [ctypes.py_object, ctypes.py_object], None


def stream_reader(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return a reader for other libraries. The text of its errors contains only the error code and the message.

    pyarrow would append the traceback of each Python function that the error passes through. To avoid this, C functions
    call each step and raise the error.
    """

    def steps() -> Iterator[Callable[[], object]]:
        try:
            for batch in batches:
                yield repeat(batch).__next__
        except SparklogError as error:
            yield partial(_fail, RuntimeError, RuntimeError(f"[{error.code}] {error}"))

    return pa.RecordBatchReader.from_batches(schema, map(methodcaller("__call__"), steps()))


class RecordBatches(ABC):
    """The base class of `Scan` and `TopicTable`: an iterable of record batches.

    Each iteration reads the batches again.
    """

    noun: ClassVar[str]

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of every batch."""

    @abstractmethod
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Return an iterator of the record batches."""
        return iter(self)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a `RecordBatchReader`, which reads records on demand."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """Read all records into a `pyarrow.Table`."""
        return pa.Table.from_batches(list(self), self.schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return an Arrow C stream, for example for Polars, DuckDB and pandas (`DataFrame.from_arrow`)."""
        return stream_reader(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        """Raise `BadRequest`, because numpy (which pandas uses) would convert each batch to a single cell."""
        raise BadRequest(
            f"a {self.noun} is not an array: use {self.noun}.to_table(), or {self.noun}.to_table().to_pandas() for a "
            "DataFrame"
        )
