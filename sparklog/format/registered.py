"""Values with schemas, either plain or in the wire format of a schema registry.

In the wire format, a zero byte and the schema id (int32, big-endian) precede the encoded value. The rows of a column
may have different schemas. `decode` converts all rows to one schema, which determines the type of the column. `show`
prints each row with its own schema.

    source of schemas          schema of a decoded column            schema of encoded values
    one schema, plain values   that schema                           that schema
    schemas by id              the last schema                       the last schema
    a subject of a registry    the latest version of the subject     the latest version of the subject
    a registry                 the greatest id in the column         none

This module never fetches schemas. A `SchemaSource`, for example a client of a registry, returns the schema of an id.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest, NotFound
from sparklog.format.arrow_numpy import bytes_array, valid_rows
from sparklog.format.values import RowName, ValueFormat, numbered_row

MAGIC = 0
FRAME = struct.Struct(">bi")
AVRO, JSON_SCHEMA, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
"""Names of schema types in the registry's API."""
FORMAT_NAMES = {AVRO: "avro", JSON_SCHEMA: "json-schema", PROTOBUF: "protobuf"}


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """The text of a schema.

    Attributes:
        id: the schema id, or 0 if the schema is not in a registry.
        type: `AVRO`, `JSON` or `PROTOBUF`.
        text: the schema. If it is in JSON, it may also be a Python object other than a string.
        references: the texts of the schemas that this schema refers to, directly or indirectly, by the name of the
            reference. A schema is after the schemas that it refers to.
        message: for Protobuf, the full name of the message type. None is the first type of the file.
    """

    id: int
    type: str
    text: Any
    references: tuple[tuple[str, str], ...] = ()
    message: str | None = None


class SchemaSource(Protocol):
    """Schemas by id."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return a schema. Raises `NotFound` if the id is unknown."""


@dataclass(frozen=True)
class GivenSchemas:
    """The schemas that the caller has, by id."""

    schemas: Mapping[int, RegisteredSchema]

    def schema(self, schema_id: int) -> RegisteredSchema:
        if schema_id not in self.schemas:
            known = ", ".join(map(str, self.schemas))
            raise NotFound(f"schema id {schema_id} is unknown; known ids: {known}")
        return self.schemas[schema_id]


class SchemaFormat(ValueFormat, ABC):
    """Base class of the formats with schemas.

    `source` is None if values are plain. `target` is the schema of decoded columns and of encoded values. If it is
    None, a column is decoded to the schema with the greatest id, and values cannot be encoded.

    A subclass parses schemas, and converts values with parsed schemas. Parsed schemas are cached by id.
    """

    json_text = True
    schema_type = ""
    title = ""
    """Name of the format in messages."""

    def __init__(self, source: SchemaSource | None, target: RegisteredSchema | None) -> None:
        super().__init__(FORMAT_NAMES[self.schema_type])
        self.source, self._target = source, target
        self._cached: dict[int, Any] = {}
        self.bytes_name = f"a schema registry header (0, schema id) and {self.title}"
        self.text_name = f"a value of the {self.title} schema"
        if target is not None:
            # An invalid schema is an error even if there are no values.
            name = self.schema_name(self._parsed(target))
            self.text_name = f"a value of schema {name}"
            if source is None:
                self.bytes_name = f"{self.title} of schema {name}"

    def __getstate__(self) -> dict[str, Any]:
        # Parsed schemas cannot be pickled in every format. Each process parses the schemas that it needs.
        return {**self.__dict__, "_cached": {}}

    @abstractmethod
    def parse_schema(self, schema: RegisteredSchema) -> Any:
        """Return the parsed form of a schema. Raises `BadRequest` if the schema is invalid."""

    @abstractmethod
    def schema_name(self, parsed: Any) -> str:
        """Return the name of a parsed schema for error messages."""

    @abstractmethod
    def type_of(self, parsed: Any) -> pa.DataType:
        """Return the Arrow type of a parsed schema. Raises `BadRequest` if a column cannot have this type."""

    @abstractmethod
    def decode_rows(
        self, data: bytes, rows: list[tuple[int, int] | None], schemas: list[Any], target: Any, kind: pa.DataType
    ) -> pa.Array:
        """Return a column of values. Raises `ValueError` for invalid bytes.

        Args:
            data: the bytes of all rows.
            rows: the start and the end of each row in `data`, without its frame. None for null.
            schemas: the parsed schema of each row.
            target: the parsed schema to which the rows are converted.
            kind: the type of the result.
        """

    @abstractmethod
    def text_of(self, body: bytes, schema: Any) -> bytes:
        """Return the JSON text of a value without its frame, with the schema that it was written with."""

    @abstractmethod
    def bytes_of(self, value: Any, schema: Any) -> bytes:
        """Return the encoded form of a value of an Arrow column, without its frame."""

    @abstractmethod
    def bytes_of_text(self, text: str, schema: Any) -> bytes:
        """Return the encoded form of a value in JSON, without its frame."""

    def arrow_type(self) -> pa.DataType | None:
        return None if self._target is None else self.type_of(self._parsed(self._target))

    def decode(self, column: pa.Array, row_name: RowName = numbered_row, kind: pa.DataType | None = None) -> pa.Array:
        """Return the values as a column with one type.

        Without a target schema, the entire column determines the type, and not each chunk.
        """
        return super().decode(column, row_name, kind or self._common_type(column))

    def decode_valid(self, column: pa.Array, kind: pa.DataType | None = None) -> tuple[pa.Array, dict[int, str]]:
        return super().decode_valid(column, kind or self._common_type(column))

    def _common_type(self, column: pa.Array | pa.ChunkedArray) -> pa.DataType | None:
        """Return the type of the greatest known schema id of a column if there is no target schema."""
        if self._target is not None:
            return None
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        found = {number for chunk in chunks for number in self._ids_in(chunk)}
        for number in sorted(found, reverse=True):
            try:
                return self.type_of(self._schema(number))
            except ValueError as error:
                if isinstance(error, BadRequest):
                    raise
        return pa.null()

    def _ids_in(self, column: pa.Array) -> set[int]:
        frames = Frames.of(column)
        return set(frames.ids[frames.has_header].tolist())

    def _decode(self, column: pa.Array, kind: pa.DataType | None) -> pa.Array:
        frames = Frames.of(column)
        if self.source is None:
            target = self._plain()
            schemas = [target] * len(column)
        else:
            if not bool(frames.has_header[frames.valid].all()):
                raise ValueError(self._no_header())
            by_id = {number: self._schema(number) for number in set(frames.ids[frames.valid].tolist())}
            target = self._parsed(self._target) if self._target is not None else by_id[max(by_id)] if by_id else None
            schemas = [by_id.get(number) for number in frames.ids.tolist()]
        if kind is None:
            kind = pa.null() if target is None else self.type_of(target)
        header_bytes = 0 if self.source is None else FRAME.size
        return self.decode_rows(frames.data, frames.spans(header_bytes), schemas, target, kind)

    def _no_header(self) -> str:
        hint = f": to read plain {self.title}, omit the id" if isinstance(self.source, GivenSchemas) else ""
        return f"no schema registry header{hint}"

    def _schema(self, number: int) -> Any:
        """Return the parsed schema of an id. Raises `ValueError` if the id is unknown or has a schema of another type,
        because then the row is invalid.
        """
        if number in self._cached:
            return self._cached[number]
        assert self.source is not None
        try:
            schema = self.source.schema(number)
        except NotFound as error:
            raise ValueError(str(error)) from None
        if schema.type != self.schema_type:
            other = FORMAT_NAMES.get(schema.type, schema.type)
            raise ValueError(f"schema id {number} has the format {other}, not {self.name}")
        return self._parsed(schema)

    def _plain(self) -> Any:
        """Return the schema of plain values."""
        assert self._target is not None
        return self._parsed(self._target)

    def _parsed(self, schema: RegisteredSchema) -> Any:
        if schema.id not in self._cached:
            self._cached[schema.id] = self.parse_schema(schema)
        return self._cached[schema.id]

    def _frame(self) -> tuple[bytes, Any]:
        """Return the frame of encoded values, and their parsed schema."""
        if self._target is None:
            raise BadRequest("a schema registry alone does not determine the schema to write: specify the subject")
        frame = b"" if self.source is None else FRAME.pack(MAGIC, self._target.id)
        return frame, self._parsed(self._target)

    def _encode(self, column: pa.Array) -> pa.Array:
        frame, schema = self._frame()
        rows = column.to_pylist(maps_as_pydicts="strict") if _has_maps(column.type) else column.to_pylist()
        return bytes_array([None if row is None else frame + self.bytes_of(row, schema) for row in rows])

    def _parse(self, column: pa.Array) -> pa.Array:
        frame, schema = self._frame()
        texts = column.to_pylist()
        return bytes_array([None if text is None else frame + self.bytes_of_text(text, schema) for text in texts])

    def _show(self, column: pa.Array) -> pa.Array:
        return bytes_array([None if cell is None else self._shown(cell) for cell in column.to_pylist()])

    def _shown(self, cell: bytes) -> bytes:
        if self.source is None:
            return self.text_of(cell, self._plain())
        if len(cell) < FRAME.size or cell[0] != MAGIC:
            raise ValueError(self._no_header())
        return self.text_of(cell[FRAME.size :], self._schema(FRAME.unpack_from(cell)[1]))


@dataclass(frozen=True, slots=True)
class Frames:
    """The rows of a binary column as positions in `data`, with their schema ids.

    `valid`, `has_header`, `ids`, `starts` and `ends` have an element per row. `ids` is 0 for rows without a header.
    """

    data: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]
    has_header: npt.NDArray[np.bool_]
    ids: npt.NDArray[np.int64]

    @classmethod
    def of(cls, column: pa.Array) -> Frames:
        column = column.cast(pa.binary())
        valid = valid_rows(column)
        _, offsets, buffer = column.buffers()
        if buffer is None or offsets is None or not len(column):
            none = np.zeros(len(column), np.int64)
            return cls(b"", none, none, valid, np.zeros(len(column), np.bool_), none)
        cuts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        data = buffer[int(cuts[0]) : int(cuts[-1])].to_pybytes()
        cuts -= cuts[0]
        starts, ends = cuts[:-1], cuts[1:]
        is_long = ends - starts >= FRAME.size
        raw = np.frombuffer(data, np.uint8)
        header = np.zeros((len(column), FRAME.size), np.uint8)
        header[is_long] = raw[starts[is_long, None] + np.arange(FRAME.size)]
        has_header = valid & is_long & (header[:, 0] == MAGIC)
        ids = np.where(has_header, header[:, 1:].copy().view(">i4")[:, 0].astype(np.int64), 0)
        return cls(data, starts, ends, valid, has_header, ids)

    def spans(self, header_bytes: int) -> list[tuple[int, int] | None]:
        """Return the start and the end of each row without its header. None for null."""
        cells = zip((self.starts + header_bytes).tolist(), self.ends.tolist(), self.valid.tolist(), strict=True)
        return [(start, end) if is_valid else None for start, end, is_valid in cells]


class InvalidValueError(ValueError):
    """A value is invalid for a reason that is complete, so `call_library` does not change its message."""


def call_library(call: Callable[[], Any], hint: str) -> Any:
    """Call an encoder or a decoder. Its errors for invalid data, which have many types, become `ValueError`."""
    try:
        return call()
    except (BadRequest, InvalidValueError):
        raise
    except (ValueError, TypeError) as error:
        raise ValueError(f"{hint}: {error}" if str(error) else hint) from None
    except Exception:  # noqa: BLE001  (EOFError, KeyError, AttributeError: their text is about its code)
        raise ValueError(hint) from None


def _has_maps(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_maps(kind.field(n).type) for n in range(kind.num_fields))
