"""The recipes for values in docs/guides/spark-recipes.md. Recipes with Spark's jars run in a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog import formats
from tests.datasource import spark_session
from tests.datasource.spark_session import REPOSITORY

PAGE = REPOSITORY / "docs" / "guides" / "spark-recipes.md"
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIELDS = [{"name": "id", "type": "long"}, {"name": "item", "type": ["null", "string"], "default": None}]
SCHEMA = {"type": "record", "name": "Order", "fields": FIELDS}
ORDERS = [{"id": 1, "item": "book"}, {"id": 2, "item": None}]
VERSIONS = ("", "4.1.1")
"""Versions of spark-avro to try: the version of pyspark, and a version that is compatible with it."""

PROGRAM = """
import os, pathlib, sys
import pyspark
from pyspark.sql import SparkSession
from tests.datasource.spark_session import SETTINGS

package = "org.apache.spark:spark-avro_2.13:" + (sys.argv[1] or pyspark.__version__)
builder = SparkSession.builder.master("local[1]").config("spark.jars.packages", package)
for name, value in SETTINGS.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
exec(pathlib.Path(sys.argv[2]).read_text())
print([row.asDict() for row in orders.collect()])
print([bytes(row.value).hex() for row in values.collect()])
spark.stop()
"""


def snippet(word: str) -> str:
    """Return the code block of the page that contains this word."""
    found = [text for text in FENCED.findall(PAGE.read_text()) if word in text]
    assert len(found) == 1
    return str(found[0])


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("spark_folder")
def test_avro_by_the_jar_of_spark(tmp_path: Path) -> None:
    pytest.importorskip("fastavro", reason="framed values for the recipe need fastavro")
    values = formats.encode(pa.array(ORDERS), "avro", {7: SCHEMA})
    sparklog.open(tmp_path / "log", create=True).create_topic("orders-avro").append(pa.table({"value": values}))
    (tmp_path / "order.avsc").write_text(str(SCHEMA).replace("'", '"').replace("None", "null"))
    (tmp_path / "recipe.py").write_text(snippet("import from_avro").replace("/data/", f"{tmp_path}/"))
    for version in VERSIONS:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, version, "recipe.py"],
            cwd=tmp_path,
            env={**os.environ, **spark_session.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        if "unresolved dependency" not in done.stderr + done.stdout:
            break
    else:
        pytest.skip(f"Maven Central has no spark-avro_2.13 of {VERSIONS} for this machine")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == [str(ORDERS), str([value.hex() for value in values.to_pylist()])]


def test_protobuf_without_a_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = pytest.importorskip("google.protobuf.descriptor_pb2", reason="the recipe needs protobuf")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptors.FileDescriptorProto(name="order.proto", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=descriptors.FieldDescriptorProto.TYPE_INT64, label=1)
    message.field.add(name="item", number=2, type=descriptors.FieldDescriptorProto.TYPE_STRING, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))
    module: Any = types.ModuleType("order_pb2")
    module.Order = order
    monkeypatch.setitem(sys.modules, "order_pb2", module)

    names: dict[str, Any] = {}
    exec(snippet("from order_pb2").partition("\n\n\norders = ")[0], names)
    rows = [{"id": 1, "item": "book"}, {"id": 2, "item": ""}]
    framed = [b"\0\0\0\0\x07\0" + order(**row).SerializeToString() for row in rows]
    (decoded,) = names["decode"]([pa.RecordBatch.from_pydict({"value": framed})])
    assert decoded.to_pylist() == rows
