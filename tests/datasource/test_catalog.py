"""Tables in Spark's catalog: the options of CREATE are stored in the columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

import sparklog
from sparklog.datasource import catalog
from sparklog.datasource.data_source import SparklogDataSource


def created(**options: str) -> dict[str, str]:
    """Return the options that Spark 4.2 passes for CREATE."""
    twice = {**options, **{f"option.{name}": value for name, value in options.items() if name != "path"}}
    return {"owner": "root", "provider": "sparklog", **twice}


@pytest.fixture
def root(tmp_path: Path) -> str:
    sparklog.open(str(tmp_path / "log"), create=True).create_topic("orders")
    return str(tmp_path / "log")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"path": "/log", "subscribe": "t"}, None),
        (created(path="file:/log", subscribe="t"), {"path": "file:/log", "subscribe": "t"}),
        (created(startingOffsets="earliest"), {"startingoffsets": "earliest"}),
        ({**created(), "location": "/log", "comment": "text", "mine": "1", "external": "true"}, {"path": "/log"}),
        ({**created(path="/log"), "collation": "UTF8", "table_type": "EXTERNAL"}, {"path": "/log"}),
        (
            created(path="s3://b/a//c?endpoint=http:/h:9000&region=eu"),  # Spark merges the slashes
            {"path": "s3://b/a//c?endpoint=http://h:9000&region=eu"},
        ),
        (created(path="/log/a=http:/h"), {"path": "/log/a=http:/h"}),
    ],
)
def test_properties_of_the_catalog_are_omitted(given: dict[str, str], expected: dict[str, str] | None) -> None:
    assert catalog.of_create(given) == expected


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"subscribe": "t"}, {"topic": "t"}),
        ({"topic": "t"}, {"subscribe": "t"}),
        ({"subscribe": "a,b"}, {}),
        ({"subscribe": "a", "topic": "b"}, {}),
        ({"topic": "b", "subscribepattern": "a.*"}, {}),
        ({}, {}),
    ],
)
def test_one_topic_is_read_and_written(given: dict[str, str], added: dict[str, str]) -> None:
    assert catalog.complete_topic_options(given) == {**given, **added}


def test_the_columns_contain_the_options(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """Options of reads, writes, batches and streams are accepted without a warning."""
    both = {"num.partitions": "1", "maxOffsetsPerTrigger": "5", "topic.retention.ms": "604800000"}
    schema = SparklogDataSource(created(path=root, subscribe="orders", includeHeaders="true", **both)).schema()
    assert isinstance(schema, StructType)
    assert schema.names[-1] == "headers"
    assert schema == StructType.fromJson(schema.jsonValue())
    source = SparklogDataSource({"startingoffsets": "earliest"})
    assert source.reader(schema).partitions() == []
    assert source._options.read.start is not None
    with pytest.raises(Exception, match="no topic 'other'"):
        SparklogDataSource({"subscribe": "other"}).reader(schema).partitions()
    assert SparklogDataSource({}).writer(schema, False)._plan.topic == "orders"
    assert "no effect" not in caplog.text


def test_the_columns_do_not_contain_passwords(root: str) -> None:
    options = {"path": root, "topic": "orders", "kafka.sasl.jaas.config": "secret", "kafka.bootstrap.servers": "host:1"}
    schema = SparklogDataSource(created(**options)).schema()
    assert isinstance(schema, StructType)
    assert schema.fields[0].metadata == {"sparklog.options": f'{{"path": "{root}", "topic": "orders"}}'}


def test_selected_columns_are_not_a_table(root: str) -> None:
    schema = SparklogDataSource(created(path=root, topic="orders")).schema()
    assert isinstance(schema, StructType)
    for columns in (StructType(schema.fields[:2]), StructType().add("value", "string")):
        with pytest.raises(
            Exception,
            match="No path is set: Spark ignores LOCATION and OPTIONS of a table that is created with columns",
        ):
            SparklogDataSource({"topic": "t"}).writer(columns, False)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "is a root: set the topics of the table with OPTIONS"),
        ({"path": "/nowhere"}, "There is no log at /nowhere"),
        ({"subscribe": "a", "assign": "{}"}, "Set one of"),
        ({"frobnicate": "1"}, "Unknown option 'frobnicate'"),
        ({"subscribe": "orders", "columns": "value"}, "A table always has all columns: remove the option 'columns'"),
    ],
)
def test_an_unreadable_table_is_rejected(root: str, more: dict[str, str], expected: str) -> None:
    with pytest.raises(Exception, match=expected):
        SparklogDataSource(created(**{"path": root, **more})).schema()
