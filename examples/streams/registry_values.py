"""Values of a schema registry: decode framed Avro of two schema versions into columns, and encode it again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from running import finish, require, start

import sparklog
from sparklog import formats

require('".[spark,avro,state]"', "fastavro")

FIELDS = [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}]
PRICE = {"name": "price", "type": ["null", "double"], "default": None}
OLD = {"type": "record", "name": "Order", "fields": FIELDS}
NEW = {"type": "record", "name": "Order", "fields": [*FIELDS, PRICE]}
SCHEMAS: dict[int, Any] = {7: OLD, 8: NEW}


def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode values with schema ids 7 and 8 into columns of the latest schema. A tombstone becomes nulls."""
    for batch in batches:
        orders = formats.decode_records(batch, value="avro", value_schema=SCHEMAS)["value"]
        yield pa.RecordBatch.from_arrays([batch["key"], *orders.flatten()], ["key", "id", "item", "price"])


def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Encode columns as framed values with the latest schema. A row without an id becomes a tombstone."""
    for batch in batches:
        names = ["id", "item", "price"]
        orders = pa.StructArray.from_arrays([batch[name] for name in names], names, mask=batch["id"].is_null())
        values = formats.encode(orders, "avro", {8: NEW})
        yield pa.RecordBatch.from_arrays([batch["key"], values.cast(pa.binary())], ["key", "value"])


def produce(root: str) -> None:
    """Write orders like two producers with different versions of the schema."""
    topic = sparklog.open(root, create=True).ensure_topic("orders")
    old, new = {"id": 1, "item": "book"}, {"id": 2, "item": "desk", "price": 310.0}
    topic.append(pa.table({"key": ["anna"], "value": formats.encode(pa.array([old]), "avro", {7: OLD})}))
    topic.append(pa.table({"key": ["ben"], "value": formats.encode(pa.array([new]), "avro", {8: NEW})}))


def main(spark: SparkSession, folder: str) -> str:
    root = f"{folder}/log"
    produce(root)
    records = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{root}/orders")
    orders = records.mapInArrow(decode, "key BINARY, id BIGINT, item STRING, price DOUBLE")
    priced = orders.fillna({"price": 12.5})
    values = priced.mapInArrow(encode, "key BINARY, value BINARY")
    writer = values.writeStream.format("sparklog").option("path", root).option("topic", "priced")
    finish(writer.option("checkpointLocation", f"{folder}/checkpoints/priced"))

    rows = sparklog.open(root).topic("priced").scan().to_table()
    frames = [value.as_py()[:5].hex() for value in rows["value"]]
    priced_orders = formats.decode(rows["value"], "avro", {8: NEW}).to_pylist()
    return "\n".join(f"frame {frame}: {order}" for frame, order in zip(frames, priced_orders, strict=True))


if __name__ == "__main__":
    start(main)
