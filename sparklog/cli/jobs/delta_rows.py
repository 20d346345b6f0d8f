"""Rows of a Delta table made of records, by Spark's own functions: no Python sees a record.

A record whose key or value does not fit becomes a row with a reason. Avro is read by Spark's `from_avro`, which needs a
package more, and runs many times as fast as any Avro in Python. It takes no notice of bytes after a value, and makes
the same row of a broken value as of one whose fields are null. So a value is read as a record of three fields: the
registry's five bytes, if it has them, the value, and four bytes that are added to it. Avro writes fields one after the
other, so that these four are read again only if the value was whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from sparklog.cli.jobs.delta import any_null, check_columns
from sparklog.errors import BadRequest

RECORD = ("topic", "partition", "offset", "timestamp", "key", "value")
PLACE = RECORD[:4]
METADATA = tuple(f"_{name}" for name in PLACE)
CORRUPT = "_sparklog_corrupt"
FRAME, END = "frame", b"\xf5log"
TOMBSTONE = "there is no value: a tombstone, which only an upsert can use"


@dataclass(frozen=True)
class Payload:
    """The way records become rows.

    * `schema`: of `json` a DDL string, of `avro` the schema's JSON; `schema_id`: of a registry's frame, if there is one
    * `keys`: columns that the record's key holds: its text, or of several a JSON object
    * `metadata`: columns `_topic`, `_partition`, `_offset`, `_timestamp`, next to those of the schema
    * `headers`: a column of `raw`
    """

    kind: str
    upsert: bool
    schema: str = ""
    schema_id: int | None = None
    keys: tuple[str, ...] = ()
    metadata: bool = False
    headers: bool = True


def rows(records: DataFrame, payload: Payload) -> DataFrame:
    """Return for each record: `record`, its `row`, `deleted`, and the `reason` why it makes none, or null."""
    parsed, wrong = {"raw": _raw, "json": _json, "avro": _avro}[payload.kind](records, payload)
    columns = [field for field in parsed.schema["parsed"].dataType if field.name != CORRUPT]
    fields = {field.name: F.col("parsed").getField(field.name) for field in columns}
    if payload.kind != "raw":
        keys, wrong_key = _key_columns(StructType(columns), payload)
        fields = {**{name: keys[name] for name in keys if name not in fields}, **fields, **keys}
        wrong = F.coalesce(wrong_key, wrong)
    if payload.metadata:
        fields |= {column: F.col(name) for column, name in zip(METADATA, PLACE, strict=True)}
    if payload.upsert:
        wrong = F.when(F.col("key").isNull(), "there is no key").otherwise(wrong)
    return parsed.select(
        F.struct(*RECORD).alias("record"),
        F.struct(*(column.alias(name) for name, column in fields.items())).alias("row"),
        (F.col("value").isNull() if payload.upsert else F.lit(False)).alias("deleted"),
        wrong.alias("reason"),
    )


def _raw(records: DataFrame, payload: Payload) -> tuple[DataFrame, Column]:
    names = ("key", "value", *(("headers",) if payload.headers else ()), *PLACE)
    return records.withColumn("parsed", F.struct(*names)), F.lit(None).cast("string")


def _json(records: DataFrame, payload: Payload) -> tuple[DataFrame, Column]:
    schema, text = ddl_schema(payload.schema), F.col("value").cast("string")
    wide = StructType([StructField(field.name, field.dataType) for field in schema])
    made = F.from_json(text, wide.add(CORRUPT, StringType()), {"columnNameOfCorruptRecord": CORRUPT})
    parsed = F.col("parsed")
    unfit = F.concat_ws(
        ", ",
        *(
            F.when(
                F.get_json_object(text, f"$['{field.name}']").isNotNull() & parsed.getField(field.name).isNull(),
                f"{field.name} {field.dataType.simpleString()}",
            )
            for field in schema
        ),
    )
    wrong = (
        _no_value(payload)
        .when(~F.is_valid_utf8(text), "the value is not UTF-8")
        .when(parsed.isNull(), "the value is not a JSON object")
        .when(
            parsed.getField(CORRUPT).isNotNull(),
            F.when(unfit == "", "the value is not a JSON object").otherwise(
                F.concat(F.lit("the value does not fit "), unfit)
            ),
        )
    )
    for field in schema:
        # The key's columns come from the key.
        if not field.nullable and field.name not in payload.keys:
            wrong = wrong.when(parsed.getField(field.name).isNull(), f"column {field.name} is null")
    return records.withColumn("parsed", made), wrong


def _avro(records: DataFrame, payload: Payload) -> tuple[DataFrame, Column]:
    from pyspark.sql.avro.functions import from_avro

    framed = F.concat(F.col("value"), F.lit(END))
    made = from_avro(framed, framed_schema(payload.schema, payload.schema_id), {"mode": "PERMISSIVE"})
    wrong = _no_value(payload)
    whole = F.col("framed").getField("end") == F.lit(END)
    if payload.schema_id is not None:
        frame = b"\0" + payload.schema_id.to_bytes(4, "big")
        other = F.concat(F.lit("the value is not in the frame of schema "), F.lit(str(payload.schema_id)))
        wrong = wrong.when(~F.startswith(F.col("value"), F.lit(frame)), other)
    wrong = wrong.when(~F.coalesce(whole, F.lit(False)), "the value is not Avro of the schema")
    read = records.withColumn("framed", made).withColumn("parsed", F.col("framed").getField("value"))
    return read, wrong


def _no_value(payload: Payload) -> Column:
    return F.when(F.col("value").isNull(), F.lit(None if payload.upsert else TOMBSTONE).cast("string"))


def _key_columns(schema: StructType, payload: Payload) -> tuple[dict[str, Column], Column]:
    """Return the columns of the record's key, and why it does not make them."""
    nothing = F.lit(None).cast("string")
    if not payload.keys:
        return {}, nothing
    types = key_types(schema, payload.keys)
    key, text = F.col("key"), F.col("key").cast("string")
    if len(payload.keys) > 1:
        made = F.from_json(text, StructType([StructField(name, kind) for name, kind in types.items()]))
        keys = {name: made.getField(name) for name in types}
        unfit = f"the key is not a JSON object with {', '.join(types)}"
    else:
        ((name, kind),) = types.items()
        keys = {name: key if kind == BinaryType() else text.try_cast(kind)}
        unfit = f"the key does not fit {name} {kind.simpleString()}"
    lacking = any_null(keys.values())
    invalid = lacking if BinaryType() in types.values() else ~F.is_valid_utf8(text) | lacking
    return keys, F.when(key.isNotNull() & invalid, unfit)


def key_types(schema: StructType, keys: tuple[str, ...]) -> Mapping[str, DataType]:
    """Return the types of key columns: the schema's; one column that it lacks is text."""
    lower = {name.lower() for name in schema.names}
    if len(keys) > 1 or keys[0].lower() in lower:
        check_columns(keys, schema, "the schema")
        return {name: schema[name].dataType for name in keys}
    return {keys[0]: StringType()}


def ddl_schema(ddl: str) -> StructType:
    try:
        schema = StructType.fromDDL(ddl)
        reason = f"'{ddl}' is one type"
    except (PySparkException, ValueError, TypeError) as error:
        schema, reason = None, " ".join(str(error).split("==")[0].split())
    if not isinstance(schema, StructType):
        raise BadRequest(f"--schema is not a list of columns such as 'id BIGINT, name STRING': {reason}")
    return schema


def framed_schema(schema: str, schema_id: int | None) -> str:
    """Return the schema of a record that holds a value of `schema` between its frame and the bytes after it."""
    try:
        value = json.loads(schema)
    except ValueError as error:
        raise BadRequest(f"the Avro schema is not JSON: {error}") from None
    if not isinstance(value, dict) or value.get("type") != "record":
        raise BadRequest("the Avro schema must be of a record, whose fields become columns")
    fields = [{"name": "value", "type": value}, {"name": "end", "type": _fixed("SparklogEnd", len(END))}]
    if schema_id is not None:
        fields.insert(0, {"name": FRAME, "type": _fixed("SparklogFrame", 5)})
    return json.dumps({"type": "record", "name": "SparklogFramed", "fields": fields})


def _fixed(name: str, size: int) -> dict[str, object]:
    return {"type": "fixed", "name": name, "size": size}
