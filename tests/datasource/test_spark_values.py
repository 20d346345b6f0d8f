"""The recipes for values in docs/guides/spark-recipes.md that need no jar of Spark."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import pyarrow as pa
import pytest

from tests.datasource.spark_session import REPOSITORY

PAGE = REPOSITORY / "docs" / "guides" / "spark-recipes.md"
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippet(word: str) -> str:
    """The one fence of the page with this word."""
    found = [text for text in FENCED.findall(PAGE.read_text()) if word in text]
    assert len(found) == 1
    return str(found[0])


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
