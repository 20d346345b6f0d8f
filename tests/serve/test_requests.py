"""Requests that a broker accepts although a part of them is wrong or means nothing: clients send them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from tests.serve.wire import Wire


def test_bytes_after_the_end_of_a_request_are_ignored(serve: Callable[..., Address], tmp_path: Path) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t")
    wire = Wire(serve(tmp_path))
    # librdkafka 2.2 to 2.16: four bytes for the length of the topic array, of which null (varint 0) takes one.
    all_topics = b"\0" + b"\0\0\0" + b"\0" + b"\0\0\0"
    wire.send_raw("Metadata", 9, all_topics)
    assert [topic["name"] for topic in wire.receive("Metadata", 9)["topics"]] == ["t"]
    for name, version in (("ApiVersions", 0), ("ListGroups", 0)):
        wire.send_raw(name, version, b"abc")
        assert wire.receive(name, version)["errorCode"] == Code.NONE
    wire.close()


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [
        (-1, -1, Code.NONE),  # kafka-go's Client.Fetch
        (0, -1, Code.NONE),
        (0, 0, Code.NONE),
        (7, -1, Code.NONE),
        (7, 0, Code.NONE),
        (0, 1, Code.FETCH_SESSION_ID_NOT_FOUND),
        (7, 3, Code.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_a_fetch_is_judged_by_its_session_epoch_alone(
    serve: Callable[..., Address], tmp_path: Path, session_id: int, epoch: int, code: Code
) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t").append({"value": ["a"]})
    rows = [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}]
    fields: dict[str, Any] = {"maxWaitMs": 0, "maxBytes": 1 << 20, "topics": [{"topic": "t", "partitions": rows}]}
    wire = Wire(serve(tmp_path))
    answer = wire.ask("Fetch", 11, fields | {"sessionId": session_id, "sessionEpoch": epoch})
    wire.close()
    assert answer["errorCode"] == code
    assert [topic["topic"] for topic in answer["responses"]] == (["t"] if code == Code.NONE else [])
