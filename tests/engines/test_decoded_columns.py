"""Engines query decoded keys and values, and read no more records than for the other columns of a filter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparklog
from sparklog import formats
from sparklog.errors import BadRequest, NotFound
from sparklog.log.topic.topic import Topic
from tests.support.servers.schema_registry import FakeRegistry, running

ROWS = 40
ITEM = {"type": "object", "properties": {"id": {"type": "integer"}, "item": {"type": "string"}}}
ORDER_1: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
ORDER_2 = {**ORDER_1, "fields": [*ORDER_1["fields"], {"name": "item", "type": "string", "default": "none"}]}


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """A topic with JSON values and `long` keys. The value at offset 7 of partition 0 is not JSON."""
    orders = sparklog.open(tmp_path / "log", create=True).create_topic("orders", partitions=2)
    for first in range(0, ROWS, 10):
        numbers = range(first, first + 10)
        values = [b"no" if n == 14 else json.dumps({"id": n, "item": f"item {n}"}).encode() for n in numbers]
        rows = pa.table(
            {
                "key": formats.encode(pa.array(numbers, pa.int64()), "long"),
                "value": pa.array(values, pa.binary()),
                "partition": pa.array([n % 2 for n in numbers], pa.int32()),
            }
        )
        orders.append(rows)
    return orders


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with running() as registry:
        yield registry


def opened(topic: Topic, **formats_of: Any) -> Any:
    return sparklog.datasets(topic.root, value_format="json-schema", value_schema=ITEM, **formats_of)["orders"]


def test_a_column_has_the_type_of_its_format(topic: Topic) -> None:
    dataset = opened(topic, key_format="long")
    assert dataset.schema.field("value").type == pa.struct({"id": pa.int64(), "item": pa.string()})
    rows = dataset.to_table(columns=["value", "key"], filter=pc.field("partition") == 1)
    assert rows.schema == pa.schema([dataset.schema.field("value"), dataset.schema.field("key")])
    assert rows["key"].to_pylist() == [n for n in range(ROWS) if n % 2]
    assert rows["value"][0].as_py() == {"id": 1, "item": "item 1"}


def test_a_filter_uses_decoded_values_and_still_selects_the_offsets_to_read(topic: Topic) -> None:
    dataset = opened(topic, key_format="long")
    condition = (pc.field("value", "id") > 25) & (pc.field("partition") == 1) & (pc.field("offset") < 15)
    assert dataset.to_table(columns=["key"], filter=condition)["key"].to_pylist() == [27, 29]
    needed = {"value", "partition", "offset"}
    (read,) = dataset.ranges(condition, needed)
    assert (read.partition, read.start, read.end) == (1, 0, 15)


def test_an_invalid_value_is_an_error_unless_another_column_excludes_it(topic: Topic) -> None:
    dataset = opened(topic, key_format="long")
    with pytest.raises(BadRequest, match=r"^value of topic orders, partition 0, offset 7: "):
        dataset.to_table(columns=["value"])
    with pytest.raises(BadRequest, match="offset 7"):
        dataset.to_table(columns=["key"], filter=pc.field("value", "id") > 30)
    assert dataset.to_table(columns=["key"]).num_rows == ROWS


def test_records_that_do_not_match_are_not_decoded(topic: Topic) -> None:
    dataset = opened(topic)
    rows = dataset.to_table(columns=["value"], filter=pc.field("offset") + 0 != 7)
    assert rows.num_rows == ROWS - 2
    pl = pytest.importorskip("polars", reason="polars is not installed")
    frame = sparklog.polars(topic.root, value_format="json-schema", value_schema=ITEM)["orders"]
    assert frame.filter(pl.col("offset") + 0 != 7).select("value").collect().height == ROWS - 2


def test_duckdb_queries_the_fields_of_values(topic: Topic) -> None:
    con = pytest.importorskip("duckdb", reason="duckdb is not installed").connect()
    sparklog.duckdb(con, topic.root, key_format="long", value_format="json-schema", value_schema=ITEM)
    query = "SELECT key, value.item FROM orders WHERE value.id >= 35 AND partition = 1 ORDER BY key"
    assert con.sql(query).fetchall() == [(n, f"item {n}") for n in (35, 37, 39)]
    assert con.sql('SELECT key FROM orders WHERE "offset" = 7 ORDER BY key').fetchall() == [(14,), (15,)]


def test_polars_queries_the_fields_of_values(topic: Topic) -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    orders = sparklog.polars(topic.root, key_format="long", value_format="json-schema", value_schema=ITEM)["orders"]
    fields = pl.col("value").struct
    found = orders.filter(fields.field("id") >= 35, pl.col("partition") == 1).select("key", fields.field("item"))
    assert found.collect().rows() == [(n, f"item {n}") for n in (35, 37, 39)]
    assert orders.filter(pl.col("key") == 14).select("offset").collect().rows() == [(7,)]
    assert orders.select("key").head(3).collect().height == 3


def test_a_registry_gives_each_topic_the_schema_of_its_subject(topic: Topic, server: FakeRegistry) -> None:
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")
    registry = formats.SchemaRegistry(server.url)
    trips, subject = topic.root.create_topic("trips"), registry.subject("trips-value")
    for schema, row in ((ORDER_1, {"id": 1}), (ORDER_2, {"id": 2, "item": "book"})):
        subject.register(json.dumps(schema))
        trips.append(formats.encode_records(pa.table({"value": [row]}), value="avro", value_schema=subject))
    dataset: Any = sparklog.datasets(topic.root, topics=["trips"], value_format="avro", value_schema=registry)["trips"]
    assert dataset.to_table()["value"].to_pylist() == [{"id": 1, "item": "none"}, {"id": 2, "item": "book"}]
    with pytest.raises(NotFound, match="orders-value"):
        sparklog.datasets(topic.root, value_format="avro", value_schema=registry)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value_format": "json"}, "the format json does not determine the type of the column value: read the column"),
        ({"value_format": "xml"}, "expected one of the formats string"),
        ({"value_schema": ITEM}, "value_schema requires value='avro'"),
        ({"key_format": "avro"}, "the format avro requires a schema"),
    ],
)
def test_wrong_formats_are_rejected(topic: Topic, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        sparklog.datasets(topic.root, **arguments)
