"""Checkpoints store the complete state of a topic at a version in two objects, so that a process can open the topic
without reading every commit.

    _log/checkpoints/<version>.json           the topic state, which is sufficient for appends, and a reference to the
    table _log/checkpoints/<version>-<id>.arrow     the slice table: an Arrow IPC file, zstd, sorted by partition and
    base

1. Writer A writes the table under a unique name.
2. Writer A creates the JSON object with the name, size and CRC-32C of its table, if the object does not exist.
3. If Writer B has already created the JSON object, A's table is unreferenced, and the object references B's table.

If a checkpoint is damaged, readers use the previous checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt, Unavailable
from sparklog.format import crc32c
from sparklog.format.slice_columns import COLUMN_TYPES, SLICE_COLUMNS
from sparklog.log.journal.documents import (
    TEXTS,
    UINT32_MAX,
    Document,
    Fields,
    Member,
    MemberKind,
    StoredDocument,
    members,
    object_of,
    whole,
)
from sparklog.log.journal.names import checkpoint_prefix, checkpoint_table_name, is_checkpoint_table_name
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot, Texts
from sparklog.log.state.topic_state import TOPIC_STATE_JSON, TopicState
from sparklog.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN_NAMES = {column.name: column.checkpoint for column in SLICE_COLUMNS}
"""Maps the column names in memory to the column names in the file. `file` and `txn` are dictionaries of strings."""
REMEDY = "run sparklog repair"
LARGE_TABLE = 1 << 20
"""The minimum size of a table for which Arrow's threads are used. For smaller tables, the threads doubled the CPU time.
"""


@dataclass(frozen=True, slots=True)
class TableRef:
    """A reference to a slice table. It contains the file name, size and CRC-32C, the number of rows, and the number of
    unsealed rows.
    """

    name: str
    size: int
    crc: int
    rows: int
    unsealed: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The JSON object of a checkpoint."""

    state: TopicState
    table: TableRef


def _table_name(item: Fields, name: str) -> str:
    if not is_checkpoint_table_name(item.text(name)):
        raise item.bad(name, "the file name of a slice table")
    return item.text(name)


TABLE_REF_JSON = Document(
    TableRef,
    Member("name", MemberKind(_table_name)),
    Member("size", whole(0)),
    Member("crc", whole(0, UINT32_MAX)),
    *members(whole(0), "rows", "unsealed"),
)


CHECKPOINT_JSON = StoredDocument(
    "checkpoint",
    lambda state, table, **features: Checkpoint(replace(state, **features), table),
    *members(TEXTS, "readFeatures", "writeFeatures"),
    Member("head", object_of(TOPIC_STATE_JSON), "state"),
    Member("table", object_of(TABLE_REF_JSON)),
    parts=lambda value: (value.state.read_features, value.state.write_features, value.state, value.table),
)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return CHECKPOINT_JSON.encode(checkpoint)


def decode_checkpoint(data: bytes, key: str, version: int) -> Checkpoint:
    """Decode the checkpoint in `data`.

    Raises:
        BadRequest: If a newer release wrote the checkpoint
        Corrupt: If the checkpoint is damaged, or has another version
    """
    checkpoint = CHECKPOINT_JSON.decode(data, key)
    if (stored := checkpoint.state.version) != version:
        raise Corrupt(f"expected checkpoint {version}, found checkpoint {stored}; {REMEDY}", file=key)
    return checkpoint


def write_slice_table(store: Store, snapshot: Snapshot, unique: str) -> TableRef:
    """Write the slice table of a checkpoint, and return the reference to it."""
    key, data, table = slice_table(snapshot, unique)
    if not store.create(key, data) and store.get(key) != data:
        # The name is unique. If an object with this name exists, an earlier attempt of this writer succeeded, or the
        # store failed. A checkpoint must not reference a table that is missing or different.
        raise Unavailable(f"{key} differs from the bytes that were written; retry later")
    return table


def slice_table(snapshot: Snapshot, unique: str) -> tuple[str, bytes, TableRef]:
    """Encode the slice table of a snapshot. Return its key, its bytes and a reference to it."""
    data, unsealed = encode_table(snapshot.slices)
    name = checkpoint_table_name(snapshot.version, unique)
    table = TableRef(name, len(data), crc32c.crc32c(data), len(snapshot.slices), unsealed)
    return checkpoint_prefix(snapshot.topic) + name, data, table


def encode_table(table: SliceTable) -> tuple[bytes, int]:
    """Return the bytes of the Arrow file, and the number of unsealed slices."""
    import pyarrow as pa

    from sparklog.format.arrow_numpy import fixed_array

    rows = table.all()
    paths, txn_ids = table.texts
    texts = {"file": paths, "txn": txn_ids}
    columns = [(texts.get(name), rows.columns[name]) for name in COLUMN_TYPES]
    arrays = [
        fixed_array(column, pa.from_numpy_dtype(column.dtype)) if strings is None else _dictionary(column, strings)
        for strings, column in columns
    ]
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(arrays, names=list(COLUMN_NAMES.values()))
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=batch.nbytes >= LARGE_TABLE)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes(), int(np.count_nonzero(~rows.sealed()))


def decode_table(data: bytes, ref: TableRef, key: str, version: int) -> SliceTable:
    """Decode a slice table. Raises `Corrupt` with `key` if the bytes do not match the reference."""
    import pyarrow as pa

    from sparklog.format.arrow_numpy import fixed_values

    if len(data) != ref.size:
        raise Corrupt(f"expected a slice table of {ref.size} bytes, found {len(data)} bytes; {REMEDY}", file=key)
    if (crc := crc32c.crc32c(data)) != ref.crc:
        raise Corrupt(f"expected a slice table with CRC-32C {ref.crc}, found {crc}; {REMEDY}", file=key)
    try:
        options = pa.ipc.IpcReadOptions(use_threads=len(data) >= LARGE_TABLE)
        reader = pa.ipc.open_file(pa.BufferReader(data), options=options)
        batch = reader.get_batch(0) if reader.num_record_batches == 1 else None
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"the slice table is not an Arrow file ({error}); {REMEDY}", file=key) from None
    if batch is None or batch.schema.names != list(COLUMN_NAMES.values()) or batch.num_rows != ref.rows:
        contents = "no batch" if batch is None else f"{batch.num_rows} rows of {', '.join(batch.schema.names)[:80]}"
        raise Corrupt(f"expected a slice table of {ref.rows} rows with sparklog's columns, found {contents}", file=key)
    columns: dict[str, npt.NDArray[Any]] = {}
    texts = {}
    for name, dtype in COLUMN_TYPES.items():
        array = batch.column(COLUMN_NAMES[name])
        if isinstance(array, pa.DictionaryArray):
            texts[name] = Texts(array.dictionary)
            array = array.indices
        if array.null_count or str(array.type) != dtype:
            raise Corrupt(f"column {COLUMN_NAMES[name]} must be {dtype} without nulls, found {array.type}", file=key)
        columns[name] = fixed_values(array, dtype)
    if set(texts) != {"file", "txn"}:
        raise Corrupt(
            f"the columns file and txn of the slice table must be dictionaries of strings; {REMEDY}", file=key
        )
    for name, strings in texts.items():
        if ref.rows and not 0 <= int(columns[name].min()) <= int(columns[name].max()) < len(strings):
            raise Corrupt(f"column {name} of the slice table refers to missing strings; {REMEDY}", file=key)
    columns["txn"] = np.where(columns["txn_n"] < 0, np.int32(-1), columns["txn"])
    part = Slices(columns, texts["file"], texts["txn"])
    return SliceTable(version, (part,) if ref.rows else (), part.paths, part.txn_ids)


def _dictionary(codes: npt.NDArray[Any], texts: Texts) -> pa.DictionaryArray:
    """Convert codes to an Arrow dictionary array that contains only the strings in use. A negative code becomes the
    empty string.
    """
    import pyarrow as pa

    from sparklog.format.arrow_numpy import fixed_array, text_array

    used, inverse = np.unique(codes, return_inverse=True)
    absent = int(np.searchsorted(used, 0))
    strings = [""] * absent + texts.at(used[absent:])
    return pa.DictionaryArray.from_arrays(fixed_array(inverse.astype(np.int32), pa.int32()), text_array(strings))
