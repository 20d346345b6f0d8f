"""Decoded columns of a read with the options `keyFormat` and `valueFormat`, in the processes that Spark starts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog import formats
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.registry_properties import registry_arguments
from sparklog.opening import resolve
from tests.support.servers.schema_registry import FakeRegistry, running

types = pytest.importorskip("pyspark.sql.types")
from sparklog.datasource.data_source import SparklogDataSource  # noqa: E402
from sparklog.datasource.decoded_columns import spark_kind  # noqa: E402
from sparklog.datasource.decoded_opening import decoded_columns  # noqa: E402
from sparklog.datasource.options import parse_options  # noqa: E402

ITEM = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "item": {"type": "string"}}})
ORDER: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
ITEM_FIELD = {"name": "item", "type": "string", "default": "none"}
SHIPPED = {"name": "shipped", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None}


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return sparklog.open(tmp_path / "log", create=True).create_topic("orders")


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")
    with running() as registry:
        yield registry


def append(topic: Topic, *values: bytes | None) -> None:
    topic.append(pa.table({"value": pa.array(values, pa.binary())}))


def append_version(topic: Topic, server: FakeRegistry, fields: list[Any], row: dict[str, Any]) -> None:
    subject = formats.SchemaRegistry(server.url).subject("orders-value")
    subject.register(json.dumps({**ORDER, "fields": fields}))
    topic.append(formats.encode_records(pa.table({"value": [row]}), value="avro", value_schema=subject))


def options(topic: Topic, **others: str) -> dict[str, str]:
    return {"path": f"{topic.root.location}", "subscribe": "orders", **others}


def read(given: dict[str, str], schema: Any = None) -> pa.Table:
    """Read as Spark does: plan, and read each partition with the pickled reader."""
    schema = SparklogDataSource(given).schema() if schema is None else schema
    reader = SparklogDataSource(given).reader(schema)
    partitions = reader.partitions()
    copied = pickle.loads(pickle.dumps(reader))
    batches = [batch for partition in partitions for batch in copied.read(partition)]
    return pa.Table.from_batches(batches)


def only(schema: Any, *names: str) -> Any:
    return types.StructType([schema[name] for name in names])


def test_values_have_the_type_of_their_format(topic: Topic) -> None:
    append(topic, b"\0\0\0\0\0\0\0\7", None)
    given = options(topic, valueFormat="LONG", columns="offset,value")
    schema = SparklogDataSource(given).schema()
    assert schema.simpleString() == "struct<offset:bigint,value:bigint>"
    assert read(given).to_pydict() == {"offset": [0, 1], "value": [7, None]}


def test_keys_have_the_type_of_their_format(topic: Topic) -> None:
    topic.append(pa.table({"key": pa.array([b"\0\0\0\7", None], pa.binary()), "value": [b"a", b"b"]}))
    given = options(topic, keyFormat="integer", valueFormat="string", columns="key,value")
    assert SparklogDataSource(given).schema().simpleString() == "struct<key:int,value:string>"
    assert read(given).to_pydict() == {"key": [7, None], "value": ["a", "b"]}
    assert read({**given, "keys": "7"}).to_pydict() == {"key": [7], "value": ["a"]}
    # JSON does not determine a type.
    assert SparklogDataSource(options(topic, keyFormat="json", columns="key")).schema() == "key binary"


def test_columns_that_are_declared_as_bytes_are_not_decoded(topic: Topic) -> None:
    """A table whose columns were stored before `keyFormat` decoded the column `key`."""
    topic.append(pa.table({"key": [b"\0\0\0\7"], "value": [b"a"]}))
    given = options(topic, keyFormat="integer", keys="7")
    binary = types.StructType([types.StructField("key", types.BinaryType())])
    assert read(given, binary)["key"].to_pylist() == [b"\0\0\0\7"]


def test_keys_are_decoded_with_the_schemas_of_their_subject(topic: Topic, server: FakeRegistry) -> None:
    append_version(topic, server, ORDER["fields"], {"id": 1})
    registry = formats.SchemaRegistry(server.url)
    schema = json.dumps({**ORDER, "name": "Key", "fields": [{"name": "k", "type": "int"}]})
    for subject in ("orders-key", "other-key"):
        registry.subject(subject).register(schema)
    for subject in ("orders-key", "other-key"):
        key = formats.encode(pa.array([{"k": 5}]), "avro", registry.subject(subject))
        topic.append(pa.table({"key": key, "value": pa.array([None], pa.binary())}))
    given = options(topic, keyFormat="avro", schemaRegistryUrl=server.url, columns="key")
    for more in ({}, {"keySubject": "other-key"}, {"valueFormat": "avro", "columns": "offset,key,value"}):
        assert read({**given, **more})["key"].to_pylist() == [None, {"k": 5}, {"k": 5}]
    own = {"valueFormat": "json-schema", "valueSchema": ITEM}
    assert read({**given, **own})["key"].to_pylist() == [None, {"k": 5}, {"k": 5}]
    plain = topic.root.create_topic("plain")
    plain.append(pa.table({"key": formats.encode(pa.array([{"k": 5}]), "avro", schema), "value": [b"a"]}))
    with_schema = {**options(topic, keyFormat="avro", keySchema=schema), "subscribe": "plain"}
    assert read(with_schema)["key"].to_pylist() == [{"k": 5}]


def test_values_are_structs_of_a_given_schema(topic: Topic, tmp_path: Path) -> None:
    append(topic, b'{"id": 1, "item": "book"}', None)
    (tmp_path / "item.json").write_text(ITEM)
    for schema in (ITEM, str(tmp_path / "item.json")):
        given = options(topic, valueFormat="json-schema", valueSchema=schema)
        rows = read(given)
        assert rows["value"].to_pylist() == [{"id": 1, "item": "book"}, None]
        assert rows.column_names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_records_are_converted_to_the_latest_schema(topic: Topic, server: FakeRegistry) -> None:
    append_version(topic, server, ORDER["fields"], {"id": 1})
    given = options(topic, valueFormat="avro", schemaRegistryUrl=server.url)
    old = SparklogDataSource(given).schema()
    append_version(topic, server, [*ORDER["fields"], ITEM_FIELD, SHIPPED], {"id": 2, "item": "book", "shipped": None})
    schema = SparklogDataSource(given).schema()
    assert schema["value"].dataType.simpleString() == "struct<id:bigint,item:string,shipped:timestamp>"
    assert [row["item"] for row in read(given)["value"].to_pylist()] == ["none", "book"]
    # A query that was planned with the first version still reads records of the second version.
    assert read(given, old)["value"].to_pylist() == [{"id": 1}, {"id": 2}]
    # The registry is not requested if the query does not read values.
    before = len(server.requests)
    assert read(given, only(schema, "offset"))["offset"].to_pylist() == [0, 1]
    assert len(server.requests) == before


def test_a_schema_that_no_longer_fits_is_an_error(topic: Topic, server: FakeRegistry) -> None:
    append_version(topic, server, [*ORDER["fields"], ITEM_FIELD], {"id": 2, "item": "book"})
    given = options(topic, valueFormat="avro", schemaRegistryUrl=server.url)
    old = SparklogDataSource(given).schema()
    append_version(topic, server, ORDER["fields"], {"id": 1})
    with pytest.raises(Exception, match="load the topic or create the table again"):
        read(given, old)


def test_an_invalid_value_is_reported_with_its_position(topic: Topic) -> None:
    append(topic, b'{"id": 1}', b"no")
    given = options(topic, valueFormat="json-schema", valueSchema=ITEM, columns="value")
    with pytest.raises(Exception, match="value of topic orders, partition 0, offset 1: expected"):
        read(given)


def test_keys_select_records_before_their_values_are_decoded(topic: Topic) -> None:
    topic.append(pa.table({"key": [b"a", b"b"], "value": [b'{"id": 1}', b"no"]}))
    given = options(topic, valueFormat="json-schema", valueSchema=ITEM, keys="a", columns="value")
    assert read(given).to_pydict() == {"value": [{"id": 1, "item": None}]}
    with pytest.raises(Exception, match="offset 1"):
        read({**given, "view": "table", "keys": "a,b"})


def test_the_options_of_a_table_are_in_its_columns(topic: Topic, server: FakeRegistry) -> None:
    append_version(topic, server, ORDER["fields"], {"id": 1})
    given = options(topic, valueFormat="avro", schemaRegistryUrl=server.url)
    created = {**given, **{f"option.{name}": value for name, value in given.items()}, "provider": "sparklog"}
    schema = SparklogDataSource(created).schema()
    assert schema["value"].dataType.simpleString() == "struct<id:bigint>"
    assert read({}, schema)["value"].to_pylist() == [{"id": 1}]
    with pytest.raises(Exception, match="The table has valueFormat=avro, which applies only to reads"):
        SparklogDataSource({}).writer(schema, overwrite=False)
    keyed = options(topic, keyFormat="long")
    created = {**keyed, **{f"option.{name}": value for name, value in keyed.items()}, "provider": "sparklog"}
    with pytest.raises(Exception, match="The table has keyFormat=long, which applies only to reads"):
        SparklogDataSource({}).writer(SparklogDataSource(created).schema(), overwrite=False)


def test_credentials_are_in_a_file(topic: Topic, server: FakeRegistry, tmp_path: Path) -> None:
    append_version(topic, server, ORDER["fields"], {"id": 1})
    server.authorization = "Bearer secret"
    (tmp_path / "registry.properties").write_text("bearer.auth.token=secret\n")
    given = options(topic, valueFormat="avro", schemaRegistryUrl=server.url, valueSubject="orders-value")
    with_file = {**given, "schemaRegistryConfig": str(tmp_path / "registry.properties")}
    assert read(with_file)["value"].to_pylist() == [{"id": 1}]
    with pytest.raises(Exception, match="'schemaRegistryConfig' must be a properties file"):
        read({**given, "schemaRegistryConfig": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"valueFormat": "json"}, "Option 'valueFormat' must be"),
        ({"valueFormat": "avro"}, "set either 'valueSchema' or 'schemaRegistryUrl'"),
        ({"valueFormat": "avro", "valueSchema": "{}", "schemaRegistryUrl": "http://x"}, "set either 'valueSchema' or"),
        ({"valueSchema": "{}"}, "Option 'valueSchema' requires a valueFormat with a schema: avro"),
        ({"valueSubject": "x"}, "Option 'valueSubject' requires schemaRegistryUrl"),
        ({"keySubject": "x"}, "Option 'keySubject' requires schemaRegistryUrl"),
        ({"keyFormat": "avro"}, "set either 'keySchema' or 'schemaRegistryUrl'"),
        ({"keyFormat": "avro", "keySchema": "{}", "schemaRegistryUrl": "http://x"}, "set either 'keySchema' or"),
        ({"keySchema": "{}"}, "Option 'keySchema' requires a keyFormat with a schema: avro"),
        (
            {"valueFormat": "avro", "keySubject": "x", "schemaRegistryUrl": "http://x"},
            "Option 'keySubject' requires a keyFormat with a schema",
        ),
        (
            {"keyFormat": "avro", "keySchema": "{}", "keySubject": "x", "schemaRegistryUrl": "http://x"},
            "set either 'keySchema' or 'schemaRegistryUrl'",
        ),
        ({"schemaRegistryUrl": "http://x"}, "Option 'schemaRegistryUrl' requires a keyFormat or valueFormat with"),
        ({"keyFormat": "avro", "keySchema": '"int"', "keys": "1"}, "cannot be used with keyFormat=avro: filter the"),
        (
            {"keyFormat": "avro", "schemaRegistryUrl": "http://x", "subscribe": "orders,trips"},
            "Option 'keySubject' is required to decode the keys of several topics",
        ),
        (
            {"valueFormat": "avro", "schemaRegistryUrl": "http://x", "subscribe": "orders,trips"},
            "Option 'valueSubject' is required to decode the values of several topics",
        ),
    ],
)
def test_wrong_options_are_rejected(topic: Topic, given: dict[str, str], message: str) -> None:
    topic.root.create_topic("trips")
    with pytest.raises(Exception, match=message):
        SparklogDataSource({**options(topic), **given}).schema()


def test_types_that_spark_does_not_have_are_replaced() -> None:
    """The batches have the schema that Spark derives from the columns."""
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

    kind = spark_kind(
        pa.struct(
            [
                pa.field("u", pa.uint64()),
                pa.field("t", pa.time32("ms")),
                pa.field("l", pa.list_(pa.struct([pa.field("x", pa.timestamp("ms"), nullable=False)]))),
                pa.field("m", pa.map_(pa.string(), pa.uint32())),
                pa.field("s", pa.timestamp("ms", "UTC"), nullable=False),
                pa.field("n", pa.null()),
                pa.field("d", pa.duration("us")),
                pa.field("f", pa.binary(4)),
            ]
        )
    )
    schema = types.StructType([types.StructField("value", from_arrow_type(kind))])
    assert schema["value"].dataType.simpleString() == (
        "struct<u:decimal(20,0),t:bigint,l:array<struct<x:timestamp_ntz>>,m:map<string,bigint>,s:timestamp,n:string,"
        "d:bigint,f:binary>"
    )
    try:
        derived = to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        derived = to_arrow_schema(schema)
    assert derived.equals(pa.schema([pa.field("value", kind)]))


def test_raw_values_have_no_format(topic: Topic) -> None:
    location = resolve(str(topic.root.location))
    assert decoded_columns(parse_options(options(topic)).read, location, ("key", "value")) == {}
    read_options = parse_options(options(topic, valueFormat="double", keyFormat="long")).read
    assert decoded_columns(read_options, location, ("value",))["value"].kind == pa.float64()
    assert decoded_columns(read_options, location, ("offset",)) == {}


def test_unknown_properties_of_a_registry_are_rejected() -> None:
    text = "schema.registry.bearer.auth.token = secret\nssl.ca.location = ca.pem"
    assert registry_arguments(text, "f") == {"token": "secret", "ca_file": "ca.pem"}
    with pytest.raises(Exception, match=r"f line 1: expected one of .* found 'bearer'"):
        registry_arguments("bearer = secret", "f")
