"""Spark reads decoded values: the snippets of docs/guides/schemas.md, a stream and a table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import sparklog
from sparklog import formats
from tests.datasource.spark_session import REPOSITORY
from tests.datasource.streams import run
from tests.support.servers.schema_registry import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = (REPOSITORY / "docs" / "guides" / "schemas.md").read_text()
PYTHON = re.search(r"^```python\n(orders = \(\n    spark\.read.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
SQL = re.search(r"^```sql\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
LINE = {"type": "record", "name": "Line", "fields": [{"name": "count", "type": "int"}]}
FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "lines", "type": {"type": "array", "items": LINE}},
    {"name": "labels", "type": {"type": "map", "values": "string"}},
    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
]
ROWS = [{"id": n, "lines": [{"count": n}], "labels": {"a": "b"}, "at": None} for n in (1, 2)]


@pytest.mark.spark
def test_batch_stream_and_table(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sparklog[avro]'")
    assert PYTHON is not None
    assert SQL is not None
    root = tmp_path / "log"
    topic = sparklog.open(root, create=True).create_topic("orders", partitions=1)
    with running() as server:
        subject = formats.SchemaRegistry(server.url).subject("orders-value")
        subject.register(json.dumps({"type": "record", "name": "Order", "fields": FIELDS}))
        encoded = formats.encode(pa.array(ROWS), "avro", subject)
        topic.append(pa.table({"value": encoded}))
        topic.append(pa.table({"value": pa.array([None], pa.binary())}))

        def adapted(text: str) -> str:
            return text.replace("http://localhost:8081", server.url).replace("/data/log", str(root))

        names = {"spark": spark}
        exec(compile(adapted(PYTHON[1]), "schemas.md", "exec"), names)
        assert "|     1|  2|" in capsys.readouterr().out
        orders = names["orders"]
        rows = orders.orderBy("offset").collect()  # type: ignore[attr-defined]
        assert [row.value and row.value.asDict(recursive=True) for row in rows] == [*ROWS, None]

        spark.sql(adapted(SQL[1]).replace("TABLE orders", "TABLE decoded_orders"))
        found = spark.sql("SELECT value.lines[0].count AS n FROM decoded_orders WHERE value.id = 2").collect()
        assert [row.n for row in found] == [2]

        options = {"subscribe": "orders", "valueFormat": "avro", "schemaRegistryUrl": server.url}
        stream = spark.readStream.format("sparklog").options(**options, startingOffsets="earliest").load(str(root))
        writer = stream.selectExpr("value.id AS id").writeStream.format("memory").queryName("decoded_ids")
        run(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        assert {row.id for row in spark.table("decoded_ids").collect()} == {1, 2, None}

        topic.append(pa.table({"value": pa.array([b"no"], pa.binary())}))
        with pytest.raises(
            Exception, match=r"value of topic orders, partition 0, offset 3: expected a schema registry"
        ):
            spark.table("decoded_orders").select("value").collect()
