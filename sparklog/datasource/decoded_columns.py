"""The columns `key` and `value` of a read with the options `keyFormat` and `valueFormat`: their types and their
decoding.

The schema is fixed when a query is planned. Records that were written with other versions of the schema are converted
to the latest version. A schema that was stored earlier, for example in Spark's catalog, may contain only some of the
fields of the latest version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.formats import SIGNED_TYPES, ColumnFormats

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

SPARK_KINDS = {
    **SIGNED_TYPES,
    pa.null(): pa.string(),
    pa.time32("ms"): pa.int64(),
    pa.time64("us"): pa.int64(),
}
"""Arrow types that Spark does not have or, for times and durations, that not all of its versions have."""


@dataclass(frozen=True)
class DecodedColumn:
    """The decoded column `key` or `value`. Picklable.

    Attributes:
        name: The name of the column.
        formats: The format of the column.
        kind: The Arrow type of the column, which corresponds to a type of Spark.
    """

    name: str
    formats: ColumnFormats
    kind: pa.DataType

    @property
    def spark_type(self) -> DataType:
        from pyspark.sql.pandas.types import from_arrow_type

        return from_arrow_type(self.kind)

    def with_type(self, kind: DataType) -> DecodedColumn:
        """Return the column with a type of Spark: the type of the column, or a struct with some of its fields."""
        expected = self.spark_type
        if kind.simpleString() == expected.simpleString():
            return self
        if pa.types.is_struct(self.kind) and kind.typeName() == "struct" and kind.fields:
            types = {item.name: item.dataType.simpleString() for item in expected.fields}
            if all(types.get(item.name) == item.dataType.simpleString() and item.nullable for item in kind.fields):
                return replace(self, kind=pa.struct([self.kind.field(item.name) for item in kind.fields]))
        raise BadRequest(
            f"Column '{self.name}' must have the type {expected.simpleString()}, but has the type "
            f"{kind.simpleString()} in the schema: if the schema of the {self.name}s was changed, load the topic or "
            "create the table again"
        )

    def decode(self, records: pa.RecordBatch) -> pa.Array:
        """Return the decoded column of records, which also contain the columns `topic`, `partition` and `offset`."""
        values = self.formats.decode(records).column(self.name)
        if not pa.types.is_struct(self.kind) or len(self.kind) == len(values.type):
            return values.cast(self.kind, safe=False)
        columns = dict(zip((item.name for item in values.type), values.flatten(), strict=True))
        selected = [columns[item.name].cast(item.type, safe=False) for item in self.kind]
        return pa.StructArray.from_arrays(selected, fields=list(self.kind), mask=values.is_null())


def spark_kind(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type of a column of Spark that contains values of a type. All fields can be null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(item.name, spark_kind(item.type)) for item in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", spark_kind(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(spark_kind(kind.key_type), spark_kind(kind.item_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return SPARK_KINDS.get(kind, kind)
